"""The long table of measurements: what is read from run directories, and its summaries, comparisons and data checks."""

import dataclasses
import json
import math
import shutil
import statistics

import pytest
import scipy.stats
from conftest import PARAMETERS, objectives_study, write_json, write_run, write_study

from bertlab.errors import UserError
from bertlab.studies.comparisons import compare_all, difference
from bertlab.studies.curves import curves, mean_curves, shared_curves, untrained
from bertlab.studies.findings import verdicts
from bertlab.studies.measurements import COLUMNS, Measure, cost, load, score_of_task
from bertlab.studies.plots import learning_curves, line_styles
from bertlab.studies.same_data import compare_data
from bertlab.studies.seeds import seed_tables, summarise
from bertlab.studies.statistics import multi_bootstrap
from bertlab.studies.sweep import describe
from bertlab.studies.worker import average_predictions

SCORES = {"mlm-seed=1": 0.70, "mlm-seed=2": 0.74, "ltr-seed=1": 0.69, "ltr-seed=2": 0.70}
F1 = Measure("finetune", "code_spans", "test", "f1")


def small_study(directory, scores=SCORES, **options):
    seeds = sorted({int(name[-1]) for name in scores})
    per_run = {name: {"code_spans": score} for name, score in scores.items()}
    for name, more in options.pop("per_run", {}).items():
        per_run[name] |= more
    return write_study(directory, objectives_study(seeds, ("MLM", "LTR")), per_run=per_run, **options)


def write_floor(run, exact=True):
    floor = {"value": 1.0, "above": 0.5, "above_standard_error": 0.1, "exact": exact, "note": ""}
    write_json(run / "floor.json", {"mlm": floor})


def test_every_number_of_a_run_has_a_row(study_directory):
    results = load(study_directory)
    name = "mlm+nsp-seed=2"
    row = results.runs.set_index("run").loc[name]
    assert len(results.runs) == 10 and results.measurements.columns.tolist() == list(COLUMNS)
    assert row[["objective", "seed", "variant", "status"]].tolist() == ["MLM+NSP", "2", "MLM+NSP", "finished"]
    result = json.loads((study_directory / name / "result.json").read_text())
    metrics = json.loads((study_directory / name / "finetune" / "code_spans" / "result.json").read_text())["metrics"]
    assert row["data_hash"] == result["data_hash"]
    of = lambda *measure: results.values(Measure(*measure))[name]
    assert of("pretrain", "", "", "tokens") == result["tokens"] and of("transfer", "", "", "seconds") == 2 * 20
    assert of("pretrain", "", "valid", "nsp/loss") == result["metrics"]["valid"]["nsp/loss"]
    assert of(*F1) == metrics["test"]["code_spans/f1"] and of("finetune", "code_spans", "valid", "loss") == 0.2
    assert results.values(Measure("pretrain", "", "valid", "mlm/loss")).isna()["ltr-seed=1"]
    assert not results.measurements.duplicated(list(COLUMNS[:5])).any()
    wide = results.wide("code_spans/f1", "tokens").set_index("run")
    assert wide.loc[name, ["code_spans/f1", "tokens"]].tolist() == [of(*F1), result["tokens"]]
    assert results.find("mlm/loss", "valid").stage == "pretrain"
    for call in (lambda: results.find("code_spans/f2"), lambda: results.wide("code_spans/f2")):
        with pytest.raises(UserError, match=r"'code_spans/f2'.* code_spans/f1"):
            call()


def test_a_bound_is_told_from_a_floor(tmp_path):
    directory = small_study(tmp_path / "s")
    for name in SCORES:
        write_floor(directory / name, exact=name != "mlm-seed=2")
    results = load(directory)
    of = lambda metric: results.values(Measure("floor", "", "test", f"mlm/{metric}"))
    assert of("lower_bound").dropna().index.tolist() == ["mlm-seed=2"]
    assert of("floor").notna().tolist() == [True, False, True, True] and of("above").tolist() == [0.5] * 4
    assert results.standard_errors(Measure("floor", "", "test", "mlm/above")).tolist() == [0.1] * 4


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
    write_run(tmp_path / "x", "MLM", 1)
    write_json(tmp_path / "x" / "evaluation.json", other)
    with pytest.raises(UserError, match=r"x/evaluation\.json"):
        load(tmp_path / "x")


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
    assert {"package/accuracy", "code_spans/f1"} <= {measure.name for measure in results.measures(stage="finetune")}


