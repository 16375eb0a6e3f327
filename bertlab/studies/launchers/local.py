"""Runs as processes of this machine, each with its own share of the cores and of the GPUs."""

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bertlab.errors import UserError


class Process:
    """A `Job`."""

    def __init__(self, process: subprocess.Popen):
        self._process = process

    def done(self) -> bool:
        return self._process.poll() is not None

    def stop(self) -> None:
        self._process.terminate()


class Local:
    """A pool of `jobs` processes.

    A single one has all cores and devices. Output goes to log.txt in the run's directory.
    """

    def __init__(self, jobs: int, devices: str = ""):
        """Shares out cores and GPUs.

        Args:
            jobs: Processes at a time.
            devices: The GPUs to share out, such as "0,1"; "": CUDA_VISIBLE_DEVICES, or all.
        """
        self.jobs = jobs
        gpus = [name for name in str(devices).split(",") if name] or cuda_devices()
        if gpus and len(gpus) < jobs:
            raise UserError(f"--jobs={jobs}: there are {len(gpus)} GPUs; give at most as many jobs")
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._cores, self._gpus = split(cores, jobs), split(gpus, jobs)
        self._slots: list[Process | None] = [None] * jobs

    def start(self, directory: Path) -> Process:
        slots = enumerate(self._slots)
        slot = next(number for number, job in slots if job is None or job.done())
        environment, cores = dict(os.environ), self._cores[slot]
        if self._gpus[slot]:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpus[slot])
        with open(directory / "log.txt", "ab") as log:
            # Its own session: Ctrl-C reaches the sweep alone, which asks its runs to save.
            process = subprocess.Popen(
                [sys.executable, "-u", "-m", "bertlab.studies.worker", str(directory)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        if cores and self.jobs > 1:  # at once, before XLA sizes its thread pool
            os.sched_setaffinity(process.pid, cores)
        self._slots[slot] = Process(process)
        return self._slots[slot]

    def close(self) -> None:
        pass


def split(items: Sequence, jobs: int) -> list[list]:
    """`jobs` disjoint shares; empty ones if there are fewer items than jobs."""
    if len(items) < jobs:
        return [[] for _ in range(jobs)]
    bounds = [number * len(items) // jobs for number in range(jobs + 1)]
    return [list(items[first:last]) for first, last in itertools.pairwise(bounds)]


def cuda_devices() -> list[str]:
    """The GPUs of CUDA_VISIBLE_DEVICES, or those that nvidia-smi lists; none if JAX uses CPUs."""
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return []
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
    if not shutil.which("nvidia-smi"):
        return []
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    count = sum(line.startswith("GPU ") for line in listing.stdout.splitlines())
    return [str(number) for number in range(count)]
