"""Executes runs of a study: `python -m bertlab.studies.worker --run RUN/job.json`.

A run consists of stages; each has a directory, and a result.json there once it is finished. Finished stages are skipped. A
worker started with --answer takes one run after another, so imports and the device are ready. Whatever imports JAX is imported
inside functions: a worker first chooses its cores, from which XLA sizes its thread pool.
"""

import argparse
import contextlib
import dataclasses
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertlab import alive
from bertlab.errors import UserError, failure_of_machine
from bertlab.files import read_json
from bertlab.locks import alone
from bertlab.parent import Parent
from bertlab.run import Run, StudyDirectory
from bertlab.studies.study import COSTS, RunSpec, data_of, unseeded

RUNNER = "bertlab.studies.worker:execute"
NO_COSTS = {key: 0 for key in COSTS if key != "parameters"}  # of a run without pretraining


@dataclasses.dataclass(frozen=True)
class Stage:
    """A part of a run.

    Attributes:
        kind: pretrain, adapt, finetune or average.
        task: The task's directory name; "" for pretraining.
        directory: Of the stage's files.
    """

    kind: str
    task: str
    directory: Path

    @property
    def label(self) -> str:
        """As the terminal shows it."""
        return {"pretrain": "pretrain", "finetune": self.task}.get(self.kind, f"{self.kind} {self.task}")

    @property
    def key(self) -> str:
        """As job.json names it: "pretrain", or its directory in the run's: "finetune/sst2"."""
        return f"{self.directory.parent.name}/{self.task}" if self.task else "pretrain"

    @property
    def finished(self) -> bool:
        """Whether the stage has its result; a pretraining also needs its measurements."""
        run = Run(self.directory)
        return run.result.exists() and (self.kind != "pretrain" or run.measured.exists())


def stages(run: RunSpec, directory: Path) -> list[Stage]:
    """The stages that a run executes itself, in order, without those it takes from another run."""
    place = lambda kind, task: Run(directory).stage(kind, task).directory
    finetunings = [Stage("average" if run.averages else "finetune", task, place("finetune", task)) for task in run.downstream]
    if run.averages:
        return finetunings
    pretraining = [] if "pretrain" in run.shares else [Stage("pretrain", "", directory)]
    adapting = run.downstream if run.adapt and "adapt" not in run.shares else ()
    return pretraining + [Stage("adapt", task, place("adapt", task)) for task in adapting] + finetunings


def awaited(run: RunSpec, workdir: Path) -> list[tuple[str, Stage]]:
    """(run name, stage) of the other runs' stages that must be finished before a run can start."""
    of = lambda name, kind, task: (name, Stage(kind, task, StudyDirectory(workdir).run(name).stage(kind, task).directory))
    found = [of(name, "finetune", task) for name in run.averages for task in run.downstream]
    for kind, name in run.shares.items():
        found += [of(name, kind, task) for task in (run.downstream if kind == "adapt" else [""])]
    return found


def is_finished(run: RunSpec, directory: Path) -> bool:
    """Whether all stages of a run are finished."""
    return all(stage.finished for stage in stages(run, directory))


def stage_settings(run: RunSpec) -> dict[str, dict[str, Any]]:
    """`Stage.key` -> the settings that decide the stage's result, as in job.json; includes shared stages.

    `train.keep` decides nothing: `bertlab.studies.records.check_steps` sees to it that the steps that are needed exist.
    """
    tasks = run.downstream.items()
    pretraining = {"config": run.config, **_without_keep(run.overrides)}
    found = {"pretrain": pretraining}
    if existing_run(run.config):  # its recorded cost depends on what the tasks use of it
        found["pretrain"] = pretraining | {f"finetune.{key} of {task}": of[key] for task, of in tasks for key in of}
    if run.averages:
        found = {}
        pretraining = {"averages": list(run.averages)}
    for task, of in tasks:
        begun = pretraining
        if run.adapt:
            begun = pretraining | {f"adapt.{key}": value for key, value in (data_of(of) | _without_keep(run.adapt)).items()}
            found[f"adapt/{task}"] = begun
        found[f"finetune/{task}"] = begun | {f"finetune.{key} of {task}": value for key, value in of.items()}
    return json.loads(json.dumps(found))


def _without_keep(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != "train.keep"}


def execute(run: RunSpec, directory: Path) -> None:
    """Executes the unfinished stages of a run in its directory; the runs that it takes stages from lie beside that.

    All processes of a run call it; the first says which stages are finished.
    """
    from bertlab.config import load_config
    from bertlab.train.processes import gather, is_first
    from bertlab.transfer.adapt import adapt
    from bertlab.transfer.finetune import finetune
    from bertlab.transfer.pretrain import pretrain

    given = existing_run(run.config)
    for stage in stages(run, directory):
        if gather(stage.finished)[0]:
            continue
        if stage.kind == "pretrain" and given:
            if is_first():
                stand_on(given, run, directory)
        elif stage.kind == "pretrain":
            pretrain(load_config(run.config, dict(run.overrides)), directory)
        elif stage.kind == "adapt":
            adapt(pretrained(run, directory), workdir=stage.directory, **adaptation(run, stage.task))
        elif stage.kind == "finetune":
            finetune(pretrained(run, directory, stage.task), workdir=stage.directory, **finetuning(run, stage.task))
        elif is_first():
            fellows = [Run(directory).beside(name).stage("finetune", stage.task).directory for name in run.averages]
            average_predictions(fellows, stage.directory, finetuning(run, stage.task)["task"])
        if not gather(stage.finished)[0]:
            return  # stopped by SIGTERM after saving; the next sweep resumes here


