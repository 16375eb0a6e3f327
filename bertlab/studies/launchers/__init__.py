"""What starts the runs of a sweep: processes here, jobs of SLURM, tasks of Ray.

A launcher has `jobs`, the runs at a time, and `start(directory)`, which executes a run
(`bertlab.studies.worker`) and returns a `Job`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from bertlab.errors import UserError


class Job(Protocol):
    """A run that was started."""

    def done(self) -> bool:
        """Whether its process has ended, well or not."""

    def stop(self) -> None:
        """Asks it to save and end."""


class Launcher(Protocol):
    """Starts runs.

    Attributes:
        jobs: At most so many at a time.
    """

    jobs: int

    def start(self, directory: Path) -> Job:
        """Starts the run of `directory`/run.json."""

    def close(self) -> None:
        """Releases what it holds, when no job is left."""


def build_launcher(name: str, jobs: int, options: Mapping[str, Any]) -> Launcher:
    """A launcher by name: local, slurm or ray."""
    if name == "local":
        from bertlab.studies.launchers.local import Local

        return Local(jobs, **options)
    try:
        if name == "slurm":
            from bertlab.studies.launchers.slurm import Slurm

            return Slurm(jobs, **options)
        if name == "ray":
            from bertlab.studies.launchers.ray import Ray

            return Ray(jobs, **options)
    except ImportError as error:
        message = f"--launcher={name}: pip install 'bertlab[{name}]' ({error})"
        raise UserError(message) from None
    raise UserError(f"--launcher={name}: choose local, slurm or ray")
