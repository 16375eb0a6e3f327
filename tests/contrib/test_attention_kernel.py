"""The kernel, interpreted, has the values and gradients of attention written out with the same
dropout; and it lowers for TPUs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from ml_collections import ConfigDict

from bertlab.contrib.attention_kernel import attend, attention, kept_weights, threefry
from bertlab.errors import UserError
from bertlab.models.attention import attend_xla, attention_mask, window_mask
from bertlab.models.layers import Dropout
from bertlab.train.sharding import build_mesh
from tests.references import quick_jit, tiny_program

pytestmark = pytest.mark.nightly

DROPPED = round(0.1 * 2**16)
# (direction, window, dropped, [L, H, K]): tiles of two sizes, several heads in a program and one.
CASES = {
    "one tile": ("bidirectional", 0, DROPPED, (128, 2, 64)),
    "left to right": ("left-to-right", 0, DROPPED, (256, 1, 128)),
    "in a window": ("left-to-right", 80, DROPPED, (512, 2, 64)),
    "four heads": ("bidirectional", 258, DROPPED, (384, 4, 32)),
    "without dropout": ("right-to-left", 0, 0, (768, 2, 64)),
}


def made_up(length, heads, width, dtype=jnp.float32, rows=2):
    """(q, k and v, documents of packed rows with padding, words of dropout, the output's
    cotangent)."""
    rng = np.random.default_rng(0)
    size = (rows, length, heads, width)
    qkv = [jnp.asarray(rng.normal(size=size), dtype) for _ in range(3)]
    ends = np.sort(rng.integers(1, length, size=(rows, 3)), axis=1)
    documents = 1 + (np.arange(length) >= ends[..., None]).sum(axis=1)
    documents = jnp.asarray(np.where(documents == 4, 0, documents), jnp.int32)
    words = jax.random.bits(jax.random.key(1), (rows, heads, 2))
    return qkv, documents, words, jnp.asarray(rng.normal(size=size), dtype)


def mask_of(documents, direction, window=0):
    mask = attention_mask(documents, direction)
    positions = jnp.broadcast_to(jnp.arange(documents.shape[1]), documents.shape)
    return mask & window_mask(positions, window) if window else mask


def written_out(q, k, v, mask, words, dropped):
    """In float32, from the definition."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    scores = jnp.einsum("blhk,bmhk->bhlm", q, k, precision="highest") / q.shape[-1] ** 0.5
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
    if dropped:
        kept = kept_weights(words, dropped, q.shape[1])
        weights = jnp.where(kept, weights / (1 - dropped / 2**16), 0)
    return jnp.einsum("bhlm,bmhk->blhk", weights, v, precision="highest")


def with_gradients(compute, qkv, cotangent):
    output, pull = jax.vjp(compute, *qkv)
    return [output, *pull(cotangent.astype(output.dtype))]


def compare(name, dtype, rows=2):
    direction, window, dropped, size = CASES[name]
    qkv, documents, words, cotangent = made_up(*size, dtype, rows)
    mask = mask_of(documents, direction, window)
    settings = {"dropped": dropped, "interpret": True}

    def kernel(*qkv):
        return attention(*qkv, mask[:, 0], words, **settings)

    def plain(*qkv):
        return written_out(*qkv, mask, words, dropped)

    jitted = jax.jit(with_gradients, static_argnums=0)
    return [jitted(compute, qkv, cotangent) for compute in (kernel, plain)]


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_attention_written_out(name):
    """Sums in another order: float32's rounding of values up to about 5."""
    for mine, right in zip(*compare(name, jnp.float32), strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-5)


def test_bits_are_threefry_s():
    """With 20 rounds JAX has the same function; the kernel uses the first 13 of them."""
    rng = np.random.default_rng(0)
    for four in rng.integers(-(2**31), 2**31, size=(50, 4)).astype(np.int32):
        key, count = four[:2].view(np.uint32), four[2:].view(np.uint32)
        mine = np.asarray(threefry(*map(jnp.int32, four), rounds=20)).view(np.uint32)
        np.testing.assert_array_equal(mine, threefry_2x32(key, count))


def test_a_mesh_draws_the_same_bits_as_one_device():
    qkv, documents, _, cotangent = made_up(128, 4, 128)
    mask, key = mask_of(documents, "bidirectional"), jax.random.key(7)

    def layer(*qkv):
        def compute(dropout):
            return attend(*qkv, mask, None, dropout)

        return Dropout(0.1).apply({}, method=compute, rngs={"dropout": key})

    single = jax.jit(with_gradients, static_argnums=0)(layer, qkv, cotangent)
    with jax.set_mesh(build_mesh(ConfigDict(dict(data=2, fsdp=1, tensor=2)))):
        divided = jax.jit(with_gradients, static_argnums=0)(layer, qkv, cotangent)
    for mine, expected in zip(divided, single, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-6, atol=1e-6)


def test_a_body_computes_the_same_with_and_without_the_kernel():
    size = {"width": 128, "heads": 2, "hidden": 16, "layers": 2, "dropout": 0.1}
    outputs = []
    for name in ("xla", "bertlab.contrib.attention_kernel:attend"):
        program = tiny_program("bert", "mlm", attention=name, **size)
        view = {"tokens": jnp.asarray(np.random.default_rng(0).integers(0, 20, (2, 128)))}
        view |= {"segments": view["tokens"] * 0, "documents": view["tokens"] * 0 + 1}
        view["positions"] = jnp.broadcast_to(jnp.arange(128), (2, 128))
        params = program.init(jax.random.key(0), view | {"example_id": jnp.zeros((2, 2), int)})
        outputs.append(quick_jit(program.encode)(params, view).both[-1])
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-5)


def test_it_lowers_for_a_tpu_and_refuses_a_bias():
    qkv, documents, words, cotangent = made_up(256, 2, 64, jnp.bfloat16)
    mask = mask_of(documents, "bidirectional")

    def layer(*qkv):
        return attention(*qkv, mask[:, 0], words, dropped=DROPPED)

    step = jax.jit(functools.partial(with_gradients, layer))
    exported = jax.export.export(step, platforms=["tpu"])(qkv, cotangent)
    assert exported.mlir_module().count("tpu_custom_call") == 2
    with pytest.raises(UserError, match="adds no bias"):
        attend(*qkv, mask, jnp.zeros((1, 2, 256, 256)), Dropout(0.0))
    short = [*(x[:, :100] for x in qkv), mask[:, :, :100, :100], None]

    def no_tiles(dropout):
        return attend(*short, dropout)

    found = Dropout(0.0).apply({}, method=no_tiles)
    np.testing.assert_array_equal(found, attend_xla(*short, lambda weights: weights))
