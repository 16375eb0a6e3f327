"""The interactive page: its numbers are the report's, nothing in them can break out, and it stays small."""

import base64
import dataclasses
import hashlib
import io
import json
import math
import re

import numpy as np
import pandas as pd
import pytest
from conftest import STEPS, VARIANTS, Elements, objectives_study, write_json, write_run, write_study
from rich.console import Console

from bertlab import checksums, results
from bertlab.studies import explore
from bertlab.studies import report as report_module
from bertlab.studies.curves import curves, mean_curves, score_curves, scores_by_examples
from bertlab.studies.explore import explore_page, intervals, page_data
from bertlab.studies.findings import loss_notices
from bertlab.studies.measurements import X_AXES, Measure, load, scores
from bertlab.studies.report import report
from bertlab.studies.same_data import unlike_losses
from bertlab.studies.statistics import mean_interval
from bertlab.studies.study import Study
from bertlab.studies.sweep import describe

HOSTILE = '</script><img src=x onerror="document.title=1"><!--<script>\u2028\u2029&amp;\'"\\'


def data_of(page):
    """The numbers in a page, as a browser reads them."""
    [text] = [text for attributes, text in Elements(page).named("script") if attributes.get("type") == "application/json"]
    return json.loads(text)


@pytest.fixture(scope="module")
def study(study_directory):
    return load(study_directory)


@pytest.fixture(scope="module")
def data(study):
    return data_of(explore_page(study))


def measure_of(data, id):
    [found] = [measure for measure in data["measures"] if measure["id"] == id]
    return found


def test_the_report_writes_it_beside_its_page(tmp_path, monkeypatch):
    monkeypatch.setattr(report_module, "figures", lambda _: {})
    monkeypatch.setattr(report_module, "html_page", lambda *_: "")
    directory = write_study(tmp_path / "s", objectives_study(variants=("MLM", "LTR")))
    page = report(directory, console=Console(file=io.StringIO())).with_name("explore.html").read_text(encoding="utf-8")
    assert page == explore_page(load(directory))
    assert [attributes["href"] for attributes, _ in Elements(page).named("a")] == ["report.html"]


def test_every_number_of_the_study_is_there_and_exact(data, study):
    summary = results.summarise(study).set_index([*Measure._fields, "variant"])
    named = {measure["id"]: measure for measure in data["measures"] if measure["kind"] == "result"}
    assert len(named) == len(study.measures())
    for measure in study.measures():
        found = named["/".join(filter(None, ("result", measure.stage, measure.task, measure.split, measure.metric)))]
        values = [None if math.isnan(value) else value for value in study.values(measure)]
        assert found["values"] == values, measure
        for i, variant in enumerate(study.variants):
            if (*measure, variant) not in summary.index:
                assert found["mean"][i] is None
                continue
            row = summary.loc[(*measure, variant)]
            assert found["mean"][i] == row["mean"] and found["seeds"][i] == row["seeds"]
            assert found["sd"][i] == row["sd"]
            of = study.values(measure)[list(study.runs.loc[study.runs["variant"] == variant, "run"])]
            low, high = mean_interval(of.set_axis(range(len(of))))
            assert found["low"][i] == (None if math.isnan(low) else pytest.approx(max(low, found_bounds(measure)[0])))
            assert found["high"][i] == (None if math.isnan(high) else pytest.approx(min(high, found_bounds(measure)[1])))


def found_bounds(measure):
    return (0, 1) if measure.metric.endswith(("accuracy", "f1", "precision", "recall")) else (-math.inf, math.inf)


def check_curves(data, measure, means):
    """The curves of a measure are these means."""
    assert len(measure["curves"]) == means["variant"].nunique()
    for curve in measure["curves"]:
        of = means[means["variant"] == data["series"][curve["series"]]["name"].split(" (also")[0]].sort_values("step")
        for column in ("mean", "sd", "low", "high"):
            if column in curve and column in of:
                given = [math.nan if value is None else value for value in curve[column]]
                assert given == pytest.approx(list(of[column]), rel=1e-6, nan_ok=True), column
        if "labels" not in measure:
            places = [data["arrays"][index] for index in curve["x"]]
            given = [[math.nan if value is None else value for value in place] for place in places]
            assert given == [pytest.approx(list(of[axis]), rel=1e-6, nan_ok=True) for axis in X_AXES]


