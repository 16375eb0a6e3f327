"""Several real processes on this machine train one model; what one process with as many devices does is the truth."""

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from bertlab import cli, hosts
from bertlab.data.batches import train_batches
from bertlab.data.prepare import prepare
from bertlab.errors import UserError
from bertlab.locks import alone
from bertlab.run import Run
from bertlab.train import processes
from bertlab.train.sharding import check_rows_have_one_process
from tests.references import write_config
from tests.several import assert_it_says_why_it_ended, end, last_line, said, starting

STEPS = 24


@pytest.fixture
def start(small_config, tmp_path):
    """A function (workdir, processes, devices of each, code of the last, options) -> they train a run of four shards."""
    settings = {
        "data__shards": 4,
        "evaluate__sentences": 0,
        "mesh__data": -1,
        "train__steps": STEPS,
        "train__checkpoint_every": 4,
        "train__log_every": 2,
    }
    file = write_config(small_config("bert", **settings), tmp_path / "config.py")
    command = ["train", f"--config={file}"]
    with starting(tmp_path) as begin:
        yield lambda workdir, count, devices, last="", more=(): begin(
            [*command, f"--workdir={workdir}", *more], count, devices, last
        )


def wait_for_step(process, step: int) -> None:
    deadline = time.monotonic() + 240
    while not re.search(rf"^step +{step}/", said(process), re.MULTILINE):
        assert process.poll() is None and time.monotonic() < deadline, said(process)
        time.sleep(0.05)


def curves(workdir) -> tuple[list, list]:
    """(step, split, data hash) and the losses of every line of the log."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["split"], line.get("data_hash")) for line in lines], [line["mlm/loss"] for line in lines]


@pytest.mark.slow
def test_processes_train_as_one_stop_together_and_go_on_in_other_numbers(start, tmp_path):
    assert end(start(tmp_path / "one", 1, 4)) == [0]
    steps, losses = curves(tmp_path / "one")
    workdir = tmp_path / "several"

    two = start(workdir, 2, 2)
    wait_for_step(two[0], 10)  # when it saves at step 8, the checkpoint of step 4 is whole
    # The worst moment, if it is seen: all are at work on a checkpoint.
    while not list(workdir.glob("checkpoints/*tmp*")) and not re.search(r"^step +18/", said(two[0]), re.MULTILINE):
        assert two[0].poll() is None, said(two[0])
        time.sleep(0.005)
    two[1].kill()
    assert_it_says_why_it_ended(two[0], "process 0 of 2")

    four = start(workdir, 4, 1)
    wait_for_step(four[0], 14)
    four[2].send_signal(signal.SIGINT)  # one of them is told, and tells itself by SIGTERM: all stop
    assert end(four) == [0, 0, 130, 0], [said(process) for process in four]
    assert f"going on with {workdir} from step" in said(four[0])
    assert not any(re.search("^step", said(process), re.MULTILINE) for process in four[1:]), "one writer of logs"
    [stopped] = re.findall(r"stopped by SIGTERM at step (\d+) and saved", said(four[0]))
    assert int(stopped) < STEPS

    [last] = start(workdir, 1, 4)
    assert end([last]) == [0]
    assert f"going on with {workdir} from step {stopped}" in said(last)
    found = curves(workdir)
    assert found[0] == steps, "the same batches, each line once"
    # Sums over devices are added in another order where they are in several processes.
    np.testing.assert_allclose(found[1], losses, rtol=1e-4)


LATE = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from bertlab.data import prepare as module
prepare, waits = module.prepare, [{seconds}]
def prepare_late(*given, **options):
    print("waiting", file=sys.stderr, flush=True)  # only the first prints on standard output
    time.sleep(waits.pop() if waits else 0)
    return prepare(*given, **options)
module.prepare = prepare_late
"""


@pytest.mark.nightly
def test_processes_whose_devices_share_rows_train_as_one(start, tmp_path):
    """Each has two devices, one for either half of its rows."""
    assert end(start(tmp_path / "one", 1, 4)) == [0]
    assert end(start(tmp_path / "several", 2, 2, more=("--config.mesh.sequence=2",))) == [0, 0]
    (expected, losses), (found, of_halves) = curves(tmp_path / "one"), curves(tmp_path / "several")
    assert found == expected
    np.testing.assert_allclose(of_halves, losses, rtol=1e-4)  # sums in another order


