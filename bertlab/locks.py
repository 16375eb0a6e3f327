"""Locks: at most one process at a time writes to a run's or a study's directory, a corpus in the cache, an export, a file.

A lock is `flock` on a file that says who holds it, since when and for what. The kernel frees it when its holder ends, even by
SIGKILL, so a lock file that a killed process left behind blocks nobody. Over NFS the server keeps the locks: they hold between
hosts, and those of a host that is gone are free once its lease there has run out.
"""

import contextlib
import datetime
import errno
import fcntl
import json
import os
import shlex
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from bertlab.errors import UserError
from bertlab.files import is_running, misfit, parse_json

POLL_SECONDS = 0.1  # between two attempts
ORPHAN_SECONDS = 20.0  # how long what a killed process started, such as a sweep's runs, may take to save and end
SHOWN = 100  # characters of a holder's command in a message

_held: dict[tuple[int, Path], int] = {}  # (this process, lock file) -> file descriptor


def _print(line: str) -> None:
    print(line, flush=True)


@contextlib.contextmanager
def alone(
    place: str | os.PathLike,
    lock: Path | None = None,
    *,
    wait: bool = False,
    required: bool = False,
    say: Callable[[str], None] = _print,
) -> Iterator[int | None]:
    """Holds a place for this process; yields the lock's file descriptor, None without a lock.

    A process may take a lock again that it holds. A place that it may not write to needs none.

    Args:
        place: The directory or file.
        lock: The lock file; None: `.NAME.lock` beside the place, for what appears in one move or is read as a whole.
        wait: Wait for another holder to end, however long; otherwise it is an error.
        required: Refuse a file system without locks; otherwise one line says that nothing keeps others out.
        say: Prints a line.

    Raises:
        UserError: Another process holds it, or it cannot be locked.
    """
    if lock:
        file = Path(os.path.realpath(lock.parent), lock.name)
    else:
        file = Path(os.path.realpath(place))
        file = file.with_name(f".{os.fsdecode(os.fsencode(file.name)[:200])}.lock")
    own = os.getpid(), file
    if own in _held:
        yield _held[own]
        return
    made = [folder for folder in file.parents if not folder.exists()]
    handle = _acquire(Path(place), file, wait, required, say)
    try:
        if handle is None:
            yield None
            return
        with handle:
            _held[own] = handle.fileno()
            try:
                _sign(handle)
                yield handle.fileno()
            finally:
                del _held[own]
                with contextlib.suppress(OSError):  # a file that stays is free
                    file.unlink()
    finally:
        with contextlib.suppress(OSError):
            for folder in made:  # if nothing has been written
                folder.rmdir()


def _acquire(place: Path, file: Path, wait: bool, required: bool, say: Callable[[str], None]) -> IO | None:
    """The open lock file, locked; None if there is no lock to be had. Raises as `alone`."""
    told, deadline = "", time.monotonic() + ORPHAN_SECONDS
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = _open(file)
        except FileNotFoundError:
            continue  # its holder has just removed a directory that stayed empty
        except OSError:
            if os.access(file.parent, os.W_OK):
                raise
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle.fileno()).st_nlink:
                return handle
            handle.close()  # its holder has just removed it
            continue
        except BlockingIOError:
            handle.close()
        except OSError as error:
            handle.close()
            file.unlink(missing_ok=True)
            said = f"{place} cannot be locked ({error.strerror})"
            if required:
                raise UserError(
                    f"{said}; two processes could write there at once. Choose a place on a file system with flock"
                ) from None
            say(f"{said}: see to it that no other process writes there")
            return None
        holder, gone = _holder(file)
        if not wait and (not gone or time.monotonic() > deadline):
            raise UserError(f"{place} is in use by {holder}; wait until that has ended, or choose another place")
        if holder != told:
            say(f"waiting {'' if wait else f'up to {ORPHAN_SECONDS:.0f} s '}for {holder}, to write to {place}")
            told = holder
        time.sleep(POLL_SECONDS)


_SIGNATURE = b'{"process": '  # begins a lock's text; what a killed process wrote may be cut


def _open(file: Path) -> IO:
    """The lock file, open. A link would lead to a file that is none of ours, which signing would overwrite.

    Raises:
        UserError: Something else has its name.
    """
    try:
        found = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        if stat.S_ISREG(os.fstat(found).st_mode) and _SIGNATURE.startswith(os.pread(found, len(_SIGNATURE), 0)):
            return os.fdopen(found, "r+", encoding="utf-8")
        os.close(found)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
    raise UserError(f"{file} is not a lock that bertlab made; see what it is, and remove or rename it")


def _sign(handle: IO) -> None:
    """Writes who holds a lock."""
    command = shlex.join([os.path.basename(sys.argv[0]), *sys.argv[1:]])
    since = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
    holder = {"process": os.getpid(), "host": socket.gethostname(), "command": command, "since": since}
    handle.truncate(0)
    handle.write(json.dumps(holder) + "\n")
    handle.flush()


def _holder(file: Path) -> tuple[str, bool]:
    """Who holds a lock, for a message; whether that process, on this host, has ended, or is unknown as yet."""
    found: Any = None
    with contextlib.suppress(OSError, ValueError):
        found = parse_json(file.read_text(encoding="utf-8"))
    if misfit(found, {"process": int, "host": str, "command": str, "since": str}):
        return "another process", True
    command = " ".join(found["command"].split())
    shown = command if len(command) <= SHOWN else f"{command[:SHOWN]}..."
    said = f"process {found['process']} on {found['host']} ({shown}, since {found['since']})"
    if found["host"] == socket.gethostname() and not is_running(found["process"]):
        return f"what was started by {said}, which has ended", True
    return said, False
