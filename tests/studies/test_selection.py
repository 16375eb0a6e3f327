"""What tables and sentences say of scores: selected on `valid` alone, by seeds that are independent, as certain as they are."""

import dataclasses
import json
import math

import numpy as np
import pytest
import scipy.stats

from bertlab.run import Run, StudyDirectory
from bertlab.studies.comparisons import compare_all, difference, find
from bertlab.studies.findings import findings, notices
from bertlab.studies.measurements import load, score_of_task
from bertlab.studies.report import html_tables, report, run_rows, show
from bertlab.studies.seeds import summarise
from bertlab.studies.selection import at_selected_labels, selections
from bertlab.studies.tables import (
    DIFFERENCES,
    SEEDS,
    SELECTED_NOTE,
    difference_table,
    grouped_tables,
    notes,
    selection_table,
    table,
)

# (model, rate, seed) -> valid, test. The rate that is best on test is not best on valid; one that is better still there failed.
SCORES = {
    ("big", "low", "1"): (0.70, 0.90),
    ("big", "low", "2"): (0.72, 0.92),
    ("big", "high", "1"): (0.80, 0.60),
    ("big", "high", "2"): (0.82, 0.64),
    ("big", "huge", "1"): (0.99, 0.99),
    ("big", "huge", "2"): None,
    ("small", "low", "1"): (0.50, 0.55),
    ("small", "low", "2"): (0.52, 0.50),
    ("small", "high", "1"): (0.40, 0.80),
}


def write_scores(directory, scores, axes, select=()):
    """The results of a study with one task: scores are {labels: test score, or (valid, test), or None of a failed run}."""
    runs = []
    for labels, score in scores.items():
        name = "-".join(labels)
        named = dict(zip(axes, labels))
        runs.append({"name": name, "labels": named, "config": "", "overrides": {}, "downstream": {"words": {}}})
        run, task = Run(directory / name), Run(directory / name).stage("finetune", "words")
        if score is None:
            run.failed.write("error: it diverged\n")
            continue
        run.result.write({"run": name, "step": 0, "metrics": {}})
        more, both = ({"words/f1": 0.1}, score) if isinstance(score, tuple) else ({}, (score, score))
        metrics = {split: {**more, "words/accuracy": value} for split, value in zip(("valid", "test"), both)}
        task.directory.mkdir(parents=True)
        (task.directory / "result.json").write_text(json.dumps({"step": 1, "metrics": metrics}))  # perhaps infinite
        task.config.write({"metrics": {"words": "accuracy"}})
    found = {axis: list(dict.fromkeys(labels[place] for labels in scores)) for place, axis in enumerate(axes)}
    described = {"name": "s", "title": "S", "question": "?", "command": "", "axes": found, "downstream": ["words"]}
    StudyDirectory(directory).study.write(described | {"runs": runs, "select": list(select)})
    return load(directory)


def test_the_best_on_valid_is_reported_on_test(tmp_path):
    results = write_scores(tmp_path, SCORES, ("model", "rate", "seed"), select=["rate"])
    assert score_of_task(results, "words").name == "words/accuracy", "the task's own first metric, though there is an F1"
    found = selections(results).set_index("variant")
    big, small = found.loc["big"], found.loc["small"]
    assert (big["chosen"], small["chosen"]) == ("rate=high", "rate=low")
    assert (big["test"], big["best"], big["seeds"], big["failed"]) == (pytest.approx(0.62), 0.64, 2, 1)
    assert (small["test"], small["valid"], small["failed"]) == (pytest.approx(0.525), pytest.approx(0.51), 0)
    assert big["sd"] == pytest.approx(math.sqrt(0.0008))
    low, high = scipy.stats.t.interval(0.95, 1, loc=0.62, scale=math.sqrt(0.0008 / 2))
    assert (big["low"], big["high"]) == (pytest.approx(low), pytest.approx(high))
    assert list(selection_table(results).index) == ["words accuracy (%): big", "words accuracy (%): small"]
    assert SELECTED_NOTE in notes(results)[SEEDS]


