"""One command for a study over seeds and learning rates. For fine-tuning, `valid` selects the rate."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertlab.config import flatten, load_config, split_list
from bertlab.errors import UserError
from bertlab.studies.launchers import Local
from bertlab.studies.study import RATE, Study, file_name
from bertlab.studies.sweep import sweep

SEED = "seed"


def pretraining_grid(
    config: str,
    workdir: Path,
    seeds: str | None = None,
    rates: str | None = None,
    argv: Sequence[str] = (),
    jobs: int = 1,
) -> int:
    """Pretrains a config with every seed and rate, as `grid` fine-tunes a run. Each seed also sets the order of the text.

    Args:
        config: Config file with its arguments.
        workdir, seeds, rates, jobs: As for `grid`.
        argv: Command-line arguments; only `--config.KEY=VALUE` is read.
    """
    given, own = (flatten(load_config(config, argv=list(arguments)).to_dict()) for arguments in (argv, ()))
    study = Study(
        name="pretraining grid",
        title=Path(config.partition(":")[0]).stem,
        question="What does it reach, and how much does it vary?",
        config=config,
        axes=axes_of(seeds, rates),
        overrides={key: value for key, value in given.items() if key not in own or own[key] != value},
    )
    return sweep(study, workdir, Local(jobs))


def grid(
    run: str | os.PathLike,
    task: str,
    workdir: Path,
    seeds: str | None = None,
    rates: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    recipe: str = "small",
    jobs: int = 1,
) -> int:
    """Fine-tunes a run on a task with every seed and rate. Call it again to run whatever is unfinished.

    Args:
        run, task, overrides, recipe: As for `bertlab.transfer.finetune.finetune`.
        workdir: Directory of the study, for `bertlab report`.
        seeds: "1,2,3"; None: the run's or config's seed.
        rates: "1e-4,3e-4"; None: the recipe's or config's rate.
        jobs: Runs at a time, each in its own process.

    Returns:
        The exit status of `sweep`.

    Raises:
        UserError: A list is malformed, or as for `sweep`.
    """
    axes = axes_of(seeds, rates, "finetune.")
    study = Study(
        name="grid",
        title=f"{task} on {Path(run).name}",
        question=f"What does {Path(run).name} reach on {task}, and how much does it vary?",
        config=f"run:{run}",
        axes=axes,
        downstream={file_name([Path(task).stem]): {"task": task, "recipe": recipe, **(overrides or {})}},
        select=[axis for axis in axes if axis.endswith(RATE)],
    )
    return sweep(study, workdir, Local(jobs))


def axes_of(seeds: str | None, rates: str | None, of: str = "") -> dict[str, list]:
    """The axes of a grid; `of` is the stage that the keys belong to ("finetune." or "")."""
    given = {RATE: ("rates", rates, float), SEED: ("seeds", seeds, int)}
    return {of + key: numbers(name, text, kind) for key, (name, text, kind) in given.items() if text is not None}


def numbers(name: str, text: str, kind: type) -> list:
    """Parses "1,2,3" into seeds (int) or rates (float); a UserError says which value is wrong."""
    values = split_list(f"--{name}", text, kind, "numbers")
    for value in values:
        if kind is int and value < 0:
            raise UserError(f"--{name}={text}: {value} is negative; give whole numbers of at least 0")
        if kind is float and not (math.isfinite(value) and value > 0):
            raise UserError(f"--{name}={text}: {value} must be finite and above 0")
    return values
