"""Columns, one word per line and an empty line after each sentence: CoNLL and CoNLL-U."""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.files import file_task, read_blocks, rows_task

UPOS, XPOS = 3, 4
"""Columns of CoNLL-U: universal tags, and the treebank's own."""


def conll(
    name: str,
    *,
    tag: int = -1,
    language_prefix: bool = False,
    metrics: str | tuple[str, ...] = ("entity_f1", "accuracy"),
    **task,
) -> Task:
    """A tagging task with one word per line, columns separated by tabs or else by spaces.

    White space at the end of a line is not part of a tag. -DOCSTART- begins a document, whose
    words go with each of its sentences.

    Args:
        tag: number of the column from 0; -1 is the last. Words are in the first.
        language_prefix: words begin with a language, as WikiANN's "en:Sioux"; it is removed.
        metrics: the first selects.
        task: arguments of `file_task`.
    """

    def read(path: Path, split: str) -> Iterator[Example]:
        documents, columns = [[]], 0  # first the sentences before any -DOCSTART-
        for _, block in read_blocks(path):
            lines = [(where, line) for where, line in block if not line.startswith("-DOCSTART-")]
            if len(lines) < len(block):
                documents.append([])
            rows = []
            for where, line in lines:
                line = line.rstrip(" \t")
                # Between tabs, a word may be some other space, such as U+00A0.
                row = line.split("\t" if "\t" in line else None)
                columns = columns or max(len(row), 2, tag + 1)
                if len(row) != columns:
                    raise UserError(f"{where}: {len(row)} columns in place of {columns}")
                _, colon, rest = row[0].partition(":")
                rows.append((where, rest if language_prefix and colon else row[0], row[tag]))
            if rows:
                documents[-1].append(_sentence(rows))
        yield from documents[0]
        for sentences in documents[1:]:
            words = tuple(itertools.chain.from_iterable(one.words for one in sentences))
            start = 0
            for one in sentences:
                yield dataclasses.replace(one, document=words, document_at=start)
                start += len(one.words)

    return file_task(name, "tagging", read, metrics=metrics, **task)


def conllu(name: str, *, tag: int = UPOS, **task) -> Task:
    """A tagging task of the syntactic words of CoNLL-U (universaldependencies.org/format).

    Ranges of multiword tokens (1-2) and empty nodes (1.1) are left out. `tag` is a column.
    """

    def parse(block: list[tuple[str, str]], _: str) -> Iterator[Example]:
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

    return rows_task(name, "tagging", read_blocks, parse, **task)


def _sentence(rows: list[tuple[str, str, str]]) -> Example:
    """The example of a sentence's ("FILE:LINE", word, tag)."""
    for where, word, tag in rows:
        if not (word and tag.strip()):
            raise UserError(f"{where}: the word '{word}' has the tag '{tag}'; give every word one")
    _, words, tags = zip(*rows)
    return Example("", rows[0][0], words=words, label=tuple(tag.strip() for tag in tags))
