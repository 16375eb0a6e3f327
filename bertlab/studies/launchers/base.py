"""What every launcher keeps to, and how each starts a worker where it runs."""

import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from bertlab.run import Run


class Process(Protocol):
    """One run in the hands of a worker, wherever it is."""

    def poll(self) -> int | None:
        """The exit status, -N where signal N ended it; None as long as it is queued or running."""

    def state(self) -> str:
        """What to show while it has not ended: "queued" or "running"."""

    def stop(self) -> None:
        """Asks the worker to save and end (SIGTERM), or takes it from the queue; does not wait."""

    def kill(self) -> None:
        """Ends the worker at once (SIGKILL), or takes it from the queue."""

    def wait(self) -> int:
        """Waits until it has ended, and returns what `poll` then does."""


class Launcher(Protocol):
    """Starts workers; at most `jobs` of them are to be unfinished at a time.

    Attributes:
        jobs: Workers at a time.
        is_here: They run on this machine.
    """

    jobs: int
    is_here: bool

    def share(self, workers: int) -> float | None:
        """The part of this machine's cores that each of so many workers has; None where each has a device or node alone."""

    def start(self, command: Sequence[str], directory: Path, lock: int | None) -> Process:
        """Starts a worker, or gives the run to one that has none.

        Args:
            command: The worker's command, of which the run's job.json is the last word; launchers add options.
            directory: The run's directory; the output is appended to its log.txt.
            lock: A file descriptor that a worker on this machine inherits, or None.

        Raises:
            UserError: The engine does not take it, or cannot be reached.
        """

    def close(self) -> None:
        """Lets go of the engine, and of workers that have no run; called when no run is left."""


def start_worker(command: Sequence[str], directory: Path, **options: Any) -> subprocess.Popen:
    """Starts a worker on this machine, which saves and ends when this process is gone.

    Args:
        command: The worker's command.
        directory: The run's directory, absolute where it is another machine that asks.
        **options: As `subprocess.Popen`'s.
    """
    with open(Run(directory).log, "ab") as log:
        # A session of its own keeps the terminal's Ctrl-C from the worker, which is to save on our SIGTERM.
        return subprocess.Popen(
            [*command, "--stop_with_parent"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **options,
        )


def start_on_node(command: Sequence[str], directory: Path) -> subprocess.Popen:
    """`start_worker` on a node of a cluster, whose name it writes into log.txt first."""
    append_line(directory, f"started on {socket.gethostname()}")
    return start_worker(command, directory)


def attend(process: subprocess.Popen) -> int:
    """Waits for a worker within an engine's job, and returns its exit status; KeyboardInterrupt makes it save and end."""
    # An engine on this machine inherits that SIGINT is ignored from a sweep that a script has put into the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with process:
        while True:
            try:
                return process.wait(timeout=1)  # Ray's interrupt does not end a system call, so that none may be a long one
            except subprocess.TimeoutExpired:
                continue
            except KeyboardInterrupt:
                process.terminate()


def append_line(directory: Path, text: str) -> None:
    """Adds to a run's log.txt."""
    with open(Run(directory).log, "a", encoding="utf-8") as log:
        log.write(text + "\n")


def log_size(directory: Path) -> int:
    """The length of a run's log.txt in bytes; it grows when the run has found a node."""
    path = Run(directory).log
    return path.stat().st_size if path.exists() else 0
