"""A sweep on several hosts: turns, endings and silence between the hosts, and real runs by two processes each."""

import json
import subprocess
import sys
import threading
import time

import pytest

from bertlab import cli, hosts
from bertlab.errors import UserError
from bertlab.run import Run, StudyDirectory
from bertlab.studies.launchers import slice
from bertlab.studies.launchers.slice import follow, leading
from tests.conftest import ROOT
from tests.several import end, said, starting

TURN = {"beat": "a", "turn": 1, "run": "one", "seen": {"1": "of an earlier sweep"}}


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    """A study's directory with a run; hosts are quick, and their workers end with what `status` in the run's directory says."""
    for name, seconds in {"BEAT_SECONDS": 0.05, "POLL_SECONDS": 0.02, "JOINING": 5.0, "WITNESS": 0.1}.items():
        monkeypatch.setattr(slice, name, seconds)

    def start(command, directory, log=None, **options):
        who = "other" if log else "first"
        code = f"import pathlib, sys, time; time.sleep({0.3 if log else 0})"  # the other host's ends later
        code += f"; sys.exit(int(pathlib.Path(sys.argv[1], 'status-{who}').read_text()))"
        (directory / f"begun-{who}").write_text(" ".join(command))
        return subprocess.Popen([sys.executable, "-c", code, str(directory)], **options)

    monkeypatch.setattr(slice, "start_worker", start)
    run = tmp_path / "one"
    run.mkdir()
    Run(run).log.write_text("bertlab: process 0 of 2: an error\n")
    for who in ("first", "other"):
        (run / f"status-{who}").write_text("0")
    return tmp_path


@pytest.fixture
def other(workdir):
    """A function that starts the second of two hosts in a thread; it returns the errors that the host ends with."""
    threads = []

    def begin():
        errors = []

        def work():
            try:
                follow(workdir, 1, 2)
            except UserError as error:
                errors.append(str(error))

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        return errors

    yield begin
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()


@pytest.mark.parametrize(("first", "second", "status"), [(0, 0, 0), (0, 3, 3), (2, 1, 2)])
def test_a_run_ends_when_its_workers_on_all_hosts_have(first, second, status, workdir, other):
    (workdir / "one" / "status-first").write_text(str(first))
    (workdir / "one" / "status-other").write_text(str(second))
    errors = other()
    with leading(workdir, 2) as launcher:
        for _ in range(2):  # a run after the other
            assert launcher.start(["worker"], workdir / "one", None).wait() == status
            assert (workdir / "one" / "begun-first").read_text() == "worker --together"
            (workdir / "one" / "begun-other").unlink()
    assert not errors and not StudyDirectory(workdir).hosts.exists()
    last = Run(workdir / "one").log.read_text().splitlines()[-1]
    assert last == ("error: the worker on host 1 failed; see log-1.txt" if second and not first else last)


def test_what_an_earlier_sweep_left_starts_nothing(workdir, other):
    folder = StudyDirectory(workdir).hosts
    folder.mkdir()
    (folder / "0.json").write_text(json.dumps(TURN))
    (folder / "1.json").write_text(json.dumps({"beat": "a", "turn": 1, "token": "of an earlier sweep", "status": 0}))
    errors = other()
    time.sleep(0.3)
    assert not (workdir / "one" / "begun-other").exists()
    with leading(workdir, 2) as launcher:
        assert launcher.start(["worker"], workdir / "one", None).wait() == 0
    assert not errors and (workdir / "one" / "begun-other").exists()


def test_a_host_that_does_not_come_is_named(workdir, monkeypatch):
    monkeypatch.setattr(slice, "JOINING", 0.2)
    monkeypatch.setattr(slice, "ENDING", 0.2)
    with pytest.raises(UserError, match=r"host 2 of 3 is not here after 0 s; start the same command on all hosts"):
        with leading(workdir, 3) as launcher:
            (StudyDirectory(workdir).hosts / "1.json").write_text(json.dumps({"beat": "a", "turn": 0, "token": "b"}))
            launcher.start(["worker"], workdir / "one", None)
    with pytest.raises(UserError, match="the first of 2 hosts has given no sign of life for 0 s"):
        follow(workdir, 1, 2)


