"""Executes runs of a study: `python -m bertlab.studies.worker --run RUN/job.json`.

A run consists of stages, each in a directory that has a result.json once it is finished; what is finished is left alone.
A worker that is told to answer takes further runs, one after the other: imports and the device are there then.
"""

import argparse
import contextlib
import dataclasses
import fcntl
import importlib
import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from bertlab.errors import UserError
from bertlab.files import read_json
from bertlab.run import Run
from bertlab.studies.study import COSTS, RunSpec, data_of

RUNNER = "bertlab.studies.worker:execute"
NO_COSTS = {key: 0 for key in COSTS if key != "parameters"}  # of a run that stands on no pretraining


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
        """Whether it has its result, and for a pretraining what is measured after it."""
        run = Run(self.directory)
        return run.result.exists() and (self.kind != "pretrain" or run.measured.exists())


def stages(run: RunSpec, directory: Path) -> list[Stage]:
    """What a run does itself, in order; what it shares with another run of the study is not among it."""
    finetunings = [
        Stage("average" if run.averages else "finetune", task, directory / "finetune" / task) for task in run.downstream
    ]
    if run.averages:
        return finetunings
    pretraining = [] if "pretrain" in run.shares else [Stage("pretrain", "", directory)]
    adapting = run.downstream if run.adapt and "adapt" not in run.shares else ()
    return pretraining + [Stage("adapt", task, directory / "adapt" / task) for task in adapting] + finetunings


def awaited(run: RunSpec, workdir: Path) -> list[tuple[str, Stage]]:
    """(run, stage) of other runs of the study in `workdir` that must be finished before a run can begin."""
    found = [
        (name, Stage("finetune", task, workdir / name / "finetune" / task)) for name in run.averages for task in run.downstream
    ]
    for kind, name in run.shares.items():
        tasks = run.downstream if kind == "adapt" else [""]
        found += [(name, Stage(kind, task, workdir / name / ("adapt" if task else "") / task)) for task in tasks]
    return found


def is_finished(run: RunSpec, directory: Path) -> bool:
    """Whether all stages of a run are."""
    return all(stage.finished for stage in stages(run, directory))


def stage_settings(run: RunSpec) -> dict[str, dict[str, Any]]:
    """By `Stage.key` the settings that decide a stage's result, as job.json has them; shared stages are among them."""
    tasks = run.downstream.items()
    pretraining = {"config": run.config, **run.overrides}
    found = {"pretrain": pretraining}
    if existing_run(run.config):  # of which is noted what it had cost, given what its tasks take of it
        found["pretrain"] = pretraining | {f"finetune.{key} of {task}": of[key] for task, of in tasks for key in of}
    if run.averages:
        found = {}
        pretraining = {"averages": list(run.averages)}
    for task, of in tasks:
        begun = pretraining
        if run.adapt:
            begun = pretraining | {f"adapt.{key}": value for key, value in (data_of(of) | dict(run.adapt)).items()}
            found[f"adapt/{task}"] = begun
        found[f"finetune/{task}"] = begun | {f"finetune.{key} of {task}": value for key, value in of.items()}
    return json.loads(json.dumps(found))


def execute(run: RunSpec, directory: Path) -> None:
    """Goes through the stages of a run that are not finished.

    Args:
        run: The run.
        directory: Its directory; those of the runs that it shares a stage with lie beside it.
    """
    from bertlab.config import load_config
    from bertlab.transfer.adapt import adapt
    from bertlab.transfer.finetune import finetune
    from bertlab.transfer.pretrain import pretrain

    given = existing_run(run.config)
    for stage in stages(run, directory):
        if stage.finished:
            continue
        if stage.kind == "pretrain" and given:
            stand_on(given, run, directory)
        elif stage.kind == "pretrain":
            pretrain(load_config(run.config, dict(run.overrides)), directory)
        elif stage.kind == "adapt":
            adapt(pretrained(run, directory), workdir=stage.directory, **adaptation(run, stage.task))
        elif stage.kind == "finetune":
            finetune(pretrained(run, directory, stage.task), workdir=stage.directory, **finetuning(run, stage.task))
        else:
            average_predictions([directory.parent / name / "finetune" / stage.task for name in run.averages], stage.directory)
        if not stage.finished:
            return  # stopped by SIGTERM after saving: the next sweep goes on from here


def existing_run(config: str) -> Path | None:
    """The directory that "run:DIRECTORY" names; None for a config file."""
    return Path(config.removeprefix("run:")).expanduser() if config.startswith("run:") else None


