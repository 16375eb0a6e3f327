"""What held-out data select: pretraining rates and labels."""

import math
from pathlib import Path

import pandas as pd
import pytest

from bertlab.errors import Diverged
from bertlab.files import write_json
from bertlab.studies.comparisons import at_best_rate
from bertlab.studies.plan import make_plan
from bertlab.studies.runs import RATE
from bertlab.studies.selection import Search
from bertlab.studies.study import TASK_RATES, Study
from bertlab.studies.worker import execute_directory, write_run

CONFIG = str(Path(__file__).parent / "small_config.py")
AXES = {"objective": {"MLM": {}, "none": {"train.steps": 0}}, "seed": [1, 2]}


def search_of(tmp_path, losses, status=""):
    for rate, loss in losses.items():
        directory = tmp_path / f"run-{rate}"
        if loss is not None:
            write_json(directory / "result.json", {"metrics": {"valid": {"loss": loss}}})
        elif status:
            write_json(directory / "failed.json", {"status": status, "reason": "not finite"})
    return Search("MLM", 0.02, {f"run-{rate}": rate for rate in losses}, ["run"])


@pytest.mark.parametrize(
    ("losses", "status", "expected"),
    [
        ({0.01: 3.0, 0.02: 2.0, 0.04: 2.5}, "", 0.02),
        ({0.01: 2.0, 0.02: 2.0, 0.04: 2.5}, "", 0.01),
        ({0.01: 2.0, 0.02: None}, "", None),
        ({0.01: 2.0, 0.02: None}, "diverged", 0.01),
        ({0.01: 2.0, 0.02: None}, "failed", None),
        ({0.01: None, 0.02: None}, "diverged", None),
    ],
)
def test_the_lowest_loss_wins_of_equal_ones_the_smaller_rate(tmp_path, losses, status, expected):
    search = search_of(tmp_path, losses, status)
    assert search.selected(search.losses(tmp_path)) == expected


def test_a_run_whose_loss_is_not_finite_has_diverged(tmp_path):
    overrides = {"data.directory": str(tmp_path / "cache"), "optimizer.learning_rate": 1e38}
    (run,) = Study("s", "T", "?", CONFIG, {"seed": [1]}, overrides=overrides).runs()
    with pytest.raises(Diverged):
        execute_directory(write_run(run, tmp_path))
    search = Search("MLM", 1.0, {run.name: 1.0, "other": 2.0}, [run.name])
    assert search.losses(tmp_path) == {run.name: math.inf}


def test_seeds_share_a_search_which_goes_on_beyond_an_edge_and_the_first_seed_takes_the_winner(
    tmp_path,
):
    study = Study("s", "T", "?", CONFIG, AXES, rates=(0.5, 1.0))
    plan = make_plan(study, tmp_path)
    (search,) = plan.searches
    assert search.runs == ["mlm-seed=1", "mlm-seed=2"]
    assert search.candidates == {"mlm-seed=1-rate=0.005": 0.005, "mlm-seed=1-rate=0.01": 0.01}
    beyond = "mlm-seed=1-rate=0.0025"
    for name, loss in zip([*search.candidates, beyond], (1.0, 2.0, 1.5)):
        assert set(make_plan(study, tmp_path).undecided) == set(search.runs)
        write_json(tmp_path / name / "result.json", {"metrics": {"valid": {"loss": loss}}})
    plan = make_plan(study, tmp_path)
    assert [run.name for run in plan.candidates] == [beyond, *search.candidates]
    assert plan.runs[0].shares == {"pretrain": "mlm-seed=1-rate=0.005"}
    assert plan.runs[1].overrides[RATE] == 0.005 and not plan.runs[1].shares
    assert plan.configs["mlm-seed=2"]["pretrain", ""].optimizer.learning_rate == 0.005
    assert RATE not in plan.runs[2].overrides


def test_an_only_factor_is_the_rate_of_all_seeds_without_a_search_beyond_it(tmp_path):
    study = Study("s", "T", "?", CONFIG, AXES, rates=(0.5,))
    name = "mlm-seed=1-rate=0.005"
    write_json(tmp_path / name / "result.json", {"metrics": {"valid": {"loss": 1.0}}})
    plan = make_plan(study, tmp_path)
    assert [run.name for run in plan.candidates] == [name] and not plan.undecided
    assert plan.runs[0].shares == {"pretrain": name} and plan.runs[1].overrides[RATE] == 0.005


def scores(rows):
    return pd.DataFrame(rows, columns=["variant", TASK_RATES, "seed", "split", "value"])


def test_valid_selects_a_label_for_each_variant_and_test_has_no_part_in_it():
    rows = []
    for variant, valid in {"A": (0.5, 0.7), "B": (0.7, 0.5)}.items():
        for rate, value in zip(("0.01", "0.001"), valid):
            rows += [(variant, rate, seed, "valid", value) for seed in "12"]
            rows += [(variant, rate, seed, "test", 1 - value) for seed in "12"]
    found = at_best_rate(scores(rows))
    chosen = found.groupby("variant")[TASK_RATES].unique().map(list).to_dict()
    assert chosen == {"A": ["0.001"], "B": ["0.01"]}


def test_of_equal_labels_the_smaller_rate_and_failed_runs_count_first():
    rows = [("A", rate, "1", "valid", 0.5) for rate in ("0.01", "1e-3")]
    assert at_best_rate(scores(rows))[TASK_RATES].unique() == ["1e-3"]
    rows = [("A", "1", "1", "valid", 0.9), ("A", "1", "2", "valid", math.nan)]
    rows += [("A", "2", seed, "valid", 0.5) for seed in "12"]
    assert at_best_rate(scores(rows))[TASK_RATES].unique() == ["2"]
