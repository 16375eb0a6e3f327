"""ELMo's token encoder: a word's vector from its characters (Peters et al. 2018; Kim et al. 2016).

Letters: N words, C characters of a word (50), E width of a character, W filter width, n filters of one width, M filters of
all widths, D model width.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from bertlab.models.base import Dense, normal, param, rows_apart
from bertlab.models.recurrent import uniform

ALPHABET = 261  # 256 bytes; begin and end of sentence, begin and end of word; padding
PUBLISHED_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh}


@dataclasses.dataclass(frozen=True)
class CharactersConfig:
    """Shape of a character encoder (the `char_cnn` of bilm-tf's options).

    Attributes:
        width: of the word vectors, D.
        highway_layers: 2 in the original model, 1 in the small and the medium one.
        filters: (width W, number n) of each convolution.
        character_width: E.
        activation: after each convolution, "relu" or "tanh"; highway layers have relu.
    """

    width: int
    highway_layers: int
    filters: tuple[tuple[int, int], ...] = PUBLISHED_FILTERS
    character_width: int = 16
    activation: str = "relu"
    dtype: jnp.dtype = jnp.float32

    def flops_per_token(self, characters: int = 50) -> float:
        """Forward and backward FLOPs of one word."""
        filters = sum(number for _, number in self.filters)
        convolutions = sum((characters + 1 - w) * w * number for w, number in self.filters) * self.character_width
        return 6 * (convolutions + self.highway_layers * 2 * filters**2 + filters * self.width)


class Convolution(nn.Module):
    """One filter width over a word's characters; the maximum of each filter."""

    config: CharactersConfig
    filter_width: int
    filters: int

    @nn.compact
    def __call__(self, x: Float[Array, "N C E"]) -> Float[Array, "N n"]:
        """Filters lie within the word's C characters (no padding is added)."""
        c = self.config
        fan_in = self.filter_width * c.character_width
        init = uniform(0.05) if c.activation == "relu" else normal(fan_in**-0.5)
        kernel = self.param("kernel", param(init, None, None, None), (self.filter_width, c.character_width, self.filters))
        bias = self.param("bias", param(nn.initializers.zeros, None), (self.filters,))

        # Recomputed in the backward pass: one value per position and filter would be the largest array of the model.
        @jax.checkpoint
        def highest(x, kernel):
            return jax.lax.conv_general_dilated(x, kernel, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")).max(axis=1)

        # Bias and activation are monotone, so they may follow the maximum.
        return ACTIVATIONS[c.activation](highest(x, kernel.astype(c.dtype)) + bias.astype(c.dtype))


class Highway(nn.Module):
    """g · relu(x W_t + b_t) + (1 − g) · x with g = σ(x W_c + b_c) (Srivastava et al. 2015). b_c starts at −2, so x passes."""

    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Float[Array, "N M"]) -> Float[Array, "N M"]:
        width = x.shape[-1]

        def dense(name, bias_init):
            kernel = self.param(f"{name}_kernel", param(normal(width**-0.5), "embed", "hidden"), (width, width))
            bias = self.param(f"{name}_bias", param(nn.initializers.constant(bias_init), "hidden"), (width,))
            # Without this, XLA divides x over fsdp and tensor at once and loses part of x's gradient (jax 0.10).
            return rows_apart(x @ kernel.astype(self.dtype) + bias.astype(self.dtype))

        gate = jax.nn.sigmoid(dense("carry", -2.0))
        return gate * jax.nn.relu(dense("transform", 0.0)) + (1 - gate) * x


class Characters(nn.Module):
    """Characters to word vectors: convolutions, maxima, highway layers, projection. No dropout."""

    config: CharactersConfig

    @nn.compact
    def __call__(self, characters: Int[Array, "... C"]) -> Float[Array, "... D"]:
        """Vectors of words.

        Args:
            characters: 0 to 260, as in bilm-tf's training (one less than the ids at its inference).
        """
        c = self.config
        embedding = self.param("embedding", param(uniform(1.0), None, None), (ALPHABET, c.character_width))
        x = rows_apart(embedding.astype(c.dtype)[characters.reshape(-1, characters.shape[-1])])
        found = [Convolution(c, w, n, name=f"filter_{i}")(x) for i, (w, n) in enumerate(c.filters)]
        x = rows_apart(jnp.concatenate(found, -1))
        for i in range(c.highway_layers):
            x = rows_apart(Highway(c.dtype, name=f"highway_{i}")(x))
        x = Dense(c.width, ("hidden", "embed"), normal(x.shape[-1] ** -0.5), dtype=c.dtype, name="projection")(x)
        return x.reshape(*characters.shape[:-1], c.width)
