"""Steps of one pretraining as a study's axis: what is kept, shared and refused, and how a report draws it."""

import dataclasses
import json

import numpy as np
import pytest
import scipy.stats
from conftest import InThisProcess, run_sweep, write_lines
from matplotlib.colors import to_hex
from ml_collections import ConfigDict
from rich.console import Console

from bertlab import results
from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.studies import plots
from bertlab.studies.comparisons import ALL_PAIRS, compare_all, of_family
from bertlab.studies.curves import curves, score_curves, shared_curves, trajectory_axis
from bertlab.studies.findings import findings
from bertlab.studies.measurements import cost, load, scores
from bertlab.studies.records import check_steps
from bertlab.studies.report import html_page, show
from bertlab.studies.study import Study
from bertlab.studies.sweep import describe, sweep
from bertlab.studies.worker import stage_settings
from tests.conftest import RECIPES, ROOT

STEPS = (125, 1000, 4000)
OBJECTIVES = {"MLM": {"objectives.mlm.weight": 1.0}, "LTR": {"objectives.ltr.weight": 1.0}}


def study_of(steps=STEPS, seeds=(1,), **options):
    """MLM and LTR at steps of their pretrainings."""
    axes = {"pretraining": OBJECTIVES, "steps": {str(s): {"finetune.init_step": s} for s in steps}, "seed": list(seeds)}
    options = {"overrides": {"train.steps": 4000}, "downstream": ["package"]} | options
    return Study(name="s", title="Steps", question="?", config="base.py", axes=axes, **options)


def test_steps_of_one_pretraining_share_it_and_it_keeps_them():
    runs = study_of(seeds=(1, 2)).runs()
    owners = {run.shares.get("pretrain", run.name) for run in runs}
    assert len(runs) == 12 and owners == {f"{name}-125-seed={seed}" for name in ("mlm", "ltr") for seed in (1, 2)}
    assert {run.overrides["train.keep"] for run in runs} == {"125,1000,4000"}
    assert [run.downstream["package"]["init_step"] for run in runs[:6:2]] == [125, 1000, 4000]
    (own,) = {run.overrides["train.keep"] for run in study_of(overrides={"train.keep": "log"}).runs()}
    assert own == "log,125,1000,4000"


def test_each_stage_keeps_the_steps_with_which_the_next_begins():
    axes = {"finetune.init_step": [30, 60], "adapt.init_step": [100, 200]}
    runs = Study("s", "", "?", "base.py", axes, downstream=["package"]).runs()
    assert {(run.overrides["train.keep"], run.adapt["train.keep"]) for run in runs} == {("100,200", "30,60")}
    assert [run.shares for run in runs[1:]] == [
        {"pretrain": runs[0].name},  # adapted from another step
        {"pretrain": runs[0].name, "adapt": runs[0].name},
        {"pretrain": runs[0].name, "adapt": runs[1].name},
    ]
    (existing,) = Study("s", "", "?", "run:somewhere", {"finetune.init_step": [100]}, downstream=["package"]).runs()
    assert not existing.overrides


def test_what_is_kept_decides_no_result():
    few, many = (study_of(steps).runs()[0] for steps in ((125,), STEPS))
    assert few.overrides != many.overrides and stage_settings(few) == stage_settings(many)


