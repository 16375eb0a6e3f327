"""Signs of life, by which a process that hangs is told apart from one that is busy.

Training calls `step_done` after each step, and `not_stepping` before what may take minutes, such as compilation. If a step
then takes longer than `PATIENCE`, the process says so itself (`telling`). A process that was stopped, or whose host is gone,
says nothing: a sweep's worker therefore rewrites a file every few seconds as long as steps come (`showing`), and the sweep
watches it.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator


def _seconds(text: str) -> float:
    """BERTLAB_PATIENCE; raises SystemExit, as it is read before any command that could say so."""
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) < float("inf"):
            return seconds
    print(f"bertlab: BERTLAB_PATIENCE={text}: expected seconds above 0, such as 45", file=sys.stderr)
    raise SystemExit(2)


PATIENCE = _seconds(os.environ.get("BERTLAB_PATIENCE") or "45")
"""Seconds without a step, or without a sign of life, after which one is told of it."""

_last: float | None = None  # time.monotonic() of the last step; None while no step is awaited


def step_done() -> None:
    """Notes that a step has ended, and that another follows."""
    global _last
    _last = time.monotonic()


def not_stepping() -> None:
    """Notes that the next step may take as long as it likes."""
    global _last
    _last = None


def silent_for() -> float:
    """Seconds since the last step; 0 while no step is awaited."""
    return 0.0 if _last is None else time.monotonic() - _last


def telling(say: Callable[[str], None]) -> contextlib.AbstractContextManager[None]:
    """Within the block, a thread says once when steps stop coming, and once when they come again."""
    silent = False

    def look() -> None:
        nonlocal silent
        seconds = silent_for()
        if seconds < PATIENCE and silent:
            say("steps come again")
        elif seconds >= PATIENCE and not silent:
            say(
                f"no step has ended for {seconds:.0f} s: a device, a disk or another process may hang; if it stays so, end this"
                f" process (kill -9 {os.getpid()}) and run the same command again, which continues from the last checkpoint"
            )
        silent = seconds >= PATIENCE

    return _every(PATIENCE / 20, look)


def showing(show: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
    """Within the block, a thread calls `show` every few seconds, but not while a step takes longer than that."""
    seconds = PATIENCE / 9

    def look() -> None:
        if silent_for() < seconds:
            with contextlib.suppress(OSError):  # a full disk is the run's to report
                show()

    look()
    return _every(seconds, look)


@contextlib.contextmanager
def _every(seconds: float, look: Callable[[], None]) -> Iterator[None]:
    done = threading.Event()

    def loop() -> None:
        while not done.wait(seconds):
            look()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
