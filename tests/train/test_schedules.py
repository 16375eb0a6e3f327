"""Schedules: the papers' equations."""

import math

import numpy as np
import pytest

from bertlab.config.defaults import base_config
from bertlab.errors import UserError
from bertlab.train.schedules import layer_plan, learning_rate, warmup_steps


def settings(**changes):
    optimizer = base_config().optimizer
    optimizer.update({"warmup_steps": 0, "learning_rate": 0.01, **changes})
    return optimizer


def test_rates_of_every_decay_by_hand():
    """Warm-up of 10 of 100 steps; the rates at steps 5, 10, 55, 100 in hundredths."""
    half = 0.5 * (1 + np.cos(np.pi * np.array([0.1, 0.55])))
    expected = {
        "linear": [0.5, 0.9, 0.45, 0],
        "cosine": [0.5, *half, 0],
        "constant": [0.5, 1, 1, 0],
        "warmup_linear": [0.5 * 0.95, 0.9, 0.45, 0],
        "reverse_cosine": [0.5, 1, 0.5, 0],
    }
    for decay, rates in expected.items():
        cooldown = 20 if decay == "constant" else 0
        optimizer = settings(decay=decay, warmup_steps=10, cooldown_steps=cooldown)
        rate = learning_rate(optimizer, 100)(np.array([5, 10, 55, 100]))
        np.testing.assert_allclose(100 * rate, rates, rtol=1e-5, atol=1e-6, err_msg=decay)
    late = settings(decay="linear", warmup_steps=10, decay_from_start=False)
    np.testing.assert_allclose(learning_rate(late, 100)(np.array([10, 55])), [0.01, 0.005])


def test_warm_up_is_a_tenth_of_the_steps_or_of_a_stage():
    assert warmup_steps(settings(warmup_steps=None), 1000) == 100
    staged = settings(warmup_steps=None, thaw_restarts=True, thaw_steps=40)
    assert warmup_steps(staged, 1000) == 4


def test_a_head_on_frozen_states_is_the_head():
    params = {"heads_task": {"kernel": np.zeros((2, 2), np.float32)}}
    plan = layer_plan(settings(thaw="head"), 10, params)
    assert plan.rate_factors(0)["heads_task"]["kernel"] == 1


def test_berts_rate_counts_from_step_0_and_gpts_from_the_end_of_warm_up():
    """google-research/bert optimization.py; Radford et al. 2018, section 4.1."""
    bert = learning_rate(settings(learning_rate=1e-4, warmup_steps=10_000), 1_000_000)
    expected = [0, 9.999e-5, 9.9e-5, 5e-5, 0]
    actual = bert(np.array([0, 9_999, 10_000, 500_000, 1_000_000]))
    np.testing.assert_allclose(actual, expected, rtol=1e-5)
    gpt = learning_rate(
        settings(decay="cosine", decay_from_start=False, warmup_steps=2000), 102_000
    )
    actual = gpt(np.array([1000, 2000, 52_000, 102_000]))
    np.testing.assert_allclose(actual, [0.005, 0.01, 0.005, 0], rtol=1e-5, atol=1e-9)


def test_ulmfits_triangle_is_the_papers():
    """Howard and Ruder 2018, equation 3, whose p would be negative in the last steps: there the
    lowest rate stays."""
    steps, fraction, ratio = 1009, 0.1, 8.0
    optimizer = settings(decay="slanted_triangular", cut_fraction=fraction, ratio=ratio)
    cut = math.floor(steps * fraction)
    t = np.arange(steps)
    p = np.where(t < cut, t / cut, 1 - (t - cut) / (cut * (1 / fraction - 1)))
    expected = 0.01 * (1 + np.maximum(p, 0) * (ratio - 1)) / ratio
    np.testing.assert_allclose(learning_rate(optimizer, steps)(t), expected, rtol=1e-5)
    # 0.29 of 100 steps is 28.999999999999996 in binary.
    rate = learning_rate(settings(decay="slanted_triangular", cut_fraction=0.29), 100)
    assert np.argmax(rate(np.arange(100))) == 29


@pytest.mark.parametrize(
    "changes, steps, message",
    [
        ({"warmup_steps": 10}, 10, "warmup_steps=10 leaves no time to decay in 10 steps"),
        ({"decay": "constant", "cooldown_steps": 60, "warmup_steps": 50}, 100, "cooldown_steps=60"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, steps, message):
    with pytest.raises(UserError, match=message):
        learning_rate(settings(**changes), steps)
