"""A layer under a process that sees every call that changes a file, and makes one of them fail or kills the process there.

It is Linux's seccomp with a supervisor (kernel 5.6 or later): the kernel asks this process before each such call of the
other one, of its threads and of the processes that it starts, whatever language made the call.
"""

import ctypes
import errno
import os
import platform
import re
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

# Operation -> the numbers of its calls (x86_64, aarch64); None where a machine lacks one.
CALLS = {
    "open": {"open": (2, None), "openat": (257, 56), "creat": (85, None)},
    "write": {"write": (1, 64), "pwrite64": (18, 68), "writev": (20, 66), "pwritev": (296, 70)},
    "copy": {"sendfile": (40, 71), "copy_file_range": (326, 285)},
    "sync": {"fsync": (74, 82), "fdatasync": (75, 83)},
    "truncate": {"ftruncate": (77, 46), "fallocate": (285, 47)},
    "rename": {"rename": (82, None), "renameat": (264, 38), "renameat2": (316, 276)},
    "link": {"link": (86, None), "linkat": (265, 37)},
    "mkdir": {"mkdir": (83, None), "mkdirat": (258, 34)},
    "remove": {"unlink": (87, None), "unlinkat": (263, 35), "rmdir": (84, None)},
}
COLUMN = ("x86_64", "aarch64").index(platform.machine())
NAMES = {of[COLUMN]: (operation, name) for operation, calls in CALLS.items() for name, of in calls.items() if of[COLUMN]}
SECCOMP, ARCHITECTURE, PIDFD_OPEN, PIDFD_GETFD = ((317, 0xC000003E, 434, 438), (277, 0xC00000B7, 434, 438))[COLUMN]
RECEIVE, SEND = 0xC0502100, 0xC0182101
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

# What can happen to an operation. A disk that is full or read-only stays so; the others happen once. "killed" is SIGKILL before
# the call, for the process and all that it started, as when a machine is taken away; "torn" is SIGKILL after half of a write;
# "lost" is SIGKILL for the one of several processes that made the call.
KILLS = ("killed", "torn")
LOST = "lost"
FAULTS = {
    "open": ("ENOSPC", "EROFS", "EIO", "killed"),
    "write": ("ENOSPC", "EIO", "short", "killed", "torn"),
    "copy": ("ENOSPC", "EIO", "killed"),
    "sync": ("EIO", "ENOSPC", "killed"),
    "truncate": ("EIO", "ENOSPC", "killed"),
    "rename": ("EIO", "EROFS", "ENOSPC", "killed"),
    "link": ("EIO", "ENOSPC", "killed"),
    "mkdir": ("ENOSPC", "EROFS", "killed"),
    "remove": ("EIO", "EROFS", "killed"),
}
GROWS = ("open", "write", "copy", "truncate", "rename", "link", "mkdir")
# Parts of names that differ from run to run.
RANDOM = [
    (r"\.preparing-[^/]+", ".preparing"),
    (r"\.part-[\w-]+", ".part"),
    (r"\.[\w-]+-\d+\.partial", ".partial"),
    (r"\.writable-\w+", ".writable"),
    (r"/adopted-[\w-]+", "/adopting"),
    (r"/d/[0-9a-f]{32}", "/d/*"),
    (r"tmp[\w]{8}\b", "tmp"),
]
# Of these, names that are not final.
TEMPORARY = [one for one in RANDOM if one[1] != "/d/*"] + [(r"\.orbax-checkpoint-tmp", "")]

libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, order=True)
class Point:
    """A call: the n-th of an operation on a file, whose name is without what is random."""

    operation: str
    path: str
    number: int

    def __str__(self) -> str:
        return f"{self.operation}:{self.path}#{self.number}"


