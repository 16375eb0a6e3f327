"""Studies over seeds and learning rates, as one command asks for them. For fine-tuning, `valid` selects the rate."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertlab.config import flatten, load_config, split_list
from bertlab.errors import UserError
from bertlab.studies.study import RATE, Study, file_name

SEED = "seed"


def pretraining_grid(config: str, seeds: str | None = None, rates: str | None = None, argv: Sequence[str] = ()) -> Study:
    """The study that pretrains a config with every seed and rate. Each seed also sets the order of the text.

    Args:
        config: Config file with its arguments.
        seeds, rates: As for `finetuning_grid`.
        argv: Command-line arguments; only `--config.KEY=VALUE` is read.

    Raises:
        UserError: A list is malformed, or the config is wrong.
    """
    given, own = (flatten(load_config(config, argv=list(arguments)).to_dict()) for arguments in (argv, ()))
    return Study(
        name="pretraining grid",
        title=Path(config.partition(":")[0]).stem,
        question="What does it reach, and how much does it vary?",
        config=config,
        axes=axes_of(seeds, rates),
        overrides={key: value for key, value in given.items() if key not in own or own[key] != value},
    )


def finetuning_grid(
    run: str | os.PathLike,
    task: str,
    seeds: str | None = None,
    rates: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    recipe: str = "small",
) -> Study:
    """The study that fine-tunes a run on a task with every seed and rate.

    Args:
        run, task, overrides, recipe: As for `bertlab.transfer.finetune.finetune`.
        seeds: "1,2,3"; None: the run's or config's seed.
        rates: "1e-4,3e-4"; None: the recipe's or config's rate.

    Raises:
        UserError: A list is malformed.
    """
    axes = axes_of(seeds, rates, "finetune.")
    return Study(
        name="grid",
        title=f"{task} on {Path(run).name}",
        question=f"What does {Path(run).name} reach on {task}, and how much does it vary?",
        config=f"run:{run}",
        axes=axes,
        downstream={file_name([Path(task).stem]): {"task": task, "recipe": recipe, **(overrides or {})}},
        select=[axis for axis in axes if axis.endswith(RATE)],
    )


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
