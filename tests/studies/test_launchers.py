"""The launchers of a sweep keep one contract: on this machine, in SLURM's queue and on a Ray cluster.

SLURM is a real cluster where there is one (`one_node_slurm.sh` starts one), and else submitit's own stand-in for it, which runs
jobs on this machine; Ray is a real cluster of this machine.
"""

import contextlib
import fcntl
import functools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from conftest import run_sweep

from bertlab.errors import UserError
from bertlab.studies.launchers import Slurm, launcher, local, parse_options, slurm
from bertlab.studies.launchers.local import device_environments, share
from bertlab.studies.launchers.ray import one_host
from bertlab.studies.launchers.slurm import SlurmProcess
from bertlab.studies.study import RunSpec, Study
from bertlab.studies.worker import write_job

# Ray starts its cluster by a fork, and JAX warns of one once it is at work in the same process.
pytestmark = [pytest.mark.filterwarnings(r"ignore:os.fork\(\) was called:RuntimeWarning"), pytest.mark.usefixtures("fake_runs")]

SECONDS = 60  # no worker here takes longer; what hangs fails

# Says in started.json and `pid` that it has begun, then does what its second argument says.
WORKER = """
    import json, os, signal, sys, time
    from pathlib import Path

    directory, what = Path(sys.argv[1]), sys.argv[2]
    started = {"arguments": sys.argv[3:], "parent": os.getppid(), "environment": dict(os.environ)}

    def save(*_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(0.5)
        (directory / "saved.txt").write_text("saved")
        os._exit(0)

    if what == "save":
        signal.signal(signal.SIGTERM, save)
    if what == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("begun", flush=True)
    (directory / "started.json").write_text(json.dumps(started))
    (directory / "pid.part").write_text(str(os.getpid()))
    (directory / "pid.part").rename(directory / "pid")
    if what == "finish":
        (directory / "result.json").write_text("{}")
        print("trained")
    elif what == "fail":
        print("error: no such corpus", file=sys.stderr)
        sys.exit(2)
    elif what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        time.sleep(100)
"""


def slurm_is_here():
    return bool(shutil.which("sbatch")) and subprocess.run(["sinfo"], capture_output=True, check=False).returncode == 0


