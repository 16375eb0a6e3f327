"""Runs a study: each unfinished run in a worker process, some at a time, through one of the launchers.

A run that shares its pretraining with another one waits for that. Everything that is known of a run lies in its directory, so
that the same command goes on where a killed one stopped.
"""

import contextlib
import dataclasses
import functools
import json
import os
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from bertlab.errors import UserError
from bertlab.files import is_running
from bertlab.run import Run, StudyDirectory
from bertlab.studies.launchers import Launcher, Local
from bertlab.studies.measurements import trained_objectives
from bertlab.studies.ordering import check_until_decided, fix_rule, look, open_pairs, seed_by_seed, write_settled
from bertlab.studies.records import check_same_study, clear_changed, with_owners
from bertlab.studies.statistics import Settlement
from bertlab.studies.study import RunSpec, Study
from bertlab.studies.views import Job, LineView, TerminalView, print_line
from bertlab.studies.worker import RUNNER, awaited, is_finished, lock, write_job

POLL_SECONDS = 0.1  # between two looks for workers that have ended
VIEW_SECONDS = 1.0  # between two looks at the files of those that have not
ORPHAN_SECONDS = 20.0  # that workers of a killed sweep are given to save and end


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
    label, another downstream task) may use its old workdir again, in any order: what is finished stays. So may a smaller
    one: runs that it does not ask for any more stay on disk, and are not in study.json or in the report until they are asked
    for again. A stage that failed before it saved anything may be given other settings (`bertlab.studies.records`).

    Args:
        study: The study.
        workdir: The study's directory; study.json is written there.
        launcher: Starts the runs, `launcher.jobs` at a time; default one at a time on this machine.
        dry_run: Only print the runs with their overrides and what they will cost.
        until_decided: A task, or "all": begin no further seed once the order of the variants is settled by it
            (`bertlab.studies.ordering`).
        runner: "module:function" called in each worker process with a RunSpec and its directory.
        load_config: Turns a config spec and overrides into a config; default `load_checked`.
        prepare: Called once with each distinct `config.data`; default `bertlab.data.prepare.prepare`.
        console: Where to print; default the terminal.

    Returns:
        The exit status: 0 when every run is finished, 1 when a run failed, 130 when interrupted (SIGINT, SIGTERM).

    Raises:
        UserError: The study or a config is wrong, the workdir holds another study, or another sweep is at work there.
            Raised before any run starts.
    """
    console = console or Console()
    workdir = Path(workdir)
    launcher = launcher or Local(1)
    in_order = with_owners(study.runs(), workdir)
    runs = in_order
    if until_decided:
        check_until_decided(study, until_decided)
        runs = seed_by_seed(runs, study)
    description = describe(study, in_order)
    check_same_study(workdir, description, runs)
    if runner == RUNNER:
        print_line(console, f"checking {len(runs)} runs and reading their tasks")
    configs, transfers = check_configs(runs, runner, load_config)
    description["trained"] = {name: trained_objectives(config) for name, config in configs.items()}
    if dry_run:
        print_plan(study, runs, configs, transfers, workdir, launcher, console)
        return 0

    workdir.mkdir(parents=True, exist_ok=True)
    with lock_directory(workdir, console) as descriptor, sigterm_interrupts():
        left = [name for name in begun_before(workdir) if name not in [run.name for run in runs]]
        if left:
            print_line(console, f"not asked for, so left as they are and out of the report: {', '.join(left)}")
        clear_changed(workdir, runs)
        if until_decided:
            fix_rule(workdir, study, until_decided)
        StudyDirectory(workdir).study.write(description)
        pending = [run for run in runs if not is_finished(run, workdir / run.name)]
        print_line(
            console,
            f"{study.name}: {len(runs)} runs, {len(runs) - len(pending)} finished before, {len(pending)} to do, in {workdir}",
        )
        running: list[Job] = []
        try:
            if pending:
                prepare_data([configs[run.name] for run in pending], prepare or prepare_text, console)
            settled = functools.partial(look, workdir, study, until_decided) if until_decided else None
            StudyDirectory(workdir).settled.delete()
            failures, unbegun = run_all(pending, running, workdir, launcher, runner, descriptor, console, len(runs), settled)
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
        log = Run(workdir / name).log
        print_line(console, f"failed: {name}: {error}" + (f" (log: {log})" if log.exists() else ""), style="bold red")
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
    total: int,
    settled: Callable[[Mapping[str, str]], Settlement | None] | None = None,
) -> tuple[dict[str, str], int]:
    """Executes the pending runs, `launcher.jobs` at a time.

    `running` is the caller's list, so that it can stop the processes when an exception leaves this function. `total` counts the
    runs that were finished before, too. `settled` is asked after each run whether the order is without those that wait
    (`outlook`), so that no more need begin.

    Returns:
        The error line of each run that failed, and how many were not begun as the order was settled without them.
    """
    waiting, failures, unbegun, ended, seen, looked = list(pending), {}, 0, True, 0.0, 0
    view = (TerminalView if console.is_terminal else LineView)(console, total, total - len(pending))
    with view:
        while True:
            if ended:  # only then can a run have become ready, or the order settled
                if waiting and settled and (found := settled(outlook(waiting, failures, workdir))):
                    if found.settled:
                        print_line(console, f"{write_settled(workdir, found)}: {len(waiting)} runs are not begun.")
                        unbegun = len(waiting)
                        waiting.clear()
                    elif found.seeds > looked:
                        looked = found.seeds
                        print_line(console, f"open after {found.seeds} seeds: {open_pairs(found)}")
                for run in [run for run in waiting if ready(run, workdir)][: launcher.jobs - len(running)]:
                    waiting.remove(run)
                    running.append(start(run, workdir, launcher, runner, lock))
                    view.started(running[-1])
                if not running:
                    break
            if ended or time.monotonic() - seen >= VIEW_SECONDS:
                view.update(running, len(waiting))
                seen = time.monotonic()
            time.sleep(POLL_SECONDS)
            ended = False
            for job in [job for job in running if job.process.poll() is not None]:
                running.remove(job)
                ended = True
                error = failure(job)
                if error:
                    failures[job.run.name] = error
                    Run(job.directory).failed.write(error + "\n")
                view.ended(job, error)
    for run in waiting:  # what they stand on has failed
        names = dict.fromkeys(name for name, stage in awaited(run, workdir) if not stage.finished)
        failures[run.name] = f"it waits for {', '.join(names)}"
        Run(workdir / run.name).failed.delete()  # of an earlier sweep: it was not begun, so has not failed
    return failures, unbegun


def outlook(waiting: Sequence[RunSpec], failures: Mapping[str, str], workdir: Path) -> dict[str, str]:
    """Status of each run that waits: "failed" where what it stands on has failed in this sweep, so that it cannot begin."""
    lost = set(failures)
    status = {}
    for run in waiting:  # what a run stands on comes before it
        status[run.name] = "unfinished"
        if any(name in lost and not stage.finished for name, stage in awaited(run, workdir)):
            lost.add(run.name)
            status[run.name] = "failed"
    return status


def ready(run: RunSpec, workdir: Path) -> bool:
    """Whether what a run shares with others is finished."""
    return all(stage.finished for _, stage in awaited(run, workdir))


def start(run: RunSpec, workdir: Path, launcher: Launcher, runner: str, lock: int) -> Job:
    """Starts the worker of a run."""
    directory = workdir / run.name
    job = write_job(run, directory, runner, launcher.jobs)
    Run(directory).failed.delete()
    log = Run(directory).log
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
    log = Run(job.directory).log
    text = log.read_bytes()[job.log_start :].decode("utf-8", "replace") if log.exists() else ""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    if status < 0:
        return f"killed by {signal.Signals(-status).name}" + (" (out of memory?)" if status == -signal.SIGKILL else "")
    if status == 0:
        return "stopped before it was finished"
    return (errors or lines or [f"exit status {status}"])[-1].removeprefix("error: ")


def check_configs(
    runs: Sequence[RunSpec], runner: str, load_config: Callable[[str, dict], Any] | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Each run's config, and those of its adaptations and fine-tunings where the runner is the one that goes by them.

    Raises:
        UserError: names the run, and what is wrong.
    """
    from bertlab.data.prepare import check_corpus
    from bertlab.studies.checks import blaming, check_transfers, load_checked

    configs, texts = {}, set()
    for run in runs:
        with blaming(run):
            configs[run.name] = config = (load_config or load_checked)(run.config, dict(run.overrides))
            if load_config is None and config.train.steps and (text := text_of(config.data)) not in texts:
                check_corpus(config.data)
                texts.add(text)
    return configs, check_transfers(runs, configs) if runner == RUNNER else {}


