"""One run of a study, stage by stage, in a process: `python -m bertlab.studies.worker RUN`."""

import dataclasses
import sys
import traceback
from pathlib import Path

from filelock import FileLock

from bertlab.config.load import load_config
from bertlab.errors import Diverged, UserError
from bertlab.evals.evaluate import evaluate_run
from bertlab.studies.runs import RunSpec, adaptation, finetuning
from bertlab.train import loop
from bertlab.train.build import build_pretraining
from bertlab.train.run_directory import RunDirectory
from bertlab.transfer.finetune import adapt, finetune
from bertlab.transfer.scoring import average


def write_run(run: RunSpec, workdir: Path) -> Path:
    """Writes run.json, from which a worker executes the run; returns its directory."""
    directory = RunDirectory(workdir / run.name)
    directory.write("run", dataclasses.asdict(run))
    return directory.path


def execute_directory(path: Path | str) -> None:
    """Trains the unfinished stages of the run of a run.json, or resumes them.

    failed.json has a run's `status`, "failed" or "diverged", and the `reason` in one line. After a
    signal the state is saved and SystemExit is raised.
    """
    directory = RunDirectory(path)
    run = RunSpec(**directory.read("run"))
    try:
        # Waits for the worker of a killed sweep, which goes on without it.
        with FileLock(directory.path / ".worker.lock"):
            (directory.path / "failed.json").unlink(missing_ok=True)
            for stage, task in run.unfinished(directory.path.parent):
                _execute(run, stage, task, directory.path.parent)
    except Exception as error:
        traceback.print_exc()
        name = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        status = "diverged" if isinstance(error, Diverged) else "failed"
        reason = " ".join(f"{name}{error}".split())
        directory.write("failed", {"status": status, "reason": reason})
        raise


def _execute(run: RunSpec, stage: str, task: str, workdir: Path) -> None:
    directory = run.directory(workdir, stage, task)
    start = run.directory(workdir, *run.beginning(stage, task))
    if run.averages:
        average([workdir / name / stage / task for name in run.averages], directory)
    elif stage == "pretrain":
        config = load_config(run.config, dict(run.overrides))
        loop.run(build_pretraining(config), directory, at_end=evaluate_run)
    elif stage == "adapt":
        adapt(start, workdir=directory, **adaptation(run, task))
    else:
        finetune(start, workdir=directory, **finetuning(run, task))


if __name__ == "__main__":
    try:
        execute_directory(sys.argv[1])
    except Exception:  # printed, and in failed.json
        sys.exit(1)
