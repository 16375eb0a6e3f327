"""The LSTM with its hand-written derivative and the GRU, against automatic differentiation of the
same recurrences in a Python loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertlab.models.recurrent import Borders, Cell, borders, lstm
from tests.references import quick_jit

L, B, F, D = 9, 3, 5, 4
DOCUMENTS = np.array([[1, 1, 2, 2, 2, 0, 0, 3, 3], [1] * 9, [0, 0, 1, 2, 2, 2, 0, 0, 0]])


def draw(number, *shape):
    return jax.random.normal(jax.random.key(number), shape)


def assert_equal_with_gradients(loss, recurrences, arguments):
    """`loss(recurrence, arguments)` returns (scalar, states)."""
    found, expected = (
        quick_jit(jax.value_and_grad(lambda x, r=recurrence: loss(r, x), has_aux=True))(arguments)
        for recurrence in recurrences
    )
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    return found


def plain_lstm(cell: Cell, gates, kernel, projection, begin, borders):
    bound = cell.clip or jnp.inf
    nowhere = np.zeros((L, B), bool)
    reset, hold, cut = (nowhere if where is None else where for where in borders)

    def where(condition, a, b):
        return jax.tree.map(lambda a, b: jnp.where(condition[:, None], a, b), a, b)

    state, states = begin, [None] * L
    for t in reversed(range(L)) if cell.reverse else range(L):
        state = where(cut[t], jax.lax.stop_gradient(state), state)
        old = where(reset[t], jax.tree.map(jnp.zeros_like, state), state)
        parts = jnp.split(gates[t] + old["state"] @ kernel, 4, axis=-1)
        i, f, g, o = (parts[n] for n in cell.order)
        new = jax.nn.sigmoid(f) * old["cell"] + jax.nn.sigmoid(i) * jnp.tanh(g)
        new = jnp.clip(new, -bound, bound)
        out = jax.nn.sigmoid(o) * jnp.tanh(new)
        out = out if projection is None else jnp.clip(out @ projection, -bound, bound)
        state = where(hold[t], state, {"cell": new, "state": out})
        states[t] = state["state"]
    return jnp.stack(states), state


@pytest.mark.parametrize(
    "reverse, stateful, projected, cut",
    [(False, True, True, True), (True, False, True, False), (True, True, False, False)],
)
def test_an_lstms_values_and_gradients_are_those_of_the_plain_loop(
    reverse, stateful, projected, cut
):
    width = D if projected else F
    # The bound is reached by some of the cells and some of the states.
    cell = Cell((0, 2, 1, 3) if projected else (3, 1, 0, 2), 0.4 if projected else None, reverse)
    arguments = [
        draw(0, L, B, 4 * F),
        draw(1, width, 4 * F),
        draw(2, F, D) if projected else None,
        {"cell": 0.3 * draw(3, B, F), "state": 0.3 * draw(4, B, width)},
    ]
    view = {"documents": jnp.asarray(DOCUMENTS)}
    if cut:
        view["cut"] = jax.random.bernoulli(jax.random.key(8), 0.4, (B, L))
    rows = Borders(*borders(view, reverse, stateful))

    def loss(recurrence, arguments):
        states, end = recurrence(cell, *arguments, rows)
        total = jnp.sum(states * draw(5, L, B, width))
        total += jnp.sum(end["cell"] * draw(6, B, F)) + jnp.sum(end["state"] * draw(7, B, width))
        return total, (states, end)

    (_, (states, _)), _ = assert_equal_with_gradients(loss, (lstm, plain_lstm), arguments)
    if projected:
        assert 0.1 < (jnp.abs(states) == 0.4).mean() < 0.9
