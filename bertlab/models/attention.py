"""The inner part of attention, softmax(QKᵀ/√K)·V over the visible positions, in several implementations of one contract.

    xla     plain JAX; holds its weights [B, H, L, L], in rows of more than 8,192 positions those of some queries at a time.
            Every mask, and dropout of the weights
    cudnn   NVIDIA's fused kernel, through JAX: GPU, bfloat16. Every mask, no dropout of the weights, no bias of a row's own
    pallas  our own fused kernels for TPUs (`attention_kernel`) and GPUs (`attention_gpu`): documents, direction, windows and
            dropout of the weights, no bias of the scores; on a CPU the former is interpreted, for tests

Letters: B batch, L length, H heads, K head width.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from bertlab.errors import UserError
from bertlab.models import attention_gpu, attention_kernel
from bertlab.models.base import BATCH_AXES, Dropout, einsum, sequence_parts
from bertlab.models.base import drop as dropped

BACKENDS = ("xla", "cudnn", "pallas")
HEAD_AXES = ("tensor", "sequence")
"""The mesh's axes that divide heads inside attention."""

_ROWS = PartitionSpec(BATCH_AXES)


@dataclasses.dataclass(frozen=True)
class Window:
    """What local layers see.

    Attributes:
        reach: the greatest distance of a visible key.
        here: whether this layer is local, a boolean scalar.
        layers, among: how many layers are, and of how many.
    """

    reach: int
    here: Bool[Array, ""]
    layers: int
    among: int


@dataclasses.dataclass(frozen=True)
class Sight:
    """Which positions may attend to which.

    Attributes:
        mask: [B, 1, L, L], the keys that each query sees.
        documents: [B, L], or None if the mask is more than "the same document, not against the direction, in the window".
        direction: the body's direction.
        bias: [1, H, L, L], or [B, H, L, L] if each row has its own; added to the scores. None for none.
        window: of a body with local layers; None for others.
    """

    mask: Bool[Array, "B 1 L L"]
    documents: Int[Array, "B L"] | None
    direction: str
    bias: Float[Array, "#B H L L"] | None = None
    window: Window | None = None


def attend(
    backend: str, qkv: Float[Array, "B L 3 H K"], sight: Sight, drop: Dropout | None = None, dtype: jnp.dtype | None = None
) -> Float[Array, "B L H K"]:
    """Means of the values that each position sees, weighted by softmax(QKᵀ/√K).

    Args:
        backend: one of BACKENDS; "xla" replaces one that does not apply.
        qkv: queries, keys and values, in the dtype between products.
        sight: the visible positions; every query sees at least one.
        drop: dropout of the weights; None: no dropout.
        dtype: of the products; None: the queries' dtype.
    """
    dtype = dtype or qkv.dtype
    if backend == "pallas" and sight.bias is None and sight.documents is not None:
        heads = qkv.shape[3] // math.prod(_mesh_shape().get(axis, 1) for axis in HEAD_AXES)
        if kernel_of(_platform(), qkv.shape[1], heads, qkv.shape[-1]):
            return _kernel(qkv.astype(dtype), sight, drop).astype(qkv.dtype)
    if backend == "cudnn" and drop is None and (sight.bias is None or sight.bias.shape[0] == 1):
        bias = None if sight.bias is None else sight.bias.astype(qkv.dtype)
        return jax.nn.dot_product_attention(*jnp.moveaxis(qkv, 2, 0), bias, mask=sight.mask, implementation="cudnn")
    key = None if drop is None else drop.key()
    dropout = None if drop is None else functools.partial(dropped, rate=drop.rate, key=key)
    if qkv.shape[1] > attention_kernel.LONGEST:
        of_block = lambda n: None if drop is None else functools.partial(dropout, key=jax.random.fold_in(key, n))
        in_full = lambda qkv: _by_queries(qkv, sight, of_block, dtype)
    else:
        in_full = lambda qkv: _written_out(qkv, sight.mask, sight.bias, dropout, dtype)
    if not _is_short(sight, qkv.shape[1]):
        return in_full(qkv)
    window = sight.window
    local, others = (f"runs_{n}_of_{window.among}" for n in (window.layers, window.among - window.layers))
    in_window = jax.named_scope(local)(lambda qkv: _in_bands(qkv, sight, dropout, dtype))
    return jax.lax.cond(window.here, in_window, jax.named_scope(others)(in_full), qkv)


