import dataclasses
import json
import math
import shutil
import statistics

import pandas as pd
import pytest
import scipy.stats
from conftest import PARAMETERS, objectives_study, write_json, write_run, write_study

from bertlab.errors import UserError
from bertlab.studies.plots import learning_curves, line_styles, untrained
from bertlab.studies.results import (
    comparable,
    compare_data,
    curves,
    difference,
    load,
    primary_metric,
    read_metrics,
    read_outcome,
    scores_by_seed,
    shared_curves,
    summarise,
)
from bertlab.studies.statistics import multi_bootstrap
from bertlab.studies.sweep import describe
from bertlab.studies.worker import average_predictions

SCORES = {"mlm-seed=1": 0.70, "mlm-seed=2": 0.74, "ltr-seed=1": 0.69, "ltr-seed=2": 0.70}


def small_study(directory, scores=SCORES, **options):
    seeds = sorted({int(name[-1]) for name in scores})
    per_run = {name: {"code_spans": score} for name, score in scores.items()}
    for name, more in options.pop("per_run", {}).items():
        per_run[name] |= more
    return write_study(directory, objectives_study(seeds, ("MLM", "LTR")), per_run=per_run, **options)


def test_runs_have_a_row_each_with_labels_costs_and_metrics(study_directory):
    runs = load(study_directory).runs.set_index("name")
    assert len(runs) == 10
    row = runs.loc["mlm+nsp-seed=2"]
    result = json.loads((study_directory / "mlm+nsp-seed=2" / "result.json").read_text())
    tuned = json.loads((study_directory / "mlm+nsp-seed=2" / "finetune" / "code_spans" / "result.json").read_text())
    assert (row["objective"], row["seed"], row["variant"], row["status"]) == ("MLM+NSP", "2", "MLM+NSP", "finished")
    assert row["tokens"] == result["tokens"] and row["data_hash"] == result["data_hash"]
    assert row["valid/nsp/loss"] == result["metrics"]["valid"]["nsp/loss"]
    assert row["code_spans/f1"] == tuned["metrics"]["test"]["code_spans/f1"]
    assert row["code_spans/loss"] == 0.2
    assert "code_spans/code_spans/f1" not in runs
    assert math.isnan(runs.loc["ltr-seed=1", "valid/mlm/loss"])


def test_a_bound_is_told_from_a_floor_and_is_no_number_to_summarise(tmp_path):
    directory = small_study(tmp_path / "s")
    for name, exact in (("mlm-seed=1", True), ("mlm-seed=2", False), ("ltr-seed=1", True), ("ltr-seed=2", True)):
        floor = {"value": 1.0, "above": 0.5, "above_standard_error": 0.1, "exact": exact, "note": ""}
        (directory / name / "floor.json").write_text(json.dumps({"mlm": floor}))
    results = load(directory)
    assert list(results.runs["floor_exact/mlm"]) == [True, False, True, True]
    assert {"floor/mlm", "above/mlm"} <= set(summarise(results.runs)["metric"])
    assert "floor_exact/mlm" not in set(summarise(results.runs)["metric"])


@pytest.mark.parametrize(
    "other",
    [
        {"bits_per_byte": {"pseudo": {"value": 1.5, "standard_error": None, "text": "test split", "text_hash": "0"}}},
        {"bits_per_byte": {"test split": {"pseudo": {"value": 1.5}}}},
        {"minimal_pairs": {"x.jsonl": {"pseudo": 0.5}}},
        {"minimal_pairs": [1]},
        {"accuracy": 1},
        [],
    ],
)
def test_an_evaluation_of_another_shape_is_refused(tmp_path, other):
    directory = small_study(tmp_path / "s")
    (directory / "mlm-seed=1" / "evaluation.json").write_text(json.dumps(other))
    with pytest.raises(UserError, match=r"mlm-seed=1/evaluation.json: this file holds something else than evaluations; delete"):
        load(directory)


