"""A sweep on machines that are taken away at random moments ends as an undisturbed one; SkyPilot's command is a stand-in.

What SkyPilot itself says of the tasks is in tests/cloud.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import run_sweep

from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.studies import dry_run
from bertlab.studies.estimate import Cost
from bertlab.studies.launchers import launcher, skypilot
from bertlab.studies.launchers.skypilot import OF_THIS_MACHINE, install
from bertlab.studies.study import RunSpec, Study
from bertlab.studies.worker import write_job
from tests.conftest import ROOT
from tests.studies.test_sweep_killed import results

FAKE = Path(__file__).with_name("fake_sky.py")
OWN = ("log.txt", "calls.txt", "steps.txt", "run.lock", "sweep.lock", "mirror.json", "job.json")


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    """A folder of jobs; `sky` is the stand-in, and `python` this one, also on its machines."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "sky").write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SKY", str(tmp_path / "jobs"))
    monkeypatch.setattr(skypilot, "QUEUE_SECONDS", 0.3)
    monkeypatch.setattr(skypilot, "STOP_SECONDS", 0.3)
    monkeypatch.setattr(skypilot, "OF_THIS_MACHINE", ("none://",))  # its machines are folders of this one
    return tmp_path / "jobs"


def made(tmp_path, jobs=2, more=""):
    return launcher("skypilot", jobs, f"mirror=file://{tmp_path}/bucket,seconds=0.3,setup=echo,workdir={ROOT}{more}")


def study(**modes):
    axes = {"mode": {name: {"mode": mode} if isinstance(mode, str) else mode for name, mode in modes.items()}, "seed": [1]}
    return Study("s", "", "?", "base.py", axes, overrides={"train.steps": 10}, downstream=["x"])


def files(workdir):
    paths = [path for path in workdir.rglob("*") if path.is_file() and path.name not in OWN]
    return {str(path.relative_to(workdir)): path.read_text() for path in paths}


def jobs(cloud):
    return sorted((json.loads(path.read_text()) for path in cloud.glob("*/job.json")), key=lambda job: job["job_id"])


@pytest.mark.nightly
@pytest.mark.usefixtures("fake_runs")
@pytest.mark.parametrize("seed", [0, 1])
def test_a_sweep_on_machines_that_are_taken_away_ends_as_an_undisturbed_one(cloud, tmp_path, monkeypatch, seed):
    monkeypatch.setenv("FAKE_SKY_LOSSES", "3")
    monkeypatch.setenv("FAKE_SKY_BETWEEN", "1 2.5")  # a training sleeps for three seconds: both are taken away at least once
    monkeypatch.setenv("FAKE_SKY_SEED", str(seed))
    tried = study(a="count", b="fail", c={"mode": "count", "finetune.head.bilstm": 1})
    assert run_sweep(tried, tmp_path / "here")[0] == 1
    status, printed = run_sweep(tried, tmp_path / "there", made(tmp_path))
    assert status == 1 and "failed: b-seed=1: RuntimeError: the step went wrong" in printed
    assert files(tmp_path / "there") == files(tmp_path / "here")
    assert [job["status"] for job in jobs(cloud)] == ["SUCCEEDED", "FAILED", "SUCCEEDED"]
    assert sum(job.get("recovery_count", 0) for job in jobs(cloud)) >= 2, "machines were taken away"
    steps = (tmp_path / "there" / "a-seed=1" / "steps.txt").read_text().split()
    assert len(steps) < 2 * 60, "it went on from its snapshots"


STUDY = """
from bertlab.studies.study import Study

def get_study(arguments=None):
    return Study(
        name="taken", title="", question="?", config="experiments/pretrain/bert.py:objectives=mlm",
        axes={{"head": {{"A": {{}}, "B": {{"finetune.head.bilstm": 1}}}}, "seed": [1]}},
        overrides={overrides!r}, downstream={{"words": {{"task": {task!r}}}}},
    )
"""


# `bertlab`, where a folder of this machine may be the mirror.
ON_ONE_MACHINE = """
import sys
from bertlab.cli import main
from bertlab.studies.launchers import skypilot
skypilot.OF_THIS_MACHINE = ("none://",)
sys.exit(main())
"""


