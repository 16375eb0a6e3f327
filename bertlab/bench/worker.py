"""One side of a workload in a process of its own: does a round when it is told to, and says what came of it.

    python -m bertlab.bench.worker SIDE WORKLOAD GIVEN [SETTINGS]

SIDE is "ours", or "eager", "compiled" or "gathered" for the rival ("apart": ours in many processes), or "examples", which
writes GIVEN for both and ends. SETTINGS are config keys as JSON, over the workload's. A line of JSON says that it is ready;
each line "N" on standard input is answered by a line about a round of N steps; the end of the input by a last line.
"""

import contextlib
import dataclasses
import json
import sys
import threading
from collections.abc import Callable

import psutil

from bertlab.bench.workloads import WORKLOADS
from bertlab.errors import UserError


def main(side: str, name: str, given: str, settings: str = "{}") -> None:
    """Serves rounds until the input ends."""
    # Libraries print; the answers go where standard output was.
    answers, sys.stdout = sys.stdout, sys.stderr
    say = lambda value: print(json.dumps(value), file=answers, flush=True)
    try:
        serve(say, side, name, given, json.loads(settings))
    except UserError as error:
        say({"error": str(error)})


def serve(say: Callable[[dict], None], side: str, name: str, given: str, settings: dict) -> None:
    """Answers with `say`."""
    workload = next(workload for workload in WORKLOADS if workload.name == name)
    workload = dataclasses.replace(workload, settings={**workload.settings, **settings})
    if side in ("ours", "apart", "examples"):
        from bertlab.bench import ours as of_side
    else:
        from bertlab.bench import rival as of_side
    if side == "examples":
        return say(of_side.WRITERS.get(workload.kind, of_side.write_examples)(workload, given))
    with PeakMemory() as peak:
        runner = of_side.RUNNERS[workload.kind](workload, given, side)
        if workload.kind == "start":
            runner.round(1)
        say({**runner.facts, "ceiling": of_side.ceiling(workload.dtype) if workload.kind == "step" else 0.0})
        for line in sys.stdin:
            say(runner.round(int(line)))
        found = runner.close()
    found["peak_bytes"] = found["peak_bytes"] or peak.bytes
    say(found)


class PeakMemory:
    """The most memory that this process and those below it hold at once, looked at four times a second.

    Attributes:
        bytes: of their pages, those that several share counted once.
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
                with contextlib.suppress(psutil.Error):  # it has ended
                    total += process.memory_full_info().pss
            self.bytes = max(self.bytes, total)

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
