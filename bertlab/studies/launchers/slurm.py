"""Runs as SLURM jobs, through submitit, which queues a job again that reached its time limit or was
preempted (`Checkpointable`); it resumes from its last checkpoint."""

from pathlib import Path
from typing import Any

import submitit

from bertlab.errors import UserError
from bertlab.studies.launchers import Job
from bertlab.studies.worker import execute_directory


class Task(submitit.helpers.Checkpointable):
    """What a job executes."""

    def __call__(self, directory: str) -> None:
        execute_directory(directory)


class Slurm:
    """Submits runs to "slurm" or submitit's "local", whose files go to RUN/slurm.
    `parameters` are for `submitit.AutoExecutor.update_parameters`: timeout_min, mem_gb,
    cpus_per_task, gpus_per_node, slurm_partition, slurm_account, ..."""

    def __init__(self, jobs: int, cluster: str = "slurm", **parameters: Any):
        if "timeout_min" not in parameters:
            raise UserError(
                "--launcher=slurm needs a run's minutes: --launcher_options=timeout_min=60"
            )
        self.jobs, self._cluster, self._parameters = jobs, cluster, parameters

    def start(self, directory: Path) -> Job:
        directory = directory.absolute()
        executor = submitit.AutoExecutor(directory / "slurm", cluster=self._cluster)
        executor.update_parameters(name=directory.name, **self._parameters)
        job = executor.submit(Task(), str(directory))
        return Job(job.done, job.cancel)
