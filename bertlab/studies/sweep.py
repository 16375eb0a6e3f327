"""Runs a study: each unfinished run in a process of its own, some at a time, through one of the launchers.

A run that shares its pretraining with another one waits for that. Everything that is known of a run lies in its directory, so
that the same command goes on where a killed one stopped.
"""

import contextlib
import dataclasses
import fcntl
import functools
import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bertlab.errors import UserError
from bertlab.files import write_json, write_text
from bertlab.studies.launchers import Launcher, Local
from bertlab.studies.ordering import FILE as SETTLED
from bertlab.studies.ordering import check_until_decided, look, open_pairs, seed_by_seed, write_settled
from bertlab.studies.statistics import Settlement
from bertlab.studies.study import RunSpec, Study
from bertlab.studies.views import Job, LineView, TerminalView, print_line
from bertlab.studies.worker import RUNNER, awaited, existing_run, finetuning, is_finished, task_config, write_job

POLL_SECONDS = 0.1


def sweep(
    study: Study,
    workdir: str | os.PathLike,
    launcher: Launcher | None = None,
    dry_run: bool = False,
    until_decided: str = "",
    *,
    runner: str = RUNNER,
    load_config: Callable[[str, dict], Any] | None = None,
    prepare: Callable[[Any], Any] | None = None,
    console: Console | None = None,
) -> int:
    """Runs what is not finished of a study; run directories are `workdir/RUN`.

    Running the same command again goes on where the last one stopped. A study that has grown (another seed, another
    label, another downstream task) may use its old workdir again: what is finished stays.

    Args:
        study: The study.
        workdir: The study's directory; study.json is written there.
        launcher: Starts the runs, `launcher.jobs` at a time; default one at a time on this machine.
        dry_run: Only print the runs with their overrides and what they will cost.
        until_decided: A task, or "all": begin no further seed once the order of the variants is settled by it
            (`bertlab.studies.ordering`).
        runner: "module:function" called in each worker process with a RunSpec and its directory.
        load_config: Turns a config spec and overrides into a config; default `load_checked`.
        prepare: Called once with each distinct `config.data`; default `prepare_text_and_tasks` with the study's tasks.
        console: Where to print; default the terminal.

    Returns:
        The exit status: 0 when every run is finished, 1 when a run failed, 130 when interrupted (SIGINT, SIGTERM).

    Raises:
        UserError: The study or a config is wrong, the workdir holds another study, or another sweep is at work there.
            Raised before any run starts.
    """
    console = console or Console()
    workdir = Path(workdir)
    load_config = load_config or load_checked
    launcher = launcher or Local(1)
    runs = study.runs()
    if until_decided:
        check_until_decided(study, until_decided)
        runs = seed_by_seed(runs, study)
    description = describe(study, study.runs())
    check_same_study(workdir, description)
    configs = {}
    for run in runs:
        try:
            configs[run.name] = load_config(run.config, dict(run.overrides))
        except UserError as error:
            raise UserError(f"run {run.name}: {error}") from None
    if dry_run:
        print_plan(study, runs, configs, workdir, launcher.jobs, console)
        return 0

    workdir.mkdir(parents=True, exist_ok=True)
    with lock_directory(workdir) as lock, sigterm_interrupts():
        write_json(workdir / "study.json", description)
        pending = [run for run in runs if not is_finished(run, workdir / run.name)]
        print_line(
            console,
            f"{study.name}: {len(runs)} runs, {len(runs) - len(pending)} finished before, {len(pending)} to do, in {workdir}",
        )
        running: list[Job] = []
        try:
            if pending:
                prepare = prepare or functools.partial(prepare_text_and_tasks, runs=pending)
                prepare_data([configs[run.name] for run in pending], prepare, console)
            settled = functools.partial(look, workdir, study, until_decided) if until_decided else None
            (workdir / SETTLED).unlink(missing_ok=True)
            failures, unbegun = run_all(pending, running, workdir, launcher, runner, lock, console, settled)
        except KeyboardInterrupt:
            print_line(
                console, f"interrupted: waiting for {len(running)} running runs to save; press Ctrl-C again to kill them"
            )
            stop(running)
            print_line(console, "run the same command again to go on")
            return 130
        except BaseException:
            stop(running)
            raise
        finally:
            launcher.close()
    for name, error in failures.items():
        print_line(console, f"failed: {name}: {error} (log: {workdir / name / 'log.txt'})", style="bold red")
    if failures:
        print_line(console, f"{len(failures)} of {len(runs)} runs failed; run the same command again to retry them")
        return 1
    done = f"{len(runs) - unbegun} of {len(runs)}" if unbegun else f"all {len(runs)}"
    print_line(console, f"{done} runs are finished; see them with: bertlab report {workdir}")
    return 0