def test_metrics_are_long_and_keep_every_number(study_directory):
    metrics = load(study_directory).metrics
    lines = [json.loads(line) for line in (study_directory / "bilm-seed=1" / "metrics.jsonl").read_text().splitlines()]
    line = next(line for line in lines if line["step"] == 300 and line["split"] == "valid")
    rows = metrics[(metrics["run"] == "bilm-seed=1") & (metrics["step"] == 300) & (metrics["split"] == "valid")]
    assert dict(zip(rows["metric"], rows["value"], strict=True)) == {k: v for k, v in line.items() if k == "loss" or "/" in k}
    assert set(rows["flops"]) == {line["flops"]} and set(rows["objective"]) == {"biLM"} and set(rows["seed"]) == {"1"}
    assert "learning_rate" in set(metrics["metric"]) and "data_hash" not in set(metrics["metric"])


def test_a_single_run_and_a_fine_tuning_can_be_loaded(tmp_path):
    write_run(tmp_path / "x", "MLM", 1)
    results = load(tmp_path / "x")
    assert results.axes == () and results.variants == ["x"]
    assert {"package/accuracy", "code_spans/f1"} <= set(results.runs.columns)


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "split": "train", "loss": 2.0}\n{"step": 2, "split": "tr')
    assert [line["step"] for line in read_metrics(path)] == [1]
    path.write_bytes('{"step": 1, "split": "train"}\n{"step": 2, "note": "é'.encode()[:-1])
    assert [line["step"] for line in read_metrics(path)] == [1]


@pytest.mark.parametrize("bad", ['{"step": 2, "split": "tr', "[1]", '{"step": 2}', "\udcff"])
def test_any_other_bad_line_is_named(tmp_path, bad):
    path = tmp_path / "metrics.jsonl"
    text = f'{{"step": 1, "split": "train"}}\n{bad}\n{{"step": 3, "split": "train"}}\n'
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=r"metrics\.jsonl:2: "):
        read_metrics(path)


def test_a_bad_last_line_with_its_newline_is_an_error(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "split": "train"}\n{"step": 2, "spl\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl:2: "):
        read_metrics(path)


def test_steps_logged_again_after_a_resume_count_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {s}, "split": "train", "loss": {v}}}\n' for s, v in [(1, 1), (2, 2), (1, 9)]))
    assert [(line["step"], line["loss"]) for line in read_metrics(path)] == [(1, 9), (2, 2)]


def test_status_tells_finished_failed_and_unfinished_apart(tmp_path):
    directory = small_study(tmp_path / "s", per_run={"mlm-seed=1": {"finished": False}, "mlm-seed=2": {}})
    (directory / "mlm-seed=1" / "failed.txt").write_text("RuntimeError: no\n")
    (directory / "mlm-seed=2" / "finetune" / "package" / "result.json").unlink()
    shutil.rmtree(directory / "ltr-seed=2")
    runs = load(directory).runs.set_index("name")
    assert list(runs["status"]) == ["failed", "unfinished", "finished", "unfinished"]
    assert runs.loc["mlm-seed=1", "error"] == "RuntimeError: no"
    assert runs.loc["mlm-seed=1", "step"] == 1500
    assert set(summarise(load(directory).runs)["variant"]) == {"LTR"}


def test_summary_is_the_mean_and_sample_deviation_over_seeds(tmp_path):
    results = load(small_study(tmp_path / "s"))
    row = summarise(results.runs).set_index(["variant", "metric"]).loc[("MLM", "code_spans/f1")]
    assert row["mean"] == pytest.approx(0.72)
    assert row["sd"] == pytest.approx(statistics.stdev([0.70, 0.74]))
    assert row["seeds"] == 2
    assert set(summarise(results.runs)["metric"]).isdisjoint({"seed", "objective", "data_hash"})