@pytest.fixture
def make_launcher(monkeypatch):
    """A function (name, jobs, SLURM or its stand-in) -> launcher; its cluster has two CPUs. Closed after the test."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the home directory
    monkeypatch.setattr(slurm, "QUEUE_SECONDS", 1)
    with contextlib.ExitStack() as stack:

        def make(name, jobs, cluster=None):
            if name == "ray":
                ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
                stack.callback(ray.shutdown)
            if name == "slurm":
                made = Slurm(jobs, cluster=cluster or ("slurm" if slurm_is_here() else "local"), timeout_min=10)
            else:
                made = launcher(name, jobs)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def start(tmp_path):
    """A function (launcher, what, name) -> (the process, its directory)."""
    (tmp_path / "worker.py").write_text(textwrap.dedent(WORKER))

    def begin(launcher, what, name=None, lock=None):
        directory = tmp_path / (name or what)
        directory.mkdir()
        (directory / "log.txt").write_text("an earlier attempt\n")
        command = [sys.executable, "-u", str(tmp_path / "worker.py"), str(directory), what]
        return launcher.start(command, directory, lock), directory

    return begin


def wait_for(condition, what):
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"timed out: {what}"
        time.sleep(0.05)


def status(process):
    wait_for(lambda: process.poll() is not None, "the end of a worker")
    return process.poll()


def started(directory):
    """What a worker wrote when it began."""
    wait_for((directory / "pid").exists, "the start of a worker")
    return json.loads((directory / "started.json").read_text())


def is_alive(directory):
    try:
        os.kill(int((directory / "pid").read_text()), 0)
    except ProcessLookupError:
        return False
    return True


@functools.cache
def files_by_local():
    """`files_of_a_sweep` of the local launcher, run once for all engines."""
    with tempfile.TemporaryDirectory() as workdir:
        return files_of_a_sweep(launcher("local", 2), Path(workdir))


def files_of_a_sweep(engine, workdir):
    """What a sweep through a launcher leaves behind, of runs that finish, fail and share: path -> text."""
    modes = {"A": {"mode": "finish"}, "B": {"mode": "fail"}, "C": {"mode": "finish", "finetune.head.bilstm": 1}}
    study = Study(
        name="s",
        title="",
        question="?",
        config="base.py",
        axes={"mode": modes, "seed": [1]},
        overrides={"train.steps": 10},
        downstream=["x"],
    )
    assert run_sweep(study, workdir, engine)[0] == 1
    own = ("log.txt", "calls.txt", "run.lock", "sweep.lock")  # where and when, not what
    paths = [path for path in workdir.rglob("*") if path.is_file() and path.name not in own and "slurm" not in path.parts]
    return {str(path.relative_to(workdir)): path.read_text() for path in paths}


@pytest.fixture
def in_the_background(name):
    """SIGINT is ignored, and so in what is started, as where a script puts a sweep into the background.

    But not for submitit's stand-in for SLURM, whose own process is cancelled by SIGINT.
    """
    handler = signal.signal(signal.SIGINT, signal.default_int_handler if name == "slurm" else signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.parametrize("name", ["local", *(pytest.param(of, marks=pytest.mark.slow) for of in ("slurm", "ray"))])
def test_a_launcher_keeps_the_contract(in_the_background, make_launcher, start, name, tmp_path):
    engine = make_launcher(name, jobs=2)
    queues = name == "ray" or (name == "slurm" and engine.cluster == "slurm")

    finished, finished_directory = start(engine, "finish")
    failed, failed_directory = start(engine, "fail")
    assert status(finished) == 0
    died, _ = start(engine, "die")
    assert (status(failed), status(died)) == (2, -9)
    assert (finished_directory / "result.json").exists()
    logs = [(directory / "log.txt").read_text() for directory in (finished_directory, failed_directory)]
    assert all(log.startswith("an earlier attempt\n") for log in logs)
    assert [log.partition("begun\n")[2] for log in logs] == ["trained\n", "error: no such corpus\n"]
    assert "--stop_with_parent" in started(finished_directory)["arguments"]

    saving, saving_directory = start(engine, "save")
    killed, killed_directory = start(engine, "ignore" if name != "slurm" or queues else "sleep")
    assert started(saving_directory)
    assert started(killed_directory), "two at a time"
    assert (saving.poll(), saving.state(), killed.poll(), killed.state()) == (None, "running", None, "running")
    if queues:
        third, third_directory = start(engine, "finish", "third")
        time.sleep(1)
        assert (third.poll(), third.state()) == (None, "queued")
        third.stop()
        assert third.wait() == -15
        assert not (third_directory / "pid").exists()
    saving.stop()
    if name != "slurm" or queues:
        assert saving.wait() == 0
    else:
        saving.wait()  # submitit's stand-in lets a job a second
        wait_for(lambda: (saving_directory / "saved.txt").exists(), "saving")
    assert (saving_directory / "saved.txt").exists()
    killed.kill()
    assert killed.wait() < 0
    wait_for(lambda: not is_alive(killed_directory), "the killed worker's end")

    by_local = files_by_local()
    assert {"a-seed=1/result.json", "b-seed=1/failed.txt", "c-seed=1/finetune/x/result.json"} <= set(by_local)
    assert name == "local" or files_of_a_sweep(engine, tmp_path / "by_engine") == by_local


def test_workers_on_this_machine_share_its_cores_and_gpus(make_launcher, start, monkeypatch):
    monkeypatch.setattr(local, "core_names", lambda: ["3", "4", "5", "6", "7"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    engine = make_launcher("local", jobs=2)
    first, first_directory = start(engine, "sleep", "first")
    second, second_directory = start(engine, "sleep", "second")
    seen = [started(directory) for directory in (first_directory, second_directory)]
    assert [each["arguments"][:3] for each in seen] == [["--cores", "3,4", "--answer"], ["--cores", "5,6,7", "--answer"]]
    assert [each["environment"]["CUDA_VISIBLE_DEVICES"] for each in seen] == ["4,5", "6,7"]
    second.kill()
    second.wait()
    third, third_directory = start(engine, "finish", "third")
    assert started(third_directory)["environment"]["CUDA_VISIBLE_DEVICES"] == "6,7", "takes the place of the one that ended"
    first.kill()
    assert (third.wait(), first.wait()) == (0, -9)


def test_a_single_worker_has_the_whole_machine(make_launcher, start):
    process, directory = start(make_launcher("local", jobs=1), "finish")
    assert process.wait() == 0
    seen = started(directory)
    assert [argument for argument in seen["arguments"] if not argument.isdigit()] == ["--answer", "--stop_with_parent"]
    assert {key: value for key, value in seen["environment"].items() if "VISIBLE" in key} == {
        key: value for key, value in os.environ.items() if "VISIBLE" in key
    }


def test_a_worker_on_this_machine_takes_run_after_run_until_one_fails(make_launcher, tmp_path):
    modes = ("finish", "finish", "fail", "finish", "die")
    axes = {"turn": {f"r{i}": {"mode": mode, "train.steps": i + 1} for i, mode in enumerate(modes)}}
    study = Study(name="s", title="", question="?", config="base.py", axes=axes)
    assert run_sweep(study, tmp_path, make_launcher("local", jobs=1))[0] == 1
    runs = [tmp_path / run.name for run in study.runs()]
    a, b, c, d, e = (int((run / "calls.txt").read_text().split()[-1]) for run in runs)
    assert a == b == c and c != d == e
    logs = [(run / "log.txt").read_text() for run in runs]
    assert logs[0] == logs[1] == logs[3] == "trained\n" and logs[2].count("RuntimeError: the step went wrong") == 2
    failed = [(run / "failed.txt").read_text() if (run / "failed.txt").exists() else "" for run in runs]
    assert failed == ["", "", "RuntimeError: the step went wrong\n", "", "killed by SIGKILL (out of memory?)\n"]
    for process in (a, d):
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def run_of_the_fake(directory, name):
    """The command of a worker that executes a run by the fake runner."""
    run = RunSpec(name=name, labels={}, config="base.py", overrides={}, downstream={})
    return [
        sys.executable,
        "-u",
        "-m",
        "bertlab.studies.worker",
        "--run",
        str(write_job(run, directory / name, "fake_runner:run")),
    ]


def test_a_worker_that_ended_between_two_runs_is_replaced_and_one_without_a_run_ends_with_its_parent(make_launcher, tmp_path):
    engine = make_launcher("local", jobs=1)
    numbers = []
    for name in ("first", "second", "third"):
        run = engine.start(run_of_the_fake(tmp_path, name), tmp_path / name, None)
        assert run.wait() == 0 and (tmp_path / name / "result.json").exists()
        numbers.append(engine.workers[0].process.pid)
        if name == "second":
            os.kill(numbers[-1], signal.SIGKILL)
            engine.workers[0].process.wait()
            assert run.poll() == 0, "the run was over"
    assert numbers[0] == numbers[1] != numbers[2]
    process = engine.workers[0].process
    process.stdin.close()  # as when the parent is killed
    assert process.wait(timeout=SECONDS) == 0, "an orderly end, as it was at work on nothing"


def test_a_worker_that_cannot_be_started_hides_nothing(make_launcher, start, monkeypatch):
    engine = make_launcher("local", jobs=1)
    failed, _ = start(engine, "fail")
    assert failed.wait() == 2

    def refuse(*_, **__):
        raise OSError("no more processes")

    monkeypatch.setattr(local, "start_worker", refuse)
    with pytest.raises(OSError, match="no more processes"):
        start(engine, "finish")
    engine.close()


def test_workers_share_their_programs_for_one_sweep_and_remove_those_of_one_that_was_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(local.tempfile, "tempdir", str(tmp_path))
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_NUM_CPU_DEVICES", "XLA_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    ended = subprocess.Popen(["true"])
    ended.wait()
    here = socket.gethostname()
    ends = (f"{here}-{ended.pid}", f"{here}-{os.getpid()}", f"elsewhere-{ended.pid}", f"{here}-{'9' * 20}")
    left, *others = (tmp_path / f"{local.PROGRAMS}-{end}-x" for end in ends)
    for directory in (left, *others):
        directory.mkdir()
    engine = launcher("local", 2)
    shared = engine.programs()
    own = Path(shared["JAX_COMPILATION_CACHE_DIR"])
    assert engine.programs() == shared and shared["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "0"
    assert own.is_dir() and all(other.is_dir() for other in others) and not left.exists()
    engine.close()
    assert not own.exists()
    several = {"JAX_NUM_CPU_DEVICES": "4", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    for name, value in (several | {"JAX_COMPILATION_CACHE_DIR": "mine"}).items():
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            assert launcher("local", 2).programs() == {}


def test_a_worker_on_this_machine_holds_the_lock(make_launcher, start, tmp_path):
    with open(tmp_path / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process, directory = start(make_launcher("local", jobs=1), "sleep", lock=lock.fileno())
    started(directory)
    with open(tmp_path / "lock") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        process.kill()
        process.wait()
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_shares_are_disjoint_and_leave_nothing_over():
    assert share("3456789", 3) == [["3", "4"], ["5", "6"], ["7", "8", "9"]]
    assert share("34", 3) == [[], [], []], "too few: they use all of them together"


def test_gpus_are_those_that_cuda_or_the_driver_shows(monkeypatch, tmp_path):
    (tmp_path / "nvidia-smi").write_text(
        "#!/bin/sh\necho 'GPU 0: A (UUID: GPU-1)\n  MIG 1g: (UUID: MIG-1)\nGPU 1: A (UUID: GPU-2)'\n"
    )
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert device_environments([], 2) == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]
    assert device_environments([], 1) == [{}], "one worker has all that there are"
    with pytest.raises(UserError, match=r"--jobs=3: this machine has 2 GPUs, .* lower --jobs to 2, .*; to share one, set XLA_"):
        device_environments([], 3)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.3")
    assert [each["CUDA_VISIBLE_DEVICES"] for each in device_environments([], 3)] == ["0", "1", "0"], (
        "by turns, if that was meant"
    )
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert device_environments([], 3) == [{}, {}, {}]
    monkeypatch.delenv("JAX_PLATFORMS")
    assert device_environments(["1"], 1) == [{"CUDA_VISIBLE_DEVICES": "1"}], "given ones are used, whatever there is"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device_environments([], 2) == [{}, {}], "none are to be seen"


def test_tpu_chips_are_shared_in_boxes(monkeypatch):
    monkeypatch.setattr(local, "tpu_chips", lambda: list("01234567"))
    pairs = device_environments([], 4)
    assert [each["TPU_VISIBLE_CHIPS"] for each in pairs] == ["0,1", "2,3", "4,5", "6,7"]
    assert {each["TPU_CHIPS_PER_PROCESS_BOUNDS"] for each in pairs} == {"1,2,1"}
    assert {each["TPU_PROCESS_BOUNDS"] for each in pairs} == {"1,1,1"}
    assert len({each["TPU_MESH_CONTROLLER_PORT"] for each in pairs}) == 4
    assert all(each["TPU_MESH_CONTROLLER_ADDRESS"] == f"localhost:{each['TPU_MESH_CONTROLLER_PORT']}" for each in pairs)
    with pytest.raises(UserError, match="8 TPU chips do not split into shares of 1, 2, 4 or 8"):
        device_environments([], 3)
    with pytest.raises(UserError, match=r"--jobs=9: this machine has 8 TPU chips, .*lower --jobs to 8, .* use none$"):
        device_environments([], 9)


def test_workers_on_this_machine_have_a_part_of_its_rate(monkeypatch):
    monkeypatch.setattr(local, "core_names", lambda: ["3", "4"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert [launcher("local", jobs).share(workers) for jobs, workers in ((1, 1), (2, 1), (2, 2))] == [1, 1 / 2, 1 / 2]
    assert launcher("local", 64).share(5) == 1 / 5, "on all cores together"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert launcher("local", 2).share(2) is None, "each its GPU"


def test_a_run_that_slurm_takes_back_saves_and_goes_on_later(make_launcher, start):
    """Submitit's stand-in puts a job back into the queue at once; SLURM itself takes two minutes over it."""
    process, directory = start(make_launcher("slurm", jobs=1, cluster="local"), "save")
    parent, first = started(directory)["parent"], int((directory / "pid").read_text())
    (directory / "pid").unlink()
    for number in (first, parent):  # SLURM sends it to all processes of a job
        os.kill(number, signal.SIGUSR2)
    assert started(directory)["parent"] != parent
    assert (directory / "saved.txt").exists()
    assert int((directory / "pid").read_text()) != first
    assert process.poll() is None
    (directory / "saved.txt").unlink()
    os.kill(started(directory)["parent"], signal.SIGTERM)  # `scancel`
    assert status(process) == 0
    assert (directory / "saved.txt").exists()