def run_all(
    pending: Sequence[RunSpec],
    running: list[Job],
    workdir: Path,
    launcher: Launcher,
    runner: str,
    lock: int,
    console: Console,
    settled: Callable[[], Settlement | None] | None = None,
) -> tuple[dict[str, str], int]:
    """Executes the pending runs, `launcher.jobs` at a time.

    `running` is the caller's list, so that it can stop the processes when an exception leaves this function. `settled` is asked
    after each run whether the order is, so that no more need begin.

    Returns:
        The error line of each run that failed, and how many were not begun as the order was settled without them.
    """
    waiting, failures, unbegun, ended = list(pending), {}, 0, True
    view = TerminalView(console, len(pending)) if console.is_terminal else LineView(console, len(pending))
    with view:
        while True:
            if waiting and settled and ended and (found := settled()):
                if found.settled:
                    print_line(console, f"{write_settled(workdir, found)}: {len(waiting)} runs are not begun.")
                    unbegun = len(waiting)
                    waiting.clear()
                else:
                    print_line(console, f"open after {found.seeds} seeds: {open_pairs(found)}")
            ended = False
            for run in [run for run in waiting if ready(run, workdir)][: launcher.jobs - len(running)]:
                waiting.remove(run)
                running.append(start(run, workdir, launcher, runner, lock))
                view.started(running[-1])
            if not running:
                break
            view.update(running)
            time.sleep(POLL_SECONDS)
            for job in [job for job in running if job.process.poll() is not None]:
                running.remove(job)
                ended = True
                error = failure(job)
                if error:
                    failures[job.run.name] = error
                    write_text(job.directory / "failed.txt", error + "\n")
                view.ended(job, error)
    for run in waiting:  # what they stand on has failed
        names = dict.fromkeys(name for name, stage in awaited(run, workdir) if not stage.finished)
        failures[run.name] = f"it waits for {', '.join(names)}"
        write_text(workdir / run.name / "failed.txt", failures[run.name] + "\n")
    return failures, unbegun


def ready(run: RunSpec, workdir: Path) -> bool:
    """Whether what a run shares with others is finished."""
    return all(stage.finished for _, stage in awaited(run, workdir))


def start(run: RunSpec, workdir: Path, launcher: Launcher, runner: str, lock: int) -> Job:
    """Starts the worker of a run."""
    directory = workdir / run.name
    job = write_job(run, directory, runner)
    (directory / "failed.txt").unlink(missing_ok=True)
    log = directory / "log.txt"
    log_start = log.stat().st_size if log.exists() else 0
    command = [sys.executable, "-u", "-m", "bertlab.studies.worker", "--run", str(job.resolve())]
    return Job(run, directory, launcher.start(command, directory, lock), log_start, time.monotonic())


def stop(running: Sequence[Job]) -> None:
    """Asks the workers to save and end and waits; a second interrupt kills them."""
    try:
        for job in running:
            job.process.stop()
        for job in running:
            job.process.wait()
    except KeyboardInterrupt:
        for job in running:
            job.process.kill()
        for job in running:
            job.process.wait()


def failure(job: Job) -> str | None:
    """Why an ended run failed, in one line; None when it finished."""
    status = job.process.poll()
    if status == 0 and is_finished(job.run, job.directory):
        return None
    log = job.directory / "log.txt"
    text = log.read_bytes()[job.log_start :].decode("utf-8", "replace") if log.exists() else ""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    if status < 0:
        return f"killed by {signal.Signals(-status).name}" + (" (out of memory?)" if status == -signal.SIGKILL else "")
    if status == 0:
        return "stopped before it was finished"
    return (errors or lines or [f"exit status {status}"])[-1].removeprefix("error: ")


