"""Our kernel, interpreted, gives the values and gradients of the written-out attention with the same dropout mask.

Compiling for a TPU is tested in tests/parity; no test runs the kernel on one.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from ml_collections import ConfigDict

from bertlab.models import attention, attention_gpu, attention_kernel
from bertlab.models.attention_kernel import Spec
from bertlab.models.base import Dropout
from bertlab.train.sharding import build_mesh

DROPPED = round(0.1 * 2**16)
# (spec, reach, [L, H, K]): every direction, windows, tiles of two sizes, several heads in a program and one.
CASES = {
    "one tile": (Spec("bidirectional", DROPPED, 128, 128, 1.0), None, (128, 2, 64)),
    "left to right": (Spec("left-to-right", DROPPED, 128, 128, 1.0), None, (256, 1, 128)),
    "right to left, in a window": (Spec("right-to-left", DROPPED, 256, 128, 1.0), 1, (512, 2, 64)),
    "left to right, in a window": (Spec("left-to-right", DROPPED, 256, 128, 1.0), 40, (512, 2, 64)),
    "in a window, four heads": (Spec("bidirectional", DROPPED, 128, 128, 1.0), 129, (384, 4, 32)),
    "without dropout": (Spec("bidirectional", 0, 256, 256, 1.0), None, (256, 2, 64)),
}


def made_up(length, heads, width, dtype=jnp.float32, rows=2):
    """(qkv, documents of packed rows with padding at their ends, words of dropout, weights of the output)."""
    random = np.random.default_rng(0)
    qkv = jnp.asarray(random.normal(size=(rows, length, 3, heads, width)), dtype)
    ends = np.sort(random.integers(1, length, size=(rows, 3)), axis=1)
    documents = 1 + (np.arange(length) >= ends[..., None]).sum(axis=1)
    documents = jnp.asarray(np.where(documents == 4, 0, documents), jnp.int32)
    words = jax.random.bits(jax.random.key(1), (rows, heads, 2))
    return qkv, documents, words, jnp.asarray(random.normal(size=(rows, length, heads, width)), dtype)


def written_out(qkv, documents, words, reach, spec):
    """softmax(QKᵀ/√K)·V in float32 with [L, L] masks from the definitions."""
    query, key, value = jnp.moveaxis(qkv.astype(jnp.float32), 2, 0)
    length = query.shape[1]
    ahead = np.arange(length) - np.arange(length)[:, None]
    seen = (documents[:, :, None] == documents[:, None]) & (np.abs(ahead) <= (length if reach is None else reach))
    seen &= {"left-to-right": ahead <= 0, "right-to-left": ahead >= 0}.get(spec.direction, ahead == ahead)
    scores = jnp.einsum("blhk,bmhk->bhlm", query, key, precision="highest") / query.shape[-1] ** 0.5
    weights = jax.nn.softmax(jnp.where(seen[:, None], scores, -jnp.inf))
    if spec.dropped:
        kept = attention_kernel.kept_weights(words, spec.dropped, length)
        weights = jnp.where(kept, weights / (1 - spec.dropped / 2**16), 0)
    return jnp.einsum("bhlm,bmhk->blhk", weights, value, precision="highest")


of_gpu = functools.partial(attention_gpu.attention, interpret=True)


def with_gradient(compute, qkv, of_output):
    output, pull = jax.vjp(compute, qkv)
    return output, *pull(of_output.astype(output.dtype))


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_written_out_attention(name):
    """Sums in another order: float32's rounding of values and gradients up to about 5."""
    spec, reach, (length, heads, width) = CASES[name]
    qkv, documents, words, of_output = made_up(length, heads, width, rows=1)
    kernel = lambda qkv: attention_kernel.attention(qkv, documents, words, reach, spec)
    plain = lambda qkv: written_out(qkv, documents, words, reach, spec)
    found, expected = (jax.jit(with_gradient, static_argnums=0)(compute, qkv, of_output) for compute in (kernel, plain))
    for mine, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("direction", ["bidirectional", "left-to-right", pytest.param("right-to-left", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kernel", "length", "queries"), [("tpu", 512, 256), ("gpu", 256, 64)])
def test_tiles_are_computed_where_a_score_is_seen_and_nowhere_else(kernel, length, queries, direction):
    """What is no number shows the tiles that were computed, because 0 · NaN is NaN.

    The values of one tile of keys are NaN in some rows, so that outputs and gradients of queries are; the gradient of one tile
    of queries is in others, so that the gradients of values are.
    """
    width, attend = {"tpu": (128, attention_kernel.attention), "gpu": (16, of_gpu)}[kernel]
    keys = 128
    spec = attention_kernel.spec_of(length, direction, 0.0, 64, 1.0)
    marked = lambda size: np.where(np.repeat(np.eye(length // size), size, axis=1), np.nan, 0)[:, :, None]  # one tile a row
    first, rows = length // keys, length // keys + length // queries
    qkv, of_output = np.zeros((rows, length, 3, 1, width), np.float32), np.zeros((rows, length, 1, width), np.float32)
    qkv[:first, :, 2, 0], of_output[first:, :, 0] = marked(keys), marked(queries)
    documents, words = jnp.ones((rows, length), jnp.int32), jnp.zeros((rows, 1, 2), jnp.uint32)
    compute = lambda reach, *given: with_gradient(lambda qkv: attend(qkv, documents, words, reach, spec), *given)
    step = jax.jit(compute).lower(jnp.int32(0), qkv, of_output).compile()
    ahead = np.arange(length) - np.arange(length)[:, None]
    allowed = {"left-to-right": ahead <= 0, "right-to-left": ahead >= 0}.get(direction, True)
    for reach in (1, 64, 65, 128, length):
        seen = (np.abs(ahead) <= reach) & allowed
        tiles = seen.reshape(length // queries, queries, length // keys, keys).any(axis=(1, 3))
        output, of_qkv = (np.isnan(x)[..., 0, :].all(axis=-1) for x in step(jnp.int32(reach), qkv, of_output))
        of_keys, of_queries = np.repeat(tiles.T, queries, axis=1), np.repeat(tiles, keys, axis=1)
        np.testing.assert_array_equal(output[:first], of_keys, err_msg=f"forward, {reach=}")
        np.testing.assert_array_equal(of_qkv[:first, :, 0], of_keys, err_msg=f"of queries, {reach=}")
        np.testing.assert_array_equal(of_qkv[first:, :, 2], of_queries, err_msg=f"of values, {reach=}")


def test_in_bfloat16():
    """Weights are rounded to 8 bits before their product, so a value of 1 may be 2⁻⁸ away, and a sum a little more."""
    spec, reach, (length, heads, width) = CASES["one tile"]
    qkv, documents, words, of_output = made_up(length, heads, width, jnp.bfloat16)
    kernel = lambda qkv: attention_kernel.attention(qkv, documents, words, reach, spec)
    plain = lambda qkv: written_out(qkv, documents, words, reach, spec)
    found, expected = (jax.jit(with_gradient, static_argnums=0)(compute, qkv, of_output) for compute in (kernel, plain))
    for mine, right in zip(found, expected, strict=True):
        assert mine.dtype == jnp.bfloat16
        right = np.asarray(right, np.float32)
        np.testing.assert_allclose(np.asarray(mine, np.float32), right, atol=2**-7 * np.abs(right).max())


def test_bits_are_threefry_s():
    """With 20 rounds JAX has the same function; the kernel uses the first 13 of them."""
    random = np.random.default_rng(0)
    k0, k1, x0, x1 = random.integers(-(2**31), 2**31, size=(4, 50)).astype(np.int32)
    for each in range(50):
        key, count = (np.asarray(pair, np.int32).view(np.uint32) for pair in ([k0[each], k1[each]], [x0[each], x1[each]]))
        mine = attention_kernel.threefry(*(jnp.int32(x[each]) for x in (k0, k1, x0, x1)), rounds=20)
        np.testing.assert_array_equal(np.asarray(mine).view(np.uint32), threefry_2x32(key, count))


def test_dropout_s_mask_is_even_and_differs_by_row_and_head_but_not_by_tile():
    words = jax.random.bits(jax.random.key(3), (2, 3, 2))
    kept = np.asarray(attention_kernel.kept_weights(words, DROPPED, 512))
    rate, count = DROPPED / 2**16, 512**2
    deviation = (rate * (1 - rate) / count) ** 0.5
    assert np.abs(1 - kept.mean(axis=(2, 3)) - rate).max() < 5 * deviation
    for axis in (2, 3):  # also along queries and keys: 5 deviations of 3,072 means of 512 draws
        assert np.abs(1 - kept.mean(axis=axis) - rate).max() < 5 * deviation * 512**0.5
    flat = kept.reshape(6, -1).astype(float)
    assert np.abs(np.corrcoef(flat) - np.eye(6)).max() < 5 / count**0.5
    neighbours = [
        np.corrcoef(kept[..., 1:, :].ravel(), kept[..., :-1, :].ravel()),
        np.corrcoef(kept[..., 1:].ravel(), kept[..., :-1].ravel()),
    ]
    assert max(abs(found[0, 1]) for found in neighbours) < 5 / kept.size**0.5
    k0, k1 = np.asarray(words[1, 2]).view(np.int32)
    tile = attention_kernel.keep(k0, k1, DROPPED, 256, 128, 128, 384)
    np.testing.assert_array_equal(tile, kept[1, 2, 128:, 256:384].T)


class Fixed(Dropout):
    """Dropout with a key of its own."""

    def key(self):
        return jax.random.key(7)


def sight_of(documents, direction="bidirectional", window=None):
    mask = jnp.zeros((len(documents), 1, 1, 1), bool)  # no kernel reads it
    return attention.Sight(mask, documents, direction, window=window)


def test_a_mesh_draws_the_same_bits_as_one_device():
    """They are those of the written-out attention, with words of their own for each row and head."""
    qkv, documents, _, of_output = made_up(128, 4, 128, rows=2)
    attend = lambda qkv: attention.attend("pallas", qkv, sight_of(documents), Fixed(0.1))
    alone = jax.jit(with_gradient, static_argnums=0)(attend, qkv, of_output)
    with jax.set_mesh(build_mesh(ConfigDict(dict(data=2, tensor=2, sequence=2)))):
        divided = jax.jit(with_gradient, static_argnums=0)(attend, qkv, of_output)
    for mine, expected in zip(divided, alone, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-6, atol=1e-6)
    words = jax.random.bits(Fixed(0.1).key(), (2, 4, 2))
    plain = lambda qkv: written_out(qkv, documents, words, None, CASES["one tile"][0])
    for mine, expected in zip(alone, jax.jit(with_gradient, static_argnums=0)(plain, qkv, of_output), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=5e-6)


def test_a_window_that_the_layer_decides():
    """A body's layers share one program: the window is a value."""
    qkv, documents, *_ = made_up(384, 2, 64, rows=1)
    for here in (True, False):
        window = attention.Window(64, jnp.bool_(here), 2, 3)
        sight = sight_of(documents, window=window)
        found = jax.jit(lambda qkv, sight=sight: attention.attend("pallas", qkv, sight))(qkv)
        expected = written_out(qkv, documents, None, 64 if here else None, Spec("bidirectional", 0, 128, 128, 1.0))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=5e-6)


def test_the_share_of_tiles_that_are_computed():
    usual = dict(length=8192, direction="bidirectional", rate=0.0, reach=None, share=0.0)
    visible = lambda **of: attention_kernel.spec_of(**usual | of).visible
    assert visible() == 1
    assert visible(direction="left-to-right") == pytest.approx((16 * 17 / 2) / 16**2)
    # 256 queries see 64 keys to either side of them, so four tiles of 128 keys; three at either end of the row.
    local = (32 * 4 - 2) / (32 * 64)
    assert visible(reach=64, share=1.0) == pytest.approx(local)
    assert visible(reach=64, share=0.75) == pytest.approx(0.25 + 0.75 * local)