def test_the_page_opens_on_what_the_most_variants_have(data, tmp_path):
    first = lambda data: data["measures"][data["first"]]["id"]
    assert first(data) == "result/finetune/package/test/accuracy", "each loss is of some variants only"
    write = lambda name, *variants: page_data(load(write_study(tmp_path / name, objectives_study((1,), variants))))
    assert first(write("alike", "MLM", "MLM+NSP")) == "curve/mlm/loss", "both have it"
    (tmp_path / "none").mkdir()
    assert page_data(load(write_study(tmp_path / "none", objectives_study((1,)), finished=False)))["first"] == 0


def test_learning_curves_are_those_of_the_report(data, study):
    means = mean_curves(curves(study))
    ids = [f"curve/{name}" for name in means["metric"].unique()]
    assert [measure["id"] for measure in data["measures"]][:3] == ["curve/mlm/loss", "curve/nsp/loss", "curve/ltr/loss"]
    for id in ids:
        measure = measure_of(data, id)
        of = means[means["metric"] == id.removeprefix("curve/")]
        check_curves(data, measure, of)
        for curve in measure["curves"]:  # the mean of the single seeds is the mean
            assert len(curve["seeds"]) == 2
            both = np.array([one["y"] for one in curve["seeds"]])
            assert both.mean(axis=0) == pytest.approx(curve["mean"], rel=1e-6)
            assert both.std(axis=0, ddof=1) == pytest.approx(curve["sd"], abs=1e-6 * both.max())  # of rounded numbers
            names = {data["runs"][one["run"]]["variant"] for one in curve["seeds"]}
            assert names == set(data["series"][curve["series"]]["variants"])


def test_curves_of_training_are_means_over_seeds(data, study):
    train = study.metrics[(study.metrics["split"] == "train") & (study.metrics["metric"] == "ltr/loss")]
    expected = train[train["variant"] == "biLM"].groupby("step")["value"].mean()
    [curve] = [c for c in measure_of(data, "curve/train/ltr/loss")["curves"] if data["series"][c["series"]]["name"] == "biLM"]
    assert curve["mean"] == pytest.approx(list(expected), rel=1e-6) and len(expected) == STEPS / 150


def test_intervals_of_many_means_are_those_of_each():
    rng = np.random.default_rng(0)
    tables = [pd.Series(rng.normal(0.9, 0.1, seeds)) for seeds in (2, 3, 7)] + [pd.Series([0.5, 0.5]), pd.Series([0.3])]
    mean, sd, seeds = (pd.Series([getattr(of, name)() for of in tables]) for name in ("mean", "std", "count"))
    for metric in ("loss", "accuracy"):
        expected = [mean_interval(of) for of in tables]
        if metric == "accuracy":
            expected = [tuple(np.clip(of, 0, 1)) for of in expected]
        assert list(zip(*intervals(mean, sd, seeds, metric))) == [pytest.approx(of, nan_ok=True) for of in expected]


def steps_study(directory, axis, labels, limit="finetune.init_step"):
    """A study of MLM and of no pretraining whose other axis has these labels."""
    axes = {"objective": {"MLM": {}, "No pretraining": {"train.steps": 0}}, axis: {k: {limit: v} for k, v in labels.items()}}
    study = Study("s", "Steps", "?", "c.py", axes | {"seed": [1, 2, 3]}, downstream=("package",))
    directory.mkdir()
    write_json(directory / "study.json", describe(study, study.runs()))
    for run in study.runs():
        write_run(directory / run.name, run.labels["objective"], int(run.labels["seed"]))
    return load(directory)


def test_scores_by_labelled_examples_are_those_of_the_report(tmp_path):
    of = steps_study(tmp_path / "s", "examples", {"100": 100, "all": 0}, "finetune.task_data.limit")
    data, table = page_data(of), scores_by_examples(of, scores(of))
    assert len(table) == 4
    measure = measure_of(data, "examples/package/accuracy")
    assert measure["labels"] == ["100", "all"]
    check_curves(data, measure, table.assign(step=table["examples"].map(measure["labels"].index)))
    assert [len(curve["seeds"]) for curve in measure["curves"]] == [3, 3]


def test_scores_along_pretraining_are_those_of_the_report(tmp_path):
    of = steps_study(tmp_path / "s", "steps", {"150": 150, "1500": 1500})
    for run in of.path.glob("mlm-*"):
        costs = lambda step: {name: 7.0 * step for name in X_AXES[1:]}
        write_json(run / "costs.json", {str(step): costs(step) for step in (150, 1500)})
    of = load(of.path)
    data, table = page_data(of), score_curves(of, scores(of))
    measure = measure_of(data, "along/package/accuracy")
    assert set(table["variant"]) == {"MLM", "No pretraining"}
    check_curves(data, measure, table)


