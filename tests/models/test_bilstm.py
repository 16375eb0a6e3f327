"""ELMo's projected and clipped LSTMs equal a NumPy reference (bilm-tf's rules), with states carried and without."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bertlab.models.base import OutputConfig, unbox
from bertlab.models.bilstm import Bilstm, BilstmConfig
from bertlab.models.presets import FAMILIES
from bertlab.objectives import Vocabulary
from tests.recurrent_references import bilm_side, stream_batches
from tests.references import hidden_states, initial, quick_jit, random_params, tiny_program

TINY = BilstmConfig(
    layers=2,
    width=5,
    hidden=7,
    vocab_size=30,
    direction="bidirectional",
    clip=3.0,
    epsilon=1e-12,
    output=OutputConfig(transform=False, tied=False, bias=True),
    dropout=0.0,
    dtype=jnp.float32,
)


def body_params(config, view, seed=0):
    """Random parameters of the body and its softmax."""

    def use(body):
        encoded, _ = body.encode(view, True, {})
        body.predict_tokens(getattr(encoded, config.sides[0])[-1], config.sides[0])

    shapes = unbox(jax.eval_shape(lambda: Bilstm(config).init(jax.random.key(0), method=use)))["params"]
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda s: rng.normal(scale=0.5, size=s.shape).astype(np.float32), shapes)


@functools.cache
def encoder(config, deterministic):
    apply = lambda p, v, c, key: Bilstm(config).apply(
        {"params": p}, v, deterministic, c, rngs={"dropout": key}, method="encode"
    )
    return quick_jit(apply)


def encode(config, params, view, carry=None, key=None):
    """Hidden states and the carry."""
    return encoder(config, key is None)(params, view, carry or {}, jax.random.key(key or 0))


@pytest.mark.parametrize("direction", ["bidirectional", "left-to-right", "right-to-left"])
def test_forward_pass_equals_numpy(direction, packed_batch):
    names = {"bidirectional": "ltr+rtl", "left-to-right": "ltr", "right-to-left": "rtl"}[direction]
    program, batch = tiny_program("elmo", names, direction=direction, layers=2), packed_batch(rows=2, length=24)
    params = random_params(program, batch)
    # Large biases and projections, so that both clips act, and weak recurrence, so that rounding errors do not grow.
    for side in (side for side in ("forward", "backward") if side in params["body"]):
        for kind, factor in {"bias": 5.0, "projection": 4.0, "recurrent_kernel": 0.2}.items():
            params["body"][side][kind] *= factor
    encoded, clipped = hidden_states(program, params, batch), {"cell": 0, "state": 0}
    sides = {"forward": encoded.forward, "backward": encoded.backward}
    assert [s for s in sides if sides[s] is not None] == {"ltr": ["forward"], "rtl": ["backward"]}.get(names, list(sides))
    embedding = np.float64(params["body"]["token_embedding"])
    for side, layers in sides.items():
        for row in range(2 if layers else 0):
            x, documents = embedding[batch["tokens"][row]], batch["documents"][row]
            expected, _ = bilm_side(x, params["body"][side], documents, side == "backward", clipped=clipped)
            for ours, theirs in zip(layers, expected, strict=True):
                np.testing.assert_allclose(ours[row], theirs, rtol=1e-5, atol=1e-5)
    assert min(clipped.values()) > 0, "else the clips were not tried"
    if direction == "bidirectional":
        for both, *apart in zip(encoded.both, encoded.forward, encoded.backward, strict=True):
            np.testing.assert_array_equal(both, np.concatenate(apart, -1))


@pytest.mark.parametrize("side", ["forward", "backward"])
def test_states_are_carried_from_batch_to_batch(side):
    """Where a row continues; padding holds them, a new document clears them; only the carried side is encoded."""
    batches = stream_batches()
    params = body_params(TINY, batches[0])
    carry = TINY.initial_carry(3, (side,))
    embedding, ends = np.float64(params["token_embedding"]), {}
    zeros = [{"cell": np.zeros(TINY.hidden), "state": np.zeros(TINY.width)}] * TINY.layers
    for batch in batches:
        encoded, carry = encode(TINY, params, batch, carry)
        assert encoded.both is None and getattr(encoded, {"forward": "backward", "backward": "forward"}[side]) is None
        for row in range(3):
            begins = ends[row] if row in ends and batch["continues"][row] else zeros
            x, documents = embedding[batch["tokens"][row]], batch["documents"][row]
            layers, ends[row] = bilm_side(x, params[side], documents, side == "backward", begins)
            for ours, theirs in zip(getattr(encoded, side), layers, strict=True):
                kept = documents > 0
                np.testing.assert_allclose(ours[row][kept], theirs[kept], rtol=1e-5, atol=1e-5)
            for n, end in enumerate(ends[row]):
                for name in ("cell", "state"):
                    np.testing.assert_allclose(carry[side][name][row, n], end[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("side", ["forward", "backward"])
def test_chunks_with_carried_states_equal_one_long_row(side):
    tokens = np.random.default_rng(1).integers(0, 30, (2, 12)).astype(np.int32)
    view = lambda t: {"tokens": t, "documents": np.ones_like(t), "continues": np.ones(2, np.int32)}
    params = body_params(TINY, view(tokens))
    whole, _ = encode(TINY, params, view(tokens), TINY.initial_carry(2, (side,)))
    carry, parts = TINY.initial_carry(2, (side,)), []
    for chunk in np.split(tokens, 3, axis=1)[:: -1 if side == "backward" else 1]:
        encoded, carry = encode(TINY, params, view(chunk), carry)
        parts.append(getattr(encoded, side)[-1])
    joined = np.concatenate(parts[:: -1 if side == "backward" else 1], axis=1)
    np.testing.assert_allclose(joined, getattr(whole, side)[-1], rtol=1e-5, atol=1e-6)


def test_no_gradient_flows_through_what_is_carried():
    batch = stream_batches(batches=1)[0]
    params = body_params(TINY, batch)

    def end(params):
        carry = Bilstm(TINY).apply({"params": params}, batch, True, TINY.initial_carry(3, ("forward",)), method="encode")[1]
        return sum(x.sum() for x in jax.tree.leaves(carry))

    assert not any(np.any(g) for g in jax.tree.leaves(quick_jit(jax.grad(end))(params)))


def test_loop_unrolled_and_recomputed_layers_are_the_same(packed_batch):
    """Values, gradients and dropout masks, whatever `scan_layers` and `remat` say."""
    config = dataclasses.replace(TINY, dropout=0.4, direction="left-to-right")
    batch = packed_batch(rows=2, length=8, vocab_size=30)
    params = body_params(config, batch)

    def value_and_gradient(config):
        def loss(params):
            rngs = {"dropout": jax.random.key(3)}
            encoded, _ = Bilstm(config).apply({"params": params}, batch, False, {}, rngs=rngs, method="encode")
            return (encoded.forward[-1] ** 2).sum()

        return quick_jit(jax.value_and_grad(loss))(params)

    expected = value_and_gradient(config)
    for change in ({"remat": "full"}, {"remat": "dots", "scan_layers": False}):
        found = value_and_gradient(dataclasses.replace(config, **change))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), found, expected)


@pytest.mark.parametrize("skip", [True, False])
def test_residual_adds_the_dropped_input_from_the_second_layer_on(skip):
    """With projections of zero an LSTM puts out 0, so a layer's output is its residual."""
    config = dataclasses.replace(TINY, dropout=0.25, skip_connections=skip, layers=3, width=40, direction="left-to-right")
    view = {"tokens": np.arange(24, dtype=np.int32).reshape(2, 12), "documents": np.ones((2, 12), np.int32)}
    params = body_params(config, view)
    params["forward"]["projection"][1:] = 0
    encoded, _ = encode(config, params, view, key=5)
    _, first, second, third = (np.asarray(x) for x in encoded.forward)
    if not skip:
        assert not second.any() and not third.any()
        return
    kept = second != 0
    assert kept.mean() == pytest.approx(0.75, abs=0.05)
    np.testing.assert_allclose(second[kept], first[kept] / 0.75, rtol=1e-6)
    assert len({tuple(row) for row in kept[0]}) > 1, "each position has a mask of its own"
    both = third != 0
    np.testing.assert_allclose(third[both], first[both] / 0.75**2, rtol=1e-6)
    params["forward"]["projection"][0] = 0
    first = np.asarray(encode(config, params, view, key=5)[0].forward[1])
    assert not first.any(), "the first layer has no residual"