def prepare_text(data: Any) -> None:
    """Prepares a corpus, if there is one."""
    from bertlab.data.prepare import prepare

    if data.corpus:
        prepare(data)


def text_of(data: Any) -> str:
    """What of `config.data` is the same for runs that read the same text: all but the order in which they read it."""
    return json.dumps({key: value for key, value in data.to_dict().items() if key != "seed"}, sort_keys=True, default=str)


def prepare_data(configs: Sequence[Any], prepare: Callable[[Any], Any], console: Console) -> None:
    """Prepares each distinct text once, here, so that parallel runs do not all begin with it."""
    distinct = {}
    for config in configs:
        distinct.setdefault(text_of(config.data), config.data)
    for data in distinct.values():
        if data.corpus:
            print_line(console, f"preparing corpus {data.corpus}")
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


def begun_before(workdir: Path) -> list[str]:
    """Names of the runs of the study that the workdir held, of those that have a directory."""
    return [run.directory.name for run in StudyDirectory(workdir).runs() if run.directory.is_dir()]


def print_plan(
    study: Study,
    runs: Sequence[RunSpec],
    configs: Mapping[str, Any],
    transfers: Mapping[str, Any],
    workdir: Path,
    launcher: Launcher,
    console: Console,
) -> None:
    """Prints what a sweep would run, and what that will cost (`bertlab.studies.estimate`)."""
    from bertlab.studies.estimate import Cost, flops_per_second, pretraining_cost, schedule, transfer_cost
    from bertlab.studies.text import count_text, seconds_text

    waiting = [run for run in runs if not is_finished(run, workdir / run.name)]
    at_a_time = max(1, min(launcher.jobs, len(waiting)))
    rate, source = flops_per_second([workdir / run.name for run in runs], launcher, at_a_time)
    known: dict[str, Cost] = {}
    total, seconds = Cost(), {}
    trained = [run.overrides.items() for run in runs if run.overrides]
    common = [(key, value) for key, value in (trained[0] if trained else ()) if all((key, value) in of for of in trained)]
    if common:
        print_line(console, "in all runs: " + " ".join(f"{key}={value}" for key, value in common))
    for run in runs:
        config, shared = configs[run.name], run.shares.get("pretrain")
        unseeded = {name: value for name, value in run.overrides.items() if name not in ("seed", "data.seed")}
        key = json.dumps([run.config, unseeded], sort_keys=True)
        if key not in known:
            known[key] = pretraining_cost(config)
        cost = (Cost() if shared else known[key]) + transfer_cost(run, transfers[run.name])
        if run in waiting:
            total += cost
            seconds[run.name] = cost.flops / rate
        steps = f"pretrained by {shared}" if shared else f"{config.train.steps:,} steps"
        cost_text = f"{count_text(cost.tokens)} tokens, {count_text(cost.flops)} FLOPs, {seconds_text(cost.flops / rate)}"
        print_line(console, f"{run.name}  ({'to do' if run in waiting else 'finished'})  {steps}, {cost_text}", style="bold")
        own = [f"{key}={value}" for key, value in run.overrides.items() if (key, value) not in common]
        print_line(console, f"    {run.config}  {' '.join(own)}".rstrip())
        if run.averages:
            print_line(console, f"    the average of {', '.join(run.averages)}")
        elif run.downstream:
            before = "adapted to the text of and " if run.adapt else ""
            print_line(console, f"    then {before}fine-tuned on {', '.join(run.downstream)}")
    waits = {run.name: {name for name, _ in awaited(run, workdir)} for run in waiting}
    print_line(
        console,
        f"{study.name}: {len(runs)} runs, {len(waiting)} to do: {count_text(total.tokens)} tokens (rows counted as full),"
        f" {count_text(total.flops)} FLOPs, {seconds_text(schedule(seconds, waits, at_a_time))} of training with {at_a_time}"
        f" at a time, {source}; beside it preparing, compiling and evaluating; in {workdir}; nothing was started (--dry_run)",
    )


