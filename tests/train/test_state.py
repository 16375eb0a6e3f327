"""The keys of a step follow from seed and step, those of an evaluation from the batch's number; no two are the same."""

import contextlib
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertlab import objectives
from bertlab.train.build import build_pretraining
from bertlab.train.loop import Session
from bertlab.train.state import TrainState, build_eval_step, build_train_step
from tests.references import initial, program_with

BATCH = {"documents": np.ones((4, 3), np.int32)}


class Drawing:
    """A program whose metrics are what is drawn with the keys that it is given, and its square."""

    def views(self, batch, key, progress=1.0):
        return {"drawn": jnp.full(len(batch["documents"]), jax.random.uniform(key))}

    def metrics(self, params, part):
        return {"o/loss": (params, jnp.float32(1))}

    def metrics_carry_and_statistics(self, params, part, carry, key):
        dropout, view = jax.random.uniform(key), part["drawn"][0]
        sums = {"o/loss": dropout * params, "o/square": dropout**2, "o/view": view}
        return {name: (value, jnp.float32(1)) for name, value in sums.items()}, carry, {}

    def evaluate(self, params, views, carry):
        return {"o/view": (views["drawn"][0], jnp.float32(1))}, carry, {}


def metrics_at(step: int, seed: int = 5, micro_batches: int = 1, batch=BATCH):
    """The metrics of a step."""
    optimizer, params = optax.with_extra_args_support(optax.sgd(0.0)), jnp.float32(1)
    train_step = build_train_step(Drawing(), optimizer, {"o": (1.0, 1.0)}, micro_batches, 10)
    return train_step(TrainState(jnp.int32(step), params, optimizer.init(params), {}), batch, seed)[1]


def sums_at(*args, **options) -> dict[str, float]:
    """Sums over the micro-batches of a step."""
    metrics = metrics_at(*args, **options)
    return {name: float(metrics[name][0]) for name in ("o/loss", "o/square", "o/view")}


def test_each_micro_batch_has_its_own_dropout_and_its_share_of_one_view():
    one, four = sums_at(3), sums_at(3, micro_batches=4)
    assert four["o/view"] == pytest.approx(4 * one["o/view"])
    mean = four["o/loss"] / 4
    assert four["o/square"] / 4 - mean**2 > 1e-3, "the variance of what four micro-batches drew"


def test_a_step_counts_tokens_without_padding():
    documents = np.int32([[1, 1, 2], [1, 0, 0], [1, 1, 0], [0, 0, 0]])
    for micro_batches in (1, 2):
        metrics = metrics_at(0, micro_batches=micro_batches, batch={"documents": documents})
        assert metrics["tokens"] == 6
        assert [float(value) for value in metrics["padding"]] == [6, 12]


def test_an_evaluation_masks_as_at_the_end_of_training(packed_batch):
    program = program_with(objectives.find("mlm")(rate=0.1, final_rate=0.6), "bert")
    batch = packed_batch(rows=64, length=32)
    metrics, _, _ = build_eval_step(program)(initial(program, batch), batch, np.int32(0), {})
    _, asked = metrics["it/loss"]
    assert 0.5 < asked / np.sum(batch["documents"] > 0) < 0.7


def test_each_step_and_each_seed_draws_something_else_and_the_same_again():
    drawn = [sums_at(step, seed) for step, seed in itertools.product((0, 1, 2), (5, 6))]
    for name in ("o/loss", "o/view"):
        assert len({of[name] for of in drawn}) == len(drawn)
    assert drawn[0] == sums_at(0, 5)
    assert drawn[0]["o/loss"] != drawn[0]["o/view"], "dropout and views have keys of their own"


def test_each_evaluation_batch_is_corrupted_with_a_key_of_its_own_every_time(small_config, tmp_path):
    eval_step = build_eval_step(Drawing())
    drawn = [float(eval_step(None, BATCH, np.int32(index), {})[0]["o/view"][0]) for index in (0, 1, 2, 0)]
    assert len(set(drawn)) == 3 and drawn[3] == drawn[0]

    experiment, numbers = build_pretraining(small_config("experiments/pretrain/bert.py:objectives=mlm")), []

    def recording(params, batch, index, carry):
        numbers.append(int(index))
        return {"mlm/loss": (np.float32(1), np.float32(1))}, carry, {}

    with contextlib.closing(Session(experiment, tmp_path)) as session:
        for _ in range(2):
            session.evaluate("valid", recording)
    batches = len(experiment.evaluations["valid"])
    assert batches > 1 and numbers == [*range(batches)] * 2
