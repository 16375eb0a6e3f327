"""Each variant's pretraining rate: which one is selected, when a search goes on, and what a report says of it."""

import math

import pytest
from conftest import run_sweep
from rich.console import Console

from bertlab.errors import UserError
from bertlab.run import Run, StudyDirectory
from bertlab.studies.comparisons import compare_all
from bertlab.studies.curves import shared_curves
from bertlab.studies.findings import rate_notices
from bertlab.studies.measurements import cost, load
from bertlab.studies.report import report
from bertlab.studies.selection import Search, rate_rows, searches_of
from bertlab.studies.study import RATE, Study
from bertlab.studies.tables import RATES, grouped_tables, rate_table

pytestmark = pytest.mark.usefixtures("fake_runs")


def study(variants, rates=(0.1, 1, 10), seeds=(1, 2), **options):
    """Runs of the fake runner: a variant's overrides say its best rate and where it diverges; its own rate is 0.001."""
    options = {"overrides": {"train.steps": 10}, "downstream": ["x"]} | options
    axes = {"model": variants, "seed": list(seeds)}
    return Study(name="s", title="S", question="?", config="base.py", axes=axes, rates=rates, **options)


def trained(workdir):
    """Run -> how often its worker was called, candidates included."""
    return {path.parent.name: len(path.read_text().splitlines()) for path in sorted(workdir.glob("*/calls.txt"))}


def rates_of(workdir):
    """Run -> the rate that study.json gives it; None for its own."""
    return {run["name"]: run["overrides"].get(RATE) for run in StudyDirectory(workdir).study.read()["runs"]}


def test_each_variant_s_seeds_run_at_the_rate_of_its_lowest_validation_loss(tmp_path):
    spec = study({"A": {"best_rate": 0.01}, "B": {"best_rate": 0.001, "which": "B"}})
    assert run_sweep(spec, tmp_path)[0] == 0
    assert rates_of(tmp_path) == {"a-seed=1": 0.01, "a-seed=2": 0.01, "b-seed=1": None, "b-seed=2": None}
    shares = {run["name"]: run["shares"] for run in StudyDirectory(tmp_path).study.read()["runs"]}
    assert shares["a-seed=1"] == {"pretrain": "a-seed=1-rate=0.01"}, "the winner is the first seed's pretraining"
    assert shares["a-seed=2"] == {} and not (tmp_path / "a-seed=1" / "result.json").exists()
    calls = trained(tmp_path)
    assert set(calls.values()) == {1} and len(calls) == 2 * (3 + 2)
    assert not (tmp_path / "a-seed=1-rate=0.01" / "finetune").exists(), "nothing downstream is looked at"
    assert run_sweep(spec, tmp_path)[0] == 0 and trained(tmp_path) == calls
    more = study({"A": {"best_rate": 0.01}, "B": {"best_rate": 0.001, "which": "B"}}, seeds=(1, 2, 3))
    assert run_sweep(more, tmp_path)[0] == 0
    assert trained(tmp_path) == calls | {"a-seed=3": 1, "b-seed=3": 1} and rates_of(tmp_path)["a-seed=3"] == 0.01


def test_variants_that_pretrain_alike_share_a_search_and_those_that_do_not_pretrain_have_none(tmp_path):
    variants = {"LTR": {}, "+ BiLSTM": {"finetune.head.bilstm": 2}, "none": {"train.steps": 0}}
    assert run_sweep(study(variants, seeds=(1,), task_rates=[1e-3, 1e-4]), tmp_path / "rates")[0] == 0
    [of_rates] = searches_of(load(tmp_path / "rates"))
    assert (of_rates.variant, len(of_rates.runs)) == ("LTR; + BiLSTM", 4), "rates of fine-tuning are selected later"
    assert run_sweep(study(variants, seeds=(1,)), tmp_path)[0] == 0
    [search] = searches_of(load(tmp_path))
    assert (search.variant, list(search.runs)) == ("LTR; + BiLSTM", ["ltr-seed=1", "+-bilstm-seed=1"])
    results = load(tmp_path)
    assert set(results.runs["status"]) == {"finished"}
    assert results.values(cost("tokens")).to_dict() == {"ltr-seed=1": 100, "+-bilstm-seed=1": 100, "none-seed=1": 0}
    assert shared_curves(results) == {"+ BiLSTM": "LTR"}


