"""Studies over runs that are there already: nothing is pretrained, tasks have settings, and the runs' own come last."""

import dataclasses
import json

import pytest
from rich.console import Console

from bertlab.errors import UserError
from bertlab.studies import measurements, sweep, worker
from bertlab.studies.launchers import Local
from bertlab.studies.study import COSTS, Study, load_study
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture
def study(bert_run, words_task):
    """Two tasks of one table, on a run as it is and from random values."""
    settings = {"task": words_task, "train.steps": 3}
    return Study(
        name="ways",
        title="Ways",
        question="Which?",
        config=f"run:{bert_run}",
        axes={"model": {"pretrained": {}, "random": {"finetune.transfer.random": True}}, "finetune.seed": [1, 2]},
        overrides={
            "finetune.data.batch_size": 8,
            "finetune.optimizer.warmup_steps": 1,
            "finetune.mesh.data": 1,
            "finetune.data.seq_len": 16,
        },
        downstream={"words": settings, "few words": settings | {"task_data.limit": 16, "recipe": "probe"}},
    )


@pytest.mark.slow
def test_each_run_trains_the_tasks_and_nothing_else(study, bert_run, words_task, tmp_path):
    spec = study.runs()[3]
    assert spec.labels == {"model": "random", "finetune.seed": "2"} and spec.config == f"run:{bert_run}"
    workdir = tmp_path / "study" / spec.name
    workdir.mkdir(parents=True)
    worker.execute(spec, workdir)
    assert worker.is_finished(spec, workdir)
    assert not (workdir / "checkpoints").exists()
    assert json.loads((workdir / "result.json").read_text())["run"] == str(bert_run)
    of_task = {name: json.loads((workdir / "finetune" / name / "config.json").read_text()) for name in spec.downstream}
    assert all(c["seed"] == c["data"]["seed"] == 2 and c["transfer"]["random"] for c in of_task.values())
    assert [of_task[n]["task_data"]["limit"] for n in ("words", "few words")] == [0, 16]
    assert [of_task[n]["optimizer"]["frozen"] for n in ("words", "few words")] == ["", "^body/"]
    before = {path: path.stat().st_mtime_ns for path in workdir.rglob("result.json")}
    worker.execute(spec, workdir)
    assert before == {path: path.stat().st_mtime_ns for path in workdir.rglob("result.json")}, "what is finished stays"

    known = workdir.parent / "known"
    tasks = {"words": {"task": words_task, "transfer.random": "true"}, "few words": {"task": words_task}}
    worker.stand_on(bert_run, dataclasses.replace(spec, downstream=tasks), known)
    pretraining, ours, at_random = (json.loads((of / "result.json").read_text()) for of in (bert_run, known, workdir))
    assert ours["step"] == 2 and all(ours[key] == pretraining[key] > 0 for key in COSTS), "what the model had cost"
    assert at_random["parameters"] == pretraining["parameters"] and at_random["step"] == at_random["seconds"] == 0

    # The study reads as any other: a variant a row, a task a column.
    description = sweep.describe(study, study.runs())
    (tmp_path / "study" / "study.json").write_text(json.dumps(description))
    results = measurements.load(tmp_path / "study")
    assert results.environments[spec.name]["packages"], "what ran its tasks, though it pretrains nothing"
    found = results.wide("words/accuracy", "few words/words/accuracy").set_index("run")
    assert found.loc[spec.name, "status"] == "finished"
    assert 0 <= found.loc[spec.name, "words/accuracy"] <= 1
    assert 0 <= found.loc[spec.name, "few words/words/accuracy"] <= 1


@pytest.mark.nightly
def test_a_run_is_the_same_in_a_process_of_its_own_and_after_others_in_one(study, tmp_path):
    # The third in its process, after one of another kind: of random values, which is another program.
    whole = dataclasses.replace(study, downstream={"words": study.downstream["words"]})
    one = dataclasses.replace(whole, axes={"model": {"pretrained": {}}, "finetune.seed": [2]})
    turned = dataclasses.replace(whole, axes={"model": dict(reversed(study.axes["model"].items())), "finetune.seed": [1, 2]})
    processes = set()

    class Watched(Local):
        def start(self, *arguments):
            run = super().start(*arguments)
            processes.add(run.worker.process.pid)
            return run

    for each, directory in ((turned, "four"), (one, "one")):
        assert sweep.sweep(each, tmp_path / directory, Watched(1), console=Console(quiet=True)) == 0
    runs = [path.parent for path in sorted(tmp_path.glob("*/*pretrained*seed=2/job.json"))]
    assert len(list(tmp_path.glob("four/*/job.json"))) == 4 and len(runs) == len(processes) == 2
    tasks = [run / "finetune" / "words" for run in runs]
    untimed = lambda line: {key: value for key, value in json.loads(line).items() if "second" not in key}
    lines = [[untimed(line) for line in (task / "metrics.jsonl").read_text().splitlines()] for task in tasks]
    assert lines[0] == lines[1] and len(lines[0]) > 2
    assert (tasks[0] / "predictions/test.jsonl").read_bytes() == (tasks[1] / "predictions/test.jsonl").read_bytes()
    commands = [json.loads((task / "environment.json").read_text())["command"] for task in tasks]
    assert [command.endswith(f"worker.py --run {run / 'job.json'}") for command, run in zip(commands, runs)] == [True, True]


def test_mistakes_are_found_before_anything_is_trained(study, tmp_path):
    check = lambda study: sweep.check_configs(study.runs())
    check(study)
    (tmp_path / "table.tsv").write_text("text\tlabel\n")
    with pytest.raises(UserError, match=r"table.tsv.*no examples"):
        check(study)
    with pytest.raises(UserError, match=r"nowhere has no config.json; give the --workdir"):
        check(dataclasses.replace(study, config="run:nowhere"))


def test_the_study_of_ten_tasks_asks_for_what_there_is(bert_run):
    path = f"{ROOT}/experiments/transfer/tasks.py:pretrained={bert_run},data=data,seeds=2"
    few = load_study(f"{path},labels=100")
    assert len(few.runs()) == 2 * 2 and {of["task_data.limit"] for of in few.downstream.values()} == {100}
    for more, count in (("", 3 * 2), (",rates=1e-3+3e-3", 3 * 2 * 2)):
        study = load_study(f"{path},static={bert_run}{more}")
        runs = study.runs()
        assert len(runs) == count and len(study.downstream) == 10
        for run in runs:
            for name in run.downstream:
                config = worker.task_config(run, name)
                assert config.transfer.random == (run.labels["model"] == "random")
                assert config.task_data.directory.startswith("data/")
                if more:
                    assert config.optimizer.learning_rate == float(run.labels["finetune.optimizer.learning_rate"])
