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
from bertlab.studies.launchers.slice import follow, lead
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
    """A function that starts the second of two hosts in a thread; to the list that it returns comes a status or an error."""
    threads = []

    def begin():
        ends = []

        def work():
            try:
                ends.append(follow(workdir, 1, 2))
            except (KeyboardInterrupt, UserError) as error:
                ends.append(error)

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        return ends

    yield begin
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()


def runs_of(workdir, turns=1):
    """A function for `lead`: the run of `workdir` so many times; the status of the last."""
    return lambda launcher: [launcher.start(["worker"], workdir / "one", None).wait() for _ in range(turns)][-1]


@pytest.mark.parametrize(("first", "second", "status"), [(0, 0, 0), (0, 3, 3), (2, 1, 2)])
def test_a_run_ends_when_its_workers_on_all_hosts_have(first, second, status, workdir, other):
    (workdir / "one" / "status-first").write_text(str(first))
    (workdir / "one" / "status-other").write_text(str(second))
    ends = other()

    def work(launcher):
        for _ in range(2):  # a run after the other
            assert launcher.start(["worker"], workdir / "one", None).wait() == status
            assert (workdir / "one" / "begun-first").read_text() == "worker --together"
            (workdir / "one" / "begun-other").unlink()
        return status

    assert lead(workdir, 2, work) == status
    assert ended(ends) == status and not StudyDirectory(workdir).hosts.exists()
    last = Run(workdir / "one").log.read_text().splitlines()[-1]
    assert last == ("error: the worker on host 1 failed; see log-1.txt" if second and not first else last)


def ended(ends):
    """What the second host has ended with, as soon as it has."""
    deadline = time.monotonic() + 20
    while not ends and time.monotonic() < deadline:
        time.sleep(0.02)
    return ends[0]


@pytest.mark.parametrize("late", [False, True], ids=["before", "only then"])
@pytest.mark.parametrize("how", ["nothing is to do", "a mistake"])
def test_the_others_end_as_the_first_does_although_no_run_begins(how, late, workdir, other, capsys):
    """Whether the first host ends before they come or after."""

    def work(launcher):
        if how == "a mistake":
            raise UserError("--run=x is no run")
        return 0

    if not late:
        ends = other()
        wait_for(StudyDirectory(workdir).hosts / "1.json")
        assert led(workdir, work) == (2 if how == "a mistake" else 0)
    else:
        statuses = []
        first = threading.Thread(target=lambda: statuses.append(led(workdir, work)))
        first.start()
        time.sleep(0.3)
        ends = other()
        first.join(timeout=20)
        assert statuses == [2 if how == "a mistake" else 0]
    assert ended(ends) == (2 if how == "a mistake" else 0)
    assert ("the first has ended with status 2, and says why" in capsys.readouterr().out) == (how == "a mistake")
    assert not StudyDirectory(workdir).hosts.exists()


def led(workdir, work):
    """The status of the first host's command."""
    try:
        return lead(workdir, 2, work)
    except UserError:
        return 2


@pytest.mark.parametrize("when", ["before a run", "during a run"])
def test_all_stop_if_one_that_follows_is_told_to(when, workdir, capsys):
    """It has left when the first looks: its file says it."""
    folder, begun = StudyDirectory(workdir).hosts, []

    def leave():
        (folder / "1.json").write_text(json.dumps({"beat": "b", "turn": 0, "token": "b", "leaves": True}))

    def work(launcher):
        (folder / "1.json").write_text(json.dumps({"beat": "a", "turn": 0, "token": "b"}))
        if when == "before a run":
            leave()
        run = launcher.start(["worker"], workdir / "one", None)
        begun.append(run)
        leave()
        with pytest.raises(KeyboardInterrupt):
            run.wait()
        run.stop()
        assert run.wait() is not None, "the worker's own end"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lead(workdir, 2, work)
    assert len(begun) == (when == "during a run") and "host 1 of 2 was told to stop" in capsys.readouterr().out
    assert not folder.exists()


