"""The work of reading a study grows with its runs, not with their square, and each config is made once whatever its seeds."""

import cProfile
import dataclasses
import io
import pstats

import pytest
from conftest import fake_config
from rich.console import Console

from bertlab.errors import UserError
from bertlab.studies import dry_run, estimate
from bertlab.studies import sweep as sweep_module
from bertlab.studies.comparisons import compare_all
from bertlab.studies.estimate import Cost
from bertlab.studies.findings import findings, notices
from bertlab.studies.measurements import load, scores
from bertlab.studies.report import csv_tables
from bertlab.studies.seeds import seed_tables
from bertlab.studies.selection import selections
from bertlab.studies.sweep import check_configs, sweep
from tests.bench.many_runs import get_study, write

SEEDS = (20, 40)


def calls(work) -> int:
    """The number of function calls of some work, built-in functions too."""
    profile = cProfile.Profile()
    profile.runcall(work)
    return pstats.Stats(profile, stream=io.StringIO()).total_calls


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """Directories of studies of two variants with so many seeds, all finished."""
    found = [tmp_path_factory.mktemp("many") / str(seeds) for seeds in SEEDS]
    for directory, seeds in zip(found, SEEDS):
        write(directory, get_study(f"rates=1,learning_rates=2,seeds={seeds}"))
    return found


def test_twice_the_runs_are_not_more_than_twice_the_work_of_a_dry_run(studies, monkeypatch):
    monkeypatch.setattr(sweep_module, "load_checked", fake_config)
    monkeypatch.setattr(dry_run, "pretraining_cost", lambda config: Cost(1.0, 1.0))

    def plan(directory, seeds):
        study = get_study(f"rates=1,learning_rates=2,seeds={seeds}")
        console = Console(file=io.StringIO(), width=200)
        assert sweep(study, directory, dry_run=True, runner="fake_runner:run", console=console) == 0
        assert f"{2 * seeds} runs, 0 to do" in console.file.getvalue()

    plan(studies[0], SEEDS[0])  # imports
    few, many = (calls(lambda of=of: plan(*of)) for of in zip(studies, SEEDS))
    assert many < 2.1 * few


def test_a_plan_of_runs_that_wait_takes_as_much_for_each():
    def plan(runs):
        seconds = {f"run {i}": 1.0 for i in range(runs)}
        waits = {name: {"run 0"} - {name} for name in seconds}
        assert estimate.schedule(seconds, waits, 4) == 1 + -(-(runs - 1) // 4)

    assert calls(lambda: plan(800)) < 2.5 * calls(lambda: plan(400))


def test_twice_the_runs_are_not_more_than_twice_the_work_of_a_report(studies):
    def read(directory):
        results = load(directory)
        compared = compare_all(results)
        csv_tables(results, compared)
        assert "2 variants were run" in findings(results, compared)[0] and notices(results) == []

    read(studies[0])  # imports
    few, many = (calls(lambda of=of: read(of)) for of in studies)
    assert many < 2.1 * few


def test_what_several_parts_of_a_report_ask_is_worked_out_once_for_the_same_results(studies):
    results = load(studies[0])
    (score,) = scores(results)
    tables = seed_tables(results, score)
    assert seed_tables(results, score) is tables and selections(results) is selections(results)
    own = results.values(score)
    own[:] = 0.0
    assert results.values(score).min() > 0.5, "what is handed out is the caller's own"
    fewer = dataclasses.replace(results, runs=results.runs[1:])
    first = next(iter(tables))
    assert len(seed_tables(fewer, score)[first]) == len(tables[first]) - 1


def test_each_config_is_checked_once_and_each_seed_too(monkeypatch):
    loaded = []

    def load_one(spec, overrides):
        loaded.append(overrides)
        if overrides["seed"] == "wrong":
            raise UserError("config.seed is wrong")
        return fake_config(spec, overrides)

    monkeypatch.setattr(sweep_module, "load_checked", load_one)
    runs = get_study("rates=2,learning_rates=3,seeds=20").runs()
    configs, _ = check_configs(runs, "fake_runner:run")
    assert len(runs) == len(configs) == 120 and len(loaded) == 6 + 20 - 1
    assert len({id(config) for config in configs.values()}) == len(loaded)
    runs[70] = dataclasses.replace(runs[70], overrides={**runs[70].overrides, "seed": "wrong"})
    with pytest.raises(UserError, match=f"run {runs[70].name}: config.seed is wrong"):
        check_configs(runs, "fake_runner:run")
