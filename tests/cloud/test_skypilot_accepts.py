"""SkyPilot's own validation of the tasks that the launcher makes, and the form in which its command answers."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bertlab.studies.launchers import launcher, skypilot
from bertlab.studies.study import RunSpec
from bertlab.studies.worker import write_job

sky = pytest.importorskip("sky")
VALUES = {
    "accelerators": "tpu-v6e-8",
    "accelerator_args": '{"runtime_version": "v2-alpha-tpuv6e"}',
    "infra": "gcp/us-east5/us-east5-b",
    "cpus": "4+",
    "memory": "16+",
    "disk_size": "200",
    "disk_tier": "medium",
    "network_tier": "best",
    "image_id": "docker:python:3.12",
    "labels": '{"study": "table5"}',
    "use_spot": "false",
    "max_hourly_cost": "3.5",
    "local_disk": "nvme:100+",
}


@pytest.fixture
def task(tmp_path, monkeypatch):
    """A function (options) -> the YAML that `sky jobs launch` would be given."""
    monkeypatch.setenv("HOME", str(tmp_path))
    programs = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")

    def make(options):
        tasks = []

        def run(*words):
            tasks.extend([Path(words[-1]).read_text()] if words[1] == "launch" else [])
            return subprocess.CompletedProcess(words, 0, "[]", "")

        monkeypatch.setattr(skypilot, "sky", run)
        monkeypatch.setattr(skypilot, "OF_THIS_MACHINE", ("none://",))
        job = write_job(RunSpec("a", {}, "base.py", {}, {}), tmp_path / "study" / "a")
        engine = launcher("skypilot", 1, f"mirror=file://{tmp_path}/bucket{options}")
        engine.start([sys.executable, "-m", "bertlab.studies.worker", "--run", str(job)], job.parent, None)
        return yaml.safe_load(tasks[-1])  # as SkyPilot reads it

    return make


@pytest.mark.parametrize("accelerators", ["tpu-v5litepod-8", "tpu-v6e-8", "tpu-v5p-8", "A100:8", "L4"])
def test_a_task_is_valid(task, accelerators):
    made = sky.Task.from_yaml_config(task(f',accelerators={accelerators},envs={{"A": "b"}}'))
    [resources] = made.resources
    name, _, count = accelerators.partition(":")
    assert resources.use_spot and resources.accelerators == {name: int(count or 1)}
    assert resources.job_recovery["recover_on_exit_codes"] == [143]
    assert made.name.startswith("bertlab-") and made.envs["A"] == "b" and made.num_nodes == 1


def test_every_option_is_one_of_skypilot_s():
    from sky.utils.schemas import get_resources_schema

    known = {*VALUES, "instance_type"}  # whose value SkyPilot looks up in a catalogue that it downloads
    assert known == set(skypilot.RESOURCES) and known <= get_resources_schema()["properties"].keys()


@pytest.mark.parametrize("option", VALUES)
def test_an_option_is_valid(task, option):
    with_cloud = "" if option == "infra" else ",infra=gcp"
    made = sky.Task.from_yaml_config(task(f"{with_cloud},{option}={VALUES[option]}"))
    [resources] = made.resources
    assert option in resources.to_yaml_config() or option == "use_spot"
    assert resources.use_spot == (option != "use_spot")


def test_skypilot_refuses_a_name_and_a_value_that_it_does_not_know(task):
    made = task("")
    for wrong in ({"acelerators": "A100"}, {"use_spot": "maybe"}, {"infra": "no such cloud"}):
        with pytest.raises((ValueError, sky.exceptions.InvalidSkyPilotConfigError)):
            sky.Task.from_yaml_config(made | {"resources": wrong})


def test_the_queue_has_the_fields_and_statuses_that_the_launcher_reads():
    from sky.jobs.state import ManagedJobStatus
    from sky.schemas.api.responses import ManagedJobRecord

    assert {"job_id", "job_name", "status"} <= set(ManagedJobRecord.model_fields)
    ended = {status.value for status in ManagedJobStatus if skypilot.has_ended(status.value)}
    assert ended == {status.value for status in ManagedJobStatus if status.is_terminal()}


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("launch", ["--yes", "--detach-run", "--name"]),
        ("queue", ["--all", "--output"]),
        ("cancel", ["--yes"]),
    ],
)
def test_the_command_has_the_options_that_the_launcher_gives(command, options, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    words = [str(Path(sys.executable).with_name("sky")), "jobs", command, "--help"]
    text = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout
    assert [option for option in options if option not in text] == []
