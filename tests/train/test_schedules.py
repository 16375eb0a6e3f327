"""The schedules give the values that their sources do."""

import math

import numpy as np
import pytest

from bertlab.config import base_config
from bertlab.errors import UserError
from bertlab.train.schedules import learning_rate, warmup_steps


def settings(**changes):
    optimizer = base_config().optimizer
    optimizer.update({"warmup_steps": 0, "learning_rate": 0.01, **changes})
    return optimizer


HALF = 0.5**1.5  # half of the cosine of 45 degrees
# Changes of the settings, steps of the run, and the rate by step.
VALUES = {
    "BERT": (
        dict(learning_rate=1e-4, warmup_steps=10_000),
        1_000_000,
        {0: 0.0, 5_000: 5e-5, 9_999: 9.999e-5, 10_000: 9.9e-5, 500_000: 5e-5, 1_000_000: 0.0, 1_500_000: 0.0},
    ),
    "GPT's pretraining": (
        dict(learning_rate=2.5e-4, warmup_steps=2000, decay="cosine", decay_from_start=False),
        102_000,
        {0: 0.0, 1000: 1.25e-4, 2000: 2.5e-4, 27_000: 2.5e-4 * (0.5 + HALF), 52_000: 1.25e-4, 102_000: 0.0},
    ),
    "constant with a cooldown": (
        dict(learning_rate=5e-4, warmup_steps=2000, decay="constant", cooldown_steps=2000),
        42_000,
        {0: 0.0, 1000: 2.5e-4, 2000: 5e-4, 40_000: 5e-4, 41_000: 2.5e-4, 41_999: 2.5e-7, 42_000: 0.0, 43_000: 0.0},
    ),
    # openai/finetune-transformer-lm opt.py: warmup_linear(x) = (x/w while x ≤ w, then 1) · (1 − x).
    "GPT's fine-tuning": (
        dict(learning_rate=6.25e-5, warmup_steps=2, decay="warmup_linear"),
        1000,
        {0: 0.0, 1: 6.25e-5 * 0.5 * 0.999, 2: 6.25e-5 * 0.998, 3: 6.25e-5 * 0.997, 500: 3.125e-5, 900: 6.25e-6, 1000: 0.0},
    ),
    # warmup_cosine(x) = x/w while x ≤ w, then ½ (1 + cos πx): not rescaled after warm-up.
    "GPT's cosine": (
        dict(learning_rate=1.0, warmup_steps=200, decay="warmup_cosine"),
        1000,
        {0: 0.0, 100: 0.5, 200: 1.0, 201: 0.5 * (1 + math.cos(math.pi * 0.201)), 500: 0.5, 750: 0.5 - HALF, 1000: 0.0},
    ),
    "GPT without warm-up": (dict(learning_rate=1.0, decay="warmup_linear"), 10, {0: 1.0, 5: 0.5, 10: 0.0}),
    "GPT's cosine without warm-up": (dict(learning_rate=1.0, decay="warmup_cosine"), 10, {0: 1.0, 5: 0.5, 10: 0.0}),
    "ULMFiT": (
        dict(decay="slanted_triangular"),
        1000,
        {0: 3.125e-4, 50: 0.00515625, 100: 0.01, 550: 0.00515625, 1000: 3.125e-4, 2000: 3.125e-4},
    ),
    # Half a cosine up to the end of warm-up and half a cosine down.
    "reverse annealing": (
        dict(learning_rate=1.0, warmup_steps=20, decay="reverse_cosine"),
        100,
        {0: 0.0, 5: 0.5 - HALF, 10: 0.5, 20: 1.0, 40: 0.5 + HALF, 60: 0.5, 100: 0.0, 120: 0.0},
    ),
    # ½ (1 + cos πt/T), from the first step on.
    "FitLaM": (dict(decay="cosine"), 8, {0: 0.01, 2: 0.01 * (0.5 + HALF), 4: 0.005, 8: 0.0}),
    "unset warm-up": (dict(learning_rate=1.0, warmup_steps=None), 100, {0: 0.0, 5: 0.5, 9: 0.9, 10: 0.9, 50: 0.5, 100: 0.0}),
    "constant": (dict(decay="constant"), 10, {0: 0.01, 5: 0.01, 10: 0.01, 99: 0.01}),
}


@pytest.mark.parametrize(
    ("changes", "steps", "expected"),
    [
        ({}, 1000, 100),
        ({}, 30, 3),
        ({}, 9, 0),
        ({}, 0, 0),
        ({"warmup_steps": 0}, 1000, 0),
        ({"warmup_steps": 7}, 30, 7),
        ({"decay": "slanted_triangular"}, 1000, 0),
        ({"thaw_restarts": True, "thaw_steps": 40}, 1000, 4),
    ],
)
def test_warm_up_is_a_tenth_of_the_steps_unless_it_is_set(changes, steps, expected):
    optimizer = base_config().optimizer
    optimizer.update(changes)
    assert warmup_steps(optimizer, steps) == expected


@pytest.mark.parametrize("case", VALUES)
def test_rates_are_those_of_the_source(case):
    changes, steps, values = VALUES[case]
    rate, close = learning_rate(settings(**changes), steps), dict(rtol=1e-5, atol=1e-8 * max(values.values()))
    np.testing.assert_allclose([rate(step) for step in values], list(values.values()), **close)
    np.testing.assert_allclose(rate(np.array(list(values))), list(values.values()), **close)


def test_ulmfits_formula_at_every_step():
    """T whose tenth is no whole number; the formula's p would be negative at the end, where the lowest rate stays."""
    steps, fraction, ratio = 1009, 0.1, 8.0
    rate = learning_rate(settings(decay="slanted_triangular", cut_fraction=fraction, ratio=ratio), steps)
    cut, values = math.floor(steps * fraction), {}
    for t in range(steps):
        p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / fraction - 1))
        values[t] = 0.01 * (1 + max(p, 0) * (ratio - 1)) / ratio
    np.testing.assert_allclose(rate(np.arange(steps)), list(values.values()), rtol=1e-5)


def test_a_share_that_binary_rounds_down_is_not_a_step_short():
    rate = learning_rate(settings(decay="slanted_triangular", cut_fraction=0.29), 100)
    assert float(rate(29)) == pytest.approx(0.01) and float(rate(28)) < 0.0099


@pytest.mark.parametrize(
    ("changes", "steps", "message"),
    [
        ({"warmup_steps": 10}, 10, r"config.optimizer.warmup_steps=10 .*config.train.steps=10"),
        ({"decay": "constant", "cooldown_steps": 60, "warmup_steps": 50}, 100, "cooldown_steps=60 and warmup_steps=50"),
        ({"decay": "slanted_triangular", "warmup_steps": 3}, 10, r"config.optimizer.warmup_steps=3: .* set warmup_steps=0"),
        ({"decay": "slanted_triangular"}, 9, r"config.optimizer.cut_fraction=0.1 of config.train.steps=9"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, steps, message):
    with pytest.raises(UserError, match=message):
        learning_rate(settings(**changes), steps)