def existing_run(config: str) -> Path | None:
    """The directory in "run:DIRECTORY"; None for a config file."""
    return Path(config.removeprefix("run:")).expanduser() if config.startswith("run:") else None


def pretrained(run: RunSpec, directory: Path, task: str = "") -> Path:
    """The directory of the model that a run's adaptations start from; with a task, that its fine-tuning starts from."""
    if task and run.adapt:
        return Run(directory).beside(run.shares.get("adapt", directory.name)).stage("adapt", task).directory
    return existing_run(run.config) or Run(directory).beside(run.shares.get("pretrain", directory.name)).directory


def finetuning(run: RunSpec, task: str) -> dict[str, Any]:
    """`finetune`'s arguments for a task of a run: `task`, `recipe` and `overrides`."""
    overrides = dict(run.downstream[task])
    name, recipe = overrides.pop("task", task), overrides.pop("recipe", "small")
    return {"task": name, "recipe": recipe, "overrides": {key: overrides[key] for key in overrides if _fits(key, name)}}


def _fits(key: str, task: str) -> bool:
    """Whether a setting applies to a task; settings of heads apply if the task's head has them.

    Raises:
        UserError: No head has the setting.
    """
    from bertlab.transfer.kinds import KINDS
    from bertlab.transfer.tasks import find_task

    if not key.startswith("head."):
        return True
    name = key.removeprefix("head.")
    if not any(name in kind.settings() for kind in KINDS.values()):
        raise UserError(f"finetune.{key} is not a setting of a head; see bertlab/transfer/kinds")
    return any(name in find_task(of).kind.settings() for of in task.split("+"))


def adaptation(run: RunSpec, task: str) -> dict[str, Any]:
    """`adapt`'s arguments for a task of a run: `task`, `recipe`, `epochs` and `overrides`, on the fine-tuning's data."""
    data = data_of(run.downstream[task])
    name = data.pop("task", task)
    overrides = data | dict(run.adapt)
    epochs = overrides.pop("epochs", 1.0)
    try:
        passes = float(epochs)
    except (TypeError, ValueError):
        raise UserError(f"adapt.epochs={epochs!r}: expected a number of passes over the text, such as 1.0") from None
    return {"task": name, "recipe": overrides.pop("recipe", "same"), "epochs": passes, "overrides": overrides}


def task_config(run: RunSpec, task: str) -> Any:
    """The config with which a study fine-tunes an existing run on a task."""
    from bertlab.transfer.finetune import finetune_config, overridden

    arguments = finetuning(run, task)
    return overridden(finetune_config(existing_run(run.config), arguments["task"], arguments["recipe"]), arguments["overrides"])


def stand_on(given: Path, run: RunSpec, directory: Path) -> None:
    """Records what an existing run's model cost, at the step with which all fine-tunings begin if they name the same.

    The cost is 0 if all fine-tunings start from random values.
    """
    pretraining = result_at(Run(given), common_step(run.downstream.values())) or {}
    costs = {key: pretraining[key] for key in COSTS if key in pretraining}
    if from_scratch(task_config(run, task).transfer.random for task in run.downstream):
        costs |= NO_COSTS
    Run(directory).measured.write({})
    Run(directory).finish({"run": str(given), **costs, "metrics": {}})


def common_step(settings: Iterable[Mapping[str, Any]]) -> int | None:
    """The step with which all these stages begin; None for the last, or if they differ."""
    steps = {of.get("init_step") for of in settings}
    return int(steps.pop()) if len(steps) == 1 and steps != {None} else None


def result_at(run: Run, step: int | None) -> dict[str, Any] | None:
    """A pretraining's result, None without one; of another step than its last only parameters and costs are known."""
    result = run.result.get()
    if result is None or step in (None, result.get("step")):
        return result
    return {"parameters": result.get("parameters"), "step": step, **run.costs.get({}).get(str(step), {})}


def from_scratch(at_random: Iterable[bool]) -> bool:
    """Whether a run uses no pretraining: it has fine-tunings, and all start from random values."""
    at_random = iter(at_random)
    return next(at_random, False) and all(at_random)


def average_predictions(finetunings: Sequence[Path], directory: Path, task: str) -> None:
    """Averages fine-tunings' predictions, such as a forward and a backward model's, on the study's task; writes the scores."""
    from bertlab.transfer.average import average
    from bertlab.transfer.tasks import find_task

    name = find_task(task).name  # its metrics are named as a fine-tuning's
    scores = {
        split: {f"{name}/{metric}": value for metric, value in average(finetunings, split, task)["average"].items()}
        for split in ("valid", "test")
    }
    run, answered = Run(directory), Run(finetunings[0]).most_frequent  # of the same examples
    if answered.exists():
        run.most_frequent.write(answered.read())
    run.finish({"averages": [str(path) for path in finetunings], "metrics": scores})