@pytest.mark.nightly
def test_trainings_on_machines_that_are_taken_away_end_as_undisturbed_ones(
    cloud, small_overrides, words_task, tmp_path, monkeypatch
):
    """Real runs: a pretraining, and two fine-tunings of it on two machines."""
    monkeypatch.setenv("FAKE_SKY_LOSSES", "2")
    monkeypatch.setenv("FAKE_SKY_BETWEEN", "9 18")
    monkeypatch.setenv("FAKE_SKY_UNSEEN", "0")  # such a machine's files would be on this one too
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    steps = {"train.steps": 200, "train.log_every": 20, "train.eval_every": 100, "train.checkpoint_every": 10}
    small = {"model.layers": 1, "optimizer.warmup_steps": 2, "train.eval_batches": 1, "evaluate.sentences": 0}
    tuning = {"mesh.data": 1, "train.steps": 60, "train.checkpoint_every": 10, "optimizer.warmup_steps": 2}
    overrides = small_overrides | small | steps | {f"finetune.{key}": value for key, value in tuning.items()}
    study = tmp_path / "study.py"
    study.write_text(STUDY.format(overrides=overrides, task=words_task))
    there = f"mirror=file://{tmp_path}/bucket,seconds=1,setup=echo,workdir={ROOT}"
    for place, more in (("here", []), ("there", ["--jobs=2", "--launcher=skypilot", f"--launcher_options={there}"])):
        command = [sys.executable, "-c", ON_ONE_MACHINE, "sweep", f"--study={study}", f"--workdir={tmp_path / place}", *more]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    assert results(tmp_path / "there") == results(tmp_path / "here") and len(results(tmp_path / "here")) == 3 + 3
    assert sum(job.get("recovery_count", 0) for job in jobs(cloud)) >= 2


@pytest.mark.usefixtures("fake_runs")
def test_a_sweep_that_was_killed_takes_its_job_up_again_and_one_that_is_stopped_cancels_it(cloud, tmp_path):
    directory, run = tmp_path / "study" / "a", RunSpec("a", {}, "base.py", {"mode": "count"}, {})
    command = [sys.executable, "-u", "-m", "bertlab.studies.worker", "--run", str(write_job(run, directory, "fake_runner:run"))]
    first, again = made(tmp_path).start(command, directory, None), made(tmp_path).start(command, directory, None)
    assert len(jobs(cloud)) == 1 and first.poll() is again.poll() is None
    again.stop()
    assert again.wait() == -signal.SIGTERM and first.wait() == -signal.SIGTERM
    assert [job["status"] for job in jobs(cloud)] == ["CANCELLED"]
    assert not Run(directory).result.exists()


@pytest.mark.parametrize(
    ("status", "ended", "said"),
    [
        ("FAILED_SETUP", 1, "job 1 ended with FAILED_SETUP; see: sky jobs logs 1"),
        ("FAILED_NO_RESOURCE", 1, "job 1 ended with FAILED_NO_RESOURCE; see: sky jobs logs --controller 1"),
        ("FAILED", 1, "job 1 ended with FAILED; see: sky jobs logs 1"),
        ("CANCELLED", -15, ""),
        ("", -9, "it is not in SkyPilot's queue"),
    ],
)
def test_a_job_that_ends_without_its_worker_is_said(cloud, tmp_path, monkeypatch, status, ended, said):
    queue = []
    launched = lambda name: queue.append({"job_id": 1, "job_name": name, "status": status}) if status else None

    def sky(*words):
        launched(words[5]) if words[1] == "launch" else None
        return type("Ended", (), {"returncode": 0, "stdout": f"progress\n{json.dumps(queue)}", "stderr": ""})

    monkeypatch.setattr(skypilot, "sky", sky)
    monkeypatch.setattr(skypilot, "QUEUE_SECONDS", 0)
    directory = tmp_path / "study" / "a"
    write_job(RunSpec("a", {}, "base.py", {}, {}), directory)
    process = made(tmp_path).start(["python"], directory, None)
    assert process.wait() == ended
    log = Run(directory).log.read_text() if Run(directory).log.exists() else ""
    assert said in log and log.startswith("error: " if said else "")


def test_a_queue_that_cannot_be_read_leaves_a_job_as_it_was(cloud, tmp_path, monkeypatch):
    answers = iter([(1, ""), (0, ""), (1, ""), (0, "no list"), (0, '[{"job_id": "?"}, 1]'), (0, "[\n")])
    ended = lambda code, text: type("Ended", (), {"returncode": code, "stdout": text, "stderr": "away"})
    monkeypatch.setattr(skypilot, "sky", lambda *_: ended(*next(answers)))
    monkeypatch.setattr(skypilot, "QUEUE_SECONDS", 0)
    write_job(RunSpec("a", {}, "base.py", {}, {}), tmp_path / "study" / "a")
    process = made(tmp_path).start(["python"], tmp_path / "study" / "a", None)
    assert [process.poll() for _ in range(4)] == [None] * 4 and process.state() == "queued"


