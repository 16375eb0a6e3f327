"""Attention in one kernel for TPUs (Pallas, Mosaic), with dropout of the weights: no array of [L, L] passes through memory.

A program of the grid holds the queries, keys and values of one row and of as many heads as fill a TPU's 128 lanes. It walks
over tiles of scores with a running softmax and skips tiles that direction or window hide; the backward pass computes the
weights again from the stored log-sums (Dao et al. 2022, "FlashAttention", algorithms 1 and 4). Tiles are transposed (keys come
first), so that each query's sums are rows.

Dropout's bits are a function of a key for each row and head and of the positions of query and key. So both passes, the
interpreter on a CPU and `keep` itself, which makes the mask of the written-out attention, draw the same, however tiles and
devices divide the work.

Letters: B batch, L length, H heads, K head width, P heads of a program, G = H/P programs of a row, W = P·K.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Bool, Float, Int, UInt32

LANES = 128
LONGEST = 8192  # a row of more positions does not fit in a TPU's on-chip memory
_HIDDEN = -1e30
_ROUNDS = 13  # the fewest that pass all tests of TestU01 (Salmon et al. 2011, "Parallel random numbers", table 2)


@dataclasses.dataclass(frozen=True)
class Spec:
    """What is known when a kernel is compiled.

    Attributes:
        direction: the body's direction.
        dropped: of 65,536 draws, how many drop a weight; 0: no dropout.
        tile_queries, tile_keys: positions of a tile.
        visible: share of the tiles that are computed, the mean over the layers that share the program; for its cost.
    """

    direction: str
    dropped: int
    tile_queries: int
    tile_keys: int
    visible: float


def spec_of(length: int, direction: str, rate: float, reach: int | None, share: float) -> Spec:
    """The kernel's settings for rows of a length.

    Args:
        length: a multiple of 128.
        direction: the body's.
        rate: of dropout; rounded to 16 bits.
        reach: the greatest distance of a visible key in some layers; None: any in all.
        share: of these layers.
    """
    divisor = lambda most: max(size for size in range(LANES, most + 1, LANES) if length % size == 0)
    queries, keys = (divisor(512), divisor(512)) if reach is None else (divisor(256), LANES)
    # Of each tile, the least and the greatest distance from a query to a key.
    ahead = np.arange(0, length, keys) - np.arange(0, length, queries)[:, None]
    least, greatest = ahead - queries + 1, ahead + keys - 1
    allowed = {"left-to-right": least <= 0, "right-to-left": greatest >= 0}.get(direction, True)
    computed = lambda distance: float(np.mean((least <= distance) & (greatest >= -distance) & allowed))
    visible = computed(length) if reach is None else (1 - share) * computed(length) + share * computed(reach)
    return Spec(direction, round(rate * 2**16), queries, keys, visible)


def applies(length: int, heads: int, head_width: int) -> bool:
    """Whether tiles of 128 positions and lanes divide rows of this length and heads of this width."""
    packed = max(1, LANES // head_width)
    return length % LANES == 0 and length <= LONGEST and packed * head_width % LANES == 0 and heads % packed == 0


def threefry(k0, k1, x0, x1, rounds: int = _ROUNDS):
    """Threefry-2x32 (Salmon et al. 2011, section 4.2): two random words from two words of a key and two of a counter.

    int32 arrays that broadcast; sums wrap around.
    """
    keys = (k0, k1, k0 ^ k1 ^ 0x1BD11BDA)
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for number in range(rounds):
        by = (13, 15, 26, 6, 17, 29, 16, 24)[number % 8]
        x0 = x0 + x1
        x1 = (x1 << by) | jax.lax.shift_right_logical(x1, jnp.full_like(x1, 32 - by))
        x1 = x0 ^ x1
        if number % 4 == 3:
            group = number // 4 + 1
            x0, x1 = x0 + keys[group % 3], x1 + keys[(group + 1) % 3] + group
    return x0, x1


def keep(k0, k1, dropped: int, first_key, keys: int, first_query, queries: int) -> Bool[Array, "... keys queries"]:
    """Which weights of a tile stay: each is dropped with probability dropped / 65,536.

    The four halves of one draw serve keys of four neighbouring groups of 32.

    Args:
        k0, k1: int32, the key's words; scalars, or [..., 1, 1].
        dropped: see `Spec`.
        first_key, first_query: where the tile starts; the key a multiple of 128.
        keys, queries: the tile's size; keys a multiple of 128.
    """
    found = []
    for place in range(keys // LANES):
        first_row = jax.lax.div(first_key, 4) + place * (LANES // 4)
        rows = jax.lax.broadcasted_iota(jnp.int32, (LANES // 4, queries), 0) + first_row
        columns = jax.lax.broadcasted_iota(jnp.int32, (LANES // 4, queries), 1) + first_query
        for word in threefry(k0, k1, rows, columns):
            found += [word & 0xFFFF, jax.lax.shift_right_logical(word, jnp.full_like(word, 16))]
    return jnp.concatenate(found, axis=-2) >= dropped


def kept_weights(words: UInt32[Array, "B H 2"], dropped: int, length: int) -> Bool[Array, "B H L L"]:
    """The kernel's dropout mask, queries before keys, for the written-out attention."""
    k0, k1 = jnp.moveaxis(jax.lax.bitcast_convert_type(words, jnp.int32), -1, 0)[..., None, None]
    return keep(k0, k1, dropped, 0, length, 0, length).swapaxes(-1, -2)


