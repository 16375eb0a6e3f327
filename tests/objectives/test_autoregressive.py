"""LTR and RTL equal NumPy, and so does the sampled softmax, which is TensorFlow's as bilm-tf calls
it: `sampled_softmax_loss` on a `log_uniform_candidate_sampler`."""

import dataclasses

import jax
import numpy as np
import pytest
from scipy import optimize, stats

from bertlab.objectives.autoregressive import LogUniform
from tests.references import (
    assert_metrics,
    hidden_states,
    metrics_of,
    output_logits,
    packed_batch,
    quick_jit,
    random_params,
    summed,
    sums_of,
    tiny_program,
    views_of,
)

CASES = {
    "gpt rtl": ("gpt", {"direction": "right-to-left"}, "rtl"),
    "bert ltr": ("bert", {"direction": "left-to-right"}, "ltr"),
    "elmo bilm": ("elmo", {}, "ltr+rtl"),
}
V, NEGATIVES = 50, 7
AWD_DROPOUTS = ("dropout", "embedding_dropout", "input_dropout", "hidden_dropout", "weight_dropout")
# Without dropout: the negatives are all that is random.
SAMPLED = {
    "elmo": ("elmo", "ltr+rtl", {"dropout": 0.0}),
    "awd_lstm": ("awd_lstm", "ltr", dict.fromkeys(AWD_DROPOUTS, 0.0)),
}
AHEAD = {"ltr": 1, "rtl": -1}


def asked(batch, name: str) -> list[tuple[int, int, int]]:
    """(row, position, token to predict) wherever the neighbour is in the same document."""
    documents, ahead = batch["documents"], AHEAD[name]
    rows, length = documents.shape
    return [
        (row, t, batch["tokens"][row, t + ahead])
        for row, t in np.ndindex(rows, length)
        if 0 <= t + ahead < length and documents[row, t] == documents[row, t + ahead] > 0
    ]


def states(encoded, name: str):
    """The last layer of the objective's side."""
    return (encoded.forward if name == "ltr" else encoded.backward)[-1]


@pytest.mark.parametrize("case", CASES)
def test_loss_and_accuracy_equal_numpy(case):
    family, model, names = CASES[case]
    program, batch = tiny_program(family, names, **model), packed_batch(rows=3)
    batch["documents"][0] = [1, 1, 2, 2, 2, 3, 4, 4, 0, 0, 0, 0]  # one is a single token
    params = random_params(program, batch)
    metrics = metrics_of(program, params, views_of(program, batch))
    encoded = hidden_states(program, params, batch)
    for name in names.split("+"):
        logits = output_logits(params["body"], states(encoded, name))
        assert_metrics(metrics, name, sums_of(logits, asked(batch, name)))


def sampling_program(case: str):
    """A program with the sampled softmax, and the same one without."""
    family, names, model = SAMPLED[case]
    full = tiny_program(family, names, **model)
    sampled = {
        name: dataclasses.replace(objective, negatives=NEGATIVES)
        for name, objective in full.objectives.items()
    }
    return dataclasses.replace(full, objectives=sampled), full


def expected_counts(number: int) -> np.ndarray:
    """1 − (1 − p)^t for each id, p and t as in TensorFlow's sampler with range_max = V."""
    k = np.arange(V)
    p = (np.log(k + 2) - np.log(k + 1)) / np.log(V + 1)
    tries = optimize.brentq(lambda t: (1 - (1 - p) ** t).sum() - number, 0, 1e9, xtol=1e-12)
    return 1 - (1 - p) ** tries


