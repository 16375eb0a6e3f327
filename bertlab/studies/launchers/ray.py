"""Runs as tasks of a Ray cluster, which places them by their needs and assigns GPUs."""

from pathlib import Path
from typing import Any

import ray

from bertlab.studies.launchers import Job
from bertlab.studies.worker import execute_directory


class Ray:
    """Joins the cluster at an address, else starts one on this machine; `options` are those of
    `ray.remote`: num_cpus, num_gpus, memory, resources, ..."""

    def __init__(self, jobs: int, address: str | None = None, **options: Any):
        self.jobs = jobs
        ray.init(address=address, log_to_driver=False, ignore_reinit_error=True)
        # One process per task: its devices are free when it ends.
        self._task = ray.remote(max_calls=1, **{"max_retries": 0, **options})(execute_directory)

    def start(self, directory: Path) -> Job:
        task = self._task.remote(str(directory.absolute()))
        return Job(lambda: bool(ray.wait([task], timeout=0)[0]), lambda: ray.cancel(task))