def attention(
    qkv: Float[Array, "B L 3 H K"],
    documents: Int[Array, "B L"],
    words: UInt32[Array, "B H 2"] | None,
    reach: Int[Array, ""] | None,
    spec: Spec,
) -> Float[Array, "B L H K"]:
    """softmax(QKᵀ/√K)·V over the visible keys, with dropout of the weights.

    Args:
        qkv: queries, keys and values.
        documents: positions see only their own; a document's positions are neighbours.
        words: dropout's key for each row and head; None without dropout.
        reach: the greatest distance of a visible key, a scalar of the layer; None: any.
        spec: see `Spec`.
    """
    batch, length, _, heads, head_width = qkv.shape
    words = jnp.zeros((batch, heads, 2), jnp.uint32) if words is None else words
    words = jax.lax.bitcast_convert_type(words, jnp.int32)
    reach = jnp.full(1, length if reach is None else reach, jnp.int32)
    out = _attention(qkv.reshape(batch, length, -1), documents, words, reach, head_width, spec)
    return out.reshape(batch, length, heads, head_width)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attention(qkv, documents, words, reach, head_width, spec):
    return _forward(qkv, documents, words, reach, head_width, spec)[0]


def _attention_forward(qkv, documents, words, reach, head_width, spec):
    out, sums = _forward(qkv, documents, words, reach, head_width, spec)
    # Named, so that rematerialisation keeps them and need not run the kernel again.
    out, sums = (checkpoint_name(x, "attention") for x in (out, sums))
    return out, (qkv, documents, words, reach, out, sums)


def _attention_backward(head_width, spec, kept, of_out):
    return _backward(*kept, of_out, head_width, spec), None, None, None


_attention.defvjp(_attention_forward, _attention_backward)


