"""Which embeddings each hidden state depends on, by Jacobians; the view's `order` is at work."""

import dataclasses
import functools

import jax
import numpy as np

from tests.references import VOCABULARY, quick_jit, random_params, tiny_program


@functools.cache
def _program(family: str, size: int, switches: tuple):
    """A program that only encodes, and (params, view, directions [n, V, D]) -> [n, B, L, D], its states' derivatives."""
    vocabulary = dataclasses.replace(VOCABULARY, size=size, counts=None)
    program = tiny_program(family, "", vocabulary, **{"direction": "bidirectional", "layers": 2, **dict(switches)})

    def derivatives(params, view, directions):
        states = lambda table: program.encode({"body": {**params["body"], "token_embedding": table}}, view).both[-1]
        return jax.vmap(lambda direction: jax.jvp(states, (params["body"]["token_embedding"],), (direction,))[1])(directions)

    return program, quick_jit(derivatives)


def influence(view, family: str = "bert", **model) -> np.ndarray:
    """[B, L, L] bool: whether the state at each position (axis 1) depends on the embedding at each (axis 2), after two layers.

    The Jacobian is taken along one random direction of each embedding.
    """
    rows, length = view["tokens"].shape
    # Every position shows a token of its own, so that the embedding table's rows are the positions' embeddings.
    view = {**view, "tokens": np.arange(rows * length, dtype=np.int32).reshape(rows, length)}
    fields = ("tokens", "segments", "documents", "positions", "order", "shown_at")
    view = {name: view[name] for name in fields if name in view}
    program, derivatives = _program(family, rows * length, tuple(model.items()))
    params = random_params(program, view)
    noise = np.random.default_rng(1).normal(size=params["body"]["token_embedding"].shape)
    directions = (np.eye(rows * length)[:, :, None] * noise).astype(np.float32)
    change = np.asarray(derivatives(params, view, directions)).reshape(rows, length, rows, length, -1)
    seen = (change != 0).any(-1)
    assert not any(seen[row, :, other].any() for row in range(rows) for other in range(rows) if row != other), "rows are apart"
    return np.stack([seen[row, :, row].T for row in range(rows)])


def assert_sees(view, row_of_expected, family: str = "bert", **model) -> None:
    """Every real position sees exactly what `row_of_expected(row)` [L, L] says, and padding sees padding at most."""
    for row, seen in enumerate(influence(view, family, **model)):
        real = view["documents"][row] > 0
        expected = row_of_expected(row)
        assert not (seen & ~expected)[real].any(), "it sees what it must not"
        assert not (expected & ~seen)[real].any(), "it must see what it may"
        assert not seen[~real][:, real].any(), "padding sees text"
