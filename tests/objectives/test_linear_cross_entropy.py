"""The cross-entropy that never holds all logits, against the plain one: values, gradients, memory, devices."""

import contextlib

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from bertlab.objectives.base import cross_entropy
from bertlab.objectives.linear_cross_entropy import linear_cross_entropy
from bertlab.train.sharding import build_mesh

B, N, D, V = 8, 7, 6, 50


def given(dtype=jnp.float32):
    rng = np.random.default_rng(0)
    hidden, table, bias = (rng.normal(size=shape).astype(np.float32) for shape in ((B, N, D), (V, D), (V,)))
    weights = np.where(rng.random((B, N)) < 0.7, rng.random((B, N)), 0).astype(np.float32)
    return (hidden.astype(dtype), table, bias), rng.integers(0, V, (B, N)).astype(np.int32), weights


def plain(hidden, table, bias, labels, weights):
    logits = jnp.einsum("bnd,vd->bnv", hidden, table.astype(hidden.dtype), preferred_element_type=jnp.float32)
    return cross_entropy(logits if bias is None else logits + bias, labels, weights)


def with_gradients(function, layer, labels, weights):
    """Gradients of a multiple of the loss, and metrics."""

    def loss(layer):
        metrics = function(*layer, labels, weights)
        return 3.0 * metrics["loss"][0] / metrics["loss"][1], metrics

    return jax.jit(jax.grad(loss, has_aux=True))(layer)


@pytest.mark.parametrize(("rows", "with_bias"), [(None, True), (0, False), (1, True), (24, False), (1000, True)])
def test_values_and_gradients_are_the_plain_ones(rows, with_bias):
    (hidden, table, bias), labels, weights = given()
    layer = (hidden, table, bias if with_bias else None)
    found = with_gradients(lambda *a: linear_cross_entropy(*a, rows=rows), layer, labels, weights)
    expected = with_gradients(plain, layer, labels, weights)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)  # float32, sums in another order


def test_without_a_gradient_the_sums_are_the_same():
    layer, labels, weights = given()
    found = jax.jit(linear_cross_entropy)(*layer, labels, weights)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(plain)(*layer, labels, weights))):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_a_tie_for_the_highest_logit_is_shared():
    hidden, table = np.ones((1, 2, 1), np.float32), np.float32([[1], [1], [0]])
    metrics = jax.jit(linear_cross_entropy)(hidden, table, None, np.int32([[0, 2]]), np.ones((1, 2), np.float32))
    assert metrics["accuracy"] == (0.5, 2.0)


def test_bfloat16_states_keep_a_float32_gradient_of_the_table():
    (hidden, table, bias), labels, weights = given(jnp.bfloat16)
    (of_hidden, of_table, of_bias), _ = with_gradients(linear_cross_entropy, (hidden, table, bias), labels, weights)
    assert (of_hidden.dtype, of_table.dtype, of_bias.dtype) == (jnp.bfloat16, jnp.float32, jnp.float32)
    exact, _ = with_gradients(plain, (hidden.astype(jnp.float32), table, bias), labels, weights)
    # bfloat16 has 8 bits: within a per cent of the largest entry.
    assert jnp.abs(of_table - exact[1]).max() < 1e-2 * jnp.abs(exact[1]).max()
    assert jnp.abs(of_hidden - exact[0]).max() < 1e-2 * jnp.abs(exact[0]).max()


def largest(jaxpr) -> int:
    """Elements of the largest array that a program makes."""
    sizes = [v.aval.size for equation in jaxpr.eqns for v in equation.outvars]
    inner = [largest(sub) for equation in jaxpr.eqns for sub in jax.extend.core.jaxprs_in_params(equation.params)]
    return max(sizes + inner, default=0)


@pytest.mark.parametrize(("cpu", "rows", "most"), [(True, None, 128 * 50_257), (False, None, 2**26), (True, 64, 64 * 50_257)])
def test_all_logits_are_never_there(cpu, rows, most):
    """GPT-2's of 32 rows of 1,024: by default at most 128 positions at a time on a CPU, elsewhere 256 MiB."""
    shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32)
    layer = shape(32, 1024, 64), shape(50_257, 64), None
    labels, weights = jax.ShapeDtypeStruct((32, 1024), jnp.int32), shape(32, 1024)
    loss = lambda layer, labels, weights: linear_cross_entropy(*layer, labels, weights, rows=rows)["loss"][0]
    with jax.set_mesh(build_mesh({"data": 1, "fsdp": 1, "tensor": 1})) if cpu else contextlib.nullcontext():
        made = jax.make_jaxpr(jax.grad(loss))(layer, labels, weights)
    assert most / 2 < largest(made.jaxpr) <= most


@pytest.mark.parametrize("shape", [(1, 8, 1), (2, 2, 2), (1, 2, 1, 4)])
def test_devices_give_the_same(shape):
    layer, labels, weights = given()
    expected = with_gradients(linear_cross_entropy, layer, labels, weights)
    mesh = build_mesh(dict(zip(("data", "fsdp", "tensor", "sequence"), shape)))
    put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))
    rows = ("data", "fsdp")
    placed = (put(layer[0], rows), put(layer[1], "tensor", "fsdp" if D % shape[1] == 0 else None), put(layer[2], "tensor"))
    function = lambda *a: linear_cross_entropy(*a, rows=16)
    with jax.set_mesh(mesh):
        found = with_gradients(function, placed, put(labels, rows), put(weights, rows))
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
