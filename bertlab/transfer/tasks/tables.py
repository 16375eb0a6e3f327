"""Tables (csv, tsv, JSON lines), lines with a label and a text, and folders of texts."""

import csv
import functools
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path

from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.files import read_lines, read_records, rows_task


def read_rows(
    path: Path,
    columns: tuple[str, ...] = (),
    encoding: str = "UTF-8",
    skip_short_rows: bool = False,
    replace: tuple[str, str] = ("", ""),
) -> Iterator[tuple[str, dict[str, str]]]:
    """("FILE:LINE", field by column) of the rows of a table; arguments as for `table`.

    Fields are separated by commas in .csv files, else by tabs, or each row is a JSON object.
    """
    lines = ((where, line) for where, line in read_lines(path, encoding) if line)
    first = next(lines, ("", ""))
    if first[1].startswith("{"):
        for where, record in read_records(path):
            # Texts as they are, numbers and booleans as JSON writes them; lists are not columns.
            plain = {key: x for key, x in record.items() if isinstance(x, str | int | float)}
            yield where, {k: x if isinstance(x, str) else json.dumps(x) for k, x in plain.items()}
        return
    if path.suffix == ".csv":  # GLUE's tables have quotes that are part of the text
        records = _quoted_records(path, encoding)
    else:
        records = ((where, line.split("\t")) for where, line in itertools.chain([first], lines))
    columns = columns or next(records, ("", ()))[1]
    for where, fields in records:
        if len(fields) < len(columns) and skip_short_rows:
            continue
        if len(fields) != len(columns):
            raise UserError(
                f"{where}: the row has {len(fields)} fields, and the table {len(columns)} columns"
            )
        yield where, {key: field.replace(*replace) for key, field in zip(columns, fields)}


def _quoted_records(path: Path, encoding: str) -> Iterator[tuple[str, list[str]]]:
    """("FILE:LINE", fields); a quoted field may hold commas and line ends."""
    csv.field_size_limit(2**31 - 1)  # documents are longer than 128 KiB
    reader = csv.reader((f"{line}\n" for _, line in read_lines(path, encoding)), strict=True)
    line = 1
    try:
        for fields in reader:
            if fields:
                yield f"{path}:{line}", fields
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{line}: the row is badly quoted ({error})") from error


def table(
    name: str,
    text: str | tuple[str, ...],
    label: str,
    *,
    pair: str = "",
    kind: str = "classification",
    unlabelled: str = "",
    columns: tuple[str, ...] = (),
    encoding: str = "UTF-8",
    skip_short_rows: bool = False,
    replace: tuple[str, str] = ("", ""),
    **task,
) -> Task:
    r"""A task whose files are tables.

    Args:
        text: the column with the text, or several, joined by a space.
        label: the column with the class, or number. A test file may lack it.
        pair: the column with the second text, if the task has pairs.
        kind: classification or regression.
        unlabelled: what stands for "no label", like SNLI's "-"; such rows are left out.
        columns: their names, if the file has no header.
        encoding: the files' encoding.
        skip_short_rows: leaves out rows with too few fields, which some published files have.
        replace: (old, new) if something stands for a character, like ("\\n", "\n") for line ends.
        task: arguments of `file_task`: train, valid, test, metrics, label_names, folder, symmetric.
    """
    groups = [_names(text), *([(pair,)] if pair else [])]
    if any(label in group for group in groups):
        raise UserError(f"task '{name}': column '{label}' is both a text and the label")

    def parse(row: dict[str, str], where: str) -> Iterator[Example]:
        value = row.get(label)
        if unlabelled and value == unlabelled:
            return
        texts = tuple(" ".join(row[column] for column in group) for group in groups)
        number = kind == "regression" and value
        yield Example("", where, texts, _finite(value) if number else value or None)

    def rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
        return read_rows(path, columns, encoding, skip_short_rows, replace)

    return rows_task(name, kind, rows, parse, **task)


def _names(columns: str | tuple[str, ...]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else columns


def _finite(value: str) -> float:
    if not math.isfinite(float(value)):
        raise ValueError(f"the label is {value}")
    return float(value)


def multiple_choice(
    name: str,
    text: str | tuple[str, ...],
    choices: tuple[str, ...],
    label: str,
    *,
    stem: str = "",
    first: int = 0,
    columns: tuple[str, ...] = (),
    **task,
) -> Task:
    """A task that asks for the correct one among a row's choices.

    Args:
        text: the column with the text before each choice, or several, joined by a space.
        choices: the columns of the choices.
        label: the column with the number of the correct choice. A test file may lack it.
        stem: a column with which each choice begins, like SWAG's `sent2`.
        first: the first choice's number.
        columns: their names, if the file has no header.
        task: of `file_task`.
    """
    numbers = [str(first + i) for i in range(len(choices))]

    def parse(row: dict[str, str], where: str) -> Iterator[Example]:
        begin = f"{row[stem]} " if stem else ""
        yield Example(
            "",
            where,
            texts=(" ".join(row[column] for column in _names(text)),),
            choices=tuple(begin + row[choice] for choice in choices),
            label=numbers.index(row[label].strip()) if label in row else None,
        )

    return rows_task(name, "choice", functools.partial(read_rows, columns=columns), parse, **task)


def labelled_lines(name: str, *, encoding: str = "UTF-8", **task) -> Task:
    """A classification task whose lines are a label, a space and the text; "COARSE:fine" counts
    as COARSE."""

    def rows(path: Path) -> Iterator[tuple[str, str]]:
        return (row for row in read_lines(path, encoding) if row[1])

    def parse(line: str, where: str) -> Iterator[Example]:
        label, text = line.split(" ", 1)
        yield Example("", where, (text,), label.partition(":")[0])

    return rows_task(name, "classification", rows, parse, **task)


def labelled_folders(name: str, label_names: tuple[str, ...], **task) -> Task:
    """A classification task: one folder per split, in it one per class, in that one .txt per text.

    Args:
        label_names: the classes in order, named like their folders; other folders are not read.
        task: arguments of `file_task`; train, valid and test end in "/".
    """

    def rows(folder: Path) -> Iterator[tuple[str, Path]]:
        for label in label_names:
            paths = sorted((folder / label).glob("*.txt"))
            if not paths:
                raise UserError(f"{folder / label}: there is no .txt file")
            yield from ((f"{path}:1", path) for path in paths)

    def parse(path: Path, where: str) -> Iterator[Example]:
        label = path.parent.name
        yield Example(f"{label}/{path.stem}", where, (path.read_text("utf-8-sig"),), label)

    return rows_task(name, "classification", rows, parse, label_names=label_names, **task)
