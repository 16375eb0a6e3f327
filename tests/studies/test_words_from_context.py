"""Words' vectors as a study: what is asked for is measured after training; results are those of `bertlab similarity`."""

import dataclasses
import json
from pathlib import Path

import pytest

from bertlab.config import load_config
from bertlab.errors import UserError
from bertlab.studies import worker
from bertlab.studies.measurements import Measure, load
from bertlab.studies.same_data import compare_texts
from bertlab.studies.study import load_study
from bertlab.studies.sweep import describe
from bertlab.studies.tables import SCALES, table
from bertlab.transfer.pretrain import pretrain
from bertlab.transfer.similarity import similarity
from tests.conftest import ROOT
from tests.studies.golden import label

ABLATIONS = ROOT / "experiments/ablations"
STUDY = ABLATIONS / "words_from_context.py"
KEYS = ("words", "analogies", "word_text")


def test_its_pretrainings_are_those_of_static_contextual():
    trained = lambda name: {
        run.labels["model"]: load_config(run.config, run.overrides)
        for run in load_study(f"{ABLATIONS}/{name}.py:seeds=1,scale=tiny").runs()
    }
    assert trained("words_from_context") == trained("static_contextual")


def test_what_is_measured_is_named_in_the_study():
    runs = load_study(f"{STUDY}:seeds=1,words=a.txt,b.txt,analogies=c.txt,text=d.txt").runs()
    asked = {tuple(load_config(run.config, run.overrides).evaluate[key] for key in KEYS) for run in runs}
    assert asked == {("a.txt,b.txt", "c.txt", "d.txt")} and len(runs) == 6
    with pytest.raises(UserError, match=r"^text= has no effect without words= or analogies="):
        load_study(f"{STUDY}:text=d.txt")


@pytest.fixture
def files(tmp_path):
    (tmp_path / "rated.txt").write_text("value object 7\nobject module 5\nvalue module 1\nthe nothere 2\n")
    (tmp_path / "questions.txt").write_text(": capital\nvalue object module the\nobject value the module\n")
    sentences = ["the value of the object is here", "the module has an object", "a value and a module"]
    (tmp_path / "text.txt").write_text("\n".join(sentences * 2) + "\n")
    return {
        "words": str(tmp_path / "rated.txt"),
        "analogies": str(tmp_path / "questions.txt"),
        "text": str(tmp_path / "text.txt"),
    }


SMALL = {"data.batch_size": 4, "data.workers": 1, "train.eval_batches": 1, "evaluate.sentences": 0, "mesh.data": 1}


@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.slow
def test_a_report_has_every_layer_and_way_of_every_model(files, corpus, cache, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    given = ",".join(f"{name}={path}" for name, path in files.items())
    study = load_study(f"{STUDY}:scale=tiny,seeds=1,steps=2,{given}")
    wanted = [run for run in study.runs() if label(run) in ("skip-gram", "BERT")]
    place = {"data.corpus": corpus, "data.directory": cache}
    runs = [dataclasses.replace(run, overrides={**run.overrides, **SMALL, **place}) for run in wanted]
    workdir = tmp_path / "study"
    for run in runs:
        worker.execute(run, workdir / run.name)
        assert worker.is_finished(run, workdir / run.name)
        assert json.loads((workdir / run.name / "measured.json").read_text())["similarity"] is None
    (workdir / "study.json").write_text(json.dumps(describe(study, runs)))
    results = load(workdir)
    bert = next(run.name for run in runs if "bert" in run.name)
    # What `bertlab similarity` says of the run, written elsewhere.
    again = similarity(
        workdir / bert, [Path(files["words"])], Path(files["analogies"]), text=Path(files["text"]), out=tmp_path / "again.json"
    )
    ways = again["word_similarity"][files["words"]]
    assert {way.partition(";")[0] for way in ways} == {"alone", "in context"}
    for way, entry in ways.items():
        for layer, value in entry["layers"].items():
            measure = Measure("evaluate", files["words"], "test", f"similarity/{way.partition(';')[0]}, layer {layer}")
            assert results.values(measure)[bert] == pytest.approx(value)
    shares = again["analogies"][files["analogies"]]
    [in_context] = [entry for way, entry in shares.items() if way.startswith("in context")]
    measure = Measure("evaluate", files["analogies"], "test", "analogies/in context, layer 2")
    assert results.values(measure)[bert] == pytest.approx(in_context["layers"]["2"]["3CosAdd"]["all"])
    columns = {name for group, name in table(results).columns if group == SCALES}
    assert {"Spearman of cosines, table, layer 0", "analogies (%), in context, layer 2"} <= columns
    assert compare_texts(results) == [], "models with the same pieces score the same pairs and questions"


def test_files_that_cannot_be_read_are_refused_before_the_first_step(small_config, files, tmp_path):
    for key, value, message in (
        ("words", f"{files['words']},none.txt", r"^config.evaluate.words=none.txt: "),
        ("analogies", files["words"], r"rated.txt:1: expected four words under a line ': section'"),
        ("word_text", "none.txt", r"^config.evaluate.word_text has no effect without evaluate.words"),
    ):
        config = small_config("bert", **{f"evaluate__{key}": value})
        with pytest.raises(UserError, match=message):
            pretrain(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
