"""Workloads measured side by side: processes of both sides wait beside each other and work in turns, A B A B."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertlab.bench.workloads import Workload, chosen
from bertlab.errors import UserError

SIDES = {"transformers": ("eager", "compiled", "gathered"), "none": ()}
"""By --against the rival's sides. "gathered", which is compiled, asks its head at masked positions alone, as ours does and
transformers' model does not: it stands beside the rival and is not it.
"""
LIBRARIES = {"transformers": ("torch", "transformers", "datasets", "accelerate"), "none": ()}
_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Iteration|Interrupt|Exit)\b")


class Side:
    """One side's process, from its start to its last words."""

    def __init__(self, workload: Workload, side: str, given: Path, environment: dict[str, str], settings: dict):
        """Starts it and waits until it is ready; `facts` is what it then says, with `start_seconds`."""
        self.side, began = side, time.perf_counter()
        command = [sys.executable, "-m", "bertlab.bench.worker", side, workload.name, str(given), json.dumps(settings)]
        self.errors, pipe = tempfile.TemporaryFile("w+"), subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self.errors, text=True, env={**os.environ, **environment}
        )
        try:
            self.facts = {**self._answer(), "start_seconds": time.perf_counter() - began}
        except UserError:
            self.close()
            raise

    def round(self, steps: int) -> dict:
        """What a round of so many steps took."""
        with contextlib.suppress(BrokenPipeError):  # it has ended, and the answer says why
            self.process.stdin.write(f"{steps}\n")
            self.process.stdin.flush()
        return self._answer()

    def end(self) -> dict:
        """Its last words."""
        self.process.stdin.close()
        found = self._answer()
        self.process.wait()
        return found

    def close(self) -> None:
        """Ends it, wherever it is."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.errors.close()

    def _answer(self) -> dict:
        if not (line := self.process.stdout.readline()):
            self.errors.seek(0)
            lines = self.errors.read().strip().splitlines()
            raised = [line for line in lines if _RAISED.match(line)]  # C++ may have said something after it
            last = (raised or lines or ["it said nothing"])[-1]
            raise UserError(f"the side '{self.side}' ended without an answer: {last}")
        if "error" in (answer := json.loads(line)):
            raise UserError(answer["error"])
        return answer


def bench(
    suite: str,
    against: str,
    out: Path | None,
    only: str = "",
    rounds: int = 5,
    seconds: float = 2.0,
    settings: Mapping[str, Any] | None = None,
) -> list[dict]:
    """Measures a suite's workloads and prints the table; see `bertlab bench --help`.

    Args:
        suite: "cpu", "gpu" or "all".
        against: a key of SIDES.
        out: JSON file, written anew after each workload; None for none.
        only: names of workloads, joined by commas, instead of a suite's.
        rounds: of each side, after one to warm up.
        seconds: that a round is to take.
        settings: config keys over every workload's, such as another `data.corpus`.

    Raises:
        UserError: what is asked for is not known, or cannot be measured here.
    """
    if against not in SIDES:
        raise UserError(f"--against={against}: choose one of {', '.join(SIDES)}")
    if rounds < 1 or not seconds > 0:
        raise UserError(f"--rounds={rounds} --seconds={seconds}: at least one round of more than 0 seconds is needed")
    asked = [(workload, rivals_of(workload, against)) for workload in chosen(suite, only)]
    missing = [library for library in LIBRARIES[against] if importlib.util.find_spec(library) is None]
    if missing and {*SIDES[against]} & {side for _, rivals in asked for side in rivals}:
        raise UserError(
            f"--against={against} needs {' and '.join(missing)}, not installed here: pip install 'bertlab[bench]', or give"
            " --against=none"
        )
    if suite != "cpu" and not only and (found := backend()) != "gpu":
        raise UserError(f"--suite={suite} has workloads for a GPU, and JAX finds a {found} here; give --suite=cpu")
    from bertlab.bench.table import print_table

    results = []
    for workload, rivals in asked:
        print(f"{workload.name}: {workload.what}", flush=True)
        results.append(measure(workload, rivals, rounds, seconds, dict(settings or {})))
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps({"machine": machine(), "workloads": results}, indent=1) + "\n")
    print_table(results)
    return results


def backend() -> str:
    """What JAX runs on here, asked in a process of its own, as it takes the device's memory."""
    command = [sys.executable, "-c", "import jax; print(jax.default_backend())"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def rivals_of(workload: Workload, against: str) -> tuple[str, ...]:
    """The sides beside ours: rows have only the fastest step's, replicas one of our own; only steps gain from compiling."""
    if workload.positions or workload.kind in ("rows", "rows-apart"):
        return ()
    if workload.kind == "replicas":
        return ("apart",)
    sides = SIDES[against] if workload.kind == "step" else SIDES[against][:1]
    return tuple(side for side in sides if side != "gathered" or workload.recipe.startswith("bert"))


def measure(workload: Workload, rivals: Sequence[str], rounds: int, seconds: float, settings: dict) -> dict:
    """One workload's numbers: of each side its facts and every round.

    A rival that cannot do it stays in the result, with the reason.
    """
    found = {key: value for key, value in dataclasses.asdict(workload).items() if key not in ("suite", "recipe", "settings")}
    with tempfile.TemporaryDirectory() as directory:
        given = Path(directory) / "given"
        with contextlib.closing(Side(workload, "examples", given, {}, settings)) as examples:
            found |= {"given": {k: v for k, v in examples.facts.items() if k != "start_seconds"}, "settings": settings}
        environment = {}
        if workload.name.endswith("-cached"):
            environment = {"JAX_COMPILATION_CACHE_DIR": directory, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        if workload.suite == "gpu":  # processes that share a device: each takes what it needs, not three quarters
            environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        begin = lambda side: Side(workload, side, given, environment, settings)
        wholes = dict.fromkeys(("prepare", "finetune", "replicas"), of_wholes)
        how = {"start": of_starts, **wholes}.get(workload.kind, of_rounds)
        return {**found, "sides": how(begin, ("ours", *rivals), rounds, seconds)}


class Contest:
    """What was found of each side; a rival that fails, whenever it does, is out from then on, with the reason."""

    def __init__(self, sides: Sequence[str]):
        self.found = {side: {"facts": {}, "rounds": []} for side in sides}

    def able(self) -> list[str]:
        """The sides that have not failed."""
        return [side for side, of in self.found.items() if "failed" not in of]

    @contextlib.contextmanager
    def attempt(self, side: str) -> Iterator[dict]:
        """What is done here may fail; gives what was found of the side."""
        try:
            yield self.found[side]
        except UserError as error:
            if side == "ours":
                raise
            self.found[side] = {"failed": str(error)}


def of_starts(begin: Callable[[str], Side], sides: Sequence[str], rounds: int, seconds: float) -> dict:
    """Each round is a new process, from its start to its first step; one before them fills caches."""
    del seconds
    contest = Contest(sides)
    for number in range(rounds + 1):
        for side in contest.able():
            with contest.attempt(side) as found, contextlib.closing(begin(side)) as process:
                found["facts"] = process.facts
                if number:
                    found["rounds"].append({"seconds": process.facts["start_seconds"]})
                found["end"] = process.end()
    return contest.found


def of_wholes(begin: Callable[[str], Side], sides: Sequence[str], rounds: int, seconds: float) -> dict:
    """Each round is all of the work; one before them fills caches."""
    del seconds
    contest, processes = Contest(sides), {}
    with contextlib.ExitStack() as open_sides:
        for side in sides:
            with contest.attempt(side) as found:
                processes[side] = open_sides.enter_context(contextlib.closing(begin(side)))
                found["facts"] = processes[side].facts
        for number in range(rounds + 1):
            for side in contest.able():
                with contest.attempt(side) as found:
                    took = processes[side].round(1)
                    if number:
                        found["rounds"].append(took)
        _end(contest, processes)
    return contest.found


def of_rounds(begin: Callable[[str], Side], sides: Sequence[str], rounds: int, seconds: float) -> dict:
    """Processes that wait beside each other and do their rounds in turns."""
    contest, processes, steps = Contest(sides), {}, {}
    with contextlib.ExitStack() as open_sides:
        for side in sides:
            with contest.attempt(side) as found:
                process = processes[side] = open_sides.enter_context(contextlib.closing(begin(side)))
                found["facts"] = process.facts
                process.round(2)
                # Enough steps for the time of a round, by the time of some: a few may be there already.
                count, took = 3, process.round(3)["seconds"]
                while took < seconds / 8:
                    count *= 4
                    took = process.round(count)["seconds"]
                steps[side] = max(1, round(count * seconds / took))
        for _ in range(rounds):
            for side in contest.able():
                with contest.attempt(side) as found:
                    found["rounds"].append(processes[side].round(steps[side]))
        _end(contest, processes)
    return contest.found


def _end(contest: Contest, processes: Mapping[str, Side]) -> None:
    for side in contest.able():
        with contest.attempt(side) as found:
            found["end"] = processes[side].end()


def rate(of_round: dict) -> float:
    """Tokens that are no padding per second; of what is one whole, how many of it."""
    return of_round.get("tokens", 1) / of_round["seconds"]


def best_rival(sides: dict) -> str | None:
    """The rival with the highest median rate; None where there is none."""
    able = {side: of for side, of in sides.items() if side not in ("ours", "gathered") and "rounds" in of}
    return max(able, key=lambda side: statistics.median(map(rate, able[side]["rounds"])), default=None)


def ratios(sides: dict, rival: str | None = None) -> list[float]:
    """Our rate over a rival's, by default the best one's, round by round."""
    rival = rival or best_rival(sides)
    return [rate(a) / rate(b) for a, b in zip(sides["ours"]["rounds"], sides[rival]["rounds"])] if rival else []


def machine() -> dict:
    """What this machine calls itself."""
    name = platform.processor()
    with contextlib.suppress(FileNotFoundError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return {"processor": name, "cores": len(os.sched_getaffinity(0)), "platform": platform.platform()}