def test_variants_are_compared_at_the_labels_that_valid_selects(tmp_path):
    """Of each task its own; the label that is best on test is not asked."""
    scores = SCORES | {
        ("small", "low", "2"): (0.52, 0.55),
        ("small", "low", "3"): (0.51, 0.55),
        ("big", "high", "3"): (0.81, 0.61),
        ("big", "low", "3"): (0.7, 0.9),
    }
    results = write_scores(tmp_path, scores, ("model", "rate", "seed"), select=["rate"])
    study = {**results.study, "claims": [{"higher": "small", "lower": "big", "published": "1 and 0", "source": "P"}]}
    results = dataclasses.replace(results, study=study)
    at = at_selected_labels(results)
    assert at.variants == ["big", "small"] and at.axes == ("model", "seed") and len(at.runs) == 6
    measure = score_of_task(at, "words")
    assert at.values(measure).round(2).tolist() == [0.60, 0.64, 0.55, 0.55, 0.55, 0.61]
    found = find(compare_all(results), measure, "big", "small")
    assert found.pairs == 3 and found.mean == pytest.approx(np.mean([0.05, 0.09, 0.06])) and found.low > 0
    assert "disagrees" in findings(results, compare_all(results))[0]
    assert at_selected_labels(at) is at
    compared = compare_all(results)
    frame = grouped_tables(results, compared)[0]
    assert list(frame.index) == ["big", "small"], "the tables are of what is compared"
    marked = [(variant, best) for variant, cells in html_tables(at, show(results))[0]["rows"] for _, best in cells]
    assert ("big", True) in marked and ("small", True) not in marked
    assert len(run_rows(results)) > len(at.runs), "the list of runs has all of them"


def test_a_rate_selected_at_the_end_of_its_candidates_is_noticed(tmp_path):
    """Of numbers, not of their order in the study or as text; words have no ends."""
    rates = ["3e-4", "1e-3", "1e-4"]
    best = {"low": "1e-4", "middle": "3e-4", "high": "1e-3"}
    scores = {(name, rate, "1"): (0.9 if rate == best[name] else 0.5, 0.5) for name in best for rate in rates}
    results = write_scores(tmp_path / "rates", scores, ("model", "finetune.rate", "seed"), select=["finetune.rate"])
    said = [text for text in notices(results) if "candidate" in text]
    assert sorted(said) == [
        "finetune.rate=1e-3 is the highest candidate and was selected for high (words); a better one may lie beyond.",
        "finetune.rate=1e-4 is the lowest candidate and was selected for low (words); a better one may lie beyond.",
    ]
    scores |= {("no rate", "", "1"): (0.5, 0.5)}
    some = write_scores(tmp_path / "some", scores, ("model", "finetune.rate", "seed"), select=["finetune.rate"])
    axes = {**some.study["axes"], "finetune.rate": rates}  # as a sweep writes it: "" is no label
    assert notices(dataclasses.replace(some, study={**some.study, "axes": axes})) == notices(results)
    worded = write_scores(tmp_path / "words", SCORES, ("model", "rate", "seed"), select=["rate"])
    assert not any("candidate" in text for text in notices(worded))


def test_a_seed_keeps_its_pretraining_where_the_run_at_another_label_failed(tmp_path):
    write_scores(tmp_path, SCORES | {("big", "low", "1"): None}, ("model", "rate", "seed"), select=["rate"])
    lines = [{"step": 1, "split": "valid", "loss": 2.0, "tokens": 1, "supervised": 1, "flops": 1, "seconds": 1}]
    for name in ("big-low-1", "big-high-1"):
        Run(tmp_path / name).metrics.write("".join(json.dumps(line) + "\n" for line in lines))
    at = at_selected_labels(load(tmp_path))
    of_big = at.runs[(at.runs["model"] == "big") & (at.runs["seed"] == "1")]
    assert list(of_big["run"]) == ["big-high-1"]
    assert list(at.metrics.loc[at.metrics["run"] == "big-high-1", "variant"]) == ["big"] and "rate" not in at.metrics


def test_a_failed_run_has_no_score_at_the_selected_label_and_one_variant_has_the_study_s_name(tmp_path):
    scores = {("high", "1"): (0.5, 0.5), ("high", "2"): (0.5, 0.6), ("low", "1"): (0.6, 0.4), ("low", "2"): (0.6, 0.3)}
    at = at_selected_labels(write_scores(tmp_path, scores, ("rate", "seed"), select=["rate"]))
    assert at.variants == ["S"] and at.values(score_of_task(at, "words")).tolist() == [0.4, 0.3]
    results = load(tmp_path)
    failed = results.runs.assign(status=["finished", "failed", "finished", "failed"])
    at = at_selected_labels(dataclasses.replace(results, runs=failed))
    assert at.values(score_of_task(at, "words")).dropna().tolist() == [0.4]


def test_one_seed_has_no_interval_and_equal_scores_have_none(tmp_path):
    scores = {("one", "1"): 0.5, ("equal", "1"): 0.5, ("equal", "2"): 0.5}
    results = write_scores(tmp_path, scores, ("model", "seed"))
    for row in selections(results).to_dict("records"):
        assert math.isnan(row["low"]) and math.isnan(row["high"]) and row["test"] == 0.5
    assert "nan" not in report(tmp_path).read_text(encoding="utf-8")


