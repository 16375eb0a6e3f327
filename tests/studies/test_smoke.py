"""Studies are trained: two steps of pretraining, two of adaptation and of fine-tuning.

Text, tasks and batches are small; models, objectives, heads, stages and schedules are the study's own at scale=tiny. The tests
train one run of each kind: each family, objective, format, recipe with each kind of task, layers, places and schedules. With
BERTLAB_WHOLE_STUDIES=1 (`make studies`) they train all runs of all studies, with a report.
"""

import dataclasses
import io
import json
import os

import pytest
from rich.console import Console

from bertlab.studies import worker
from bertlab.studies.measurements import load
from bertlab.studies.report import report
from bertlab.studies.study import load_study, sharing
from bertlab.studies.sweep import describe, sweep
from bertlab.transfer.tasks import find_task
from tests.conftest import ROOT
from tests.studies.golden import label

pytestmark = pytest.mark.usefixtures("quick_compilation")

STUDIES = sorted(path for path in (ROOT / "experiments/ablations").glob("*.py") if path.stem not in ("floors", "objectives"))
WHOLE = os.environ.get("BERTLAB_WHOLE_STUDIES") == "1"
# Studies whose last run, on its last task, is of a kind of its own: those of `make test-slow`.
SLOW = ("bert_table5", "headline", "words_from_context")
# Those of `make test-nightly`: the code that they run is that of others, with other settings.
NIGHTLY = tuple(
    """
    albert_sop awd_lstm_table4 bert_table7 bert_table8 clm_then_mlm edge_probing electra_small elmo_layers elmo_placement
    elmo_senses fitlam four_systems gpt_bert gpt_layers gpt_table5 gpt_zero_shot layers_by_task roberta_batches roberta_formats
    spanbert_masking static_contextual taglm_placement ulmfit_bidirectional xlnet_table6
    """.split()
)
# Kinds that no study's last run is of: label of the run, task.
MORE = {
    "bert_table5": [("+ BiLSTM", "code_spans")],
    "clm_then_mlm": [("25% CLM then MLM", "code_spans")],  # phases
    "elmo_layers": [("baseline", "code_spans")],  # embeddings of its own
    "elmo_senses": [("biLM, second layer", "code_spans")],  # beside the senses, which train nothing
    "four_systems": [("ULMFiT", "code_spans"), ("BERT", "package")],  # an adapted tagger; a pooler
    "gpt_layers": [("none", "package")],  # random parameters, and a language model beside the classifier
    "gpt_zero_shot": [("LSTM, 2", "sentence_order")],  # answers without training
    "static_contextual": [("GloVe, features", "package")],
}
# Arguments of studies whose own tasks need files.
ARGUMENTS = {"edge_probing": ",tasks=edges_srl,data=tasks", "elmo_senses": ",tasks=code_spans+coarse_wsd,data=tasks"}
SMALL = {"data.batch_size": 4, "data.workers": 1, "train.eval_batches": 1, "evaluate.sentences": 0, "mesh.data": 1}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A file for each kind of task: {kind: FILE.py}."""
    directory = tmp_path_factory.mktemp("tasks")
    texts = [f"the value of object {i} is here\tgood" if i % 2 else f"not a module {i} to import\tbad" for i in range(40)]
    (directory / "table.tsv").write_text("text\tlabel\n" + "\n".join(texts) + "\n")
    words = [f"the O\nvalue B-X\n{i} O" if i % 2 else f"not B-Y\na O\nmodule O\n{i} O" for i in range(40)]
    (directory / "words.conll").write_text("\n\n".join(words) + "\n")
    targets = [[{"span1": [0, 1], "span2": [i % 2, 2], "label": f"A{i % 2}"}] for i in range(40)]
    edges = [json.dumps({"text": f"the value {i}", "targets": of}) for i, of in enumerate(targets)]
    (directory / "edges.json").write_text("\n".join(edges))
    (directory / "value").mkdir()
    (directory / "value/classes_map.txt").write_text('{"0": "value_number", "1": "value_worth"}')
    for split, count in (("train", 8), ("test", 4)):
        sentences = [f"1\tthe value {i} of it" if i % 2 else f"2\tnot a value {i}" for i in range(count)]
        (directory / f"value/{split}.data.txt").write_text("\n".join(sentences) + "\n")
        (directory / f"value/{split}.gold.txt").write_text("0\n1\n" * (count // 2))
    own = "from bertlab.transfer.tasks import conll, edge_probing, table\n"
    own += "from bertlab.transfer.tasks.senses import coarse_senses\n\n"
    (directory / "texts.py").write_text(f'{own}TASK = table("texts", train="table.tsv", text="text", label="label")\n')
    (directory / "words.py").write_text(f'{own}TASK = conll("words", train="words.conll")\n')
    (directory / "edges.py").write_text(f'{own}TASK = edge_probing("edges", train="edges.json")\n')
    (directory / "senses.py").write_text(f'{own}TASK = coarse_senses("senses")\n')
    files = {"classification": "texts.py", "tagging": "words.py", "span_pair": "edges.py", "sense": "senses.py"}
    return {kind: str(directory / name) for kind, name in files.items()}


def small_task(name, settings, tasks):
    """The file of the small task of the same kind."""
    return tasks[find_task(settings.get("task", name)).kind.name]


def small(run, corpus, cache, tasks):
    """The run with small text and small tasks of the same kinds."""
    overrides = run.overrides if run.averages else run.overrides | SMALL | {"data.corpus": corpus, "data.directory": cache}
    settings = {"mesh.data": 1, "data.batch_size": 4, "task_data.directory": ""}
    downstream = {name: of | settings | {"task": small_task(name, of, tasks)} for name, of in run.downstream.items()}
    return dataclasses.replace(run, overrides=overrides, downstream=downstream, adapt=run.adapt and run.adapt | SMALL)


def some(study, runs):
    """The last run of a study, which differs most from its first, on its last task, and those of MORE."""
    last = [run for run in runs if not run.averages][-1]
    wanted = {last.name: list(last.downstream)[-1:]}
    for of_run, task in MORE.get(study, []):
        [name] = [run.name for run in runs if label(run) == of_run]
        wanted.setdefault(name, []).append(task)
    kept = [run for run in runs if run.name in wanted]
    on_tasks = lambda run: {task: run.downstream[task] for task in wanted[run.name]}
    return sharing([dataclasses.replace(run, downstream=on_tasks(run)) for run in kept])


def studies(slow, nightly, quick=()):
    """Studies by these names, and when they are trained; all with BERTLAB_WHOLE_STUDIES=1."""
    paths = [path for path in STUDIES if WHOLE or path.stem in quick + slow + nightly]
    marks = lambda name: [] if name in quick else [pytest.mark.nightly if name in nightly else pytest.mark.slow]
    return [pytest.param(path, id=path.stem, marks=marks(path.stem)) for path in paths]


@pytest.mark.parametrize("path", studies(SLOW, NIGHTLY))
def test_a_study_trains(path, corpus, cache, tasks, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    study = load_study(f"{path}:scale=tiny,seeds=1,steps=2,task_steps=2{ARGUMENTS.get(path.stem, '')}")
    runs = [small(run, corpus, cache, tasks) for run in study.runs()]
    if not WHOLE:
        runs = some(path.stem, runs)
    for run in runs:
        worker.execute(run, tmp_path / run.name)
        assert worker.is_finished(run, tmp_path / run.name), run.name
    (tmp_path / "study.json").write_text(json.dumps(describe(study, runs)))
    results = load(tmp_path)
    assert set(results.runs["status"]) == {"finished"}
    if WHOLE:
        assert report(tmp_path, console=Console(quiet=True)).exists()


@pytest.mark.parametrize("path", studies(("static_contextual", "ulmfit_table7"), (), quick=("bert_table7",)))
def test_a_study_says_what_it_would_cost(path, tasks, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    out = io.StringIO()
    study = load_study(f"{path}:scale=tiny,corpus=pydocs,seeds=1,task_steps=20")
    downstream = {name: of | {"task": small_task(name, of, tasks)} for name, of in study.tasks.items()}
    study = dataclasses.replace(study, downstream=downstream)
    assert sweep(study, tmp_path, dry_run=True, console=Console(file=out, width=10_000)) == 0
    *_, total = out.getvalue().splitlines()
    runs, tried = len(study.runs()), 3 * sum("pretrain" not in run.shares for run in study.runs())
    left = tried + (runs if study.tasks else 0)  # without tasks, the first seed's runs are the selected candidates
    assert total.startswith(f"{study.name}: {runs} runs and {tried} candidates for pretraining rates, {left} to do: ")
    assert "FLOPs" in total and " 0 FLOPs" not in total
    assert not list(tmp_path.iterdir())
