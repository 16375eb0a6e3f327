"""Delimited tables, csv and tsv, and lines of a label and a text: one example per row."""

import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.kinds import KINDS, Classification
from bertlab.transfer.tasks.assemble import file_task
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.files import read_lines, read_records, read_text

Rows = Iterable[tuple[str, dict[str, str]]]
"""("FILE:LINE", field by column)."""


def table(
    name: str,
    *,
    train: str | tuple[str, ...],
    valid: str | tuple[str, ...] = (),
    test: str | tuple[str, ...] = (),
    text: str | tuple[str, ...],
    label: str,
    pair: str = "",
    id: str = "",
    kind: str = "classification",
    metrics: tuple[str, ...] = (),
    label_names: tuple[str, ...] = (),
    columns: tuple[str, ...] = (),
    delimiter: str = "",
    quoted: bool | None = None,
    encoding: str = "utf-8",
    skip_short_rows: bool = False,
    json_lines: bool | None = None,
    replace: tuple[str, str] | None = None,
    unlabelled: str = "",
    symmetric: bool = False,
    folder: str = "",
    stored: Callable[[str], Rows] | None = None,
) -> Task:
    """A task whose files are tables.

    Args:
        name: the task's name.
        train, valid, test: the files' names or patterns, relative to the task's directory (for your own task: to the Python
            file). Without valid or test, that part is held out of train; see `divide`. A test file without the column `label`
            gives examples without labels.
        text: the column with the text, or several that are joined by a space; tagging: with the words, separated by spaces.
        label: the column with the class; regression: a number; tagging: one tag per word, separated by spaces.
        pair: the column with the second text, if the task has pairs.
        id: a column with unique values; "" for the example's number in its file.
        kind: "classification", "regression" or "tagging".
        metrics: () for accuracy and macro_f1 (classification), pearson and spearman (regression), accuracy (tagging).
        label_names: the classes in order; () for those of train, sorted.
        columns: column names, for files without a header.
        delimiter: one character; "" for a comma in files that end in .csv, otherwise a tab.
        quoted: fields may have double quotes; None: True for files that end in .csv. GLUE's tables are not quoted.
        encoding: the files' encoding.
        skip_short_rows: skips rows with too few fields, for published files that are known to have some.
        json_lines: each line is a JSON object, whose fields are the columns; None: True for files that end in .jsonl.
        replace: (old, new): in texts, what stands for something else, such as ("\\n", "\n") for line ends that are escaped.
        unlabelled: a label that stands for "no label", like SNLI's "-"; its rows are left out.
        symmetric: the order of `text` and `pair` does not matter, as in similarity and paraphrase: GPT reads both orders.
        folder: a folder in the directory that may hold the files.
        stored: (split) -> rows, for `config.task_data.directory="tfds"`.

    Raises:
        UserError: at once if tables do not support the kind, the delimiter is not a single character, or a text's column is
            also the label's; when loading, for any mistake in a file, with its line.
    """
    if kind not in (plain := [name for name, of in KINDS.items() if of.is_plain]):
        raise UserError(f"task '{name}': a table cannot hold kind '{kind}'; choose one of {', '.join(plain)}")
    asked = KINDS[kind](symmetric=symmetric)
    parts = [(text,) if isinstance(text, str) else text, *([(pair,)] if pair else [])]
    texts = tuple(column for part in parts for column in part)
    if label in texts:
        raise UserError(f"task '{name}': column '{label}' is both a text and the label; name two columns")
    if delimiter and (len(delimiter) > 1 or delimiter in '"\r\n'):
        raise UserError(
            f"task '{name}': delimiter {delimiter!r} must be one character, but not a quote or line end; give another"
        )

    def to_examples(rows: Rows) -> Iterator[Example]:
        ids = {}
        for number, (where, row) in enumerate(rows):
            own = row[id] if id else str(number)
            if (first := ids.setdefault(own, where)) != where:
                raise UserError(f"{where}: {first} also has the id '{own}'; make ids unique")
            if unlabelled and row.get(label) == unlabelled:
                continue
            shown = tuple(" ".join(row[column] for column in part) for part in parts)
            if replace:
                shown = tuple(one.replace(*replace) for one in shown)
            words = tuple(shown[0].split()) if asked.of_words else ()
            yield Example(
                id=own,
                where=where,
                texts=() if asked.of_words else shown,
                words=words,
                label=asked.read_label(row[label], where, words) if label in row else None,
            )

    def read(path: Path, split: str) -> Iterator[Example]:
        needed = (*texts, id, "" if split == "test" else label)
        return to_examples(read_rows(path, needed, columns, delimiter, quoted, encoding, skip_short_rows, json_lines))

    return file_task(
        name,
        asked,
        metrics,
        read,
        (train, valid, test),
        folder=folder,
        label_names=label_names,
        stored=stored and (lambda split: to_examples(stored(split))),
    )


