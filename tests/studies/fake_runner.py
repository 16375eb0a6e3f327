"""A runner for the tests of sweeps: writes what a run writes, without training anything."""

import hashlib
import json
import math
import os
import signal
import time

from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.studies.worker import awaited, existing_run, stages


def run(run, directory):
    """Obeys "mode" in the overrides: finish, fail, die, stop, leave, wait, stay or count; notes each call in calls.txt."""
    with open(directory / "calls.txt", "a") as file:
        file.write(f"{run.config} {sorted(os.sched_getaffinity(0))} {os.getpid()}\n")
    mode = run.overrides.get("mode", "finish")
    if mode == "fail" and not (directory.parent / "mended").exists():
        raise RuntimeError("the step went wrong\nsecond line")
    rate = run.overrides.get("optimizer.learning_rate", 1e-3)
    if rate >= run.overrides.get("diverges_at", math.inf):
        Run(directory).diverged.write("the loss is not finite\n")
        raise UserError("the loss is not finite")
    if mode == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if mode == "leave":
        return
    if mode in ("wait", "stay"):
        wait(directory, saves=mode == "wait")
    for name, stage in awaited(run, directory.parent):
        assert stage.finished, f"{name} is not finished"
    print("trained")
    for stage in stages(run, directory):
        stage.directory.mkdir(parents=True, exist_ok=True)
        step = run.overrides.get("train.steps", 0)
        score = {"accuracy": run.overrides["score"] + 0.01 * (run.overrides["seed"] % 3)} if "score" in run.overrides else {}
        loss = abs(math.log10(rate / run.overrides.get("best_rate", 1e-3)))
        if mode == "count":
            score = {"accuracy": count(stage.directory, 60)}
        metrics = {"test": score, "valid": {"loss": round(loss, 6)} if stage.kind == "pretrain" else {}}
        (stage.directory / "result.json").write_text(json.dumps({"step": step, "metrics": metrics, "tokens": 10 * step}))
        if stage.kind == "pretrain":
            (stage.directory / "measured.json").write_text("{}")
        if stage.kind == "pretrain" and existing_run(run.config) is None:
            (stage.directory / "checkpoints" / str(step)).mkdir(parents=True, exist_ok=True)


def count(directory, last):
    """A training of three seconds: each step depends on the one before, and is a checkpoint; resumes from the last."""
    run = Run(directory)
    steps = run.steps()
    step = steps[-1] if steps else 0
    state = (run.checkpoints / str(step) / "state").read_text() if steps else ""
    while step < last:
        step += 1
        state = hashlib.blake2b(f"{state} {step}".encode(), digest_size=6).hexdigest()
        place = run.checkpoints / f"{step}.orbax-checkpoint-tmp"
        place.mkdir(parents=True, exist_ok=True)
        (place / "state").write_text(state)
        place.rename(run.checkpoints / str(step))
        with open(directory / "steps.txt", "a") as file:
            file.write(f"{step}\n")
        time.sleep(0.05)
    return int(state, 16)


def wait(workdir, saves):
    """Tells the test through a pipe that it runs, then waits for SIGTERM, and if it `saves`, ends without a result."""

    def save(*_):
        (workdir / "saved.txt").write_text("saved")
        os._exit(0)

    signal.signal(signal.SIGTERM, save if saves else lambda *_: (workdir / "told.txt").write_text("told"))
    signal.alarm(60)  # a sweep that never stops its worker fails the test, and does not hang it
    with open(workdir.parent / "pipe", "w") as pipe:
        pipe.write(f"{workdir.name}\n")
    while True:
        signal.pause()
