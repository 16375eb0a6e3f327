"""Runs a study: each unfinished run in a process of its own, some at a time, all shown in one terminal view.

The worker that executes one run is this same module: `python -m bertlab.studies.sweep --run RUN/job.json`.
"""

import argparse
import contextlib
import fcntl
import functools
import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bertlab.errors import UserError
from bertlab.files import read_json, write_json
from bertlab.studies.study import COSTS, RunSpec, Study

RUNNER = "bertlab.studies.sweep:run_one"
POLL_SECONDS = 0.1


def run_one(config: str, overrides: Mapping[str, Any], workdir: Path, downstream: Mapping[str, Mapping[str, Any]]) -> None:
    """Pretrains one run and fine-tunes it on each downstream task; parts that are finished are left alone.

    Args:
        config: Config file with its arguments, or "run:DIRECTORY".
        overrides: Dotted config name -> value; of every task's config, where a run is given.
        workdir: The run's directory.
        downstream: Task directory -> settings (`Study.downstream`); each is fine-tuned in `workdir/finetune/NAME`.
    """
    from bertlab.config import load_config
    from bertlab.transfer.finetune import finetune
    from bertlab.transfer.pretrain import pretrain

    given = existing_run(config)
    for phase, directory in phases(workdir, downstream):
        if (directory / "result.json").exists() and (directory != workdir or given):
            continue
        if directory != workdir:
            run, more = (given, overrides) if given else (workdir, {})
            finetune(run, workdir=directory, **finetuning(phase, downstream[phase], more))
        elif given:
            stand_on(given, workdir, downstream, overrides)
        else:
            pretrain(load_config(config, dict(overrides)), workdir)
        if not (directory / "result.json").exists():
            return  # stopped by SIGTERM after saving: the next sweep goes on from here


def existing_run(config: str) -> Path | None:
    """The directory that "run:DIRECTORY" names; None for a config file."""
    return Path(config.removeprefix("run:")).expanduser() if config.startswith("run:") else None


def stand_on(given: Path, workdir: Path, downstream: Mapping[str, Mapping], overrides: Mapping[str, Any]) -> None:
    """Notes in a run of a study what its model had cost, which it does not train itself; nothing, if all begins at random."""
    pretraining = read_json(given / "result.json") if (given / "result.json").exists() else {}
    costs = {key: pretraining[key] for key in COSTS if key in pretraining}
    at_random = [task_config(given, name, settings, overrides).transfer.random for name, settings in downstream.items()]
    if at_random and all(at_random):
        costs |= {key: 0 for key in COSTS if key != "parameters"}
    write_json(workdir / "measured.json", {})
    write_json(workdir / "result.json", {"run": str(given), **costs, "metrics": {}})