@contextlib.contextmanager
def lock_directory(workdir: Path, console: Console) -> Iterator[int]:
    """Holds the study's directory for this sweep and its workers; yields the lock's file descriptor.

    Raises:
        UserError: another sweep has it; or workers that a killed one has left behind do not end; or it cannot be locked.
    """
    with open(StudyDirectory(workdir).lock, "a+", encoding="utf-8") as file:
        deadline, told = time.monotonic() + ORPHAN_SECONDS, False
        while True:
            try:
                lock(file)
                break
            except BlockingIOError:
                file.seek(0)
                if is_at_work(file.read()) or time.monotonic() > deadline:
                    raise UserError(
                        f"{workdir}: another sweep is at work here, or runs of a killed one are still saving; "
                        "wait until it has ended or give another --workdir"
                    ) from None
            if not told:
                print_line(console, f"waiting for the runs of a killed sweep to save and end, {ORPHAN_SECONDS:.0f} s at most")
                told = True
            time.sleep(POLL_SECONDS)
        file.truncate(0)
        file.write(f"{os.getpid()} {socket.gethostname()}")
        file.flush()
        yield file.fileno()


def is_at_work(holder: str) -> bool:
    """Whether the sweep that noted "pid host" in its lock is; False where that is not known."""
    number, _, host = holder.partition(" ")
    return number.isdigit() and host == socket.gethostname() and is_running(int(number))


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
