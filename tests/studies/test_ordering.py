"""`bertlab sweep --until_decided`: seeds are run one after the other, and none is begun any more once the order is settled."""

import dataclasses
import json

import pytest
from conftest import run_sweep

from bertlab.errors import UserError
from bertlab.studies.findings import notices
from bertlab.studies.measurements import load
from bertlab.studies.ordering import fix_rule, look
from bertlab.studies.study import Study
from bertlab.studies.sweep import outlook

pytestmark = pytest.mark.usefixtures("fake_runs")


def study(scores, seeds):
    """Variants that score the same in all seeds but for the seed's noise."""
    variants = {name: {"score": score, "which": name} for name, score in scores.items()}
    axes = {"mode": variants, "seed": list(range(1, seeds + 1))}
    return Study(name="s", title="", question="?", config="base.py", axes=axes, overrides={"train.steps": 1}, downstream=["x"])


def finished(workdir):
    return {path.parent.parent.parent.name for path in workdir.glob("*/finetune/x/result.json")}


def test_an_order_that_is_clear_ends_the_sweep_and_the_report_says_so(tmp_path):
    # Noise is a seed's, the same for all variants: the difference does not vary, and is decided where 2/2^n <= 0.05/10 looks.
    clear = study({"A": 0.9, "B": 0.5}, seeds=12)
    noisy = dataclasses.replace(clear, axes={**clear.axes, "seed": {str(s): {"seed": s} for s in range(1, 13)}})
    status, printed = run_sweep(noisy, tmp_path, until_decided="x")
    assert status == 0
    done = finished(tmp_path)
    settled = json.loads((tmp_path / "settled.json").read_text())
    assert (settled["seeds"], settled["max_seeds"]) == (9, 12)
    assert {f"{v}-{s}" for v in "ab" for s in range(1, settled["seeds"] + 1)} <= done and len(done) < 24
    assert f"settled after {settled['seeds']} of 12 seeds (x/accuracy: A > B)" in printed
    assert f"{len(done)} of 24 runs are finished" in printed
    [notice] = notices(load(tmp_path))
    assert f"{24 - len(done)} runs were not started" in notice

    assert run_sweep(noisy, tmp_path, until_decided="x")[0] == 0
    assert finished(tmp_path) == done, "asked again, it begins none"
    assert run_sweep(noisy, tmp_path)[0] == 0
    assert len(finished(tmp_path)) == 24 and not (tmp_path / "settled.json").exists(), "without the rule it goes on to the end"


def test_the_rule_of_a_directory_stays(tmp_path):
    scores = {"A": 0.9, "B": 0.5}
    for _ in range(2):
        fix_rule(tmp_path, study(scores, seeds=12), "x")
    for seeds, task in ((13, "x"), (12, "all")):
        with pytest.raises(UserError, match=rf"until_decided.json: .* x and 12 seeds, not by {task} and {seeds}"):
            fix_rule(tmp_path, study(scores, seeds), task)


def test_equals_are_never_decided(tmp_path):
    status, printed = run_sweep(study({"A": 0.7, "B": 0.7}, seeds=5), tmp_path, until_decided="all")
    assert status == 0 and len(finished(tmp_path)) == 10
    assert (
        "undecided after 3 seeds: A against B on x/accuracy" in printed
        or "undecided after 3 seeds: B against A on x/accuracy" in printed
    )


def test_a_seed_counts_when_all_its_variants_have_ended(tmp_path):
    spec = study({"A": 0.9, "B": 0.5}, seeds=4)
    assert run_sweep(spec, tmp_path)[0] == 0
    assert look(tmp_path, spec, "x").seeds == 4
    (tmp_path / "b-seed=3" / "finetune" / "x" / "result.json").unlink()
    assert look(tmp_path, spec, "x") is None, "two complete seeds are too few to look at"
    (tmp_path / "b-seed=3" / "failed.txt").write_text("it broke")
    assert look(tmp_path, spec, "x").seeds == 4, "a failed run is not waited for"
    assert look(tmp_path, spec, "x", {"b-seed=3": "unfinished"}) is None, "but for one that is still to be tried again"
    (tmp_path / "b-seed=3" / "failed.txt").unlink()
    assert look(tmp_path, spec, "x", {"b-seed=3": "failed"}).seeds == 4, "nor one that cannot be tried"


def test_a_run_whose_pretraining_failed_is_not_waited_for(tmp_path):
    spec = study({"A": 0.9, "B": 0.5}, seeds=3)
    first, second, *_ = spec.runs()
    shares = dataclasses.replace(second, shares={"pretrain": first.name})
    averages = dataclasses.replace(second, name="average", averages=(second.name,))
    other = dataclasses.replace(second, name="other")
    expected = {second.name: "failed", "average": "failed", "other": "unfinished"}
    assert outlook([shares, averages, other], {first.name: "it broke"}, tmp_path) == expected
    assert set(outlook([shares, averages, other], {}, tmp_path).values()) == {"unfinished"}


@pytest.mark.parametrize(
    "changes, asked, message",
    [
        ({}, "y", "the study's tasks are x"),
        ({"downstream": []}, "all", "no downstream task"),
        ({"axes": {"mode": {"A": {}, "B": {"b": 1}}, "seed": [1, 2]}}, "all", "has 2 seeds and needs 3"),
        ({"select": ["mode"]}, "x", "selects among mode"),
    ],
)
def test_what_cannot_be_settled_is_refused_before_anything_runs(tmp_path, changes, asked, message):
    with pytest.raises(UserError, match=message):
        run_sweep(dataclasses.replace(study({"A": 0.9, "B": 0.5}, 5), **changes), tmp_path / "w", until_decided=asked)
    assert not (tmp_path / "w").exists()
