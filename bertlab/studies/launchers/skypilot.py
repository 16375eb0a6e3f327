"""Workers as managed jobs of SkyPilot, on spot machines of a cloud; not run on a cloud.

Each run is a job of one machine. Its folder has snapshots in a bucket (`bertlab.mirror`): the machine begins with the newest,
and saves one a minute. When the machine is taken away, SkyPilot rents another one, which runs the same commands. SkyPilot is
used by its command `sky`, so it may live in an environment of its own: it needs other versions of packages than bertlab.
"""

import contextlib
import json
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertlab.checksums import digest_of
from bertlab.errors import RunFailed, UserError, reason_of
from bertlab.files import write_json
from bertlab.mirror import MARK, SECONDS, Mirror
from bertlab.run import Run
from bertlab.studies.launchers.base import Launcher, QueuedProcess, append_line, log_size

QUEUE_SECONDS = 30.0  # between two queries to SkyPilot, for all runs together
STOP_SECONDS = 5.0  # the same while runs are being stopped
RESOURCES = (
    "accelerators accelerator_args infra instance_type cpus memory disk_size disk_tier network_tier image_id labels use_spot"
    " max_hourly_cost local_disk"
).split()
"""Options that go into the task's `resources` as they are."""

OF_THIS_MACHINE = ("file://", "memory://")
"""Beginnings of URLs that rented machines do not reach."""
HOST_CHIPS = 8
"""The most chips or cores of a TPU on one host, as the number in an accelerator's name counts them."""

# Beginnings of SkyPilot's names (`sky show-gpus -a`) or of words in them; all other names are taken as NVIDIA's.
_TPU = r"tpu|v\d[a-z]*-"
_FOREIGN = r"MI\d|Radeon|RX|Instinct|AMD|Gaudi|HL-\d|Habana|Intel|Trainium|Inferentia|Qualcomm|Virtex|Alveo|Xilinx|Ascend"
_ENVIRONMENT = "$HOME/bertlab-environment"  # on the machine
_RUNS = "$HOME/bertlab-runs"
_ENDED = ("SUCCEEDED", "CANCELLED")  # and all that begin with FAILED
_KEPT = (Run.job.name, Run.store_key.name)  # what this machine has written about a run that is about to start


