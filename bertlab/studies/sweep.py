"""Runs a study: each unfinished run through a launcher, several at a time.

A study with `rates` first selects each variant's pretraining rate. A run that takes a stage from
another one waits for it. All state is in the runs' directories, so the same command resumes.
"""

import signal
import time
from collections.abc import Sequence
from pathlib import Path

from bertlab.data.batches import Batches
from bertlab.data.prepare import prepare
from bertlab.errors import UserError
from bertlab.files import json_line, write_json
from bertlab.studies.launchers.local import Local
from bertlab.studies.plan import Plan, make_plan, read_tasks
from bertlab.studies.runs import RunSpec, is_finished
from bertlab.studies.study import Study
from bertlab.studies.worker import write_run
from bertlab.train.phases import phase_configs
from bertlab.train.run_directory import RunDirectory

POLL_SECONDS = 0.2


def sweep(study: Study, workdir: str | Path, launcher=None) -> bool:
    """Runs the unfinished runs of a study in `workdir`/RUN, and writes study.json; returns whether
    all are finished.

    Seeds, labels and tasks can be added to a study later: finished runs are kept. Without a
    launcher (`bertlab.studies.launchers`), it runs one at a time on this machine. After a signal
    the runs save, and SystemExit is raised.
    """
    workdir, launcher, failures = Path(workdir), launcher or Local(1), {}
    plan = make_plan(study, workdir)
    for _ in range(2 if plan.searches else 0):  # the second pass is for rates beyond a grid's edge
        check_trained(plan, plan.candidates, workdir)
        write_json(workdir / "study.json", study.describe(plan.runs, plan.searches))
        # A run that diverged or failed is not tried again.
        ended = {name for search in plan.searches for name in search.losses(workdir)}
        candidates = [run for run in plan.candidates if run.name not in ended | failures.keys()]
        if not candidates:
            break
        failures |= run_all(candidates, workdir, launcher)
        plan = make_plan(study, workdir)
    for search in plan.searches:
        losses = search.losses(workdir)
        print(f"pretraining rate of {search.variant}: {search.selected(losses)}; {losses}")
    failures |= dict.fromkeys(plan.undecided, "no pretraining rate could be selected")
    runs = [run for run in plan.runs if run.name not in plan.undecided]
    check_trained(plan, runs, workdir)
    write_json(workdir / "study.json", study.describe(plan.runs, plan.searches))
    failures |= run_all(runs, workdir, launcher)
    for name, reason in failures.items():
        print(f"{name} failed: {reason} (log: {workdir / name / 'log.txt'})")
    done = sum(not run.unfinished(workdir) for run in runs)
    print(f"{study.name}: {done} of {len(plan.runs)} runs are finished; bertlab report {workdir}")
    return done == len(plan.runs)


def run_all(runs: Sequence[RunSpec], workdir: Path, launcher) -> dict[str, str]:
    """Executes the unfinished runs, `launcher.jobs` at a time; returns why runs failed."""
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
        for (stage, task), config in plan.configs[run.name].items():
            directory = RunDirectory(run.directory(workdir, stage, task))
            reads_text = stage == "pretrain" and config.train.steps
            key = json_line(config.data.to_dict() | {"seed": 0})
            if reads_text and key not in texts:
                texts[key] = prepare(config.data)
            if not directory.steps() and not is_finished(directory.path):
                continue  # nothing was trained
            # Tokens set the steps; a later stage is identified by its run's name, wherever it is.
            but = ["train.steps"] if config.train.get("tokens") else []
            if stage != "pretrain":
                but += ["seed", "data.seed", "init_from"]
            directory.require_config(config, but)
            if reads_text:
                hashes = [Batches(texts[key], of.data).hash for _, of in phase_configs(config)]
                directory.require_data(hashes)
            if stage == "finetune":
                before = directory.read("data").get("examples")
                tasks = read_tasks(config.task, json_line(config.task_data.to_dict()))
                now = {name: data.digest for name, (_, data) in tasks.items()}
                if before not in (None, now):
                    raise UserError(
                        f"{directory} holds a run on other examples of {task}: its files or reader"
                        " have changed; give another --workdir"
                    )
            first = run.directory(workdir, *run.beginning(stage, task))
            if stage != "pretrain" and not run.existing and not is_finished(first):
                raise UserError(f"{directory} began with {first}, which is gone; delete it as well")
        if run.averages and len(run.unfinished(workdir)) < len(run.downstream):
            before = RunDirectory(workdir / run.name).read("run")["averages"]
            if before != list(run.averages):
                raise UserError(f"{workdir / run.name} averages {', '.join(before)}; delete it")