def write_job(run: RunSpec, directory: Path, runner: str = RUNNER, jobs: int = 1) -> Path:
    """Writes job.json, what a worker needs to know about a run, and returns its path.

    It also records how many runs execute at a time, and the settings of all stages begun so far, including stages that the
    study no longer has.
    """
    settings = stage_settings(run)
    own = {stage.key: settings[stage.key] for stage in stages(run, directory)}
    before = {key: of for key, of in recorded(directory).items() if settings.get(key, of) == of}
    job = {"runner": runner, "run": dataclasses.asdict(run), "jobs": jobs, "stages": before | own}
    Run(directory).job.write(job)
    return Run(directory).job.path


def worker_command(job: Path) -> list[str]:
    """The command that executes the run of a job.json on this machine; launchers add options."""
    return [sys.executable, "-u", "-m", "bertlab.studies.worker", "--run", str(job.resolve())]


def recorded(directory: Path) -> dict[str, dict[str, Any]]:
    """`Stage.key` -> the settings that a run's stages began with, from its job.json."""
    job = Run(directory).job.get()
    if job is None:
        return {}
    return job["stages"] if "stages" in job else stage_settings(RunSpec(**job["run"]))  # written by an earlier version


def write_to_log(directory: Path) -> None:
    """Redirects this process's output to a run's log.txt."""
    sys.stdout.flush()
    sys.stderr.flush()
    with open(Run(directory).log, "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


def execute_job(file: Path, together: bool = False) -> int:
    """Executes the run that a job.json describes, in that file's directory; returns the exit status.

    Args:
        file: The job.json.
        together: With other processes, which the environment names.
    """
    sys.argv[1:] = ["--run", str(file)]  # environment.json records this as the command
    job: Mapping[str, Any] = read_json(file)
    module, _, function = job["runner"].partition(":")
    try:
        with contextlib.ExitStack() as at_the_end:
            if not together or _joined(at_the_end):
                # Such as for a killed sweep's worker.
                at_the_end.enter_context(alone(file.parent, Run(file.parent).lock, wait=True, required=True))
                sign = Run(file.parent).alive
                at_the_end.callback(sign.delete)
                at_the_end.enter_context(alive.showing(lambda: sign.write(f"{os.getpid()} on {socket.gethostname()}\n")))
            getattr(importlib.import_module(module), function)(RunSpec(**job["run"]), file.parent)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Exception as error:  # the sweep shows the last line; the traceback stays in the log
        if (said := failure_of_machine(error, file.parent)) is not None:
            print(f"error: {said}", file=sys.stderr)
            return 1
        traceback.print_exc()
        print(f"error: {type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}", file=sys.stderr)
        return 1
    return 0


def _joined(at_the_end: contextlib.ExitStack) -> bool:
    """Joins the other processes of the run, in whose company it stays to the end; returns whether this one is the first."""
    from bertlab.train import processes

    processes.join()
    at_the_end.enter_context(processes.company())
    return processes.is_first()


def programs_of(file: Path) -> str:
    """The part of a job.json that decides which programs its run compiles: all but name, labels, seeds and first steps."""
    run = read_json(file)["run"]
    same = lambda overrides: {key: value for key, value in unseeded(overrides).items() if key != "init_step"}
    tasks = {task: same(overrides) for task, overrides in run["downstream"].items()}
    return json.dumps([run["config"], same(run["overrides"]), tasks, run["adapt"]], sort_keys=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Executes a run, and with --answer those whose job.json the parent names next; returns the last exit status."""
    parser = argparse.ArgumentParser(prog="python -m bertlab.studies.worker", description="Executes one run of a study.")
    parser.add_argument("--run", required=True, type=Path, help="the run's job.json")
    parser.add_argument("--cores", default="", help="CPU cores to stay on, such as 0,1")
    parser.add_argument("--stop_with_parent", action="store_true", help="stop if standard input closes")
    parser.add_argument("--together", action="store_true", help="with the other processes that the environment names")
    parser.add_argument(
        "--answer", type=int, help="file descriptor for a line after each run; the worker then waits for another run"
    )
    options = parser.parse_args(arguments)
    parent = Parent(signal.SIGTERM) if options.stop_with_parent else None
    if options.cores:  # before JAX is imported
        os.sched_setaffinity(0, [int(core) for core in options.cores.split(",")])
    job, status = options.run, execute_job(options.run, options.together)
    done = lambda: os.write(options.answer, b"\n")
    while status == 0 and options.answer is not None and (order := parent.next_order(done)) is not None:
        following = Path(os.fsdecode(order))
        write_to_log(following.parent)
        if "jax" in sys.modules and programs_of(following) != programs_of(job):
            sys.modules["jax"].clear_caches()
        job, status = following, execute_job(following)
    return status


if __name__ == "__main__":
    sys.exit(main())
