"""Workers as jobs of SLURM, through submitit."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertlab.errors import UserError, require
from bertlab.run import Run
from bertlab.studies.launchers.base import Launcher, QueuedProcess, append_line, attend, log_size, start_on_node

QUEUE_SECONDS = 30  # between two queries to SLURM's controller, for all runs together
STOP_SECONDS = 1  # the same while runs are being stopped


class Slurm(Launcher):
    """Submits workers to SLURM with submitit; its files go to `slurm/` in a run's directory.

    A cancelled job's worker has the cluster's KillWait (30 s by default) to save and end. `slurm_signal_delay_s` seconds (90)
    before the time limit, the worker also saves and ends, and submitit requeues the job, at most `slurm_max_num_timeout` (3)
    times. The cluster decides whether preempted jobs are requeued. A requeued run resumes from its checkpoint.

    Args:
        jobs: Jobs in SLURM's queue at a time.
        cluster: "slurm", or submitit's "local" for tests on machines without SLURM.
        **parameters: As in `submitit.AutoExecutor.update_parameters`: timeout_min (required), mem_gb, cpus_per_task,
            gpus_per_node, slurm_partition, slurm_account, ...

    Raises:
        UserError: submitit is missing, or does not know a parameter.
    """

    def __init__(self, jobs: int, cluster: str = "slurm", slurm_max_num_timeout: int = 3, **parameters: Any):
        submitit = require("submitit", "slurm", "--launcher=slurm")
        if "timeout_min" not in parameters:
            raise UserError("--launcher=slurm: set a run's time limit in minutes with --launcher_options=timeout_min=...")
        reserved = {"name", "slurm_job_name", "slurm_dependency"} & parameters.keys()
        if reserved:
            raise UserError(f"--launcher_options={min(reserved)}=...: the launcher sets this itself; omit it")
        self.jobs, self.cluster = jobs, cluster
        self.auto_executor, self.max_num_timeout, self.parameters = submitit.AutoExecutor, slurm_max_num_timeout, parameters
        self.queue: set[str] = set()
        self.tried = self.asked = 0.0
        try:
            with warnings.catch_warnings(action="error"):  # submitit warns of a parameter without its "slurm_"
                there = bool(shutil.which("srun"))  # submitit's executor for SLURM cannot be made without it
                self.executor(Path(tempfile.gettempdir()), "checked", cluster if there else "local")
        except (NameError, AssertionError, ValueError, TypeError, UserWarning) as error:
            raise UserError(f"--launcher_options: {str(error).splitlines()[0]}") from None

    def require(self) -> None:
        if self.cluster == "slurm" and not shutil.which("sbatch"):
            raise UserError(
                "--launcher=slurm: this machine has no sbatch; start the sweep on a machine that submits jobs to SLURM"
            )

    def executor(self, folder: Path, name: str, cluster: str) -> Any:
        """A submitit executor that keeps its files in a folder."""
        executor = self.auto_executor(folder, cluster=cluster, slurm_max_num_timeout=self.max_num_timeout)
        # Singleton: if a killed sweep's job still works on this run, the new job waits for it.
        executor.update_parameters(name=name, slurm_dependency="singleton", **self.parameters)
        return executor

    def start(self, command: Sequence[str], directory: Path, lock: int | None) -> "SlurmProcess":
        directory = directory.absolute()
        log_start = log_size(directory)
        try:
            job = self.executor(Run(directory).slurm, str(directory), self.cluster).submit(Submission(command, directory))
        except RuntimeError as error:  # submitit's, with sbatch's own message
            raise UserError(f"SLURM rejected {directory.name}: {str(error).splitlines()[0]}") from None
        self.queue.add(job.job_id)
        return SlurmProcess(self, job, directory, log_start)

    def ask(self, after: float) -> float:
        """Updates `queue`, the ids of SLURM's jobs, if older than `after` seconds; returns when it was last updated.

        It calls squeue; submitit calls sacct, but a cluster without accounting has none.
        """
        if time.monotonic() - self.tried > after:
            command = ["squeue", "--me", "--noheader", "--format=%A"]
            listing = subprocess.run(command, capture_output=True, text=True, check=False)
            self.tried = time.monotonic()
            if listing.returncode == 0:  # otherwise the controller is briefly unreachable
                self.queue, self.asked = set(listing.stdout.split()), self.tried
        return self.asked


class Submission:
    """What submitit runs on the node: the worker, and the checkpoint before its time limit."""

    def __init__(self, command: Sequence[str], directory: Path):
        self.command, self.directory = list(command), directory
        self.process: subprocess.Popen | None = None

    def __call__(self) -> int:
        import submitit

        signal.signal(signal.SIGTERM, signal.default_int_handler)  # submitit ignores it, and a cancelled run would not save
        # SLURM sends submitit's signal to all processes of a job; it must not end the worker, which ends by SIGTERM.
        number = getattr(signal, "SIG" + submitit.JobEnvironment.USR_SIG)
        handler = signal.signal(number, signal.SIG_IGN)
        self.process = start_on_node(self.command, self.directory)
        signal.signal(number, handler)
        return attend(self.process)

    def checkpoint(self) -> Any:
        """Lets the worker save and end; submitit then requeues the return value."""
        import submitit

        if self.process:
            self.process.terminate()
            os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)  # `__call__`, interrupted while waiting, reaps it
        return submitit.helpers.DelayedSubmission(Submission(self.command, self.directory))


class SlurmProcess(QueuedProcess):
    """A `Process` in a SLURM job."""

    def __init__(self, slurm: Slurm, job: Any, directory: Path, log_start: int):
        super().__init__(directory, log_start)
        self.slurm, self.job = slurm, job
        self.stopped = False
        self.missed: float | None = None

    def poll(self) -> int | None:
        if self.status is None:
            gone = self.gone()  # checked first: the result may arrive in between
            if self.job.paths.result_pickle.exists():
                self.status = self.result()
            elif gone:
                self.status = -signal.SIGTERM if self.stopped else -signal.SIGKILL
        return self.status

    def result(self) -> int:
        """The worker's exit status; 1 if submitit could not run it to its end, with the reason in log.txt."""
        error = self.job.exception()
        if error is None:
            return self.job.result()
        append_line(self.directory, f"{error}\nerror: SLURM job {self.job.job_id} failed; see {Run(self.directory).slurm}")
        return 1

    def gone(self) -> bool:
        """Whether the job has left the queue; checked twice, for slow file systems, unless it was stopped."""
        if self.slurm.cluster != "slurm":
            return self.job.done()
        asked = self.slurm.ask(after=STOP_SECONDS if self.stopped else QUEUE_SECONDS)
        if self.job.job_id in self.slurm.queue:
            self.missed = None
        elif self.missed is None:
            self.missed = asked
        return self.missed is not None and (self.stopped or asked > self.missed)

    def stop(self) -> None:
        self.stopped = True
        self.job.cancel(check=False)

    def kill(self) -> None:
        if self.slurm.cluster == "slurm":  # the step: a job's processes would first get KillWait seconds
            subprocess.run(["scancel", "--signal=KILL", f"{self.job.job_id}.0"], capture_output=True, check=False)
        self.stop()