class SkyPilot(Launcher):
    """Runs workers as SkyPilot's managed jobs, each on a machine of its own, by default a spot one.

    Args:
        jobs: Jobs in SkyPilot's queue at a time.
        mirror: gs://BUCKET/PATH or s3://BUCKET/PATH of the study, which all machines can write to; required.
        seconds: Between two snapshots of a run.
        setup: Shell commands that install bertlab on a machine; default: this checkout with the extras that the machine needs,
            in an environment of uv's.
        workdir: The folder that is copied to each machine, and in which the commands run; default this one.
        envs: {"NAME": "value"}, environment variables.
        **resources: `RESOURCES` of SkyPilot's YAML: accelerators, infra=CLOUD/REGION/ZONE, image_id, ...

    Raises:
        UserError: an option is unknown, `mirror` is missing or wrong, the accelerators are of several hosts, or bertlab cannot
            be installed: `workdir` has none, or the accelerators are neither NVIDIA's nor TPUs.
    """

    def __init__(
        self,
        jobs: int,
        mirror: str = "",
        seconds: float = SECONDS,
        setup: str = "",
        workdir: str = ".",
        envs: Any = None,
        **resources: Any,
    ):
        if not mirror:
            raise UserError(
                "--launcher=skypilot: give the study a place in a bucket: --launcher_options=mirror=gs://BUCKET/PATH"
            )
        if unknown := resources.keys() - set(RESOURCES):
            raise UserError(
                f"--launcher_options: the skypilot launcher has no option {min(unknown)}; it has mirror, seconds, setup,"
                f" workdir, envs, {', '.join(RESOURCES)}"
            )
        if not isinstance(seconds, (int, float)) or not seconds > 0:
            raise UserError(f"--launcher_options=seconds={seconds}: expected a number above 0")
        if not isinstance(envs or {}, Mapping):
            raise UserError(f'--launcher_options=envs={envs}: expected {{"NAME": "value"}}')
        for option, text in (("mirror", mirror), ("setup", setup), ("workdir", workdir)):
            if not isinstance(text, str):
                raise UserError(f"--launcher_options={option}={json.dumps(text)}: expected text")
        if not Path(workdir).expanduser().is_dir():
            raise UserError(f"--launcher_options=workdir={workdir}: there is no such folder")
        Mirror(mirror)
        if mirror.startswith(OF_THIS_MACHINE):
            raise UserError(f"--launcher_options=mirror={mirror}: rented machines do not reach it; use gs:// or s3://")
        accelerators = str(resources.get("accelerators") or "")
        sizes = [re.search(r"-(\d+)$", name) for name in names_of(accelerators) if re.match(_TPU, name, re.IGNORECASE)]
        if any(size and int(size[1]) > HOST_CHIPS for size in sizes):
            raise UserError(
                f"--launcher_options=accelerators={accelerators}: a slice of more than {HOST_CHIPS} has several hosts, and each"
                " run here has one; take a smaller slice, or train on this one with `bertlab manifest`"
            )
        if not setup and not is_checkout(Path(workdir).expanduser()):
            raise UserError(
                f"--launcher_options=workdir={workdir}: machines install bertlab from this folder, and it has no pyproject.toml"
                " of bertlab; start in a checkout, or give setup= with the commands that install bertlab"
            )
        self.jobs, self.mirror, self.seconds = jobs, mirror.rstrip("/"), seconds
        # A machine that is shut down in an orderly way lets the worker save; that is no end of the job either.
        recovery = {"job_recovery": {"recover_on_exit_codes": [128 + signal.SIGTERM]}}
        resources = {"use_spot": True, **recovery, **resources}
        setup = setup or install(self.mirror, accelerators)
        self.task = {"workdir": workdir, "resources": resources, "envs": dict(envs or {}), "setup": setup}
        self.taken: dict[str, Mirror] = {}
        self.queue: list[dict[str, Any]] = []
        self.tried = self.asked = float("-inf")

    def require(self) -> None:
        if not shutil.which("sky"):
            raise UserError("--launcher=skypilot: this machine has no sky; install it with: uv tool install 'skypilot[gcp]'")

    def preview(self, command: Sequence[str], directory: Path) -> str:
        return json.dumps(self.task_of(command, directory.absolute(), {}), indent=2)

    def task_of(self, command: Sequence[str], directory: Path, beside: Mapping[str, str]) -> dict[str, Any]:
        """SkyPilot's task for a run; `beside`: as for `commands`."""
        url = self.url_of(directory)
        return self.task | {
            "name": f"bertlab-{digest_of(url.encode())[:16]}",
            "run": commands(command, directory, url, beside, self.seconds),
        }

    def start(self, command: Sequence[str], directory: Path, lock: int | None) -> "SkyPilotProcess":
        directory = directory.absolute()
        log_start, url, others = log_size(directory), self.url_of(directory), taken_from(directory)
        name = self.task_of(command, directory, {})["name"]
        self.ask(after=0)
        same = [job for job in self.queue if job["job_name"] == name]
        if running := [job for job in same if not has_ended(job["status"])]:  # of a sweep that was killed
            return SkyPilotProcess(self, name, running[-1]["job_id"] - 1, Mirror(url), directory, log_start)
        mirror = Mirror(url)
        mirror.begin(directory, keep=_KEPT, begun=holds_something)
        mirror.save(directory)
        beside = {of.name: self.save_beside(of) for of in others}
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "task.yaml"  # JSON is YAML
            write_json(file, self.task_of(command, directory, beside))
            launched = sky("jobs", "launch", "--yes", "--detach-run", "--name", name, str(file))
        if launched.returncode:
            lines = (launched.stderr or launched.stdout).strip().splitlines()
            raise UserError(f"SkyPilot rejected {directory.name}: {(lines or ['no message'])[-1]}")
        last = max((job["job_id"] for job in same), default=0)
        return SkyPilotProcess(self, name, last, mirror, directory, log_start)

    def url_of(self, directory: Path) -> str:
        """Where the snapshots of a run are: another place for other settings."""
        settings = Run(directory).job.get({}).get("run", {})
        return f"{self.mirror}/{directory.name}-{digest_of(json.dumps(settings, sort_keys=True).encode())[:8]}"

    def save_beside(self, directory: Path) -> str:
        """Saves a run that another one takes a stage from, beside its own snapshots, as it may be at work; returns the URL."""
        url = f"{self.url_of(directory)}-taken"
        if url not in self.taken:
            self.taken[url] = Mirror(url)
            self.taken[url].newest()
            self.taken[url].claim()
        self.taken[url].save(directory, mark=False)
        return url

    def ask(self, after: float) -> float:
        """Updates `queue`, SkyPilot's jobs, if older than `after` seconds; returns when it was last updated."""
        if time.monotonic() - self.tried > after:
            listing = sky("jobs", "queue", "--all", "--output", "json")
            self.tried = time.monotonic()
            with contextlib.suppress(ValueError, KeyError, TypeError):  # briefly not to be reached
                if listing.returncode == 0:
                    jobs = re.search(r"^\[.*", listing.stdout, re.MULTILINE | re.DOTALL)  # its client may print lines before
                    self.queue = sorted(json.loads(jobs[0]), key=lambda job: job["job_id"])
                    self.asked = self.tried
        return self.asked