@pytest.mark.nightly
def test_a_process_whose_corpus_takes_longer_is_waited_for(start, tmp_path):
    two = start(tmp_path / "run", 2, 1, last=LATE.format(seconds=35))  # JAX would wait 30 for one to connect
    assert end(two) == [0, 0], [said(process) for process in two]


@pytest.mark.slow
def test_a_run_in_use_is_refused_by_each_of_them(start, tmp_path):
    with alone(tmp_path / "run", Run(tmp_path / "run").lock):
        two = start(tmp_path / "run", 2, 1)
        assert end(two) == [2, 2]
    for i, process in enumerate(two):
        words = f"bertlab: process {i} of 2: {tmp_path / 'run'} is in use by process {os.getpid()} on {socket.gethostname()} "
        assert last_line(process, words).startswith(words), said(process)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.nightly
def test_processes_that_diverge_write_where(start, tmp_path):
    two = start(tmp_path / "run", 2, 1, more=["--config.optimizer.learning_rate=1e30"])
    assert end(two) == [2, 2]
    assert last_line(two[0], "bertlab: process 0 of 2: ").endswith(Run(tmp_path / "run").diverged.read().strip())


def test_an_interrupted_process_takes_the_others_with_it(start, tmp_path):
    two = start(tmp_path / "run", 2, 1, last=LATE.format(seconds=600))
    while "waiting\n" not in said(two[1]):
        assert two[1].poll() is None, said(two[1])
        time.sleep(0.05)
    two[1].send_signal(signal.SIGINT)
    assert two[1].wait(timeout=30) == 130
    words = "bertlab: process 1 of 2 was interrupted"
    assert last_line(two[1], words).startswith(words), said(two[1])
    assert_it_says_why_it_ended(two[0], "process 0 of 2")


@pytest.mark.parametrize(
    ("how", "lost", "count"),
    [
        pytest.param("SIGKILL", 2, 4, marks=pytest.mark.nightly),
        pytest.param("SIGKILL", 0, 2, marks=pytest.mark.nightly),
        pytest.param("SIGSTOP", 0, 2, marks=pytest.mark.nightly),
        pytest.param("SIGSTOP", 1, 2, marks=pytest.mark.nightly),
    ],
)
def test_each_that_is_left_says_so_within_a_minute(how, lost, count, start, tmp_path):
    """Whichever it is that dies or stands still, the one that all are connected to among them."""
    all_of_them = start(tmp_path / "run", count, 1)
    wait_for_step(all_of_them[0], 2)
    all_of_them[lost].send_signal(getattr(signal, how))
    for i in {*range(count)} - {lost}:
        assert_it_says_why_it_ended(all_of_them[i], f"process {i} of {count}")


