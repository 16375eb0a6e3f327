"""Layers that several families share, and how parameters and activations are divided among devices.

Every parameter names its axes (`param`): vocab, embed, hidden, heads, norm, layers or None. The
training package maps these names to axes of the mesh. Activations are divided only along their
batch axis (`shard_batch`).
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

BATCH_AXES = ("data", "fsdp")
"""The mesh's axes that divide a batch's rows."""

recomputed = functools.partial(jax.checkpoint, prevent_cse=False)
"""Saves only the arguments for the backward pass; on a GPU, recomputing the intermediates is faster
than storing them."""

ACTIVATIONS = {
    "gelu_tanh": recomputed(functools.partial(jax.nn.gelu, approximate=True)),
    "gelu_erf": recomputed(functools.partial(jax.nn.gelu, approximate=False)),
    "relu": jax.nn.relu,
    "silu": recomputed(jax.nn.silu),
    "tanh": jnp.tanh,
}

normal = jax.nn.initializers.normal
truncated_normal = jax.nn.initializers.truncated_normal
"""Truncated at two deviations and not rescaled, as in BERT: its deviation is 0.88 of `stddev`."""


def uniform(bound: float) -> nn.initializers.Initializer:
    """U(-bound, bound)."""

    def init(key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def param(init: nn.initializers.Initializer, *axes: str | None) -> nn.initializers.Initializer:
    """An initialiser whose parameter carries one logical axis name (or None) per dimension."""
    return nn.with_logical_partitioning(init, axes)


def platform() -> str:
    """What the code is traced for, "cpu", "gpu" or "tpu": the mesh's devices or JAX's default."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def shard_batch(x: Float[Array, "..."], axis: int = 0) -> Float[Array, "..."]:
    """Divides an activation along its batch axis, like the batch; does nothing without a mesh.

    Otherwise the compiler may divide it like the parameters it is multiplied with.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*[None] * axis, BATCH_AXES))


def gather(weights: Float[Array, "..."], axis: int) -> Float[Array, "..."]:
    """Makes weights whole along an axis once, so that a loop need not do it in every step."""
    if jax.sharding.get_abstract_mesh().empty:
        return weights
    spec = [PartitionSpec.UNCONSTRAINED] * weights.ndim
    spec[axis] = None
    return jax.lax.with_sharding_constraint(weights, PartitionSpec(*spec))


def lookup(table: Float[Array, "V D"], ids: Int[Array, "..."]) -> Float[Array, "... D"]:
    """Rows of an embedding table, divided among devices as their ids are.

    Convert the rows, not the table, to 16 bits: their gradients are then added up in float32.
    GPUs add 16-bit numbers to the same place so slowly that a step took ten times as long.
    """
    return gather(table, 1)[ids]


class Dense(nn.Module):
    """x @ kernel + bias in `dtype`; the first axis of x is the batch's."""

    features: int  # F
    axes: tuple[str | None, str | None]  # names of the kernel's axes
    initializer: nn.initializers.Initializer = truncated_normal(0.02)
    use_bias: bool = True
    dtype: jnp.dtype = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... F"]:
        kernel = self.param(
            "kernel", param(self.initializer, *self.axes), (x.shape[-1], self.features)
        )
        x = shard_batch(x) if self.axes[0] == "embed" else x
        y = jnp.tensordot(x.astype(self.dtype), kernel.astype(self.dtype), 1)
        if self.use_bias:
            bias = self.param("bias", param(nn.initializers.zeros, self.axes[1]), (self.features,))
            y = y + bias.astype(y.dtype)
        return shard_batch(y) if self.axes[1] is None else y


class Norm(nn.Module):
    """Layer or RMS normalisation (Ba et al. 2016; Zhang and Sennrich 2019), in float32."""

    epsilon: float
    kind: str = "layer_norm"
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        size, bias = (x.shape[-1],), 0.0
        scale = self.param("scale", param(nn.initializers.ones, "norm"), size)
        if self.use_bias and self.kind == "layer_norm":
            bias = self.param("bias", param(nn.initializers.zeros, "norm"), size)

        @recomputed
        def normalise(x, scale, bias):
            y = x.astype(jnp.float32)
            if self.kind == "layer_norm":
                y = y - y.mean(-1, keepdims=True)
            y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + self.epsilon) * scale + bias
            return y.astype(x.dtype)

        return normalise(x, scale, bias)


