"""Attention in one kernel for GPUs (Pallas, Triton), with dropout of the weights: no array of [L, L] passes through memory.

The contract, the settings and the bits of dropout are those of `attention_kernel`, so both draw the same mask. A program of the
grid holds a tile of queries and walks over keys with a running softmax; the backward pass has one kernel that walks over keys
for the gradient of queries, and one that walks over queries for those of keys and values (Dao 2023, "FlashAttention-2",
algorithms 1 and 2). One draw of dropout serves four tiles of 32 keys.

Letters: B batch, L length, H heads, K head width.
"""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float, Int, UInt32

from bertlab.models.attention_kernel import LANES, Spec, dot, threefry, walk

_QUERIES = 64  # of a tile
_PART = LANES // 4  # keys of a tile
_HIDDEN = -1e30


def applies(length: int, head_width: int) -> bool:
    """Whether tiles divide rows of this length, and heads have a width that Triton takes."""
    return length % LANES == 0 and head_width >= 16 and head_width & (head_width - 1) == 0


def attention(
    qkv: Float[Array, "B L 3 H K"],
    documents: Int[Array, "B L"],
    words: UInt32[Array, "B H 2"],
    reach: Int[Array, ""],
    spec: Spec,
    interpret: bool = False,
) -> Float[Array, "B L H K"]:
    """`attention_kernel.attention` on a GPU; `interpret`: as JAX operations, on any device."""
    words = jax.lax.bitcast_convert_type(words, jnp.int32)
    return _attention(qkv, documents, words, jnp.full(1, reach, jnp.int32), spec, interpret)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attention(qkv, documents, words, reach, spec, interpret):
    return _forward(qkv, documents, words, reach, spec, interpret)[0]


def _attention_forward(qkv, documents, words, reach, spec, interpret):
    # Named, so that rematerialisation keeps them and need not run the kernel again.
    out, sums = (checkpoint_name(x, "attention") for x in _forward(qkv, documents, words, reach, spec, interpret))
    return out, (qkv, documents, words, reach, out, sums)


def _attention_backward(spec, interpret, kept, of_out):
    return _backward(*kept, of_out, spec, interpret), None, None, None


_attention.defvjp(_attention_forward, _attention_backward)


def _blocks(length: int, head_width: int):
    """Block specs: (a tile or the whole row) of one of the three parts of qkv, of [B, L, H, K] and of [B, H, L]; and of
    the documents, the words and the reach."""
    place = lambda size, i: i if size < length else 0
    part = lambda size, n: pl.BlockSpec((None, size, None, None, head_width), lambda i, h, b: (b, place(size, i), n, h, 0))
    states = lambda size: pl.BlockSpec((None, size, None, head_width), lambda i, h, b: (b, place(size, i), h, 0))
    sums = lambda size: pl.BlockSpec((None, None, size), lambda i, h, b: (b, h, place(size, i)))
    row = pl.BlockSpec((None, length), lambda i, h, b: (b, 0))
    words = pl.BlockSpec((None, None, 2), lambda i, h, b: (b, h, 0))
    return part, states, sums, [row, words, pl.BlockSpec((1,), lambda i, h, b: (0,))]


def _call(kernel, spec: Spec, name: str, interpret: bool, warps: int, **how):
    options = plgpu.CompilerParams(num_warps=warps, num_stages=2)
    return pl.pallas_call(functools.partial(kernel, spec), name=name, interpret=interpret, compiler_params=options, **how)