@pytest.mark.parametrize(
    "environment",
    [{hosts.COUNT: "2"}, {"SLURM_STEP_NUM_TASKS": "2"}, {"TPU_WORKER_HOSTNAMES": "a,b"}, {hosts.ADDRESS: "auto"}],
)
@pytest.mark.parametrize("command", ["tokenizer train --corpus=pydocs --out=x", "sample --run=x"])
def test_commands_of_one_process_refuse_several(command, environment, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert cli.main(command.split()) == 2
    said = f"bertlab {command.split()[0]}: this command runs in one process: start it once, without JAX_NUM_PROCESSES"
    assert capsys.readouterr().err.startswith(said)
    assert not list(tmp_path.iterdir())


CHATTY = """
import os, sys, threading, time
from bertlab.train import processes
processes.jax.process_count, processes.jax.process_index = lambda: 4, lambda: 3
processes._begin_witness()
threading.Thread(target=lambda: [os.write(2, b"F1124 a thread of JAX\\n") for _ in iter(int, 1)], daemon=True).start()
time.sleep(0.1)
with processes.company():
    raise {error}
"""


@pytest.mark.parametrize(
    "error, status, words",
    [
        ("RuntimeError('UNKNOWN: Gloo all-reduce failed')", 2, "lost another process"),
        ("KeyboardInterrupt", 130, "was interrupted"),
        ("ZeroDivisionError('own bug')", 2, "failed: ZeroDivisionError"),
    ],
)
def test_its_last_line_comes_after_whatever_jax_still_prints(error, status, words):
    done = subprocess.run([sys.executable, "-c", CHATTY.format(error=error)], stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == status
    assert done.stderr.splitlines()[-1].startswith(f"bertlab: process 3 of 4 {words}")


DONE_BEFORE = """
import os, time
from bertlab.train import processes
processes.join()
if processes.is_first():
    time.sleep(2)
    os._exit(1)
raise SystemExit
"""


def test_who_is_done_before_another_is_lost_says_so_too(tmp_path):
    """The first writes results when the others have finished; they wait for it at their exit."""
    with starting(tmp_path) as start:
        first, second = start([], 2, each=DONE_BEFORE)
        assert end([first, second], timeout=120) in ([1, 2], [1, -signal.SIGABRT])
    last = last_line(second, "bertlab: process 1 of 2 ")  # of its witness
    assert last.startswith("bertlab: process 1 of 2 "), said(second)
    assert "rerun the command for all processes" in last


def test_who_begins_alone_says_so_and_ends(tmp_path):
    begin = "from bertlab.train import processes; processes.JOINING = 1; processes.join()"
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        hosts.ADDRESS: "localhost:1",
        hosts.COUNT: "2",
        hosts.INDEX: "1",
    }
    done = subprocess.run([sys.executable, "-c", begin], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "error: the processes of this run did not find each other at localhost:1 within 1 s" in done.stderr
    assert "waiting up to 1 s" in done.stderr and "@" not in done.stderr, "no stack of C++"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ValueError("UNKNOWN: Gloo AllGather failed: Connection reset by peer"),
            "process 1 of 2 lost another process; it was killed",
        ),
        (
            jax.errors.JaxRuntimeError("UNAVAILABLE: the coordination service"),
            "a training continues from its last checkpoint. (UNAVAILABLE:",
        ),
        (RuntimeError("DEADLINE_EXCEEDED: Barrier timed out"), "process 1 of 2 lost another process"),
        (UserError("config.x is wrong"), "process 1 of 2: config.x is wrong"),
        (OSError(28, "No space left on device", "/x"), "process 1 of 2: /x: No space left on device; free space"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), "process 1 of 2: the memory does not suffice"),
        (ValueError("shapes differ"), "Traceback"),
        (ValueError("the residual connection is behind a barrier"), "Traceback"),
    ],
)
def test_what_ends_one_of_several_is_told_apart(error, said, monkeypatch, capsys):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    left = []
    monkeypatch.setattr(processes, "leave", lambda status, line: left.append((status, line)))
    with processes.company():
        raise error
    [(status, line)] = left
    shown = capsys.readouterr().err
    of_machine = isinstance(error, OSError) or "memory" in str(error)
    assert status == (1 if of_machine else 2) and said in line + shown and "process 1 of 2" in line
    assert ("Traceback" in shown) == (said == "Traceback")
    assert ("lost another" in line) == ("lost another" in said or "a training continues" in said)


@pytest.mark.parametrize("recipe", ["bert", "gpt", "modern", "awd_lstm", "elmo on characters", "glove", "skip_gram"])
def test_shards_make_the_same_rows_for_every_number_of_processes(recipe, small_config):
    """Of every family, from the beginning and where other numbers of processes go on from each other's positions."""
    data = small_config(recipe, data__shards=4).data
    prepared = prepare(data)
    whole = list(itertools.islice(iter(train_batches(prepared, data)), 6))
    position, read = {}, 0
    for count in (2, 4, 1):
        with contextlib.ExitStack() as stack:
            opened = [iter(train_batches(prepared, data, (i, count))) for i in range(count)]
            parts = [stack.enter_context(contextlib.closing(part)) for part in opened]
            for part in parts if position else ():
                part.set_state(position)
            for batch in whole[read : read + 2]:
                of_processes = [next(part) for part in parts]
                for name, rows in batch.items():
                    np.testing.assert_array_equal(np.concatenate([part[name] for part in of_processes]), rows)
            position, read = {shard: state for part in parts for shard, state in part.get_state().items()}, read + 2


def test_shards_need_a_number_that_their_processes_divide(small_config):
    data = small_config("bert", data__shards=4).data
    prepared = prepare(data)
    with pytest.raises(UserError, match="batch_size=8 and be a multiple of the 3 processes"):
        train_batches(prepared, data, (0, 3))