def test_a_task_has_what_was_asked_for_and_names_nothing_of_this_machine(cloud, tmp_path, monkeypatch):
    tasks = []

    def sky(*words):
        tasks.append(json.loads(Path(words[-1]).read_text())) if words[1] == "launch" else None
        return type("Ended", (), {"returncode": 0, "stdout": "[]", "stderr": ""})

    monkeypatch.setattr(skypilot, "sky", sky)
    study = tmp_path / "study"
    write_job(RunSpec("a b", {}, "base.py", {}, {}), study / "a b")
    run = RunSpec("c", {}, "base.py", {}, {"x": {}}, shares={"pretrain": "a b"})
    job = str(write_job(run, study / "c"))
    engine = launcher(
        "skypilot",
        1,
        f"mirror=file://{tmp_path}/bucket,accelerators=tpu-v5litepod-8,infra=gcp/us-west4/us-west4-a,image_id=docker:x,"
        'accelerator_args={"runtime_version": "v2-alpha-tpuv5-lite"},envs={"WANDB_MODE": "offline"}',
    )
    engine.start([sys.executable, "-u", "-m", "bertlab.studies.worker", "--run", job], study / "c", None)
    [task] = tasks
    assert task["resources"] == {
        "use_spot": True,
        "job_recovery": {"recover_on_exit_codes": [143]},
        "accelerators": "tpu-v5litepod-8",
        "infra": "gcp/us-west4/us-west4-a",
        "image_id": "docker:x",
        "accelerator_args": {"runtime_version": "v2-alpha-tpuv5-lite"},
    }
    assert task["envs"] == {"WANDB_MODE": "offline"} and '-e ".[tpu]"' in task["setup"]
    assert sys.executable not in task["run"] and str(study) not in task["run"].replace(f"file://{tmp_path}/bucket", "")
    lines = task["run"].splitlines()
    assert re.fullmatch(r"""python -m bertlab mirror "\$RUNS"/'a b' 'file://.*/bucket/a b-\w{8}-taken' \|\| exit""", lines[2])
    assert '"$RUNS"/c/job.json --stop_with_parent >> "$RUNS"/c/log.txt' in lines[3]
    other = write_job(RunSpec("c", {}, "base.py", {"seed": 2}, {}), study / "c")
    engine.start([sys.executable, "--run", str(other)], study / "c", None)
    assert tasks[1]["name"] != task["name"], "other settings are another job, with a place of its own"


def test_extras_are_those_that_the_machine_needs():
    extras = lambda *given: re.search(r"\[(.*)\]", install(*given))[1]
    assert extras("gs://b", "tpu-v6e-8") == "gs,tpu"
    assert extras("s3://b", "A100:8") == "s3,cuda"
    assert extras("gs://b", "") == "gs"
    tpus = "v5litepod-8 TPU-V4-8:1 {'tpu-v5p-8':1} tpu-v6e-slice:4 tpu-v5-lite-podslice:4 tpu-v5-lite-device:1 tpu-v5p-slice:4"
    gpus = "V100-32GB:1 t4 H100-MEGA-80GB A10G:4 RTX6000-Ada {'L4':1,'L40S':1} GB200:4 H20 H800:8 A800-80GB A2 L2 L20 TitanRTX"
    for names in [*tpus.split(), "tpu-v4-podslice:4", "{'tpu-v6e-8': None}"]:
        assert extras("gs://b", names) == "gs,tpu", names
    for names in [*gpus.split(), "RTX-A6000", "RTX-3090:2", "Tesla-T4", "V100", "M4000", "GTX1660S", "40GB+", "80GB:8"]:
        assert extras("gs://b", names) == "gs,cuda", names


def test_other_manufacturers_accelerators_have_no_extra():
    foreign = "MI300X:8 mi25 Trainium:16 Trainium2 Inferentia2:1 Radeon-Pro-V520 RX7900XTX gaudi3:8 amd:40GB+"
    for names in [*foreign.split(), "Radeon Pro V520", "Radeon MI25", "Gaudi HL-205", "{'L4': 1, 'MI300X': 1}"]:
        with pytest.raises(UserError, match="for NVIDIA's GPUs or for TPUs only"):
            install("gs://b", names)