def load_checked(spec: str, overrides: Mapping[str, Any]) -> Any:
    """A config that is known to be possible, so that no run of a sweep fails for what could be seen before it began."""
    from bertlab.config import base_config, load_config
    from bertlab.train.build import begun_from, check_config

    given = existing_run(spec)
    if given or spec.startswith("average:"):
        if given and not (given / "config.json").is_file():
            raise UserError(f"{spec}: there is no config.json; give the --workdir of a `bertlab train` or `bertlab import`")
        if overrides:
            raise UserError(f"{spec} is not trained any more, so {next(iter(overrides))} has no effect; write finetune.KEY")
        config = base_config()
        config.data.corpus, config.train.steps = "", 0  # nothing is read or trained but the tasks
        return config
    config = begun_from(load_config(spec, overrides))
    check_config(config)
    return config


def prepare_text_and_tasks(data: Any, runs: Sequence[RunSpec]) -> None:
    """Prepares a corpus; checks the fine-tunings of runs that are there already, and collects the others' examples.

    Raises:
        UserError: a task or its files, or a setting of a fine-tuning, are wrong.
    """
    from bertlab.data.prepare import prepare
    from bertlab.transfer.finetune import pretraining_options, resolved
    from bertlab.transfer.tasks import load_tasks

    if data.corpus:
        prepare(data)
    checked = set()
    for run, task in ((spec, task) for spec in runs for task in spec.downstream if not spec.averages):
        given = existing_run(run.config)
        if bool(data.corpus) == bool(given):
            continue
        arguments = finetuning(run, task)
        arguments["overrides"].pop("seed", None)
        if (key := json.dumps([str(given), arguments], sort_keys=True)) in checked:
            continue
        checked.add(key)
        if given:
            resolved(task_config(run, task))
        else:
            settings = run.downstream[task]
            options = {key.removeprefix("task_data."): value for key, value in settings.items() if "task_data." in key}
            load_tasks(arguments["task"], {**options, "pretraining": pretraining_options(data)})


def prepare_data(configs: Sequence[Any], prepare: Callable[[Any], Any], console: Console) -> None:
    """Prepares each distinct data config once, here, so that parallel runs do not all begin with it."""
    distinct = {json.dumps(config.data.to_dict(), sort_keys=True, default=str): config.data for config in configs}
    for data in distinct.values():
        print_line(console, f"preparing corpus {data.corpus}" if data.corpus else "reading the tasks")
        prepare(data)


def describe(study: Study, runs: Sequence[RunSpec]) -> dict[str, Any]:
    """The content of study.json, as plain JSON data."""
    axes = {axis: list(dict.fromkeys(run.labels[axis] for run in runs if run.labels[axis])) for axis in study.axis_names}
    description = {
        "name": study.name,
        "title": study.title,
        "question": study.question,
        "command": shlex.join([Path(sys.argv[0]).name.replace("cli.py", "bertlab"), *sys.argv[1:]]),
        "axes": axes,
        "downstream": list(study.tasks),
        "select": list(study.select),
        "published": dataclasses.asdict(study.published) if study.published else None,
        "runs": [dataclasses.asdict(run) for run in runs],
    }
    return json.loads(json.dumps(description))


def check_same_study(workdir: Path, description: Mapping[str, Any]) -> None:
    """Refuses a workdir whose study.json is not this study or a smaller version of it.

    Raises:
        UserError: Name or axes differ, or the config of a run that began to train, or such a run or a downstream task
            is gone.
    """
    path = workdir / "study.json"
    if not path.exists():
        return
    old = json.loads(path.read_text(encoding="utf-8"))
    new_runs = {run["name"]: run for run in description["runs"]}
    differences = []
    if old["name"] != description["name"]:
        differences.append(f'its name is "{old["name"]}", not "{description["name"]}"')
    elif list(old["axes"]) != list(description["axes"]):
        differences.append(f"its axes are {', '.join(old['axes'])}, not {', '.join(description['axes'])}")
    else:
        for run in old["runs"]:
            if not any((workdir / run["name"] / file).exists() for file in ("config.json", "result.json")):
                continue  # it never began to train, so a study mended since then loses nothing
            new = new_runs.get(run["name"])
            if new is None:
                differences.append(f"its run {run['name']} is not in this study")
                continue
            for before, now in zip(*(compared_settings(run, new, of) for of in (run, new)), strict=True):
                if before != now:
                    differences.append(f"in its run {run['name']} {before[0]} is {before[1]!r}, not {now[1]!r}")
            if run["config"] != new["config"]:
                differences.append(f'its run {run["name"]} has the config "{run["config"]}", not "{new["config"]}"')
            lost = [task for task in run["downstream"] if task not in new["downstream"]]
            if lost:
                differences.append(f"its run {run['name']} has the downstream tasks {', '.join(lost)}")
    if differences:
        more = f" (and {len(differences) - 1} more differences)" if len(differences) > 1 else ""
        raise UserError(f"{path} holds another study: {differences[0]}{more}; give another --workdir")


