"""ELMo's token encoder: a word's vector from its characters (Peters et al. 2018; bilm-tf).

Letters: N words, C characters of a word (50), E width of a character, M filters of all widths,
D model width.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from bertlab.models.layers import ACTIVATIONS, Dense, normal, param, shard_batch, uniform

ALPHABET = 261
"""256 bytes; beginning and end of sentence, beginning and end of word; padding."""

WORD_LENGTH = 50
PUBLISHED_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))


class Convolution(nn.Module):
    """Filters of one width within a word's characters; the maximum of each."""

    shape: Any
    width: int
    filters: int

    @nn.compact
    def __call__(self, x: Float[Array, "N C E"]) -> Float[Array, "N n"]:
        shape = self.shape
        init = uniform(0.05)
        if shape.character_activation == "tanh":
            init = normal((self.width * shape.character_width) ** -0.5)
        size = (self.width, shape.character_width, self.filters)
        kernel = self.param("kernel", param(init, None, None, None), size)
        bias = self.param("bias", param(nn.initializers.zeros, None), (self.filters,))

        @jax.checkpoint  # otherwise it would keep the model's largest array
        def maxima(x, kernel):
            axes = ("NWC", "WIO", "NWC")
            y = jax.lax.conv_general_dilated(x, kernel, (1,), "VALID", dimension_numbers=axes)
            return y.max(1)

        # Bias and activation are monotone, so they may follow the maximum.
        highest = maxima(x, kernel.astype(shape.dtype))
        return ACTIVATIONS[shape.character_activation](highest + bias.astype(shape.dtype))


class Highway(nn.Module):
    """g relu(x W_t + b_t) + (1 - g) x, g = sigmoid(x W_c + b_c) (Srivastava et al. 2015)."""

    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Float[Array, "N M"]) -> Float[Array, "N M"]:
        width = x.shape[-1]

        def dense(name: str, bias_init: float) -> Array:
            kernel_init = param(normal(width**-0.5), "embed", "hidden")
            kernel = self.param(f"{name}_kernel", kernel_init, (width, width))
            bias_init = param(nn.initializers.constant(bias_init), "hidden")
            bias = self.param(f"{name}_bias", bias_init, (width,))
            # Otherwise XLA divides x along fsdp and tensor at once, and loses gradients (JAX 0.10).
            return shard_batch(x @ kernel.astype(self.dtype) + bias.astype(self.dtype))

        gate = jax.nn.sigmoid(dense("carry", -2.0))
        return gate * jax.nn.relu(dense("transform", 0.0)) + (1 - gate) * x


class Characters(nn.Module):
    """Convolutions, maxima, highway layers, projection; no dropout."""

    shape: Any  # has the fields of `BilstmShape` for characters, `width` and `dtype`

    @nn.compact
    def __call__(self, characters: Int[Array, "... C"]) -> Float[Array, "... D"]:
        """Vectors of words from ids 0 to 260, as in bilm-tf's training (at inference 1 to 261)."""
        shape = self.shape
        size = (ALPHABET, shape.character_width)
        embedding = self.param("embedding", param(uniform(1.0), None, None), size)
        ids = characters.reshape(-1, characters.shape[-1])
        x = shard_batch(embedding.astype(shape.dtype)[ids])
        highest = [
            Convolution(shape, width, filters, name=f"filter_{n}")(x)
            for n, (width, filters) in enumerate(shape.filters)
        ]
        x = shard_batch(jnp.concatenate(highest, -1))
        for n in range(shape.highway_layers):
            x = shard_batch(Highway(shape.dtype, name=f"highway_{n}")(x))
        init = normal(x.shape[-1] ** -0.5)
        x = Dense(shape.width, ("hidden", "embed"), init, dtype=shape.dtype, name="projection")(x)
        return x.reshape(*characters.shape[:-1], shape.width)
