"""What starts the runs of a sweep: local processes, SLURM jobs, Ray tasks.

A launcher has `jobs`, how many runs it starts at a time, and `start(directory) -> Job`, which
executes the run of `directory`/run.json (`bertlab.studies.worker`).
"""

import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bertlab.errors import UserError

LAUNCHERS = {"local": "local:Local", "slurm": "slurm:Slurm", "ray": "ray:Ray"}


class Job(NamedTuple):
    """A run that was started."""

    done: Callable[[], bool]  # whether its process has ended, successfully or not
    stop: Callable[[], Any]  # asks it to save and end


def build_launcher(name: str, jobs: int, options: Mapping[str, Any]):
    """A launcher of `LAUNCHERS`."""
    try:
        return pkgutil.resolve_name(f"{__name__}.{LAUNCHERS[name]}")(jobs, **options)
    except ImportError as error:
        message = f"--launcher={name}: pip install -e '.[{name}]' in the clone ({error})"
        raise UserError(message) from None
