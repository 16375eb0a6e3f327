"""Workers on this machine, each with its own cores and devices.

Why no library does this: loky gives all workers one environment, so it cannot show each worker its own GPUs before JAX starts,
and a worker that is killed breaks the pool for the other runs. submitit's local jobs outlive their parent, start a new process
for each run and pin no cores. Here a worker has its share for life, takes run after run, and saves when its parent dies.
"""

import contextlib
import glob
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertlab.errors import UserError
from bertlab.files import temporary_folder
from bertlab.studies.launchers.base import Launcher, Process, start_worker

PROGRAMS = "bertlab-programs"  # temporary directory with the programs that a sweep's workers compile
CHIP_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}  # a TPU process's chips as a box: x,y,z


class Local(Launcher):
    """Runs workers on this machine, each with its own share of the CPU cores, and of the GPUs or TPU chips.

    A single worker has them all. If there are fewer cores than workers, all workers share all cores; too few devices are an
    error. A worker whose run succeeded takes the next run, so nothing has to start again.

    Args:
        jobs: Workers at a time.
        devices: The GPUs or TPU chips to share out, such as "0,1"; default all in CUDA_VISIBLE_DEVICES or in this machine.

    Raises:
        UserError: An option is unknown, or the machine has fewer devices than jobs.
    """

    is_here = True

    def __init__(self, jobs: int, devices: Any = "", **unknown: Any):
        if unknown:
            raise UserError(f"--launcher_options: the local launcher has no option {min(unknown)}; it has devices=0,1,...")
        given = [device.strip() for device in str(devices).split(",") if device.strip()]
        if given and len(given) < jobs:
            raise UserError(f"--launcher_options=devices={devices}: give at least one device per job (--jobs={jobs})")
        self.jobs = jobs
        self.cores = share(core_names() if jobs > 1 else [], jobs)
        self.environments = device_environments(given, jobs)
        self.workers: list[Worker | None] = [None] * jobs
        self.resources, self.cache = contextlib.ExitStack(), None

    def share(self, workers: int) -> float | None:
        if any(self.environments):
            return None
        return 1 / (self.jobs if self.cores[0] else workers)

    def start(self, command: Sequence[str], directory: Path, lock: int | None) -> "LocalRun":
        slot = next(i for i, worker in enumerate(self.workers) if worker is None or worker.run.poll() is not None)
        worker = self.workers[slot]
        if worker is None or not worker.takes(command):
            self.workers[slot] = None
            options = ["--cores", ",".join(self.cores[slot])] if self.cores[slot] else []
            # The worker inherits the lock: no new sweep can start beside a worker whose parent was killed.
            environment = {**self.programs(), **os.environ, **self.environments[slot]}
            worker = self.workers[slot] = Worker(command, options, directory, lock, environment)
        return worker.run

    def programs(self) -> dict[str, str]:
        """The compilation cache that this sweep's workers share; runs that differ only in seeds compile to one program."""
        # JAX 0.10 hangs when it loads programs for several CPU devices from its cache.
        if (
            "JAX_COMPILATION_CACHE_DIR" in os.environ
            or "JAX_NUM_CPU_DEVICES" in os.environ
            or "device_count" in os.environ.get("XLA_FLAGS", "")
        ):
            return {}
        if self.cache is None:
            self.cache = self.resources.enter_context(temporary_folder(Path(tempfile.gettempdir()), PROGRAMS))
        # Small programs too: a run has dozens, and together they take as long as its training step.
        return {"JAX_COMPILATION_CACHE_DIR": str(self.cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}

    def close(self) -> None:
        for worker in filter(None, self.workers):
            worker.close()
        self.workers = [None] * self.jobs
        self.resources.close()
        self.cache = None


class Worker:
    """A process that executes one run after another.

    Attributes:
        run: Its present or last run.
    """

    def __init__(self, command: Sequence[str], options: Sequence[str], directory: Path, lock: int | None, environment: dict):
        """Args: as for `Launcher.start`; options: the worker's, for all its runs."""
        answers, answer = os.pipe()
        os.set_blocking(answers, False)
        self.answers = os.fdopen(answers, "rb", buffering=0)
        inherited = (answer,) if lock is None else (answer, lock)
        self.command = command[:-1]
        try:
            self.process = start_worker(
                [*command, *options, "--answer", str(answer)], directory, pass_fds=inherited, env=environment
            )
        except BaseException:
            self.answers.close()
            raise
        finally:
            os.close(answer)
        self.run = LocalRun(self)

    def takes(self, command: Sequence[str]) -> bool:
        """Gives the worker another run; False if it has ended, as it does after a run that failed or was stopped."""
        with contextlib.suppress(BrokenPipeError):
            if self.process.poll() is None and self.command == command[:-1]:
                self.process.stdin.write(os.fsencode(command[-1]) + b"\n")
                self.process.stdin.flush()
                self.run = LocalRun(self)
                return True
        self.close()
        return False

    def answered(self) -> bool:
        """Whether the worker reports the end of a run; ask until it does, once per run."""
        return bool(self.answers.read(1))

    def close(self) -> None:
        """Releases an idle process; it then ends."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.answers.close()


class LocalRun(Process):
    """A `Process`: one run of a worker on this machine."""

    def __init__(self, worker: Worker):
        self.worker, self.status = worker, None

    def poll(self) -> int | None:
        if self.status is None:
            ended = self.worker.process.poll()  # read first: the answer may be the last thing it wrote
            self.status = 0 if self.worker.answered() else ended
        return self.status

    def stop(self) -> None:
        self.worker.process.terminate()

    def kill(self) -> None:
        if self.poll() is None:
            os.killpg(self.worker.process.pid, signal.SIGKILL)


def share(items: Sequence[str], jobs: int) -> list[list[str]]:
    """Splits items into `jobs` disjoint shares; if there are too few, all shares are empty."""
    if jobs > len(items):
        return [[] for _ in range(jobs)]
    return [list(items[i * len(items) // jobs : (i + 1) * len(items) // jobs]) for i in range(jobs)]


def core_names() -> list[str]:
    """The CPU cores that this process may use; [] if the system does not say."""
    return [str(core) for core in sorted(os.sched_getaffinity(0))] if hasattr(os, "sched_getaffinity") else []


def device_environments(given: Sequence[str], jobs: int) -> list[dict[str, str]]:
    """The environment variables that show each of `jobs` processes only its own devices; JAX reads them when imported.

    Args:
        given: The devices to share out; empty: all devices, if there are several jobs.
        jobs: Processes at a time.

    Raises:
        UserError: The machine has fewer devices than jobs, or libtpu cannot use a process's number of TPU chips.
    """
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return [{} for _ in range(jobs)]
    chips = tpu_chips()
    found = chips or cuda_devices()
    limited = not chips and "XLA_PYTHON_CLIENT_MEM_FRACTION" in os.environ
    if found and jobs > len(found) and not limited:
        kind, share_one = ("TPU chip", "") if chips else ("GPU", "; to share one, set XLA_PYTHON_CLIENT_MEM_FRACTION=0.3 or so")
        raise UserError(
            f"--jobs={jobs}: this machine has {len(found)} {kind}{'s' if len(found) > 1 else ''}, and each process takes every"
            f" one it sees; lower --jobs to {len(found)}, or set JAX_PLATFORMS=cpu to use none{share_one}"
        )
    shares = share(given or (found if jobs > 1 else []), jobs)
    if found and jobs > len(found):  # by turns
        shares = [[found[i % len(found)]] for i in range(jobs)]
    if not chips:
        return [{"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {} for devices in shares]
    if any(devices and len(devices) not in CHIP_BOUNDS for devices in shares):
        raise UserError(
            f"--jobs={jobs}: {len(given or chips)} TPU chips do not split into shares of 1, 2, 4 or 8; choose another"
        )
    return [tpu_environment(devices, number) if devices else {} for number, devices in enumerate(shares)]


def tpu_environment(chips: Sequence[str], number: int) -> dict[str, str]:
    """The environment variables of a process that has these chips and talks to no other; `number` is its own on its host."""
    return {
        "TPU_VISIBLE_CHIPS": ",".join(chips),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": CHIP_BOUNDS[len(chips)],
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_MESH_CONTROLLER_ADDRESS": f"localhost:{8476 + number}",
        "TPU_MESH_CONTROLLER_PORT": str(8476 + number),
    }


def cuda_devices() -> list[str]:
    """The GPUs that CUDA_VISIBLE_DEVICES lists or, without it, the numbers of those that nvidia-smi lists."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [device.strip() for device in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if device.strip()]
    if not shutil.which("nvidia-smi"):
        return []
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)  # fails without a driver
    return [str(i) for i in range(sum(line.startswith("GPU ") for line in listing.stdout.splitlines()))]


def tpu_chips() -> list[str]:
    """The TPU chips that TPU_VISIBLE_CHIPS lists or, without it, the numbers of this machine's; none without libtpu."""
    if not importlib.util.find_spec("libtpu"):
        return []
    if "TPU_VISIBLE_CHIPS" in os.environ:
        return [chip.strip() for chip in os.environ["TPU_VISIBLE_CHIPS"].split(",") if chip.strip()]
    files = glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*")  # up to v4; since v5
    return [str(i) for i in range(len(files))]
