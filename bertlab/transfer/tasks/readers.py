"""Tasks in common formats: tables, labelled lines, folders, CoNLL's columns, SQuAD's JSON. Further
arguments of a format are those of `file_task`: train, valid, test, metrics, label_names, ..."""

import csv
import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bertlab.data.corpora import text
from bertlab.errors import UserError
from bertlab.transfer.examples import Answer, Example
from bertlab.transfer.tasks.base import Task, file_task, several

UPOS, XPOS = 3, 4  # columns of CoNLL-U: universal tags, and the treebank's own
Columns = str | tuple[str, ...]

Rows = Iterable[tuple[str, Any]]  # ("FILE:LINE", row)
Parse = Callable[[Any, str], Iterable[Example]]
"""(Row, "FILE:LINE") -> examples, with labels as published; one without an id gets its number."""


def rows_task(name: str, kind: str, rows: Callable[[Path], Rows], parse: Parse, **task) -> Task:
    """A task whose files or folders have `rows`."""
    return file_task(name, kind, lambda path, split: parse_each(path, rows(path), parse), **task)


def json_task(name: str, kind: str, parse: Parse, **task) -> Task:
    """A task in JSON lines of its own form; `task`: arguments of `file_task`."""
    return rows_task(name, kind, read_records, parse, **task)


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
    return ((f"{path}:{number}", record) for number, record in text.read_records(path))


def table_task(
    name, kind, parse, columns=(), encoding="UTF-8", skip_short_rows=False, replace=("", ""), **task
) -> Task:
    r"""A task whose rows are fields by column: of JSON objects, of .csv files, or between tabs.
    `columns` are their names, if the file has no header. `skip_short_rows` leaves out rows with too
    few fields, which some published files have. `replace` is (old, new) if something stands for a
    character, like ("\\n", "\n") for line ends."""

    def rows(path: Path) -> Rows:
        _, first = next(_filled_lines(path, encoding), ("", ""))
        if first.startswith("{"):
            for where, record in read_records(path):
                # Numbers and booleans as JSON writes them; lists are not columns.
                row = {k: json.dumps(x) for k, x in record.items() if isinstance(x, int | float)}
                yield where, row | {k: x for k, x in record.items() if isinstance(x, str)}
            return
        if path.suffix == ".csv":
            found = _quoted_rows(path, encoding)
        else:  # GLUE's tables have quotes that are part of the text
            found = ((where, line.split("\t")) for where, line in _filled_lines(path, encoding))
        names = columns or next(found, ("", ()))[1]
        for where, fields in found:
            if len(fields) >= len(names) or not skip_short_rows:
                _check_width(where, fields, len(names))
                yield where, {key: field.replace(*replace) for key, field in zip(names, fields)}

    return rows_task(name, kind, rows, parse, **task)


def _filled_lines(path: Path, encoding: str) -> Iterator[tuple[str, str]]:
    return (row for row in read_lines(path, encoding) if row[1])


def _quoted_rows(path: Path, encoding: str) -> Iterator[tuple[str, list[str]]]:
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


def _check_width(where: str, row: Sequence[str], columns: int) -> None:
    if len(row) != columns:
        raise UserError(f"{where}: {len(row)} columns in place of {columns}")


def table(
    name: str, text: Columns, label: str, *, pair="", kind="classification", unlabelled="", **task
) -> Task:
    """A task whose files are tables. `text` is the column with the text, or several, joined by a
    space; `pair` that of the second text, if the task has pairs; `label` that of the class, or of
    the number if the `kind` is regression; a test file may lack it. Rows with the label
    `unlabelled`, like SNLI's "-", are left out. Others as for `table_task`."""
    groups = [several(text), *([(pair,)] if pair else [])]

    def parse(row: dict[str, str], where: str) -> Iterator[Example]:
        value = row.get(label) or None
        if unlabelled and value == unlabelled:
            return
        texts = tuple(" ".join(row[column] for column in group) for group in groups)
        if kind == "regression" and value:
            value = float(value)
            if not math.isfinite(value):
                raise ValueError(f"the label is {value}")
        yield Example("", where, texts, value)

    return table_task(name, kind, parse, **task)


def multiple_choice(
    name: str, text: Columns, choices: tuple[str, ...], label: str, *, stem="", first=0, **task
) -> Task:
    """A task that asks for the correct one of the `choices`, columns of a row, after the columns
    `text`, joined by a space. The column `label` has its number, the first being `first`. Each
    choice begins with the column `stem`, if given, like SWAG's `sent2`. Others as for `table`."""
    numbers = [str(first + i) for i in range(len(choices))]

    def parse(row: dict[str, str], where: str) -> Iterator[Example]:
        begin = f"{row[stem]} " if stem else ""
        context = " ".join(row[column] for column in several(text))
        number = numbers.index(row[label].strip()) if label in row else None
        texts = tuple(begin + row[choice] for choice in choices)
        yield Example("", where, (context,), number, choices=texts)

    return table_task(name, "choice", parse, **task)


