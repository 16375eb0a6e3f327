"""Ctrl-C and SIGTERM end every command within seconds; a second one ends it at once, whatever it is in the middle of."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from bertlab import cli, interrupts
from bertlab.train import checkpoint
from tests.conftest import ROOT
from tests.test_cli import COMMANDS

# What a process does when it has printed "ready". `busy` is outside Python for minutes, as XLA is when it compiles.
SCRIPT = """
import contextlib, hashlib, sys, time
from bertlab import interrupts
interrupts.PATIENCE, interrupts.TOGETHER = {patience}, {together}
busy = lambda: hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
print("ready", flush=True)
"""
UNHELD = """
with interrupts.interruptible(lambda: print("killed the others", flush=True)) as signals:
    try:
        {work}
    except KeyboardInterrupt:
        sys.exit(signals.status)
"""
# Python forgets what is raised while it collects garbage, and in `__del__`: there it is raised a little later.
COLLECTS = """
import gc
interrupts.PATIENCE = 60
gc.callbacks.append(lambda *_: time.sleep(0.5))
""" + UNHELD.format(work="gc.collect(); time.sleep(600)")
DELETES = """
interrupts.PATIENCE = 60
class Deleted:
    def __del__(self):
        time.sleep(1)
""" + UNHELD.format(work="Deleted(); time.sleep(600)")
FORGOTTEN_REFERENCE = """
import weakref
interrupts.PATIENCE = 60
class Referred:
    pass
referred = Referred()
reference = weakref.ref(referred, lambda _: time.sleep(1))
""" + UNHELD.format(work="del referred; time.sleep(600)")
# As a library that catches everything.
FORGETS = UNHELD.format(
    work="""
        while True:
            try:
                time.sleep(600)
            except BaseException:
                pass
"""
)
SAVES = """
with interrupts.interruptible() as signals:
    try:
        time.sleep(600)
    except KeyboardInterrupt:
        signals.saving()
        time.sleep(1)
        sys.exit(7)
"""
# What another host's end made save: no signal has come yet.
SAVES_ALREADY = """
with interrupts.interruptible(lambda: print("killed the others", flush=True)) as signals:
    signals.saving()
    print("saving", flush=True)
    {work}
    sys.exit(7)
"""
HELD = """
with interrupts.interruptible(lambda: print("killed the others", flush=True)):
    with interrupts.held() as signals:
        while not signals.received:
            time.sleep(0.01)
        print("saving", flush=True)
        {work}
        sys.exit(7)
"""
# What closes after it has saved, such as a checkpoint that is written in the background, takes its time.
CLOSES = """
with interrupts.interruptible(), contextlib.ExitStack() as afterwards:
    with interrupts.held() as signals:
        afterwards.callback(time.sleep, 1)
        while not signals.received:
            time.sleep(0.01)
        print("saving", flush=True)
        sys.exit(7)
"""


def started(script, together):
    command = [sys.executable, "-c", SCRIPT.format(patience=0.2, together=together) + script]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    return process


@pytest.mark.parametrize(
    ("script", "numbers", "status", "said"),
    [
        (UNHELD.format(work="time.sleep(600)"), [signal.SIGINT], 130, []),
        (UNHELD.format(work="time.sleep(600)"), [signal.SIGTERM], 143, []),
        (UNHELD.format(work="busy()"), [signal.SIGINT], 130, ["killed the others"]),
        (COLLECTS, [signal.SIGINT], 130, []),
        (DELETES, [signal.SIGINT], 130, []),
        (FORGOTTEN_REFERENCE, [signal.SIGINT], 130, []),
        (FORGETS, [signal.SIGINT], 130, ["killed the others"]),
        (SAVES, [signal.SIGINT], 7, []),
        (SAVES_ALREADY.format(work="time.sleep(1)"), [signal.SIGTERM], 7, ["saving"]),
        (SAVES_ALREADY.format(work="time.sleep(600)"), [signal.SIGTERM, signal.SIGINT], 143, ["saving", "killed the others"]),
        (HELD.format(work="time.sleep(0.2)"), [signal.SIGINT], 7, ["saving"]),
        (CLOSES, [signal.SIGINT], 7, ["saving"]),
        (HELD.format(work="busy()"), [signal.SIGTERM, signal.SIGINT], 143, ["saving", "killed the others"]),
        (HELD.format(work="time.sleep(600)"), [signal.SIGINT, signal.SIGINT], 130, ["saving", "killed the others"]),
    ],
)
def test_the_first_signal_lets_it_save_and_the_second_ends_it(script, numbers, status, said):
    process = started(script, together=0.1)
    printed = []
    for number in numbers:
        process.send_signal(number)
        if "saving" in said and not printed:
            printed.append(process.stdout.readline())
        time.sleep(0.2)
    rest, errors = process.communicate(timeout=10)
    assert process.returncode == status, errors
    assert "".join([*printed, rest]).split("\n")[:-1] == said and "Traceback" not in errors and "ignored" not in errors


def test_what_python_forgets_is_told_once_however_often_runs_are_read_and_trained(monkeypatch):
    """A notebook reads a run, trains one, which waits for signals and reads runs, and reads on."""
    told, forget = [], lambda error: sys.unraisablehook(SimpleNamespace(exc_type=type(error), exc_value=error))
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    for _ in range(3):
        checkpoint._leave_errors_to_us()
        with interrupts.interruptible():
            checkpoint._leave_errors_to_us()
            forget(ValueError("inside"))
        forget(ValueError("outside"))
        forget(RuntimeError("Event loop is closed"))
    assert [str(of.exc_value) for of in told] == ["inside", "outside"] * 3


def test_a_signal_that_comes_twice_at_once_is_one():
    """As `timeout` sends it: to the process, and to its group."""
    process = started(HELD.format(work="time.sleep(0.5)"), together=10)
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    assert process.communicate(timeout=10)[0] == "saving\n" and process.returncode == 7


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_interrupted_in_one_line(command, monkeypatch, capsys):
    """The example of its help, stopped as it begins."""

    def interrupt(given):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    monkeypatch.setattr(cli, "_check_places", interrupt)
    monkeypatch.setattr(sys, "path", list(sys.path))
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(SystemExit):
        cli.main([*command.split(), "--help"])
    words = shlex.split(capsys.readouterr().out.split("example:\n")[1])
    words = words[words.index("|") + 1 :] if "|" in words else words
    begun = time.monotonic()
    assert cli.main(words[1:]) == 130
    assert time.monotonic() - begun < 5 and capsys.readouterr().err.count("\n") == 1
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)], "as they were"


# In a folder on the path, Python imports it before all else. When a module begins to be imported, the process gets a signal; at
# "", when Python starts for the second time.
SITE = """
import os, signal, sys

