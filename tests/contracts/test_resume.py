"""A run that is stopped or killed at random moments ends bit for bit as one that is not."""

import os
import signal
import subprocess
import sys
import time
import zlib

import jax
import numpy as np
import pytest

from bertlab.train.checkpoint import load_params
from bertlab.train.run_directory import RunDirectory
from tests.train.runs import SETTINGS, write_text

STEPS, EVERY = 60, 5
PHASES = "0.4 data.seq_len=16; 0.6 data.seq_len=32"
RUNS = {
    "bert": "bert.py",
    "gpt": "gpt.py",
    "elmo on characters": "elmo.py:tokens=characters",
    "awd_lstm, averaged": "awd_lstm.py",
    "bert with a phase change": "bert.py:objectives=mlm",
}
STATUS = {signal.SIGTERM: 0, signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL}


def command_of(name, folder, workdir):
    settings = SETTINGS | {
        "data.corpus": write_text(folder),
        "data.directory": f"{folder}/cache",
        "train.steps": STEPS,
        "train.log_every": 1,
        "train.eval_every": 7,
        "train.checkpoint_every": EVERY,
        "train.phases": PHASES if "phase" in name else "",
        "evaluate.sentences": 0,
    }
    if "averaged" in name:
        settings |= {"optimizer.average_after": 1}
    if "elmo" in name or "awd" in name:
        del settings["optimizer.learning_rate"]
    command = [sys.executable, "-m", "bertlab", "train", f"--workdir={folder / workdir}"]
    command.append(f"--config=experiments/pretrain/{RUNS[name]}")
    return command + [f"--config.{key}={value}" for key, value in settings.items()]


def untimed(lines):
    """Lines of metrics.jsonl without what depends on the clock."""
    timed = ("seconds", "tokens_per_second")
    return [{key: value for key, value in line.items() if key not in timed} for line in lines]


def steps_done(run):
    return max([line["step"] for line in run.metrics() if line["split"] == "train"], default=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_signals_at_random_moments_change_nothing(name, tmp_path):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    subprocess.run(command_of(name, tmp_path, "whole"), env=environment, check=True)
    command, run = command_of(name, tmp_path, "stopped"), RunDirectory(tmp_path / "stopped")
    moments = np.random.default_rng(zlib.crc32(name.encode()))
    for number, status in STATUS.items():
        process = subprocess.Popen(command, env=environment)
        target = (run.steps() or [0])[-1] + moments.integers(2, 3 * EVERY)
        while steps_done(run) < target and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(number)
        assert process.wait(timeout=300) == status
        # A signal saves its step. Of two checkpoints a kill may leave the last one unfinished.
        lost = steps_done(run) - (run.steps() or [0])[-1]
        assert lost <= (2 * EVERY if number == signal.SIGKILL else 0)
    subprocess.run(command, env=environment, check=True)
    ours, theirs = (RunDirectory(tmp_path / workdir) for workdir in ("whole", "stopped"))
    jax.tree.map(np.testing.assert_array_equal, load_params(ours), load_params(theirs))
    assert untimed(ours.metrics()) == untimed(theirs.metrics())
    assert ours.read("result")["metrics"] == theirs.read("result")["metrics"]
