"""Trains a very small model for many steps and notes memory and CPU time along the way: both must stay flat.

    python -m tests.bench.long_run tests/bench/long_run.json [STEPS]

CPU time is the process's own, so that other work on the machine does not count. It includes evaluation and checkpoints, which
come as often in each part of the run.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from bertlab.config import load_config
from bertlab.machine import describe_machine
from bertlab.train import loop

PARTS = 20
SMALL = {
    "data.batch_size": 4,
    "data.seq_len": 16,
    "data.tokenizer.vocab_size": 512,
    "model.layers": 1,
    "model.width": 16,
    "model.hidden": 32,
    "model.heads": 2,
    "evaluate.sentences": 0,
    "train.eval_batches": 2,
}


def measure(steps: int) -> dict:
    """Trains so many steps; of each of `PARTS` equal parts the memory at its end (MB) and the CPU milliseconds a step."""
    every = steps // PARTS
    cadence = {"train.steps": steps, "train.log_every": 100, "train.eval_every": every, "train.checkpoint_every": every}
    config = load_config("experiments/pretrain/bert.py:size=tiny,objectives=mlm,corpus=pydocs", SMALL | cadence)
    process, noted, log = psutil.Process(), [], loop.Session.log

    def noting(session) -> None:
        log(session)
        if session.step % every == 0:
            noted.append((session.step, process.memory_info().rss / 1e6, time.process_time()))

    loop.Session.log = noting
    with tempfile.TemporaryDirectory() as workdir:
        began = time.time()
        result = loop.train(config, workdir)
        seconds = time.time() - began
    step, memory, cpu = (np.array(column) for column in zip(*noted))
    return {
        "steps": steps,
        "seconds": round(seconds),
        "loss": result["metrics"]["valid"]["loss"],
        "step": step.tolist(),
        "memory_mb": memory.round(1).tolist(),
        "cpu_ms_a_step": (1000 * np.diff(cpu) / np.diff(step)).round(3).tolist(),  # of the second part and those after it
        "machine": describe_machine(),
        "date": time.strftime("%Y-%m-%d"),
    }


if __name__ == "__main__":
    found = measure(int(sys.argv[2]) if len(sys.argv) > 2 else 20_000)
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in found.items())
    Path(sys.argv[1]).write_text(f"{{\n{lines}\n}}\n")
    print({key: found[key] for key in ("memory_mb", "cpu_ms_a_step")})