@dataclass
class Layer:
    """What was seen, and what fails.

    Attributes:
        roots: only files below these directories count.
        point, fault: the call that fails, and how; None: none does.
        points: the calls that were seen, in order.
        met: whether the point was among them.
        unsynchronised: files that got their final name before their content was brought to the disk.
    """

    roots: Sequence[Path]
    point: Point | None = None
    fault: str = ""
    points: list[Point] = field(default_factory=list)
    met: bool = False
    unsynchronised: list[str] = field(default_factory=list)
    _dirty: set[Path] = field(default_factory=set)
    _numbers: Counter = field(default_factory=Counter)
    _child: int = 0

    def run(self, function: Callable[[], int], seconds: float = 600) -> int | None:
        """Calls a function in a fork of this process under the layer; its exit status, or None if it had to be killed."""
        ours, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            status = 99
            try:
                socket.send_fds(theirs, [b"x"], [_install()])
                status = function()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        self._child = child
        listener = socket.recv_fds(ours, 1, 1)[1][0]
        ours.close()
        theirs.close()
        status = self._supervise(listener, child, time.monotonic() + seconds)
        os.close(listener)
        return status

    def _supervise(self, listener: int, child: int, deadline: float) -> int | None:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        buffer = ctypes.create_string_buffer(80)
        while True:
            for _, event in poll.poll(100):
                if event & select.POLLIN:
                    ctypes.memset(buffer, 0, 80)
                    if libc.ioctl(listener, ctypes.c_ulong(RECEIVE), buffer) == 0:
                        number, value, error, flags = self._decide(buffer.raw)
                        answer = ctypes.create_string_buffer(struct.pack("=Qqii", number, value, error, flags))
                        libc.ioctl(listener, ctypes.c_ulong(SEND), answer)
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                _kill(child)
                os.waitpid(child, 0)
                return None

    def _decide(self, request: bytes) -> tuple[int, int, int, int]:
        """The kernel's request -> its number, and what the call returns: a value, an error, or (flag 1) whatever it does."""
        identity, process, _, call, _, _, *arguments = struct.unpack("=QIIiIQ6Q", request)
        go_on = identity, 0, 0, 1
        operation, name = NAMES[call]
        try:
            path = _path(process, name, arguments)
        except OSError:  # a thread that has ended
            return go_on
        root = next((root for root in self.roots if path.is_relative_to(root)), None)
        if root is None:
            return go_on
        shown = f"{root.name}/{path.relative_to(root)}"
        for pattern, plain in RANDOM:
            shown = re.sub(pattern, plain, shown)
        self._numbers[operation, shown] += 1
        point = Point(operation, shown, self._numbers[operation, shown])
        self.points.append(point)
        lasting = self.met and (self.fault == "EROFS" or (self.fault == "ENOSPC" and operation in GROWS))
        if point != self.point and not lasting:
            self._note(operation, path, _source(process, name, arguments) if operation == "rename" else path)
            return go_on
        self.met = True
        if self.fault in ("short", "torn"):
            written = _write_half(process, name, arguments)
            if self.fault == "short":
                return go_on if written is None else (identity, written, 0, 0)
        if self.fault in (*KILLS, LOST):
            _kill(self._child) if self.fault in KILLS else os.kill(_group(process), signal.SIGKILL)
            return identity, 0, -errno.EIO, 0  # nobody is left to see it
        return identity, 0, -getattr(errno, self.fault), 0

    def _note(self, operation: str, path: Path, source: Path) -> None:
        """Keeps which files have content that is not on the disk; `source` is the old name of what is renamed."""
        if operation in ("open", "write", "copy", "truncate"):
            self._dirty.add(path)
        elif operation in ("sync", "remove"):
            self._dirty.discard(path)
        elif operation == "rename":
            moved = {one: path / one.relative_to(source) for one in self._dirty if one.is_relative_to(source)}
            self._dirty = {one for one in self._dirty if not one.is_relative_to(path)} - {*moved} | {*moved.values()}
            if not any(re.search(pattern, str(path)) for pattern, _ in TEMPORARY):
                self.unsynchronised += sorted(map(str, moved.values()))