def pretrained(run: RunSpec, directory: Path, task: str = "") -> Path:
    """The directory of the model that a run's adaptations begin with; with a task, that its fine-tuning begins with."""
    if task and run.adapt:
        return directory.parent / run.shares.get("adapt", directory.name) / "adapt" / task
    return existing_run(run.config) or directory.parent / run.shares.get("pretrain", directory.name)


def finetuning(run: RunSpec, task: str) -> dict[str, Any]:
    """`finetune`'s arguments for a task of a run: `task`, `recipe` and `overrides`."""
    overrides = dict(run.downstream[task])
    name, recipe = overrides.pop("task", task), overrides.pop("recipe", "small")
    return {"task": name, "recipe": recipe, "overrides": {key: overrides[key] for key in overrides if _fits(key, name)}}


def _fits(key: str, task: str) -> bool:
    """Whether a setting is one of a task's: of heads, which differ by task, those that this one's has.

    Raises:
        UserError: no head has it.
    """
    from bertlab.transfer.kinds import KINDS
    from bertlab.transfer.tasks import find_task

    if not key.startswith("head."):
        return True
    name = key.removeprefix("head.")
    if not any(name in kind.settings() for kind in KINDS.values()):
        raise UserError(f"finetune.{key} is not a setting of any head; see bertlab/transfer/kinds")
    return any(name in find_task(of).kind.settings() for of in task.split("+"))


def adaptation(run: RunSpec, task: str) -> dict[str, Any]:
    """`adapt`'s arguments for a task of a run: `task`, `recipe`, `epochs` and `overrides`; its data are the fine-tuning's."""
    data = data_of(run.downstream[task])
    name = data.pop("task", task)
    overrides = data | dict(run.adapt)
    epochs = overrides.pop("epochs", 1.0)
    try:
        passes = float(epochs)
    except (TypeError, ValueError):
        raise UserError(f"adapt.epochs={epochs!r}: expected a number of passes over the text, such as 1.0") from None
    return {
        "task": name,
        "recipe": overrides.pop("recipe", "same"),
        "epochs": passes,
        "overrides": overrides,
    }


def task_config(run: RunSpec, task: str) -> Any:
    """The config with which a run of a study fine-tunes a run that is there already."""
    from bertlab.transfer.finetune import finetune_config, overridden

    arguments = finetuning(run, task)
    return overridden(finetune_config(existing_run(run.config), arguments["task"], arguments["recipe"]), arguments["overrides"])


def stand_on(given: Path, run: RunSpec, directory: Path) -> None:
    """Notes what the model of a run had cost that it does not train itself; nothing, if all its tasks begin at random."""
    pretraining = Run(given).result.get({})
    costs = {key: pretraining[key] for key in COSTS if key in pretraining}
    if from_scratch(task_config(run, task).transfer.random for task in run.downstream):
        costs |= NO_COSTS
    Run(directory).measured.write({})
    Run(directory).result.write({"run": str(given), **costs, "metrics": {}})


def from_scratch(at_random: Iterable[bool]) -> bool:
    """Whether a run stands on no pretraining: it has fine-tunings, and all of them begin from random values."""
    return set(at_random) == {True}


def average_predictions(finetunings: Sequence[Path], directory: Path) -> None:
    """Writes the result of averaging the predictions of fine-tunings, such as a forward and a backward model's."""
    from bertlab.transfer.average import average

    scores = {split: average(finetunings, split)["average"] for split in ("valid", "test")}
    run, answered = Run(directory), Run(finetunings[0]).most_frequent  # of the same examples
    if answered.exists():
        run.most_frequent.write(answered.read())
    run.result.write({"averages": [str(path) for path in finetunings], "metrics": scores})


def write_job(run: RunSpec, directory: Path, runner: str = RUNNER, jobs: int = 1) -> Path:
    """Writes what a worker needs to know of a run, and returns the file.

    It also notes the settings of the run's stages, those of an earlier sweep that the study has no more included, and how many
    runs there were at a time.
    """
    directory.mkdir(parents=True, exist_ok=True)
    settings = stage_settings(run)
    own = {stage.key: settings[stage.key] for stage in stages(run, directory)}
    before = {key: of for key, of in recorded(directory).items() if settings.get(key, of) == of}
    job = {"runner": runner, "run": dataclasses.asdict(run), "jobs": jobs, "stages": before | own}
    Run(directory).job.write(job)
    return Run(directory).job.path


