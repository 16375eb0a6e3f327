"""The sampled softmax is TensorFlow's, as bilm-tf calls it (`sampled_softmax_loss` over `log_uniform_candidate_sampler`):
each logit less the log of its token's expected count in the sample, candidates that are the right token left out."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
from scipy import optimize, stats

from bertlab.objectives import autoregressive
from bertlab.objectives.autoregressive import draw_log_uniform
from bertlab.train.state import TrainState, build_eval_step, build_train_step
from tests.references import assert_metrics, hidden_states, metrics_of, quick_jit, random_params, summed, tiny_program, views_of

V, NEGATIVES = 50, 7
AWD_DROPOUTS = {f"{name}dropout": 0.0 for name in ("", "embedding_", "input_", "hidden_", "weight_")}
CASES = {
    "elmo": ("elmo", "ltr+rtl", {"dropout": 0.0}),
    "gpt": ("gpt", "ltr", {"dropout": 0.0}),
    "awd_lstm": ("awd_lstm", "ltr", AWD_DROPOUTS),
}


def sampling_program(case: str, negatives: int = NEGATIVES):
    """Without dropout: the negatives are all that is random."""
    family, names, model = CASES[case]
    program = tiny_program(family, names, **model)
    sampled = {name: dataclasses.replace(o, negatives=negatives) for name, o in program.objectives.items()}
    return dataclasses.replace(program, objectives=sampled)


def log_uniform() -> np.ndarray:
    """p(k) of TensorFlow's log_uniform_candidate_sampler with range_max = V."""
    k = np.arange(V)
    return (np.log(k + 2) - np.log(k + 1)) / np.log(V + 1)


def expected_counts(number: int) -> np.ndarray:
    """1 − (1 − p)^t, the sampler's expected count where it drew t times until it had `number` different ids."""
    p = log_uniform()
    tries = optimize.brentq(lambda t: (1 - (1 - p) ** t).sum() - number, number - 1e-9, 1e9, xtol=1e-12, rtol=1e-14)
    return 1 - (1 - p) ** tries


def targets_of(batch, ahead: int) -> list[tuple[int, int, int]]:
    """(row, position, token to predict) wherever the neighbour is in the same document."""
    documents = batch["documents"]
    rows, length = documents.shape
    return [
        (b, t, int(batch["tokens"][b, t + ahead]))
        for b in range(rows)
        for t in range(length)
        if 0 <= t + ahead < length and documents[b, t] > 0 and documents[b, t + ahead] == documents[b, t]
    ]


def training_metrics(program, params, batch, seed: int = 5):
    key = jax.random.key(seed)
    return quick_jit(lambda params, views: program.metrics(params, views, key))(params, views_of(program, batch))


@pytest.fixture
def drawn_alike(monkeypatch):
    """The ids that every draw gives, whatever its key; expected counts stay the code's own."""
    ids = np.array([0, 1, 2, 7, 9, 23, 41], np.int32)
    draw = autoregressive.draw_log_uniform
    monkeypatch.setattr(autoregressive, "draw_log_uniform", lambda key, size, number: (ids, draw(key, size, number)[1]))
    return ids


@pytest.mark.parametrize("case", CASES)
def test_loss_and_accuracy_equal_numpy_given_the_negatives(case, packed_batch, drawn_alike):
    program, batch = sampling_program(case), packed_batch(rows=4, length=12)
    batch["tokens"] = np.where(batch["documents"] > 0, batch["tokens"] % 8, 0).astype(np.int32)  # many accidental hits
    params = random_params(program, batch)
    metrics, states = training_metrics(program, params, batch), hidden_states(program, params, batch)
    output = params["body"].get("output", {})
    table = np.float64(output.get("kernel", params["body"]["token_embedding"]))
    bias = np.float64(output.get("bias", np.zeros(V)))
    log_count, hits = np.log(expected_counts(NEGATIVES)), 0
    for name in program.objectives:
        side, ahead = (states.forward, 1) if name == "ltr" else (states.backward, -1)
        expected = np.zeros(3)
        for row, t, target in targets_of(batch, ahead):
            candidates = np.array([target, *(i for i in drawn_alike if i != target)])
            hits += len(candidates) == len(drawn_alike)
            expected += summed(table[candidates] @ side[-1][row, t] + bias[candidates] - log_count[candidates], 0)
        assert_metrics(metrics, name, expected)
    assert hits > 5, "else the test could not see accidental hits"


