"""Digests: files.json has those of all files of a finished folder, so that damage to one of them is noticed later."""

import contextlib
import fcntl
import functools
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertlab.errors import UserError, reason_of
from bertlab.files import json_text, parse_json, read_json, write_json, write_text

LIST = "files.json"


def digest_of(*parts: bytes | np.ndarray) -> str:
    """The digest of bytes, or of the numbers of arrays, one after the other."""
    digest = _new()
    for part in parts:
        digest.update(np.ascontiguousarray(part).data if isinstance(part, np.ndarray) else part)
    return digest.hexdigest()


def entries_of(files: Iterable[Path]) -> dict[Path, dict[str, Any]]:
    """Files with their entries of files.json, as they are now."""
    return {path: {"bytes": path.stat().st_size, "blake2b": digest_of_file(path)} for path in files}


def write_list(directory: Path, files: Iterable[Path], only_sizes: Iterable[Path] = ()) -> None:
    """Writes a folder's files.json.

    Args:
        directory: The folder.
        files: Files below it, read now.
        only_sizes: Files below it that are large and have checksums of their own.
    """
    entries = entries_of(files)
    entries |= {path: {"bytes": path.stat().st_size} for path in only_sizes}
    write_json(directory / LIST, {path.relative_to(directory).as_posix(): entries[path] for path in sorted(entries)})


@contextlib.contextmanager
def renewed(file: Path) -> Iterator[None]:
    """The block writes or removes a file; its entry is brought up to date if its folder has files.json.

    A kill in between leaves no entry, so the new file is not taken for a damaged one.
    """
    _enter(file, False)
    yield
    _enter(file, file.exists())


def _enter(file: Path, present: bool) -> None:
    """Sets or removes a file's entry."""
    listed = file.parent / LIST
    if not listed.exists():
        return
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        before = read_json(listed)
        entries = {name: entry for name, entry in before.items() if name != file.name}
        if present:
            entries[file.name] = {"bytes": file.stat().st_size, "blake2b": digest_of_file(file)}
        if entries != before:
            write_json(listed, dict(sorted(entries.items())))
    finally:
        os.close(folder)


def listed(directory: Path) -> set[str]:
    """The names in a folder's files.json, and its own; empty without one, or if it cannot be read."""
    entries = entries_in(directory)
    return set() if entries is None else {LIST, *entries}


def entries_in(directory: Path) -> dict[str, Any] | None:
    """What a folder's files.json says by name, unchecked; None without one, or if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return parse_json((directory / LIST).read_text(encoding="utf-8"))
    return None


def require_whole(directory: Path, remedy: str) -> None:
    """Refuses a folder with a file that is not as files.json says.

    Raises:
        UserError: Names the file and ends with the remedy.
    """
    if damage := find_damage(directory):
        raise UserError("{} is damaged ({}); restore it, or {}".format(*damage, remedy))


def find_damage(directory: Path) -> tuple[Path, str] | None:
    """The first file of a folder that is missing or not what files.json says, with what is wrong with it; None without one.

    Nothing is known of a folder without files.json: an earlier version wrote it.

    Raises:
        OSError: A file cannot be read, which is no damage: the disk or a permission may be at fault.
    """
    before = None
    while (text := _list_of(directory)) is not None:
        damage = _first_damage(directory, text)
        if damage is None or text == before:
            return damage
        before = text  # another process may have renewed the file and its entry meanwhile: look again
    return None


def _list_of(directory: Path) -> bytes | None:
    """The content of files.json; None if there is none."""
    return (directory / LIST).read_bytes() if (directory / LIST).is_file() else None


def _first_damage(directory: Path, text: bytes) -> tuple[Path, str] | None:
    """As `find_damage`, by this content of files.json."""
    try:
        files = {name: (of["bytes"], of.get("blake2b")) for name, of in parse_json(text.decode("utf-8")).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return directory / LIST, reason_of(error)
    for name, (size, digest) in files.items():
        if wrong := damage_of(directory / name, size, digest):
            return directory / name, wrong
    return None


def damage_of(path: Path, size: int, digest: str | None) -> str:
    """What is wrong with a file of which the size and perhaps the digest are known; "" if nothing is."""
    if not path.is_file():
        return "it is missing"
    if path.stat().st_size != size:
        return f"it has {path.stat().st_size} bytes instead of {size}"
    return f"its content does not match {LIST}" if digest and digest_of_file(path) != digest else ""


class Growing:
    """The size and the digest of a file that only grows, kept up to date without reading it again.

    Args:
        content: What it begins with.
    """

    def __init__(self, content: bytes = b""):
        self._bytes, self._digest = 0, _new()
        self.add(content)

    def add(self, content: bytes) -> None:
        """Counts what was appended."""
        self._bytes += len(content)
        self._digest.update(content)

    def entry(self) -> dict[str, Any]:
        """As an entry of files.json."""
        return {"bytes": self._bytes, "blake2b": self._digest.hexdigest()}


def find_damage_up_to(path: Path, entry: Mapping[str, Any]) -> tuple[Path, str] | None:
    """What is wrong with the part of a growing file of which an entry was made; None if nothing is.

    Raises:
        OSError: The file cannot be read, which is no damage.
    """
    if not path.is_file():
        return path, "it is missing"
    digest = _new()
    with path.open("rb") as file:
        left = entry["bytes"]
        while part := file.read(min(left, 1 << 20)):
            digest.update(part)
            left -= len(part)
    if left:
        return path, f"it has {entry['bytes'] - left} bytes instead of {entry['bytes']} or more"
    if digest.hexdigest() != entry["blake2b"]:
        return path, f"its first {entry['bytes']} bytes are not those that were written"
    return None


def write_cached(path: Path, value: Any) -> None:
    """Writes a JSON value that can be made again, with its digest."""
    text = json_text(value)
    write_text(path, f'{{"blake2b": "{digest_of(text.encode())}", "value": {text}}}\n')


def read_cached(path: Path) -> Any:
    """The value that `write_cached` wrote, or of an earlier version the whole file.

    Raises:
        UserError: The file is missing, or is not as it was written.
    """
    held = read_json(path)
    if not isinstance(held, dict) or "blake2b" not in held:
        return held
    if digest_of(json_text(held.get("value")).encode()) != held["blake2b"]:
        raise UserError(f"{path} is damaged: its content does not match its digest; delete it, and it is made anew")
    return held["value"]


_new = functools.partial(hashlib.blake2b, digest_size=16)


def digest_of_file(path: Path) -> str:
    """The digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, _new).hexdigest()
