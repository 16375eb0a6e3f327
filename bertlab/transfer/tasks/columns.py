"""Columns, a word a line and an empty line after each sentence: CoNLL and CoNLL-U."""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.tasks.assemble import file_task
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.files import read_lines

UPOS, XPOS = 3, 4
"""Columns of CoNLL-U: universal tags, the treebank's own."""


def conll(
    name: str,
    *,
    word: int = 0,
    tag: int = -1,
    language_prefix: bool = False,
    encoding: str = "utf-8",
    metrics: str | tuple[str, ...] = ("entity_f1", "accuracy"),
    **task,
) -> Task:
    """A tagging task with a word a line, columns separated by tabs or else by spaces.

    White space at the end of a line is no part of a tag. A line -DOCSTART- begins a document, whose
    words go with each of its sentences.

    Args:
        word, tag: numbers of columns from 0; -1 is the last.
        language_prefix: words begin with a language, as WikiANN's "en:Sioux"; it is removed.
        encoding: of the files.
        metrics: the first selects.
        task: of `file_task`.
    """

    def read(path: Path, split: str) -> Iterator[Example]:
        sentences, document, columns = [], 0, 0
        for block in _blocks(path, encoding):
            lines = [(where, line) for where, line in block if not line.startswith("-DOCSTART-")]
            document += len(lines) < len(block)
            rows = []
            for where, line in lines:
                line = line.rstrip(" \t")
                # Between tabs, a word may be any other space, such as U+00A0.
                row = line.split("\t" if "\t" in line else None)
                columns = columns or max(len(row), 2, word + 1, tag + 1)
                if len(row) != columns:
                    raise UserError(f"{where}: {len(row)} columns in place of {columns}")
                _, colon, rest = row[word].partition(":")
                rows.append((where, rest if language_prefix and colon else row[word], row[tag]))
            if rows:
                sentences.append((document, _sentence(rows)))
        return _with_documents(sentences)

    return file_task(name, "tagging", read, metrics=metrics, **task)


def conllu(name: str, *, tag: int = UPOS, **task) -> Task:
    """A tagging task of the syntactic words of CoNLL-U (universaldependencies.org/format).

    Ranges of multiword tokens (1-2) and empty nodes (1.1) are left out. `tag` is a column.
    """

    def read(path: Path, split: str) -> Iterator[Example]:
        for block in _blocks(path, "utf-8"):
            rows, sentence_id = [], ""
            for where, line in block:
                if line.startswith("#"):
                    key, _, value = line[1:].partition("=")
                    sentence_id = value.strip() if key.strip() == "sent_id" else sentence_id
                    continue
                row = line.split("\t")
                if len(row) != 10:
                    raise UserError(f"{where}: {len(row)} columns in place of CoNLL-U's 10")
                if row[0].isdigit():
                    rows.append((where, row[1], row[tag].removeprefix("_")))
            if rows:
                yield dataclasses.replace(_sentence(rows), id=sentence_id)

    return file_task(name, "tagging", read, **task)


def _blocks(path: Path, encoding: str) -> Iterator[list[tuple[str, str]]]:
    """("FILE:LINE", line) of each run of filled lines; WNUT has empty ones that hold a tab."""
    lines = read_lines(path, encoding)
    for filled, block in itertools.groupby(lines, lambda row: bool(row[1].strip())):
        if filled:
            yield list(block)


def _sentence(rows: list[tuple[str, str, str]]) -> Example:
    """The example of a sentence's ("FILE:LINE", word, tag)."""
    for where, word, tag in rows:
        if not (word and tag.strip()):
            raise UserError(f"{where}: the word '{word}' has the tag '{tag}'; give every word one")
    _, words, tags = zip(*rows)
    return Example("", rows[0][0], words=words, label=tuple(tag.strip() for tag in tags))


def _with_documents(sentences: list[tuple[int, Example]]) -> Iterator[Example]:
    """The examples with the words of their documents, which are numbered from 1; 0: in none."""
    for number, group in itertools.groupby(sentences, lambda pair: pair[0]):
        examples = [example for _, example in group]
        if not number:
            yield from examples
            continue
        words = tuple(itertools.chain.from_iterable(example.words for example in examples))
        start = 0
        for example in examples:
            yield dataclasses.replace(example, document=words, document_at=start)
            start += len(example.words)