def sky(*words: str) -> subprocess.CompletedProcess:
    """What SkyPilot's command says."""
    return subprocess.run(["sky", *words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def is_checkout(folder: Path) -> bool:
    """Whether bertlab can be installed from a folder."""
    with contextlib.suppress(OSError, ValueError):
        return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"] == "bertlab"
    return False


def install(mirror: str, accelerators: str) -> str:
    """Shell commands that make an environment with the checkout in it.

    Raises:
        UserError: no extra of bertlab is for such accelerators.
    """
    extras = [mirror.partition("://")[0]] if mirror.startswith(("gs:", "s3:")) else []
    if accelerators:
        extras.append(extra_of(accelerators))
    return "\n".join(
        [
            "python3 -m pip install --quiet uv",
            f'python3 -m uv venv --quiet --allow-existing --python 3.12 "{_ENVIRONMENT}"',
            f'python3 -m uv pip install --quiet --python "{_ENVIRONMENT}/bin/python" -e ".[{",".join(extras)}]"',
        ]
    )


def names_of(accelerators: str) -> list[str]:
    """The words in one or several of SkyPilot's accelerators: ["Gaudi", "HL-205"] of "Gaudi HL-205:8"."""
    return re.findall(r"\b(?!None\b)[A-Za-z][\w.-]*", accelerators)  # {"A100": None} is one of them


def extra_of(accelerators: str) -> str:
    """The extra of bertlab for one or several of SkyPilot's accelerators, such as "A100:8" or "{'tpu-v6e-8': 1}".

    Raises:
        UserError: they are TPUs and others, or another manufacturer's.
    """
    names = names_of(accelerators)
    tpus = sum(bool(re.match(_TPU, name, re.IGNORECASE)) for name in names)
    if tpus in (0, len(names)) and not any(re.match(_FOREIGN, name, re.IGNORECASE) for name in names):
        return "tpu" if tpus else "cuda"
    raise UserError(
        f"--launcher_options=accelerators={accelerators}: bertlab installs itself for NVIDIA's GPUs or for TPUs only; give"
        " setup= with the commands that install it for these"
    )


def commands(command: Sequence[str], directory: Path, url: str, beside: Mapping[str, str], seconds: float) -> str:
    """The shell commands of a job: what the run needs from others, and the worker within `bertlab mirror`.

    Args:
        command: The worker's on this machine.
        directory: The run's on this machine.
        url: Of the run's snapshots.
        beside: Run that lies beside -> URL.
        seconds: Between two snapshots.
    """

    def there(word: str) -> str:
        inside = Path(word).is_absolute() and Path(word).is_relative_to(directory)
        return f'"$RUNS"/{shlex.quote(str(Path(word).relative_to(directory.parent)))}' if inside else shlex.quote(word)

    folder = there(str(directory))
    worker = " ".join(["python", *map(there, command[1:]), "--stop_with_parent"])
    # Under the study's own name, by which a fine-tuning knows the run that it starts from again.
    runs = f'"{_RUNS}"/{shlex.quote(directory.parent.name)}'
    lines = [f'export PATH="{_ENVIRONMENT}/bin:$PATH" RUNS={runs}', 'mkdir -p "$RUNS"']
    for name, place in beside.items():
        lines.append(f'python -m bertlab mirror "$RUNS"/{shlex.quote(name)} {shlex.quote(place)} || exit')
    redirected = shlex.quote(f"exec {worker} >> {folder}/log.txt 2>&1")
    lines.append(
        f"exec python -m bertlab mirror --seconds={seconds:g} {folder} {shlex.quote(url)} -- bash -c {redirected} {folder}"
    )
    return "\n".join(lines)


def taken_from(directory: Path) -> list[Path]:
    """The directories of the runs that a run takes stages from.

    Raises:
        UserError: It stands on a run that is only here.
    """
    run = Run(directory).job.get({}).get("run", {})
    if str(run.get("config", "")).startswith("run:"):
        raise UserError(f"{directory.name} begins with {run['config']}, which is only on this machine; use another launcher")
    names = [*run.get("shares", {}).values(), *run.get("averages", ())]
    return [directory.with_name(name) for name in dict.fromkeys(names)]


def holds_something(directory: Path) -> bool:
    """Whether a run has begun."""
    return Run(directory).begun() or bool(Run(directory).stages()) or (directory / MARK).exists()


def has_ended(status: str) -> bool:
    """Whether SkyPilot will do no more about a job of this status."""
    return status in _ENDED or status.startswith("FAILED")


class SkyPilotProcess(QueuedProcess):
    """A `Process` in a managed job."""

    def __init__(self, launcher: SkyPilot, name: str, after: int, mirror: Mirror, directory: Path, log_start: int):
        """Args: name: of the job, whose number is above `after`; the others as for `Launcher.start`."""
        super().__init__(directory, log_start)
        self.launcher, self.name, self.after, self.mirror = launcher, name, after, mirror
        self.missed: float | None = None
        self.tried, self.stopped = float("-inf"), False

    @property
    def job(self) -> dict[str, Any] | None:
        """What SkyPilot's queue says about it."""
        return next((job for job in self.launcher.queue if job["job_name"] == self.name and job["job_id"] > self.after), None)

    def state(self) -> str:
        return "running" if self.job and self.job["status"] in ("RUNNING", "RECOVERING", "CANCELLING") else "queued"

    def poll(self) -> int | None:
        if self.status is not None:
            return self.status
        asked = self.launcher.ask(after=STOP_SECONDS if self.stopped else QUEUE_SECONDS)
        if self.job is None:  # a moment after its launch, or SkyPilot has lost it
            self.missed = self.missed or asked
            if self.launcher.asked > self.missed:
                self.end("it is not in SkyPilot's queue", -signal.SIGKILL)
        elif has_ended(self.job["status"]):
            self.bring()
        return self.status

    def bring(self) -> None:
        """Brings the run's folder here, and the worker's exit status."""
        if time.monotonic() - self.tried < QUEUE_SECONDS:
            return
        self.tried = time.monotonic()
        state, number = self.job["status"], self.job["job_id"]
        try:
            found = self.mirror.take(self.directory, begun=lambda _: False)
        except UserError as error:
            return self.end(str(error), 1)
        except (OSError, RunFailed) as error:  # the job has ended, and its results are safe
            return append_line(self.directory, f"{reason_of(error)}; it is tried again")
        if state == "SUCCEEDED" or (state == "FAILED" and found and found.status):
            self.status = found.status if found and found.status is not None else 0
        elif state == "CANCELLED":
            self.status = -signal.SIGTERM
        else:
            controller = "" if state in ("FAILED", "FAILED_SETUP") else " --controller"
            self.end(f"SkyPilot's job {number} ended with {state}; see: sky jobs logs{controller} {number}", 1)

    def end(self, why: str, status: int) -> None:
        """Ends it for a reason that is not the worker's."""
        append_line(self.directory, f"error: {why}")
        self.status = status

    def stop(self) -> None:
        self.launcher.ask(after=STOP_SECONDS)
        self.stopped = True
        if self.job:
            sky("jobs", "cancel", "--yes", str(self.job["job_id"]))
        else:
            self.status = -signal.SIGTERM

    def kill(self) -> None:
        self.stop()