def finetuning(name: str, settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`finetune`'s arguments for a study's task: `task`, `recipe` and `overrides`, the run's own (`more`) last."""
    overrides = {**settings, **more}
    return {"task": overrides.pop("task", name), "recipe": overrides.pop("recipe", "small"), "overrides": overrides}


def task_config(given: Path, name: str, settings: Mapping[str, Any], more: Mapping[str, Any]) -> Any:
    """The config with which a study fine-tunes a run that is there already on a task; arguments as `finetuning`'s."""
    from bertlab.transfer.finetune import finetune_config, overridden

    arguments = finetuning(name, settings, more)
    return overridden(finetune_config(given, arguments["task"], arguments["recipe"]), arguments["overrides"])


def phases(workdir: Path, downstream: Iterable[str]) -> list[tuple[str, Path]]:
    """What a run consists of, in order: ("pretrain", RUN), then (TASK, RUN/finetune/TASK) for each task."""
    return [("pretrain", workdir)] + [(task, workdir / "finetune" / task) for task in downstream]


def is_finished(workdir: Path, downstream: Iterable[str]) -> bool:
    """Whether pretraining and every downstream task have written their result.json, and pretraining was measured."""
    return (workdir / "measured.json").exists() and all(
        (directory / "result.json").exists() for _, directory in phases(workdir, downstream)
    )


def sweep(
    study: Study,
    workdir: str | os.PathLike,
    jobs: int = 1,
    dry_run: bool = False,
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
        jobs: Runs at a time. With more than one, each process is pinned to its own share of the CPU cores.
        dry_run: Only print the runs with their overrides, steps and tokens.
        runner: "module:function" called in each worker process with config, overrides, workdir, downstream.
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
    if load_config is None:
        load_config = load_checked
    cores = share_cores(jobs)
    runs = study.runs()
    description = describe(study, runs)
    check_same_study(workdir, description)
    configs = {}
    for run in runs:
        try:
            configs[run.name] = load_config(run.config, dict(run.overrides))
        except UserError as error:
            raise UserError(f"run {run.name}: {error}") from None
    if dry_run:
        print_plan(study, runs, configs, workdir, console)
        return 0

    workdir.mkdir(parents=True, exist_ok=True)
    with lock_directory(workdir) as lock, sigterm_interrupts():
        write_json(workdir / "study.json", description)
        pending = [run for run in runs if not is_finished(workdir / run.name, run.downstream)]
        print_line(
            console,
            f"{study.name}: {len(runs)} runs, {len(runs) - len(pending)} finished before, {len(pending)} to do, in {workdir}",
        )
        running: list[Job] = []
        try:
            if pending:
                prepare = prepare or functools.partial(prepare_text_and_tasks, runs=pending)
                prepare_data([configs[run.name] for run in pending], prepare, console)
            failures = run_all(pending, running, configs, workdir, cores, runner, lock, console)
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
    for name, error in failures.items():
        print_line(console, f"failed: {name}: {error} (log: {workdir / name / 'log.txt'})", style="bold red")
    if failures:
        print_line(console, f"{len(failures)} of {len(runs)} runs failed; run the same command again to retry them")
        return 1
    print_line(console, f"all {len(runs)} runs are finished; see them with: bertlab report {workdir}")
    return 0


@dataclass
class Job:
    """A run in progress."""

    run: RunSpec
    directory: Path
    process: subprocess.Popen
    cores: list[int]
    log_start: int
    started: float


def run_all(
    pending: Sequence[RunSpec],
    running: list[Job],
    configs: Mapping[str, Any],
    workdir: Path,
    cores: list[list[int]],
    runner: str,
    lock: int,
    console: Console,
) -> dict[str, str]:
    """Executes the pending runs, `len(cores)` at a time; returns the error line of each run that failed.

    `running` is the caller's list, so that it can stop the processes when an exception leaves this function.
    """
    waiting, free, failures = deque(pending), deque(cores), {}
    view = TerminalView(console, configs, len(pending)) if console.is_terminal else LineView(console, len(pending))
    with view:
        while waiting or running:
            while waiting and free:
                job = start(waiting.popleft(), workdir, free.popleft(), runner, lock)
                running.append(job)
                view.started(job)
            for job in [job for job in running if job.process.poll() is not None]:
                running.remove(job)
                free.append(job.cores)
                error = failure(job)
                if error:
                    failures[job.run.name] = error
                    (job.directory / "failed.txt").write_text(error + "\n", encoding="utf-8")
                view.ended(job, error)
            view.update(running)
            time.sleep(POLL_SECONDS)
    return failures


def start(run: RunSpec, workdir: Path, cores: list[int], runner: str, lock: int) -> Job:
    """Starts the worker process of a run."""
    directory = workdir / run.name
    directory.mkdir(exist_ok=True)
    (directory / "failed.txt").unlink(missing_ok=True)
    write_json(
        directory / "job.json",
        {"runner": runner, "config": run.config, "overrides": dict(run.overrides), "downstream": run.downstream},
    )
    command = [
        sys.executable,
        "-u",
        "-m",
        "bertlab.studies.sweep",
        "--run",
        str(directory / "job.json"),
        "--stop_with_parent",
        "--cores",
        ",".join(map(str, cores)),
    ]
    with open(directory / "log.txt", "ab") as log:
        log_start = log.tell()
        # A session of its own keeps the terminal's Ctrl-C from the worker, which is to save on our SIGTERM. It inherits
        # the lock, so that a new sweep cannot start beside a worker whose parent was killed.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, pass_fds=(lock,)
        )
    return Job(run, directory, process, cores, log_start, time.monotonic())


def stop(running: Sequence[Job]) -> None:
    """Asks the workers to save and end (SIGTERM) and waits; a second interrupt kills them."""
    try:
        for job in running:
            job.process.terminate()
        for job in running:
            job.process.wait()
    except KeyboardInterrupt:
        for job in running:
            if job.process.poll() is None:
                os.killpg(job.process.pid, signal.SIGKILL)
                job.process.wait()
    for job in running:
        job.process.stdin.close()


def failure(job: Job) -> str | None:
    """Why an ended run failed, in one line; None when it finished."""
    job.process.stdin.close()
    status = job.process.returncode
    if status == 0 and is_finished(job.directory, job.run.downstream):
        return None
    with open(job.directory / "log.txt", "rb") as log:
        log.seek(job.log_start)
        lines = [line for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    if status < 0:
        return f"killed by {signal.Signals(-status).name}" + (" (out of memory?)" if status == -signal.SIGKILL else "")
    if status == 0:
        return "stopped before it was finished"
    return (errors or lines or [f"exit status {status}"])[-1].removeprefix("error: ")


class LineView:
    """One plain line when a run starts and when it ends, for logs and pipes."""

    def __init__(self, console: Console, total: int):
        self.console, self.total, self.count = console, total, 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def started(self, job: Job) -> None:
        print_line(self.console, f"{job.run.name}: started")

    def ended(self, job: Job, error: str | None) -> None:
        self.count += 1
        seconds = time.monotonic() - job.started
        outcome = f"failed: {error}" if error else f"finished in {seconds:.0f} s"
        print_line(self.console, f"[{self.count}/{self.total}] {job.run.name}: {outcome}")

    def update(self, running: Sequence[Job]) -> None:
        pass


class TerminalView(LineView):
    """A bar for each running run and one for the sweep, with a line left behind for each run that ended."""

    def __init__(self, console: Console, configs: Mapping[str, Any], total: int):
        super().__init__(console, total)
        self.configs = configs
        self.bars = Progress(
            TextColumn("{task.description}"),
            TextColumn("[dim]{task.fields[phase]}"),
            BarColumn(),
            TextColumn("{task.fields[count]}", justify="right"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self.overall = self.bars.add_task("[bold]all runs", total=total, phase="", count="")
        self.tasks = {}

    def __enter__(self):
        self.bars.start()
        return self

    def __exit__(self, *_):
        self.bars.stop()

    def started(self, job: Job) -> None:
        self.tasks[job.run.name] = self.bars.add_task(escape(job.run.name), total=None, phase="starting", count="")

    def ended(self, job: Job, error: str | None) -> None:
        self.bars.remove_task(self.tasks.pop(job.run.name))
        super().ended(job, error)

    def update(self, running: Sequence[Job]) -> None:
        done = self.count
        for job in running:
            phase, index, step, total = progress(job, self.configs[job.run.name].train.steps)
            done += (index + (step / total if total else 0)) / (1 + len(job.run.downstream))
            self.bars.update(
                self.tasks[job.run.name], phase=phase, completed=step, total=total, count=f"{step:,}/{total:,}" if total else ""
            )
        self.bars.update(self.overall, completed=done, count=f"{self.count}/{self.total}")


def progress(job: Job, pretraining_steps: int) -> tuple[str, int, int, int | None]:
    """(phase, its index, step, total steps or None while unknown) of a running run, from its files."""
    parts = phases(job.directory, job.run.downstream)
    index = next((i for i, (_, d) in enumerate(parts) if not (d / "result.json").exists()), len(parts) - 1)
    phase, directory = parts[index]
    total = pretraining_steps
    if index:
        config = directory / "config.json"
        total = json.loads(config.read_text(encoding="utf-8"))["train"]["steps"] if config.exists() else None
    return phase, index, last_step(directory / "metrics.jsonl"), total


def last_step(path: Path) -> int:
    """The step of the last whole line of a metrics.jsonl, which may be growing; 0 without one."""
    if not path.exists():
        return 0
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 65536))
        lines = file.read().split(b"\n")
    for line in reversed(lines[:-1]):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            return int(json.loads(line)["step"])
    return 0


def load_checked(spec: str, overrides: Mapping[str, Any]) -> Any:
    """A config that is known to be possible, so that no run of a sweep fails for what could be seen before it began."""
    from bertlab.config import base_config, load_config
    from bertlab.train.build import begun_from, check_config

    if given := existing_run(spec):
        if not (given / "config.json").is_file():
            raise UserError(f"{spec}: there is no config.json; give the --workdir of a `bertlab train` or `bertlab import`")
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
    for run, name in [(spec, name) for spec in runs for name in spec.downstream]:
        given = existing_run(run.config)
        if bool(data.corpus) == bool(given):
            continue
        arguments = finetuning(name, run.downstream[name], run.overrides if given else {})
        arguments["overrides"].pop("seed", None)
        if (key := json.dumps([str(given), arguments], sort_keys=True)) in checked:
            continue
        checked.add(key)
        if given:
            resolved(task_config(given, name, run.downstream[name], run.overrides))
        else:
            options = {key.removeprefix("task_data."): v for key, v in run.downstream[name].items() if "task_data." in key}
            load_tasks(arguments["task"], {**options, "pretraining": pretraining_options(data)})


def prepare_data(configs: Sequence[Any], prepare: Callable[[Any], Any], console: Console) -> None:
    """Prepares each distinct data config once, here, so that parallel runs do not all begin with it."""
    distinct = {json.dumps(config.data.to_dict(), sort_keys=True, default=str): config.data for config in configs}
    for data in distinct.values():
        print_line(console, f"preparing corpus {data.corpus}" if data.corpus else "reading the tasks")
        prepare(data)


def share_cores(jobs: int) -> list[list[int]]:
    """Splits this process's CPU cores into `jobs` disjoint shares; empty shares (too few cores) mean "do not pin"."""
    if jobs < 1:
        raise UserError(f"--jobs={jobs}: give at least 1")
    if jobs == 1 or not hasattr(os, "sched_getaffinity"):
        return [[] for _ in range(jobs)]
    cores = sorted(os.sched_getaffinity(0))
    if jobs > len(cores):
        return [[] for _ in range(jobs)]
    return [cores[i * len(cores) // jobs : (i + 1) * len(cores) // jobs] for i in range(jobs)]


def describe(study: Study, runs: Sequence[RunSpec]) -> dict[str, Any]:
    """The content of study.json, as plain JSON data."""
    axes = {axis: list(dict.fromkeys(run.labels[axis] for run in runs)) for axis in study.axes}
    description = {
        "name": study.name,
        "title": study.title,
        "question": study.question,
        "command": shlex.join([Path(sys.argv[0]).name.replace("cli.py", "bertlab"), *sys.argv[1:]]),
        "axes": axes,
        "downstream": list(study.tasks),
        "select": list(study.select),
        "runs": [
            {
                "name": run.name,
                "labels": dict(run.labels),
                "config": run.config,
                "overrides": run.overrides,
                "downstream": run.downstream,
            }
            for run in runs
        ],
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
            for key in sorted(run["overrides"].keys() | new["overrides"].keys()):
                before, now = run["overrides"].get(key, "unset"), new["overrides"].get(key, "unset")
                if before != now:
                    differences.append(f"in its run {run['name']} {key} is {before!r}, not {now!r}")
            if run["config"] != new["config"]:
                differences.append(f'its run {run["name"]} has the config "{run["config"]}", not "{new["config"]}"')
            lost = [task for task in run["downstream"] if task not in new["downstream"]]
            if lost:
                differences.append(f"its run {run['name']} has the downstream tasks {', '.join(lost)}")
    if differences:
        more = f" (and {len(differences) - 1} more differences)" if len(differences) > 1 else ""
        raise UserError(f"{path} holds another study: {differences[0]}{more}; give another --workdir")


def print_plan(study: Study, runs: Sequence[RunSpec], configs: Mapping[str, Any], workdir: Path, console: Console) -> None:
    """Prints what a sweep would run."""
    total = 0
    for run in runs:
        config = configs[run.name]
        tokens = config.train.steps * config.data.batch_size * config.data.seq_len
        state = "finished" if is_finished(workdir / run.name, run.downstream) else "to do"
        total += tokens
        print_line(console, f"{run.name}  ({state})  {config.train.steps:,} steps, {tokens:,} tokens", style="bold")
        print_line(console, f"    {run.config}  " + " ".join(f"{key}={value}" for key, value in run.overrides.items()))
        if run.downstream:
            print_line(console, f"    then fine-tuned on {', '.join(run.downstream)}")
    print_line(
        console,
        f"{study.name}: {len(runs)} runs, {total:,} tokens in all (padding counted), in {workdir}; "
        "nothing was started (--dry_run)",
    )


def print_line(console: Console, text: str, style: str | None = None) -> None:
    """Prints text as it is: no markup, no wrapping, no highlighting."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


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


def stop_with_parent() -> None:
    """Sends this process SIGTERM when its parent is gone: the pipe that is its standard input then closes."""

    def watch():
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def worker(arguments: Sequence[str] | None = None) -> int:
    """Executes one run described by a job.json, in the directory that file lies in; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bertlab.studies.sweep", description="Executes one run of a study.")
    parser.add_argument("--run", required=True, type=Path, help="the run's job.json")
    parser.add_argument("--cores", default="", help="CPU cores to stay on, such as 0,1")
    parser.add_argument("--stop_with_parent", action="store_true", help="stop when standard input closes")
    options = parser.parse_args(arguments)
    if options.stop_with_parent:
        stop_with_parent()
    if options.cores:  # before JAX is imported: XLA sizes its thread pool from the affinity
        os.sched_setaffinity(0, [int(core) for core in options.cores.split(",")])
    job = json.loads(options.run.read_text(encoding="utf-8"))
    module, _, function = job["runner"].partition(":")
    try:
        runner = getattr(importlib.import_module(module), function)
        runner(config=job["config"], overrides=job["overrides"], workdir=options.run.parent, downstream=job["downstream"])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Exception as error:  # the sweep shows this last line; the traceback stays in the log
        traceback.print_exc()
        print(f"error: {type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(worker())