def test_differences_are_paired_by_seed(tmp_path):
    results = load(small_study(tmp_path / "s"))
    found = difference(results, "code_spans/f1", "MLM", "LTR")
    assert found.mean == pytest.approx((0.01 + 0.04) / 2)
    assert found.sd == pytest.approx(statistics.stdev([0.01, 0.04]))
    assert found.pairs == 2 and not found.beyond_chance
    expected = scipy.stats.ttest_rel([0.70, 0.74], [0.69, 0.70])
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()))
    shutil.rmtree(tmp_path / "s" / "mlm-seed=1")
    shutil.rmtree(tmp_path / "s" / "ltr-seed=2")
    lonely = load(tmp_path / "s")
    assert not comparable(lonely, "code_spans/f1", "MLM", "LTR")
    with pytest.raises(UserError, match="fewer than 2 nothing can be told from chance; run more seeds"):
        difference(lonely, "code_spans/f1", "MLM", "LTR")
    for call, message in (
        (("code_spans/f2", "MLM", "LTR"), "has 'code_spans/f2'; it has .*code_spans/f1"),
        (("code_spans/f1", "MLM", "RTL"), "no variant 'RTL'; it has MLM, LTR"),
    ):
        with pytest.raises(UserError, match=message):
            difference(lonely, *call)


def test_fine_tuning_seeds_are_nested_in_those_of_pretraining(tmp_path):
    """Their means are compared, and the interval is the multi-bootstrap's."""
    study = objectives_study((1, 2, 3), ("MLM", "LTR"))
    study = dataclasses.replace(study, axes={**study.axes, "finetune.seed": [1, 2]})
    scores = {"MLM": [[0.7, 0.8], [0.6, 0.7], [0.9, 0.8]], "LTR": [[0.5, 0.6], [0.6, 0.5], [0.7, 0.7]]}
    per_run = {
        run.name: {
            "code_spans": scores[run.labels["objective"]][int(run.labels["seed"]) - 1][int(run.labels["finetune.seed"]) - 1]
        }
        for run in study.runs()
    }
    results = load(write_study(tmp_path / "s", study, per_run=per_run))
    table = scores_by_seed(results, "code_spans/f1", "MLM")
    assert table.loc["2"].tolist() == [0.6, 0.7] and list(table.columns) == ["1", "2"]
    found = difference(results, "code_spans/f1", "MLM", "LTR")
    assert found.pairs == 3 and math.isnan(found.p)
    assert found.mean == pytest.approx((0.2 + 0.1 + 0.15) / 3)
    theirs = scores_by_seed(results, "code_spans/f1", "LTR")
    bootstrap = multi_bootstrap(table, theirs, ("MLM", "LTR"))
    assert (found.low, found.high) == (bootstrap.low, bootstrap.high) and found.beyond_chance


def test_a_column_without_numbers_is_not_subtracted(tmp_path):
    results = load(small_study(tmp_path / "s"))
    for column in ("data_hash", "status", "seed"):
        with pytest.raises(UserError, match=f"'{column}' holds no numbers; give a column of scores or costs"):
            difference(results, column, "MLM", "LTR")
    assert difference(results, "tokens", "MLM", "LTR").mean == 0


def scratch_study(directory, first=False):
    """MLM and LTR, and a variant that needs MLM's pretraining but begins its fine-tunings from random values.

    Args:
        directory: The study's.
        first: Whether that variant comes first, so that the pretraining lies in its own directories.
    """
    study = objectives_study((1, 2), ("MLM", "LTR"))
    labels = study.axes["objective"]
    labels |= {"scratch": labels["MLM"] | {"finetune.transfer.random": True}}
    order = ("scratch", "MLM", "LTR") if first else ("MLM", "LTR", "scratch")
    study = dataclasses.replace(study, axes=study.axes | {"objective": {name: labels[name] for name in order}})
    directory.mkdir()
    (directory / "study.json").write_text(json.dumps(describe(study, study.runs())))
    for run in study.runs():
        path, variant = directory / run.name, run.labels["objective"]
        write_run(path, {"scratch": "MLM"}.get(variant, variant), int(run.labels["seed"]))
        floor = {"value": 1.0, "above": 0.5, "above_standard_error": 0.1, "exact": True, "note": ""}
        (path / "floor.json").write_text(json.dumps({"mlm": floor}))
        bits = {"value": 2.0, "standard_error": 0.1, "text_hash": "a0", "tokens": 9, "pieces": 9, "unknown": 0.0}
        evaluation = {"bits_per_byte": {"test split": {"pseudo": bits | {"lowercase": False}}}}
        (path / "evaluation.json").write_text(json.dumps(evaluation))
        write_starts(path, variant == "scratch")
        if run.shares:
            for file in path.glob("*.json*"):
                file.unlink()
    return directory


