"""A sweep that is killed in each of its stages and started again ends with the results of one that was not, on real runs."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("quick_compilation")
TIMES = ("seconds", "tokens_per_second")

STUDY = """
from bertlab.studies.study import Study

def get_study(arguments=None):
    return Study(
        name="killed", title="", question="?", config="experiments/pretrain/bert.py:objectives=mlm",
        axes={{"head": {{"A": {{}}, "B": {{"finetune.head.bilstm": 1}}}}, "seed": [1]}},
        overrides={overrides!r}, rates=(1, 3),
        downstream={{"words": {{"task": {task!r}}}}},
    )
"""


def results(workdir):
    """Every result.json and metrics.jsonl below a study, without times."""
    found = {}
    for path in sorted([*workdir.rglob("result.json"), *workdir.rglob("metrics.jsonl")]):
        lines = (
            [json.loads(line) for line in path.read_text().splitlines()]
            if path.suffix == ".jsonl"
            else [json.loads(path.read_text())]
        )
        found[str(path.relative_to(workdir))] = [{k: v for k, v in line.items() if k not in TIMES} for line in lines]
    return found


def start(study, workdir):
    command = [sys.executable, "-m", "bertlab.cli", "sweep", f"--study={study}", f"--workdir={workdir}"]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)})


def kill(sweep):
    """The sweep and its workers at once, without a chance to save."""
    workers = psutil.Process(sweep.pid).children(recursive=True)
    for process in [sweep, *workers]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    sweep.wait()
    psutil.wait_procs(workers)


def saved(stage):
    """Whether a stage has a checkpoint."""
    return any(path.name.isdigit() for path in (stage / "checkpoints").glob("*"))


@pytest.mark.nightly
def test_a_killed_sweep_ends_with_the_same_results(small_overrides, words_task, tmp_path):
    overrides = small_overrides | {
        "model.layers": 1,
        "optimizer.warmup_steps": 2,
        "optimizer.learning_rate": 1e-3,
        "train.steps": 24,
        "train.log_every": 4,
        "train.eval_every": 12,
        "train.eval_batches": 1,
        "train.checkpoint_every": 2,
        "evaluate.sentences": 0,
        "finetune.mesh.data": 1,
        "finetune.train.steps": 12,
        "finetune.train.checkpoint_every": 2,
        "finetune.train.log_every": 2,
        "finetune.optimizer.warmup_steps": 2,
    }
    study = tmp_path / "study.py"
    study.write_text(STUDY.format(overrides=overrides, task=words_task))
    assert start(study, tmp_path / "whole").wait(timeout=300) == 0

    workdir = tmp_path / "killed"
    candidates = [workdir / f"a-seed=1-rate={rate}" for rate in (0.001, 0.003)]
    pretraining = candidates[0]
    stages = [*candidates, *(workdir / run / "finetune" / "words" for run in ("a-seed=1", "b-seed=1"))]
    moments = {
        "after a step of pretraining": lambda: saved(pretraining) and '"train"' in (pretraining / "metrics.jsonl").read_text(),
        "in the second candidate for the rate": lambda: saved(stages[1]),
        "in the second fine-tuning": lambda: saved(stages[3]),
    }
    in_the_middle = []
    for moment, has_come in moments.items():
        sweep, deadline = start(study, workdir), time.monotonic() + 300
        while not has_come():
            with contextlib.suppress(subprocess.TimeoutExpired):
                pytest.fail(f"{moment}: the sweep has ended with status {sweep.wait(timeout=0.02)}")
            assert time.monotonic() < deadline, moment
        kill(sweep)
        in_the_middle += [moment for stage in stages if saved(stage) and not (stage / "result.json").exists()]
    assert in_the_middle, "something was saved, and not finished, at one of the kills"
    assert start(study, workdir).wait(timeout=300) == 0
    assert results(workdir) == results(tmp_path / "whole")
    assert len(results(tmp_path / "whole")) == 4 + 4, "two candidates, of which one is the pretraining, and two fine-tunings"
    runs = [json.loads((of / "study.json").read_text())["runs"] for of in (workdir, tmp_path / "whole")]
    assert runs[0] == runs[1] and len({run["shares"]["pretrain"] for run in runs[0]}) == 1