def test_status_tells_finished_failed_and_unfinished_apart(tmp_path):
    directory = small_study(tmp_path / "s", per_run={"mlm-seed=1": {"finished": False}, "mlm-seed=2": {}})
    (directory / "mlm-seed=1" / "failed.txt").write_text("RuntimeError: no\n")
    (directory / "mlm-seed=2" / "finetune" / "package" / "result.json").unlink()
    shutil.rmtree(directory / "ltr-seed=2")
    results = load(directory)
    assert list(results.runs["status"]) == ["failed", "unfinished", "finished", "unfinished"]
    assert results.runs["error"].iloc[0] == "RuntimeError: no"
    assert results.values(cost("step"))["mlm-seed=1"] == 1500, "from its last line"
    assert set(summarise(results)["variant"]) == {"LTR"}
    for run in directory.glob("*-seed=*"):
        shutil.rmtree(run)
    nothing = load(directory)
    assert set(nothing.runs["status"]) == {"unfinished"} and nothing.metrics.empty and summarise(nothing).empty


def test_differences_are_paired_by_seed(tmp_path):
    results = load(small_study(tmp_path / "s"))
    found = difference(results, "code_spans/f1", "MLM", "LTR")
    assert found.mean == pytest.approx((0.01 + 0.04) / 2)
    assert found.sd == pytest.approx(statistics.stdev([0.01, 0.04]))
    assert found.pairs == 2 and not found.beyond_chance
    expected = scipy.stats.ttest_rel([0.70, 0.74], [0.69, 0.70])
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()))
    assert difference(results, "tokens", "MLM", "LTR").mean == 0
    shutil.rmtree(tmp_path / "s" / "mlm-seed=1")
    shutil.rmtree(tmp_path / "s" / "ltr-seed=2")
    lonely = load(tmp_path / "s")
    for call, message in (
        (("code_spans/f1", "MLM", "LTR"), "at least 2"),
        (("code_spans/f2", "MLM", "LTR"), "'code_spans/f2'.*code_spans/f1"),
        (("data_hash", "MLM", "LTR"), "'data_hash'"),
        (("code_spans/f1", "MLM", "RTL"), "'RTL'.* MLM, LTR"),
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
    tables = seed_tables(results, F1)
    assert tables["MLM"].loc["2"].tolist() == [0.6, 0.7] and list(tables["MLM"].columns) == ["1", "2"]
    found = difference(results, "code_spans/f1", "MLM", "LTR")
    assert found.pairs == 3 and math.isnan(found.p)
    assert found.mean == pytest.approx((0.2 + 0.1 + 0.15) / 3)
    bootstrap = multi_bootstrap(tables["MLM"], tables["LTR"], ("MLM", "LTR"))
    assert (found.low, found.high) == (bootstrap.low, bootstrap.high) and found.beyond_chance


def scratch_study(directory, first=False):
    """MLM and LTR, and a variant that needs MLM's pretraining but starts its fine-tunings from random values.

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
    write_json(directory / "study.json", describe(study, study.runs()))
    for run in study.runs():
        path, variant = directory / run.name, run.labels["objective"]
        write_run(path, {"scratch": "MLM"}.get(variant, variant), int(run.labels["seed"]))
        write_floor(path)
        bits = {"value": 2.0, "standard_error": 0.1, "text_hash": "a0", "tokens": 9, "pieces": 9, "unknown": 0.0}
        write_json(path / "evaluation.json", {"bits_per_byte": {"test split": {"pseudo": bits | {"lowercase": False}}}})
        write_starts(path, variant == "scratch")
        if run.shares:
            for file in path.glob("*.json*"):
                file.unlink()
    return directory


def write_starts(run, package, code_spans=None):
    """Notes in the configs of a run's fine-tunings whether they start from random values."""
    for task, at_random in (("package", package), ("code_spans", package if code_spans is None else code_spans)):
        write_json(run / "finetune" / task / "config.json", {"transfer": {"random": at_random}})


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
    costs = load(directory).wide("transfer/flops", "transfer/seconds").set_index("run").iloc[:, -2:]
    # As the fixture writes it, a fine-tuning is 1 FLOP and 20 s, on each of two tasks.
    assert costs.loc[first].tolist() == [102, 90] and costs.loc[second].tolist() == [108, 73]


@pytest.mark.parametrize("first", [False, True])
def test_a_run_from_random_values_has_nothing_of_the_pretraining_it_discards(tmp_path, first):
    results = load(scratch_study(tmp_path / "s", first))
    runs = results.runs.set_index("run")
    rows = results.measurements.groupby("run")
    assert set(runs["status"]) == {"finished"}
    scratch = rows.get_group("scratch-seed=1").set_index(["stage", "metric"])["value"]
    assert scratch["pretrain"].to_dict() == {"parameters": PARAMETERS} | dict.fromkeys(
        ("step", "tokens", "supervised", "flops", "seconds"), 0
    )
    assert set(scratch.index.get_level_values("stage")) == {"pretrain", "finetune", "transfer"}
    assert set(rows.get_group("mlm-seed=1")["stage"]) == {"pretrain", "finetune", "transfer", "floor", "evaluate"}
    assert results.values(cost("step"))["mlm-seed=1"] == 1500
    assert shared_curves(results) == {} and set(curves(results)["variant"]) == {"MLM", "LTR"}
    assert runs.loc["scratch-seed=1", ["data_hash", "biases", "trained"]].tolist() == [""] * 3
    for table in (results.metrics, results.data_hashes, results.text_hashes):
        assert set(table["run"]) == {"mlm-seed=1", "mlm-seed=2", "ltr-seed=1", "ltr-seed=2"}
    assert untrained(results) == ["scratch"]
    figure = learning_curves(mean_curves(results.metrics), ["mlm/loss"], ["step"], line_styles(results.runs))
    assert len(figure.axes[0].lines) == 1
    assert compare_data(results)[1] == []


def test_what_a_fine_tuning_began_with_is_read_from_it_and_before_it_began_from_the_study(tmp_path):
    directory = scratch_study(tmp_path / "s")
    steps = lambda: load(directory).values(cost("step"))
    write_starts(directory / "scratch-seed=1", True, False)
    assert list(steps()[["scratch-seed=1", "scratch-seed=2"]]) == [1500, 0], "one of its tasks stands on the pretraining"
    shutil.rmtree(directory / "scratch-seed=1" / "finetune")
    assert steps()["scratch-seed=1"] == 0
    write_starts(directory / "mlm-seed=1", True)
    assert steps()["mlm-seed=1"] == 0
    assert list(load(directory / "mlm-seed=1").values(cost("step"))) == [1500], "by itself it is a pretraining, with curves"


def test_a_task_is_reported_by_f1_then_accuracy(study_directory):
    results = load(study_directory)
    assert score_of_task(results, "code_spans") == F1
    assert score_of_task(results, "package").name == "package/accuracy"
    assert score_of_task(results, "unknown") is None


def test_the_same_data_are_recognised_and_untrained_runs_left_out(study_directory):
    same, problems = compare_data(load(study_directory))
    assert problems == [] and list(same) == ["seed 1", "seed 2"] and same["seed 1"] != same["seed 2"]


def test_different_data_are_found_where_both_logged(tmp_path):
    directory = small_study(tmp_path / "s", per_run={"mlm-seed=1": {"steps": 600}, "mlm-seed=2": {"data": "other"}})
    same, (problem,) = compare_data(load(directory))
    assert list(same) == ["seed 1"], "compared at the last common step"
    assert problem.startswith("seed 2: data_hash at step 1,500 is ") and "mlm-seed=2" in problem


def write_data(run, /, **settings):
    """Adds the data's settings to the config.json of a run."""
    config = json.loads((run / "config.json").read_text())
    write_json(run / "config.json", config | {"data": settings})


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
    with pytest.raises(UserError, match=r"study\.json.*config\.json, metrics\.jsonl"):
        load(tmp_path)
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(UserError, match=r"study\.json: not valid JSON"):
        load(tmp_path)


def test_an_average_is_scored_beside_the_same_most_frequent_answer_and_costs_what_its_parts_cost(tmp_path, monkeypatch):
    monkeypatch.setattr("bertlab.transfer.average.average", lambda finetunings, split, task: {"average": {"accuracy": 0.7}})
    directory = small_study(tmp_path / "s")
    study = json.loads((directory / "study.json").read_text())
    names = [run["name"] for run in study["runs"]]
    parts = [directory / name / "finetune" / "package" for name in names[:2]]
    for part in parts:
        write_json(part / "most_frequent.json", {"test": {"package/accuracy": 0.25}})
        write_json(part / "config.json", {"task": "package"})  # the directory may have another name: package_1000
    shutil.rmtree(directory / names[2])
    average_predictions(parts, directory / names[2] / "finetune" / "package", "package")
    result = json.loads((directory / names[2] / "finetune" / "package" / "result.json").read_text())
    assert result["metrics"]["test"] == {"package/accuracy": 0.7}
    study["runs"][2] |= {"averages": names[:2], "downstream": {"package": {}}}
    write_json(directory / "study.json", study)
    wide = load(directory).wide(
        "package/accuracy", "most_frequent/package/accuracy", "tokens", "transfer/seconds", "parameters"
    )
    row, one = (wide.set_index("run").loc[name] for name in (names[2], names[0]))
    assert row["status"] == "finished" and row[["package/accuracy", "most_frequent/package/accuracy"]].tolist() == [0.7, 0.25]
    costs = ["tokens", "transfer/seconds", "parameters"]
    assert row[costs].tolist() == (2 * one[costs]).tolist()


def test_tasks_that_are_a_list_of_names_have_no_settings(tmp_path):
    directory = small_study(tmp_path / "s")
    expected, study = load(directory), json.loads((directory / "study.json").read_text())
    for run in study["runs"]:
        run["downstream"] = [*run["downstream"]]
    claims = [{"higher": "MLM", "lower": "LTR", "published": "1 against 2", "source": "a paper"}]
    write_json(directory / "study.json", study | {"claims": claims})
    found = load(directory)
    assert found.measurements.equals(expected.measurements)
    assert [verdict.measure.task for verdict in verdicts(found, compare_all(found))] == ["package", "code_spans"]
