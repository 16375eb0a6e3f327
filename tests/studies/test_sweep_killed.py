"""A sweep that is killed at random moments and started again ends with the results of one that was not, on real runs."""

import json
import os
import random
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
        overrides={overrides!r},
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


def test_a_killed_sweep_ends_with_the_same_results(small_config, corpus, cache, words_task, tmp_path):
    overrides = {
        "data.corpus": corpus,
        "data.directory": cache,
        "data.workers": 1,
        "data.tokenizer.vocab_size": 400,
        "data.seq_len": 32,
        "data.batch_size": 8,
        "data.valid_fraction": 0.1,
        "data.test_fraction": 0.1,
        "model.layers": 1,
        "optimizer.warmup_steps": 2,
        "train.steps": 40,
        "train.log_every": 4,
        "train.eval_every": 20,
        "train.eval_batches": 1,
        "train.checkpoint_every": 2,
        "evaluate.sentences": 4,
        "mesh.data": 1,
        "finetune.mesh.data": 1,
        "finetune.train.steps": 20,
        "finetune.train.checkpoint_every": 2,
        "finetune.optimizer.warmup_steps": 2,
    }
    study = tmp_path / "study.py"
    study.write_text(STUDY.format(overrides=overrides, task=words_task))
    assert start(study, tmp_path / "whole").wait(timeout=300) == 0

    rng, kills = random.Random(3), 0
    while True:
        sweep = start(study, tmp_path / "killed")
        try:
            status = sweep.wait(timeout=rng.uniform(6, 14) if kills < 4 else 300)
            break
        except subprocess.TimeoutExpired:
            workers = psutil.Process(sweep.pid).children(recursive=True)
            for process in [sweep, *workers]:  # the workers too, without a chance to save
                os.kill(process.pid, signal.SIGKILL)
            sweep.wait()
            kills += 1
            time.sleep(0.5)
    assert status == 0 and kills >= 1
    assert results(tmp_path / "killed") == results(tmp_path / "whole")
    assert len(results(tmp_path / "whole")) == 2 + 4, "one pretraining and two fine-tunings"