def test_states_are_dropped_once_for_all_logits_and_candidates_are_the_softmaxs_entries():
    config = dataclasses.replace(TINY, dropout=0.5)
    batch = stream_batches(batches=1)[0]
    params = body_params(config, batch)

    def run(body):
        encoded, _ = body.encode(batch, False, {})
        among = jnp.array([3, 29])
        asked = [encoded.output("forward")] * 2
        return encoded, [body.predict_tokens(hidden, "forward", of) for hidden, of in zip(asked, (None, among))]

    encoded, (logits, some) = nn.apply(run, Bilstm(config))({"params": params}, rngs={"dropout": jax.random.key(1)})
    np.testing.assert_allclose(some, logits[..., np.array([3, 29])], rtol=1e-5, atol=1e-6)
    for side in ("forward", "backward", "both"):
        plain, dropped = getattr(encoded, side)[-1], encoded.output(side)
        kept = np.asarray(dropped != 0)
        np.testing.assert_allclose(dropped[kept], 2 * plain[kept], rtol=1e-6)
        assert 0.3 < kept.mean() < 0.7
    joined = jnp.concatenate([encoded.output("forward"), encoded.output("backward")], -1)
    np.testing.assert_array_equal(encoded.output("both"), joined)


@pytest.mark.parametrize(("size", "parameters"), [("original", 93_600_848), ("small", 13_593_296), ("medium", 28_027_728)])
def test_parameter_counts_are_the_published(size, parameters):
    """With 261 characters; the published small and medium counts, 13.6 and 28.0 million, have a 262nd, 16 parameters more."""
    values = {**FAMILIES["elmo"].sizes[size], "token_encoder": "characters"}
    config = dataclasses.replace(TINY, **values)
    view = {
        "characters": jax.ShapeDtypeStruct((1, 2, 50), jnp.int32),
        "documents": jax.ShapeDtypeStruct((1, 2), jnp.int32),
    }
    init = lambda view: Bilstm(config).init(jax.random.key(0), view, True, {}, method="encode")
    shapes = unbox(jax.eval_shape(init, view))["params"]
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == parameters
    if size == "original":
        for side in ("forward", "backward"):
            assert sum(leaf.size for leaf in jax.tree.leaves(shapes[side])) == 2 * 18_890_752


def test_initial_values(packed_batch):
    program = tiny_program("elmo", "ltr+rtl", Vocabulary(1000, 0, 1, 2, 3, 4), layers=2, width=64, hidden=96)
    params = initial(program, packed_batch())["body"]
    glorot = {
        ("token_embedding",): 1000 + 64,
        ("forward", "input_kernel"): 2 * 64 + 4 * 96,
        ("forward", "recurrent_kernel"): 2 * 64 + 4 * 96,
        ("backward", "projection"): 96 + 64,
    }
    for path, fans in glorot.items():
        value = params
        for key in path:
            value = value[key]
        bound = (6 / fans) ** 0.5
        assert np.abs(value).max() <= bound and np.std(value) == pytest.approx(bound / 3**0.5, rel=0.03), path
    assert float(params["output"]["kernel"].std()) == pytest.approx(64**-0.5, rel=0.02)
    assert not np.any(params["forward"]["bias"]), "the forget gate's 1 is added at run time"
    kernels = [params[side]["input_kernel"][n] for side in ("forward", "backward") for n in (0, 1)]
    assert all((a != b).any() for i, a in enumerate(kernels) for b in kernels[:i]), "each layer is drawn apart"