def hostile_study(directory):
    """A study that has hostile text wherever its files may have some."""
    study = dataclasses.replace(objectives_study(variants=("MLM", "LTR")), title=HOSTILE, question=HOSTILE)
    write_study(directory, study)
    described = json.loads((directory / "study.json").read_text())
    for run in described["runs"]:
        if run["labels"]["objective"] == "MLM":
            run["labels"]["objective"] = HOSTILE
        else:
            run["labels"]["objective"] = "__proto__"
    write_json(directory / "study.json", described)
    for run in described["runs"]:
        path = directory / run["name"] / "metrics.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line | {f"{HOSTILE}/loss": 1.0}) + "\n" for line in lines))
    return directory


def test_nothing_in_a_study_can_break_out_of_the_data(tmp_path):
    page = explore_page(load(hostile_study(tmp_path / "s")))
    elements = Elements(page)
    assert [attributes.get("type") for attributes, _ in elements.named("script")] == ["application/json", None]
    assert not elements.named("img") and "<!--" not in page
    assert [name for _, attributes, _ in elements.found for name in attributes if name.startswith("on")] == []
    data = data_of(page)
    assert [data["series"][i]["name"] for i in range(data["variants"])] == [HOSTILE, "__proto__"]
    assert f"curve/{HOSTILE}/loss" in [measure["id"] for measure in data["measures"]]
    [(_, title)] = elements.named("title")
    assert HOSTILE in title and "\u2028" not in page.split('id="data"')[1].split("</script>")[0]


