"""Products in bfloat16 where they are written out for a CPU, against NumPy's of the same rounded factors."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from ml_collections import ConfigDict

from bertlab.models.base import einsum, product
from bertlab.train.sharding import build_mesh
from tests.references import random_params, tiny_program, views_of

LETTERS = ("nd,df->nf", "blhk,bmhk->bhlm", "bhlm,bmhk->blhk")


@pytest.fixture
def cpu():
    """A mesh of one CPU."""
    with jax.set_mesh(build_mesh(ConfigDict(dict(data=1, fsdp=1, tensor=1)))):
        yield


def rounded(x) -> np.ndarray:
    """The nearest bfloat16, as float64."""
    return np.asarray(jnp.asarray(x, jnp.float32).astype(jnp.bfloat16), np.float64)


def with_gradients(multiply, x, y, of_result):
    """The product and its gradients, under a vmap over the first axis too."""
    value, pull = jax.vjp(multiply, x, y)
    return value, *pull(of_result)


@pytest.mark.parametrize("replicas", [0, 3])
@pytest.mark.parametrize("sizes", ["odd", "even"])
@pytest.mark.parametrize("letters", LETTERS)
def test_value_and_gradients_are_those_of_rounded_factors_summed_in_float32(letters, sizes, replicas, cpu):
    size = dict(zip("ndfblmhk", (7, 3, 5, 2, 5, 5, 3, 7) if sizes == "odd" else (64, 10, 32, 4, 16, 16, 2, 8), strict=True))
    of_x, of_y, result = re.split(",|->", letters)
    rng, lead = np.random.default_rng(0), (replicas,) if replicas else ()
    x, y, g = (rng.normal(size=(*lead, *(size[c] for c in part))).astype(np.float32) for part in (of_x, of_y, result))
    compute = lambda x, y, g: with_gradients(lambda x, y: einsum(letters, x, y, jnp.bfloat16), x, y, g)
    found = jax.jit(jax.vmap(compute) if replicas else compute)(x, y, g)
    assert [array.dtype for array in found] == [jnp.float32] * 3
    r = "r" if replicas else ""
    expected = (
        np.einsum(f"{r}{of_x},{r}{of_y}->{r}{result}", rounded(x), rounded(y)),
        np.einsum(f"{r}{result},{r}{of_y}->{r}{of_x}", rounded(g), rounded(y)),
        np.einsum(f"{r}{of_x},{r}{result}->{r}{of_y}", rounded(x), rounded(g)),
    )
    for one, other in zip(found, expected, strict=True):
        # Sums in bfloat16 would be off by a hundredth.
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * np.abs(other).max())


@pytest.mark.parametrize("axes", [1, 2])
def test_a_product_is_over_as_many_axes_as_asked(axes, cpu):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, 4, 6)).astype(np.float32)
    kernel = rng.normal(size=(*x.shape[-axes:], 3, 5)).astype(np.float32)
    for dtype, given in ((jnp.bfloat16, rounded), (jnp.float32, np.float64)):
        found = product(x, kernel, dtype, axes)
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, np.tensordot(given(x), given(kernel), axes), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_products_of_rows_in_parts_are_those_of_whole_rows(dtype):
    """Values and gradients, where positions are divided over two devices and heads over two."""
    rng, given = np.random.default_rng(0), rounded if dtype == jnp.bfloat16 else np.float64
    x, kernel, g = (rng.normal(size=size).astype(np.float32) for size in ((2, 6, 2, 8), (2, 8, 3, 4), (2, 6, 3, 4)))
    with jax.set_mesh(build_mesh(ConfigDict(dict(data=2, tensor=2, sequence=2)))):
        place = lambda array, *axes: jax.device_put(array, PartitionSpec(*axes))
        placed = place(x, "data", "sequence", "tensor"), place(kernel, "tensor"), place(g, "data", "sequence")
        found = jax.jit(lambda *a: with_gradients(lambda x, y: product(x, y, dtype, 2), *a))(*placed)
    x, kernel, g = map(given, (x, kernel, g))
    expected = np.tensordot(x, kernel, 2), np.tensordot(g, kernel, ((2, 3), (2, 3))), np.tensordot(x, g, ((0, 1), (0, 1)))
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == jnp.float32
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-4)


def test_no_factor_of_a_product_s_gradients_is_written_anew_in_another_order(cpu):
    x, kernel, gradient = jnp.ones((64, 32)), jnp.ones((32, 3, 2, 16)), jnp.ones((64, 3, 2, 16))
    multiply = lambda x, kernel: product(x, kernel, jnp.float32)
    program = jax.jit(lambda *given: with_gradients(multiply, *given)).lower(x, kernel, gradient).compile().as_text()
    assert not re.search(r" transpose\(%", program)


@pytest.mark.parametrize("inner, outer", [(16, 48), (48, 16)])
def test_the_kernel_s_gradient_is_right_and_computed_with_the_narrower_factor_transposed(inner, outer, cpu):
    rng = np.random.default_rng(0)
    x, kernel, g = (rng.normal(size=size).astype(np.float32) for size in ((64, inner), (inner, outer), (64, outer)))
    compute = jax.jit(lambda *given: with_gradients(lambda x, y: product(x, y, jnp.float32), *given))
    for one, other in zip(compute(x, kernel, g), (x @ kernel, g @ kernel.T, x.T @ g), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    dots = re.findall(r"f32\[(\d+),(\d+)\]\S* dot\(", compute.lower(x, kernel, g).as_text("hlo"))
    assert ("16", "48") in dots and ("48", "16") not in dots


def test_elsewhere_results_are_bfloat16():
    x = jnp.ones((4, 6))
    assert product(x, x.T, jnp.bfloat16).dtype == einsum(LETTERS[0], x, x.T, jnp.bfloat16).dtype == jnp.bfloat16
    assert einsum(LETTERS[0], x, x.T, jnp.bfloat16, jnp.float32).dtype == jnp.float32


def loss_and_gradients(family: str, dtype: str, batch):
    """A function of parameters, and parameters, of a small model."""
    program = tiny_program(family, "mlm" if family in ("bert", "modern") else "ltr", dtype=dtype)
    views = views_of(program, batch)
    total = lambda params: sum(x for name, (x, _) in program.metrics(params, views).items() if name.endswith("/loss"))
    return jax.value_and_grad(total), random_params(program, batch, scale=0.3)


@pytest.mark.parametrize("family", ["bert", "modern", "elmo", "awd_lstm"])
def test_a_model_in_bfloat16_has_the_gradients_of_float32(family, packed_batch, cpu):
    found = {}
    for dtype in ("float32", "bfloat16"):
        compute, params = loss_and_gradients(family, dtype, packed_batch())
        found[dtype] = jax.jit(compute)(params)
    (loss, gradients), (loss_in_half, gradients_in_half) = found["float32"], found["bfloat16"]
    assert loss != loss_in_half and abs(loss - loss_in_half) < 0.03 * loss
    distance = jax.tree.map(lambda a, b: float(jnp.sum((a - b) ** 2)), gradients, gradients_in_half)
    norm = sum(float(jnp.sum(a**2)) for a in jax.tree.leaves(gradients))
    # bfloat16 has 8 bits: a few per cent after a handful of products.
    assert sum(jax.tree.leaves(distance)) < 0.06**2 * norm


def test_no_product_of_a_step_is_in_float32(packed_batch, cpu):
    """Each of those of the forward pass and of the backward pass has both factors in bfloat16, which alone are fast."""
    compute, params = loss_and_gradients("bert", "bfloat16", packed_batch())
    factors = re.findall(
        r"dot_general .*: \(tensor<[\dx]*x(\w+)>, tensor<[\dx]*x(\w+)>\)", jax.jit(compute).lower(params).as_text()
    )
    assert len(factors) >= 3 * 7 and set(factors) == {("bf16", "bf16")}
