"""Tables (csv, tsv, JSON lines), lines of a label and a text, and folders of texts."""

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.tasks.assemble import file_task
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.files import parse_each, read_lines, read_records, read_text

Rows = Iterable[tuple[str, dict[str, str]]]
"""("FILE:LINE", field by column)."""


def read_rows(
    path: Path,
    *,
    columns: tuple[str, ...] = (),
    delimiter: str = "",
    encoding: str = "utf-8",
    skip_short_rows: bool = False,
    json_lines: bool | None = None,
    replace: tuple[str, str] = ("", ""),
) -> Rows:
    r"""The rows of a table.

    Args:
        path: the file.
        columns: their names, if the file has no header.
        delimiter: one character; "" for a comma in .csv files, otherwise a tab.
        encoding: of the file.
        skip_short_rows: leaves out rows with too few fields, which some published files have.
        json_lines: each line is a JSON object; None: in .jsonl files.
        replace: (old, new), if something stands for a character, as ("\\n", "\n") for line ends.
    """
    if path.suffix == ".jsonl" if json_lines is None else json_lines:
        yield from _json_rows(path, encoding)
        return
    is_csv = path.suffix == ".csv"
    delimiter = delimiter or ("," if is_csv else "\t")
    if is_csv:  # GLUE's tables have quotes that are part of the text
        records = _quoted_records(path, delimiter, encoding)
    else:
        lines = read_lines(path, encoding)
        records = ((where, line.split(delimiter)) for where, line in lines if line)
    if not columns:
        columns = next(records, (path, ()))[1]
    for where, fields in records:
        if len(fields) < len(columns) and skip_short_rows:
            continue
        if len(fields) != len(columns):
            raise UserError(
                f"{where}: the row has {len(fields)} fields, and the table {len(columns)} columns"
                f" between {delimiter!r}"
            )
        if replace[0]:
            fields = [field.replace(*replace) for field in fields]
        yield where, dict(zip(columns, fields))


def _json_rows(path: Path, encoding: str) -> Rows:
    """Texts as they are, numbers and truth values as JSON writes them; lists are no columns."""
    for where, record in read_records(path, encoding):
        if not isinstance(record, dict):
            raise UserError(f"{where}: the line is not a JSON object")
        plain = {key: x for key, x in record.items() if isinstance(x, str | int | float)}
        yield where, {key: x if isinstance(x, str) else json.dumps(x) for key, x in plain.items()}


def _quoted_records(path: Path, delimiter: str, encoding: str) -> Iterator[tuple[str, list[str]]]:
    """("FILE:LINE", fields); a quoted field may hold delimiters and line ends."""
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # documents are longer than 128 KiB
    text = io.StringIO(read_text(path, encoding), newline="")
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    line = 1
    try:
        for fields in reader:
            if fields:
                yield f"{path}:{line}", fields
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{line}: the row is badly quoted ({error})") from error


def _table_task(name: str, kind: str, parse: Callable, options: dict) -> Task:
    """A task of rows; `parse`: (row, split, "FILE:LINE") -> their examples."""
    layout = {key: options.pop(key) for key in read_rows.__kwdefaults__ if key in options}

    def read(path: Path, split: str) -> Iterator[Example]:
        rows = read_rows(path, **layout)
        return parse_each(rows, lambda row, where: parse(row, split, where))

    return file_task(name, kind, read, **options)


def table(
    name: str,
    text: str | tuple[str, ...],
    label: str,
    *,
    pair: str = "",
    kind: str = "classification",
    unlabelled: str = "",
    **options,
) -> Task:
    """A task whose files are tables.

    Args:
        text: the column with the text, or several, joined by a space; tagging: with the words,
            separated by spaces.
        label: the column with the class; regression: a number; tagging: one tag a word, separated
            by spaces. A test file may lack it.
        pair: the column with the second text, if the task has pairs.
        kind: classification, regression or tagging.
        unlabelled: what stands for "no label", as SNLI's "-"; such rows are left out.
        options: of `file_task` (train, valid, test, metrics, label_names, folder, symmetric) and of
            `read_rows` (columns, delimiter, encoding, json_lines, replace, ...).
    """
    groups = [(text,) if isinstance(text, str) else text, *([(pair,)] if pair else [])]
    if any(label in columns for columns in groups):
        raise UserError(f"task '{name}': column '{label}' is both a text and the label")

    def parse(row: dict[str, str], split: str, where: str) -> Iterator[Example]:
        value = row.get(label) if split == "test" else row[label]
        if unlabelled and value == unlabelled:
            return
        texts = tuple(" ".join(row[column] for column in columns) for columns in groups)
        words = tuple(texts[0].split()) if kind == "tagging" else ()
        value = None if value is None else _parse_label(kind, value, words)
        yield Example("", where, () if words else texts, value, words)

    return _table_task(name, kind, parse, options)


def _parse_label(kind: str, value: str, words: tuple[str, ...]) -> Any:
    if kind == "regression":
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"the label is {value}")
        return number
    if kind == "tagging":
        tags = tuple(value.split())
        if not words or len(tags) != len(words):
            raise ValueError(f"{len(words)} words and {len(tags)} tags")
        return tags
    if not value.strip():
        raise ValueError("the label is empty")
    return value


def multiple_choice(
    name: str,
    text: str | tuple[str, ...],
    choices: tuple[str, ...],
    label: str,
    *,
    stem: str = "",
    first: int = 0,
    **options,
) -> Task:
    """A task that asks for the correct one of a row's choices.

    Args:
        text: the column with the text before each choice, or several, joined by a space.
        choices: the columns of the choices.
        label: the column with the number of the correct choice.
        stem: a column with which each choice begins, as SWAG's `sent2`.
        first: number of the first choice.
        options: as for `table`.
    """
    columns = (text,) if isinstance(text, str) else text
    numbers = [str(first + i) for i in range(len(choices))]

    def parse(row: dict[str, str], split: str, where: str) -> Iterator[Example]:
        value = row.get(label) if split == "test" else row[label]
        begin = f"{row[stem]} " if stem else ""
        yield Example(
            "",
            where,
            texts=(" ".join(row[column] for column in columns),),
            choices=tuple(begin + row[choice] for choice in choices),
            label=None if value is None else numbers.index(value.strip()),
        )

    return _table_task(name, "choice", parse, options)


def labelled_lines(name: str, *, encoding: str = "utf-8", **task) -> Task:
    """A classification task whose lines are a label, a space and the text; of a label "COARSE:fine"
    the first part."""

    def parse(line: str, where: str) -> Iterator[Example]:
        label, text = line.split(" ", 1)
        yield Example("", where, (text,), label.partition(":")[0])

    def read(path: Path, split: str) -> Iterator[Example]:
        lines = (row for row in read_lines(path, encoding) if row[1])
        return parse_each(lines, parse)

    return file_task(name, "classification", read, **task)


def labelled_folders(name: str, label_names: tuple[str, ...], **task) -> Task:
    """A classification task with a folder a split, in it a folder a class, in that a .txt a text.

    Args:
        label_names: the classes in order, by their folders; others are not read.
        task: of `file_task`; train, valid and test end in "/".
    """

    def read(folder: Path, split: str) -> Iterator[Example]:
        for label in label_names:
            paths = sorted((folder / label).glob("*.txt"))
            if not paths:
                raise UserError(f"{folder / label}: there is no .txt file")
            for path in paths:
                text = read_text(path)
                yield Example(f"{label}/{path.stem}", f"{path}:1", (text,), label)

    return file_task(name, "classification", read, label_names=label_names, **task)
