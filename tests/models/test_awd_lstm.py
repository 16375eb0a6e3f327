"""Each of AWD-LSTM's dropouts takes out what the paper says, and its initial values are the published ones."""

import dataclasses

import jax
import numpy as np
import pytest

from bertlab.models.awd_lstm import AwdLstm
from bertlab.models.base import unbox
from tests.recurrent_references import AWD_LSTM, body_params, encode, one_document
from tests.references import quick_jit


def test_embedding_dropout_takes_out_whole_words():
    # A rate of few bits, which dropout does not round.
    config = dataclasses.replace(AWD_LSTM, embedding_dropout=0.375, vocab_size=600, layers=1)
    params = body_params(config)
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
    config = dataclasses.replace(AWD_LSTM, width=64, hidden=64, layers=2, **{place: 0.25})
    params = passes_through(body_params(config), 2, 64)
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
    config = dataclasses.replace(AWD_LSTM, width=4, hidden=4, layers=1, weight_dropout=0.5)
    params = passes_through(body_params(config), 1, 4)
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


def test_initial_values():
    """Embeddings U(±0.1); an LSTM's weights and both biases U(±1/√F) with its own width F."""
    config = dataclasses.replace(AWD_LSTM, width=64, hidden=100, layers=2, vocab_size=300)
    init = quick_jit(lambda key, view: AwdLstm(config).init(key, view, True, {}, method="encode"))
    params = jax.tree.map(np.asarray, unbox(init(jax.random.key(0), one_document([[1, 2]])))["params"])
    bounds = {"token_embedding": 0.1, "layer_0": 0.1, "layer_1": 1 / 8}
    for name, bound in bounds.items():
        for value in jax.tree.leaves(params[name]):
            assert np.abs(value).max() <= bound and value.std() == pytest.approx(bound / 3**0.5, rel=0.06), name
