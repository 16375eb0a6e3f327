"""Attention in one kernel for TPUs (Pallas, Mosaic), with attention dropout.

    --config.model.attention=bertlab.contrib.attention_kernel:attend

No array of scores [L, L] of a head passes through memory. A program of the grid holds the keys and
values of one row and of as many heads as fill a TPU's 128 lanes, and some queries. It walks over
tiles of keys with a running softmax, from the first to the last that any of its queries sees; the
backward pass computes the weights again from the stored log-sums (Dao et al. 2022, FlashAttention,
algorithms 1 and 4). Tiles are transposed, keys first, so that each query's sums are rows.

Dropout's bits are a function of a key for each row and head and of the positions of query and key,
so both passes and `kept_weights`, the mask for attention written out, draw the same, however tiles
and devices divide the work.

Rows whose length is not a multiple of 128, and heads that do not fill lanes, are computed by
`attend_xla`. On a CPU the kernel is interpreted, which is slow. Checked: values and gradients
against attention written out, in the interpreter, and that it lowers for TPUs
(tests/contrib/test_attention_kernel.py). It has not run on a TPU.

Letters: B batch, L length, H heads, K head width, P heads per program, G = H/P, W = P·K.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, UInt32

from bertlab.errors import UserError
from bertlab.models.attention import attend_xla
from bertlab.models.layers import BATCH_AXES, platform

LANES = 128
LONGEST = 8192  # rows of more positions do not fit in a TPU's on-chip memory
HIDDEN = -1e30
ROUNDS = 13
"""The fewest that pass all tests of TestU01 (Salmon et al. 2011, table 2)."""


def attend(query, key, value, mask, bias, dropout) -> Float[Array, "B L H K"]:
    """As `bertlab.models.attention.attend_xla`, without a bias of the scores."""
    if bias is not None:
        raise UserError(
            "config.model.attention=bertlab.contrib.attention_kernel:attend adds no bias to scores;"
            " choose another, or another config.model.position_encoding"
        )
    batch, length, heads, width = query.shape
    if not applies(length, heads, width):
        return attend_xla(query, key, value, mask, bias, dropout)
    dropped, words = 0, jnp.zeros((batch, heads, 2), jnp.uint32)
    if dropout.rate and dropout.has_rng("dropout"):
        dropped = round(dropout.rate * 2**16)
        words = jax.random.bits(dropout.make_rng("dropout"), words.shape, jnp.uint32)
    mask = jnp.broadcast_to(mask[:, 0], (batch, length, length))
    compute = functools.partial(attention, dropped=dropped, interpret=platform() == "cpu")
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return compute(query, key, value, mask, words)
    # The compiler cannot divide a kernel: each device computes its own rows and heads.
    states = PartitionSpec(BATCH_AXES, None, "tensor")
    rows_and_heads = PartitionSpec(BATCH_AXES, "tensor")
    specs = (states, states, states, PartitionSpec(BATCH_AXES), rows_and_heads)
    divided = jax.shard_map(compute, in_specs=specs, out_specs=states, check_vma=False)
    return divided(query, key, value, mask, words)


def applies(length: int, heads: int, head_width: int) -> bool:
    """Whether tiles of 128 positions and lanes divide rows and heads of these sizes."""
    packed = max(1, LANES // head_width)
    fits = length % LANES == 0 and length <= LONGEST
    return fits and packed * head_width % LANES == 0 and heads % packed == 0


def threefry(k0, k1, x0, x1, rounds: int = ROUNDS):
    """Threefry-2x32 (Salmon et al. 2011, section 4.2): two random words of a key and a counter.

    int32 arrays that broadcast; sums wrap around.
    """
    keys = (k0, k1, k0 ^ k1 ^ 0x1BD11BDA)
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for number in range(rounds):
        shift = (13, 15, 26, 6, 17, 29, 16, 24)[number % 8]
        x0 = x0 + x1
        x1 = (x1 << shift) | jax.lax.shift_right_logical(x1, jnp.full_like(x1, 32 - shift))
        x1 = x0 ^ x1
        if number % 4 == 3:
            group = number // 4 + 1
            x0, x1 = x0 + keys[group % 3], x1 + keys[(group + 1) % 3] + group
    return x0, x1


def keep(k0, k1, dropped: int, first_key, keys: int, first_query, queries: int) -> Bool[Array, "*"]:
    """Which weights of a tile [keys, queries] stay; the four halves of a draw serve four keys.

    Args:
        k0, k1: int32, the key's words; scalars, or [..., 1, 1].
        dropped: How many of 65,536 draws drop a weight.
        first_key, first_query: Where the tile starts; the key a multiple of 128.
        keys, queries: The tile's size; keys a multiple of 128.
    """
    found, shape = [], (LANES // 4, queries)
    for group in range(keys // LANES):
        first_row = jax.lax.div(first_key, 4) + group * (LANES // 4)
        rows = jax.lax.broadcasted_iota(jnp.int32, shape, 0) + first_row
        columns = jax.lax.broadcasted_iota(jnp.int32, shape, 1) + first_query
        for word in threefry(k0, k1, rows, columns):
            high = jax.lax.shift_right_logical(word, jnp.full_like(word, 16))
            found += [word & 0xFFFF, high]
    return jnp.concatenate(found, axis=-2) >= dropped


def kept_weights(words: UInt32[Array, "B H 2"], dropped: int, length: int):
    """The kernel's dropout mask [B, H, L, L], queries before keys."""
    bits = jax.lax.bitcast_convert_type(words, jnp.int32)
    k0, k1 = jnp.moveaxis(bits, -1, 0)[..., None, None]
    return keep(k0, k1, dropped, 0, length, 0, length).swapaxes(-1, -2)