def test_transfer_costs_are_of_all_stages_and_of_an_adaptation_that_is_shared(tmp_path):
    directory = small_study(tmp_path / "s")
    study = json.loads((directory / "study.json").read_text())
    first, second = (run["name"] for run in study["runs"][:2])
    write_json(directory / second / "finetune" / "package" / "result.json", {"flops": 7.0, "seconds": 3.0, "metrics": {}})
    adapted = directory / first / "adapt" / "package"
    adapted.mkdir(parents=True)
    write_json(adapted / "result.json", {"flops": 100.0, "seconds": 50.0, "metrics": {}})
    study["runs"][1]["shares"] = {"adapt": first}
    write_json(directory / "study.json", study)
    runs = load(directory).runs.set_index("name")
    # As the fixture writes it, a fine-tuning is 1 FLOP and 20 s, on each of two tasks.
    assert list(runs.loc[first, ["transfer/flops", "transfer/seconds"]]) == [102, 90]
    assert list(runs.loc[second, ["transfer/flops", "transfer/seconds"]]) == [108, 73]


def write_starts(run, package, code_spans=None):
    """Notes in the configs of a run's fine-tunings whether they begin from random values."""
    for task, at_random in (("package", package), ("code_spans", package if code_spans is None else code_spans)):
        (run / "finetune" / task / "config.json").write_text(json.dumps({"transfer": {"random": at_random}}))


@pytest.mark.parametrize("first", [False, True])
def test_a_run_from_random_values_has_nothing_of_the_pretraining_it_discards(tmp_path, first):
    results = load(scratch_study(tmp_path / "s", first))
    runs = results.runs.set_index("name")
    row, other = runs.loc["scratch-seed=1"], runs.loc["mlm-seed=1"]
    assert set(runs["status"]) == {"finished"}
    assert [row[cost] for cost in ("step", "tokens", "supervised", "flops", "seconds")] == [0] * 5
    assert shared_curves(results) == {} and set(curves(results)["variant"]) == {"MLM", "LTR"}
    assert row["parameters"] == PARAMETERS and row["package/accuracy"] > 0 and row["data_hash"] == row["biases"] == ""
    of_pretraining = [c for c in runs if c.startswith(("valid/", "test/", "bits_per_byte", "text_hash/", "floor", "above"))]
    assert len(of_pretraining) > 10 and row[of_pretraining].isna().all() and other["bits_per_byte/pseudo"] == 2.0
    assert other["step"] == 1500 and other["floor/mlm"] == 1.0 and other["valid/mlm/loss"] > 0
    for table in (results.metrics, results.data_hashes):
        assert set(table["run"]) == {"mlm-seed=1", "mlm-seed=2", "ltr-seed=1", "ltr-seed=2"}
    assert untrained(results.runs) == ["scratch"]
    assert len(learning_curves(results.metrics, ["mlm/loss"], ["step"], line_styles(results.runs)).axes[0].lines) == 1
    assert compare_data(results)[1] == []


def test_what_a_fine_tuning_began_with_is_read_from_it_and_before_it_began_from_the_study(tmp_path):
    directory = scratch_study(tmp_path / "s")
    steps = lambda: load(directory).runs.set_index("name")["step"]
    write_starts(directory / "scratch-seed=1", True, False)
    assert list(steps()[["scratch-seed=1", "scratch-seed=2"]]) == [1500, 0], "one of its tasks stands on the pretraining"
    shutil.rmtree(directory / "scratch-seed=1" / "finetune")
    assert steps()["scratch-seed=1"] == 0
    write_starts(directory / "mlm-seed=1", True)
    assert steps()["mlm-seed=1"] == 0
    assert list(load(directory / "mlm-seed=1").runs["step"]) == [1500], "alone it is a pretraining, which has its curves"


