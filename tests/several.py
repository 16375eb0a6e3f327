"""Several real processes of one command on this machine, for tests that compare them with a single one."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from bertlab import hosts

MAIN = "import sys; from bertlab import cli; sys.exit(cli.main(sys.argv[1:]))"


@contextlib.contextmanager
def starting(folder: Path) -> Iterator[Callable[..., list]]:
    """A function (arguments, processes, devices of each, code that the last, or each, begins with) -> they run the command.

    Each has a `log` in the folder. All are killed at the end of the block.
    """
    begun = []

    def begin(arguments: Sequence[str], count: int, devices: int = 1, last: str = "", each: str = "") -> list[subprocess.Popen]:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        of_all = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
        of_each = lambda i: {hosts.ADDRESS: address, hosts.COUNT: str(count), hosts.INDEX: str(i)}
        started = []
        for i in range(count):
            environment = {**of_all, **(of_each(i) if count > 1 else {})}
            path = folder / f"process-{len(begun)}.log"
            with path.open("w") as log:
                command = [sys.executable, "-c", each + (last if i == count - 1 else "") + MAIN, *map(str, arguments)]
                started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
            started[-1].log = path
            begun.append(started[-1])
        return started

    try:
        yield begin
    finally:
        for process in begun:
            process.kill()
            process.wait()


def said(process) -> str:
    """What a process has written so far."""
    return process.log.read_text()


def end(started, timeout: float = 240) -> list[int]:
    """The statuses of processes that are to end by themselves."""
    return [process.wait(timeout=timeout) for process in started]


def assert_ended_well(started) -> None:
    """All of them, and only the first has printed anything but what it says while they find each other."""
    assert end(started) == [0] * len(started), [said(process) for process in started]
    for process in started[1:]:
        others = [line for line in said(process).splitlines() if not line.startswith(("waiting up to ", "[Gloo]"))]
        assert not others, others


def last_line(process, start: str) -> str:
    """The last line of an ended process, as soon as it begins with `start`: its witness speaks after it."""
    deadline = time.monotonic() + 10
    while not (last := said(process).strip().splitlines()[-1]).startswith(start) and time.monotonic() < deadline:
        time.sleep(0.05)
    return last


def assert_it_says_why_it_ended(process, name: str) -> None:
    """In its last line. Either an operation that all had together fails, or JAX misses one's heartbeat and aborts."""
    status, last = process.wait(timeout=60), last_line(process, f"bertlab: {name} ")
    lost, aborted = "lost another process; it was killed", "ended without a message: it was killed, or JAX"
    words = {2: [lost], -signal.SIGABRT: [lost, aborted]}  # JAX may abort while the process is ending for the same reason
    assert any(f"{name} {why}" in last for why in words[status]), said(process)
    assert "rerun the command for all processes" in last, said(process)
