"""Finds a task's files, and reads them as text, lines and JSON."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bertlab.errors import UserError
from bertlab.transfer.examples import Example


def matches(directory: Path, patterns: tuple[str, ...], folder: str = "") -> list[Path]:
    """The files of the first pattern that any match, in the directory's `folder` or itself.

    Patterns are names or globs, the preferred first; of folders if they end in "/".
    """
    for root in (directory / folder, directory):
        for pattern in patterns:
            fits = Path.is_dir if pattern.endswith("/") else Path.is_file
            exact = [root / pattern] if fits(root / pattern) else []
            globbed = [] if exact or Path(pattern).is_absolute() else root.glob(pattern)
            if found := exact or sorted(path for path in globbed if fits(path)):
                return found
    return []


def find_file(
    task: str, split: str, directory: Path, patterns: tuple[str, ...], folder: str = ""
) -> Path:
    """The file or folder of a split; arguments as for `matches`."""
    found = matches(directory, patterns, folder)
    if len(found) == 1:
        return found[0]
    names = ", ".join(path.name for path in found) or "no file"
    raise UserError(
        f"{directory}: task '{task}' looks for {' or '.join(patterns)} and finds {names};"
        f" set config.task_data.{split}_file"
    )


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """A file's text, without a byte order mark."""
    data = path.read_bytes()
    try:
        return data.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: the line is not {encoding} text") from error


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[tuple[str, str]]:
    """("FILE:LINE", line) of each line; U+0085 and U+2028 are part of a text and end no line."""
    lines = read_text(path, encoding).removesuffix("\n").split("\n")
    return ((f"{path}:{number}", line.removesuffix("\r")) for number, line in enumerate(lines, 1))


def parse_json(text: str, path: Path, line: int = 1) -> Any:
    """The value of a JSON text that begins at this line of a file."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = line + error.lineno - 1
        raise UserError(f"{path}:{at}: the text is not JSON ({error.msg})") from error


def read_records(path: Path, encoding: str = "utf-8") -> Iterator[tuple[str, Any]]:
    """("FILE:LINE", value) of JSON lines."""
    for number, (where, line) in enumerate(read_lines(path, encoding), 1):
        if line.strip():
            yield where, parse_json(line, path, number)


def parse_each(
    rows: Iterable[tuple[str, Any]], parse: Callable[[Any, str], Iterable[Example]]
) -> Iterator[Example]:
    """The examples of each row; a row that is not as published is an error with its place."""
    for where, row in rows:
        try:
            found = list(parse(row, where))
        except KeyError as error:
            raise UserError(f"{where}: the field {error} is missing") from error
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise UserError(f"{where}: not in the published format: {error}") from error
        yield from found
