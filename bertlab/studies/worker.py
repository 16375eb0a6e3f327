"""One run of a study, stage by stage, in a process of its own: `python -m bertlab.studies.worker
RUN`.

A stage with a result.json is finished; the others begin, or resume from their last checkpoint.
"""

import argparse
import dataclasses
import hashlib
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertlab.config.load import flatten, load_config
from bertlab.errors import UserError
from bertlab.files import json_line
from bertlab.studies.study import RunSpec, task_data
from bertlab.train.run_directory import RunDirectory

FILE_VALUES = "the config file's values"
"""Among a stage's settings: their digest."""


class Stage(NamedTuple):
    """A part of a run.

    Attributes:
        kind: pretrain, adapt, finetune or average.
        task: Its directory's name; "" of pretraining.
        directory: Of its files.
    """

    kind: str
    task: str
    directory: Path

    @property
    def finished(self) -> bool:
        return (self.directory / "result.json").exists()


def stages(run: RunSpec, workdir: Path) -> list[Stage]:
    """The stages that a run trains itself, in order."""
    directory, found = workdir / run.name, []
    if not run.averages and not run.existing and "pretrain" not in run.shares:
        found.append(Stage("pretrain", "", directory))
    if run.adapt and not run.averages and "adapt" not in run.shares:
        found += [Stage("adapt", task, directory / "adapt" / task) for task in run.downstream]
    kind = "average" if run.averages else "finetune"
    found += [Stage(kind, task, directory / "finetune" / task) for task in run.downstream]
    return found


def required(run: RunSpec, workdir: Path) -> list[Stage]:
    """The stages of other runs that must be finished before a run begins."""
    found = []
    for name in run.averages:
        found += [
            Stage("finetune", task, workdir / name / "finetune" / task) for task in run.downstream
        ]
    if "pretrain" in run.shares:
        found.append(Stage("pretrain", "", workdir / run.shares["pretrain"]))
    if "adapt" in run.shares:
        directory = workdir / run.shares["adapt"] / "adapt"
        found += [Stage("adapt", task, directory / task) for task in run.downstream]
    return found


def is_finished(run: RunSpec, workdir: Path) -> bool:
    """Whether all stages of a run are finished, its own and those it takes from others."""
    return all(stage.finished for stage in stages(run, workdir) + required(run, workdir))


def stage_settings(run: RunSpec) -> dict[str, dict[str, Any]]:
    """Stage, such as "finetune/sst2" -> all settings that decide its result."""

    def without_keep(overrides: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in overrides.items() if key != "train.keep"}

    pretraining = {"config": run.config, **without_keep(run.overrides)}
    if run.averages:
        pretraining = {"averages": list(run.averages)}
    elif not run.existing:
        pretraining[FILE_VALUES] = config_digest(run)
    found = {"pretrain": pretraining}
    for task, settings in run.downstream.items():
        before = pretraining
        if run.adapt:
            adaptation = task_data(settings) | without_keep(run.adapt)
            before = pretraining | {f"adapt.{key}": value for key, value in adaptation.items()}
            found[f"adapt/{task}"] = before
        found[f"finetune/{task}"] = before | {f"finetune.{k}": v for k, v in settings.items()}
    return found


def config_digest(run: RunSpec) -> str:
    """Of what a run's config file and overrides give together, but for what changes no result."""
    from bertlab.train.loop import MAY_CHANGE

    values = flatten(load_config(run.config, dict(run.overrides)))
    text = json_line({key: values[key] for key in values if not MAY_CHANGE.fullmatch(key)})
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def pretrained(run: RunSpec, workdir: Path, task: str = "") -> Path:
    """The directory of the model that an adaptation begins with; with a task, its fine-tuning."""
    if task and run.adapt:
        return workdir / run.shares.get("adapt", run.name) / "adapt" / task
    return run.existing or workdir / run.shares.get("pretrain", run.name)


