"""A runner for the tests of sweeps: writes what a run writes, without training anything."""

import json
import os
import signal
from pathlib import Path


def run(config, overrides, workdir, downstream):
    """Obeys "mode" in the overrides: finish, fail, die, leave or wait; notes each call in calls.txt."""
    workdir = Path(workdir)
    with open(workdir / "calls.txt", "a") as file:
        file.write(f"{config} {sorted(os.sched_getaffinity(0))}\n")
    mode = overrides.get("mode", "finish")
    if mode == "fail" and not (workdir.parent / "mended").exists():
        raise RuntimeError("the step went wrong\nsecond line")
    if mode == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "leave":
        return
    if mode == "wait":
        wait(workdir)
    print("trained")
    (workdir / "result.json").write_text(json.dumps({"step": overrides.get("train.steps", 0), "metrics": {}}))
    (workdir / "measured.json").write_text("{}")
    for task in downstream:
        (workdir / "finetune" / task).mkdir(parents=True, exist_ok=True)
        (workdir / "finetune" / task / "result.json").write_text(json.dumps({"step": 1, "metrics": {"test": {}}}))


def wait(workdir):
    """Tells the test through a pipe that it runs, then waits for SIGTERM, saves, and ends without a result."""

    def save(*_):
        (workdir / "saved.txt").write_text("saved")
        os._exit(0)

    signal.signal(signal.SIGTERM, save)
    signal.alarm(60)  # a sweep that never stops its worker fails the test, and does not hang it
    with open(workdir.parent / "pipe", "w") as pipe:
        pipe.write(f"{workdir.name}\n")
    while True:
        signal.pause()
