"""Many small runs as one study: seeds and learning rates. Of fine-tunings, `valid` selects a rate."""

import contextlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
from rich.console import Console

from bertlab.config import flatten, load_config
from bertlab.errors import UserError
from bertlab.files import write_json
from bertlab.studies.launchers import Local
from bertlab.studies.records import check_same_study, clear_changed, with_owners
from bertlab.studies.study import RunSpec, Study, file_name
from bertlab.studies.sweep import check_configs, describe, lock_directory, sigterm_interrupts, sweep
from bertlab.studies.worker import RUNNER, alone, existing_run, stand_on, task_config, write_job

RATE, SEED = "optimizer.learning_rate", "seed"


def pretraining_grid(
    config: str,
    workdir: Path,
    seeds: str | None = None,
    rates: str | None = None,
    argv: Sequence[str] = (),
    jobs: int = 1,
    together: bool | None = None,
) -> int:
    """Pretrains by a config with every seed and rate; the same call again goes on with what is not finished.

    Args:
        config: config file with its arguments.
        workdir, jobs, together: as for `grid`.
        seeds: "1,2,3"; each reads the text in an order of its own. None is the config's.
        rates: "1e-4,3e-4"; None is the config's.
        argv: command-line arguments of which the `--config.KEY=VALUE` ones are applied.

    Returns:
        The exit status, as `sweep`'s.

    Raises:
        UserError: a list cannot be read, or as for `sweep`.
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
    return run_grid(study, workdir, jobs, together)


def grid(
    run: str | os.PathLike,
    task: str,
    workdir: Path,
    seeds: str | None = None,
    rates: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    recipe: str = "small",
    jobs: int = 1,
    together: bool | None = None,
) -> int:
    """Fine-tunes a run on a task with every seed and rate; the same call again goes on with what is not finished.

    Args:
        run, task, overrides, recipe: as for `bertlab.transfer.finetune.finetune`.
        workdir: of the study; see it with `bertlab report`.
        seeds: "1,2,3"; None is the run's own.
        rates: "1e-4,3e-4"; None is the recipe's.
        jobs: runs at a time, in processes of their own.
        together: all as one vectorised program on one device; None: on an accelerator, unless several jobs are asked for or
            what cannot go together (`bertlab.train.replicas.why_apart`).

    Returns:
        The exit status, as `sweep`'s.

    Raises:
        UserError: a list cannot be read, or as for `sweep`.
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
    return run_grid(study, workdir, jobs, together)


def axes_of(seeds: str | None, rates: str | None, of: str = "") -> dict[str, list]:
    """The axes of a grid, under the names of a stage's keys ("finetune.")."""
    axes = {}
    if rates is not None:
        axes[of + RATE] = numbers("rates", rates, float)
    if seeds is not None:
        axes[of + SEED] = numbers("seeds", seeds, int)
    return axes


def run_grid(study: Study, workdir: Path, jobs: int, together: bool | None) -> int:
    """Runs what is not finished of a study, together or in processes of their own; for None as `grid` says."""
    if together is None:
        import jax

        from bertlab.train.replicas import why_apart

        together = jax.default_backend() != "cpu" and jobs == 1 and why_apart(config_of(study.runs()[0])) is None
    return train_together(study, workdir) if together else sweep(study, workdir, Local(jobs))


def config_of(run: RunSpec) -> ConfigDict:
    """The config of what a run of a grid trains: its fine-tuning, or its pretraining if it has none."""
    return task_config(run, next(iter(run.downstream))) if run.downstream else load_config(run.config, dict(run.overrides))


def train_together(study: Study, workdir: Path) -> int:
    """What `sweep` would run one by one, as one program; the same files come of it."""
    from bertlab.transfer.replicas import finetune_replicas, pretrain_replicas

    runs = with_owners(study.runs(), workdir)
    description = describe(study, runs)
    check_same_study(workdir, description, runs)
    check_configs(runs, RUNNER, None)
    workdir.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        held.enter_context(lock_directory(workdir, Console()))
        held.enter_context(sigterm_interrupts())
        clear_changed(workdir, runs)
        write_json(workdir / "study.json", description)
        for run in runs:
            write_job(run, workdir / run.name)
            held.enter_context(alone(workdir / run.name))
        configs = [config_of(run) for run in runs]
        try:
            if not study.downstream:
                results = pretrain_replicas(configs, [workdir / run.name for run in runs])
            else:
                [task] = study.tasks
                places = {workdir / run.name / "finetune" / task: run for run in runs}
                results = finetune_replicas(configs, list(places))
                for directory, result in results.items():
                    note_finetuning(places[directory], directory, result)
        except KeyboardInterrupt:
            print("interrupted: the same command begins anew with the runs that are not finished", flush=True)
            return 130
    failed = [run.name for run, result in zip(runs, results.values(), strict=True) if result is None]
    for name in failed:
        reason = (workdir / name / "failed.txt").read_text(encoding="utf-8").strip()
        print(f"failed: {name}: {reason}", flush=True)
    done = len(runs) - len(failed)
    print(f"{done} of {len(runs)} runs are finished; see them with: bertlab report {workdir}", flush=True)
    return int(bool(failed))


def note_finetuning(run: RunSpec, directory: Path, result: dict | None) -> None:
    """Notes in a run's directory what its only fine-tuning has come to."""
    whole = directory.parent.parent
    if result is None:
        os.replace(directory / "failed.txt", whole / "failed.txt")
        return
    (whole / "failed.txt").unlink(missing_ok=True)
    stand_on(existing_run(run.config), run, whole)


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
