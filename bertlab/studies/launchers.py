"""Where the worker processes of a sweep run: on this machine, through SLURM (submitit), or on a Ray cluster.

A launcher starts workers and says how each is doing; queueing, placing, preempting and cancelling are the engine's own. On a
cluster the study's directory lies on a file system that all nodes share, and bertlab is installed on all nodes.
"""

import glob
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from bertlab.errors import UserError

QUEUE_SECONDS = 30  # between two questions to SLURM's controller, for all runs together
STOP_SECONDS = 1  # the same, while runs are being stopped
CHIP_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1", 8: "2,4,1"}  # a TPU process's chips as a box: x,y,z


class Process(Protocol):
    """The worker process of one run, wherever it is."""

    def poll(self) -> int | None:
        """The exit status, -N where signal N ended it; None as long as it is queued or running."""

    def state(self) -> str:
        """What to show while it has not ended: "queued" or "running"."""

    def stop(self) -> None:
        """Asks the worker to save and end (SIGTERM), or takes it from the queue; does not wait."""

    def kill(self) -> None:
        """Ends the worker at once (SIGKILL), or takes it from the queue."""

    def wait(self) -> int:
        """Waits until it has ended, and returns what `poll` then does."""


class Launcher(Protocol):
    """Starts workers; at most `jobs` of them are to be unfinished at a time."""

    jobs: int

    def start(self, command: Sequence[str], directory: Path, lock: int | None) -> Process:
        """Starts a worker.

        Args:
            command: The worker's command; launchers add `--stop_with_parent` and `--cores`.
            directory: The run's directory; the output is appended to its log.txt.
            lock: A file descriptor that a worker on this machine inherits, or None.

        Raises:
            UserError: The engine does not take it, or cannot be reached.
        """

    def close(self) -> None:
        """Lets go of the engine; called when no worker is left."""


def launcher(name: str, jobs: int, options: str = "") -> Launcher:
    """The launcher that `--launcher`, `--jobs` and `--launcher_options` ask for.

    Args:
        name: "local", "slurm" or "ray".
        jobs: Workers at a time.
        options: "key=value,key=value"; local: devices. slurm: parameters of `submitit.AutoExecutor`, of which timeout_min must
            be given. ray: address, and options of `ray.remote`. Values are read as JSON where they are JSON.

    Raises:
        UserError: for an unknown launcher or option, an engine that is not installed, or jobs < 1.
    """
    kinds = {"local": Local, "slurm": Slurm, "ray": Ray}
    if name not in kinds:
        raise UserError(f"--launcher={name}: expected one of {', '.join(kinds)}")
    if jobs < 1:
        raise UserError(f"--jobs={jobs}: give at least 1")
    return kinds[name](jobs, **parse_options(options))


def parse_options(text: str) -> dict[str, Any]:
    """Reads "key=value,key=value"; a value goes on to the next ",key=", so that it may hold commas itself."""
    values = {}
    for item in filter(None, re.split(r",(?=\w+=)", text)):
        key, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"--launcher_options={text}: expected key=value,key=value and found '{item}'")
        try:
            values[key] = json.loads(value)
        except json.JSONDecodeError:
            values[key] = value
    return values


