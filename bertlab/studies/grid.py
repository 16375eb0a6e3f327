"""Many small fine-tunings as one study: seeds and learning rates, of which `valid` selects one."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertlab.errors import UserError
from bertlab.files import write_json
from bertlab.studies.launchers import Local
from bertlab.studies.records import check_same_study, clear_changed, with_owners
from bertlab.studies.study import Study, file_name
from bertlab.studies.sweep import check_configs, describe, sweep
from bertlab.studies.worker import RUNNER, existing_run, stand_on, task_config, write_job

RATE = "finetune.optimizer.learning_rate"
SEED = "finetune.seed"


def grid(
    run: str | os.PathLike,
    task: str,
    workdir: Path,
    seeds: str = "",
    rates: str = "",
    overrides: Mapping[str, Any] | None = None,
    recipe: str = "small",
    jobs: int = 1,
    together: bool | None = None,
) -> int:
    """Fine-tunes a run on a task with every seed and rate; the same call again goes on with what is not finished.

    Args:
        run, task, overrides, recipe: as for `bertlab.transfer.finetune.finetune`.
        workdir: of the study; see it with `bertlab report`.
        seeds: "1,2,3"; "" is the run's own.
        rates: "1e-4,3e-4"; "" is the recipe's.
        jobs: runs at a time, in processes of their own.
        together: all as one vectorised program on one device; None: on an accelerator, where neither several jobs nor rows of
            several lengths are asked for.

    Returns:
        The exit status, as `sweep`'s.

    Raises:
        UserError: a list cannot be read, or as for `sweep`.
    """
    axes = {}
    if rates:
        axes[RATE] = numbers("rates", rates, float)
    if seeds:
        axes[SEED] = numbers("seeds", seeds, int)
    study = Study(
        name="grid",
        title=f"{task} on {Path(run).name}",
        question=f"What does {Path(run).name} reach on {task}, and how much does it vary?",
        config=f"run:{run}",
        axes=axes,
        downstream={file_name([Path(task).stem]): {"task": task, "recipe": recipe, **(overrides or {})}},
        select=[axis for axis in axes if axis == RATE],
    )
    if together is None:
        import jax

        apart = jobs > 1 or (overrides or {}).get("data.buckets")
        together = jax.default_backend() != "cpu" and not apart
    return train_together(study, workdir) if together else sweep(study, workdir, Local(jobs))


def train_together(study: Study, workdir: Path) -> int:
    """What `sweep` would run one by one, as one program; the same files come of it."""
    from bertlab.transfer.replicas import finetune_replicas

    runs = with_owners(study.runs(), workdir)
    description = describe(study, runs)
    check_same_study(workdir, description, runs)
    check_configs(runs, RUNNER, None)
    workdir.mkdir(parents=True, exist_ok=True)
    clear_changed(workdir, runs)
    write_json(workdir / "study.json", description)
    configs, directories = [], {}
    for run in runs:
        [task] = run.downstream
        write_job(run, workdir / run.name)
        configs.append(task_config(run, task))
        directories[workdir / run.name / "finetune" / task] = run
    results = finetune_replicas(configs, list(directories))
    for directory, result in results.items():
        run = directories[directory]
        whole = workdir / run.name
        if result is None:
            os.replace(directory / "failed.txt", whole / "failed.txt")
            continue
        (whole / "failed.txt").unlink(missing_ok=True)
        stand_on(existing_run(run.config), run, whole)
    failed = sum(result is None for result in results.values())
    print(f"{len(results) - failed} of {len(results)} runs are finished; see them with: bertlab report {workdir}", flush=True)
    return int(failed > 0)


def numbers(name: str, text: str, kind: type) -> list:
    """The values of "1,2,3": seeds if they are int, rates if they are float.

    Raises:
        UserError: one is no number, out of range, or there twice.
    """
    try:
        values = [kind(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--{name}={text}: expected numbers joined by commas") from None
    for value in values:
        if kind is int and value < 0:
            raise UserError(f"--{name}={text}: {value} is below 0; give whole numbers from 0 on")
        if kind is float and not (math.isfinite(value) and value > 0):
            raise UserError(f"--{name}={text}: {value} should be finite and above 0; correct it")
    if len(set(values)) < len(values):
        raise UserError(f"--{name}={text}: a value is there twice")
    return values