def test_a_search_that_was_cut_off_goes_on_and_no_run_begins_before_it_has_ended(tmp_path):
    spec = study({"A": {"mode": "fail", "best_rate": 0.01}, "B": {"which": "B"}})
    status, printed = run_sweep(spec, tmp_path)
    assert status == 1 and "needs a-seed=1-rate=0.0001" in printed
    assert {name for name, count in trained(tmp_path).items() if not name.startswith("a-seed=1-rate")} >= {"b-seed=2"}
    assert not {"a-seed=1", "a-seed=2"} & set(trained(tmp_path))
    assert rate_rows(load(tmp_path)).query("variant == 'A'")["loss"].isna().all()
    assert len(rate_notices(load(tmp_path))) == 1
    (tmp_path / "mended").touch()
    before = trained(tmp_path)
    assert run_sweep(spec, tmp_path)[0] == 0
    assert rates_of(tmp_path)["a-seed=2"] == 0.01
    assert {name: count for name, count in trained(tmp_path).items() if before.get(name) == count} == {
        name: 1 for name in before if name.startswith("b-")
    }


def test_a_candidate_that_diverges_loses_and_is_not_tried_again(tmp_path):
    spec = study({"A": {"best_rate": 0.01, "diverges_at": 0.01}})
    assert run_sweep(spec, tmp_path)[0] == 0
    assert rates_of(tmp_path) == {"a-seed=1": None, "a-seed=2": None}
    assert math.isinf(rate_rows(load(tmp_path)).set_index("rate").loc[0.01, "loss"])
    assert run_sweep(spec, tmp_path)[0] == 0 and trained(tmp_path)["a-seed=1-rate=0.01"] == 1
    assert rate_table(load(tmp_path)).loc["A", (RATES, "loss at × 10")] == "diverged"


def test_a_variant_whose_candidates_all_diverge_does_not_run(tmp_path):
    status, printed = run_sweep(study({"A": {"diverges_at": 0.0}, "B": {"which": "B"}}), tmp_path)
    assert status == 1 and "0.0001, 0.001, 0.01" in printed and RATE in printed
    assert not {"a-seed=1", "a-seed=2"} & set(trained(tmp_path)) and {"b-seed=1", "b-seed=2"} <= set(trained(tmp_path))


@pytest.mark.parametrize(
    ("losses", "selected"),
    [
        ((3.0, 2.0, 1.0), 9e-3),
        ((1.0, 1.0, 1.0), 1e-3),  # the own rate
        ((1.0, 2.0, 1.0), 1 / 9e3),  # the lower of two that are as far from it
        ((math.inf, math.inf, 2.0), 9e-3),
        ((math.inf, math.inf, math.inf), None),
        ((1.0, 2.0), None),
    ],
)
def test_ties_go_to_the_nearest_rate_and_then_to_the_lower(losses, selected, tmp_path):
    for name, loss in zip("abc", losses):
        if loss == math.inf:
            Run(tmp_path / name).diverged.write("at step 3\n")
            continue
        Run(tmp_path / name).result.write({"metrics": {"valid": {"loss": loss}}})
        Run(tmp_path / name).measured.write({})
    search = Search("A", 1e-3, {"a": 1 / 9e3, "b": 1e-3, "c": 9e-3}, ["r"])
    assert search.selected(tmp_path) == selected


def test_a_report_shows_losses_rate_cost_and_a_rate_at_the_end_of_the_candidates(tmp_path):
    run_sweep(study({"A": {"best_rate": 0.01}, "B": {"which": "B"}}), tmp_path)
    results = load(tmp_path)
    row = rate_table(results).loc["A"][RATES]
    assert row.loc[["own rate", "loss at × 0.1", "loss at × 10"]].tolist() == ["0.001", "2.0000", "0.0000"]
    assert row["selected"].startswith("0.01 ") and row["tokens"] == "300"
    assert rate_table(results).loc["B", (RATES, "selected")] == "0.001"
    [said] = rate_notices(results)
    assert "A (0.01)" in said and "B" not in said
    assert any(RATES in frame.columns.get_level_values(0) for frame in grouped_tables(results, compare_all(results)))
    page = report(tmp_path, console=Console(quiet=True)).read_text(encoding="utf-8")
    assert RATES in page and (tmp_path / "report" / "rates.csv").exists()


def test_other_factors_are_refused_once_a_run_has_begun(tmp_path):
    assert run_sweep(study({"A": {}}), tmp_path)[0] == 0
    for rates in ((), (0.1, 1)):
        with pytest.raises(UserError, match=r"factors of its pretraining rates are 0\.1, 1, 10, not"):
            run_sweep(study({"A": {}}, rates=rates), tmp_path)


@pytest.mark.parametrize("rates", [(1,), (1, 1.0), (0, 1), (1, math.inf)])
def test_factors_that_cannot_be_are_refused(rates, tmp_path):
    with pytest.raises(UserError, match="study s: rates are"):
        run_sweep(study({"A": {}}, rates=rates), tmp_path)
