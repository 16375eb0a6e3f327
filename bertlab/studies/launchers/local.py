"""Runs as processes on this machine, each with its own share of the cores and GPUs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from bertlab.studies.launchers import Job


class Local:
    """A pool of `jobs` processes, among which cores and GPUs are shared out.

    With more jobs than GPUs, several share one, each with an equal part of its memory, which suits
    small models. Output goes to log.txt in the run's directory.
    """

    def __init__(self, jobs: int):
        self.jobs, gpus = jobs, cuda_devices()
        self._sharing = -(-jobs // len(gpus)) if gpus else 1
        if self._sharing > 1:
            gpus = (gpus * self._sharing)[:jobs]
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._cores, self._gpus = split(cores, jobs), split(gpus, jobs)
        self._slots: list[subprocess.Popen | None] = [None] * jobs

    def start(self, directory: Path) -> Job:
        slots = enumerate(self._slots)
        slot = next(number for number, old in slots if old is None or old.poll() is not None)
        environment, cores = dict(os.environ), self._cores[slot]
        if self._gpus[slot]:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpus[slot])
        if self._sharing > 1:
            environment.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 / self._sharing:.3f}")
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
        self._slots[slot] = process
        return Job(lambda: process.poll() is not None, process.terminate)


def split(items: list, jobs: int) -> list[list]:
    """`jobs` disjoint shares; empty ones if there are fewer items than jobs."""
    shares = np.array_split(items if len(items) >= jobs else [], jobs)
    return [share.tolist() for share in shares]


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
