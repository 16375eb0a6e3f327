"""The terminal display of a sweep: a bar per running run, or a line when one starts and ends."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from bertlab.console import Console
from bertlab.run import Run
from bertlab.studies.launchers import Process
from bertlab.studies.study import RunSpec
from bertlab.studies.worker import stages

LINE_SECONDS = 60.0  # between two lines about a running run
WIDE = 110  # columns of a console that has room for bars


@dataclass
class Job:
    """A run in progress, and its worker."""

    run: RunSpec
    directory: Path
    process: Process
    log_start: int  # size of its log.txt before it started
    started: float  # time.monotonic() then


class LineView:
    """Plain lines for logs and pipes: when a run starts and ends, and its progress once a minute."""

    def __init__(self, console: Console, total: int, finished: int = 0):
        """Args: console; total: number of runs; finished: those finished before this sweep."""
        self.console, self.total, self.count = console, total, finished
        self.told: dict[str, float] = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def started(self, job: Job) -> None:
        self.told[job.run.name] = job.started
        print_line(self.console, f"{job.run.name}: started")

    def ended(self, job: Job, error: str | None) -> None:
        self.count += 1
        seconds = time.monotonic() - job.started
        outcome = f"failed: {error}" if error else f"finished in {seconds:.0f} s"
        print_line(self.console, f"[{self.count}/{self.total}] {job.run.name}: {outcome}")

    def update(self, running: Sequence[Job], waiting: int) -> None:
        """Shows the progress of the running runs; `waiting` is the number of runs that have not begun."""
        now = time.monotonic()
        for job in running:
            if now - self.told[job.run.name] >= LINE_SECONDS:
                self.told[job.run.name] = now
                (stage, _, step, total), state = progress(job), job.process.state()
                text = f"{stage}, step {step:,} of {total:,}" if total else f"{stage}, starting"
                print_line(self.console, f"{job.run.name}: {text if state == 'running' else state}")


class TerminalView(LineView):
    """A bar per running run and one for the sweep; each run that ends leaves a line.

    Everything fits the console's width: a narrow one has no bars, and long names are cut.
    """

    def __init__(self, console: Console, total: int, finished: int = 0):
        super().__init__(console, total, finished)
        name = Column(ratio=1, no_wrap=True, overflow="ellipsis", min_width=8)
        columns = [
            TextColumn("{task.description}", table_column=name),
            TextColumn("[dim]{task.fields[phase]}", table_column=Column(no_wrap=True, overflow="ellipsis", max_width=14)),
            TextColumn("{task.fields[count]}", justify="right", table_column=Column(no_wrap=True)),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
        ]
        if console.width >= WIDE:
            columns.insert(2, BarColumn(table_column=Column(width=30)))
        self.bars = Progress(*columns, console=console, expand=True)
        self.begun = finished
        self.overall = self.bars.add_task("[bold]all runs", total=total - finished, phase="", count="")
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

    def update(self, running: Sequence[Job], waiting: int) -> None:
        done = self.count - self.begun  # runs finished before would spoil the estimate of the remaining time
        for job in running:
            stage, index, step, total = progress(job)
            done += (index + (step / total if total else 0)) / len(stages(job.run, job.directory))
            state = stage if job.process.state() == "running" else job.process.state()
            count = f"{step:,}/{total:,}" if total else ""
            self.bars.update(self.tasks[job.run.name], phase=state, completed=step, total=total, count=count)
        count = f"{self.count}/{self.total}"
        self.bars.update(self.overall, completed=done, count=count, phase=f"{waiting} waiting" if waiting else "")


def progress(job: Job) -> tuple[str, int, int, int | None]:
    """(stage, its index, step, total steps or None if not known yet) of a running run, from its files."""
    parts = stages(job.run, job.directory)
    index = next((i for i, stage in enumerate(parts) if not stage.finished), len(parts) - 1)
    run = Run(parts[index].directory)
    total = run.config.read()["train"]["steps"] if run.config.exists() else None
    return parts[index].label, index, run.metrics.last_step(), total


def print_line(console: Console, text: str, style: str | None = None) -> None:
    """Prints text as it is: no markup, no wrapping, no highlighting."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