def _install() -> int:
    """Puts this process under the layer; returns the supervisor's end."""
    load, jump, mask, give = 0x20, 0x15, 0x45, 0x06
    ask, allow = 0x7FC00000, 0x7FFF0000
    code = [(load, 0, 0, 4), (jump, 1, 0, ARCHITECTURE), (give, 0, 0, allow), (load, 0, 0, 0)]
    for number, (_, name) in NAMES.items():
        if name == "openat" or name == "open":  # only to write
            flags = 16 + 8 * (2 if name == "openat" else 1)
            code += [(jump, 0, 4, number), (load, 0, 0, flags), (mask, 0, 1, WRITES), (give, 0, 0, ask), (give, 0, 0, allow)]
        else:
            code += [(jump, 0, 1, number), (give, 0, 0, ask)]
    code.append((give, 0, 0, allow))
    instructions = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in code))
    program = ctypes.create_string_buffer(struct.pack("=H6xQ", len(code), ctypes.addressof(instructions)))
    libc.prctl(1, 9, 0, 0, 0)  # killed with its parent
    libc.prctl(38, 1, 0, 0, 0)  # no new privileges
    listener = libc.syscall(SECCOMP, 1, 8, program)
    if listener < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return listener


def _kill(process: int) -> None:
    """SIGKILL for a process and everything below it at once."""
    found = [psutil.Process(process), *psutil.Process(process).children(recursive=True)]
    for one in found:
        one.suspend()  # so that none sees another end
    for one in found:
        one.kill()


def _group(thread: int) -> int:
    """The process of a thread."""
    with open(f"/proc/{thread}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Tgid:"))


def _memory(process: int, address: int, size: int) -> bytes:
    with open(f"/proc/{process}/mem", "rb", 0) as memory:
        return os.pread(memory.fileno(), size, address)


def _text(process: int, address: int) -> str:
    found = b""
    while b"\0" not in found:  # page by page: the next may not exist
        at = address + len(found)
        found += _memory(process, at, 4096 - at % 4096)
    return os.fsdecode(found.split(b"\0")[0])


def _path(process: int, name: str, arguments: Sequence[int]) -> Path:
    """The file of a call; of a rename or a link, the new one."""
    if name in ("write", "pwrite64", "writev", "pwritev", "fsync", "fdatasync", "ftruncate", "fallocate", "sendfile"):
        return Path(os.readlink(f"/proc/{process}/fd/{arguments[0]}"))
    if name == "copy_file_range":
        return Path(os.readlink(f"/proc/{process}/fd/{arguments[2]}"))
    first = {"rename": 1, "link": 1, "renameat": 2, "renameat2": 2, "linkat": 2}.get(name, 0)
    if not name.endswith("at") and name != "renameat2":
        return _named(process, -100, arguments[first])
    return _named(process, *arguments[first : first + 2])


def _source(process: int, name: str, arguments: Sequence[int]) -> Path:
    """The old name of what is renamed."""
    return _named(process, *((-100, arguments[0]) if name == "rename" else arguments[:2]))


def _named(process: int, base: int, address: int) -> Path:
    """The file of a name in a process's memory, which is below an open folder, or the working directory."""
    base = ctypes.c_int(base & 0xFFFFFFFF).value
    within = f"/proc/{process}/cwd" if base == -100 else f"/proc/{process}/fd/{base}"
    return Path(os.path.normpath(os.path.join(os.readlink(within), _text(process, address))))


def _write_half(process: int, name: str, arguments: Sequence[int]) -> int | None:
    """Does the first half of a write for the process; returns the number of bytes, None if there is no half."""
    descriptor, address, size, offset, *_ = arguments
    if name.endswith("v"):
        address, size = struct.unpack("=QQ", _memory(process, address, 16))  # of the first part
    if size < 2:
        return None
    handle = libc.syscall(PIDFD_OPEN, _group(process), 0)
    copy = libc.syscall(PIDFD_GETFD, handle, descriptor, 0)
    half = _memory(process, address, size // 2)
    try:
        return os.pwrite(copy, half, offset) if name.startswith("p") else os.write(copy, half)
    finally:
        os.close(copy)
        os.close(handle)
