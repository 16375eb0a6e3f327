"""Tasks that are read from files: one file or folder per split, in rows that a function parses."""

import dataclasses
import glob
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bertlab.data.corpora import text
from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.tasks.base import SPLITS, Task

Rows = Iterable[tuple[str, Any]]
"""("FILE:LINE", row)."""

Parse = Callable[[Any, str], Iterable[Example]]
"""(Row, "FILE:LINE") -> examples, with labels as published; one without an id gets its number."""

Patterns = str | tuple[str, ...]


def rows_task(name: str, kind: str, rows: Callable[[Path], Rows], parse: Parse, **task) -> Task:
    """A task whose files or folders have `rows`."""
    return file_task(name, kind, lambda path, split: parse_each(path, rows(path), parse), **task)


def json_task(name: str, kind: str, parse: Parse, **task) -> Task:
    """A task in JSON lines of its own form; `task`: arguments of `file_task`."""
    return rows_task(name, kind, read_records, parse, **task)


def file_task(
    name: str,
    kind: str,
    read: Callable[[Path, str], Iterable[Example]],
    *,
    train: Patterns,
    valid: Patterns = (),
    test: Patterns = (),
    metrics: Patterns = (),
    folder: str = "",
    **fields,
) -> Task:
    """A task with one file or folder per split; `name`, `kind`, `metrics`, `fields` as in `Task`.

    Args:
        read: (file or folder, split) -> examples, like those of `Parse`.
        train, valid, test: names or globs of files, or of folders ("train/"), the preferred first,
            in the task's folder (for your own task: its Python file's) or its subfolder `folder`.
            A split without any is held out from train (`divide`).
    """
    patterns = {}
    for split, names in zip(SPLITS, (train, valid, test)):
        names = (names,) if isinstance(names, str) else tuple(names)
        if names:
            patterns[split] = tuple(f"{folder}/{one}" for one in names if folder) + names

    def load(directory: Path | None, options: Mapping) -> dict[str, list[Example]]:
        if directory is None:
            raise UserError(
                f"config.task_data.directory is empty; give the folder of task '{name}'"
            )
        published = {}
        for split, names in patterns.items():
            if split == "train" and options["train_file"]:
                names = (options["train_file"],)
            found = matches(directory, names)
            if len(found) != 1:
                raise UserError(
                    f"{directory}: task '{name}' looks for {' or '.join(names)} and finds"
                    f" {', '.join(found) or 'no file'}; rename the {split} file"
                )
            path = directory / found[0]
            published[split] = _identify(read(path, split), path)
            for example in published[split]:
                if example.label is None and split != "test" and kind != "span":
                    raise UserError(f"{example.where}: the label is missing")
        return published

    def is_in(directory: Path) -> bool:
        return all(matches(directory, names) for names in patterns.values())

    return Task(name, kind, metrics, load, is_in=is_in, **fields)


def matches(directory: Path, patterns: tuple[str, ...]) -> list[str]:
    """What the first pattern with any match names in a folder."""
    found = (sorted(glob.glob(pattern, root_dir=directory)) for pattern in patterns)
    return next(filter(None, found), [])


def _identify(examples: Iterable[Example], path: Path) -> list[Example]:
    """The examples, each one with an id."""
    found: dict[str, Example] = {}
    for number, example in enumerate(examples):
        own = example if example.id else dataclasses.replace(example, id=str(number))
        if own.id in found:
            raise UserError(f"{own.where}: {found[own.id].where} has the same id '{own.id}'")
        found[own.id] = own
    if not found:
        raise UserError(f"{path}: there are no examples")
    return list(found.values())


def parse_each(path: Path, rows: Rows, parse: Parse) -> Iterator[Example]:
    """The examples of each row; a row in another format is an error that states its place."""
    where = str(path)
    try:
        for where, row in rows:
            yield from parse(row, where)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(f"{where}: not in the published format: {error!r}") from error


def read_lines(path: Path, encoding: str = "UTF-8") -> Iterator[tuple[str, str]]:
    """("FILE:LINE", line) of each line; U+0085 and U+2028 are part of a text, not line ends."""
    return ((f"{path}:{number}", line) for number, line in text.read_lines(path, encoding))


def read_blocks(path: Path) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """("FILE:LINE", its lines as from `read_lines`) of each run of non-empty lines."""
    # WNUT has empty lines that hold a tab.
    for filled, block in itertools.groupby(read_lines(path), lambda row: bool(row[1].strip())):
        if filled:
            lines = list(block)
            yield lines[0][0], lines


def read_records(path: Path) -> Iterator[tuple[str, Any]]:
    """("FILE:LINE", value) of JSON lines."""
    for where, line in read_lines(path):
        if line.strip():
            try:
                yield where, json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{where}: the line is not JSON ({error})") from error