def test_fine_tunings_of_one_pretraining_are_not_seeds_of_their_own(tmp_path):
    """Two pretrained models 10 points apart, five fine-tunings of each within one point."""
    scores = {("m", p, f): base + 0.002 * int(f) for p, base in (("1", 0.6), ("2", 0.7)) for f in "12345"}
    results = write_scores(tmp_path, scores, ("model", "seed", "finetune.seed"))
    [row] = selections(results).to_dict("records")
    assert (row["seeds"], row["runs"]) == (2, 10)
    assert row["sd"] == pytest.approx(0.1 / math.sqrt(2))
    pooled = scipy.stats.t.interval(0.95, 9, loc=row["test"], scale=scipy.stats.sem(list(scores.values())))
    assert row["high"] - row["low"] > 5 * (pooled[1] - pooled[0])
    [summary] = summarise(results).query("task == 'words' and split == 'test'").to_dict("records")
    assert (summary["seeds"], summary["runs"], summary["sd"]) == (2, 10, pytest.approx(row["sd"]))
    assert table(results)["", "seeds"].item() == "2 × 5"


def test_intervals_end_where_scores_end(tmp_path):
    """Student's of two seeds reaches far beyond an accuracy of 100 %."""
    scores = {("a", "1"): 0.5, ("a", "2"): 0.9, ("b", "1"): 0.8, ("b", "2"): 0.6}
    results = write_scores(tmp_path, scores, ("model", "seed"))
    assert [(row["low"], row["high"]) for row in selections(results).to_dict("records")] == [(0.0, 1.0), (0.0, 1.0)]
    found = difference(results, "words/accuracy", "a", "b")
    assert (found.low, found.high) == (-1.0, 1.0)


def test_runs_that_are_not_finished_have_no_part_in_any_table(tmp_path):
    write_scores(tmp_path, {("a", str(seed)): score for seed, score in enumerate((0.9, 0.5, 0.6), 1)}, ("model", "seed"))
    (tmp_path / "a-1" / "result.json").unlink()
    (tmp_path / "a-1" / "failed.txt").write_text("error: after its fine-tuning\n")
    results = load(tmp_path)
    [row] = selections(results).to_dict("records")
    [summary] = summarise(results).query("task == 'words' and split == 'test'").to_dict("records")
    assert row["test"] == summary["mean"] == pytest.approx(0.55)
    assert (row["seeds"], row["failed"], summary["seeds"]) == (2, 1, 2)


def test_what_is_said_of_the_best_is_what_the_seeds_in_common_say(tmp_path):
    """a's mean is higher, as its bad seed failed; seed by seed it is below b."""
    a, b = (None, 0.70, 0.71), (0.10, 0.80, 0.815)
    scores = {(name, str(seed)): score for name, of in (("a", a), ("b", b)) for seed, score in enumerate(of, 1)}
    results = write_scores(tmp_path, scores, ("model", "seed"))
    said = findings(results, compare_all(results))[-1]
    assert "a has the highest mean, 70.5\u00a0%, 10.3 points (7.1 to 13.4) below b on the 2 seeds that both have" in said


def test_an_infinite_score_is_no_score(tmp_path):
    scores = {("a", "1"): 0.5, ("a", "2"): math.inf, ("a", "3"): 0.7, ("b", "1"): 0.4, ("b", "2"): 0.5, ("b", "3"): 0.65}
    results = write_scores(tmp_path, scores, ("model", "seed"))
    assert difference(results, "words/accuracy", "a", "b").pairs == 2
    [column] = [c for c in table(results).columns if c[1] == "words accuracy (%)"]
    assert table(results)[column].tolist() == ["60.0 ± 14.1 (2 seeds)", "51.7 ± 12.6"]
    assert report(tmp_path).exists()


@pytest.mark.parametrize("settled", [True, False])
def test_a_sweep_that_was_to_stop_early_is_not_read_as_one_look(settled, tmp_path):
    """Whether it has stopped or not: eight seeds at most are six looks, from the third on."""
    scores = {
        (name, str(seed)): base + 0.01 * seed**of for name, base, of in (("a", 0.5, 1), ("b", 0.6, 2)) for seed in range(3)
    }
    whole = difference_table(compare_all(write_scores(tmp_path, scores, ("model", "seed"))))
    study = StudyDirectory(tmp_path).study.read()
    study["runs"].append(
        {"name": "a-9", "labels": {"model": "a", "seed": "9"}, "config": "", "overrides": {}, "downstream": []}
    )
    StudyDirectory(tmp_path).study.write(study)
    (tmp_path / "until_decided.json").write_text(json.dumps({"task": "words", "max_seeds": 8}))
    if settled:
        (tmp_path / "settled.json").write_text(json.dumps({"sentence": "It was settled"}))
    stopped = difference_table(compare_all(load(tmp_path)))
    p = lambda table: float(table[DIFFERENCES, "p"].item())
    assert p(stopped) == pytest.approx(6 * p(whole), abs=0.004)
    width = lambda table: np.ptp([float(end) for end in table[DIFFERENCES, "95 % interval"].item().split(" to ")])
    assert width(stopped) > 2 * width(whole)
    assert "looked at the scores up to 6 times" in notes(load(tmp_path))[DIFFERENCES]
