"""Damages files in every way that happens to files: cut, emptied, flipped, with something put in, or with another value."""

import contextlib
import json
import os
import random
import re
import resource
import signal
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertlab.errors import UserError

ROOT = Path(__file__).parents[2]
ROUNDS = int(os.environ.get("BERTLAB_DAMAGES", "20"))
SECONDS = 20
ROOM = 1 << 30  # bytes that a reader of a small file may take, with what it compiles

# What stands where a JSON file had something else.
VALUES = (
    None,
    True,
    -1,
    0,
    7.5,
    10**30,
    float("inf"),
    float("nan"),
    "",
    "x",
    "\ud800",
    "a\nb\0c",
    [],
    [[]],
    {},
    {"x": {}},
    [1, "a"],
)
NUMBERS = (
    b"0",
    b"-1",
    b"00",
    b"1e999",
    b"99999999999",
    b"9223372036854775807",
    b"18446744073709551616",
    b"7" * 5000,
    "²".encode(),
)
DEEP = 100_000


def damages(content: bytes, name: str, rounds: int) -> Iterator[tuple[str, bytes]]:
    """(What was done, the damaged content) of a file: the fixed damages, then `rounds` random ones, the same every time."""
    yield "emptied", b""
    yield "only spaces", b"  \n"
    yield "twice", content + content
    yield "zeros", bytes(len(content))
    yield "ones", b"\xff" * len(content)
    yield "nested", b"[" * DEEP
    yield "nested objects", b'{"a":' * DEEP + b"1" + b"}" * DEEP
    for value in (b"null", b"[]", b"{}", b"3", b'"x"'):
        yield f"JSON {value.decode()}", value
    for number in range(rounds):
        rng = random.Random(f"{name} {number}")
        yield damaged(content, rng, number)


def damaged(content: bytes, rng: random.Random, number: int = 0) -> tuple[str, bytes]:
    """(What was done, the content) after one random damage; the number is for messages."""
    kind = rng.choice([_cut, _flip, _flip, _overwrite, _insert, _remove, _repeat, _number, _huge, _json, _json, _json, _nest])
    return f"{kind.__name__[1:]} {number}", kind(content, rng)


def _place(content: bytes, rng: random.Random) -> int:
    """A place in a file; half of the time among the first bytes, where headers are."""
    return rng.randrange(max(1, min(len(content), 64) if rng.random() < 0.5 else len(content)))


def _cut(content, rng):
    return content[: rng.randrange(max(1, len(content)))]


def _flip(content, rng):
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 8])):
        changed[_place(content, rng)] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _overwrite(content, rng):
    at, size = _place(content, rng), rng.randint(1, 16)
    return content[:at] + rng.randbytes(size) + content[at + size :]


def _insert(content, rng):
    at = _place(content, rng)
    return (
        content[:at]
        + rng.choice([rng.randbytes(rng.randint(1, 9)), b"\n", b"\r", b"\t", b" ", b'"', b"\0", b"\xef\xbb\xbf"])
        + content[at:]
    )


def _remove(content, rng):
    at = _place(content, rng)
    return content[:at] + content[at + rng.randint(1, 40) :]


def _repeat(content, rng):
    at, size = _place(content, rng), rng.randint(1, 200)
    return content[:at] + content[at : at + size] * rng.randint(2, 5) + content[at + size :]


def _number(content, rng):
    """Another number in place of one that is written in digits."""
    if not (found := [*re.finditer(rb"\d+", content)]):
        return _overwrite(content, rng)
    match = rng.choice(found[:20] if rng.random() < 0.5 else found)
    return content[: match.start()] + rng.choice(NUMBERS) + content[match.end() :]


def _huge(content, rng):
    """A size in a binary header as large as it can be."""
    at, size = _place(content, rng), rng.choice([2, 4, 8])
    return (
        content[:at]
        + rng.choice([b"\xff" * size, b"\xff" * (size - 1) + b"\x7f", b"\0" * (size - 1) + b"\x10"])
        + content[at + size :]
    )


def _nest(content, rng):
    at = _place(content, rng)
    return content[:at] + rng.choice([b"[", b'{"a":', b"("]) * rng.choice([50, 400, DEEP]) + content[at:]


def _json(content, rng):
    """One value of a JSON file, or of a line of JSON, becomes another, goes, or gets another key."""
    with contextlib.suppress(ValueError, RecursionError):
        return _dumped(json.loads(content), rng)
    parts = content.split(b"\n")
    if not (filled := [number for number, line in enumerate(parts) if line[:1] == b"{"]):
        return _flip(content, rng) if content else content
    number = rng.choice(filled)
    with contextlib.suppress(ValueError, RecursionError):
        parts[number] = _dumped(json.loads(parts[number]), rng)
    return b"\n".join(parts)


def _dumped(value, rng):
    return json.dumps(_changed(value, rng)).encode()


def _changed(value: Any, rng: random.Random) -> Any:
    """A JSON value with one change somewhere in it."""
    places = [*_places(value)]
    if not places:
        return rng.choice(VALUES)
    node, key = rng.choice(places)
    kind = rng.random()
    if kind < 0.15:
        del node[key]
    elif kind < 0.3 and isinstance(node, dict):
        node[key + rng.choice([".", "s", " "])] = node.pop(key)
    else:
        node[key] = rng.choice(VALUES)
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield value, key
        yield from _places(one)


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """A block that may take so many seconds and so much memory; more raises an error there."""

    def late(*_):
        raise TimeoutError(f"more than {SECONDS} s")

    _, most = resource.getrlimit(resource.RLIMIT_AS)
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    handler = signal.signal(signal.SIGALRM, late)
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, most))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGALRM, handler)


def complaint(read, folder: Path, file: Path, by_folder: bool = False) -> str | None:
    """What is wrong with how a reader takes a damaged file; None if it is right.

    It names the file, or another one that does not fit it; with `by_folder` the folder, such as a tokenizer's, is enough.
    """
    try:
        with bounded():
            read(folder)
    except UserError as error:
        said = str(error)
        named = any(path.name in said for path in (file, *folder.rglob("*"))) or (by_folder and str(folder) in said)
        return None if named and "\n" not in said else f"it says {said!r}"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        ours = [
            frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(ROOT / "bertlab"))
        ]
        where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "nowhere"
        return f"{where}: {type(error).__name__}: {str(error)[:400]}"
    return None


def try_damages(reader, folder: Path) -> tuple[int, dict[str, str]]:
    """The number of damages tried, and each complaint with the damage that led to it.

    Args:
        reader: a `tests.faults.readers.Reader`.
        folder: empty; it gets the reader's files.
    """
    reader.make(folder)
    names = reader.only or sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    if reader.share:
        reader.read(folder)  # what is undamaged is read
    wrong, tried = {}, 0
    for name in names:
        file = folder / name
        content = file.read_bytes()
        for what, changed in [("as it is", content), *damages(content, f"{reader.name} {name}", round(ROUNDS * reader.share))]:
            file.write_bytes(changed)
            tried += 1
            if said := complaint(reader.read, folder, file, reader.by_folder):
                wrong.setdefault(said, f"{name} {what}")
        file.unlink()
        # Commands look whether a file is there before they read it; what a reader says names it.
        said = complaint(reader.read, folder, file, reader.by_folder)
        if said and not ("FileNotFoundError" in said and str(file)[-60:] in said):
            wrong.setdefault(said, f"{name} missing")
        file.write_bytes(content)
    return tried, wrong
