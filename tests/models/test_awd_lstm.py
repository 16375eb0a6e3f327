"""AWD-LSTM equals a NumPy reference without dropout, and each of its dropouts takes out what the paper says."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertlab.models.awd_lstm import AwdLstm, AwdLstmConfig
from bertlab.models.base import OutputConfig, unbox
from tests.recurrent_references import awd_layers, stream_batches
from tests.references import quick_jit

TINY = AwdLstmConfig(
    layers=3,
    width=5,
    hidden=7,
    vocab_size=30,
    direction="left-to-right",
    embedding_dropout=0.0,
    input_dropout=0.0,
    hidden_dropout=0.0,
    dropout=0.0,
    weight_dropout=0.0,
    output=OutputConfig(transform=False, tied=True, bias=True),
    dtype=jnp.float32,
)


def random_params(config, seed=0):
    """Random parameters of the body and its output layer."""
    row = np.ones((1, 2), np.int32)

    def use(body):
        encoded, _ = body.encode({"tokens": row, "documents": row}, True, {})
        body.predict_tokens(encoded.output(config.side), config.side)

    shapes = unbox(jax.eval_shape(lambda: AwdLstm(config).init(jax.random.key(0), method=use)))["params"]
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda s: rng.normal(scale=0.5, size=s.shape).astype(np.float32), shapes)


@functools.cache
def encoder(config, deterministic):
    apply = lambda p, v, c, key: AwdLstm(config).apply(
        {"params": p}, v, deterministic, c, rngs={"dropout": key}, method="encode"
    )
    return quick_jit(apply)


def encode(config, params, view, carry=None, key=None):
    """Hidden states and the carry."""
    return encoder(config, key is None)(params, view, carry or {}, jax.random.key(key or 0))


def one_document(tokens):
    return {"tokens": np.asarray(tokens, np.int32), "documents": np.ones(np.shape(tokens), np.int32)}


@pytest.mark.parametrize("direction", ["left-to-right", "right-to-left"])
def test_forward_pass_equals_numpy(direction, packed_batch):
    config, batch = dataclasses.replace(TINY, direction=direction), packed_batch(rows=2, length=12, vocab_size=30)
    params = random_params(config)
    encoded, carry = encode(config, params, batch)
    found = getattr(encoded, config.side)
    assert carry == {} and encoded.both is None and encoded.dropped is not None
    assert [layer.shape[-1] for layer in found] == [5, 7, 7, 5], "the last layer is as wide as the embeddings"
    for row in range(2):
        tokens, documents = batch["tokens"][row], batch["documents"][row]
        expected, _ = awd_layers(params, tokens, documents, config.side == "backward")
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours[row], theirs, rtol=1e-5, atol=1e-5)
    logits = AwdLstm(config).apply({"params": params}, encoded.output(config.side), config.side, method="predict_tokens")
    expected = np.float64(found[-1]) @ np.float64(params["token_embedding"]).T + params["output"]["bias"]
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("direction", ["left-to-right", "right-to-left"])
def test_states_are_carried_from_batch_to_batch(direction):
    config = dataclasses.replace(TINY, direction=direction)
    params, batches, ends = random_params(config), stream_batches(), {}
    carry = config.initial_carry(3, (config.side,))
    zeros = [{name: np.zeros(cell) for name in ("cell", "state")} for cell in config.cells]
    for batch in batches:
        encoded, carry = encode(config, params, batch, carry)
        for row in range(3):
            begins = ends[row] if row in ends and batch["continues"][row] else zeros
            tokens, documents = batch["tokens"][row], batch["documents"][row]
            layers, ends[row] = awd_layers(params, tokens, documents, config.side == "backward", begins)
            for ours, theirs in zip(getattr(encoded, config.side), layers, strict=True):
                np.testing.assert_allclose(ours[row][documents > 0], theirs[documents > 0], rtol=1e-5, atol=1e-5)
            for n, end in enumerate(ends[row]):
                for name, value in end.items():
                    np.testing.assert_allclose(carry[config.side][f"layer_{n}"][name][row], value, rtol=1e-5, atol=1e-5)


def test_embedding_dropout_takes_out_whole_words():
    # A rate of few bits, which dropout does not round.
    config = dataclasses.replace(TINY, embedding_dropout=0.375, vocab_size=600, layers=1)
    params = random_params(config)
    view = one_document(np.stack([np.arange(600), np.arange(600)[::-1]]))
    embedded = np.asarray(encode(config, params, view, key=0)[0].forward[0])
    np.testing.assert_array_equal(embedded[0], embedded[1, ::-1])  # a word has the same fate at all of its places
    kept = embedded[0].any(axis=1)
    assert kept.mean() == pytest.approx(0.625, abs=0.06)
    np.testing.assert_allclose(embedded[0][kept], params["token_embedding"][kept] / 0.625, rtol=1e-6)
    again = np.asarray(encode(config, params, view, key=1)[0].forward[0])
    assert (again.any(axis=2) != embedded.any(axis=2)).any()


def passes_through(params, layers, width):
    """Makes each LSTM's output tanh(tanh(input)) at its position: gates 1, 0 and 1, and the candidate its input."""
    for n in range(layers):
        p = params[f"layer_{n}"]
        for name in p:
            p[name][:] = 0
        p["input_bias"][[0, 1, 3]] = np.array([100, -100, 100], np.float32)[:, None]
        p["input_kernel"][:, 2] = np.eye(width)
    return params