def labelled_lines(
    name: str,
    *,
    train: str | tuple[str, ...],
    valid: str | tuple[str, ...] = (),
    test: str | tuple[str, ...] = (),
    metrics: tuple[str, ...] = ("accuracy",),
    label_names: tuple[str, ...] = (),
    encoding: str = "utf-8",
) -> Task:
    """A classification task whose lines are a label, a space and the text. A label "COARSE:fine" is cut to its first part.

    Args:
        name, train, valid, test, metrics, label_names, encoding: as in `table`.
    """

    def read(path: Path, split: str) -> Iterator[Example]:
        for number, line in read_lines(path, encoding):
            label, space, text = line.partition(" ")
            if line and not (label and space):
                raise UserError(f"{path}:{number}: expected a label, a space and a text; correct '{line[:40]}'")
            if line:
                where = f"{path}:{number}"
                yield Example(str(number - 1), where, (text,), Classification.read_label(label.partition(":")[0], where))

    return file_task(name, Classification(), metrics, read, (train, valid, test), label_names=label_names)


def read_rows(
    path: Path,
    needed: tuple[str, ...],
    columns: tuple[str, ...] = (),
    delimiter: str = "",
    quoted: bool | None = None,
    encoding: str = "utf-8",
    skip_short_rows: bool = False,
    json_lines: bool | None = None,
) -> Rows:
    """Yields ("FILE:LINE", field by column) for each row; skips empty lines.

    Args:
        path: the table.
        needed: required columns; "" means none.
        columns, delimiter, quoted, encoding, skip_short_rows, json_lines: as in `table`.

    Raises:
        UserError: the file is empty or not in that encoding, a column is missing, a row has too few or too many fields, or
            its quotes do not close; or a line is not a JSON object with the needed fields.
    """
    if path.suffix == ".jsonl" if json_lines is None else json_lines:
        yield from _json_rows(path, needed, encoding)
        return
    comma = path.suffix == ".csv"
    quoted, delimiter = comma if quoted is None else quoted, delimiter or ("," if comma else "\t")
    records = _quoted_records(path, delimiter, encoding) if quoted else _plain_records(path, delimiter, encoding)
    where, header = path, "the names of the columns"
    if not columns:
        line, columns = next(records, (0, None))
        if columns is None:
            raise UserError(f"{path}: the file is empty; its first line must name the columns")
        where, header = f"{path}:{line}", "the first line"
    for column in filter(None, needed):
        if columns.count(column) != 1:
            several = "several columns are" if column in columns else "no column is"
            raise UserError(
                f"{where}: {several} called '{column}' (there are {', '.join(filter(None, columns))}); correct {header}, or"
                " the column's name in the task"
            )
    for line, fields in records:
        if len(fields) < len(columns) and skip_short_rows:
            continue
        if len(fields) != len(columns):
            kept = "are" if quoted else "are not"
            raise UserError(
                f"{path}:{line}: the row has {len(fields)} fields, but the table has {len(columns)} columns; correct it (the "
                f"delimiter is {delimiter!r}, and fields {kept} read as quoted)"
            )
        yield f"{path}:{line}", dict(zip(columns, fields))


def _json_rows(path: Path, needed: tuple[str, ...], encoding: str) -> Rows:
    """Texts as they are; numbers and truth values as JSON writes them. Other fields are no columns."""
    for where, record in read_records(path, encoding):
        plain = {key: value for key, value in record.items() if isinstance(value, str | int | float)}
        if missing := [column for column in needed if column and column not in plain]:
            raise UserError(f"{where}: the field '{missing[0]}' is missing, or is neither text nor a number; correct the line")
        yield where, {key: value if isinstance(value, str) else json.dumps(value) for key, value in plain.items()}


def _plain_records(path: Path, delimiter: str, encoding: str) -> Iterator[tuple[int, list[str]]]:
    return ((number, line.split(delimiter)) for number, line in read_lines(path, encoding) if line)


def _quoted_records(path: Path, delimiter: str, encoding: str) -> Iterator[tuple[int, list[str]]]:
    """(First line, fields); a quoted field may hold delimiters and line ends."""
    # The csv module limits all readers to 128 KiB per field; whole documents are longer.
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    reader = csv.reader(io.StringIO(read_text(path, encoding), newline=""), delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise UserError(f"{path}:{line}: the row that starts here is badly quoted ({error}); correct it") from error
        if fields is None:
            return
        if fields:
            yield line, fields