def test_text_that_was_dealt_out_otherwise_is_refused(small_config):
    """One shard a process: of another number of processes each has other documents."""
    data = small_config("bert").data
    prepared = prepare(data)
    state = {}
    for index in range(4):
        with contextlib.closing(iter(train_batches(prepared, data, (index, 4)))) as batches:
            state |= batches.get_state()
    for count in (1, 2, 8):
        with contextlib.closing(iter(train_batches(prepared, data, (0, count)))) as batches:
            with pytest.raises(UserError, match=f"in 4 shards and cannot continue with {count}; set config.data.shards=4"):
                batches.set_state(state)


def test_rows_are_of_one_process(monkeypatch):
    """Two processes of two devices: `tensor` and `sequence` may divide what one has."""
    devices = np.array([SimpleNamespace(process_index=i // 2) for i in range(4)])
    mesh = lambda tensor, sequence=1: SimpleNamespace(
        devices=devices.reshape(-1, 1, tensor, sequence),
        shape={"tensor": tensor, "sequence": sequence},
        local_devices=devices[:2],
    )
    for sizes in ((1,), (2,), (1, 2)):
        check_rows_have_one_process(mesh(*sizes))
    with pytest.raises(UserError, match=r"config.mesh.tensor=4 spans processes.* a divisor of the 2 devices"):
        check_rows_have_one_process(mesh(4))
    with pytest.raises(UserError, match=r"config.mesh.tensor=2 times config.mesh.sequence=2 spans processes"):
        check_rows_have_one_process(mesh(2, 2))


@pytest.mark.parametrize(
    ("environment", "arguments"),
    [
        ({}, None),
        ({"SLURM_STEP_NUM_TASKS": "1"}, None),
        ({"SLURM_STEP_NUM_TASKS": "4"}, {}),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, None),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, {}),
        ({hosts.ADDRESS: "auto"}, {}),
        (
            {hosts.ADDRESS: "a:1", hosts.COUNT: "2", hosts.INDEX: "1", "SLURM_STEP_NUM_TASKS": "4"},
            {"coordinator_address": "a:1", "num_processes": 2, "process_id": 1},
        ),
    ],
)
def test_processes_find_each_other_by_what_the_environment_says(environment, arguments, monkeypatch):
    asked = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **given: asked.append(given))
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    monkeypatch.setattr(processes, "_begin_witness", lambda: None)
    for name in ("SLURM_STEP_NUM_TASKS", "TPU_WORKER_HOSTNAMES", hosts.ADDRESS, hosts.COUNT, hosts.INDEX):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    processes.join()
    found = [{name: given[name] for name in given if not name.endswith(("timeout", "seconds"))} for given in asked]
    assert found == ([] if arguments is None else [arguments])
    assert os.environ.get(hosts.ADDRESS) != "auto", "JAX would take it for an address"


def test_processes_that_jax_is_to_find_where_there_is_no_cluster(tmp_path):
    of_clusters = re.compile(r"JAX_|SLURM|OMPI|PMI|TPU|KUBERNETES|CLOUD")
    environment = {name: value for name, value in os.environ.items() if not of_clusters.match(name)}
    environment |= {hosts.ADDRESS: "auto", "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    command = [sys.executable, "-m", "bertlab", "finetune", "--run=x", "--task=sst2", f"--workdir={tmp_path / 'x'}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 2 and not [*tmp_path.iterdir()]
    line = done.stderr.splitlines()[-1]
    assert "no cluster" in line and f"{hosts.ADDRESS}=host:port" in line and hosts.COUNT in line and hosts.INDEX in line


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({hosts.ADDRESS: "a:1"}, "JAX_COORDINATOR_ADDRESS without JAX_NUM_PROCESSES and JAX_PROCESS_ID"),
        ({hosts.ADDRESS: "a:1", hosts.COUNT: "2", hosts.INDEX: "x"}, "JAX_PROCESS_ID=x: expected a number"),
        ({hosts.ADDRESS: "a:1", hosts.COUNT: "2", hosts.INDEX: "2"}, "JAX_PROCESS_ID=2 must be below"),
        ({hosts.ADDRESS: "a", hosts.COUNT: "2", hosts.INDEX: "1"}, "JAX_COORDINATOR_ADDRESS=a: expected host:port"),
    ],
)
def test_addresses_come_whole(environment, message, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=message):
        processes.join()
