"""What starts the runs of a sweep: processes here, jobs of SLURM, tasks of Ray."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bertlab.errors import UserError


class Job(NamedTuple):
    """A run that was started.

    Attributes:
        done: Returns whether its process has ended, well or not.
        stop: Asks it to save and end.
    """

    done: Callable[[], bool]
    stop: Callable[[], Any]


class Launcher(Protocol):
    """Starts runs.

    Attributes:
        jobs: At most so many at a time.
    """

    jobs: int

    def start(self, directory: Path) -> Job:
        """Executes the run of `directory`/run.json (`bertlab.studies.worker`)."""


def build_launcher(name: str, jobs: int, options: Mapping[str, Any]) -> Launcher:
    """A launcher by name: local, slurm or ray."""
    try:
        if name == "local":
            from bertlab.studies.launchers.local import Local as Chosen
        elif name == "slurm":
            from bertlab.studies.launchers.slurm import Slurm as Chosen
        elif name == "ray":
            from bertlab.studies.launchers.ray import Ray as Chosen
        else:
            raise UserError(f"--launcher={name}: choose local, slurm or ray")
    except ImportError as error:
        message = f"--launcher={name}: pip install 'bertlab[{name}]' ({error})"
        raise UserError(message) from None
    return Chosen(jobs, **options)
