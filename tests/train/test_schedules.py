"""The schedules give the values that their sources do."""

import math

import numpy as np
import pytest

from bertlab.config import base_config
from bertlab.errors import UserError
from bertlab.train.schedules import learning_rate


def settings(**changes):
    optimizer = base_config().optimizer
    optimizer.update({"warmup_steps": 0, "learning_rate": 0.01, **changes})
    return optimizer


def assert_values(rate, values, **tolerance):
    np.testing.assert_allclose([rate(step) for step in values], list(values.values()), rtol=1e-5, **tolerance)
    np.testing.assert_allclose(rate(np.array(list(values))), list(values.values()), rtol=1e-5, **tolerance)


def test_bert():
    rate = learning_rate(settings(learning_rate=1e-4, warmup_steps=10_000), 1_000_000)
    values = {0: 0.0, 5_000: 5e-5, 9_999: 9.999e-5, 10_000: 9.9e-5, 500_000: 5e-5, 1_000_000: 0.0, 1_500_000: 0.0}
    assert_values(rate, values, atol=1e-12)


def test_gpt_pretraining():
    rate = learning_rate(settings(learning_rate=2.5e-4, warmup_steps=2000, decay="cosine", decay_from_start=False), 102_000)
    values = {0: 0.0, 1000: 1.25e-4, 2000: 2.5e-4, 27_000: 2.5e-4 * (0.5 + 0.5**1.5), 52_000: 1.25e-4, 102_000: 0.0}
    assert_values(rate, values, atol=1e-11)


def test_constant_with_a_cooldown():
    rate = learning_rate(settings(learning_rate=5e-4, warmup_steps=2000, decay="constant", cooldown_steps=2000), 42_000)
    values = {0: 0.0, 1000: 2.5e-4, 2000: 5e-4, 40_000: 5e-4, 41_000: 2.5e-4, 41_999: 2.5e-7, 42_000: 0.0, 43_000: 0.0}
    assert_values(rate, values, atol=1e-9)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"decay": "linear", "cooldown_steps": 5}, "cooldown_steps=5 .*decay=constant"),
        ({"decay": "constant", "cooldown_steps": 60, "warmup_steps": 50}, "cooldown_steps=60 and warmup_steps=50 are more"),
        ({"decay": "constant", "cooldown_steps": -1}, "cooldown_steps=-1"),
        ({"decay": "slanted_triangular", "cooldown_steps": 5}, "cooldown_steps=5"),
    ],
)
def test_a_cooldown_that_cannot_be(changes, said):
    with pytest.raises(UserError, match=said):
        learning_rate(settings(**changes), 100)


def test_gpt_fine_tuning():
    """openai/finetune-transformer-lm opt.py: warmup_linear(x) = (x/w while x ≤ w, then 1) · (1 − x)."""
    rate = learning_rate(settings(learning_rate=6.25e-5, warmup_steps=2, decay="warmup_linear"), 1000)
    shape = lambda x: (x / 0.002 if x <= 0.002 else 1.0) * (1 - x)
    assert_values(rate, {step: 6.25e-5 * shape(step / 1000) for step in (0, 1, 2, 3, 500, 999, 1000)}, atol=1e-11)
    assert float(rate(2)) == pytest.approx(6.25e-5 * 0.998)


def test_gpt_cosine_is_not_rescaled_after_warmup():
    """warmup_cosine(x) = x/w while x ≤ w, then ½ (1 + cos πx)."""
    rate = learning_rate(settings(learning_rate=1.0, warmup_steps=200, decay="warmup_cosine"), 1000)
    values = {0: 0.0, 100: 0.5, 200: 1.0, 201: 0.5 * (1 + math.cos(math.pi * 0.201)), 500: 0.5, 750: 0.5 - 0.5**1.5, 1000: 0.0}
    assert_values(rate, values, atol=1e-7)


