"""Selection by held-out training examples: the test scores of what was not selected have no say."""

import json
import math

import pandas as pd
import pytest
import scipy.stats

from bertlab.studies.report import report
from bertlab.studies.results import load, primary_metric
from bertlab.studies.selection import half_width, selections
from bertlab.studies.tables import selection_table

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


@pytest.fixture
def study(tmp_path):
    """The directory of a study whose runs were fine-tuned on one task, as a sweep leaves it."""
    runs = []
    for (model, rate, seed), scores in SCORES.items():
        name = f"{model}-{rate}-{seed}"
        labels = {"model": model, "rate": rate, "seed": seed}
        runs.append({"name": name, "labels": labels, "config": "run:x", "overrides": {}, "downstream": {"words": {}}})
        directory = tmp_path / name / "finetune" / "words"
        directory.mkdir(parents=True)
        if scores is None:
            (tmp_path / name / "failed.txt").write_text("error: it diverged\n")
            continue
        (tmp_path / name / "result.json").write_text(json.dumps({"run": "x", "step": 0, "metrics": {}}))
        metrics = {split: {"words/f1": 0.1, "words/accuracy": v} for split, v in zip(("valid", "test"), scores)}
        (directory / "result.json").write_text(json.dumps({"step": 1, "metrics": metrics}))
        (directory / "config.json").write_text(json.dumps({"metrics": {"words": "accuracy"}}))
    axes = {"model": ["big", "small"], "rate": ["low", "high"], "seed": ["1", "2", "3"]}
    described = {"name": "s", "title": "S", "question": "?", "command": "", "axes": axes, "downstream": ["words"], "runs": runs}
    (tmp_path / "study.json").write_text(json.dumps(described | {"select": ["rate"]}))
    return tmp_path


def test_the_best_on_valid_is_reported_on_test(study):
    results = load(study)
    assert primary_metric(results, "words") == "words/accuracy", "the task's own first metric, though there is an F1"
    found = selections(results).set_index("variant")
    big, small = found.loc["big"], found.loc["small"]
    assert (big["chosen"], small["chosen"]) == ("rate=high", "rate=low")
    assert (big["test"], big["best"], big["seeds"], big["failed"]) == (pytest.approx(0.62), 0.64, 2, 1)
    assert (small["test"], small["valid"], small["failed"]) == (pytest.approx(0.525), pytest.approx(0.51), 0)
    assert big["sd"] == pytest.approx(math.sqrt(0.0008))
    low, high = scipy.stats.t.interval(0.95, 1, loc=0.62, scale=math.sqrt(0.0008 / 2))
    assert big["interval"] == pytest.approx((high - low) / 2)
    text = selection_table(results)
    assert list(text.index) == ["words accuracy: big", "words accuracy: small"]
    html = report(study)
    assert "on `valid` alone, among what has fewest runs without a score" in html.read_text()


def test_one_seed_has_no_interval():
    assert math.isnan(half_width(pd.Series([0.5])))