def attention(
    query: Float[Array, "B L H K"],
    key: Float[Array, "B L H K"],
    value: Float[Array, "B L H K"],
    mask: Bool[Array, "B L L"],
    words: UInt32[Array, "B H 2"],
    dropped: int = 0,
    interpret: bool = False,
) -> Float[Array, "B L H K"]:
    """softmax(QKᵀ/√K)·V over the visible keys, with attention dropout.

    Args:
        query, key, value: Those of every head.
        mask: The keys (last axis) that each query sees; at least one.
        words: Dropout's key for each row and head.
        dropped: How many of 65,536 weights are dropped; 0: no dropout.
        interpret: Run as JAX operations.
    """
    size, head_width = query.shape, query.shape[-1]
    query, key, value = (x.reshape(*size[:2], -1) for x in (query, key, value))
    tile = tile_size(size[1], 256)
    visible = mask.swapaxes(1, 2).astype(jnp.int8)
    words = jax.lax.bitcast_convert_type(words, jnp.int32)
    side = visible, key_tiles(mask, tile, tile_size(size[1], 512)), words
    out = _attention(query, key, value, side, (head_width, dropped, interpret))
    return out.reshape(size)


def tile_size(length: int, most: int) -> int:
    """The largest multiple of 128 that divides a row, up to `most`."""
    return max(size for size in range(LANES, most + 1, LANES) if length % size == 0)


