"""A stand-in for SkyPilot's command: managed jobs on machines that are folders of this one, and that are lost at random.

    FAKE_SKY=FOLDER FAKE_SKY_SEED=0 python fake_sky.py jobs launch --yes --detach-run --name NAME task.yaml

A job's machine is a new HOME. After a random time it is lost: all its processes are killed and the folder is removed, or, as
where only the network is gone, it goes on unseen. The job then begins again on another one. FAKE_SKY_LOSSES is how often,
FAKE_SKY_BETWEEN after how many seconds, and FAKE_SKY_UNSEEN the share of those that go on.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil

STATE = Path(os.environ["FAKE_SKY"])


def write(job, **values):
    place = STATE / str(job) / "job.json"
    values = (json.loads(place.read_text()) if place.exists() else {}) | values
    place.with_suffix(".partial").write_text(json.dumps(values))
    place.with_suffix(".partial").rename(place)


def launch(name, file):
    job = 1
    while True:
        try:
            (STATE / str(job)).mkdir(parents=True)
            break
        except FileExistsError:
            job += 1
    shutil.copy(file, STATE / str(job) / "task.yaml")
    write(job, job_id=job, job_name=name, status="STARTING")
    log = open(STATE / str(job) / "log.txt", "wb")
    options = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
    subprocess.Popen([sys.executable, __file__, "control", str(job)], **options)


def processes(machine):
    """Those whose HOME is the machine."""
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOME") == str(machine):
                yield process
        except psutil.Error:
            continue


def end(machine):
    for process in processes(machine):
        process.kill()
    psutil.wait_procs(list(processes(machine)), timeout=10)
    shutil.rmtree(machine, ignore_errors=True)


def control(job):
    folder = STATE / str(job)
    task = json.loads((folder / "task.yaml").read_text())
    draw, unseen = random.Random(f"{os.environ.get('FAKE_SKY_SEED', 0)} {job}"), []
    losses, unseen_share = int(os.environ.get("FAKE_SKY_LOSSES", 0)), float(os.environ.get("FAKE_SKY_UNSEEN", 0.3))
    least, most = map(float, os.environ.get("FAKE_SKY_BETWEEN", "2 7").split())
    for attempt in range(losses + 1):
        machine = folder / f"machine-{attempt}"
        machine.mkdir()
        environment = os.environ | {"HOME": str(machine)} | task.get("envs", {})
        if subprocess.run(["bash", "-c", task["setup"]], cwd=task["workdir"], env=environment, check=False).returncode:
            write(job, status="FAILED_SETUP")
            break
        write(job, status="RUNNING")
        worker = subprocess.Popen(["bash", "-c", task["run"]], cwd=task["workdir"], env=environment, start_new_session=True)
        lost_at = time.monotonic() + (draw.uniform(least, most) if attempt < losses else 1000)
        while worker.poll() is None and time.monotonic() < lost_at and not (folder / "cancel").exists():
            time.sleep(0.05)
        if (folder / "cancel").exists():
            write(job, status="CANCELLING")
            worker.terminate()
            try:
                worker.wait(timeout=30)
            except subprocess.TimeoutExpired:
                worker.kill()
            write(job, status="CANCELLED")
            break
        if worker.poll() is not None:
            write(job, status="SUCCEEDED" if worker.returncode == 0 else "FAILED")
            break
        write(job, status="RECOVERING", recovery_count=attempt + 1)
        if draw.random() >= unseen_share:
            end(machine)
        else:
            unseen.append(machine)
    for machine in [*unseen, folder / f"machine-{attempt}"]:
        end(machine)


def main(words):
    if words[0] == "control":
        return control(int(words[1]))
    command, options = words[1], words[2:]
    assert words[0] == "jobs"
    if command == "launch":
        assert options[:3] == ["--yes", "--detach-run", "--name"]
        launch(options[3], options[4])
    if command == "queue":
        assert options == ["--all", "--output", "json"]
        print("a line of the client's")
        print(json.dumps([json.loads(path.read_text()) for path in STATE.glob("*/job.json")], indent=2))
    if command == "cancel":
        assert options[0] == "--yes"
        (STATE / options[1] / "cancel").touch()


if __name__ == "__main__":
    main(sys.argv[1:])