def _sizes(qkv, head_width: int):
    batch, length, width = qkv.shape
    packed = max(1, LANES // head_width)
    return batch, length, packed, width // 3 // head_width // packed


def _blocks(qkv, head_width: int):
    """Block specs that forward and backward share: of words, reach and documents, three parts of qkv, and the log-sums.

    A program has only its row's words, because those of all rows may not fit the memory for scalars.
    """
    _, length, packed, programs = _sizes(qkv, head_width)
    part = lambda n: pl.BlockSpec((None, length, packed * head_width), lambda b, g, *_: (b, 0, n * programs + g))
    words = pl.BlockSpec((None, packed * programs, 2), lambda b, *_: (b, 0, 0), memory_space=pltpu.SMEM)
    reach = pl.BlockSpec(memory_space=pltpu.SMEM)
    documents = [
        pl.BlockSpec((None, 1, length), lambda b, *_: (b, 0, 0)),
        pl.BlockSpec((None, length, 1), lambda b, *_: (b, 0, 0)),
    ]
    sums = pl.BlockSpec((None, None, packed, length), lambda b, g, *_: (b, g, 0, 0))
    return [words, reach, *documents], [part(0), part(1), part(2)], sums


def _options(qkv, head_width: int, spec: Spec, products: int, arrays: int) -> dict:
    """What a kernel costs, and how it is compiled.

    Args:
        qkv: as given.
        head_width: of a head.
        spec: see `Spec`.
        products: of [L, L, K] for each head.
        arrays: of [B, L, H·K] that it reads or writes.
    """
    batch, length, packed, programs = _sizes(qkv, head_width)
    heads = packed * programs
    scores = batch * heads * length**2 * spec.visible
    moved = arrays * qkv.size // 3 * qkv.dtype.itemsize + 4 * batch * (heads + 2) * length
    # Six arrays of a program in two buffers each, two sums in float32, documents and log-sums; and tiles of scores.
    kept = length * (packed * head_width * (12 * qkv.dtype.itemsize + 8) + 1500)
    limit = pltpu.CompilerParams(vmem_limit_bytes=16 * 2**20 + kept)
    cost = pl.CostEstimate(flops=int(2 * products * scores * head_width), transcendentals=int(scores), bytes_accessed=moved)
    return dict(cost_estimate=cost, compiler_params=limit)


def _on_this_platform(call, *arguments):
    """The kernel; on a CPU it is interpreted as JAX operations."""
    interpreted, compiled = (call(interpret=interpret) for interpret in (True, False))
    return jax.lax.platform_dependent(*arguments, cpu=interpreted, default=compiled)


def _forward(qkv, documents, words, reach, head_width: int, spec: Spec):
    batch, length, packed, programs = _sizes(qkv, head_width)
    shared, parts, sums = _blocks(qkv, head_width)
    call = functools.partial(
        pl.pallas_call,
        functools.partial(_forward_kernel, spec, head_width),
        grid=(batch, programs),
        in_specs=[*shared, *parts],
        out_specs=[parts[0], sums],
        out_shape=[
            jax.ShapeDtypeStruct((batch, length, qkv.shape[-1] // 3), qkv.dtype),
            jax.ShapeDtypeStruct((batch, programs, packed, length), jnp.float32),
        ],
        name="attention",
        **_options(qkv, head_width, spec, products=2, arrays=4),
    )
    return _on_this_platform(call, words, reach, documents[:, None], documents[:, :, None], qkv, qkv, qkv)


def _backward(qkv, documents, words, reach, out, sums, of_out, head_width: int, spec: Spec):
    batch, length, packed, programs = _sizes(qkv, head_width)
    shared, parts, of_sums = _blocks(qkv, head_width)
    wide = pltpu.VMEM((length, packed * head_width), jnp.float32)
    # A third axis of the grid writes the gradients of queries, keys and values one after another: one array, as `qkv` is.
    written = pl.BlockSpec((None, length, packed * head_width), lambda b, g, n: (b, 0, n * programs + g))
    call = functools.partial(
        pl.pallas_call,
        functools.partial(_backward_kernel, spec, head_width),
        grid=(batch, programs, 3),
        in_specs=[*shared, *parts, parts[0], parts[0], of_sums],
        out_specs=written,
        out_shape=jax.ShapeDtypeStruct(qkv.shape, qkv.dtype),
        scratch_shapes=[wide, wide],
        name="attention_backward",
        **_options(qkv, head_width, spec, products=5, arrays=8),
    )
    both = documents[:, None], documents[:, :, None]
    return _on_this_platform(call, words, reach, *both, qkv, qkv, qkv, out, of_out, sums)


def dot(left, right, axes: tuple[int, int]):
    """Sum over one axis of each, in float32; both other axes remain."""
    return jax.lax.dot_general(left, right, (((axes[0],), (axes[1],)), ((), ())), preferred_element_type=jnp.float32)


def walk(tiles: int, body, start, first=0):
    """A loop from `first` to `tiles`; without a loop for one tile."""
    if isinstance(first, int) and isinstance(tiles, int) and tiles - first == 1:
        return body(first, start)
    return jax.lax.fori_loop(first, tiles, body, start)


def _range(spec: Spec, length: int, number, reach):
    """First and last (exclusive) tile of keys that a tile of queries may see."""
    size, step = spec.tile_queries, spec.tile_keys
    start = number * size
    low, high = start - reach, start + size - 1 + reach
    if spec.direction == "left-to-right":
        high = start + size - 1
    if spec.direction == "right-to-left":
        low = start
    first, last = jax.lax.max(low, 0), jax.lax.min(high, length - 1)
    return jax.lax.div(first, step), jax.lax.div(last, step) + 1


def _visible(spec: Spec, reach, query, key, document_row, document_column):
    """Which scores [keys, queries] of a tile count."""
    shape = (spec.tile_keys, spec.tile_queries)
    ahead = key - query + jax.lax.broadcasted_iota(jnp.int32, shape, 0) - jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    found = (document_column[pl.ds(key, spec.tile_keys), :] == document_row[:, pl.ds(query, spec.tile_queries)]) & (
        jnp.abs(ahead) <= reach
    )
    if spec.direction == "left-to-right":
        found &= ahead <= 0
    if spec.direction == "right-to-left":
        found &= ahead >= 0
    return found


def _forward_kernel(spec: Spec, head_width: int, words, reach, row, column, q, k, v, out, sums):
    length, width = q.shape
    heads = [slice(start, start + head_width) for start in range(0, width, head_width)]
    group, reach = pl.program_id(1), reach[0]
    scale, stay = head_width**-0.5, 1 - spec.dropped / 2**16

    def of_queries(number, _):
        query = pl.multiple_of(number * spec.tile_queries, LANES)
        queries = pl.ds(query, spec.tile_queries)

        def of_keys(place, running):
            key = pl.multiple_of(place * spec.tile_keys, LANES)
            keys = pl.ds(key, spec.tile_keys)
            visible, after = _visible(spec, reach, query, key, row, column), []
            for head, (most, total, mean) in zip(heads, running):
                scores = jnp.where(visible, dot(k[keys, head], q[queries, head], (1, 1)) * scale, _HIDDEN)
                now = jnp.maximum(most, scores.max(0, keepdims=True))
                weights, shrink = jnp.exp(scores - now), jnp.exp(most - now)
                total = total * shrink + weights.sum(0, keepdims=True)
                [weights] = _dropped(spec, words, group * len(heads) + len(after), key, query, weights)
                mean = mean * shrink + dot(v[keys, head], weights.astype(v.dtype), (0, 0))
                after.append((now, total, mean))
            return after

        line = lambda value: jnp.full((1, spec.tile_queries), value, jnp.float32)
        start = [(line(_HIDDEN), line(0.0), jnp.zeros((head_width, spec.tile_queries), jnp.float32)) for _ in heads]
        first, last = (0, 1) if length == spec.tile_keys else _range(spec, length, number, reach)
        found = walk(last, of_keys, start, first)
        means = jnp.concatenate([mean / (total * stay) for _, total, mean in found], axis=0)
        out[queries, :] = means.T.astype(out.dtype)
        sums[:, queries] = jnp.concatenate([most + jnp.log(total) for most, total, _ in found], axis=0)
        return 0

    walk(length // spec.tile_queries, of_queries, 0)


def _dropped(spec: Spec, words, head, key, query, *tiles):
    """Tiles with zeros for the weights that are dropped; those that stay are not made larger."""
    if not spec.dropped:
        return tiles
    k0, k1 = words[head, 0], words[head, 1]
    stays = keep(k0, k1, spec.dropped, key, spec.tile_keys, query, spec.tile_queries)
    return tuple(jnp.where(stays, tile, 0.0) for tile in tiles)


def _backward_kernel(spec: Spec, head_width: int, words, reach, row, column, q, k, v, out, of_out, sums, of_qkv, of_k, of_v):
    length, width = q.shape
    heads = [slice(start, start + head_width) for start in range(0, width, head_width)]
    group, part, reach = pl.program_id(1), pl.program_id(2), reach[0]
    scale, stay = head_width**-0.5, 1 - spec.dropped / 2**16

    def of_queries(number, _):
        query = pl.multiple_of(number * spec.tile_queries, LANES)
        queries = pl.ds(query, spec.tile_queries)
        both = (out[queries, :].astype(jnp.float32) * of_out[queries, :].astype(jnp.float32)).T

        def of_keys(place, of_q):
            key = pl.multiple_of(place * spec.tile_keys, LANES)
            keys = pl.ds(key, spec.tile_keys)
            visible, after, of_keys, of_values = _visible(spec, reach, query, key, row, column), [], [], []
            for number, (head, mine) in enumerate(zip(heads, of_q)):
                scores = dot(k[keys, head], q[queries, head], (1, 1)) * scale
                weights = jnp.where(visible, jnp.exp(scores - sums[number : number + 1, queries]), 0.0)
                drop = functools.partial(_dropped, spec, words, group * len(heads) + number, key, query)
                kept, of_weights = drop(weights, dot(v[keys, head], of_out[queries, head], (1, 1)) / stay)
                of_scores = (weights * (of_weights - both[head].sum(0, keepdims=True)) * scale).astype(q.dtype)
                of_values.append(dot((kept / stay).astype(q.dtype), of_out[queries, head], (1, 0)))
                of_keys.append(dot(of_scores, q[queries, head], (1, 0)))
                after.append(mine + dot(k[keys, head], of_scores, (0, 0)))
            of_k[keys, :] += jnp.concatenate(of_keys, axis=1)
            of_v[keys, :] += jnp.concatenate(of_values, axis=1)
            return after

        start = [jnp.zeros((head_width, spec.tile_queries), jnp.float32) for _ in heads]
        first, last = (0, 1) if length == spec.tile_keys else _range(spec, length, number, reach)
        found = jnp.concatenate(walk(last, of_keys, start, first), axis=0)
        of_qkv[queries, :] = found.T.astype(of_qkv.dtype)
        return 0

    @pl.when(part == 0)
    def _():
        of_k[...] = jnp.zeros_like(of_k)
        of_v[...] = jnp.zeros_like(of_v)
        walk(length // spec.tile_queries, of_queries, 0)

    @pl.when(part == 1)
    def _():
        of_qkv[...] = of_k[...].astype(of_qkv.dtype)

    @pl.when(part == 2)
    def _():
        of_qkv[...] = of_v[...].astype(of_qkv.dtype)