def compared_settings(run: Mapping[str, Any], other: Mapping[str, Any], of: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """(name, value) of whatever either of two descriptions of a run sets, as `of` has it; tasks only where both have them."""
    tasks = [task for task in run["downstream"] if task in other["downstream"]]
    groups = [("", "overrides"), ("adapt.", "adapt"), ("shared ", "shares")]
    keys = [(prefix, kind, key) for prefix, kind in groups for key in sorted(run.get(kind, {}).keys() | other[kind].keys())]
    found = [(prefix + key, of.get(kind, {}).get(key, "unset")) for prefix, kind, key in keys]
    for task in tasks:
        for key in sorted(run["downstream"][task].keys() | other["downstream"][task].keys()):
            found.append((f"finetune.{key} of {task}", of["downstream"][task].get(key, "unset")))
    return found


def print_plan(
    study: Study, runs: Sequence[RunSpec], configs: Mapping[str, Any], workdir: Path, jobs: int, console: Console
) -> None:
    """Prints what a sweep would run, and what that will cost (`bertlab.studies.estimate`)."""
    from bertlab.studies.estimate import Cost, flops_per_second, pretraining_cost, transfer_cost
    from bertlab.studies.text import count_text, seconds_text

    rate, source = flops_per_second([workdir / run.name for run in runs])
    known: dict[str, Cost] = {}
    total, to_do = Cost(), 0
    trained = [run.overrides.items() for run in runs if run.overrides]
    common = [(key, value) for key, value in (trained[0] if trained else ()) if all((key, value) in of for of in trained)]
    if common:
        print_line(console, "in all runs: " + " ".join(f"{key}={value}" for key, value in common))
    for run in runs:
        config = configs[run.name]
        finished, shared = is_finished(run, workdir / run.name), run.shares.get("pretrain")
        key = json.dumps([run.config, {k: v for k, v in run.overrides.items() if k != "seed"}], sort_keys=True)
        if key not in known:
            known[key] = pretraining_cost(config)
        cost = (Cost() if shared else known[key]) + transfer_cost(run, config)
        if not finished:
            total, to_do = total + cost, to_do + 1
        steps = f"pretrained by {shared}" if shared else f"{config.train.steps:,} steps"
        cost_text = f"{count_text(cost.tokens)} tokens, {count_text(cost.flops)} FLOPs, {seconds_text(cost.flops / rate)}"
        print_line(console, f"{run.name}  ({'finished' if finished else 'to do'})  {steps}, {cost_text}", style="bold")
        own = [f"{key}={value}" for key, value in run.overrides.items() if (key, value) not in common]
        print_line(console, f"    {run.config}  {' '.join(own)}".rstrip())
        if run.averages:
            print_line(console, f"    the average of {', '.join(run.averages)}")
        elif run.downstream:
            before = "adapted to the text of and " if run.adapt else ""
            print_line(console, f"    then {before}fine-tuned on {', '.join(run.downstream)}")
    print_line(
        console,
        f"{study.name}: {len(runs)} runs, {to_do} to do: {count_text(total.tokens)} tokens (rows counted as full),"
        f" {count_text(total.flops)} FLOPs, {seconds_text(total.flops / rate / jobs)} with {jobs} at a time, {source};"
        f" in {workdir}; nothing was started (--dry_run)",
    )


@contextlib.contextmanager
def lock_directory(workdir: Path) -> Iterator[int]:
    """Holds the study's directory for this sweep and its workers; yields the lock's file descriptor."""
    with open(workdir / "sweep.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"{workdir}: another sweep is at work here, or runs of a killed one are still saving; "
                "wait until it has ended or give another --workdir"
            ) from error
        yield file.fileno()


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Makes SIGTERM raise KeyboardInterrupt, as Ctrl-C does (only the main thread can set that)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_):
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