def heads_apart(x: Float[Array, "..."], axis: int, positions: int | None = None) -> Float[Array, "..."]:
    """Divides heads over the mesh's tensor and sequence axes; does nothing where a row's positions are not divided.

    Args:
        x: with an axis of heads.
        axis: that axis.
        positions: the axis of positions, which so far were divided over the sequence axis; then the first axis is the batch's.
            None: there is no such axis.

    Raises:
        UserError: the mesh axes do not divide the heads.
    """
    if (parts := sequence_parts()) == 1:
        return x
    if x.shape[axis] % (parts * _mesh_shape()["tensor"]):
        raise UserError(
            f"config.mesh.sequence={parts} times config.mesh.tensor={_mesh_shape()['tensor']} does not divide {x.shape[axis]}"
            " heads; change them or config.model.heads"
        )
    if positions is None:
        return _divided(x, {axis: HEAD_AXES})
    return _divided(_divided(x, {0: BATCH_AXES, positions: "sequence", axis: "tensor"}), {0: BATCH_AXES, axis: HEAD_AXES})


def heads_together(context: Float[Array, "B L H K"]) -> Float[Array, "B L H K"]:
    """What `heads_apart` divides by heads, divided by positions again."""
    if sequence_parts() == 1:
        return context
    by_heads = _divided(context, {0: BATCH_AXES, 2: HEAD_AXES})
    return _divided(by_heads, {0: BATCH_AXES, 1: "sequence", 2: "tensor"})


def _divided(x, by: Mapping[int, str | tuple[str, ...]]):
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*(by.get(axis) for axis in range(x.ndim))))


def _written_out(qkv, mask, bias, dropout, dtype):
    """All scores at once, [B, H, L, L]."""
    return _means(*jnp.moveaxis(qkv, 2, 0), mask, bias, dropout, dtype)


def _means(query, key, value, mask, bias, dropout, dtype):
    scores = einsum("blhk,bmhk->bhlm", query, key, dtype, jnp.float32) / query.shape[-1] ** 0.5
    scores = scores if bias is None else scores + bias
    weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(jnp.float32).min)).astype(query.dtype)
    return einsum("bhlm,bmhk->blhk", weights if dropout is None else dropout(weights), value, dtype)


_QUERIES = 512  # of a long row at a time


