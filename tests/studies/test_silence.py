"""Workers and trainings that stand still are told of, and those that go on again."""

import io
import os
import re
import signal
import time

import pytest
from rich.console import Console

from bertlab import alive
from bertlab.studies.launchers import Local
from bertlab.studies.sweep import sweep
from tests.studies.test_sweep import study

pytestmark = pytest.mark.usefixtures("fake_runs")


class Obeys(io.StringIO):
    """Does what the sweep's advice says, once: kills the process that gives no sign of life, or lets it go on."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def write(self, text):
        if found := re.search(r"no sign of life for \d+ s from its worker, process (\d+) on", text):
            os.kill(int(found.group(1)), self.how)
        return super().write(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "status", "ends"), [("SIGKILL", 1, "failed: killed by SIGKILL"), ("SIGCONT", 0, "finished in")]
)
def test_a_sweep_names_a_worker_that_was_stopped(how, status, ends, tmp_path, monkeypatch):
    monkeypatch.setenv("BERTLAB_PATIENCE", "2")  # the workers'
    monkeypatch.setattr(alive, "PATIENCE", 2.0)
    console = Console(file=Obeys(getattr(signal, how)), width=400)
    assert sweep(study({"A": "stop", "B": "finish"}), tmp_path, Local(2), runner="fake_runner:run", console=console) == status
    printed = console.file.getvalue()
    assert len(re.findall(r"^a-seed=1: no sign of life for 2 s", printed, re.MULTILINE)) == 1, printed
    assert "b-seed=1: no sign" not in printed and f"a-seed=1: {ends}" in printed


def test_a_training_says_once_that_its_steps_stand_still_and_once_that_they_come_again(monkeypatch):
    monkeypatch.setattr(alive, "PATIENCE", 0.2)
    said, signs = [], []
    with alive.telling(said.append), alive.showing(lambda: signs.append(1)):
        alive.not_stepping()  # compilation
        time.sleep(0.5)
        assert not said
        alive.step_done()
        time.sleep(0.6)
        assert len(said) == 1 and f"kill -9 {os.getpid()}" in said[0]
        shown = len(signs)
        time.sleep(0.2)
        assert len(signs) == shown, "a worker that stands still gives no sign"
        alive.step_done()
        deadline = time.monotonic() + 10
        while (len(said) < 2 or len(signs) <= shown) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert said[1:2] == ["steps come again"] and len(signs) > shown
        alive.not_stepping()