@pytest.mark.parametrize(("decay", "middle"), [("warmup_linear", 0.5), ("warmup_cosine", 0.5)])
def test_gpt_without_warmup_begins_at_the_whole_rate(decay, middle):
    assert_values(learning_rate(settings(learning_rate=1.0, decay=decay), 10), {0: 1.0, 5: middle, 10: 0.0}, atol=1e-7)


def test_ulmfit():
    rate = learning_rate(settings(decay="slanted_triangular"), 1000)
    assert_values(rate, {0: 3.125e-4, 50: 0.00515625, 100: 0.01, 550: 0.00515625, 1000: 3.125e-4, 2000: 3.125e-4})


def test_ulmfits_formula_at_every_step():
    """T whose tenth is no whole number; the formula's p would be negative at the end, where the lowest rate stays."""
    steps, fraction, ratio = 1009, 0.1, 8.0
    rate = learning_rate(settings(decay="slanted_triangular", cut_fraction=fraction, ratio=ratio), steps)
    cut, values = math.floor(steps * fraction), {}
    for t in range(steps):
        p = t / cut if t < cut else 1 - (t - cut) / (cut * (1 / fraction - 1))
        values[t] = 0.01 * (1 + max(p, 0) * (ratio - 1)) / ratio
    np.testing.assert_allclose(rate(np.arange(steps)), list(values.values()), rtol=1e-5)


def test_reverse_annealing_rises_and_falls_by_half_a_cosine():
    rate = learning_rate(settings(learning_rate=1.0, warmup_steps=20, decay="reverse_cosine"), 100)
    values = {0: 0.0, 5: 0.5 - 0.5**1.5, 10: 0.5, 20: 1.0, 40: 0.5 + 0.5**1.5, 60: 0.5, 100: 0.0, 120: 0.0}
    assert_values(rate, values, atol=1e-7)
    # The rise is the fall in reverse.
    steps = np.arange(21)
    np.testing.assert_allclose(rate(20 - steps), rate(20 + 4 * steps), atol=1e-6)


def test_a_cosine_over_the_whole_run():
    """FitLaM's annealing, a step at a time: ½ (1 + cos πt/T), from the first step on."""
    assert_values(
        learning_rate(settings(decay="cosine"), 8), {0: 0.01, 2: 0.01 * (0.5 + 0.5**1.5), 4: 0.005, 8: 0.0}, atol=1e-9
    )


def test_a_share_that_binary_rounds_down_is_not_a_step_short():
    rate = learning_rate(settings(decay="slanted_triangular", cut_fraction=0.29), 100)
    assert float(rate(29)) == pytest.approx(0.01) and float(rate(28)) < 0.0099


def test_constant_and_no_warmup():
    assert_values(learning_rate(settings(decay="constant"), 10), {0: 0.01, 5: 0.01, 10: 0.01, 99: 0.01})


@pytest.mark.parametrize(
    ("changes", "steps", "message"),
    [
        ({"decay": "square"}, 10, r"config.optimizer.decay='square'"),
        ({"warmup_steps": 10}, 10, r"config.optimizer.warmup_steps=10 .*config.train.steps=10"),
        ({"warmup_steps": -1, "decay": "constant"}, 10, r"config.optimizer.warmup_steps=-1"),
        ({"decay": "slanted_triangular", "warmup_steps": 3}, 10, r"config.optimizer.warmup_steps=3: .* set warmup_steps=0"),
        ({"decay": "slanted_triangular", "cut_fraction": 1.0}, 10, r"config.optimizer.cut_fraction=1.0"),
        ({"decay": "slanted_triangular", "cut_fraction": 0.0}, 10, r"config.optimizer.cut_fraction=0.0"),
        ({"decay": "slanted_triangular", "ratio": 0.5}, 10, r"config.optimizer.ratio=0.5"),
        ({"decay": "slanted_triangular"}, 9, r"config.optimizer.cut_fraction=0.1 of config.train.steps=9 is less than one"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes, steps, message):
    with pytest.raises(UserError, match=message):
        learning_rate(settings(**changes), steps)