@pytest.mark.parametrize("case", SAMPLED)
def test_the_sampled_softmax_equals_numpy_in_training_and_the_full_one_in_evaluation(
    case, monkeypatch
):
    drawn = np.array([0, 1, 2, 7, 9, 23, 41], np.int32)
    draw = LogUniform.__call__
    monkeypatch.setattr(LogUniform, "__call__", lambda module: (drawn, draw(module)[1]))
    (program, full), batch = sampling_program(case), packed_batch()
    batch["tokens"] %= 8  # so that many drawn ids are the right one
    params, views = random_params(program, batch), views_of(program, batch)

    def loss(params):
        metrics = program.metrics(params, views, key=jax.random.key(5))[0]
        return metrics["ltr/loss"][0], metrics

    gradient, metrics = quick_jit(jax.grad(loss, has_aux=True))(params)
    encoded, output = hidden_states(program, params, batch), params["body"]["output"]
    table = np.float64(output.get("kernel", params["body"]["token_embedding"]))
    log_count, hits = np.log(expected_counts(NEGATIVES)), 0
    for name in program.objectives:
        expected = np.zeros(3)
        for row, t, target in asked(batch, name):
            candidates = np.array([target, *(i for i in drawn if i != target)])
            hits += len(candidates) == len(drawn)
            logits = table[candidates] @ states(encoded, name)[row, t] + output["bias"][candidates]
            expected += summed(logits - log_count[candidates], 0)
        assert_metrics(metrics, name, expected)
    assert hits > 5, "else the test could not see them left out"
    touched = {*drawn.tolist(), *(int(target) for *_, target in asked(batch, "ltr"))}
    assert set(np.flatnonzero(gradient["body"]["output"]["bias"])) == touched

    evaluated, expected = (metrics_of(p, params, views) for p in (program, full))
    jax.tree.map(np.testing.assert_array_equal, evaluated, expected)
    assert not np.allclose(metrics["ltr/loss"], expected["ltr/loss"], rtol=1e-3)


@pytest.mark.parametrize("number", [1, 2, 7, 49])
def test_expected_counts_are_tensorflows(number):
    drawn, expected = LogUniform(V, number).apply({}, rngs={"dropout": jax.random.key(0)})
    np.testing.assert_allclose(expected, expected_counts(number), rtol=1e-6)
    assert drawn.shape == (number,) and len({*drawn.tolist()} & {*range(V)}) == number


def numbers_of_draws(number: int, draws: int) -> np.ndarray:
    """How often each id is in so many samples of `number` ids."""

    def draw(key):
        return LogUniform(V, number).apply({}, rngs={"dropout": key})[0]

    ids = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), draws))
    return np.bincount(np.asarray(ids).ravel(), minlength=V)


def test_draws_are_log_uniform_and_without_replacement():
    """Of two, the second is another id than the first: p_i + Σ_{j≠i} p_j · p_i / (1 − p_j)."""
    k, draws = np.arange(V), 50_000
    p = (np.log(k + 2) - np.log(k + 1)) / np.log(V + 1)
    # With Zipf's p = 1 / (k + 1) the statistic, of which 49 is expected, is about 900.
    assert stats.chisquare(numbers_of_draws(1, draws), draws * p).pvalue > 1e-3
    either = p + p * ((p / (1 - p)).sum() - p / (1 - p))
    deviation = np.sqrt(draws * either * (1 - either))
    # With replacement, id 0 would be off by 12 deviations.
    assert np.abs((numbers_of_draws(2, draws) - draws * either) / deviation).max() < 4.5


def test_each_key_and_each_direction_draws_its_own(monkeypatch):
    program, _ = sampling_program("elmo")
    batch, drawn, draw = packed_batch(), [], LogUniform.__call__

    def recorded(module):
        ids, expected = draw(module)
        jax.debug.callback(lambda ids: drawn.append(tuple(ids.tolist())), ids)
        return ids, expected

    monkeypatch.setattr(LogUniform, "__call__", recorded)
    params, views = random_params(program, batch), views_of(program, batch)
    metrics = quick_jit(lambda params, key: program.metrics(params, views, key=key)[0])
    for seed in (0, 1, 0):
        jax.block_until_ready(metrics(params, jax.random.key(seed)))
    jax.effects_barrier()
    assert len(drawn) == 6 and len({*drawn[:4]}) == 4 and {*drawn[4:]} == {*drawn[:2]}