def recorded(directory: Path) -> dict[str, dict[str, Any]]:
    """By `Stage.key` the settings with which a run's stages were begun, from its job.json."""
    job = Run(directory).job.get()
    if job is None:
        return {}
    return job["stages"] if "stages" in job else stage_settings(RunSpec(**job["run"]))  # of a sweep that did not note them yet


def lock(file: IO, wait: bool = False) -> None:
    """Takes a file's lock (flock).

    Raises:
        BlockingIOError: another process has it, and it is not to be waited for.
        UserError: the file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError as error:
        raise UserError(
            f"{file.name} cannot be locked ({error.strerror}): the file system has no flock, without which two sweeps could"
            " write there at once; give a --workdir on another, or mount it with locks"
        ) from None


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Waits until no other process is at work on a run: one that a killed sweep has left behind, or on another machine."""
    with open(Run(directory).lock, "a") as file:
        try:
            lock(file)
        except BlockingIOError:
            print(f"waiting for another process that is at work on {directory.name}", flush=True)
            lock(file, wait=True)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")  # the process's own title may name a run that it had before
        file.flush()
        yield


class Parent:
    """Who has started this process: names further runs on standard input, a job.json a line, and is gone where that closes.

    This process is then sent SIGTERM if it is at work on a run, so that it saves and ends.
    """

    def __init__(self):
        self.jobs, self.gone, self.idle = queue.SimpleQueue(), threading.Event(), threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with open(0, "rb", closefd=False) as lines:
            for line in lines:
                self.jobs.put(Path(os.fsdecode(line.removesuffix(b"\n"))))
        self.gone.set()
        self.jobs.put(None)
        if not self.idle.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    def next_job(self, answer: int) -> Path | None:
        """Says, in the pipe of that file descriptor, that a run has ended, and waits for another; None: there is none."""
        self.idle.set()
        with contextlib.suppress(BrokenPipeError):
            os.write(answer, b"\n")
        job = self.jobs.get()
        self.idle.clear()
        return None if self.gone.is_set() else job


def write_to_log(directory: Path) -> None:
    """Sends this process's output to a run's log.txt from now on."""
    sys.stdout.flush()
    sys.stderr.flush()
    with open(Run(directory).log, "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


def execute_job(file: Path) -> int:
    """Executes the run that a job.json describes, in the directory which that file lies in; returns the exit status."""
    sys.argv[1:] = ["--run", str(file)]  # the command that executes this run, as its environment.json has it
    job: Mapping[str, Any] = read_json(file)
    module, _, function = job["runner"].partition(":")
    try:
        with alone(file.parent):
            getattr(importlib.import_module(module), function)(RunSpec(**job["run"]), file.parent)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Exception as error:  # the sweep shows this last line; the traceback stays in the log
        traceback.print_exc()
        print(f"error: {type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}", file=sys.stderr)
        return 1
    return 0


def programs_of(file: Path) -> str:
    """What of a job.json decides which programs its run compiles: all but its name, labels and seeds."""
    run = read_json(file)["run"]
    without_seed = lambda overrides: {key: value for key, value in overrides.items() if key not in ("seed", "data.seed")}
    tasks = {task: without_seed(overrides) for task, overrides in run["downstream"].items()}
    return json.dumps([run["config"], without_seed(run["overrides"]), tasks, run["adapt"]], sort_keys=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Executes a run and, where the parent wants an answer, those that it names then; returns the last one's exit status."""
    parser = argparse.ArgumentParser(prog="python -m bertlab.studies.worker", description="Executes one run of a study.")
    parser.add_argument("--run", required=True, type=Path, help="the run's job.json")
    parser.add_argument("--cores", default="", help="CPU cores to stay on, such as 0,1")
    parser.add_argument("--stop_with_parent", action="store_true", help="stop when standard input closes")
    parser.add_argument("--answer", type=int, help="file descriptor to write a line to after a run, and wait for another")
    options = parser.parse_args(arguments)
    parent = Parent() if options.stop_with_parent else None
    if options.cores:  # before JAX is imported: XLA sizes its thread pool from the affinity
        os.sched_setaffinity(0, [int(core) for core in options.cores.split(",")])
    job, status = options.run, execute_job(options.run)
    while status == 0 and options.answer is not None and (following := parent.next_job(options.answer)) is not None:
        write_to_log(following.parent)
        if "jax" in sys.modules and programs_of(following) != programs_of(job):
            sys.modules["jax"].clear_caches()
        job, status = following, execute_job(following)
    return status


if __name__ == "__main__":
    sys.exit(main())
