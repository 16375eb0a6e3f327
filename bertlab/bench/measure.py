"""Measures workloads side by side: each side has its own process, and the sides alternate, A B A B."""

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertlab.bench.table import device_tables, print_table, rate
from bertlab.bench.workloads import RATES, Workload, chosen
from bertlab.errors import UserError, how_to_install
from bertlab.files import misfit, read_json, write_json
from bertlab.machine import describe_machine

SIDES = {"transformers": ("eager", "compiled", "gathered"), "none": ()}
"""The rival's sides for each --against. The side "gathered" is compiled too, but computes logits at masked positions only. Our
side does so and transformers' model does not, so it is shown beside the rival and is never the rival.
"""
LIBRARIES = {"transformers": ("torch", "transformers", "datasets", "accelerate"), "none": ()}
ROUNDS, SECONDS = 5, 3.0
"""The rounds of each side and how long one takes."""
QUICK_ROUNDS, QUICK_SECONDS = 3, 1.0
"""Those of a quick measurement, which also measures only one side of the rival."""
MINUTES = 10.0
"""What a suite for a rented device may take."""
REHEARSED = 0.1
"""Seconds of a rehearsal's rounds."""
_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Iteration|Interrupt|Exit)\b")


class Side:
    """The process of one side."""

    def __init__(
        self, workload: Workload, side: str, given: Path, environment: dict[str, str], settings: dict, until: float = math.inf
    ):
        """Starts the process and waits until it is ready; `facts` is its first answer with `start_seconds`.

        Raises:
            OutOfTime: it was not ready `until` then, a time of `time.monotonic`.
            UserError: it ended.
        """
        self.side, began = side, time.perf_counter()
        command = [sys.executable, "-m", "bertlab.bench.worker", side, workload.name, str(given), json.dumps(settings)]
        self.errors, pipe = tempfile.TemporaryFile("w+"), subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self.errors, text=True, env={**os.environ, **environment}
        )
        say(f"{side}: {'reads rows, and prepares the corpus if needed' if side == 'examples' else 'starts and compiles'}")
        late = threading.Timer(min(until - time.monotonic(), threading.TIMEOUT_MAX), self.process.kill)
        late.daemon = True
        late.start()
        try:
            self.facts = {**self._answer(), "start_seconds": time.perf_counter() - began}
        except UserError:
            self.close()
            if time.monotonic() >= until:
                raise OutOfTime(f"the side '{side}' was not ready in the time that was left") from None
            raise
        finally:
            late.cancel()

    def round(self, steps: int) -> dict:
        """Runs this many steps and returns what the process measured."""
        with contextlib.suppress(BrokenPipeError):  # the process has ended; `_answer` raises the reason
            self.process.stdin.write(f"{steps}\n")
            self.process.stdin.flush()
        return self._answer()

    def end(self) -> dict:
        """Ends the process and returns its last answer."""
        self.process.stdin.close()
        found = self._answer()
        self.process.wait()
        return found

    def close(self) -> None:
        """Kills the process, whatever it is doing."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.errors.close()

    def _answer(self) -> dict:
        while "doing" in (answer := self._line()):
            say(f"{self.side}: {answer['doing']}")
        if "error" in answer:
            raise UserError(answer["error"])
        return answer

    def _line(self) -> dict:
        if not (line := self.process.stdout.readline()):
            self.errors.seek(0)
            lines = self.errors.read().strip().splitlines()
            raised = [line for line in lines if _RAISED.match(line)]  # C++ may print more after it
            last = (raised or lines or ["it printed nothing"])[-1]
            raise UserError(f"the side '{self.side}' ended without a result: {last}")
        return json.loads(line)


class OutOfTime(UserError):
    """--minutes are over."""


def say(line: str) -> None:
    """Prints the current step with the time of day."""
    print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)


def bench(
    suite: str,
    against: str | None,
    out: Path | None,
    only: str = "",
    rounds: int | None = None,
    seconds: float | None = None,
    settings: Mapping[str, Any] | None = None,
    quick: bool = False,
    minutes: float | None = None,
    rehearse: bool = False,
) -> list[dict]:
    """Measures a suite's workloads and prints the table; see `bertlab bench --help`.

    A suite for a device ends in time, goes on with a file, and says in it why a workload has no numbers.

    Args:
        suite: "cpu", "gpu" or "tpu".
        against: a key of SIDES; None: transformers, on a GPU where it is installed, and on a TPU none.
        out: JSON file, rewritten after each workload; None for no file.
        only: comma-separated workloads to measure instead of the suite.
        rounds: of each side, after warming up; None: ROUNDS.
        seconds: how long a round of steps is to take; None: SECONDS.
        settings: config keys for every workload, such as another `data.corpus`.
        quick: fewer and shorter rounds unless they are given, and only one side of the rival (`rivals_of`).
        minutes: no workload and no side begins later, and rounds become fewer; None: no limit.
        rehearse: workloads for a device, so small that a CPU does them; the numbers mean nothing.

    Raises:
        UserError: an argument is not known, this machine cannot measure the suite, or the file is of another machine.
    """
    on_device = suite != "cpu"
    if against is None:
        installed = all(importlib.util.find_spec(library) for library in LIBRARIES["transformers"])
        against = "none" if suite == "tpu" or (on_device and not installed) else "transformers"
    if against not in SIDES:
        raise UserError(f"--against={against}: choose one of {', '.join(SIDES)}")
    rounds = (QUICK_ROUNDS if quick or on_device else ROUNDS) if rounds is None else rounds
    seconds = (REHEARSED if rehearse else QUICK_SECONDS if quick else SECONDS) if seconds is None else seconds
    if rounds < 1 or not seconds > 0:
        raise UserError(f"--rounds={rounds} --seconds={seconds}: set --rounds to 1 or more and --seconds above 0")
    if minutes is not None and not minutes > 0:
        raise UserError(f"--minutes={minutes}: set more than 0")
    if rehearse and not on_device:
        raise UserError("--rehearse is for --suite=gpu and --suite=tpu; --suite=cpu runs here as it is")
    asked = [(workload, rivals_of(workload, against, quick)) for workload in chosen(suite, only)]
    missing = [library for library in LIBRARIES[against] if importlib.util.find_spec(library) is None]
    if missing and {*SIDES[against]} & {side for _, rivals in asked for side in rivals}:
        raise UserError(
            f"--against={against} needs {' and '.join(missing)}; install them: {how_to_install('bench')}; or set --against=none"
        )
    facts = {"suite": suite, "rehearsal": rehearse, "against": against}
    if on_device:
        facts |= {"device": device(), "bertlab": importlib.metadata.version("bertlab")}
        if (found := facts["device"]["platform"]) != suite and not rehearse:
            raise UserError(
                f"--suite={suite} has workloads for a {suite.upper()}, and JAX found only a {found}; set --suite=cpu, or"
                " --rehearse"
            )
    kept = measured_before(out, facts) if on_device and out is not None else {}
    results, until = [], math.inf if minutes is None else time.monotonic() + 60 * minutes
    write = lambda results: out is not None and write_json(out, {"machine": describe_machine(), **facts, "workloads": results})
    for number, (workload, rivals) in enumerate(asked, 1):
        if workload.name in kept and not only:
            results.append(kept.pop(workload.name))
            continue
        kept.pop(workload.name, None)
        say(f"workload {number} of {len(asked)}, {workload.name}: {workload.what}; sides: {', '.join(('ours', *rivals))}")
        ways = {**(workload.rehearsal() if rehearse else {}), **(settings or {})}
        try:
            results.append(measure(workload, rivals, rounds, seconds, ways, until))
        except UserError as error:
            if not on_device:
                raise
            reason = "skipped" if isinstance(error, OutOfTime) else "failed"
            results.append({"name": workload.name, "what": workload.what, "kind": workload.kind, reason: str(error)})
            say(f"{workload.name} {reason}: {error}")
        write([*results, *kept.values()])
    if on_device:
        print(device_tables({**facts, "workloads": results}))
    else:
        print_table(results)
    return results


def measured_before(out: Path, facts: dict) -> dict[str, dict]:
    """The workloads of a file by name, without those that had no time.

    Raises:
        UserError: the file is damaged, or not of this suite, machine and version.
    """
    if not out.exists():
        return {}
    found = read_json(out)
    if wrong := misfit(found, {"workloads": [dict]}):
        raise UserError(f"{out} is damaged: {wrong}; delete it, and everything is measured anew")
    if differ := [name for name, value in facts.items() if found.get(name) != value]:
        raise UserError(
            f"{out} has measurements with {differ[0]}={found.get(differ[0])!r}, and now it is {facts[differ[0]]!r}; name"
            " another file with --out"
        )
    return {of["name"]: of for of in found["workloads"] if "skipped" not in of}


def device() -> dict:
    """JAX's platform, kind and number of devices, and version; another process is asked, since JAX takes a device's memory.

    Raises:
        UserError: JAX does not start.
    """
    ask = "import jax, json; d = jax.devices(); print(json.dumps([d[0].platform, d[0].device_kind, len(d), jax.__version__]))"
    answer = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
    if answer.returncode:
        raise UserError(f"JAX does not start on this machine: {(answer.stderr.splitlines() or ['it printed nothing'])[-1]}")
    return dict(zip(("platform", "kind", "number", "jax"), json.loads(answer.stdout.splitlines()[-1])))


def rivals_of(workload: Workload, against: str, quick: bool = False) -> tuple[str, ...]:
    """The sides to measure beside ours. Reading rows has no rival; only training steps gain from torch.compile.

    A quick measurement of training steps leaves out "eager", which is slower, and "gathered", which compiles again, unless it
    is the workload's only rival.
    """
    if workload.positions or workload.kind in ("rows", "rows-apart", "attention"):
        return ()
    sides = SIDES[against] if workload.kind in ("step", "replicas") else SIDES[against][:1]
    if wanted := workload.rival or ("compiled" if quick and workload.kind == "step" else ""):
        return tuple(side for side in sides if side in wanted.split(","))
    return tuple(side for side in sides if side != "gathered" or workload.recipe.startswith("bert"))


def measure(
    workload: Workload, rivals: Sequence[str], rounds: int, seconds: float, settings: dict, until: float = math.inf
) -> dict:
    """One workload's numbers: the facts and every round of each side, or the reason why a rival failed."""
    if time.monotonic() >= until:
        raise OutOfTime("no time was left")
    found = {key: value for key, value in dataclasses.asdict(workload).items() if key not in ("suite", "recipe", "settings")}
    found |= {"settings": settings}
    with tempfile.TemporaryDirectory() as directory:
        given = Path(directory) / "given"
        if rivals or not workload.made_up:  # examples are made on the CPU where nothing else needs the device
            of_cpu = {"JAX_PLATFORMS": "cpu"} if workload.made_up else {}
            with contextlib.closing(Side(workload, "examples", given, of_cpu, settings, until)) as examples:
                found |= {"given": {k: v for k, v in examples.facts.items() if k != "start_seconds"}}
        environment = {}
        if workload.name.endswith("-cached"):
            environment = {"JAX_COMPILATION_CACHE_DIR": directory, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        if workload.made_up and rivals:  # processes share the device, so none may reserve three quarters of its memory
            environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        begin = lambda side: Side(workload, side, given, environment, settings, until)
        sides = ("ours", *rivals)
        if workload.kind == "start":
            return {**found, "sides": of_starts(begin, sides, rounds)}
        return {**found, "sides": of_rounds(begin, sides, rounds, seconds if workload.kind in RATES else None, until)}


def of_starts(begin: Callable[[str], Side], sides: Sequence[str], rounds: int) -> dict:
    """Each round starts a new process and runs its first step; the first one of each side only fills caches."""

    def start(of: dict, side: str) -> None:
        with contextlib.closing(begin(side)) as process:
            of["facts"] = process.facts
            of["rounds"].append({"seconds": process.facts["start_seconds"]})
            say(f"{side}: start {len(of['rounds']) - 1} of {rounds}, {of['rounds'][-1]['seconds']:.1f} s")
            of["end"] = process.end()

    found = in_turns(sides, [start] * (rounds + 1))
    for of in found.values():
        if "rounds" in of:
            del of["rounds"][0]
    return found


def of_rounds(
    begin: Callable[[str], Side], sides: Sequence[str], rounds: int, seconds: float | None, until: float = math.inf
) -> dict:
    """Runs one process per side; they alternate rounds of `seconds` each or, if it is None, of the whole work.

    After `until` each side has one round.
    """
    processes: dict[str, Side] = {}
    steps: dict[str, int] = {}

    def start(of: dict, side: str) -> None:
        processes[side] = open_sides.enter_context(contextlib.closing(begin(side)))
        of["facts"] = processes[side].facts
        say(f"{side}: ready after {of['facts']['start_seconds']:.1f} s; warms up")
        steps[side] = warmed_up(processes[side], seconds)

    def work(of: dict, side: str) -> None:
        if of["rounds"] and time.monotonic() >= until:
            return
        of["rounds"].append(processes[side].round(steps[side]))
        of_steps = "" if seconds is None else f", {rate(of['rounds'][-1]) / 1000:.3g} k tokens/s"
        say(f"{side}: round {len(of['rounds'])} of {rounds}, {of['rounds'][-1]['seconds']:.1f} s{of_steps}")

    def end(of: dict, side: str) -> None:
        of["end"] = processes[side].end()

    with contextlib.ExitStack() as open_sides:
        return in_turns(sides, [start, *[work] * rounds, end])


def warmed_up(process: Side, seconds: float | None) -> int:
    """Warms up, and returns the steps of a round that takes `seconds`."""
    if seconds is None:
        process.round(1)
        return 1
    process.round(2)
    # A few batches may be ready already, so the time is taken over an eighth of a round at least.
    count, took = 3, process.round(3)["seconds"]
    while took < seconds / 8:
        count *= 4
        took = process.round(count)["seconds"]
    return max(1, round(count * seconds / took))


def in_turns(sides: Sequence[str], stages: Sequence[Callable[[dict, str], None]]) -> dict:
    """Does each stage for all sides, one after the other; returns each side's `facts` and `rounds`.

    A rival that fails is left out from then on, and only the reason is kept.

    Raises:
        UserError: our own side fails.
    """
    found = {side: {"facts": {}, "rounds": []} for side in sides}
    for stage in stages:
        for side in [side for side in sides if "failed" not in found[side]]:
            try:
                stage(found[side], side)
            except UserError as error:
                if side == "ours":
                    raise
                found[side] = {"failed": str(error)}
    return found