def test_one_that_follows_and_is_told_to_stop_says_that_it_leaves(workdir, monkeypatch):
    (folder := StudyDirectory(workdir).hosts).mkdir()
    (folder / "0.json").write_text("{}")
    monkeypatch.setattr(slice.Watched, "read", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        follow(workdir, 1, 2)
    assert json.loads((folder / "1.json").read_text())["leaves"] is True
    (folder / "1.json").unlink()
    time.sleep(5 * slice.BEAT_SECONDS)
    assert not (folder / "1.json").exists(), "the next study removes it once"


def test_one_that_began_again_in_the_middle_of_a_run_is_named(workdir, monkeypatch):
    folder = StudyDirectory(workdir).hosts

    def work(launcher):
        (folder / "1.json").write_text(json.dumps({"beat": "a", "turn": 0, "token": "a"}))
        run = launcher.start(["worker"], workdir / "one", None)
        run._process.wait()
        (folder / "1.json").write_text(json.dumps({"beat": "b", "turn": 0, "token": "b"}))
        return run.wait()

    monkeypatch.setattr(slice, "ENDING", 0.2)
    with pytest.raises(UserError, match="host 1 of 2 began again in the middle of a run"):
        lead(workdir, 2, work)
    (folder / "1.json").unlink()


def test_a_second_one_of_the_same_number_waits_and_disturbs_nothing(workdir, other):
    """Of a second start, whose first host was refused; or the one before still saves."""
    (folder := StudyDirectory(workdir).hosts).mkdir()
    hold = "import sys\nfrom bertlab.locks import alone\nwith alone(sys.argv[1]): print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(folder / "1.json")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        ends = other()
        time.sleep(10 * slice.BEAT_SECONDS)
        assert not (folder / "1.json").exists() and not ends
    assert lead(workdir, 2, lambda launcher: 0) == 0 and ended(ends) == 0


def test_what_an_earlier_sweep_left_starts_nothing(workdir, other):
    folder = StudyDirectory(workdir).hosts
    folder.mkdir()
    (folder / "0.json").write_text(json.dumps(TURN))
    (folder / "1.json").write_text(json.dumps({"beat": "a", "turn": 1, "token": "of an earlier sweep", "status": 0}))
    ends = other()
    time.sleep(0.3)
    assert not (workdir / "one" / "begun-other").exists()
    assert lead(workdir, 2, runs_of(workdir)) == 0
    assert ended(ends) == 0 and (workdir / "one" / "begun-other").exists()


def test_a_host_that_does_not_come_is_named(workdir, monkeypatch):
    monkeypatch.setattr(slice, "JOINING", 0.2)
    monkeypatch.setattr(slice, "ENDING", 0.2)

    def work(launcher):
        (StudyDirectory(workdir).hosts / "1.json").write_text(json.dumps({"beat": "a", "turn": 0, "token": "b"}))
        return runs_of(workdir)(launcher)

    with pytest.raises(UserError, match=r"host 2 of 3 is not here after 0 s; start the same command on all hosts"):
        lead(workdir, 3, work)
    with pytest.raises(UserError, match="the first of 2 hosts has given no sign of life for 0 s"):
        follow(workdir, 1, 2)


@pytest.mark.parametrize("at_work", [False, True], ids=["after its own worker's end", "while its own worker works"])
def test_a_host_that_is_gone_is_named_by_the_first(at_work, workdir, monkeypatch):
    monkeypatch.setattr(slice.alive, "PATIENCE", 0.5)

    def work(launcher):
        (StudyDirectory(workdir).hosts / "1.json").write_text(json.dumps({"beat": "a", "turn": 0, "token": "b"}))
        run = launcher.start(["worker"], workdir / "one", None)
        if at_work:
            run._process.wait()
            monkeypatch.setattr(run._process, "poll", lambda: None)
        return run.wait()

    monkeypatch.setattr(slice, "ENDING", 1.0)
    with pytest.raises(UserError, match=r"host 1 of 2 has given no sign of life"):
        lead(workdir, 2, work)
    (StudyDirectory(workdir).hosts / "1.json").unlink()


def test_a_first_host_that_is_gone_is_named_by_the_others(workdir, other, monkeypatch):
    monkeypatch.setattr(slice.alive, "PATIENCE", 0.5)
    monkeypatch.setattr(slice, "JOINING", 60.0)
    ends, folder = other(), StudyDirectory(workdir).hosts
    token = wait_for(folder / "1.json")["token"]
    (folder / "0.json").write_text(json.dumps(TURN | {"turn": 0, "seen": {"1": token}, "token": "c"}))
    assert "the first of 2 hosts has given no sign of life" in str(ended(ends))
    assert not (workdir / "one" / "begun-other").exists()


def test_a_first_host_that_began_again_is_named_by_the_others(workdir, other):
    """Its turns are counted anew, so the others would take no part in them."""
    ends, folder = other(), StudyDirectory(workdir).hosts
    token = wait_for(folder / "1.json")["token"]
    for beat, of_first, seen in (("a", "c", {"1": token}), ("b", "d", {})):
        (folder / "0.json").write_text(json.dumps({"beat": beat, "turn": 0, "token": of_first, "seen": seen}))
        time.sleep(10 * slice.POLL_SECONDS)
    assert "the first of 2 hosts began again" in str(ended(ends))


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
    monkeypatch.setattr(slice, "follow", lambda *place: followed.append(place) or 3)
    monkeypatch.setattr(slice, "ENDING", 0.1)
    command = [*command, f"--workdir={tmp_path}/grid"]
    monkeypatch.setenv(hosts.ADDRESS, "localhost:1")
    monkeypatch.setenv(hosts.COUNT, "2")
    for index, status in (("0", 0), ("1", 3)):
        monkeypatch.setenv(hosts.INDEX, index)
        assert cli.main(command) == status
    [(runs, launcher)] = swept
    assert runs == 2 and isinstance(launcher, slice.Slice) and followed == [(tmp_path / "grid", 1, 2)]
    assert cli.main([*command, "--jobs=2"]) == 2
    assert "each run takes all of them, one after the other; omit --jobs" in capsys.readouterr().err


def test_a_study_that_cannot_be_read_is_refused_on_each_host_at_once(tmp_path, monkeypatch, capsys):
    """One that follows would wait for the first."""
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
        with starting(tmp_path) as start:
            again = start([*command, f"--workdir={several}"], 2, 1)
            assert end(again, timeout=60) == [0, 0], "nothing is to do"
    with starting(tmp_path) as start:
        wrong = start(["finetune", "--run=missing", *finetune[2:], f"--workdir={tmp_path}/wrong"], 2, 1)
        assert end(wrong, timeout=60) == [2, 2], [said(process) for process in wrong]


@pytest.mark.slow
@pytest.mark.nightly
def test_all_hosts_stop_and_save_when_the_second_is_told_to(small_overrides, tmp_path):
    options = small_overrides | {"data.shards": 2, "mesh.data": -1, "train.steps": 20_000, "train.log_every": 2}
    command = [
        "train",
        f"--config={ROOT}/experiments/pretrain/bert.py:objectives=mlm",
        "--seeds=1,2",
        f"--workdir={tmp_path}/x",
    ]
    with starting(tmp_path) as start:
        both = start([*command, *(f"--config.{key}={value}" for key, value in options.items())], 2, 1)
        deadline = time.monotonic() + 240
        while not (tmp_path / "x/seed=1/metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.2)
        both[1].terminate()
        assert end(both, timeout=60) == [130, 143], [said(process) for process in both]
    assert "host 1 of 2 was told to stop" in said(both[0]) and Run(tmp_path / "x/seed=1").steps()
    assert "seed=2: started" not in said(both[0])
