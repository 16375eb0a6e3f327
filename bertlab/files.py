"""Text and JSON files, written whole or not at all; temporary folders that are removed even after a kill."""

import contextlib
import errno
import functools
import glob
import json
import math
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bertlab.errors import UserError

TAKEN = (errno.ENOTEMPTY, errno.EEXIST)
"""What `move` meets where there is a folder of that name that is not empty."""


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file (`json_text`) in one move, so a reader never sees half of it; makes its directory."""
    write_text(path, json_text(value, indent=2) + "\n")


def json_text(value: Any, indent: int | None = None) -> str:
    """A value as JSON. JSON has no infinity and no NaN, so such numbers are null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def json_lines(values: Iterable[Any]) -> str:
    """A line of `json_text` for each value."""
    return "".join(f"{json_text(value)}\n" for value in values)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 file in one move, so a reader never sees half of it; makes its directory."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file in one move, so a reader never sees half of it; makes its directory."""
    with whole_file(path) as partial:
        partial.write_bytes(content)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a name to write a file under, which becomes `path` in one move if the block succeeds, or else is removed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        shortened = os.fsdecode(os.fsencode(path.name)[:190])  # a longer name may be as long as a file system takes
        partial = path.with_name(f"{shortened}.{host()}-{os.getpid()}.partial")
        try:
            yield partial
            move(partial, path)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error counts
                partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        error.filename = error.filename or str(path)  # an error while writing names no file
        raise


@contextlib.contextmanager
def ordinary_mode(path: Path) -> Iterator[Path]:
    """Yields a path that a library writes a file to; the file gets the mode of a new one, whatever the library gave it.

    safetensors writes it under a temporary name, for its owner alone, and renames it.
    """
    path.touch()
    mode = path.stat().st_mode
    yield path
    if path.stat().st_mode != mode:
        path.chmod(stat.S_IMODE(mode))


def move(source: Path, target: Path) -> None:
    """Gives a file, or a folder with all that is in it, its final name, when it is on the disk and nothing can be lost.

    A machine that loses power may else keep the name without the content.

    Raises:
        OSError: Of `TAKEN`, if another process has made the folder meanwhile; or any other.
    """
    synchronise(source)
    os.replace(source, target)
    _synchronise(target.parent)


def synchronise(path: Path) -> None:
    """Brings a file, or a folder with all that is in it, to the disk."""
    if not path.is_dir():
        return _synchronise(path)
    for place, _, names in os.walk(path, topdown=False):
        for name in names:
            _synchronise(Path(place, name))
        _synchronise(Path(place))


def _synchronise(path: Path) -> None:
    """A file, or the names in a folder; links, pipes and what has no disk are left."""
    kind = path.lstat().st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        return
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if not (stat.S_ISDIR(kind) and error.errno in (errno.EINVAL, errno.ENOTSUP)):  # not every file system can
            raise
    finally:
        os.close(opened)


def refuse_unwritable(path: Path, named: str) -> None:
    """Refuses a directory that cannot be made, or that nothing can be written to, before anything is computed.

    Raises:
        UserError: Begins with `named`, such as "--workdir=runs/x".
    """
    try:
        place = path
        while not place.exists():
            if place.is_symlink():
                raise UserError(f"{named}: {place} is a link that leads nowhere; choose another path")
            place = place.parent
        if not place.is_dir():
            raise UserError(f"{named}: {place} is a file, not a directory; choose another path")
        os.rmdir(tempfile.mkdtemp(prefix=".writable-", dir=place))
    except OSError as error:
        raise UserError(f"{named} cannot be written to ({error.strerror}); make it writable, or choose another path") from None


def cache_directory(directory: str = "") -> Path:
    """The directory for data that can be rebuilt: `directory`, or if that is "" $BERTLAB_CACHE, or else ~/.cache/bertlab.

    Raises:
        UserError: It is a URL.
    """
    place = directory or os.environ.get("BERTLAB_CACHE") or "~/.cache/bertlab"
    if "://" in place:
        named = "config.data.directory" if directory else "BERTLAB_CACHE"
        raise UserError(
            f"{named}={place}: prepared corpora are files of this machine, not of a URL; give a folder here (a text: corpus"
            " may be at a URL)"
        )
    return Path(place).expanduser().absolute()


def host() -> str:
    """This machine's name as a part of a file's name. Processes of two containers on one volume may have one number."""
    return re.sub(r"[^\w-]", "-", socket.gethostname(), flags=re.ASCII)[:40]