at = os.environ["SIGNALLED_AT"]

def interrupt():
    os.kill(os.getpid(), int(os.environ["SIGNALLED_WITH"]))

class Sender:
    def find_spec(self, name, path=None, target=None):
        if name == at:
            sys.meta_path.remove(self)
            if "WRAPPED" not in os.environ:
                interrupt()
            else:
                try:
                    interrupt()
                except KeyboardInterrupt:
                    raise ValueError("the module cannot be initialised")

if at:
    sys.meta_path.insert(0, Sender())
elif "GLIBC_TUNABLES" in os.environ:
    interrupt()
"""
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it starts once")
ONCE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # so that it starts no other program


@pytest.mark.parametrize(
    ("command", "at", "environment"),
    [
        ("--help", "argparse", {}),
        ("report nowhere", "bertlab.transfer.recipes", {}),
        pytest.param("floor --config=x.py", "", {}, marks=LINUX),
        ("embed --run=x --text=x --out=x.npz", "bertlab.transfer.recipes", ONCE),
        ("tokenizer train --corpus=pydocs --out=out", "bertlab.data", {}),
        ("tokenizer train --corpus=pydocs --out=out", "numpy", {"WRAPPED": "1"}),
        ("floor --config=x.py", "jax", {}),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_is_interrupted_while_it_imports(command, at, environment, number, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(SITE)
    ours = {"SIGNALLED_AT": at, "SIGNALLED_WITH": str(number.value), "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"} | ours | environment
    words = [sys.executable, "-m", "bertlab", *command.split()]
    ended = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=60)
    assert (ended.returncode, ended.stdout) == (128 + number, "")
    assert re.fullmatch(r"bertlab.*: interrupted; run the same command again to continue\n", ended.stderr)
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def run(small_overrides, tmp_path_factory):
    """A run that was trained for two steps."""
    folder = tmp_path_factory.mktemp("interrupted")
    few = {"train.steps": 2, "train.eval_batches": 1, "evaluate.sentences": 0, "model.width": 16, "model.hidden": 24}
    settings = [f"--config.{key}={value}" for key, value in {**small_overrides, **few}.items()]
    config = f"--config={ROOT}/experiments/pretrain/bert.py:size=tiny,objectives=mlm"
    assert cli.main(["train", config, *settings, f"--workdir={folder / 'run'}"]) == 0
    (folder / "text.txt").write_text("A sentence.\n")
    return folder / "run"


asked: list[str] = []  # a folder: whoever looks into it is interrupted
sys.addaudithook(
    lambda event, values: (
        os.kill(os.getpid(), signal.SIGINT)
        if asked and event in ("open", "os.listdir", "os.scandir") and str(values[0]).startswith(asked[0]) and asked.pop()
        else None
    )
)


@pytest.mark.parametrize(
    "command",
    [
        "embed --run={run} --text={run}/../text.txt --out={run}/../x.npz",
        "evaluate --run={run} --out={run}/../x.json",
        "export {run} --to=huggingface {run}/../exported",
        "sample --run={run} --prompt=a",
    ],
)
def test_a_command_is_interrupted_at_its_work(command, run, capsys):
    """When it opens a checkpoint."""
    there = sorted(run.parent.iterdir())
    asked[:] = [str(run / "checkpoints")]
    assert cli.main(command.format(run=run).split()) == 130
    assert not asked and capsys.readouterr().err.splitlines()[-1].endswith(
        "interrupted; run the same command again to continue"
    )
    assert [path for path in sorted(run.parent.iterdir()) if path not in there] == []
