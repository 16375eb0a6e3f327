"""The interface of all launchers, and how each starts a worker on its machine."""

import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from bertlab.run import Run


class Process(Protocol):
    """One run executed by a worker on some machine."""

    def poll(self) -> int | None:
        """The exit status, or -N if signal N ended it; None while it is queued or running."""

    def state(self) -> str:
        """What to show until it ends: "queued" or "running"."""
        return "running"

    def stop(self) -> None:
        """Tells the worker to save and end (SIGTERM), or removes it from the queue; does not wait."""

    def kill(self) -> None:
        """Ends the worker at once (SIGKILL), or removes it from the queue."""

    def wait(self) -> int:
        """Waits until it has ended; returns the exit status."""
        while (status := self.poll()) is None:
            time.sleep(0.05)
        return status


class QueuedProcess(Process):
    """A run in an engine's queue; it has a node once its log.txt grows."""

    def __init__(self, directory: Path, log_start: int):
        self.directory, self.log_start = directory, log_start
        self.status: int | None = None

    def state(self) -> str:
        return "running" if log_size(self.directory) > self.log_start else "queued"


class Launcher(Protocol):
    """Starts workers; the caller keeps at most `jobs` of them at a time.

    Attributes:
        jobs: Workers at a time.
        is_here: Whether they run on this machine.
    """

    jobs: int
    is_here = False

    def share(self, workers: int) -> float | None:
        """The share of this machine's cores that each of so many workers has; None if each has its own device or node."""
        return None

    def require(self) -> None:
        """Refuses to start anything where the engine's own programs are missing; a dry run does without them.

        Raises:
            UserError: Names the program.
        """
        return None

    def preview(self, command: Sequence[str], directory: Path) -> str:
        """What `start` would submit for a run that begins with no other one; "" if there is nothing to read."""
        return ""

    def start(self, command: Sequence[str], directory: Path, lock: int | None) -> Process:
        """Starts a worker, or gives the run to an idle one.

        Args:
            command: The worker's command; its last word is the run's job.json. Launchers add options.
            directory: The run's directory; output is appended to its log.txt.
            lock: A file descriptor that a worker on this machine inherits, or None.

        Raises:
            UserError: The engine refuses it or cannot be reached.
        """

    def close(self) -> None:
        """Releases the engine and idle workers; called when no run is left."""
        return None


def start_worker(command: Sequence[str], directory: Path, log: Path | None = None, **options: Any) -> subprocess.Popen:
    """Starts a worker on this machine; it saves and ends if this process dies.

    Args:
        command: The worker's command.
        directory: The run's directory; absolute if another machine asks.
        log: What its output is appended to; None: the run's log.txt.
        **options: As `subprocess.Popen`'s.
    """
    with open(log or Run(directory).log, "ab") as output:
        # Its own session keeps the terminal's Ctrl-C from the worker; it is to save on our SIGTERM.
        return subprocess.Popen(
            [*command, "--stop_with_parent"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **options,
        )


def start_on_node(command: Sequence[str], directory: Path, **options: Any) -> subprocess.Popen:
    """`start_worker` on a cluster's node; writes the node's name to log.txt first."""
    append_line(directory, f"started on {socket.gethostname()}")
    return start_worker(command, directory, **options)


def attend(process: subprocess.Popen) -> int:
    """Waits for a worker inside an engine's job; returns its exit status. KeyboardInterrupt makes it save and end."""
    # If a script started the sweep in the background, SIGINT is ignored, and an engine on this machine inherits that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with process:
        while True:
            try:
                return process.wait(timeout=1)  # Ray's interrupt does not end a system call, so keep each short
            except subprocess.TimeoutExpired:
                continue
            except KeyboardInterrupt:
                process.terminate()


def append_line(directory: Path, text: str) -> None:
    """Appends a line to a run's log.txt."""
    with open(Run(directory).log, "a", encoding="utf-8") as log:
        log.write(text + "\n")


def log_size(directory: Path) -> int:
    """The size of a run's log.txt in bytes; it grows once the run has a node."""
    path = Run(directory).log
    return path.stat().st_size if path.exists() else 0
