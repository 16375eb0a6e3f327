"""LSTM and GRU with derivatives of their own, against automatic differentiation of the same recurrences written plainly."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from bertlab.models.recurrent import Cell, borders, gru, lstm, of_inputs
from bertlab.train.sharding import build_mesh
from tests.references import quick_jit

L, B, F, D = 9, 3, 5, 4
DOCUMENTS = np.array([[1, 1, 2, 2, 2, 0, 0, 3, 3], [1] * 9, [0, 0, 1, 2, 2, 2, 0, 0, 0]]).T


def plain(cell: Cell, gates, kernel, projection, begin, reset, hold, cut=None):
    """The same, position by position in Python."""
    bound = cell.clip or jnp.inf
    state, states = begin, [None] * L
    for t in reversed(range(L)) if cell.reverse else range(L):
        stopped = cut[t][:, None] if cut is not None else False
        state = jax.tree.map(lambda x, at=stopped: jnp.where(at, jax.lax.stop_gradient(x), x), state)
        old = jax.tree.map(lambda x, t=t: jnp.where(reset[t][:, None], 0, x), state)
        parts = jnp.split(gates[t] + old["state"] @ kernel, 4, axis=-1)
        i, f, g, o = (parts[place] for place in cell.order)
        new = jnp.clip(jax.nn.sigmoid(f) * old["cell"] + jax.nn.sigmoid(i) * jnp.tanh(g), -bound, bound)
        out = jax.nn.sigmoid(o) * jnp.tanh(new)
        out = out if projection is None else jnp.clip(out @ projection, -bound, bound)
        after = {"cell": new, "state": out}
        held = hold[t][:, None] if hold is not None else False
        state = jax.tree.map(lambda before, x, held=held: jnp.where(held, before, x), state, after)
        states[t] = state["state"]
    return jnp.stack(states), state


@pytest.mark.parametrize(
    ("reverse", "stateful", "projected", "cut"),
    [
        (False, False, False, False),
        (False, True, True, True),
        (True, False, True, False),
        (True, True, False, False),
        (True, False, False, True),
    ],
)
def test_values_and_every_gradient_are_those_of_the_plain_recurrence(reverse, stateful, projected, cut):
    draw = lambda i, *shape: jax.random.normal(jax.random.key(i), shape)
    width = D if projected else F
    # Bounds that hold some of the cells and some of the states.
    cell = Cell((0, 2, 1, 3) if projected else (3, 1, 0, 2), 0.4 if projected else None, reverse)
    given = {
        "gates": draw(0, L, B, 4 * F),
        "kernel": draw(1, width, 4 * F),
        "projection": draw(2, F, D) if projected else None,
        "begin": {"cell": 0.3 * draw(3, B, F), "state": 0.3 * draw(4, B, width)},
    }
    stopped = jax.random.bernoulli(jax.random.key(8), 0.4, (L, B)) if cut else None
    rows = *borders(jnp.asarray(DOCUMENTS), reverse, stateful), stopped
    of_states, of_end = draw(5, L, B, width), {"cell": draw(6, B, F), "state": draw(7, B, width)}

    names = list(given)  # jit sorts them

    def loss(recurrence, given):
        states, end = recurrence(cell, *(given[name] for name in names), *rows)
        total = jnp.sum(states * of_states) + sum(jnp.sum(end[name] * of_end[name]) for name in end)
        return total, (states, end)

    compute = lambda recurrence: quick_jit(jax.value_and_grad(lambda given: loss(recurrence, given), has_aux=True))(given)
    found, expected = compute(lstm), compute(plain)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        # float32, sums in another order.
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    if projected:
        states = expected[0][1][0]
        assert 0.1 < (jnp.abs(states) == 0.4).mean() < 0.9, "the bound holds some states and not others"


def plain_gru(reverse, gates, kernel, bias, reset):
    """The same, position by position in Python; torch's documentation has these equations."""
    state, states = jnp.zeros((B, F)), [None] * L
    for t in reversed(range(L)) if reverse else range(L):
        state = jnp.where(reset[t][:, None], 0, state)
        x, h = jnp.split(gates[t], 3, axis=-1), jnp.split(state @ kernel, 3, axis=-1)
        r, z = (jax.nn.sigmoid(x[i] + h[i]) for i in (0, 1))
        state = states[t] = (1 - z) * jnp.tanh(x[2] + r * (h[2] + bias)) + z * state
    return jnp.stack(states)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_grus_values_and_every_gradient_are_those_of_the_plain_recurrence(reverse):
    draw = lambda i, *shape: jax.random.normal(jax.random.key(i), shape)
    given = draw(0, L, B, 3 * F), draw(1, F, 3 * F), draw(2, F)
    reset, _ = borders(jnp.asarray(DOCUMENTS), reverse, stateful=False)

    def loss(recurrence, given):
        states = recurrence(reverse, *given, reset)
        return jnp.sum(states * draw(3, L, B, F)), states

    compute = lambda recurrence: quick_jit(jax.value_and_grad(lambda given: loss(recurrence, given), has_aux=True))(given)
    for ours, theirs in zip(jax.tree.leaves(compute(gru)), jax.tree.leaves(compute(plain_gru)), strict=True):
        # float32, sums in another order.
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def inputs_and_gradients(x, kernel, gradient):
    """`of_inputs`, and its gradients."""
    value, pull = jax.vjp(lambda x, kernel: of_inputs(x, kernel, jnp.float32), x, kernel)
    return value, *pull(gradient)


@pytest.mark.parametrize("devices", [0, 1, 4])
def test_products_of_inputs_and_their_gradients_where_rows_are_divided(devices):
    rng = np.random.default_rng(0)
    x, kernel, gradient = (rng.normal(size=shape).astype(np.float32) for shape in ((7, 8, 3), (3, 5), (7, 8, 5)))
    if devices:
        mesh = build_mesh(ConfigDict(dict(data=min(devices, 2), fsdp=max(devices // 2, 1), tensor=1)))
        whole, rows = (NamedSharding(mesh, spec) for spec in (PartitionSpec(), PartitionSpec(None, ("data", "fsdp"))))
        with jax.set_mesh(mesh):
            program = jax.jit(inputs_and_gradients, in_shardings=(rows, whole, rows)).lower(x, kernel, gradient).compile()
        text = program.as_text()
        # A CPU's compiler writes factors anew in another order to sum over two axes; of several devices, each sums its rows.
        assert not re.search(r" transpose\(%|all-gather|all-to-all", text)
        assert ("all-reduce" in text) == (devices > 1)
        found = program(*jax.device_put((x, kernel, gradient), (rows, whole, rows)))
    else:
        found = inputs_and_gradients(x, kernel, gradient)
    expected = x @ kernel, gradient @ kernel.T, np.einsum("lbd,lbf->df", x, gradient)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
