"""Finding a task's files, and reading them as text."""

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bertlab.errors import UserError
from bertlab.files import parse_json


def find_file(task: str, split: str, directory: Path, patterns: tuple[str, ...], folder: str = "") -> Path:
    """The file of a split.

    Args:
        task, split: for messages.
        directory: where to look.
        patterns: names or glob patterns, in order of preference; of a folder if they end in "/".
        folder: a folder in the directory that may hold the file instead, as in GLUE's CoLA/train.tsv.

    Raises:
        UserError: no file or several files match.
    """
    places = places_of(directory, folder)
    for place, pattern, found in matches(places, patterns):
        if len(found) > 1:
            names = ", ".join(path.name for path in found)
            raise UserError(f"{place}: several files match {pattern} ({names}); set one with config.task_data.{split}_file")
        return found[0]
    raise UserError(
        f"{places[0]}: task '{task}' found no file {' or '.join(patterns)}; put it there, or give its "
        f"name as config.task_data.{split}_file"
    )


def places_of(directory: Path, folder: str = "") -> list[Path]:
    """Where a task's files may be: its own folder in the directory if that is there, then the directory."""
    return [directory / folder, directory] if folder and (directory / folder).is_dir() else [directory]


def matches(places: Iterable[Path], patterns: Iterable[str]) -> Iterator[tuple[Path, str, list[Path]]]:
    """(Place, pattern, the files or folders that match) of each pattern that matches any, the preferred one first."""
    for place, pattern in itertools.product(places, patterns):
        fits = Path.is_dir if pattern.endswith("/") else Path.is_file
        found = [place / pattern] if fits(place / pattern) else []
        if not found and not Path(pattern).is_absolute():
            found = sorted(path for path in place.glob(pattern) if fits(path))
        if found:
            yield place, pattern, found


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """A file's text, without a byte order mark.

    Raises:
        UserError: the file cannot be decoded, or the encoding is unknown.
    """
    data = path.read_bytes()
    try:
        return data.decode(encoding).removeprefix("\ufeff")
    except LookupError as error:
        raise UserError(f"{path}: encoding '{encoding}' is not known; give the task one of Python's, such as utf-8") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}:{line}: byte {error.start} (0x{data[error.start]:02x}) is not {encoding} text; convert the file to "
            f"{encoding}"
        ) from error


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[int, str]]:
    """(Number from 1, line without its end), split only at line feeds: U+0085 and U+2028 are part of a text."""
    lines = read_text(path, encoding).split("\n")
    if not lines[-1]:
        lines.pop()
    return ((number, line.removesuffix("\r")) for number, line in enumerate(lines, 1))


def read_records(path: Path, encoding: str = "utf-8") -> Iterator[tuple[str, dict[str, Any]]]:
    """("FILE:LINE", record) of JSON lines; skips empty lines.

    Raises:
        UserError: a line is not a JSON object.
    """
    for number, line in read_lines(path, encoding):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except ValueError as error:
            raise UserError(f"{path}:{number}: not valid JSON ({error}); each line must be one JSON object") from None
        if not isinstance(record, dict):
            raise UserError(
                f"{path}:{number}: JSON of type {type(record).__name__}, but each line must be one object; correct it"
            )
        yield f"{path}:{number}", record


def read_value(path: Path) -> Any:
    """The JSON value that is the whole of a file.

    Raises:
        UserError: it is not JSON; names the line.
    """
    text = read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise UserError(f"{path}{line}: not valid JSON ({error}); give the file as it is published") from None


def field(record: Any, key: str, kind: type, where: object) -> Any:
    """`record[key]`, which must be of this type.

    Raises:
        UserError: it is not there or of another type.
    """
    value = record.get(key) if isinstance(record, dict) else None
    if not isinstance(value, kind):
        raise UserError(f"{where}: '{key}' is missing, or its type is not {kind.__name__}; give the file as it is published")
    return value
