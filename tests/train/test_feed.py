"""The device is fed ahead of the step, and the loop fetches only at log steps."""

import contextlib
import time

import jax

from bertlab.data.batches import prefetch
from bertlab.train import loop
from bertlab.train.processes import StopSignal
from tests.train.runs import make


class State:
    step = 3


def test_the_next_batches_are_on_the_device_before_a_step_ends():
    made, ahead = [], []

    def put(batch):
        made.append(batch)
        return batch

    def train_step(state, batch):
        time.sleep(0.05)  # a batch takes far less
        ahead.append(len([step for step in made if step > batch]))
        return state, {}

    with (
        contextlib.closing(prefetch(lambda step: step, 3, put)) as batches,
        StopSignal() as stop,
    ):
        loop.fit(State, train_step, batches, 13, [], stop)
    assert ahead == [2] * 10 and made[:10] == list(range(3, 13))


def test_sums_are_fetched_at_log_steps_alone(tmp_path, monkeypatch):
    fetched, steps = [], []
    device_get, fit = jax.device_get, loop.fit

    def counted_fit(state, train_step, *rest):
        def counted_step(state, batch):
            steps.append(len(fetched))
            return train_step(state, batch)

        return fit(state, counted_step, *rest)

    def counted_get(tree):
        fetched.append(tree)
        return device_get(tree)

    experiment = make("bert", tmp_path, train__log_every=6, train__eval_every=0)
    experiment.config.train.checkpoint_every = 100
    monkeypatch.setattr(loop, "fit", counted_fit)
    monkeypatch.setattr(jax, "device_get", counted_get)
    loop.run(experiment, tmp_path / "run")
    # After the step that compiles, and after steps 6 and 12.
    assert [count - steps[0] for count in steps] == [0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]