@pytest.mark.parametrize("place", ["input_dropout", "hidden_dropout", "dropout"])
def test_locked_dropout_is_one_mask_for_all_positions_of_a_row(place):
    config = dataclasses.replace(TINY, width=64, hidden=64, layers=2, **{place: 0.25})
    params = passes_through(random_params(config), 2, 64)
    view = one_document(np.random.default_rng(0).integers(0, 30, (3, 6)))
    plain, dropped = encode(config, params, view)[0], encode(config, params, view, key=4)[0]
    inverse = lambda x: np.arctanh(np.arctanh(np.float64(x)))
    before, after = {
        "input_dropout": lambda: (plain.forward[0], dropped.forward[0]),
        "hidden_dropout": lambda: (dropped.forward[1], inverse(dropped.forward[2])),
        "dropout": lambda: (dropped.forward[2], dropped.output("forward")),
    }[place]()
    mask = np.asarray(after) / np.asarray(before)
    np.testing.assert_allclose(mask, np.where(mask > 0.5, 1 / 0.75, 0), rtol=1e-3, atol=1e-4)
    assert (mask > 0.5).mean() == pytest.approx(0.75, abs=0.1)
    np.testing.assert_allclose(mask, np.broadcast_to(mask[:, :1], mask.shape), rtol=1e-3, atol=1e-4)
    assert (np.abs(mask[0] - mask[1]) > 0.5).any(), "rows have masks of their own"
    # What objectives regularise and features are read from is before the dropout that follows it.
    raw = {"input_dropout": 0, "hidden_dropout": 2, "dropout": 3}[place]
    for layer in range(raw):
        np.testing.assert_array_equal(plain.forward[layer], dropped.forward[layer])
    np.testing.assert_array_equal(plain.output("forward"), plain.forward[-1])


def test_weight_dropout_is_one_mask_of_the_recurrent_kernel():
    """Solved for from all rows and positions, the recurrent kernel has entries that are 0 or twice what they were."""
    config = dataclasses.replace(TINY, width=4, hidden=4, layers=1, weight_dropout=0.5)
    params = passes_through(random_params(config), 1, 4)
    kernel = np.random.default_rng(2).uniform(0.1, 0.4, (4, 4)).astype(np.float32)
    params["layer_0"]["recurrent_kernel"][:, 2] = kernel
    view = one_document(np.random.default_rng(0).integers(0, 30, (4, 9)))
    encoded, plain = encode(config, params, view, key=6)[0], encode(config, params, view)[0]
    x, state = np.float64(encoded.forward[0]), np.float64(encoded.forward[1])
    np.testing.assert_array_equal(encoded.forward[0], plain.forward[0])
    np.testing.assert_array_equal(encoded.forward[1][:, 0], plain.forward[1][:, 0])  # nothing recurs yet
    added = np.arctanh(np.arctanh(state))[:, 1:] - x[:, 1:]
    solved, residuals, rank, _ = np.linalg.lstsq(state[:, :-1].reshape(-1, 4), added.reshape(-1, 4), rcond=None)
    assert rank == 4 and np.abs(residuals).max() < 1e-6, "one kernel for all rows and positions"
    ratio = solved / kernel
    np.testing.assert_allclose(ratio, np.where(ratio > 1, 2, 0), atol=5e-3)
    kept = ratio > 1
    assert (kept != kept[:1]).any() and (kept != kept[:, :1]).any(), "each entry apart"


def test_recomputed_layers_are_the_same():
    """Values and gradients with dropout."""
    rates = dict(embedding_dropout=0.2, input_dropout=0.3, hidden_dropout=0.3, weight_dropout=0.5, dropout=0.4)
    config = dataclasses.replace(TINY, layers=2, **rates)
    params, view = random_params(config), one_document(np.arange(16).reshape(2, 8))

    def value_and_gradient(config):
        def loss(params):
            rngs = {"dropout": jax.random.key(3)}
            return (
                AwdLstm(config).apply({"params": params}, view, False, {}, rngs=rngs, method="encode")[0].output("forward") ** 2
            ).sum()

        return quick_jit(jax.value_and_grad(loss))(params)

    found, expected = value_and_gradient(dataclasses.replace(config, remat="full")), value_and_gradient(config)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5), found, expected)


@pytest.mark.parametrize(("vocab_size", "parameters"), [(10_000, 24_221_600), (33_278, 33_556_078)])
def test_parameter_counts_are_the_published(vocab_size, parameters):
    """Penn Treebank's 24 million and WikiText-2's 33 million."""
    config = dataclasses.replace(TINY, width=400, hidden=1150, vocab_size=vocab_size)
    row = jax.ShapeDtypeStruct((1, 2), jnp.int32)

    def use(body, view):
        encoded, _ = body.encode(view, True, {})
        body.predict_tokens(encoded.output("forward"), "forward")

    init = lambda view: AwdLstm(config).init(jax.random.key(0), view, method=use)
    shapes = unbox(jax.eval_shape(init, {"tokens": row, "documents": row}))["params"]
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == parameters


def test_initial_values():
    """Embeddings U(±0.1); an LSTM's weights and both biases U(±1/√F) with its own width F."""
    config = dataclasses.replace(TINY, width=64, hidden=100, layers=2, vocab_size=300)
    init = quick_jit(lambda key, view: AwdLstm(config).init(key, view, True, {}, method="encode"))
    params = jax.tree.map(np.asarray, unbox(init(jax.random.key(0), one_document([[1, 2]])))["params"])
    bounds = {"token_embedding": 0.1, "layer_0": 0.1, "layer_1": 1 / 8}
    for name, bound in bounds.items():
        for value in jax.tree.leaves(params[name]):
            assert np.abs(value).max() <= bound and value.std() == pytest.approx(bound / 3**0.5, rel=0.06), name
