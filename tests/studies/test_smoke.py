"""Studies are trained: two steps of pretraining, two of adaptation and of fine-tuning.

Text, tasks and batches are small; models, objectives, heads, stages and schedules are the study's own at scale=tiny. Of every
study the last run is, and those of MORE; with BERTLAB_WHOLE_STUDIES=1 (`make studies`) all runs, with a report. What two
studies train alike is trained once.
"""

import dataclasses
import io
import json
import os
import shutil

import pytest
from rich.console import Console

from bertlab.studies import worker
from bertlab.studies.measurements import load
from bertlab.studies.report import report
from bertlab.studies.study import load_study
from bertlab.studies.sweep import describe, sweep
from bertlab.transfer.tasks import find_task
from tests.conftest import ROOT
from tests.studies.golden import label

pytestmark = pytest.mark.usefixtures("quick_compilation")

STUDIES = sorted(path for path in (ROOT / "experiments/ablations").glob("*.py") if path.stem not in ("floors", "objectives"))
WHOLE = os.environ.get("BERTLAB_WHOLE_STUDIES") == "1"
# Kinds of stages that no study's last run has on its last task: label of the run, task. Other layers, places of a biLSTM,
# orders of thawing and probes are left to `make studies`.
MORE = {
    "bert_table5": [("+ BiLSTM", "code_spans")],
    "clm_then_mlm": [("25% CLM then MLM", "code_spans")],  # phases
    "elmo_layers": [("baseline", "code_spans"), ("all layers, λ=0.001", "package")],  # embeddings of its own; a mix of layers
    "gpt_layers": [("none", "package")],  # random parameters, and a language model beside the classifier
    "static_contextual": [("GloVe, features", "package")],
}
SMALL = {"data.batch_size": 4, "data.workers": 1, "train.eval_batches": 1, "evaluate.sentences": 0, "mesh.data": 1}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A file for each kind of task: {kind: FILE.py}."""
    directory = tmp_path_factory.mktemp("tasks")
    texts = [f"the value of object {i} is here\tgood" if i % 2 else f"not a module {i} to import\tbad" for i in range(40)]
    (directory / "table.tsv").write_text("text\tlabel\n" + "\n".join(texts) + "\n")
    words = [f"the O\nvalue B-X\n{i} O" if i % 2 else f"not B-Y\na O\nmodule O\n{i} O" for i in range(40)]
    (directory / "words.conll").write_text("\n\n".join(words) + "\n")
    own = "from bertlab.transfer.tasks import conll, table\n\n"
    (directory / "texts.py").write_text(f'{own}TASK = table("texts", train="table.tsv", text="text", label="label")\n')
    (directory / "words.py").write_text(f'{own}TASK = conll("words", train="words.conll")\n')
    return {"classification": str(directory / "texts.py"), "tagging": str(directory / "words.py")}


@pytest.fixture(scope="module")
def trained():
    """What a stage is made of, as text -> its directory."""
    return {}


def small(run, corpus, cache, tasks):
    """The run with small text and small tasks of the same kinds."""
    overrides = run.overrides if run.averages else run.overrides | SMALL | {"data.corpus": corpus, "data.directory": cache}
    settings = {"mesh.data": 1, "data.batch_size": 4}
    file = {name: tasks[find_task(of.get("task", name)).kind.name] for name, of in run.downstream.items()}
    downstream = {name: of | settings | {"task": file[name]} for name, of in run.downstream.items()}
    return dataclasses.replace(run, overrides=overrides, downstream=downstream, adapt=run.adapt and run.adapt | SMALL)


def some(study, runs):
    """The last run of a study, which differs most from its first, on its last task, and those of MORE; each all by itself."""
    last = [run for run in runs if not run.averages][-1]
    wanted = {last.name: list(last.downstream)[-1:]}
    for of_run, task in MORE.get(study, []):
        [name] = [run.name for run in runs if label(run) == of_run]
        wanted.setdefault(name, []).append(task)
    return [
        dataclasses.replace(run, shares={}, downstream={task: run.downstream[task] for task in wanted[run.name]})
        for run in runs
        if run.name in wanted
    ]


def key_of(run, stage):
    """All that a stage depends on."""
    return json.dumps([stage.kind, stage.task, run.config, run.overrides, run.adapt, run.downstream.get(stage.task)])


# One study of each way to pretrain or transfer is trained by `make test`, the others by `make test-slow`.
QUICK = ("ulmfit_table6", "elmo_layers", "layers_by_task")


def studies(quick):
    """All studies; those that are not named are slow."""
    return [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem not in quick)) for path in STUDIES]


@pytest.mark.parametrize("path", studies(QUICK))
def test_a_study_trains(path, corpus, cache, tasks, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    study = load_study(f"{path}:scale=tiny,seeds=1,steps=2,task_steps=2")
    runs = [small(run, corpus, cache, tasks) for run in study.runs()]
    if not WHOLE:
        runs = some(path.stem, runs)
    for run in runs:
        directory = tmp_path / run.name
        made_of = {stage: key_of(run, stage) for stage in worker.stages(run, directory)}
        for stage, key in made_of.items():  # what a study before this one has trained
            if key in trained:
                shutil.copytree(trained[key], stage.directory, ignore=shutil.ignore_patterns("finetune", "adapt"))
        worker.execute(run, directory)
        assert worker.is_finished(run, directory), run.name
        trained |= {key: stage.directory for stage, key in made_of.items() if stage.kind != "average"}
    (tmp_path / "study.json").write_text(json.dumps(describe(study, runs)))
    results = load(tmp_path)
    assert set(results.runs["status"]) == {"finished"}
    if WHOLE:
        assert report(tmp_path, console=Console(quiet=True)).exists()


@pytest.mark.parametrize("path", studies(["bert_table7"]))
def test_a_study_says_what_it_would_cost(path, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    out = io.StringIO()
    study = load_study(f"{path}:scale=tiny,corpus=pydocs,seeds=1,task_steps=20")
    assert sweep(study, tmp_path, dry_run=True, console=Console(file=out, width=10_000)) == 0
    *_, total = out.getvalue().splitlines()
    assert total.startswith(f"{study.name}: {len(study.runs())} runs, {len(study.runs())} to do: ")
    assert "FLOPs" in total and " 0 FLOPs" not in total
    assert not list(tmp_path.iterdir())