def finetuning(run: RunSpec, task: str) -> dict[str, Any]:
    """`finetune`'s arguments for a task: `task`, `recipe` and `overrides`."""
    settings = dict(run.downstream[task])
    name, recipe = settings.pop("task", task), settings.pop("recipe", "small")
    fitting = {key: value for key, value in settings.items() if _fits(key, name)}
    return {"task": name, "recipe": recipe, "overrides": fitting}


def _fits(key: str, names: str) -> bool:
    """Whether a setting applies to a task: "head.NAME" does if the task's head has it."""
    from bertlab.transfer.kinds import KINDS, find_kind
    from bertlab.transfer.tasks import find_task

    if not key.startswith("head."):
        return True
    name = key.removeprefix("head.")
    kinds = [find_kind(find_task(task).kind) for task in names.split("+")]
    if not any(name in kind.settings() for kind in (*kinds, *KINDS.values())):
        raise UserError(f"finetune.{key} is not a setting of any head (bertlab/transfer/kinds)")
    return any(name in kind.settings() for kind in kinds)


def adaptation(run: RunSpec, task: str) -> dict[str, Any]:
    """`adapt`'s arguments for a task, on the fine-tuning's data."""
    settings = task_data(run.downstream[task]) | dict(run.adapt)
    name, recipe = settings.pop("task", task), settings.pop("recipe", "same")
    epochs = float(settings.pop("epochs", 1.0))
    return {"task": name, "recipe": recipe, "epochs": epochs, "overrides": settings}


def execute(run: RunSpec, workdir: Path) -> None:
    """Trains the unfinished stages of a run; SystemExit after a signal, with the state saved."""
    for stage in stages(run, workdir):
        if not stage.finished:
            _execute_stage(run, stage, workdir)


def _execute_stage(run: RunSpec, stage: Stage, workdir: Path) -> None:
    if stage.kind == "pretrain":
        from bertlab.evals.evaluate import evaluate_run
        from bertlab.train import loop
        from bertlab.train.build import build_pretraining

        config = load_config(run.config, dict(run.overrides))
        loop.run(build_pretraining(config), stage.directory, at_end=evaluate_run)
    elif stage.kind == "adapt":
        from bertlab.transfer.adapt import adapt

        arguments = adaptation(run, stage.task)
        adapt(pretrained(run, workdir), workdir=stage.directory, **arguments)
    elif stage.kind == "finetune":
        from bertlab.transfer.finetune import finetune

        arguments = finetuning(run, stage.task)
        finetune(pretrained(run, workdir, stage.task), workdir=stage.directory, **arguments)
    else:
        from bertlab.transfer.average import average

        runs = [workdir / name / "finetune" / stage.task for name in run.averages]
        average(runs, stage.directory)


def write_run(run: RunSpec, workdir: Path) -> Path:
    """Writes run.json, all that a worker needs to know of a run; returns the run's directory.

    It keeps the settings of stages that the study has no longer.
    """
    directory = RunDirectory(workdir / run.name)
    recorded = directory.read("run", {"stages": {}})["stages"]
    spec = dataclasses.asdict(run)
    directory.write("run", {"spec": spec, "stages": recorded | stage_settings(run)})
    return directory.path


def execute_directory(directory: Path) -> None:
    """Executes the run of a run.json; failed.txt says in one line why it failed."""
    directory = Path(directory)
    failed = directory / "failed.txt"
    failed.unlink(missing_ok=True)
    run = RunSpec(**RunDirectory(directory).read("run")["spec"])
    try:
        execute(run, directory.parent)
    except Exception as error:
        traceback.print_exc()
        name = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        failed.write_text(" ".join(f"{name}{error}".split()) + "\n", encoding="utf-8")
        raise


def main() -> None:
    """Runs a run's stages in this process."""
    parser = argparse.ArgumentParser(description="Execute one run of a study.")
    parser.add_argument("directory", type=Path, help="with run.json")
    try:
        execute_directory(parser.parse_args().directory)
    except Exception:  # failed.txt has it
        sys.exit(1)


if __name__ == "__main__":
    main()
