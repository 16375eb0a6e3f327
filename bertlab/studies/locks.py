"""Locks: at most one sweep works on a study's directory, and at most one process on a run's."""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from bertlab.errors import UserError
from bertlab.files import is_running
from bertlab.run import Run, StudyDirectory

POLL_SECONDS = 0.1  # between two attempts
ORPHAN_SECONDS = 20.0  # how long the workers of a killed sweep may take to save and end


def lock(file: IO, wait: bool = False) -> None:
    """Takes a file's lock (flock); raises BlockingIOError if another process holds it and `wait` is False."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError as error:
        raise UserError(
            f"{file.name} cannot be locked ({error.strerror}); two sweeps could write there at once. Choose a --workdir on a"
            " file system with flock"
        ) from None


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Holds a run; first waits for any other process at work on it, such as a killed sweep's worker or one elsewhere."""
    with open(Run(directory).lock, "a") as file:
        try:
            lock(file)
        except BlockingIOError:
            print(f"waiting for another process to finish with {directory.name}", flush=True)
            lock(file, wait=True)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")  # the process title may still name an earlier run
        file.flush()
        yield


@contextlib.contextmanager
def lock_directory(workdir: Path, say: Callable[[str], None]) -> Iterator[int]:
    """Holds a study's directory for a sweep and its workers; yields the lock's file descriptor.

    Args:
        workdir: The study's directory.
        say: Prints a line.

    Raises:
        UserError: Another sweep holds it, workers of a killed sweep do not end, or it cannot be locked.
    """
    with open(StudyDirectory(workdir).lock, "a+", encoding="utf-8") as file:
        deadline, told = time.monotonic() + ORPHAN_SECONDS, False
        while True:
            try:
                lock(file)
                break
            except BlockingIOError:
                file.seek(0)
                if is_at_work(file.read()) or time.monotonic() > deadline:
                    raise UserError(
                        f"{workdir}: another sweep is running here, or runs of a killed sweep are still saving; wait for"
                        " them to end, or give another --workdir"
                    ) from None
            if not told:
                say(f"waiting up to {ORPHAN_SECONDS:.0f} s for the runs of a killed sweep to save and end")
                told = True
            time.sleep(POLL_SECONDS)
        file.truncate(0)
        file.write(f"{os.getpid()} {socket.gethostname()}")
        file.flush()
        yield file.fileno()


def is_at_work(holder: str) -> bool:
    """Whether the sweep that wrote "pid host" into its lock still runs; False if that is unknown."""
    number, _, host = holder.partition(" ")
    return number.isdigit() and host == socket.gethostname() and is_running(int(number))