def _forward(qkv, documents, words, reach, spec: Spec, interpret: bool):
    batch, length, _, heads, head_width = qkv.shape
    part, states, sums, others = _blocks(length, head_width)
    call = _call(
        *(_forward_kernel, spec, "attention", interpret, 4),
        grid=(length // _QUERIES, heads, batch),
        in_specs=[part(_QUERIES, 0), part(length, 1), part(length, 2), *others],
        out_specs=[states(_QUERIES), sums(_QUERIES)],
        out_shape=[
            jax.ShapeDtypeStruct((batch, length, heads, head_width), qkv.dtype),
            jax.ShapeDtypeStruct((batch, heads, length), jnp.float32),
        ],
    )
    return call(qkv, qkv, qkv, documents, words, reach)


def _backward(qkv, documents, words, reach, out, sums, of_out, spec: Spec, interpret: bool):
    batch, length, _, heads, head_width = qkv.shape
    part, states, of_sums, others = _blocks(length, head_width)
    shape = jax.ShapeDtypeStruct((batch, length, heads, head_width), qkv.dtype)
    both = jnp.einsum("blhk,blhk->bhl", out, of_out, preferred_element_type=jnp.float32)
    given = (qkv, qkv, qkv, documents, words, reach, of_out, sums, both)
    of_queries = _call(
        *(_queries_kernel, spec, "attention_backward_queries", interpret, 4),
        grid=(length // _QUERIES, heads, batch),
        in_specs=[
            *(part(_QUERIES, 0), part(length, 1), part(length, 2), *others),
            *(states(_QUERIES), of_sums(_QUERIES), of_sums(_QUERIES)),
        ],
        out_specs=states(_QUERIES),
        out_shape=shape,
    )(*given)
    of_keys, of_values = _call(
        *(_keys_kernel, spec, "attention_backward_keys", interpret, 8),
        grid=(length // LANES, heads, batch),
        in_specs=[
            *(part(length, 0), part(LANES, 1), part(LANES, 2), *others),
            *(states(length), of_sums(length), of_sums(length)),
        ],
        out_specs=[states(LANES)] * 2,
        out_shape=[shape] * 2,
    )(*given)
    return jnp.stack([of_queries, of_keys, of_values], axis=2)


def _stays(spec: Spec, words, block, queries):
    """For each of a block's four tiles of keys, which weights [queries, keys] stay; None without dropout."""
    if not spec.dropped:
        return (None,) * 4
    rows = block * _PART + jnp.arange(_PART, dtype=jnp.int32)
    drawn = threefry(words[0], words[1], *jnp.broadcast_arrays(rows[None, :], queries[:, None]))
    halves = lambda word: (word & 0xFFFF, jax.lax.shift_right_logical(word, jnp.full_like(word, 16)))
    return tuple(half >= spec.dropped for word in drawn for half in halves(word))


def _kept(stays, tile):
    return tile if stays is None else jnp.where(stays, tile, 0.0)


def _visible(spec: Spec, reach, queries, keys, of_queries, of_keys):
    """Which scores [queries, keys] of a tile count: their positions, and the documents there."""
    ahead = keys[None, :] - queries[:, None]
    found = (of_queries[:, None] == of_keys[None, :]) & (jnp.abs(ahead) <= reach)
    if spec.direction == "left-to-right":
        found &= ahead <= 0
    if spec.direction == "right-to-left":
        found &= ahead >= 0
    return found


def _range(spec: Spec, length: int, start, size: int, reach, step: int, seen_by: bool = False):
    """First and last (exclusive) tile of `step` positions that positions from `start` on see, or that see them (`seen_by`)."""
    low, high = start - reach, start + size - 1 + reach
    ahead, behind = ("left-to-right", "right-to-left") if seen_by else ("right-to-left", "left-to-right")
    low = start if spec.direction == ahead else low
    high = start + size - 1 if spec.direction == behind else high
    return jax.lax.div(jnp.maximum(low, 0), step), jax.lax.div(jnp.minimum(high, length - 1), step) + 1


def _forward_kernel(spec: Spec, q, k, v, documents, words, reach, out, sums):
    length, head_width = k.shape
    start, reach, query = pl.program_id(0) * _QUERIES, reach[0], q[...]
    queries, of_queries = start + jnp.arange(_QUERIES), documents[pl.ds(start, _QUERIES)]

    def of_block(block, running):
        most, total, mean = running
        for number, stays in enumerate(_stays(spec, words, block, queries)):
            place = pl.ds(block * LANES + number * _PART, _PART)
            keys = block * LANES + number * _PART + jnp.arange(_PART)
            visible = _visible(spec, reach, queries, keys, of_queries, documents[place])
            scores = jnp.where(visible, dot(query, k[place, :], (1, 1)) * head_width**-0.5, _HIDDEN)
            now = jnp.maximum(most, scores.max(1))
            weights, shrink = jnp.exp(scores - now[:, None]), jnp.exp(most - now)
            total = total * shrink + weights.sum(1)
            mean = mean * shrink[:, None] + dot(_kept(stays, weights).astype(v.dtype), v[place, :], (1, 0))
            most = now
        return most, total, mean

    line = lambda value: jnp.full(_QUERIES, value, jnp.float32)
    first, last = _range(spec, length, start, _QUERIES, reach, LANES)
    nothing = (line(_HIDDEN), line(0.0), jnp.zeros((_QUERIES, head_width), jnp.float32))
    most, total, mean = walk(last, of_block, nothing, first)
    out[...] = (mean / (total * (1 - spec.dropped / 2**16))[:, None]).astype(out.dtype)
    sums[...] = most + jnp.log(total)


def _tile(spec: Spec, visible, stays, query, key, value, of_out, sums, both):
    """Of a tile [queries, keys]: the weights that stay, made larger, and the gradient of the scores."""
    scale, stay = query.shape[1] ** -0.5, 1 - spec.dropped / 2**16
    weights = jnp.where(visible, jnp.exp(dot(query, key, (1, 1)) * scale - sums[:, None]), 0.0)
    of_weights = _kept(stays, dot(of_out, value, (1, 1)) / stay)
    of_scores = weights * (of_weights - both[:, None]) * scale
    return (_kept(stays, weights) / stay).astype(query.dtype), of_scores.astype(query.dtype)


def _queries_kernel(spec: Spec, q, k, v, documents, words, reach, of_out, sums, both, of_q):
    length, head_width = k.shape
    start, reach = pl.program_id(0) * _QUERIES, reach[0]
    queries, of_queries = start + jnp.arange(_QUERIES), documents[pl.ds(start, _QUERIES)]
    given = q[...], of_out[...], sums[...], both[...]

    def of_block(block, found):
        for number, stays in enumerate(_stays(spec, words, block, queries)):
            place = pl.ds(block * LANES + number * _PART, _PART)
            keys = block * LANES + number * _PART + jnp.arange(_PART)
            visible = _visible(spec, reach, queries, keys, of_queries, documents[place])
            key, (query, *of_rows) = k[place, :], given
            _, of_scores = _tile(spec, visible, stays, query, key, v[place, :], *of_rows)
            found = found + dot(of_scores, key, (1, 0))
        return found

    first, last = _range(spec, length, start, _QUERIES, reach, LANES)
    of_q[...] = walk(last, of_block, jnp.zeros((_QUERIES, head_width), jnp.float32), first).astype(of_q.dtype)


def _keys_kernel(spec: Spec, q, k, v, documents, words, reach, of_out, sums, both, of_k, of_v):
    length, head_width = q.shape
    block, reach = pl.program_id(0), reach[0]
    start = block * LANES
    places = [pl.ds(number * _PART, _PART) for number in range(4)]
    keys = [start + number * _PART + jnp.arange(_PART) for number in range(4)]
    of_keys = [documents[pl.ds(start + number * _PART, _PART)] for number in range(4)]
    given = [(k[place, :], v[place, :]) for place in places]

    def of_tile(number, found):
        place = pl.ds(number * _QUERIES, _QUERIES)
        queries, after = number * _QUERIES + jnp.arange(_QUERIES), []
        query, of_row, of_queries = q[place, :], of_out[place, :], documents[place]
        for part, stays in enumerate(_stays(spec, words, block, queries)):
            visible = _visible(spec, reach, queries, keys[part], of_queries, of_keys[part])
            weights, of_scores = _tile(spec, visible, stays, query, *given[part], of_row, sums[place], both[place])
            of_key, of_value = found[part]
            after.append((of_key + dot(of_scores, query, (0, 0)), of_value + dot(weights, of_row, (0, 0))))
        return after

    first, last = _range(spec, length, start, LANES, reach, _QUERIES, seen_by=True)
    nothing = [(jnp.zeros((_PART, head_width), jnp.float32),) * 2] * 4
    for place, (of_key, of_value) in zip(places, walk(last, of_tile, nothing, first)):
        of_k[place, :], of_v[place, :] = of_key.astype(of_k.dtype), of_value.astype(of_v.dtype)