class Dropout(nn.Module):
    """Sets elements to zero with probability `rate` and divides the others by 1 - rate.

    It is active if and only if there is an rng "dropout". The rate is rounded to 16 bits.
    """

    rate: float
    broadcast_dims: tuple[int, ...] = ()  # axes along which the mask is the same

    @nn.compact
    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        if not self.rate or not self.has_rng("dropout"):
            return x
        shape = [1 if axis in self.broadcast_dims else size for axis, size in enumerate(x.shape)]
        threshold = round(self.rate * 2**16)
        kept = random_16_bits(self.make_rng("dropout"), shape) >= threshold
        scale = 2**16 / max(2**16 - threshold, 1)
        return jnp.where(kept, x * jnp.asarray(scale, x.dtype), 0)


def random_16_bits(key: Array, shape: list[int]) -> Int[Array, "..."]:
    """Uniform integers below 2^16. Drawing is most of dropout's cost on a CPU: two per word."""
    if platform() != "cpu":
        return jax.random.bits(key, shape, jnp.uint32) >> 16
    words = jax.random.bits(key, (*shape[:-1], (shape[-1] + 1) // 2), jnp.uint32)
    return jnp.concatenate([words & 0xFFFF, words >> 16], axis=-1)[..., : shape[-1]]


class OutputLayer(nn.Module):
    """Hidden states to logits over the vocabulary, divided by `embeddings.times_base` (μP).

    States whose width differs from the embeddings', a biLSTM's joined ones, are transformed to it.
    """

    shape: Any  # of the body that has the states (`base.Shape`)
    initializer: nn.initializers.Initializer  # of the kernels
    embeddings: Any = None  # shape of the body that has the embeddings; a small generator's differs

    @nn.compact
    def __call__(
        self,
        hidden: Float[Array, "... D"],
        embedding: Float[Array, "V D"] | None,
        side: str,
        among: Int[Array, "..."] | None = None,
    ) -> Float[Array, "... V"]:
        """Arguments as for `Body.predict_tokens`; `embedding` is read if tied."""
        shape, embeddings = self.shape, self.embeddings or self.shape
        width = embeddings.width
        if shape.output_transform or hidden.shape[-1] != width:
            name = "transform" if hidden.shape[-1] == width else f"transform_{side}"
            dense = shape.dense(width, ("embed", None), self.initializer, name)
            hidden = ACTIVATIONS[shape.activation](dense(hidden))
            hidden = shape.norm_layer(f"{name}_norm")(hidden)
        table = embedding
        if not shape.tied:
            kernel_init = param(self.initializer, "vocab", "embed")
            table = self.param("kernel", kernel_init, (shape.vocab_size, width))
        bias = None
        if shape.output_bias:
            bias = self.param("bias", param(nn.initializers.zeros, "vocab"), (shape.vocab_size,))
        if among is not None:
            table = lookup(table, among)
            bias = None if bias is None else bias[among]
        letters = "...d,vd->...v" if table.ndim == 2 else "...d,...kd->...k"
        hidden = hidden.astype(shape.dtype) / embeddings.times_base
        logits = float32_product(letters, hidden, table.astype(shape.dtype))
        return logits if bias is None else logits + bias


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def float32_product(letters: str, x: Array, y: Array) -> Float[Array, "..."]:
    """jnp.einsum with a float32 result. The products of the backward pass have x's dtype, like the
    forward pass's; JAX would use float32."""
    return jnp.einsum(letters, x, y, preferred_element_type=jnp.float32)


def _forward(letters, x, y):
    return float32_product(letters, x, y), (x, y)


def _backward(letters, operands, gradient):
    _, product_of = jax.vjp(functools.partial(jnp.einsum, letters), *operands)
    return product_of(gradient.astype(operands[0].dtype))


float32_product.defvjp(_forward, _backward)


def rematerialised(layer: type[nn.Module], remat: str, prevent_cse: bool = True) -> type[nn.Module]:
    """A layer whose backward pass recomputes activations: "dots" all but products without batch
    axes, "full" all but its input. In a loop the compiler cannot undo it (`prevent_cse=False`)."""
    if remat == "none":
        return layer
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if remat == "dots" else None
    return nn.remat(layer, policy=policy, prevent_cse=prevent_cse)


UNROLLED_ON_CPU = 6
"""A loop copies what it keeps for the backward pass; more layers than this compile slowly."""


def stacked(
    layer: type[nn.Module], layers: int, remat: str, scan_layers: bool | None
) -> Callable[..., nn.Module]:
    """Layers one after another, with parameters stacked along a first axis "layers".

    A layer is called with (x, own values, shared values), and returns (next x, output to keep).
    With `scan_layers` they run in a loop, else unrolled; None: whichever suits the device.
    """
    if scan_layers is None:
        scan_layers = platform() != "cpu" or layers > UNROLLED_ON_CPU
    return nn.scan(
        rematerialised(layer, remat, prevent_cse=not scan_layers),
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(0, nn.broadcast),
        length=layers,
        unroll=1 if scan_layers else layers,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )
