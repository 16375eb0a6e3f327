"""Tells of workers that give no sign of life: stopped, on a host that is gone, or with a training that stands still."""

import time
from collections.abc import Sequence

from bertlab import alive
from bertlab.console import Console
from bertlab.run import Run
from bertlab.studies.views import Job, print_line


class Silence:
    """Watches the sign of life of each running run (`Run.alive`), by this machine's clock."""

    def __init__(self, console: Console):
        self._console = console
        self._seen: dict[str, tuple[int, float]] = {}  # run -> when the file was written, and when that was first seen
        self._told: set[str] = set()

    def look(self, running: Sequence[Job]) -> None:
        """Prints a line for each run that has been silent for `alive.PATIENCE` seconds, and for each that goes on."""
        now = time.monotonic()
        for name, run in ((job.run.name, Run(job.directory)) for job in running):
            if not run.alive.exists():  # in a queue, or just starting
                continue
            sign = run.alive.path.stat().st_mtime_ns
            before, since = self._seen.get(name, (None, now))
            if sign != before:
                self._seen[name] = sign, now
                if name in self._told:
                    self._told.remove(name)
                    print_line(self._console, f"{name}: goes on")
            elif now - since >= alive.PATIENCE and name not in self._told:
                self._told.add(name)
                print_line(
                    self._console,
                    f"{name}: no sign of life for {now - since:.0f} s from its worker, process {run.alive.read().strip()};"
                    f" see {run.log}. If it hangs, kill that process (kill -9): the sweep then counts the run as failed and"
                    " goes on, and the same command continues the run from its last checkpoint",
                    style="bold red",
                )
