"""Columns, one word per line and an empty line after each sentence: CoNLL and CoNLL-U (universaldependencies.org/format)."""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.kinds import Tagging
from bertlab.transfer.tasks.assemble import file_task
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.files import read_lines

UPOS, XPOS, HEAD = 3, 4, 6
"""Columns of CoNLL-U: universal part-of-speech tags, the treebank's own, and the number of a word's head."""


def conll(
    name: str,
    *,
    train: str | tuple[str, ...],
    valid: str | tuple[str, ...] = (),
    test: str | tuple[str, ...] = (),
    word: int = 0,
    tag: int = -1,
    metrics: tuple[str, ...] = ("entity_f1", "accuracy"),
    label_names: tuple[str, ...] = (),
    language_prefix: bool = False,
    encoding: str = "utf-8",
) -> Task:
    """A tagging task whose files have one word per line, columns separated by tabs or else by spaces.

    White space at the end of a line is no part of a tag. A line -DOCSTART- is no word: it begins a document, whose words
    go with each of its sentences (`Example.document`).

    Args:
        name, train, valid, test, metrics, label_names, encoding: as in `bertlab.transfer.tasks.table`.
        word, tag: column numbers, from 0; −1 is the last.
        language_prefix: words begin with a language, like WikiANN's "en:Sioux"; it is removed.

    Raises:
        UserError: when loading: lines differ in their number of columns, a column does not exist, or the tags are in no scheme
            of entities (`bertlab.transfer.entities.find_scheme`) and a metric asks for them.
    """

    def read(path: Path, split: str) -> Iterator[Example]:
        columns, document, found = 0, 0, []
        for block in _blocks(path, encoding):
            lines = [(at, line) for at, line in block if not line.startswith("-DOCSTART-")]
            document += len(lines) < len(block)
            words = []
            for at, line in lines:
                # With tabs between columns, a word may be any other space, such as U+00A0.
                row = line.rstrip(" \t").split("\t" if "\t" in line.rstrip(" \t") else None)
                columns = columns or max(len(row), 2, word + 1, tag + 1)
                if len(row) != columns:
                    raise UserError(f"{path}:{at}: {len(row)} columns, expected {columns}; every line needs a word and a tag")
                own = row[word].partition(":")[2] if language_prefix and ":" in row[word] else row[word]
                words.append((at, own, row[tag]))
            if words:
                found.append((document, _example(str(len(found)), f"{path}:{lines[0][0]}", words)))
        return _in_documents(found)

    return file_task(name, Tagging(), metrics, read, (train, valid, test), label_names=label_names)


def conllu(
    name: str,
    *,
    train: str | tuple[str, ...],
    valid: str | tuple[str, ...] = (),
    test: str | tuple[str, ...] = (),
    tag: int = UPOS,
    metrics: tuple[str, ...] = ("accuracy",),
    label_names: tuple[str, ...] = (),
) -> Task:
    """A tagging task in CoNLL-U: syntactic words; it skips the ranges of multiword tokens (1-2) and empty nodes (1.1).

    Args:
        name, train, valid, test, metrics, label_names: as in `bertlab.transfer.tasks.table`.
        tag: `UPOS` or `XPOS`; `HEAD` for `bertlab.transfer.edge_probe`, with the numbers of all files as classes.
    Raises:
        UserError: when loading: a line lacks ten columns or has an invalid id, a word has no tag, two sentences have the same
            sent_id.
    """

    def read(path: Path, split: str) -> Iterator[Example]:
        ids = {}
        for number, block in enumerate(_blocks(path, "utf-8")):
            where, own, words = f"{path}:{block[0][0]}", str(number), []
            for at, line in block:
                if line.startswith("#"):
                    key, _, value = line[1:].partition("=")
                    own = value.strip() if key.strip() == "sent_id" else own
                    continue
                row = line.split("\t")
                if len(row) != 10:
                    raise UserError(f"{path}:{at}: {len(row)} columns, but CoNLL-U has 10, separated by tabs; correct the line")
                if not re.fullmatch(r"[0-9]+([-.][0-9]+)?", row[0]):
                    raise UserError(f"{path}:{at}: '{row[0]}' is not a word id; CoNLL-U has 1, 1-2 or 1.1 in the first column")
                if row[0].isdigit():
                    words.append((at, row[1], "" if row[tag] == "_" else row[tag]))
            if (first := ids.setdefault(own, where)) != where:
                raise UserError(f"{where}: {first} also has the sent_id '{own}'; make ids unique")
            if words:
                yield _example(own, where, words)

    files = train, valid, test
    return file_task(name, Tagging(), metrics, read, files, label_names=label_names, every_label=tag == HEAD)


def _blocks(path: Path, encoding: str) -> Iterator[list[tuple[int, str]]]:
    """(Number, line) of each run of lines that are not empty; WNUT's train file has empty lines that hold a tab."""
    for filled, lines in itertools.groupby(read_lines(path, encoding), lambda numbered: bool(numbered[1].strip())):
        if filled:
            yield list(lines)


def _in_documents(numbered: Iterable[tuple[int, Example]]) -> Iterator[Example]:
    """The examples with the words of their documents, which are numbered from 1; 0 is no document."""
    for number, group in itertools.groupby(numbered, lambda pair: pair[0]):
        examples = [example for _, example in group]
        words = tuple(itertools.chain.from_iterable(example.words for example in examples)) if number else ()
        at = 0
        for example in examples:
            yield dataclasses.replace(example, document=words, document_at=at if words else 0)
            at += len(example.words)


def _example(id: str, where: str, rows: Sequence[tuple[int, str, str]]) -> Example:
    """The example of a sentence's (line, word, tag)."""
    lines, words, tags = zip(*((at, word, tag.strip()) for at, word, tag in rows))
    example = Example(id, where, words=words, label=tags, lines=lines)
    for i, (word, tag) in enumerate(zip(words, tags)):
        if not (word and tag):
            raise UserError(f"{example.where_of(i)}: the word '{word}' has the tag '{tag}'; give every word one")
    return example