def test_evaluation_is_over_the_whole_vocabulary(packed_batch):
    program, full, batch = sampling_program("gpt"), sampling_program("gpt", negatives=0), packed_batch()
    params = random_params(program, batch)
    expected = metrics_of(full, params, views_of(full, batch))
    evaluated, _, _ = quick_jit(build_eval_step(program))(params, batch, np.int32(0), {})
    jax.tree.map(np.testing.assert_array_equal, evaluated, expected)
    sampled = training_metrics(program, params, batch)["ltr/loss"]
    assert not np.allclose(sampled, expected["ltr/loss"], rtol=1e-5), "in training the loss is another one"


def test_gradient_touches_the_rows_of_candidates_and_targets_alone(packed_batch, drawn_alike):
    program, batch = sampling_program("elmo"), packed_batch(rows=2, length=8)
    params, views = random_params(program, batch), views_of(program, batch)
    key = jax.random.key(0)
    loss = lambda params, share: sum(
        part * program.metrics(params, views, key)[f"{name}/loss"][0] for name, part in (("ltr", share), ("rtl", 1 - share))
    )
    gradient = quick_jit(jax.grad(loss))
    for ahead, share in ((1, 1.0), (-1, 0.0)):
        output = gradient(params, share)["body"]["output"]
        touched = sorted({*drawn_alike.tolist(), *(target for *_, target in targets_of(batch, ahead))})
        assert len(touched) < V - 10
        assert np.flatnonzero(np.abs(output["kernel"]).max(axis=1)).tolist() == touched
        assert np.flatnonzero(output["bias"]).tolist() == touched


@pytest.mark.parametrize("number", [1, 2, 7, 49])
def test_expected_counts_are_tensorflows(number):
    drawn, expected = draw_log_uniform(jax.random.key(0), V, number)
    # Float32 keeps 7 digits.
    np.testing.assert_allclose(expected, expected_counts(number), rtol=1e-6)
    assert drawn.shape == (number,) and len(set(drawn.tolist())) == number
    assert 0 <= drawn.min() and drawn.max() < V


def sampled_sets(number: int, draws: int) -> np.ndarray:
    """How often each id is in a sample, over this many samples."""
    keys = jax.random.split(jax.random.key(0), draws)
    ids = jax.jit(jax.vmap(lambda key: draw_log_uniform(key, V, number)[0]))(keys)
    return np.bincount(np.asarray(ids).ravel(), minlength=V)


def test_draws_are_log_uniform_and_without_replacement():
    """Samples of one follow p; of two, p_i + Σ_{j≠i} p_j · p_i / (1 − p_j): the second of another id than the first."""
    p, draws = log_uniform(), 50_000
    ones, twos = sampled_sets(1, draws), sampled_sets(2, draws)
    # Right code fails with one seed in a thousand, and the seed is fixed. With Zipf's p = 1 / (k + 1) the statistic, of
    # which 49 is expected, is about 900.
    assert stats.chisquare(ones, draws * p).pvalue > 1e-3
    second = p * ((p / (1 - p)).sum() - p / (1 - p))
    deviations = (twos - draws * (p + second)) / np.sqrt(draws * (p + second) * (1 - p - second))
    # Of 50 standard normal numbers one is beyond 4.5 in one seed of 3000; with replacement id 0 would be off by 12.
    assert np.abs(deviations).max() < 4.5


def test_negatives_depend_on_seed_and_step(packed_batch):
    program, batch = sampling_program("gpt"), packed_batch()
    optimizer, params = optax.with_extra_args_support(optax.sgd(0.0)), random_params(program, batch)

    train_step = build_train_step(program, optimizer, {"ltr": (1.0, 1.0)}, micro_batches=1, steps=2)
    begin = lambda step: TrainState(step, params, optimizer.init(params), {})
    loss = quick_jit(lambda seed, step: train_step(begin(step), batch, seed)[1]["ltr/loss"][0])
    values = {(seed, step): float(loss(seed, step)) for seed in (0, 1) for step in (0, 1)}
    assert float(loss(0, 0)) == values[0, 0]
    assert len(set(values.values())) == 4, "another step or another seed draws others"


def test_each_direction_draws_its_own(packed_batch, monkeypatch):
    program, batch, keys, draw = sampling_program("elmo"), packed_batch(), [], autoregressive.draw_log_uniform

    def recorded(key, size, number):
        keys.append(key)
        return draw(key, size, number)

    def drawn_from(params):
        program.metrics(params, program.views(batch, jax.random.key(0)), jax.random.key(0))
        return keys

    monkeypatch.setattr(autoregressive, "draw_log_uniform", recorded)
    first, second = quick_jit(drawn_from)(random_params(program, batch))
    assert draw(first, V, NEGATIVES)[0].tolist() != draw(second, V, NEGATIVES)[0].tolist()
