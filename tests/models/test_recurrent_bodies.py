"""ELMo's and AWD-LSTM's bodies equal a NumPy reference, with states carried and without, however they are computed."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertlab.config import base_config
from bertlab.models.presets import build_body
from bertlab.train.sharding import build_mesh
from tests.recurrent_references import AWD_LSTM, ELMO, body_params, encode, layers_and_ends, sides_of, stream_batches
from tests.references import quick_jit

BODIES = {"elmo": ELMO, "awd_lstm": AWD_LSTM}


@pytest.mark.parametrize(
    ("body", "direction"),
    [
        *(("elmo", direction) for direction in ("bidirectional", "left-to-right", "right-to-left")),
        *(("awd_lstm", direction) for direction in ("left-to-right", "right-to-left")),
    ],
)
def test_forward_pass_equals_numpy(body, direction, packed_batch):
    config = dataclasses.replace(BODIES[body], direction=direction)
    batch, params = packed_batch(rows=2, length=24, vocab_size=30), body_params(config)
    # Large biases and projections, so that both clips act, and weak recurrence, so that rounding errors do not grow.
    for side in sides_of(config) if body == "elmo" else ():
        for kind, factor in {"bias": 5.0, "projection": 4.0, "recurrent_kernel": 0.2}.items():
            params[side][kind] *= factor
    encoded, carry = encode(config, params, batch)
    assert carry == {} and encoded.dropped is not None
    assert [side for side in ("forward", "backward") if getattr(encoded, side) is not None] == list(sides_of(config))
    clipped = {"cell": 0, "state": 0}
    for side in sides_of(config):
        for row in range(2):
            expected, _ = layers_and_ends(config, params, batch, row, side, clipped=clipped)
            for ours, theirs in zip(getattr(encoded, side), expected, strict=True):
                np.testing.assert_allclose(ours[row], theirs, rtol=1e-5, atol=1e-5)
    assert min(clipped.values()) > 0 or body != "elmo", "else the clips were not tried"
    if encoded.both is not None:
        for both, *apart in zip(encoded.both, encoded.forward, encoded.backward, strict=True):
            np.testing.assert_array_equal(both, np.concatenate(apart, -1))
    assert (encoded.both is not None) == (direction == "bidirectional")


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("body", BODIES)
def test_on_a_cpu_the_loop_over_time_is_in_float32_and_the_carry_in_the_body_s_dtype(body, stateful):
    """In the loop a CPU takes ten times as long for products in bfloat16."""
    config, params = BODIES[body], body_params(BODIES[body])
    half = dataclasses.replace(config, dtype=jnp.bfloat16)
    batch, found = next(iter(stream_batches())), {}
    with jax.set_mesh(build_mesh(base_config().mesh)):
        for name, each in (("half", half), ("single", config)):
            carry = each.initial_carry(3, ("forward",)) if stateful else {}
            run = lambda params, carry: build_body(each).apply({"params": params}, batch, True, carry, method="encode")  # noqa: B023
            program = str(jax.make_jaxpr(run)(params, carry))
            found[name], after = jax.jit(run)(params, carry)
            assert jax.tree.map(lambda x: x.dtype, after) == jax.tree.map(lambda x: x.dtype, carry)
            loops = [part.partition("in (")[0] for part in program.split("let")[1:] if "tanh" in part]
            assert len(loops) > 1 and not any("bf16" in loop for loop in loops)
            assert ("bf16" in program) == (name == "half")
    states = [np.asarray(found[name].forward[-1], np.float32) for name in ("half", "single")]
    assert found["half"].forward[-1].dtype == jnp.float32 and 0 < np.abs(states[0] - states[1]).max() < 0.02


@pytest.mark.parametrize("side", ["forward", "backward"])
@pytest.mark.parametrize("body", BODIES)
def test_states_are_carried_from_batch_to_batch(body, side):
    """Where a row continues; padding holds them, a new document clears them; only the carried side is encoded."""
    config = BODIES[body]
    if body == "awd_lstm" and side == "backward":
        config = dataclasses.replace(config, direction="right-to-left")
    params, ends, carry = body_params(config), {}, config.initial_carry(3, (side,))
    cells = [config.hidden] * config.layers if body == "elmo" else config.cells
    widths = [config.width] * config.layers if body == "elmo" else config.cells
    zeros = [{"cell": np.zeros(cell), "state": np.zeros(width)} for cell, width in zip(cells, widths)]
    for batch in stream_batches():
        encoded, carry = encode(config, params, batch, carry)
        assert encoded.both is None and getattr(encoded, {"forward": "backward", "backward": "forward"}[side]) is None
        for row in range(3):
            begins = ends[row] if row in ends and batch["continues"][row] else zeros
            layers, ends[row] = layers_and_ends(config, params, batch, row, side, begins)
            kept = batch["documents"][row] > 0
            for ours, theirs in zip(getattr(encoded, side), layers, strict=True):
                np.testing.assert_allclose(ours[row][kept], theirs[kept], rtol=1e-5, atol=1e-5)
            for n, end in enumerate(ends[row]):
                for name in ("cell", "state"):
                    found = carry[side][name][row, n] if body == "elmo" else carry[side][f"layer_{n}"][name][row]
                    np.testing.assert_allclose(found, end[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("body", BODIES)
def test_no_gradient_flows_through_what_is_carried(body):
    config, batch = BODIES[body], stream_batches(batches=1)[0]

    def end(params):
        carry = config.initial_carry(3, ("forward",))
        _, carry = build_body(config).apply({"params": params}, batch, True, carry, method="encode")
        return sum(x.sum() for x in jax.tree.leaves(carry))

    assert not any(np.any(g) for g in jax.tree.leaves(quick_jit(jax.grad(end))(body_params(config))))


@pytest.mark.parametrize(
    ("body", "changes"),
    [("elmo", [{"remat": "full"}, {"remat": "dots", "scan_layers": False}]), ("awd_lstm", [{"remat": "full"}])],
)
def test_loops_and_recomputation_change_nothing(body, changes, packed_batch):
    """Values, gradients and dropout masks, whatever `scan_layers` and `remat` say."""
    rates = {field.name: 0.4 for field in dataclasses.fields(BODIES[body]) if field.name.endswith("dropout")}
    config = dataclasses.replace(BODIES[body], direction="left-to-right", layers=2, **rates)
    params, batch = body_params(config), packed_batch(rows=2, length=8, vocab_size=30)

    def value_and_gradient(config):
        def loss(params):
            rngs = {"dropout": jax.random.key(3)}
            encoded, _ = build_body(config).apply({"params": params}, batch, False, {}, rngs=rngs, method="encode")
            return (encoded.output("forward") ** 2).sum()

        return quick_jit(jax.value_and_grad(loss))(params)

    expected = value_and_gradient(config)
    for change in changes:
        found = value_and_gradient(dataclasses.replace(config, **change))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), found, expected)
