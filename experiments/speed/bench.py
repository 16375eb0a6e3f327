"""Training speed on this machine, beside transformers' models in PyTorch.

    python experiments/speed/bench.py FILE.jsonl [--suite=gpu] [--only="bert-tiny;gpt-mini"]

Each workload (`workloads.py`) runs in a process of its own (`measure.py`, `in_pytorch.py`) that has
a share of the time left. What it found is appended to FILE as one line:

    first_step_seconds  from the start of the process to the end of the first training step
    compile_seconds     of these, to trace, compile and run the step
    step_tokens         tokens a second if the same batch, on the device, is trained on again
    loop_tokens         tokens a second of `fit`, with batches from prepared text and the log hook;
                        both are the best of three turns, which alternate
    share               loop_tokens over step_tokens
    flop_share          model FLOPs a second of step_tokens over the chip's bfloat16 rate
    gigabytes           the device's peak memory, where the device reports it
    ratio               of PyTorch: our step_tokens over its, on the same rows and masks

Padding counts as tokens.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workloads import RIVAL, SUITES, WORKLOADS

HERE = Path(__file__).parent
REPORT_EVERY = 10  # seconds
AUTOTUNING_OFF = "--xla_gpu_autotune_level=0"  # after a workload that was stopped in compiling


def main():
    """Runs the workloads of a suite one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--suite", choices=SUITES, default="cpu")
    parser.add_argument("--only", help="these workloads, with semicolons between them")
    parser.add_argument("--minutes", type=float, default=5, help="for all")
    parser.add_argument("--limit", type=float, default=70, help="seconds, for one")
    parser.add_argument("--turn", type=float, default=2, help="seconds of one of three turns")
    parser.add_argument("--rows", type=int, default=0, help="of a batch, to rehearse")
    given = parser.parse_args()
    names = re.split("; *", given.only or SUITES[given.suite])
    if unknown := {name.removesuffix(RIVAL) for name in names} - WORKLOADS.keys():
        parser.error(f"{min(unknown)} is not one of {'; '.join(WORKLOADS)}")
    with tempfile.TemporaryDirectory() as folder:
        commands = {}
        for name in names:
            script = HERE / ("in_pytorch.py" if name.endswith(RIVAL) else "measure.py")
            workload = name.removesuffix(RIVAL)
            commands[name] = [sys.executable, script, workload, folder, given.turn, given.rows]
        supervise(commands, given.file, 60 * given.minutes, given.limit)


def supervise(commands: Mapping[str, Sequence], file: Path, seconds: float, limit: float) -> None:
    """Runs each command in turn for its share of `seconds`, at most `limit`, and appends what it
    found to `file`."""
    end, step_tokens = time.monotonic() + seconds, {}
    for number, (name, command) in enumerate(commands.items()):
        left = end - time.monotonic()
        if left <= 0:
            break
        # Twice an equal share: most need less, and the first ones are the most wanted.
        record = follow(name, command, min(limit, left, 2 * left / (len(commands) - number)))
        if AUTOTUNING_OFF in os.environ.get("XLA_FLAGS", ""):
            record["autotuning"] = False
        elif record.get("failure", "").endswith("stage: compiles"):
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {AUTOTUNING_OFF}"
        step_tokens[name] = record.get("step_tokens")
        ours = step_tokens.get(name.removesuffix(RIVAL))
        if name.endswith(RIVAL) and ours and step_tokens[name]:
            record["ratio"] = round(ours / step_tokens[name], 2)
        line = json.dumps({"workload": name, **record})
        print(line, flush=True)
        with file.open("a") as out:
            out.write(line + "\n")


def follow(name: str, command: Sequence, limit: float) -> dict[str, Any]:
    """What a command found within `limit` seconds, and how it failed if it did. It prints JSON
    objects, one a line: {"stage": ...} when another stage begins, and numbers."""
    begin = time.monotonic()
    with tempfile.NamedTemporaryFile() as output:
        process = subprocess.Popen(list(map(str, command)), stdout=output)
        try:
            while True:
                left = begin + limit - time.monotonic()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(min(REPORT_EVERY, max(left, 0)))
                found = {"stage": "start"}
                for line in Path(output.name).read_text().splitlines():
                    with contextlib.suppress(json.JSONDecodeError):
                        found |= json.loads(line)
                stage, status = found.pop("stage"), process.returncode
                if status is not None:
                    return found | ({"failure": f"exit status {status}"} if status else {})
                if left <= REPORT_EVERY:
                    return found | {"failure": f"stopped after {limit:.0f} s, in stage: {stage}"}
                print(f"{name}: {stage}, {time.monotonic() - begin:.0f} s", flush=True)
        finally:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