def test_a_job_that_left_no_result_is_noticed(make_launcher, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(slurm, "QUEUE_SECONDS", 0)

    def queue(text):
        (tmp_path / "squeue").write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "squeue").chmod(0o755)

    engine = Slurm(1, cluster="local", timeout_min=1)
    engine.cluster = "slurm"
    job = SimpleNamespace(job_id="7", paths=SimpleNamespace(result_pickle=tmp_path / "none"))
    process = SlurmProcess(engine, job, tmp_path, 0)
    queue("echo 6; echo 7")
    assert process.poll() is None
    queue("echo the controller is away >&2; exit 1")
    assert process.poll() is None
    queue("echo 77")
    assert process.poll() is None, "its result may only not have arrived here yet"
    queue("echo 7")
    assert process.poll() is None, "it was put back into the queue"
    queue("echo 77")
    assert (process.poll(), process.poll()) == (None, -9)


def test_a_ray_cluster_is_joined_late_and_leaves_sigterm_to_the_sweep(monkeypatch):
    addresses, handler = [], signal.getsignal(signal.SIGTERM)

    def init(address, **_):
        addresses.append(address)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if address == "nowhere":
            raise ConnectionError("no cluster\nthere")

    monkeypatch.setattr(ray, "init", init)
    engine = launcher("ray", 1, "address=auto,num_cpus=2")
    assert addresses == [], "a dry run needs no cluster"
    engine.connect()
    assert addresses == ["auto"]
    assert signal.getsignal(signal.SIGTERM) == handler
    with pytest.raises(UserError, match=r"address=nowhere: no cluster$"):
        launcher("ray", 1, "address=nowhere").connect()
    assert signal.getsignal(signal.SIGTERM) == handler


