"""Workers as tasks of a Ray cluster."""

import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertlab.errors import UserError, reason_of, require
from bertlab.studies.launchers.base import Launcher, QueuedProcess, append_line, attend, log_size, start_on_node


class Ray(Launcher):
    """Runs workers as tasks of a Ray cluster. Ray places them by their needs and sets CUDA_VISIBLE_DEVICES.

    Args:
        jobs: Tasks at a time, including queued ones.
        address: The cluster's address, as in `ray.init`; default the cluster of this machine, started if needed.
        **options: As in `ray.remote`: num_cpus, num_gpus, memory, resources, accelerator_type, max_retries (0), ...

    Raises:
        UserError: Ray is not installed, no cluster answers at the address, or Ray does not know an option.
    """

    def __init__(self, jobs: int, address: str | None = None, **options: Any):
        ray = require("ray", "ray", "--launcher=ray")
        self.jobs, self.ray = jobs, ray
        try:  # max_calls=1: one process per task; when it ends, Ray also ends whatever a worker left behind
            self.task = ray.remote(max_calls=1, **{"max_retries": 0, **options})(run_task)
        except (ValueError, TypeError) as error:
            raise UserError(f"--launcher_options: {str(error).splitlines()[0]}") from None
        self.address, self.connected = address, False

    def connect(self) -> None:
        """Joins or starts the cluster, unless the caller did. Only the first worker needs it; a dry run does not."""
        if self.ray.is_initialized():
            return
        handler = signal.getsignal(signal.SIGTERM)
        try:
            self.ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError) as error:
            raise UserError(f"--launcher_options=address={self.address}: {str(error).splitlines()[0]}") from None
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # Ray's handler would end the sweep before its runs have saved
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
    """What Ray runs on the node: the worker in its own process, so JAX stays out of Ray's."""
    return attend(start_on_node(command, directory))


class RayProcess(QueuedProcess):
    """A `Process` in a Ray task."""

    def __init__(self, ray: Any, task: Any, directory: Path, log_start: int):
        super().__init__(directory, log_start)
        self.ray, self.task = ray, task

    def poll(self) -> int | None:
        if self.status is None and self.ray.wait([self.task], timeout=0)[0]:
            self.status = self.result()
        return self.status

    def result(self) -> int:
        """The worker's exit status; if the task did not finish, the reason goes to log.txt."""
        try:
            return self.ray.get(self.task)
        except self.ray.exceptions.TaskCancelledError:
            return -signal.SIGTERM
        except self.ray.exceptions.RayTaskError as error:
            append_line(self.directory, f"{error}\nerror: {str(error).strip().splitlines()[-1]}")
            return 1
        except self.ray.exceptions.RayError as error:
            append_line(self.directory, reason_of(error))
            return -signal.SIGKILL

    def stop(self) -> None:
        self.ray.cancel(self.task)

    def kill(self) -> None:
        self.ray.cancel(self.task, force=True)
