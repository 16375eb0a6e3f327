"""A folder's snapshots at a URL, so that a run goes on elsewhere when its machine is taken away.

    bertlab mirror runs/x gs://bucket/x -- bertlab train --config=... --workdir=runs/x

An object store has no locks and moves no folder in one step, so nothing here needs them. Below the URL:

    000003/claim        who made the third attempt; created only if it is not there, which the store decides
    000003/list.json    the files of the snapshot, with sizes, digests and where they lie; replaced in one step
    000003/DIGEST       the content of a file, under the digest of its content; never changed

A snapshot is the list: whoever reads it sees all files of one moment. The newest attempt that has a list counts. An older
attempt that is still alive writes only below its own number, where it damages nothing, and ends at its next snapshot.

No list holds links: what they lead to is saved. Links that lead nowhere or in a circle, pipes and sockets are left out. Of a
file's mode a list keeps whether its owner may execute it.
"""

import contextlib
import dataclasses
import datetime
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from bertlab.checksums import digest_of, digest_of_file
from bertlab.errors import RunFailed, UserError, reason_of
from bertlab.files import (
    is_begun,
    is_plain_name,
    is_temporary,
    link_or_copy,
    misfit,
    move,
    parse_json,
    read_json,
    temporary_folder,
    write_json,
)
from bertlab.interrupts import interruptible
from bertlab.remote import Bucket, require_lasting

FORMAT = 1
SECONDS = 60.0
"""Between two snapshots of a folder in which a command is at work."""
MARK = "mirror.json"
"""In a folder: the snapshot that it was last equal to."""