def test_primary_metric_prefers_f1_then_accuracy(study_directory):
    results = load(study_directory)
    assert primary_metric(results, "code_spans") == "code_spans/f1"
    assert primary_metric(results, "package") == "package/accuracy"
    assert primary_metric(results, "unknown") is None


def test_the_same_data_are_recognised_and_untrained_runs_left_out(study_directory):
    same, problems = compare_data(load(study_directory))
    assert problems == [] and list(same) == ["seed 1", "seed 2"] and same["seed 1"] != same["seed 2"]


def test_runs_of_different_length_are_compared_where_both_logged(tmp_path):
    directory = small_study(tmp_path / "s", per_run={"mlm-seed=1": {"steps": 600}})
    assert compare_data(load(directory))[1] == []


def test_different_data_are_found(tmp_path):
    directory = small_study(tmp_path / "s", per_run={"mlm-seed=2": {"data": "other"}})
    same, (problem,) = compare_data(load(directory))
    assert list(same) == ["seed 1"]
    assert problem.startswith("seed 2: data_hash at step 1,500 is ") and "mlm-seed=2" in problem


def write_data(run, /, **settings):
    """Adds the data's settings to the config.json of a run."""
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | {"data": settings}))


def test_runs_whose_data_differ_by_design_are_not_compared(tmp_path):
    directory = small_study(tmp_path / "s", per_run={f"ltr-seed={seed}": {"data": "stream"} for seed in (1, 2)})
    for seed in (1, 2):
        write_data(directory / f"mlm-seed={seed}", format="segment_pair", seed=seed, directory=f"/{seed}", workers=seed)
        write_data(directory / f"ltr-seed={seed}", format="stream", seed=seed, directory="", workers=0)
    same, problems = compare_data(load(directory))
    assert problems == [] and list(same) == ["seed 1 (MLM)", "seed 1 (LTR)", "seed 2 (MLM)", "seed 2 (LTR)"]
    assert len(set(same.values())) == 4
    for seed in (1, 2):  # another folder and more processes are no other data
        write_data(directory / f"ltr-seed={seed}", format="segment_pair", seed=seed, directory="/other", workers=9)
    same, problems = compare_data(load(directory))
    assert same == {} and [problem.split(":")[0] for problem in problems] == ["seed 1", "seed 2"]


def test_a_directory_without_runs_is_refused(tmp_path):
    with pytest.raises(UserError, match="neither a study"):
        load(tmp_path)
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(UserError, match=r"study\.json: not valid JSON"):
        load(tmp_path)


def test_nothing_run_yet_gives_empty_tables(tmp_path):
    directory = small_study(tmp_path / "s")
    for run in directory.glob("*-seed=*"):
        shutil.rmtree(run)
    results = load(directory)
    assert set(results.runs["status"]) == {"unfinished"} and results.metrics.empty
    assert isinstance(summarise(results.runs), pd.DataFrame)


def test_an_average_is_scored_beside_the_same_most_frequent_answer(tmp_path, monkeypatch):
    monkeypatch.setattr("bertlab.transfer.average.average", lambda finetunings, split: {"average": {"package/accuracy": 0.7}})
    parts = [tmp_path / name / "finetune" / "package" for name in ("forward", "backward")]
    for part in parts:
        part.mkdir(parents=True)
        write_json(part / "most_frequent.json", {"test": {"package/accuracy": 0.25}})
    directory = tmp_path / "average" / "finetune" / "package"
    average_predictions(parts, directory)
    outcome = read_outcome(tmp_path / "average", {"downstream": ["package"], "averages": ["forward", "backward"]}, tmp_path)
    assert (outcome["package/accuracy"], outcome["most_frequent/package/accuracy"]) == (0.7, 0.25)