def _by_queries(qkv, sight: Sight, dropout_of, dtype):
    """Scores of some queries with all keys at a time, [B, H, queries, L]; the backward pass computes them again.

    `dropout_of` is a function of a block's number.
    """
    batch, length, _, heads, head_width = qkv.shape
    blocks = -(-length // _QUERIES)
    # In float32, because the backward pass adds up the gradients of all blocks.
    key, value = (qkv[:, :, n].astype(jnp.float32) for n in (1, 2))

    def cut(x, axis):
        """Blocks of queries along a new first axis; the last one is filled with zeros."""
        filled = jnp.pad(x, [(0, blocks * _QUERIES - length if n == axis else 0) for n in range(x.ndim)])
        return jnp.moveaxis(filled.reshape(*x.shape[:axis], blocks, _QUERIES, *x.shape[axis + 1 :]), axis, 0)

    given = {"number": jnp.arange(blocks), "query": cut(qkv[:, :, 0], 1)}
    given |= {"mask": cut(sight.mask, 2)} if sight.documents is None else {"documents": cut(sight.documents, 1)}
    given |= {} if sight.bias is None else {"bias": cut(sight.bias, 2)}

    def of_block(_, block):
        if sight.documents is None:
            mask = block["mask"]
        else:
            ahead = jnp.arange(length) - block["number"] * _QUERIES - jnp.arange(_QUERIES)[:, None]
            mask = _visible(sight, block["documents"][:, :, None], sight.documents[:, None], ahead)[:, None]
        found = _means(block["query"], key, value, mask, block.get("bias"), dropout_of(block["number"]), dtype)
        return None, found.astype(qkv.dtype)

    _, found = jax.lax.scan(jax.checkpoint(of_block, prevent_cse=False), None, given)
    return jnp.moveaxis(found, 0, 1).reshape(batch, blocks * _QUERIES, heads, head_width)[:, :length]


def _band(window: Window) -> int:
    """Positions of a block whose queries see its own keys and those of the blocks beside it."""
    return max(1, -(-window.reach // 64)) * 64  # a reach of 0, a position that sees itself alone, has blocks too


def _visible(sight: Sight, of_queries, of_keys, ahead) -> Bool[Array, "..."]:
    """Which keys queries see, from their documents and from how many positions keys are ahead; arrays that broadcast."""
    mask = of_queries == of_keys
    if sight.window is not None:
        mask &= (jnp.abs(ahead) <= sight.window.reach) | ~jnp.asarray(sight.window.here)
    if sight.direction != "bidirectional":
        mask &= (ahead <= 0) if sight.direction == "left-to-right" else (ahead >= 0)
    return mask


def _is_short(sight: Sight, length: int) -> bool:
    """Whether blocks spare at least half of the scores of local layers."""
    return sight.window is not None and sight.documents is not None and sight.bias is None and 6 * _band(sight.window) <= length


def _in_bands(qkv, sight: Sight, dropout, dtype):
    """Only scores of neighbouring blocks, [B, H, blocks, size, 2 or 3 sizes]. A document's positions are neighbours."""
    batch, length, _, heads, head_width = qkv.shape
    size = _band(sight.window)
    blocks = -(-length // size)
    beside = {"left-to-right": (-1, 0), "right-to-left": (0, 1)}.get(sight.direction, (-1, 0, 1))
    # One block of padding at either end, whose documents are none.
    ends = (size, (blocks + 1) * size - length)
    padded = jnp.pad(qkv, ((0, 0), ends, *((0, 0),) * 3)).reshape(batch, blocks + 2, size, 3, heads, head_width)
    documents = jnp.pad(sight.documents, ((0, 0), ends), constant_values=-1).reshape(batch, blocks + 2, size)
    near = lambda x: jnp.concatenate([x[:, 1 + place : 1 + place + blocks] for place in beside], axis=2)
    query, key, value = padded[:, 1:-1, :, 0], near(padded[:, :, :, 1]), near(padded[:, :, :, 2])
    ahead = beside[0] * size + jnp.arange(len(beside) * size) - jnp.arange(size)[:, None]
    local = dataclasses.replace(sight, window=dataclasses.replace(sight.window, here=True))
    mask = _visible(local, documents[:, 1:-1, :, None], near(documents)[:, :, None], ahead)
    scores = einsum("bnlhk,bnmhk->bhnlm", query, key, dtype, jnp.float32) / head_width**0.5
    weights = jax.nn.softmax(jnp.where(mask[:, None], scores, jnp.finfo(jnp.float32).min)).astype(qkv.dtype)
    found = einsum("bhnlm,bnmhk->bnlhk", weights if dropout is None else dropout(weights), value, dtype)
    return found.reshape(batch, blocks * size, heads, head_width)[:, :length]


def kernel_of(platform: str, length: int, heads: int, head_width: int):
    """The module of the fused kernel for a platform; None if its tiles do not divide rows and heads of these sizes."""
    if platform == "gpu":
        return attention_gpu if attention_gpu.applies(length, head_width) else None
    return attention_kernel if attention_kernel.applies(length, heads, head_width) else None


def tiles(length: int) -> bool:
    """Whether the fused kernels' tiles of 128 positions divide rows of this length."""
    return length % 128 == 0


def _mesh_shape() -> Mapping[str, int]:
    return jax.sharding.get_abstract_mesh().shape


def _platform() -> str:
    """What the code is traced for: the mesh's devices, or without a mesh this machine's."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform


def _kernel(qkv, sight: Sight, drop: Dropout | None):
    """Our own kernel; each row and head has its own words for the bits of dropout, whatever device computes it."""
    batch, length, _, heads, _ = qkv.shape
    window, rate = sight.window, 0.0 if drop is None else drop.rate
    reach, share = (None, 0.0) if window is None else (window.reach, window.layers / window.among)
    spec = attention_kernel.spec_of(length, sight.direction, rate, reach, share)
    words = jnp.zeros((batch, heads, 2), jnp.uint32)
    if drop is not None:
        words = jax.random.bits(drop.key(), words.shape, jnp.uint32)
    here = jnp.int32(length if window is None else jnp.where(window.here, window.reach, length))
    kernel = attention_gpu if _platform() == "gpu" else attention_kernel
    attention = lambda *given: kernel.attention(*given, spec)
    given = (sight.documents, _ROWS), (words, PartitionSpec(BATCH_AXES, HEAD_AXES)), (here, PartitionSpec())
    return _on_all_devices(attention, qkv, *given)


def _on_all_devices(attention, qkv, *given):
    """Runs the kernel on each device's own rows and heads, because the compiler cannot divide a kernel."""
    arrays, specs = zip(*given)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return attention(qkv, *arrays)
    in_specs = (PartitionSpec(BATCH_AXES, None, None, HEAD_AXES), *specs)
    out_specs = PartitionSpec(BATCH_AXES, None, HEAD_AXES)
    return jax.shard_map(attention, in_specs=in_specs, out_specs=out_specs, check_vma=False)(qkv, *arrays)
