"""ELMo's and AWD-LSTM's bodies equal NumPy, with carried states and without, however they are
computed."""

import dataclasses

import jax
import numpy as np
import pytest

from bertlab.models.presets import build_body
from tests.recurrent_references import (
    AWD_LSTM,
    ELMO,
    body_params,
    encode,
    layers_and_ends,
    sides_of,
)
from tests.references import packed_batch, quick_jit

BODIES = {"elmo": ELMO, "awd_lstm": AWD_LSTM}


@pytest.mark.parametrize(
    "body, direction",
    [("elmo", "bidirectional"), ("awd_lstm", "left-to-right"), ("awd_lstm", "right-to-left")],
)
def test_forward_pass_equals_numpy(body, direction):
    shape = dataclasses.replace(BODIES[body], direction=direction)
    batch, params = packed_batch(rows=2, length=24, vocab_size=30), body_params(shape)
    # Large biases and projections, so that both clips act; weak recurrence, so that rounding does
    # not grow.
    for side in sides_of(shape) if body == "elmo" else ():
        for name, factor in {"bias": 5.0, "projection": 4.0, "recurrent_kernel": 0.2}.items():
            params[side][name] *= factor
    encoded, carry = encode(shape, params, batch)
    assert carry == {}
    clipped = {"cell": 0, "state": 0}
    for side in sides_of(shape):
        for row in range(2):
            expected, _ = layers_and_ends(shape, params, batch, row, side, clipped=clipped)
            for ours, theirs in zip(getattr(encoded, side), expected, strict=True):
                np.testing.assert_allclose(ours[row], theirs, rtol=1e-5, atol=1e-5)
    if body == "elmo":
        assert min(clipped.values()) > 0
        for both, *pair in zip(encoded.both, encoded.forward, encoded.backward, strict=True):
            np.testing.assert_array_equal(both, np.concatenate(pair, -1))


def stream_batches(rows=3, length=9, batches=3):
    """Rows that continue or do not, borders of documents, padding at the ends and inside."""
    rng = np.random.default_rng(0)
    for number in range(batches):
        documents = np.ones((rows, length), np.int32)
        documents[0, 4:] = 2
        documents[1, -2:] = documents[1, :1] = 0
        documents[2, 3:5], documents[2, 5:] = 0, 1 + number % 2
        yield {
            "tokens": rng.integers(0, 30, (rows, length)).astype(np.int32),
            "documents": documents,
            "continues": np.array([1, number != 1, number != 2], np.int32),
        }


@pytest.mark.parametrize("side", ["forward", "backward"])
@pytest.mark.parametrize("body", BODIES)
def test_states_are_carried_from_batch_to_batch(body, side):
    """Where a row continues; padding holds them, a new document clears them; no other side is
    computed."""
    shape = BODIES[body]
    if body == "awd_lstm" and side == "backward":
        shape = dataclasses.replace(shape, direction="right-to-left")
    params, ends, carry = body_params(shape), {}, shape.initial_carry(3, (side,))
    cells = [shape.hidden] * shape.layers if body == "elmo" else shape.cells
    widths = [shape.width] * shape.layers if body == "elmo" else shape.cells
    zeros = [
        {"cell": np.zeros(cell), "state": np.zeros(width)} for cell, width in zip(cells, widths)
    ]
    other = {"forward": "backward", "backward": "forward"}[side]
    for batch in stream_batches():
        encoded, carry = encode(shape, params, batch, carry)
        assert encoded.both is None and getattr(encoded, other) is None
        for row in range(3):
            begins = ends[row] if row in ends and batch["continues"][row] else zeros
            layers, ends[row] = layers_and_ends(shape, params, batch, row, side, begins)
            words = batch["documents"][row] > 0
            for ours, theirs in zip(getattr(encoded, side), layers, strict=True):
                np.testing.assert_allclose(ours[row][words], theirs[words], rtol=1e-5, atol=1e-5)
            for n, end in enumerate(ends[row]):
                for name in ("cell", "state"):
                    state = carry[side][name][:, n] if body == "elmo" else None
                    state = carry[side][f"layer_{n}"][name] if state is None else state
                    np.testing.assert_allclose(state[row], end[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("body", BODIES)
def test_no_gradient_flows_through_what_is_carried(body):
    shape, batch = BODIES[body], next(stream_batches())

    def end(params):
        carry = shape.initial_carry(3, ("forward",))
        _, carry = build_body(shape).apply({"params": params}, batch, carry, method="encode")
        return sum(x.sum() for x in jax.tree.leaves(carry))

    gradient = quick_jit(jax.grad(end))(body_params(shape))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient))


@pytest.mark.slow
@pytest.mark.parametrize("body", BODIES)
def test_loops_and_recomputation_change_nothing(body):
    """Values, gradients and dropout masks."""
    fields = [field.name for field in dataclasses.fields(BODIES[body])]
    rates = {name: 0.4 for name in fields if name.endswith("dropout")}
    shape = dataclasses.replace(BODIES[body], direction="left-to-right", layers=2, **rates)
    changes = {"remat": "full"} | ({"scan_layers": True} if body == "elmo" else {})
    params, batch = body_params(shape), packed_batch(rows=2, length=8, vocab_size=30)

    def value_and_gradient(shape):
        def loss(params):
            rngs = {"dropout": jax.random.key(3)}
            body = build_body(shape)
            encoded, _ = body.apply({"params": params}, batch, rngs=rngs, method="encode")
            return (encoded.output("forward") ** 2).sum()

        return quick_jit(jax.value_and_grad(loss))(params)

    found = value_and_gradient(dataclasses.replace(shape, **changes))
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(value_and_gradient(shape))):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)