@pytest.mark.usefixtures("fake_runs")
def test_a_step_that_was_passed_without_a_checkpoint_is_refused_before_anything_runs(tmp_path):
    assert run_sweep(study_of((125, 4000)), tmp_path)[0] == 0
    for step in (125, 4000):
        for name in ("mlm", "ltr"):
            (tmp_path / f"{name}-125-seed=1" / "checkpoints" / str(step)).mkdir(parents=True, exist_ok=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=r"init_step=1000, but .*mlm-125-seed=1 has checkpoints at 125, 4000 "):
        run_sweep(study_of(), tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    assert run_sweep(study_of((125,)), tmp_path)[0] == 0, "fewer steps need nothing"


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compilation")
def test_a_sweep_fine_tunes_from_kept_steps(small_overrides, words_task, tmp_path):
    small = {"model.width": 16, "model.layers": 1, "train.steps": 4, "train.eval_batches": 1, "evaluate.sentences": 0}
    tuning = {"train.steps": 2, "data.batch_size": 8, "data.seq_len": 16, "mesh.data": 1, "optimizer.warmup_steps": 0}
    small |= {"model.hidden": 24, "optimizer.warmup_steps": 0, "train.keep_checkpoints": 1}
    study = Study(
        name="s",
        title="Steps",
        question="?",
        config=str(ROOT / RECIPES["gpt"]),
        axes={"finetune.init_step": [2, 4]},
        overrides=small_overrides | small | {f"finetune.{key}": value for key, value in tuning.items()},
        downstream={"words": {"task": words_task}},
    )
    with pytest.raises(UserError, match=r"step 9 is beyond config\.train\.steps=4"):
        sweep(dataclasses.replace(study, axes={"finetune.init_step": [2, 9]}), tmp_path / "none", console=Console(quiet=True))
    assert not (tmp_path / "none").exists()
    assert sweep(study, tmp_path, InThisProcess(), console=Console(quiet=True)) == 0
    first, second = (Run(tmp_path / run.name) for run in study.runs())
    assert first.steps() == [2, 4] and not second.steps()
    assert [run.stage("finetune", "words").config.read()["init_step"] for run in (first, second)] == [2, 4]
    found = load(tmp_path)
    steps, tokens = (list(found.values(cost(key))) for key in ("step", "tokens"))
    assert steps == [2, 4] and tokens == [first.costs.read()[step]["tokens"] for step in ("2", "4")]
    assert tokens[1] == first.result.read()["tokens"] > tokens[0] > 0
    # The same on the pretraining as a run that is there.
    standing = {"config": f"run:{tmp_path / study.runs()[0].name}", "overrides": {}, "axes": {"finetune.init_step": [2, 3]}}
    with pytest.raises(UserError, match=r"init_step=3, but .* has checkpoints at 2, 4 "):
        sweep(dataclasses.replace(study, **standing), tmp_path / "standing", console=Console(quiet=True), dry_run=True)


def score(variant, step, seed):
    return {"MLM": 0.3, "LTR": 0.4}[variant] + 0.05 * np.log2(step / 125) + 0.01 * seed


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A study's directory as a sweep leaves it: three steps, three seeds, made-up scores; do not write to it."""
    directory, study = tmp_path_factory.mktemp("steps"), study_of(seeds=(1, 2, 3))
    runs = study.runs()
    (directory / "study.json").write_text(json.dumps(describe(study, runs)))
    costs = {
        step: {"tokens": 100 * step, "supervised": 15 * step, "flops": 1e9 * step, "seconds": 0.1 * step} for step in STEPS
    }
    for spec in runs:
        run, variant = Run(directory / spec.name), spec.labels["pretraining"]
        value = score(variant, int(spec.labels["steps"]), int(spec.labels["seed"]))
        run.stage("finetune", "package").result.write({"metrics": {"test": {"package/accuracy": value}}})
        if spec.shares:
            continue
        run.config.write({"objectives": {variant.lower(): {"weight": 1.0}}})
        run.costs.write({str(step): of for step, of in costs.items()})
        losses = {f"{variant.lower()}/loss": 3.0}
        run.result.write({"step": 4000, "parameters": 7, **costs[4000], "metrics": {"test": losses}})
        lines = [{"step": step, "split": "valid", **costs[step], f"{variant.lower()}/loss": 9 - step / 1000} for step in STEPS]
        write_lines(run.metrics.path, lines)
    return directory


def test_a_point_has_the_cost_of_its_step_and_an_interval_over_seeds(directory):
    found = load(directory)
    table = score_curves(found, scores(found)).set_index(["variant", "step"])
    assert list(table.index) == [(variant, step) for variant in OBJECTIVES for step in STEPS]
    for variant, step in table.index:
        seeds = [score(variant, step, seed) for seed in (1, 2, 3)]
        row = table.loc[variant, step]
        assert row["mean"] == pytest.approx(np.mean(seeds)) and row["seeds"] == 3
        expected = scipy.stats.ttest_1samp(seeds, 0).confidence_interval(0.95)
        assert (row["low"], row["high"]) == pytest.approx(expected)
        assert (row["tokens"], row["flops"]) == (100 * step, 1e9 * step)
    last = found.measurements[(found.measurements["metric"] == "mlm/loss") & (found.measurements["stage"] == "pretrain")]
    assert set(last["run"]) == {f"mlm-4000-seed={seed}" for seed in (1, 2, 3)}, "the loss at the end is not that of a step"


def test_steps_of_a_pretraining_are_one_line(directory):
    found = load(directory)
    assert trajectory_axis(found) == "steps" and len(found.variants) == 6
    assert set(curves(found)["variant"]) == {"MLM", "LTR"} and not shared_curves(found)
    styles = results.styles(found)
    assert styles["MLM"] == styles["MLM, 125"] == styles["MLM, 4000"] != styles["LTR"]
    table = score_curves(found, scores(found))
    figure = plots.score_curves(table, ["package/accuracy"], ["step", "tokens"], styles)
    for panel, axis in zip(figure.axes, ("step", "tokens"), strict=True):
        lines = {to_hex(line.get_color()): line for line in panel.get_lines()}
        assert lines.keys() == {styles["MLM"].colour, styles["LTR"].colour} and len(panel.collections) == 2
        drawn, expected = lines[styles["MLM"].colour], table[table["variant"] == "MLM"]
        np.testing.assert_allclose(drawn.get_ydata(), 100 * expected["mean"])
        np.testing.assert_allclose(drawn.get_xdata() / drawn.get_xdata()[-1], expected[axis] / expected[axis].iloc[-1])
        assert panel.get_xscale() == "log"
    (panel,) = results.plot_score_curves(found).axes
    np.testing.assert_array_equal(panel.get_lines()[0].get_ydata(), drawn.get_ydata())
    page = html_page(found, show(found))
    assert "Scores along pretraining" in page and page.count("package/accuracy against") == 5


def test_variants_are_compared_at_the_end_of_their_pretrainings(directory):
    found = load(directory)
    compared = compare_all(found)
    assert {(of.variant, of.other, of.corrections) for of in of_family(compared, ALL_PAIRS)} == {("MLM, 4000", "LTR, 4000", 1)}
    assert not [said for said in findings(found, compared) if "125" in said or "1000" in said]


def test_a_study_without_steps_has_no_such_curves(study_directory):
    found = load(study_directory)
    assert trajectory_axis(found) is None and score_curves(found, scores(found)).empty
    assert "Scores along pretraining" not in html_page(found, show(found))
    with pytest.raises(UserError, match="has no axis of steps"):
        results.plot_score_curves(found)


def test_runs_of_a_study_start_from_the_same_step_of_a_run_that_is_not_finished(tmp_path):
    source = Run(tmp_path / "half")
    for step in (5, 10):
        (source.checkpoints / str(step)).mkdir(parents=True)
    study = Study("s", "", "?", f"run:{source}", {"finetune.seed": [1, 2]}, downstream={"package": {}})
    with pytest.raises(
        UserError, match=r"half is not finished, .* finetune\.init_step \(.*--config\.init_step\), now at most 10$"
    ):
        check_steps(tmp_path / "study", study.runs())
    named = dataclasses.replace(study, downstream={"package": {"init_step": 5}})
    check_steps(tmp_path / "study", named.runs())
    source.result.write({"step": 10})
    check_steps(tmp_path / "study", study.runs())
    warm = dataclasses.replace(study, config="base.py", downstream={})
    source.result.delete()
    configs = {run.name: ConfigDict({"init_from": str(source.directory), "init_step": None}) for run in warm.runs()}
    with pytest.raises(UserError, match=r"half is not finished, .* config\.init_step, now at most 10$"):
        check_steps(tmp_path / "warm", warm.runs(), configs)
    for config in configs.values():
        config.init_step = 5
    check_steps(tmp_path / "warm", warm.runs(), configs)
