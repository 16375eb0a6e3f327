"""The inner part of attention, softmax(QKᵀ/√K)·V over the visible positions, in several implementations of one contract.

    xla     plain JAX; holds its weights [B, H, L, L]. Every mask, and dropout of the weights
    cudnn   NVIDIA's fused kernel, through JAX: GPU, bfloat16. Every mask, no dropout of the weights
    pallas  JAX's fused kernels for GPU (Triton) and TPU (Mosaic). Documents and direction, no bias of the scores, no dropout
            of the weights. On a CPU it is interpreted, for tests

Letters: B batch, L length, H heads, K head width.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from bertlab.models.base import BATCH_AXES, einsum

BACKENDS = ("xla", "cudnn", "pallas")
_HEADS = PartitionSpec(BATCH_AXES, None, "tensor", None)
_ROWS = PartitionSpec(BATCH_AXES)


@dataclasses.dataclass(frozen=True)
class Sight:
    """Which positions may attend to which.

    Attributes:
        mask: [B, 1, L, L], the keys that each query sees.
        documents: [B, L], or None if the mask is more than "the same document, not against the direction".
        direction: the body's direction.
        bias: [1, H, L, L], added to the scores; None for none.
    """

    mask: Bool[Array, "B 1 L L"]
    documents: Int[Array, "B L"] | None
    direction: str
    bias: Float[Array, "1 H L L"] | None = None


def attend(
    backend: str,
    query: Float[Array, "B L H K"],
    key: Float[Array, "B L H K"],
    value: Float[Array, "B L H K"],
    sight: Sight,
    drop: Callable[[Array], Array] | None = None,
    dtype: jnp.dtype | None = None,
) -> Float[Array, "B L H K"]:
    """Means of the values that each position sees, weighted by softmax(QKᵀ/√K).

    Args:
        backend: one of BACKENDS; "xla" replaces one that does not apply.
        query, key, value: in the dtype between products.
        sight: the visible positions; every query sees at least one.
        drop: dropout of the weights; None: no dropout.
        dtype: of the products; None: the query's dtype.
    """
    dtype = dtype or query.dtype
    if backend == "cudnn" and drop is None:
        bias = None if sight.bias is None else sight.bias.astype(query.dtype)
        return jax.nn.dot_product_attention(query, key, value, bias, mask=sight.mask, implementation="cudnn")
    plain = drop is None and sight.bias is None and sight.documents is not None
    if backend == "pallas" and plain and tiles(query.shape[1]):
        return _on_all_devices(functools.partial(_fused, sight.direction), query, key, value, sight.documents)
    scores = einsum("blhk,bmhk->bhlm", query, key, dtype, jnp.float32) / query.shape[-1] ** 0.5
    scores = scores if sight.bias is None else scores + sight.bias
    weights = jax.nn.softmax(jnp.where(sight.mask, scores, jnp.finfo(jnp.float32).min)).astype(query.dtype)
    return einsum("bhlm,bmhk->blhk", weights if drop is None else drop(weights), value, dtype)


def tiles(length: int) -> bool:
    """Whether the fused kernels' tiles of 128 positions divide rows of this length."""
    return length % 128 == 0


def _on_all_devices(attention, query, key, value, documents):
    """Runs the kernel on each device's own rows and heads, because the compiler cannot divide a kernel."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return attention(query, key, value, documents)
    in_specs = (_HEADS, _HEADS, _HEADS, _ROWS)
    return jax.shard_map(attention, in_specs=in_specs, out_specs=_HEADS, check_vma=False)(query, key, value, documents)


def _fused(direction: str, query, key, value, documents):
    """JAX's kernel for the target platform."""
    if direction == "right-to-left":  # as left-to-right, from the other end
        flipped = (x[:, ::-1] for x in (query, key, value, documents))
        return _fused("left-to-right", *flipped)[:, ::-1]
    causal = direction == "left-to-right"
    return jax.lax.platform_dependent(
        query, key, value, documents, default=functools.partial(_triton, causal), tpu=functools.partial(_mosaic, causal),
        cpu=functools.partial(_triton, causal, interpret=True),
    )  # fmt: skip


def _triton(causal: bool, query, key, value, documents, interpret: bool = False):
    from jax.experimental.pallas.ops.gpu.attention import mha

    return mha(query, key, value, documents, sm_scale=query.shape[-1] ** -0.5, causal=causal, interpret=interpret)


def _mosaic(causal: bool, query, key, value, documents):
    from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds, flash_attention

    heads_first = (x.swapaxes(1, 2) for x in (query, key, value))
    found = flash_attention(
        *heads_first, segment_ids=SegmentIds(documents, documents), sm_scale=query.shape[-1] ** -0.5, causal=causal
    )
    return found.swapaxes(1, 2)