def test_the_policy_names_the_script_and_the_style_and_allows_nothing_else(study):
    elements = Elements(explore_page(study))
    [policy] = [of["content"] for of, _ in elements.named("meta") if of.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    digest = lambda text: f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    [script] = [text for attributes, text in elements.named("script") if "type" not in attributes]
    [(_, style)] = elements.named("style")
    assert rules["script-src"] == digest(script) and rules["style-src"] == digest(style)
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'" and rules["img-src"] == "data:"
    assert rules["require-trusted-types-for"] == "'script'" and rules["trusted-types"] == "'none'"
    assert len(rules) == 8
    assert not [name for _, attributes, _ in elements.found for name in attributes if name == "style" or name.startswith("on")]


def test_the_script_has_no_way_from_text_to_code_or_to_the_network():
    script = explore.resources.files("bertlab.studies").joinpath("explore.js").read_text(encoding="utf-8")
    to_code = r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|Function\("
    to_network = r"import\(|fetch\(|XMLHttp|WebSocket|https?:|</|<!--"
    assert not re.search(f"{to_code}|{to_network}", script)
    assert script.count("location") == 1 and script.count("setAttribute(key, value)") == 1


def test_a_page_is_kept_small_and_says_what_it_lacks(study, monkeypatch):
    whole = page_data(study)
    assert whole["left_out"] == []
    monkeypatch.setattr(explore, "POINTS", 4)
    monkeypatch.setattr(explore, "FEWEST_POINTS", 4)
    thin = measure_of(page_data(study), "curve/mlm/loss")["curves"][0]
    assert len(thin["mean"]) == 4 and [thin["mean"][0], thin["mean"][-1]] == [
        measure_of(whole, "curve/mlm/loss")["curves"][0]["mean"][i] for i in (0, -1)
    ]
    monkeypatch.setattr(explore, "NUMBERS", 2000)
    small = page_data(study)
    main = [measure["id"] for measure in small["measures"] if measure.get("main")]
    assert main == [measure["id"] for measure in whole["measures"] if measure.get("main")], "the most important is there"
    assert "learning_rate, train" in small["left_out"]
    assert numbers_in(small["measures"]) <= 2000 < numbers_in(whole["measures"])


def numbers_in(measures):
    """How many numbers the measures have; the places of curves on the axes, which they share, are not counted."""
    parts = [*measures, *(curve for measure in measures for curve in measure.get("curves", ()))]
    parts += [one for part in parts if "curves" not in part for one in part["seeds"] if isinstance(one, dict)]
    names = ("mean", "sd", "low", "high", "values", "y")
    return sum(len(part[name]) for part in parts for name in names if name in part)


def test_a_thousand_runs_make_a_page_of_a_few_megabytes(study):
    """By copies of one study's runs as other variants, each with its own numbers."""
    copies = 100

    def copied(table):
        rng = np.random.default_rng(0)
        parts = [table.assign(copy=i) for i in range(copies)]
        joined = pd.concat(parts, ignore_index=True)
        for column in ("run", "variant"):
            if column in joined:
                joined[column] = joined[column] + " " + joined["copy"].astype(str)
        if "value" in joined:
            joined["value"] = joined["value"] * rng.uniform(0.9, 1.1, len(joined))
        return joined.drop(columns="copy")

    described = [{**run, "name": f"{run['name']} {i}"} for i in range(copies) for run in study.study["runs"]]
    many = dataclasses.replace(
        study,
        study={**study.study, "runs": described},
        runs=copied(study.runs),
        measurements=copied(study.measurements),
        metrics=copied(study.metrics[(study.metrics["split"] == "valid") & study.metrics["metric"].str.endswith("/loss")]),
    )
    assert len(many.runs) == 1000
    page = explore_page(many)
    assert len(page) < 6e6 and data_of(page)["variants"] == len(VARIANTS) * copies


@pytest.mark.parametrize("finished", [True, False])
def test_a_single_run_has_a_page(tmp_path, finished):
    write_run(tmp_path / "run", "MLM", 1, finished=finished)
    data = page_data(load(tmp_path / "run"))
    assert data["variants"] == 1 and [of["series"] for of in measure_of(data, "curve/mlm/loss")["curves"]] == [1]
    assert any(measure["kind"] == "result" for measure in data["measures"]) == finished


def test_a_study_of_which_nothing_has_begun_has_a_page(tmp_path):
    study = objectives_study((1,), ("MLM",))
    (tmp_path / "s").mkdir()
    write_json(tmp_path / "s" / "study.json", describe(study, study.runs()))
    console = Console(file=io.StringIO())
    page = report(tmp_path / "s", console=console).with_name("explore.html").read_text(encoding="utf-8")
    assert data_of(page)["measures"] == []


def test_losses_of_one_objective_with_other_settings_are_named_and_not_shown_first(tmp_path):
    study = objectives_study((1,), ("MLM", "MLM+NSP"))
    folder = write_study(tmp_path / "study", study)
    tokenizer, runs = {"kind": "unigram", "vocab_size": 400}, [run.name for run in study.runs()]

    def asked(**second):
        for run, of in zip(runs, ({}, second)):
            data = {"tokenizer": tokenizer | of.get("tokenizer", {}), "format": of.get("format", "segments"), "seq_len": 8}
            entry = {"weight": of.get("weight", 1.0), "final_weight": None, "rate": of.get("rate", 0.15)}
            config = {"train": {"steps": 100}, "seed": 1, "data": data, "objectives": {"mlm": entry}}
            (folder / run / "config.json").write_text(json.dumps(config))
        results = load(folder)
        data = page_data(results)
        return unlike_losses(results), loss_notices(results), data["measures"][data["first"]]["id"]

    score = "result/finetune/package/test/accuracy"
    for alike in ({}, {"weight": 2.0}):
        assert asked(**alike) == ({}, [], "curve/mlm/loss")
    others = {"rate": (0.4, "objectives.mlm.rate"), "format": ("full_sentences", "data.format")}
    for key, (value, name) in (others | {"tokenizer": ({"vocab_size": 99}, "data.tokenizer.vocab_size")}).items():
        unlike, (said,), first = asked(**{key: value})
        assert unlike == {"mlm": [name]} and name in said and first == score

    def with_tokenizers(*names):
        for run, name in zip(runs, names):
            (folder / run / "files.json").write_text(json.dumps({"tokenizer/vocab.txt": {"bytes": 1, "blake2b": name}}))
        return unlike_losses(load(folder))

    asked(tokenizer={"path": "elsewhere"})
    for run in runs:
        (folder / run / "tokenizer").mkdir()
        (folder / run / "tokenizer" / "vocab.txt").write_text("a")
    digest, other = (checksums.digest_of(text) for text in (b"a", b"b"))
    assert with_tokenizers(digest, digest) == {}, "the same one in another folder"
    (folder / runs[1] / "tokenizer" / "vocab.txt").write_text("b")
    assert with_tokenizers(digest, other) == {"mlm": ["data.tokenizer"]}
