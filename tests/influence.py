"""Which embeddings each hidden state depends on, by derivatives; the view's `order` acts."""

import dataclasses
import functools

import jax
import numpy as np

from tests.references import VOCABULARY, quick_jit, random_params, tiny_program


@functools.cache
def derivatives(size: int):
    """A program that only encodes, and a function (params, view, directions [n, V, D]) -> the
    states' derivatives [n, B, L, D]."""
    vocabulary = dataclasses.replace(VOCABULARY, size=size, counts=None)
    program = tiny_program("bert", "", vocabulary, layers=2)

    def compute(params, view, directions):
        def states(table):
            body = {**params["body"], "token_embedding": table}
            return program.encode({"body": body}, view).both[-1]

        def derivative(direction):
            return jax.jvp(states, (params["body"]["token_embedding"],), (direction,))[1]

        return jax.vmap(derivative)(directions)

    return program, quick_jit(compute)


def influence(view) -> np.ndarray:
    """[B, L, L] whether the state at each position (axis 1) depends on the embedding at each
    (axis 2) after two layers, by the derivative along one random direction of each embedding."""
    rows, length = view["tokens"].shape
    # Every position has a token of its own, so each row of the table is one position's embedding.
    tokens = np.arange(rows * length, dtype=np.int32).reshape(rows, length)
    fields = ("segments", "documents", "positions", "order", "shown_at")
    view = {"tokens": tokens, **{name: view[name] for name in fields if name in view}}
    program, compute = derivatives(rows * length)
    params = random_params(program, view)
    noise = np.random.default_rng(1).normal(size=params["body"]["token_embedding"].shape)
    directions = (np.eye(rows * length)[:, :, None] * noise).astype(np.float32)
    change = np.asarray(compute(params, view, directions))
    seen = (change.reshape(rows, length, rows, length, -1) != 0).any(-1)
    return np.stack([seen[row, :, row].T for row in range(rows)])


def assert_sees(view, expected_row) -> None:
    """Every real position sees exactly `expected_row(row)` [L, L]; padding sees at most padding."""
    for row, seen in enumerate(influence(view)):
        real = view["documents"][row] > 0
        expected = expected_row(row)
        assert not (seen & ~expected)[real].any(), "it sees what it must not"
        assert not (expected & ~seen)[real].any(), "it must see what it may"
        assert not seen[~real][:, real].any(), "padding sees text"