def labelled_lines(name: str, *, encoding: str = "UTF-8", **task) -> Task:
    """A classification task of lines: label, space, text. "COARSE:fine" counts as COARSE."""

    def parse(line: str, where: str) -> Iterator[Example]:
        label, text = line.split(" ", 1)
        yield Example("", where, (text,), label.partition(":")[0])

    rows = functools.partial(_filled_lines, encoding=encoding)
    return rows_task(name, "classification", rows, parse, **task)


def labelled_folders(name: str, label_names: tuple[str, ...], **task) -> Task:
    """A classification task: a folder per split ("train/") with one per class, a .txt per text."""

    def rows(folder: Path) -> Iterator[tuple[str, Path]]:
        for label in label_names:
            paths = sorted((folder / label).glob("*.txt"))
            if not paths:
                raise ValueError(f"there is no .txt file in {label}")
            yield from ((f"{path}:1", path) for path in paths)

    def parse(path: Path, where: str) -> Iterator[Example]:
        label = path.parent.name
        yield Example(f"{label}/{path.stem}", where, (path.read_text("utf-8-sig"),), label)

    return rows_task(name, "classification", rows, parse, label_names=label_names, **task)


def conll(
    name: str, *, tag=-1, language_prefix=False, metrics=("entity_f1", "accuracy"), **task
) -> Task:
    """A tagging task with one word per line, columns separated by tabs or else by spaces: words in
    the first, tags in number `tag` (from 0; -1 is the last). -DOCSTART- begins a document, whose
    words go with each of its sentences. `language_prefix`: words begin with a language, as
    WikiANN's "en:Sioux"; it is removed."""

    def read(path: Path, split: str) -> Iterator[Example]:
        documents, columns = [[]], 0  # first the sentences before any -DOCSTART-
        for _, block in read_blocks(path):
            rows = []
            for where, line in block:
                if line.startswith("-DOCSTART-"):
                    documents.append([])
                    continue
                line = line.rstrip(" \t")
                # Between tabs, a word may be some other space, such as U+00A0.
                row = line.split("\t" if "\t" in line else None)
                columns = columns or max(len(row), 2, tag + 1)
                _check_width(where, row, columns)
                _, colon, rest = row[0].partition(":")
                rows.append((where, rest if language_prefix and colon else row[0], row[tag]))
            if rows:
                documents[-1].append(_sentence(rows))
        yield from documents[0]
        for sentences in documents[1:]:
            words = tuple(itertools.chain.from_iterable(one.words for one in sentences))
            starts = itertools.accumulate((len(one.words) for one in sentences), initial=0)
            for one, start in zip(sentences, starts):
                yield dataclasses.replace(one, document=words, document_at=start)

    return file_task(name, "tagging", read, metrics=metrics, **task)


def conllu(name: str, *, tag: int = UPOS, **task) -> Task:
    """A tagging task of the syntactic words of CoNLL-U (universaldependencies.org/format). Ranges
    of multiword tokens (1-2) and empty nodes (1.1) are left out. `tag` is a column."""

    def parse(block: list[tuple[str, str]], _: str) -> Iterator[Example]:
        rows, sentence_id = [], ""
        for where, line in block:
            if line.startswith("#"):
                key, _, value = line[1:].partition("=")
                sentence_id = value.strip() if key.strip() == "sent_id" else sentence_id
                continue
            row = line.split("\t")
            _check_width(where, row, 10)
            if row[0].isdigit():
                rows.append((where, row[1], row[tag].removeprefix("_")))
        if rows:
            yield dataclasses.replace(_sentence(rows), id=sentence_id)

    return rows_task(name, "tagging", read_blocks, parse, **task)


def _sentence(rows: list[tuple[str, str, str]]) -> Example:
    """The example of a sentence's ("FILE:LINE", word, tag)."""
    for where, word, tag in rows:
        if not (word and tag.strip()):
            raise UserError(f"{where}: the word '{word}' has the tag '{tag}'; give every word one")
    _, words, tags = zip(*rows)
    return Example("", rows[0][0], words=words, label=tuple(tag.strip() for tag in tags))


def squad(name: str, **task) -> Task:
    """A span task in SQuAD's JSON; questions may be impossible (2.0)."""
    return rows_task(name, "span", read_articles, parse_article, **task)


def read_articles(path: Path) -> Iterator[tuple[str, dict]]:
    """("FILE: article NUMBER", article) of a file."""
    articles = json.loads(path.read_bytes())["data"]
    return ((f"{path}: article {i}", article) for i, article in enumerate(articles, 1))


def parse_article(article: dict, where: str) -> Iterator[Example]:
    """The questions of an article."""
    for paragraph in article["paragraphs"]:
        context = paragraph["context"]
        for question in paragraph["qas"]:
            name, answers = question["id"], question["answers"]
            if bool(answers) == question.get("is_impossible", False):
                raise ValueError(f"question {name} has {len(answers)} answers")
            answers = tuple(Answer(one["text"], one["answer_start"]) for one in answers)
            for one in answers:
                is_there = one.start >= 0 and context.startswith(one.text, one.start)
                if not (is_there and one.text.strip()):
                    raise ValueError(f"question {name} has an answer that is not at answer_start")
            texts = (question["question"], context)
            yield Example(name, f"{where}: question {name}", texts, answers=answers)
