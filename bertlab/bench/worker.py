"""Runs one side of a workload in its own process: it works when told to, and reports what it measured.

    python -m bertlab.bench.worker SIDE WORKLOAD GIVEN [SETTINGS]

SIDE is "ours", a side of the rival ("eager", "compiled", "gathered"), or "examples": that
writes GIVEN, the data of both sides, and ends. SETTINGS is a JSON object of config keys that replace the workload's. The
process prints a line of JSON when it is ready. It answers each line "N" on standard input with a line about a round of N
steps, and the end of input with a last line.
"""

import contextlib
import dataclasses
import json
import sys
import threading
import time
from collections.abc import Callable

import psutil

from bertlab.bench.workloads import WORKLOADS, Runner
from bertlab.errors import UserError


def main(side: str, name: str, given: str, settings: str = "{}") -> None:
    """Serves rounds until the input ends."""
    # Libraries print to standard output too, so the answers keep the real one to themselves.
    answers, sys.stdout = sys.stdout, sys.stderr
    say = lambda value: print(json.dumps(value), file=answers, flush=True)
    try:
        serve(say, side, name, given, json.loads(settings))
    except UserError as error:
        say({"error": str(error)})


def serve(say: Callable[[dict], None], side: str, name: str, given: str, settings: dict) -> None:
    """Does the work of `main`, and answers with `say`."""
    workload = next(workload for workload in WORKLOADS if workload.name == name)
    workload = dataclasses.replace(workload, settings={**workload.settings, **settings})
    if side in ("ours", "examples"):
        from bertlab.bench import ours as of_side
    else:
        from bertlab.bench import rival as of_side
    if side == "examples":
        return say(of_side.WRITERS.get(workload.kind, of_side.write_examples)(workload, given))
    with PeakMemory() as peak, of_side.RUNNERS[workload.kind](workload, given, side) as runner:
        if workload.kind == "start":
            runner.round(1)
        say({**runner.facts, "ceiling": of_side.ceiling(workload.dtype) if workload.kind == "step" else 0.0})
        for line in sys.stdin:
            say(timed(runner, int(line)))
        environment, on_device = of_side.environment(), of_side.peak_device_bytes()
    say({"environment": environment, "peak_bytes": on_device or peak.bytes})


def timed(runner: Runner, steps: int) -> dict[str, float]:
    """A round with its seconds."""
    began = time.perf_counter()
    found = runner.round(steps)
    return {"seconds": time.perf_counter() - began, **found}


class PeakMemory:
    """The most memory that this process and its descendants hold at once, sampled four times a second.

    Attributes:
        bytes: of their pages; a page that several share counts once.
    """

    def __enter__(self):
        self.bytes, self._ended = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._ended.wait(0.25):
            total = 0
            for process in (me, *me.children(recursive=True)):
                with contextlib.suppress(psutil.Error):  # the process has ended
                    total += process.memory_full_info().pss
            self.bytes = max(self.bytes, total)

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
