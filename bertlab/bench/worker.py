"""Runs one side of a workload in its own process: it works on command and reports its measurements.

    python -m bertlab.bench.worker SIDE WORKLOAD GIVEN [SETTINGS]

SIDE is "ours", a side of the rival ("eager", "compiled", "gathered"), or "examples": that writes GIVEN, the data of both
sides, and ends. SETTINGS is a JSON object of config keys that replace the workload's. The process prints a line of JSON when
it is ready, and before that lines {"doing": ...} with its progress. It answers each line "N" on standard input with a line
about a round of N steps, and the end of input with a last line. If the input ends in the middle of work, the process that
measures is gone, and this one ends at once: a device is free for the next.
"""

import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from bertlab.bench.workloads import WORKLOADS, Runner
from bertlab.errors import UserError
from bertlab.parent import Parent


def main(side: str, name: str, given: str, settings: str = "{}") -> None:
    """Serves rounds until the input ends."""
    parent = Parent(signal.SIGKILL)
    # Libraries print to standard output too, so the answers keep the real one to themselves.
    answers, sys.stdout = sys.stdout, sys.stderr
    say = lambda value: print(json.dumps(value), file=answers, flush=True)
    next_round = lambda answer: parent.next_order(lambda: say(answer))
    try:
        serve(say, next_round, side, name, given, json.loads(settings))
    except UserError as error:
        say({"error": str(error)})


def serve(
    say: Callable[[dict], None],
    next_round: Callable[[dict], bytes | None],
    side: str,
    name: str,
    given: str,
    settings: dict,
) -> None:
    """Does the work of `main`: answers with `say`, or with `next_round`, which returns the next line of input."""
    workload = next(workload for workload in WORKLOADS if workload.name == name)
    workload = dataclasses.replace(workload, settings={**workload.settings, **settings})
    if workload.cores and side != "examples":  # before JAX and PyTorch are imported: they size their thread pools by it
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: workload.cores])
    if side in ("ours", "examples"):
        from bertlab.bench import ours as of_side
    else:
        from bertlab.bench import rival as of_side
    if side == "examples":
        if not workload.made_up:
            of_side.prepare(workload.config().data, progress=Doing(say))
        return say(of_side.WRITERS.get(workload.kind, of_side.write_examples)(workload, given))
    peak = contextlib.nullcontext() if workload.made_up else PeakMemory()  # a device counts its own
    with peak, of_side.RUNNERS[workload.kind](workload, given, side) as runner:
        if workload.kind == "start":
            runner.round(1)
        answer = {**runner.facts, "ceiling": of_side.ceiling(workload.dtype) if workload.kind in ("step", "replicas") else 0.0}
        while (line := next_round(answer)) is not None:
            answer = timed(runner, int(line))
        environment, on_device, huge = of_side.environment(), of_side.peak_device_bytes(), huge_page_bytes()
    say({"environment": environment, "peak_bytes": on_device or getattr(peak, "bytes", 0), "huge_page_bytes": huge})


def timed(runner: Runner, steps: int) -> dict[str, float]:
    """A round with its seconds, and those of CPU time that this process took (its children's do not count)."""
    began, cpu_began = time.perf_counter(), time.process_time()
    found = runner.round(steps)
    cpu_seconds = time.process_time() - cpu_began
    return {"seconds": time.perf_counter() - began, "cpu_seconds": cpu_seconds, "steps": steps, **found}


def huge_page_bytes() -> int:
    """Memory of this process in huge pages; 0 where the system does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
            if line.startswith("AnonHugePages:"):
                return 1024 * int(line.split()[1])
    return 0


class Doing:
    """The progress of a preparation as answers, one at the beginning of each part and then every five seconds."""

    def __init__(self, say: Callable[[dict], None]):
        self.say, self.label, self.said = say, "", 0.0

    def __call__(self, label: str, done: int, total: int | None) -> None:
        if label != self.label or time.monotonic() - self.said > 5:
            self.label, self.said = label, time.monotonic()
            self.say({"doing": f"{label}, {done:,}" + (f" of {total:,}" if total else "")})


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
        import psutil  # of the extra `bench`, which a TPU does without

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