def key_tiles(mask: Bool[Array, "B L L"], queries: int, keys: int) -> Int[Array, "B T 2"]:
    """First and last (exclusive) tile of keys that any query of each tile sees."""
    batch, length, _ = mask.shape
    seen = mask.reshape(batch, length // queries, queries, length // keys, keys).any(axis=(2, 4))
    last = seen.shape[2] - jnp.argmax(seen[:, :, ::-1], axis=2)
    return jnp.stack([jnp.argmax(seen, axis=2), last], axis=-1).astype(jnp.int32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attention(query, key, value, side, settings):
    return _forward(query, key, value, side, settings)[0]


def _attention_forward(query, key, value, side, settings):
    out, sums = _forward(query, key, value, side, settings)
    return out, (query, key, value, side, out, sums)


def _attention_backward(settings, kept, d_out):
    return *_backward(*kept, d_out, settings), None


_attention.defvjp(_attention_forward, _attention_backward)


def _specs(query, head_width: int):
    """(Grid, specs of words, tiles and mask, of some queries, of all keys, of the log-sums)."""
    batch, length, width = query.shape
    packed = max(1, LANES // head_width)
    heads, tile = width // head_width, tile_size(length, 256)
    tiles, wide = length // tile, packed * head_width
    side = [
        pl.BlockSpec((None, heads, 2), lambda b, g, t: (b, 0, 0), memory_space=pltpu.SMEM),
        pl.BlockSpec((None, tiles, 2), lambda b, g, t: (b, 0, 0), memory_space=pltpu.SMEM),
        pl.BlockSpec((None, length, tile), lambda b, g, t: (b, 0, t)),
    ]
    some = pl.BlockSpec((None, tile, wide), lambda b, g, t: (b, t, g))
    whole = pl.BlockSpec((None, length, wide), lambda b, g, t: (b, 0, g))
    sums = pl.BlockSpec((None, None, packed, tile), lambda b, g, t: (b, g, 0, t))
    return (batch, heads // packed, tiles), side, some, whole, sums


def _options(query, head_width: int, products: int, arrays: int) -> dict:
    """What a kernel costs: products of [L, L, K] per head, and arrays of [B, L, H·K]."""
    batch, length, width = query.shape
    scores = batch * width // head_width * length**2
    moved = arrays * query.size * query.dtype.itemsize + batch * length**2
    cost = pl.CostEstimate(2 * products * scores * head_width, scores, moved)
    # Blocks have two buffers each: six of all keys, a mask's; and two sums in float32.
    kept = length * (max(LANES, head_width) * (12 * query.dtype.itemsize + 8) + 2 * 256)
    limit = pltpu.CompilerParams(vmem_limit_bytes=32 * 2**20 + kept)
    return {"cost_estimate": cost, "compiler_params": limit}


def _forward(query, key, value, side, settings):
    head_width, dropped, interpret = settings
    visible, bounds, words = side
    grid, side_specs, some, whole, sums = _specs(query, head_width)
    batch, length, _ = query.shape
    packed = max(1, LANES // head_width)
    return pl.pallas_call(
        functools.partial(_forward_kernel, head_width, dropped),
        grid=grid,
        in_specs=[*side_specs, some, whole, whole],
        out_specs=[some, sums],
        out_shape=[
            jax.ShapeDtypeStruct(query.shape, query.dtype),
            jax.ShapeDtypeStruct((batch, grid[1], packed, length), jnp.float32),
        ],
        name="attention",
        interpret=interpret,
        **_options(query, head_width, products=2, arrays=4),
    )(words, bounds, visible, query, key, value)


def _backward(query, key, value, side, out, sums, d_out, settings):
    head_width, dropped, interpret = settings
    visible, bounds, words = side
    grid, side_specs, some, whole, sums_spec = _specs(query, head_width)
    total = pltpu.VMEM((query.shape[1], max(LANES, head_width)), jnp.float32)
    return pl.pallas_call(
        functools.partial(_backward_kernel, head_width, dropped),
        grid=grid,
        in_specs=[*side_specs, some, whole, whole, some, some, sums_spec],
        out_specs=[some, whole, whole],
        out_shape=[jax.ShapeDtypeStruct(query.shape, query.dtype)] * 3,
        scratch_shapes=[total, total],
        name="attention_backward",
        interpret=interpret,
        **_options(query, head_width, products=5, arrays=8),
    )(words, bounds, visible, query, key, value, out, d_out, sums)


def dot(left, right, axes: tuple[int, int]):
    """Sum over one axis of each, in float32; both other axes remain."""
    dimensions = (((axes[0],), (axes[1],)), ((), ()))
    return jax.lax.dot_general(left, right, dimensions, preferred_element_type=jnp.float32)


def _drop(tile, dropped: int, words, head, first_key, first_query):
    """The tile with zeros for the weights that are dropped; the others are not scaled up."""
    if not dropped:
        return tile
    keys, queries = tile.shape
    k0, k1 = words[head, 0], words[head, 1]
    return jnp.where(keep(k0, k1, dropped, first_key, keys, first_query, queries), tile, 0.0)


def _slices(width: int, head_width: int) -> list[slice]:
    return [slice(start, start + head_width) for start in range(0, width, head_width)]


def _forward_kernel(head_width, dropped, words, bounds, mask, q, k, v, out, sums):
    queries, (length, width) = q.shape[0], k.shape
    heads, step = _slices(width, head_width), tile_size(length, 512)
    group, number = pl.program_id(1), pl.program_id(2)
    scale, stay = head_width**-0.5, 1 - dropped / 2**16

    def add_tile(index, running):
        start, after = pl.multiple_of(index * step, LANES), []
        keys = pl.ds(start, step)
        visible = mask[keys, :].astype(jnp.int32) != 0
        for place, (head, (highest, total, mean)) in enumerate(zip(heads, running)):
            scores = dot(k[keys, head], q[:, head], (1, 1)) * scale
            scores = jnp.where(visible, scores, HIDDEN)
            now = jnp.maximum(highest, scores.max(0, keepdims=True))
            weights, shrink = jnp.exp(scores - now), jnp.exp(highest - now)
            total = total * shrink + weights.sum(0, keepdims=True)
            own = group * len(heads) + place
            weights = _drop(weights, dropped, words, own, start, number * queries)
            mean = mean * shrink + dot(v[keys, head], weights.astype(v.dtype), (0, 0))
            after.append((now, total, mean))
        return after

    line = jnp.zeros((1, queries), jnp.float32)
    start = [(line + HIDDEN, line, jnp.zeros((head_width, queries), jnp.float32)) for _ in heads]
    found = jax.lax.fori_loop(bounds[number, 0], bounds[number, 1], add_tile, start)
    means = jnp.concatenate([mean / (total * stay) for _, total, mean in found], axis=0)
    out[...] = means.T.astype(out.dtype)
    log_sums = [highest + jnp.log(total) for highest, total, _ in found]
    sums[...] = jnp.concatenate(log_sums, axis=0)


def _backward_kernel(
    head_width, dropped, words, bounds, mask, q, k, v, out, d_out, sums, d_q, d_k, d_v, k_sum, v_sum
):
    queries, (length, width) = q.shape[0], k.shape
    heads, step = _slices(width, head_width), tile_size(length, 512)
    group, number = pl.program_id(1), pl.program_id(2)
    scale, stay = head_width**-0.5, 1 - dropped / 2**16
    products = (out[...].astype(jnp.float32) * d_out[...].astype(jnp.float32)).T

    @pl.when(number == 0)
    def _():
        k_sum[...] = jnp.zeros_like(k_sum)
        v_sum[...] = jnp.zeros_like(v_sum)

    def add_tile(index, running):
        start, after, d_keys, d_values = pl.multiple_of(index * step, LANES), [], [], []
        keys = pl.ds(start, step)
        visible = mask[keys, :].astype(jnp.int32) != 0
        for place, (head, d_query) in enumerate(zip(heads, running)):
            drop = functools.partial(
                _drop,
                dropped=dropped,
                words=words,
                head=group * len(heads) + place,
                first_key=start,
                first_query=number * queries,
            )
            scores = dot(k[keys, head], q[:, head], (1, 1)) * scale
            weights = jnp.where(visible, jnp.exp(scores - sums[place : place + 1, :]), 0.0)
            d_weights = drop(dot(v[keys, head], d_out[:, head], (1, 1)) / stay)
            d_scores = weights * (d_weights - products[head].sum(0, keepdims=True)) * scale
            d_scores = d_scores.astype(q.dtype)
            d_values.append(dot((drop(weights) / stay).astype(q.dtype), d_out[:, head], (1, 0)))
            d_keys.append(dot(d_scores, q[:, head], (1, 0)))
            after.append(d_query + dot(k[keys, head], d_scores, (0, 0)))
        k_sum[keys, :] += jnp.concatenate(d_keys, axis=1)
        v_sum[keys, :] += jnp.concatenate(d_values, axis=1)
        return after

    start = [jnp.zeros((head_width, queries), jnp.float32) for _ in heads]
    found = jax.lax.fori_loop(bounds[number, 0], bounds[number, 1], add_tile, start)
    d_q[...] = jnp.concatenate(found, axis=0).T.astype(d_q.dtype)

    @pl.when(number == pl.num_programs(2) - 1)
    def _():
        d_k[...] = k_sum[...].astype(d_k.dtype)
        d_v[...] = v_sum[...].astype(d_v.dtype)