def is_running(process: int) -> bool:
    """Whether this machine has a process with that number, even another user's."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextlib.contextmanager
def temporary_folder(root: Path, kind: str) -> Iterator[Path]:
    """A folder that is removed at the end; after a kill, when the next folder of its kind is made in `root`."""
    _remove_abandoned(root, kind)
    folder = Path(tempfile.mkdtemp(prefix=f"{kind}-{host()}-{os.getpid()}-", dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_temporary(name: str) -> bool:
    """Whether a folder of this name is one of `temporary_folder`, of any process on this machine."""
    return bool(re.fullmatch(r"[a-z-]+-" + re.escape(host()) + r"-\d{1,7}-\w+", name, re.ASCII))


def is_begun(name: str) -> bool:
    """Whether a name is one under which `whole_file` or `whole_directory` writes, of any process on any machine."""
    return bool(re.fullmatch(r".+\.[\w-]{1,40}-\d+\.partial|\..+\.part-[\w-]{1,40}-\d+", name, re.ASCII | re.DOTALL))


@contextlib.contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """Creates a directory under a temporary name and renames it if the block succeeds.

    Raises:
        UserError: the name is taken.
    """
    refuse_occupied(directory)
    directory = directory.absolute()
    begun = f".{directory.name}.part-{host()}-"
    for abandoned in directory.parent.glob(f"{glob.escape(begun)}*"):
        if (number := abandoned.name.removeprefix(begun)).isdecimal() and not is_running(int(number)):
            shutil.rmtree(abandoned, ignore_errors=True)
    part = directory.with_name(f"{begun}{os.getpid()}")
    part.mkdir(parents=True)
    try:
        yield part
        move(part, directory)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def refuse_occupied(directory: Path) -> None:
    """Refuses a path that exists and is not an empty directory."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory} is not empty; name a new directory")


def link_or_copy(source: str | os.PathLike, target: str | os.PathLike) -> None:
    """Makes a hard link, or a copy where the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _remove_abandoned(root: Path, kind: str) -> None:
    """Removes the folders of a kind in `root` whose processes, on this machine, have ended."""
    pattern = re.compile(re.escape(f"{kind}-{host()}-") + r"(\d{1,7})-\w+", re.ASCII)
    for path in root.iterdir():
        match = pattern.fullmatch(path.name)
        if match and not is_running(int(match.group(1))):
            shutil.rmtree(path, ignore_errors=True)


def parse_json(text: str, surrogates: bool = False) -> Any:
    """A JSON value; whatever is wrong with it is a ValueError.

    `json.loads` raises RecursionError for deep nesting, and accepts half of a surrogate pair (\\ud800), which no file can hold.

    Args:
        text: of a file.
        surrogates: accept such halves; the caller replaces them.
    """
    try:
        value = json.loads(text)
        if not surrogates and ("\\ud" in text or "\\uD" in text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError("its brackets nest too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("it has half of a surrogate pair, which is no character") from None
    return value


def misfit(value: Any, form: Any) -> str:
    """Where a JSON value does not have the form that it must have, as "KEY.KEY must be ..., not ..."; "" if it has it.

    Args:
        value: from a JSON file.
        form: a type, or a tuple of types (None for null, object for any); {str: form} for an object with any keys;
            {"key": form, "key?": form} for one with at least these keys, those with a question mark if it has them; [form]
            for a list.
    """
    found = _misfit(value, form)
    return f"{'.'.join(found[:-1]) or 'it'} {found[-1]}" if found else ""


def _misfit(value: Any, form: Any) -> list[str]:
    """The keys that lead to what does not fit, and what is wrong with it; [] if all fits."""
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return [f"must be an object, not {_shown(value)}"]
        if str in form:
            parts = ((key, one, form[str]) for key, one in value.items())
        elif missing := [key for key in form if not key.endswith("?") and key not in value]:
            return [missing[0], "is missing"]
        else:
            asked = ((key.removesuffix("?"), of) for key, of in form.items())
            parts = ((key, value[key], of) for key, of in asked if key in value)
    elif isinstance(form, list):
        if not isinstance(value, list):
            return [f"must be a list, not {_shown(value)}"]
        parts = ((str(number), one, form[0]) for number, one in enumerate(value))
    else:
        kinds = _kinds(form)
        if type(value) in kinds or object in kinds:
            return []
        return [f"must be {' or '.join(_KINDS[kind] for kind in kinds)}, not {_shown(value)}"]
    for key, one, of in parts:
        if found := _misfit(one, of):
            return [key, *found]
    return []


@functools.cache
def _kinds(form: Any) -> tuple[type, ...]:
    """The types of a form: the report of a study asks for them of every number in it."""
    return tuple(type(None) if kind is None else kind for kind in (form if isinstance(form, tuple) else (form,)))


_KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "an object", list: "a list"}
_KINDS[type(None)] = "null"


def _shown(value: Any) -> str:
    return f"{str(value)[:40]!r}"


def is_plain_name(name: Any) -> bool:
    """Whether a name from a file is one part of a path, so that it cannot lead out of its folder."""
    return isinstance(name, str) and name not in ("", ".", "..") and not {*"/\0"} & {*name}


def read_json(path: Path, remedy: str = "") -> Any:
    """Reads a JSON file.

    Raises:
        UserError: The file is missing (the error ends with the remedy), empty or damaged.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        if not text.strip():
            raise UserError(f"{path} is empty; restore it, or delete it if you can regenerate it")
        return parse_json(text)
    except UserError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{path.parent} has no {path.name}{remedy}") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a directory; expected a JSON file") from None
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error}); restore it, or delete it if you can regenerate it") from None
