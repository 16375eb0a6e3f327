"""Workers as tasks of a Ray cluster.

Each host of a TPU slice is a node with the resource "TPU", its number of chips; the slice's first host also has one named
"TPU-TYPE-head", such as "TPU-v5litepod-16-head" (Ray's `TPUAcceleratorManager`). A run has chips of one host. Not run on TPUs.
"""

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertlab.errors import UserError, reason_of, require
from bertlab.studies.launchers.base import Launcher, QueuedProcess, append_line, attend, log_size, start_on_node
from bertlab.studies.launchers.local import CHIP_BOUNDS, tpu_environment


class Ray(Launcher):
    """Runs workers as tasks of a Ray cluster. Ray places them by their needs and sets CUDA_VISIBLE_DEVICES.

    Args:
        jobs: Tasks at a time, including queued ones.
        address: The cluster's address, as in `ray.init`; default the cluster of this machine, started if needed.
        tpus: TPU chips of a run, 1, 2, 4 or 8 of one host; the same as "TPU" among the resources.
        **options: As in `ray.remote`: num_cpus, num_gpus, memory, resources, accelerator_type, max_retries (0), ...

    Raises:
        UserError: Ray is not installed, no cluster answers at the address, or Ray does not know an option.
    """

    def __init__(self, jobs: int, address: str | None = None, tpus: int | None = None, **options: Any):
        ray = require("ray", "ray", "--launcher=ray")
        self.jobs, self.ray = jobs, ray
        if tpus is not None:
            if "TPU" in (resources := options.get("resources") or {}):
                raise UserError(f"--launcher_options: tpus={tpus} and resources={resources} differ or repeat; omit one of them")
            options["resources"] = {**resources, "TPU": tpus}
        self.tpus = (options.get("resources") or {}).get("TPU", 0)
        if self.tpus and self.tpus not in CHIP_BOUNDS:
            raise UserError(f"--launcher_options: {self.tpus} TPU chips; a run has 1, 2, 4 or 8 of one host")
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
        return RayProcess(self.ray, self.task.remote(list(command), directory, self.tpus), directory, log_start)

    def close(self) -> None:
        if self.connected:
            self.ray.shutdown()


def run_task(command: Sequence[str], directory: Path, tpus: int) -> int:
    """What Ray runs on the node: the worker in its own process, so JAX stays out of Ray's."""
    options = {"env": {**os.environ, **one_host(tpus)}} if tpus else {}
    return attend(start_on_node(command, directory, **options))


def one_host(tpus: int) -> dict[str, str]:
    """The environment variables of a process that has chips of one host: libtpu would wait for the slice's other hosts.

    Ray names the chips, unless they are all of the host's.
    """
    named = os.environ.get("TPU_VISIBLE_CHIPS")
    chips = named.split(",") if named else [str(chip) for chip in range(tpus)]
    return tpu_environment(chips, int(chips[0])) | {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}


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