_TRIES = 50  # to find a folder at rest
_END_SECONDS = 60.0  # in which a command that was told to end has ended
_FILE = {"bytes": int, "blake2b": str, "at": str, "executable?": bool}
_LIST = {"format": int, "files": {str: _FILE}, "folders": [str], "status": (int, None)}
# Bertlab's own, of one machine: the locks beside places, of runs and of sweeps; or of a checkpoint that is being written.
_LEFT = re.compile(r"(\..+|run|sweep)\.lock|alive\.txt|.*\.orbax-checkpoint-tmp.*|" + re.escape(MARK), re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The newest list at a URL.

    Attributes:
        files: Path below the folder -> bytes, blake2b, at: the place of its content below the URL, and executable: true, if so.
        folders: Paths of folders.
        status: The exit status of the command that was at work; None while it is, or was when its machine was lost.
        digest: Of the list.
    """

    files: dict[str, dict[str, Any]]
    folders: list[str]
    status: int | None
    digest: str


class Superseded(RunFailed):
    """A newer attempt has begun at the URL."""


class Mirror:
    """The snapshots of one folder at a URL.

    Args:
        url: `gs://BUCKET/PATH`, `s3://BUCKET/PATH`, or `file:///PATH`.

    Raises:
        UserError: As `bertlab.remote.open_system`.

    Attributes:
        left_out: Paths below the folder of the links, pipes and sockets that were left out when it was last saved.
    """

    def __init__(self, url: str):
        self.url = url.rstrip("/")
        self.left_out: list[str] = []
        self._bucket = Bucket(url)
        self._number = 0  # of this attempt; 0 before
        self._kept: dict[str, str] = {}  # digest -> place below the URL, of what the last list names
        self._digests: dict[tuple[int, int, int], str] = {}
        self._list = ""

    def newest(self) -> Snapshot | None:
        """The snapshot that counts; None before the first.

        Raises:
            UserError: Its list is damaged.
            StoreFailed: The store cannot be reached.
        """
        for number in sorted(self._attempts(), reverse=True):
            place = f"{number:06}/list.json"
            try:
                text = self._bucket.read(place).decode()
            except FileNotFoundError:
                continue
            except UnicodeDecodeError as error:
                raise self._damage(place, str(error)) from None
            try:
                found = parse_json(text)
            except ValueError as error:
                raise self._damage(place, str(error)) from None
            if wrong := misfit(found, _LIST):
                raise self._damage(place, wrong)
            names = [*found["files"], *found["folders"], *(of["at"] for of in found["files"].values())]
            if outside := [name for name in names if not all(map(is_plain_name, name.split("/")))]:
                raise self._damage(place, f"{outside[0][:80]!r} leads out of the folder")
            self._kept = {of["blake2b"]: of["at"] for of in found["files"].values()}
            return Snapshot(found["files"], found["folders"], found["status"], digest_of(text.encode()))
        return None

    def require_place(self, folder: Path) -> None:
        """Refuses a URL where no snapshots of a folder can stay.

        Raises:
            UserError: It is in this process's memory, in the folder, or a file.
        """
        require_lasting(self.url)
        if not (place := self._bucket.folder):
            return
        for path in [folder, *_folders(folder)]:  # one below may be a link to where the place is
            if place.is_relative_to(os.path.realpath(path)):
                raise UserError(f"{self.url} is in {path}, so each snapshot would hold those before it; give a place outside")
        if files := [path for path in (place, *place.parents) if path.exists() and not path.is_dir()]:
            raise UserError(f"{self.url}: {files[0]} is a file; give a folder, which need not exist")

    def claim(self) -> None:
        """Begins a new attempt: from now on, older ones end at their next snapshot. `begin` is for a folder.

        Raises:
            UserError: The store does not keep an object from being created twice.
            StoreFailed: The store cannot be reached or written.
        """
        now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
        who = f"process {os.getpid()} on {socket.gethostname()} since {now}"
        number = max(self._attempts(), default=0) + 1
        while not self._bucket.create(f"{number:06}/claim", who.encode()):
            number += 1
        if self._bucket.create(f"{number:06}/claim", who.encode()):
            raise UserError(f"{self.url}: this store creates one object twice, so two attempts could mix; use another store")
        self._number = number

    def begin(self, folder: Path, keep: Collection[str] = (), begun: Callable[[Path], bool] | None = None) -> Snapshot | None:
        """Begins a new attempt in a folder: `claim`, then `take`. A folder or a list that is refused ends no other attempt.

        Args, returns and raises: As `take` and `claim`.
        """
        if self.newest() is not None:
            self._require_ours(folder, begun)
        self.claim()
        return self.take(folder, keep, begun)  # which looks again: there may be a newer list

    def take(self, folder: Path, keep: Collection[str] = (), begun: Callable[[Path], bool] | None = None) -> Snapshot | None:
        """Makes a folder equal to the newest snapshot, in one move, unless it has itself gone on from it.

        Args:
            folder: The folder; it need not exist.
            keep: Names in the folder of files that stay as they are there.
            begun: Whether a folder that never was mirrored here has something to lose; default: whether it has any file.

        Returns:
            The newest snapshot, None without one.

        Raises:
            UserError: The folder holds something else, or the snapshot is damaged.
            StoreFailed: The store cannot be reached.
            OSError: The folder cannot be written.
        """
        if (found := self.newest()) is None:
            return None
        if self._require_ours(folder, begun) == found.digest:
            return found
        folder.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(folder.parent, "mirrored") as place:
            while True:
                try:
                    self._download(found, place / "new")
                    break
                except UserError:
                    before, found = found, self.newest()  # what it names may have been replaced while it was read
                    if found is None or found == before:
                        raise
            for name in keep:
                if (folder / name).exists():
                    shutil.copy2(folder / name, place / "new" / name)
            self._mark(place / "new", found.digest)
            if folder.exists():
                os.rename(folder, place / "old")
            move(place / "new", folder)
        return found

    def save(self, folder: Path, status: int | None = None, mark: bool = True) -> None:
        """Adds a snapshot of a folder, unless nothing has changed; `claim` comes first.

        Args:
            folder: The folder; other processes may be writing to it.
            status: As `Snapshot.status`.
            mark: Whether the folder is to remember the snapshot.

        Raises:
            Superseded: A newer attempt has begun.
            StoreFailed: The store cannot be reached or written.
            RunFailed: As `freeze`.
        """
        self._require_newest()
        with temporary_folder(folder.parent, "mirrored") as place:
            names, folders, self.left_out = freeze(folder, place / "files")
            files, missing = {}, {}
            for name in names:
                path = place / "files" / name
                digest = self._digest(path)
                at = self._kept.get(digest) or f"{self._number:06}/{digest}"
                found = path.stat()
                files[name] = {"bytes": found.st_size, "blake2b": digest, "at": at}
                if found.st_mode & stat.S_IXUSR:
                    files[name]["executable"] = True
                if digest not in self._kept:
                    missing[at] = path
            text = json.dumps({"format": FORMAT, "files": files, "folders": folders, "status": status}, indent=1)
            if text == self._list:
                return
            for at, path in missing.items():
                self._bucket.put(path, at)
        self._require_newest()  # it may have been long
        self._bucket.replace(f"{self._number:06}/list.json", text.encode())
        self._list, before = text, self._kept
        self._kept = {of["blake2b"]: of["at"] for of in files.values()}
        if mark:
            self._mark(folder, digest_of(text.encode()))
        # A newer attempt claims before it reads a list: if it has read the one before this, it is seen here.
        self._require_newest()
        for at in set(before.values()) - set(self._kept.values()):
            self._bucket.remove(at)

    def tidy(self) -> None:
        """Removes what attempts before this one left and the list does not name; raises as `save`."""
        self._require_newest()
        for number in self._attempts():
            if number < self._number:
                for name in set(self._bucket.below(f"{number:06}")) - set(self._kept.values()):
                    self._bucket.remove(name)

    def _require_ours(self, folder: Path, begun: Callable[[Path], bool] | None) -> str:
        """The digest of the list that a folder was last equal to, "" of none; raises UserError if it holds something else."""
        mark = read_json(folder / MARK) if (folder / MARK).exists() else {}
        if isinstance(mark, dict) and mark.get("url") == self.url:
            return str(mark.get("snapshot"))
        if folder.exists() and (begun(folder) if begun else any(folder.iterdir())):
            raise UserError(f"{folder} holds files that are not from {self.url}; give another folder, or another URL")
        return ""

    def _attempts(self) -> list[int]:
        return [int(name) for name in self._bucket.children() if name.isdecimal() and name.isascii()]

    def _require_newest(self) -> None:
        assert self._number, "claim comes first"
        if (newest := max(self._attempts(), default=0)) > self._number:
            who = self._bucket.read(f"{newest:06}/claim").decode("utf-8", "replace").strip()
            raise Superseded(f"{self.url} was taken over by {who}; this attempt ends")

    def _download(self, found: Snapshot, folder: Path) -> None:
        """Writes the files of a snapshot; raises UserError if one is not what the list says."""
        for path in [folder, *(folder / name for name in found.folders)]:
            path.mkdir(parents=True, exist_ok=True)
        for name, of in found.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._bucket.get(of["at"], path)
            except FileNotFoundError:
                raise self._damage(of["at"], f"{name} is missing") from None
            if path.stat().st_size != of["bytes"] or self._digest(path) != of["blake2b"]:
                raise self._damage(of["at"], f"{name} does not match its digest")
            if of.get("executable"):
                mode = stat.S_IMODE(path.stat().st_mode)
                path.chmod(mode | (mode & 0o444) >> 2)  # by all who may read it

    def _digest(self, path: Path) -> str:
        """Of a file's content; of one that is linked and has not changed, only once."""
        of = path.stat()
        key = of.st_ino, of.st_size, of.st_mtime_ns
        if of.st_nlink < 2:
            return digest_of_file(path)
        if key not in self._digests:
            self._digests[key] = digest_of_file(path)
        return self._digests[key]

    def _mark(self, folder: Path, digest: str) -> None:
        write_json(folder / MARK, {"url": self.url, "snapshot": digest})

    def _damage(self, place: str, what: str) -> UserError:
        return UserError(f"{self.url}/{place} is damaged ({what}); delete {self.url} to start over")


def freeze(folder: Path, place: Path) -> tuple[list[str], list[str], list[str]]:
    """Copies a folder as it is at one moment, while others write to it.

    Files are replaced, not rewritten (but for logs, which grow), so a folder whose files are the same ones before and after
    was at rest. Checkpoints are linked, as they are never written again.

    Returns:
        The paths below the folder of its files, of its folders, and of the links, pipes and sockets that are left out.

    Raises:
        RunFailed: It is never at rest, or holds a name that is not UTF-8.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # removed in between
            before = dict(_entries(folder))
            names = sorted(name for name, number in before.items() if number is not None)
            if wrong := _wrong_name(folder, names):
                raise RunFailed(wrong)
            place.mkdir()
            for name in names:
                path = place / name
                if name.endswith("/"):
                    path.mkdir()
                elif "checkpoints" in Path(name).parts and not (folder / name).is_symlink():
                    link_or_copy(folder / name, path)
                else:
                    shutil.copy2(folder / name, path)
            if dict(_entries(folder)) == before:
                files, folders = [name for name in names if name[-1] != "/"], [name[:-1] for name in names if name[-1] == "/"]
                return files, folders, sorted(before.keys() - set(names))
        shutil.rmtree(place, ignore_errors=True)
        time.sleep(0.1)
    raise RunFailed(f"{folder} changes all the time and cannot be copied as it is at one moment; end what else writes there")


def _entries(folder: Path, below: str = "", within: tuple[str, ...] = ()) -> Iterator[tuple[str, int | None]]:
    """(path, with / at the end of a folder's; number of the file on the disk, None if it is left out).

    `within` are the folders that the walk has come through; a link to one of them, or to what holds it, leads in a circle.
    """
    within += (os.path.realpath(folder),)
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if _LEFT.fullmatch(entry.name) or is_begun(entry.name) or is_temporary(entry.name):
            continue
        name, target = f"{below}{entry.name}", os.path.realpath(entry.path)
        if os.path.isdir(target) and not any(Path(of).is_relative_to(target) for of in within):
            yield f"{name}/", os.stat(target).st_ino
            yield from _entries(Path(entry.path), f"{name}/", within)
        elif os.path.isfile(target):
            yield name, os.stat(target).st_ino
        else:
            yield name, None


def _folders(folder: Path) -> list[Path]:
    """The folders below one."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # others remove them
        return [folder / name for name, _ in _entries(folder) if name.endswith("/")]
    return []


def _wrong_name(folder: Path, names: Iterable[str]) -> str:
    """A sentence about the first name that no list can hold; "" without one."""
    for name in names:
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            return f"{folder} holds the name {os.fsencode(name)!r}, which is not UTF-8, so it cannot be saved; rename it"
    return ""


def require_names(folder: Path) -> None:
    """Refuses a folder with a name that no snapshot can have, before an attempt begins.

    Raises:
        UserError: A name is not UTF-8.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # others remove files; the snapshots look again
        if wrong := _wrong_name(folder, (name for name, number in _entries(folder) if number is not None)):
            raise UserError(wrong)


def attended(
    mirror: Mirror, folder: Path, start: Callable[[], subprocess.Popen], seconds: float, say: Callable[[str], None]
) -> int:
    """Starts a command and saves snapshots of its folder while it is at work, and when it has ended; returns its status.

    Ctrl-C and SIGTERM tell the command to save and end. The status is then 130 or 143, never 0: what starts it again where
    its machine is taken away must not take it for finished.

    Args:
        mirror: Claimed.
        folder: Where the command writes.
        start: Starts the command.
        seconds: Between two snapshots.
        say: Prints a line.

    Raises:
        Superseded: A newer attempt has begun; the command has been ended.
        StoreFailed: The last snapshot could not be saved.
        RunFailed: As `freeze`, of the last snapshot.
    """
    interrupted = False
    with start() as process, interruptible(process.kill) as signals:
        try:
            while process.poll() is None:
                try:
                    process.wait(timeout=seconds)
                except subprocess.TimeoutExpired:
                    _try_to_save(mirror, folder, seconds, say)
        except KeyboardInterrupt:
            signals.saving()
            interrupted = True
            process.terminate()
            process.wait()
        except BaseException:
            _end(process)
            raise
        _save(mirror, folder, None if interrupted else process.returncode, say)
        mirror.tidy()
        say(f"the last snapshot of {folder} is in {mirror.url}")
        return signals.status if interrupted else process.returncode


def _save(mirror: Mirror, folder: Path, status: int | None, say: Callable[[str], None]) -> None:
    """Saves a snapshot; a line says what is left out, unless the snapshot before left something out too."""
    before = mirror.left_out
    try:
        mirror.save(folder, status)
    finally:
        if (left := mirror.left_out) and not before:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            say(f"left out of the snapshots of {folder}: {left[0]!r}{more} (links to nothing or in a circle, pipes, sockets)")


def _try_to_save(mirror: Mirror, folder: Path, seconds: float, say: Callable[[str], None]) -> None:
    """Saves a snapshot; if it fails, a line says so, and the next one will have all that this one would have."""
    try:
        _save(mirror, folder, None, say)
    except Superseded:
        raise
    except (OSError, RunFailed) as error:
        say(f"no snapshot was saved ({reason_of(error)}); the next is tried in {seconds:g} s")


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
