"""Where the worker processes of a sweep run: here, through SLURM (submitit), on a Ray cluster, or on a cloud (SkyPilot).

A launcher starts workers and reports their state; the engine queues, places, preempts and cancels them. On a cluster, put the
study's directory on a file system that all nodes share, and install bertlab on all nodes; on a cloud, a bucket takes its place.
"""

import json
from typing import Any

from bertlab.config import split_arguments
from bertlab.errors import UserError
from bertlab.studies.launchers.base import Launcher, Process
from bertlab.studies.launchers.local import Local
from bertlab.studies.launchers.ray import Ray
from bertlab.studies.launchers.skypilot import SkyPilot
from bertlab.studies.launchers.slurm import Slurm

__all__ = ["Launcher", "Local", "Process", "Ray", "SkyPilot", "Slurm", "launcher", "parse_options"]


def launcher(name: str, jobs: int, options: str = "") -> Launcher:
    """The launcher that `--launcher`, `--jobs` and `--launcher_options` ask for.

    Args:
        name: "local", "slurm", "ray" or "skypilot".
        jobs: Workers at a time.
        options: "key=value,key=value"; local: devices. slurm: parameters of `submitit.AutoExecutor`; timeout_min is required.
            ray: address, tpus, and options of `ray.remote`. skypilot: mirror (required), setup, workdir, envs, and the
            `resources` of its YAML. Values that are JSON are parsed.

    Raises:
        UserError: The launcher or an option is unknown, its engine is not installed, or jobs < 1.
    """
    kinds = {"local": Local, "slurm": Slurm, "ray": Ray, "skypilot": SkyPilot}
    if name not in kinds:
        raise UserError(f"--launcher={name}: expected one of {', '.join(kinds)}")
    if jobs < 1:
        raise UserError(f"--jobs={jobs}: give at least 1")
    return kinds[name](jobs, **parse_options(options))


def parse_options(text: str) -> dict[str, Any]:
    """Reads "key=value,key=value", split by `bertlab.config.split_arguments`; parses values that are JSON."""
    values = {}
    for item in split_arguments(text):
        key, equals, value = item.partition("=")
        if not equals:
            raise UserError(f"--launcher_options={text}: expected key=value,key=value and found '{item}'")
        try:
            values[key] = json.loads(value)
        except json.JSONDecodeError:
            values[key] = value
    return values
