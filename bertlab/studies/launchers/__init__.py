"""What starts the runs of a sweep: local processes, SLURM jobs, Ray tasks."""

import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bertlab.errors import UserError

LAUNCHERS = {"local": "local:Local", "slurm": "slurm:Slurm", "ray": "ray:Ray"}


class Job(NamedTuple):
    """A run that was started.

    Attributes:
        done: Returns whether its process has ended, successfully or not.
        stop: Asks it to save and end.
    """

    done: Callable[[], bool]
    stop: Callable[[], Any]


class Launcher(Protocol):
    """Starts runs, at most `jobs` at a time."""

    jobs: int

    def start(self, directory: Path) -> Job:
        """Executes the run of `directory`/run.json (`bertlab.studies.worker`)."""


def build_launcher(name: str, jobs: int, options: Mapping[str, Any]) -> Launcher:
    """A launcher of `LAUNCHERS`."""
    try:
        return pkgutil.resolve_name(f"{__name__}.{LAUNCHERS[name]}")(jobs, **options)
    except ImportError as error:
        message = f"--launcher={name}: pip install -e '.[{name}]' in the clone ({error})"
        raise UserError(message) from None
