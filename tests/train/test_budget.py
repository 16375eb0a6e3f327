"""A budget in tokens, supervised positions, FLOPs or seconds is turned into steps, and spent to within a few percent."""

import jax
import pytest

from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.train import budget, loop
from bertlab.train.build import build_pretraining
from bertlab.train.checks import check_config

MLM = "experiments/pretrain/bert.py:objectives=mlm"


SCHEDULED = {"objectives__mlm__rate": 0.4, "objectives__mlm__final_rate": 0.1}  # priced over the whole run


@pytest.mark.parametrize(
    ("unit", "amount", "changes"),
    [
        ("tokens", 4000, {}),
        pytest.param("flops", 2e8, {}, marks=pytest.mark.slow),
        pytest.param("supervised", 1000, SCHEDULED, marks=pytest.mark.nightly),
    ],
)
def test_a_run_spends_its_budget(unit, amount, changes, small_config, tmp_path):
    result = loop.train(small_config(MLM, train__budget=f"{unit}={amount}", **changes), tmp_path)
    # The cost of the batches differs a little from the mean of the first ones, and steps are whole.
    assert result[unit] == pytest.approx(amount, rel=0.1)
    assert result["step"] > 5
    # Warm-up is a tenth of the steps that the budget buys, not of those of the config.
    assert Run(tmp_path).config.read()["optimizer"]["warmup_steps"] == result["step"] // 10


def test_no_pretraining_stays_none_and_a_unit_that_costs_nothing_is_refused(small_config, tmp_path):
    none = build_pretraining(small_config(MLM, train__budget="tokens=2000", train__steps=0))
    assert loop.within_budget(none, tmp_path).config.train.steps == 0
    free = build_pretraining(small_config(MLM.replace("mlm", "nsp"), train__budget="supervised=2000"))
    with pytest.raises(UserError, match=r"config.train.budget='supervised=2000': nsp has nothing to count in this unit"):
        loop.within_budget(free, tmp_path)


def test_equal_tokens_are_equal_steps_and_equal_predictions_are_not(small_config, tmp_path):
    def steps(objective, budget, direction="bidirectional"):
        recipe = f"experiments/pretrain/bert.py:objectives={objective}"
        experiment = build_pretraining(small_config(recipe, train__budget=budget, model__direction=direction))
        return loop.within_budget(experiment, tmp_path).config.train.steps

    ltr = ("ltr", "left-to-right")
    assert steps("mlm", "tokens=2000") == steps(ltr[0], "tokens=2000", ltr[1]) > 5
    assert steps("mlm", "supervised=1500") > 4 * steps(ltr[0], "supervised=1500", ltr[1]), "MLM predicts 15 % of the tokens"


def test_phases_are_priced_by_their_shares_of_the_steps(small_config, tmp_path):
    def steps(phases="", **changes):
        config = small_config(MLM, train__budget="tokens=8000", train__phases=phases, **changes)
        return loop.within_budget(build_pretraining(config), tmp_path).config.train.steps

    short, long = (steps(data__seq_len=length) for length in (8, 32))
    expected = 1 / (0.75 / short + 0.25 / long)
    assert short > 2 * long, "the phases cost differently"
    assert steps("0.75 data.seq_len=8; 0.25 data.seq_len=32", data__seq_len=32) == pytest.approx(expected, abs=1)


@pytest.mark.slow
def test_a_budget_of_seconds_is_kept_by_the_run_that_goes_on(small_config, tmp_path, monkeypatch):
    config = small_config(MLM, train__budget="seconds=5")
    monkeypatch.setattr(loop, "seconds_per_step", lambda experiment: 0.5)
    assert loop.train(config, tmp_path)["step"] == 10
    (tmp_path / "result.json").unlink()
    monkeypatch.setattr(loop, "seconds_per_step", lambda experiment: pytest.fail("the run has its steps already"))
    assert loop.train(config, tmp_path)["step"] == 10


def test_processes_add_what_each_counts_and_none_measures_time_alone(small_config, tmp_path, monkeypatch):
    alone = build_pretraining(small_config(MLM, train__budget="tokens=4000"))
    steps = loop.within_budget(alone, tmp_path).config.train.steps
    monkeypatch.setattr(budget, "gather", lambda value: [value, 3 * value])
    assert loop.within_budget(alone, tmp_path).config.train.steps == pytest.approx(steps / 4, abs=1)
    timed = build_pretraining(small_config(MLM, train__budget="seconds=5"))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(UserError, match=r"config.train.budget='seconds=5': each of 2 processes would measure a different time"):
        budget.steps_within(timed, lambda: 0.5)


def test_a_step_is_timed_without_compilation(small_config):
    assert 0 < loop.seconds_per_step(build_pretraining(small_config(MLM)), steps=2) < 2


@pytest.mark.parametrize("text", ["tokens", "tokens=", "tokens=-1", "words=100", "tokens=inf", "flops=many"])
def test_a_budget_that_is_none_is_refused(text, small_config):
    with pytest.raises(UserError, match=r"config.train.budget=.*expected one of tokens, supervised, flops, seconds"):
        check_config(small_config(MLM, train__budget=text))