@pytest.mark.slow
def test_runs_on_a_ray_cluster_have_chips_of_one_host_each(make_launcher, start, monkeypatch):
    """A node of this machine says that it has the resources of the first host of a slice; Ray gives out its chips."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "host0,host1,host2,host3")
    slice = {"TPU": 4, "TPU-v5litepod-16-head": 1}
    ray.init(num_cpus=4, resources=slice, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        engine = launcher("ray", 3, "tpus=2,num_cpus=1")
        (first, first_directory), (second, second_directory) = (start(engine, "sleep", name) for name in ("first", "second"))
        seen = [started(directory)["environment"] for directory in (first_directory, second_directory)]
        assert {each["TPU_VISIBLE_CHIPS"] for each in seen} == {"0,1", "2,3"}
        assert {each["TPU_CHIPS_PER_PROCESS_BOUNDS"] for each in seen} == {"1,2,1"}
        assert {each["TPU_PROCESS_BOUNDS"] for each in seen} == {"1,1,1"}
        assert {each["TPU_WORKER_HOSTNAMES"] for each in seen} == {"localhost"}
        assert len({each["TPU_MESH_CONTROLLER_PORT"] for each in seen}) == 2
        third, _ = start(engine, "finish", "third")
        time.sleep(1)
        assert (third.poll(), third.state()) == (None, "queued"), "all chips are in use"
        first.kill(), second.kill()
        assert (first.wait() < 0, second.wait() < 0, status(third)) == (True, True, 0)
        whole, directory = start(launcher("ray", 1, 'tpus=4,resources={"TPU-v5litepod-16-head": 1}'), "finish", "whole")
        assert status(whole) == 0
        environment = started(directory)["environment"]
        assert (environment["TPU_VISIBLE_CHIPS"], environment["TPU_CHIPS_PER_PROCESS_BOUNDS"]) == ("0,1,2,3", "2,2,1")
        plain, directory = start(launcher("ray", 1, "num_cpus=1"), "finish", "plain")
        assert status(plain) == 0 and "TPU_PROCESS_BOUNDS" not in started(directory)["environment"]
    finally:
        ray.shutdown()


def test_a_whole_host_has_all_its_chips_though_ray_names_none(monkeypatch):
    monkeypatch.delenv("TPU_VISIBLE_CHIPS", raising=False)
    assert one_host(8)["TPU_VISIBLE_CHIPS"] == "0,1,2,3,4,5,6,7" and one_host(8)["TPU_MESH_CONTROLLER_PORT"] == "8476"


def test_options_are_read():
    assert parse_options("") == {}
    text = 'timeout_min=60,slurm_nodelist=a1,a2,mem_gb=1.5,resources={"TPU": 4, "big": 1},slurm_exclusive=true,address=auto'
    assert parse_options(text) == {
        "timeout_min": 60,
        "slurm_nodelist": "a1,a2",
        "mem_gb": 1.5,
        "resources": {"TPU": 4, "big": 1},
        "slurm_exclusive": True,
        "address": "auto",
    }


@pytest.mark.parametrize(
    ("name", "jobs", "options", "message"),
    [
        ("kubernetes", 1, "", "expected one of local, slurm, ray, skypilot"),
        ("local", 0, "", "--jobs=0: give at least 1"),
        ("local", 1, "devices", "expected key=value"),
        ("local", 1, "device=0", "no option device"),
        ("local", 3, "devices=0,1", "--jobs=3"),
        ("slurm", 1, "cluster=local", "timeout_min="),
        ("slurm", 1, "cluster=local,timeout_min=soon", "timeout_min"),
        ("slurm", 1, "cluster=local,timeout_min=1,partition=gpu", "slurm_partition"),
        ("slurm", 1, "cluster=local,timeout_min=1,slurm_partitoin=gpu", "partitoin"),
        ("slurm", 1, "cluster=local,timeout_min=1,name=x", "name=...: "),
        ("slurm", 1, "timeout_min=1,slurm_partitoin=gpu", "partitoin"),
        ("ray", 1, "num_gpu=1", "num_gpu"),
        ("ray", 1, "num_gpus=many", "num_gpus"),
        ("ray", 1, "tpus=3", "3 TPU chips; a run has 1, 2, 4 or 8"),
        ("ray", 1, 'resources={"TPU": 16}', "16 TPU chips; a run has 1, 2, 4 or 8"),
        ("ray", 1, 'tpus=4,resources={"TPU": 4}', "omit one of them"),
    ],
)
def test_mistakes_are_said_before_anything_starts(name, jobs, options, message):
    with pytest.raises(UserError, match=re.escape(message)) as error:
        launcher(name, jobs, options)
    assert "\n" not in str(error.value)
    assert not ray.is_initialized()


def test_what_is_not_installed_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    made = launcher("slurm", 1, "timeout_min=1")  # for a dry run
    with pytest.raises(UserError, match="sbatch"):
        made.require()
    for package, name in (("submitit", "slurm"), ("ray", "ray")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(UserError, match=re.escape(f"pip install -e '.[{name}]' in the clone")):
            launcher(name, 1, "timeout_min=1")
