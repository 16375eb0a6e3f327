"""Runs a study: each unfinished run through a launcher, several at a time.

A study with `rates` first selects each variant's pretraining rate. A run that takes a stage from
another one waits for it. All state is in the runs' directories, so the same command resumes.
"""

import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from bertlab.config.load import flatten
from bertlab.data.batches import Batches
from bertlab.data.prepare import prepare
from bertlab.errors import UserError
from bertlab.files import json_line, write_json
from bertlab.studies.launchers import Launcher
from bertlab.studies.launchers.local import Local
from bertlab.studies.runs import RunSpec, Stage, is_finished
from bertlab.studies.selection import Plan, Search, make_plan
from bertlab.studies.study import Study
from bertlab.studies.worker import write_run
from bertlab.train.loop import MAY_CHANGE
from bertlab.train.phases import phase_configs
from bertlab.train.run_directory import RunDirectory

POLL_SECONDS = 0.2


def sweep(study: Study, workdir: str | Path, launcher: Launcher | None = None) -> bool:
    """Runs the unfinished runs of a study in `workdir`/RUN, and writes study.json.

    Seeds, labels and tasks can be added to a study later: finished runs stay. Without a launcher,
    one run at a time on this machine.

    Returns:
        Whether every run is finished.

    Raises:
        UserError: The study or a config is wrong, or the directory has runs of other settings or
            data.
        SystemExit: After a signal, when the runs have saved.
    """
    workdir, launcher, failures = Path(workdir), launcher or Local(1), {}
    plan = make_plan(study, workdir)
    if plan.searches:
        write_json(workdir / "study.json", study.describe(plan.runs, plan.searches))
        ended = {name for search in plan.searches for name in search.losses(workdir)}
        check_trained(plan, plan.candidates, workdir)
        # One that diverged is not tried again.
        candidates = [run for run in plan.candidates if run.name not in ended]
        failures |= run_all(candidates, workdir, launcher)
        for search in plan.searches:
            print_selected(search, workdir)
        plan = make_plan(study, workdir)
    undecided = {
        name for search in plan.searches if not search.selected(workdir) for name in search.runs
    }
    decided = [run for run in plan.runs if run.name not in undecided]
    check_trained(plan, decided, workdir)
    write_json(workdir / "study.json", study.describe(plan.runs, plan.searches))
    failures |= run_all(decided, workdir, launcher)
    failures |= dict.fromkeys(undecided, "no pretraining rate could be selected")
    for name, reason in failures.items():
        print(f"{name} failed: {reason} (log: {workdir / name / 'log.txt'})")
    done = sum(not run.unfinished(workdir) for run in decided)
    print(f"{study.name}: {done} of {len(plan.runs)} runs are finished; bertlab report {workdir}")
    return done == len(plan.runs)


def run_all(runs: Sequence[RunSpec], workdir: Path, launcher: Launcher) -> dict[str, str]:
    """Executes the unfinished runs, `launcher.jobs` at a time; returns why runs failed.

    Raises:
        SystemExit: After SIGTERM or Ctrl-C, when the runs have saved and ended.
    """
    waiting = [run for run in runs if run.unfinished(workdir)]
    print(f"{len(runs)} runs, {len(runs) - len(waiting)} finished, in {workdir}", flush=True)
    running, failures = {}, {}
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while True:
            for run in [run for run in waiting if run.is_ready(workdir)]:
                if len(running) < launcher.jobs:
                    waiting.remove(run)
                    running[run.name] = run, launcher.start(write_run(run, workdir))
                    print(f"{run.name} started", flush=True)
            if not running:
                break
            time.sleep(POLL_SECONDS)
            for run in [run for run, job in running.values() if job.done()]:
                del running[run.name]
                if run.unfinished(workdir):
                    failed = RunDirectory(workdir / run.name).read("failed", {})
                    failures[run.name] = failed.get("reason", "its process ended")
                print(f"{run.name} {'failed' if run.name in failures else 'finished'}", flush=True)
    except BaseException as error:
        print(f"stopping {len(running)} runs, which save; the same command resumes", flush=True)
        for _, job in running.values():
            job.stop()
        while not all(job.done() for _, job in running.values()):
            time.sleep(POLL_SECONDS)
        if isinstance(error, KeyboardInterrupt):
            raise SystemExit(130) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)
    return failures | {run.name: "a run whose stage it needs is not finished" for run in waiting}


def check_trained(plan: Plan, runs: Sequence[RunSpec], workdir: Path) -> None:
    """Prepares the runs' texts; refuses stages that were trained with other settings or data."""
    texts = {}
    for run in runs:
        for stage, config in plan.configs[run.name].items():
            directory = RunDirectory(run.directory(workdir, *stage))
            reads_text = stage[0] == "pretrain" and config.train.steps
            key = json_line(config.data.to_dict() | {"seed": 0})
            if reads_text and key not in texts:
                texts[key] = prepare(config.data)
            if not directory.steps() and not is_finished(directory.path):
                continue  # it has trained nothing
            check_config(directory, config, stage)
            first = run.directory(workdir, *run.beginning(*stage))
            if stage[0] != "pretrain" and not run.existing and not is_finished(first):
                raise UserError(f"{directory} began with {first}, which is gone; delete it as well")
            if reads_text:
                today = [Batches(texts[key], of.data).hash for _, of in phase_configs(config)]
                check_equal(directory, "other data", directory.read("data")["data_hash"], today)
        if run.averages and len(run.unfinished(workdir)) < len(run.downstream):
            before = RunDirectory(workdir / run.name).read("run")["averages"]
            check_equal(workdir / run.name, "averages", before, list(run.averages))


def check_config(directory: RunDirectory, config: ConfigDict, stage: Stage) -> None:
    """Refuses a stage that was trained with another config."""
    before, now = flatten(directory.config()), flatten(json.loads(json_line(config.to_dict())))
    ignored = {"train.steps"} if now.get("train.budget") else set()  # which sets them
    if stage[0] != "pretrain":
        ignored |= {"seed", "data.seed", "init_from"}  # a run's name and place
    for key in sorted((before.keys() | now.keys()) - ignored):
        if not MAY_CHANGE.fullmatch(key):
            check_equal(directory, key, before.get(key), now.get(key))


def check_equal(directory: RunDirectory, key: str, before: Any, now: Any) -> None:
    """Refuses a stage in which something was different."""
    if before != now:
        raise UserError(
            f"{directory} was trained with {key}={before!r}, not {now!r}; give another --workdir,"
            " or delete it to train it again"
        )


def print_selected(search: Search, workdir: Path) -> None:
    """Prints the losses of a search and the selected rate."""
    losses, rate = search.losses(workdir), search.selected(workdir)
    texts = [f"{of:g}: {losses.get(name, 'unfinished')}" for name, of in search.candidates.items()]
    end = ", at the end of its candidates" if rate and search.at_the_end(rate) else ""
    print(
        f"pretraining rate of {search.variant}: {rate}{end} (validation loss: {'; '.join(texts)})"
    )