def test_a_host_that_is_gone_is_named_by_the_first(workdir, monkeypatch):
    monkeypatch.setattr(slice.alive, "PATIENCE", 0.5)
    with leading(workdir, 2) as launcher:
        (StudyDirectory(workdir).hosts / "1.json").write_text(json.dumps({"beat": "a", "turn": 0, "token": "b"}))
        with pytest.raises(UserError, match=r"host 1 of 2 has given no sign of life"):
            launcher.start(["worker"], workdir / "one", None).wait()
        (StudyDirectory(workdir).hosts / "1.json").unlink()


def test_a_first_host_that_is_gone_is_named_by_the_others(workdir, other, monkeypatch):
    monkeypatch.setattr(slice.alive, "PATIENCE", 0.5)
    monkeypatch.setattr(slice, "JOINING", 60.0)
    errors, folder = other(), StudyDirectory(workdir).hosts
    token = wait_for(folder / "1.json")["token"]
    (folder / "0.json").write_text(json.dumps(TURN | {"turn": 0, "seen": {"1": token}}))
    deadline = time.monotonic() + 20
    while not errors and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "the first of 2 hosts has given no sign of life" in errors[0]
    assert not (workdir / "one" / "begun-other").exists()


def wait_for(path):
    deadline = time.monotonic() + 10
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({hosts.ADDRESS: "a:1", hosts.COUNT: "4", hosts.INDEX: "3"}, (3, 4)),
        ({hosts.TASKS: "8", hosts.TASK: "5"}, (5, 8)),
        ({hosts.SLICE: "a,b", hosts.WORKER: "1"}, (1, 2)),
        ({hosts.SLICE: "a,b", hosts.WORKER: "1", hosts.TASKS: "1"}, (1, 2)),
        ({hosts.ADDRESS: "auto"}, None),
        ({hosts.TASKS: "8"}, None),
    ],
)
def test_a_host_knows_its_number_from_the_environment(environment, expected, monkeypatch):
    for name in (hosts.ADDRESS, hosts.COUNT, hosts.INDEX, hosts.TASKS, hosts.TASK, hosts.SLICE, hosts.WORKER):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if expected is None:
        with pytest.raises(UserError, match="which host this is: set JAX_COORDINATOR_ADDRESS"):
            hosts.position()
    else:
        assert hosts.position() == expected


def test_jobs_side_by_side_are_refused_on_several_hosts(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(hosts.COUNT, "2")
    assert cli.main(["sweep", "--study=x.py", f"--workdir={tmp_path}", "--jobs=2"]) == 2
    assert "each run takes all of them, one after the other; omit --jobs" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["train", f"--config={ROOT}/experiments/pretrain/bert.py:size=tiny", "--seeds=1,2"],
        ["finetune", "--run=run", "--task=task.py", "--rates=1e-3,1e-4"],
    ],
    ids=lambda command: command[0],
)
def test_a_study_over_seeds_or_rates_takes_all_hosts(command, tmp_path, monkeypatch, capsys):
    swept, followed = [], []
    monkeypatch.setattr("bertlab.studies.sweep.sweep", lambda study, workdir, by: swept.append((len(study.runs()), by)) or 0)
    monkeypatch.setattr(slice, "follow", lambda *place: followed.append(place))
    command = [*command, f"--workdir={tmp_path}/grid"]
    monkeypatch.setenv(hosts.ADDRESS, "localhost:1")
    monkeypatch.setenv(hosts.COUNT, "2")
    for index in ("0", "1"):
        monkeypatch.setenv(hosts.INDEX, index)
        assert cli.main(command) == 0
    [(runs, launcher)] = swept
    assert runs == 2 and isinstance(launcher, slice.Slice) and followed == [(tmp_path / "grid", 1, 2)]
    assert cli.main([*command, "--jobs=2"]) == 2
    assert "each run takes all of them, one after the other; omit --jobs" in capsys.readouterr().err