@pytest.mark.usefixtures("fake_runs")
def test_a_run_that_stands_on_one_of_this_machine_is_refused(cloud, tmp_path):
    directory = tmp_path / "study" / "a"
    write_job(RunSpec("a", {}, "run:runs/x", {}, {"x": {}}), directory)
    with pytest.raises(UserError, match="a begins with run:runs/x, which is only on this machine"):
        made(tmp_path).start(["python"], directory, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "mirror=gs://BUCKET/PATH"),
        ("mirror=runs/x", "not known; use gs://"),
        ("mirror=memory://b/c,accelerator=A100", "has no option accelerator; it has mirror"),
        ("mirror=memory://b/c,seconds=0", "seconds=0: expected a number above 0"),
        ("mirror=memory://b/c,setup=true", "setup=true: expected text"),
        ("mirror=memory://b/c,seconds=soon", "seconds=soon: expected a number above 0"),
        ("mirror=memory://b/c,envs=x", "envs=x: expected {"),
        ("mirror=memory://b/c,workdir=nowhere", "workdir=nowhere: there is no such folder"),
        (
            "mirror=memory://b/c,accelerators=tpu-v5litepod-16",
            "accelerators=tpu-v5litepod-16: a slice of more than 8 has several hosts",
        ),
        ('mirror=memory://b/c,accelerators={"TPU-v4-16": 1}', "has several hosts"),
        ('mirror=memory://b/c,accelerators={"tpu-v6e-slice": 4, "A100": 1}', "for NVIDIA's GPUs or for TPUs only; give setup="),
        (
            "mirror=memory://b/c,accelerators=v5litepod-16",
            "accelerators=v5litepod-16: a slice of more than 8 has several hosts",
        ),
        (
            "mirror=memory://b/c,accelerators=MI300X:1",
            "accelerators=MI300X:1: bertlab installs itself for NVIDIA's GPUs or for",
        ),
        ("mirror=memory://b/c,accelerators=Gaudi HL-205:8", "give setup= with the commands that install it for these"),
        ('mirror=memory://b/c,accelerators={"L4": 1, "tpu-v6e-8": 1}', "for NVIDIA's GPUs or for TPUs only; give setup="),
        (f"mirror=memory://b/c,workdir={ROOT}/tests", "tests: machines install bertlab from this folder"),
    ],
)
def test_mistakes_are_said_before_anything_starts(cloud, options, message):
    with pytest.raises(UserError, match=re.escape(message)) as error:
        launcher("skypilot", 1, options)
    assert "\n" not in str(error.value) and not cloud.exists()


def test_a_folder_of_this_machine_is_no_mirror_for_rented_ones(cloud, tmp_path, monkeypatch):
    monkeypatch.setattr(skypilot, "OF_THIS_MACHINE", OF_THIS_MACHINE)
    for url in (f"file://{tmp_path}/bucket", "memory://b/c"):
        with pytest.raises(UserError, match="rented machines do not reach it; use gs:// or s3://"):
            launcher("skypilot", 1, f"mirror={url}")


def test_what_installs_without_a_checkout_needs_none(cloud, tmp_path):
    options = f"mirror=memory://b/c,workdir={tmp_path},setup=pip install bertlab,accelerators="
    for accelerators in ("tpu-v6e-8", "MI300X:1"):
        assert launcher("skypilot", 1, f"{options}{accelerators}").task["setup"] == "pip install bertlab"


def test_a_machine_without_sky_is_told_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(skypilot, "OF_THIS_MACHINE", ("none://",))
    made = launcher("skypilot", 1, "mirror=memory://b/c,accelerators=A100:1")
    with pytest.raises(UserError, match="has no sky; install it with"):
        made.require()


@pytest.mark.usefixtures("fake_runs")
def test_a_dry_run_shows_the_task_that_would_be_submitted(tmp_path, cloud, monkeypatch):
    monkeypatch.setattr(dry_run, "pretraining_cost", lambda config: Cost(1.0, 1.0))
    submitted = []
    monkeypatch.setattr(skypilot, "write_json", lambda file, task: submitted.append(task))
    monkeypatch.setattr(skypilot, "sky", lambda *words: subprocess.CompletedProcess(words, words[1] == "launch", "[]", "no"))
    with pytest.raises(UserError, match="rejected a-seed=1"):
        run_sweep(study(a="count"), tmp_path / "submitted" / "runs", made(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # without sky
    status, printed = run_sweep(study(a="count"), tmp_path / "runs", made(tmp_path), dry_run=True)
    shown = json.loads(printed[printed.index("\n{") : printed.rindex("}") + 1])
    assert status == 0 and shown["resources"]["use_spot"] and shown == submitted[0]
    assert not (tmp_path / "runs").exists() and "if each had a machine like this one" in printed