def start_worker(command: Sequence[str], directory: Path, **options: Any) -> subprocess.Popen:
    """Starts a worker on this machine, which saves and ends when this process is gone.

    Args:
        command: The worker's command.
        directory: The run's directory, absolute where it is another machine that asks.
        **options: As `subprocess.Popen`'s.
    """
    with open(directory / "log.txt", "ab") as log:
        # A session of its own keeps the terminal's Ctrl-C from the worker, which is to save on our SIGTERM.
        return subprocess.Popen(
            [*command, "--stop_with_parent"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **options,
        )


def start_on_node(command: Sequence[str], directory: Path) -> subprocess.Popen:
    """`start_worker` on a node of a cluster, whose name it writes into log.txt first."""
    append_line(directory, f"started on {socket.gethostname()}")
    return start_worker(command, directory)


def attend(process: subprocess.Popen) -> int:
    """Waits for a worker within an engine's job, and returns its exit status; KeyboardInterrupt makes it save and end."""
    with process:
        while True:
            try:
                return process.wait(timeout=1)  # Ray's interrupt does not end a system call, so that none may be a long one
            except subprocess.TimeoutExpired:
                continue
            except KeyboardInterrupt:
                process.terminate()


def append_line(directory: Path, text: str) -> None:
    """Adds to a run's log.txt."""
    with open(directory / "log.txt", "a", encoding="utf-8") as log:
        log.write(text + "\n")


def log_size(directory: Path) -> int:
    """The length of a run's log.txt in bytes; it grows when the run has found a node."""
    path = directory / "log.txt"
    return path.stat().st_size if path.exists() else 0


class Local:
    """Runs workers on this machine, each with its own share of the CPU cores, and of the GPUs or TPU chips.

    A single worker has all, and what there are fewer of than workers is not shared out.

    Args:
        jobs: Workers at a time.
        devices: The GPUs or TPU chips to share, such as "0,1"; default all that CUDA_VISIBLE_DEVICES or this machine has.

    Raises:
        UserError: for an unknown option, or fewer `devices` than jobs.
    """

    def __init__(self, jobs: int, devices: Any = "", **unknown: Any):
        if unknown:
            raise UserError(f"--launcher_options: the local launcher has no option {min(unknown)}; it has devices=0,1,...")
        given = [device.strip() for device in str(devices).split(",") if device.strip()]
        if given and len(given) < jobs:
            raise UserError(f"--launcher_options=devices={devices}: give at least one device for each of --jobs={jobs}")
        self.jobs = jobs
        self.cores = share(available_cores() if jobs > 1 else [], jobs)
        self.environments = device_environments(given, jobs)
        self.running: list[LocalProcess | None] = [None] * jobs

    def start(self, command: Sequence[str], directory: Path, lock: int | None) -> "LocalProcess":
        slot = next(i for i, process in enumerate(self.running) if process is None or process.poll() is not None)
        if self.cores[slot]:
            command = [*command, "--cores", ",".join(self.cores[slot])]
        # The worker inherits the lock, so that a new sweep cannot start beside a worker whose parent was killed.
        inherited = () if lock is None else (lock,)
        environment = {**os.environ, **self.environments[slot]}
        process = LocalProcess(start_worker(command, directory, pass_fds=inherited, env=environment))
        self.running[slot] = process
        return process

    def close(self) -> None:
        pass


class LocalProcess:
    """A `Process` on this machine."""

    def __init__(self, process: subprocess.Popen):
        self.process = process

    def poll(self) -> int | None:
        status = self.process.poll()
        if status is not None:
            self.process.stdin.close()
        return status

    def state(self) -> str:
        return "running"

    def stop(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        if self.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def wait(self) -> int:
        self.process.wait()
        return self.poll()


def share(items: Sequence[str], jobs: int) -> list[list[str]]:
    """Splits items into `jobs` disjoint shares; where there are too few, the shares are empty: nothing is shared out."""
    if jobs > len(items):
        return [[] for _ in range(jobs)]
    return [list(items[i * len(items) // jobs : (i + 1) * len(items) // jobs]) for i in range(jobs)]


def available_cores() -> list[str]:
    """The CPU cores that this process may use; none where the system does not tell."""
    return [str(core) for core in sorted(os.sched_getaffinity(0))] if hasattr(os, "sched_getaffinity") else []


def device_environments(given: Sequence[str], jobs: int) -> list[dict[str, str]]:
    """The environment variables that show each of `jobs` processes its own devices alone, before JAX is imported there.

    Args:
        given: The devices to share out; empty: all that there are, where there are several jobs.
        jobs: Processes at a time.

    Raises:
        UserError: A process would have a number of TPU chips that libtpu cannot use alone.
    """
    chips = tpu_chips()
    found = chips or cuda_devices()
    shares = share(given or (found if jobs > 1 else []), jobs)
    if not chips:
        return [{"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices else {} for devices in shares]
    if any(devices and len(devices) not in CHIP_BOUNDS for devices in shares):
        raise UserError(
            f"--jobs={jobs}: {len(given or chips)} TPU chips do not split into shares of 1, 2, 4 or 8; choose another"
        )
    return [tpu_environment(devices, i) if devices else {} for i, devices in enumerate(shares)]


def tpu_environment(chips: Sequence[str], index: int) -> dict[str, str]:
    """What one of several processes on a TPU host needs that do not talk to each other; each has its own port (`index`)."""
    return {
        "TPU_VISIBLE_CHIPS": ",".join(chips),
        "TPU_CHIPS_PER_PROCESS_BOUNDS": CHIP_BOUNDS[len(chips)],
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_MESH_CONTROLLER_ADDRESS": f"localhost:{8476 + index}",
        "TPU_MESH_CONTROLLER_PORT": str(8476 + index),
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


class Slurm:
    """Submits workers to SLURM with submitit, whose files go to `slurm/` in a run's directory.

    A cancelled job's worker has the cluster's KillWait to save and end (30 s unless set otherwise). `slurm_signal_delay_s`
    seconds (90) before the time limit it is asked to, too, and submitit puts the job back into the queue, at most
    `slurm_max_num_timeout` (3) times. Preempted jobs go back as the cluster is set up. The run goes on from what was saved.

    Args:
        jobs: Jobs in SLURM's queue at a time.
        cluster: "slurm", or submitit's "local", which stands in for it in tests on machines without SLURM.
        **parameters: As in `submitit.AutoExecutor.update_parameters`: timeout_min (required), mem_gb, cpus_per_task,
            gpus_per_node, slurm_partition, slurm_account, ...

    Raises:
        UserError: There is no submitit or no SLURM, or submitit does not know a parameter.
    """

    def __init__(self, jobs: int, cluster: str = "slurm", slurm_max_num_timeout: int = 3, **parameters: Any):
        try:
            import submitit
        except ImportError:
            raise UserError("--launcher=slurm needs submitit; install it with: pip install 'bertlab[slurm]'") from None
        if cluster == "slurm" and not shutil.which("sbatch"):
            raise UserError("--launcher=slurm: there is no sbatch here; start the sweep where you would submit to SLURM")
        if "timeout_min" not in parameters:
            raise UserError("--launcher=slurm: give a run's time limit in minutes, --launcher_options=timeout_min=...")
        reserved = {"name", "slurm_job_name", "slurm_dependency"} & parameters.keys()
        if reserved:
            raise UserError(f"--launcher_options={min(reserved)}=...: the launcher sets this itself; leave it out")
        self.jobs, self.cluster = jobs, cluster
        self.auto_executor, self.max_num_timeout, self.parameters = submitit.AutoExecutor, slurm_max_num_timeout, parameters
        self.queue: set[str] = set()
        self.tried = self.asked = 0.0
        try:
            with warnings.catch_warnings(action="error"):  # submitit warns of a parameter without its "slurm_"
                self.executor(Path(tempfile.gettempdir()), "checked")
        except (NameError, AssertionError, ValueError, TypeError, UserWarning) as error:
            raise UserError(f"--launcher_options: {str(error).splitlines()[0]}") from None

    def executor(self, folder: Path, name: str) -> Any:
        """A submitit executor that keeps its files in a folder."""
        executor = self.auto_executor(folder, cluster=self.cluster, slurm_max_num_timeout=self.max_num_timeout)
        # Singleton: where an earlier sweep was killed and its job is still at work on this run, the new one waits for that.
        executor.update_parameters(name=name, slurm_dependency="singleton", **self.parameters)
        return executor

    def start(self, command: Sequence[str], directory: Path, lock: int | None) -> "SlurmProcess":
        directory = directory.absolute()
        log_start = log_size(directory)
        try:
            job = self.executor(directory / "slurm", str(directory)).submit(Submission(command, directory))
        except RuntimeError as error:  # submitit's, with sbatch's own message
            raise UserError(f"SLURM did not take {directory.name}: {str(error).splitlines()[0]}") from None
        self.queue.add(job.job_id)
        return SlurmProcess(self, job, directory, log_start)

    def ask(self, after: float) -> float:
        """Brings `queue`, the ids of the jobs that SLURM has, up to date where that is older than `after` seconds; says when.

        It asks squeue: sacct, which submitit asks, has no answer on a cluster without accounting.
        """
        if time.monotonic() - self.tried > after:
            command = ["squeue", "--me", "--noheader", "--format=%A"]
            listing = subprocess.run(command, capture_output=True, text=True, check=False)
            self.tried = time.monotonic()
            if listing.returncode == 0:  # else the controller is away for a moment
                self.queue, self.asked = set(listing.stdout.split()), self.tried
        return self.asked

    def close(self) -> None:
        pass


class Submission:
    """What submitit runs on the node: the worker, and what is to happen before its time is over."""

    def __init__(self, command: Sequence[str], directory: Path):
        self.command, self.directory = list(command), directory
        self.process: subprocess.Popen | None = None

    def __call__(self) -> int:
        import submitit

        signal.signal(signal.SIGTERM, signal.default_int_handler)  # submitit ignores it: a cancelled run would not save
        # SLURM sends submitit's signal to all processes of a job, and it would end the worker, which is to end by SIGTERM.
        number = getattr(signal, "SIG" + submitit.JobEnvironment.USR_SIG)
        handler = signal.signal(number, signal.SIG_IGN)
        self.process = start_on_node(self.command, self.directory)
        signal.signal(number, handler)
        return attend(self.process)

    def checkpoint(self) -> Any:
        """Lets the worker save and end; submitit then puts what this returns back into the queue."""
        import submitit

        if self.process:
            self.process.terminate()
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)  # `__call__`, interrupted in its own wait, reaps it
        return submitit.helpers.DelayedSubmission(Submission(self.command, self.directory))


class SlurmProcess:
    """A `Process` in a SLURM job."""

    def __init__(self, slurm: Slurm, job: Any, directory: Path, log_start: int):
        self.slurm, self.job, self.directory, self.log_start = slurm, job, directory, log_start
        self.status: int | None = None
        self.stopped = False
        self.missed: float | None = None

    def poll(self) -> int | None:
        if self.status is None:
            gone = self.gone()  # before the look for a result, which may come in between
            if self.job.paths.result_pickle.exists():
                self.status = self.result()
            elif gone:
                self.status = -signal.SIGTERM if self.stopped else -signal.SIGKILL
        return self.status

    def result(self) -> int:
        """The worker's exit status; 1 where submitit could not run it to its end, with the reason in log.txt."""
        error = self.job.exception()
        if error is None:
            return self.job.result()
        append_line(self.directory, f"{error}\nerror: SLURM job {self.job.job_id} failed; see {self.directory / 'slurm'}")
        return 1

    def gone(self) -> bool:
        """Whether the job has left the queue; unless it was told to, twice asked, for the sake of slow file systems."""
        if self.slurm.cluster != "slurm":
            return self.job.done()
        asked = self.slurm.ask(after=STOP_SECONDS if self.stopped else QUEUE_SECONDS)
        if self.job.job_id in self.slurm.queue:
            self.missed = None
        elif self.missed is None:
            self.missed = asked
        return self.missed is not None and (self.stopped or asked > self.missed)

    def state(self) -> str:
        return "running" if log_size(self.directory) > self.log_start else "queued"

    def stop(self) -> None:
        self.stopped = True
        self.job.cancel(check=False)

    def kill(self) -> None:
        if self.slurm.cluster == "slurm":  # the step, as a job's processes would first be given KillWait seconds
            subprocess.run(["scancel", "--signal=KILL", f"{self.job.job_id}.0"], capture_output=True, check=False)
        self.stop()

    def wait(self) -> int:
        while self.poll() is None:
            time.sleep(STOP_SECONDS)
        return self.status


class Ray:
    """Runs workers as tasks of a Ray cluster, which places them by what they need and sets CUDA_VISIBLE_DEVICES.

    Args:
        jobs: Tasks at a time, queued ones included.
        address: The cluster's, as in `ray.init`; default one that runs on this machine or, if there is none, a new one here.
        **options: As in `ray.remote`: num_cpus, num_gpus, memory, resources, accelerator_type, max_retries (0), ...

    Raises:
        UserError: There is no Ray, no cluster at the address, or Ray does not know an option.
    """

    def __init__(self, jobs: int, address: str | None = None, **options: Any):
        try:
            import ray
        except ImportError:
            raise UserError("--launcher=ray needs Ray; install it with: pip install 'bertlab[ray]'") from None
        self.jobs, self.ray = jobs, ray
        try:  # max_calls=1: a process for each task, with whose end Ray also ends what a worker may have left behind
            self.task = ray.remote(max_calls=1, **{"max_retries": 0, **options})(run_task)
        except (ValueError, TypeError) as error:
            raise UserError(f"--launcher_options: {str(error).splitlines()[0]}") from None
        self.address, self.connected = address, False

    def connect(self) -> None:
        """Joins or starts the cluster, unless the caller has done so; the first worker needs it, a dry run does not."""
        if self.ray.is_initialized():
            return
        handler = signal.getsignal(signal.SIGTERM)
        try:
            self.ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError) as error:
            raise UserError(f"--launcher_options=address={self.address}: {str(error).splitlines()[0]}") from None
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # Ray's own would end the sweep before its runs have saved
        self.connected = True

    def start(self, command: Sequence[str], directory: Path, lock: int | None) -> "RayProcess":
        directory = directory.absolute()
        self.connect()
        log_start = log_size(directory)
        return RayProcess(self.ray, self.task.remote(list(command), directory), directory, log_start)

    def close(self) -> None:
        if self.connected:
            self.ray.shutdown()


def run_task(command: Sequence[str], directory: Path) -> int:
    """What Ray runs on the node: the worker in a process of its own, which keeps JAX out of Ray's process."""
    return attend(start_on_node(command, directory))


class RayProcess:
    """A `Process` in a Ray task."""

    def __init__(self, ray: Any, task: Any, directory: Path, log_start: int):
        self.ray, self.task, self.directory, self.log_start = ray, task, directory, log_start
        self.status: int | None = None

    def poll(self) -> int | None:
        if self.status is None and self.ray.wait([self.task], timeout=0)[0]:
            self.status = self.result()
        return self.status

    def result(self) -> int:
        """The worker's exit status; of a task that did not come to its end, the reason is in log.txt."""
        try:
            return self.ray.get(self.task)
        except self.ray.exceptions.TaskCancelledError:
            return -signal.SIGTERM
        except self.ray.exceptions.RayTaskError as error:
            append_line(self.directory, f"{error}\nerror: {str(error).strip().splitlines()[-1]}")
            return 1
        except self.ray.exceptions.RayError as error:
            append_line(self.directory, f"{type(error).__name__}: {error}")
            return -signal.SIGKILL

    def state(self) -> str:
        return "running" if log_size(self.directory) > self.log_start else "queued"

    def stop(self) -> None:
        self.ray.cancel(self.task)

    def kill(self) -> None:
        self.ray.cancel(self.task, force=True)

    def wait(self) -> int:
        self.ray.wait([self.task])
        return self.poll()