def test_a_wrong_study_is_refused_on_each_host_at_once(tmp_path, monkeypatch, capsys):
    """One that follows would wait ten minutes for the first."""
    monkeypatch.setenv(hosts.ADDRESS, "localhost:1")
    monkeypatch.setenv(hosts.COUNT, "2")
    monkeypatch.setenv(hosts.INDEX, "1")
    for command in (["sweep", "--study=missing.py"], ["finetune", "--run=run", "--task=task.py", "--rates=x"]):
        assert cli.main([*command, f"--workdir={tmp_path}/study"]) == 2
    assert "missing.py" in (said := capsys.readouterr().err) and "--rates=x" in said


STUDY = """
from bertlab.studies.study import Study

def get_study(arguments=None):
    return Study(
        name="hosts", title="", question="?", config="{root}/experiments/pretrain/bert.py:objectives=mlm",
        axes={{"rate": {{"A": {{}}, "B": {{"finetune.optimizer.learning_rate": 1e-3}}}}, "seed": [1]}},
        overrides={overrides!r}, downstream={{"words": {{"task": {task!r}}}}},
    )
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_two_hosts_sweep_as_one(small_overrides, words_task, tmp_path):
    """Two runs, of which the second shares the first one's pretraining."""
    overrides = small_overrides | {
        "mesh.data": -1,
        "data.shards": 2,
        "model.layers": 1,
        "optimizer.warmup_steps": 2,
        "train.steps": 4,
        "train.log_every": 2,
        "train.eval_every": 0,
        "train.eval_batches": 1,
        "evaluate.sentences": 0,
        "finetune.train.steps": 2,
        "finetune.data.batch_size": 8,
    }
    study = tmp_path / "study.py"
    study.write_text(STUDY.format(root=ROOT, overrides=overrides, task=words_task))
    command = lambda name: ["sweep", f"--study={study}", f"--workdir={tmp_path / name}"]
    with starting(tmp_path) as start:
        assert end(start(command("one"), 1, 2), timeout=600) == [0]
        several = start(command("several"), 2, 1)
        assert end(several, timeout=600) == [0, 0], [said(process) for process in several]
    assert "all 2 runs are finished" in said(several[0]) and "all 2 runs" not in said(several[1])
    found = {path.relative_to(tmp_path / "several") for path in (tmp_path / "several").rglob("*.json*")}
    assert {path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.json*")} == found
    results = [path for path in found if path.name == "result.json"]
    assert len(results) == 3, "one pretraining, and a fine-tuning of each run"
    for path in results:
        one, other = (json.loads((tmp_path / name / path).read_text()) for name in ("one", "several"))
        assert other.get("data_hash") == one.get("data_hash")
        assert other["metrics"] == one["metrics"], "bit for bit: a sum over two devices has one order"


@pytest.mark.slow
@pytest.mark.nightly
def test_two_hosts_run_seeds_and_rates_as_one(small_overrides, words_task, tmp_path):
    """A pretraining with two seeds; then its first run fine-tuned at two rates."""
    small = small_overrides | {
        "data.shards": 2,
        "model.layers": 1,
        "train.steps": 4,
        "train.eval_every": 0,
        "train.eval_batches": 1,
        "optimizer.warmup_steps": 2,
    }
    options = lambda of: [f"--config.{key}={value}" for key, value in of.items()]
    train = ["train", f"--config={ROOT}/experiments/pretrain/bert.py:objectives=mlm", "--seeds=1,2", *options(small)]
    train += options({"mesh.data": -1, "evaluate.sentences": 0})
    finetune = ["finetune", f"--run={tmp_path}/train-one/seed=1", f"--task={words_task}", "--rates=1e-2,1e-3"]
    finetune += options({"train.steps": 2, "data.batch_size": 8})
    for command in (train, finetune):
        one, several = (tmp_path / f"{command[0]}-{which}" for which in ("one", "several"))
        with starting(tmp_path) as start:
            [alone] = start([*command, f"--workdir={one}"], 1, 2)
            assert alone.wait(timeout=600) == 0, said(alone)
            both = start([*command, f"--workdir={several}"], 2, 1)
            assert end(both, timeout=600) == [0, 0], [said(process) for process in both]
        metrics = lambda place: {
            str(path.relative_to(place)): json.loads(path.read_text())["metrics"] for path in place.rglob("result.json")
        }
        assert len(metrics(one)) >= 2 and metrics(one) == metrics(several), "bit for bit: a sum over two devices has one order"
