"""The Stanford Sentiment Treebank (Socher et al. 2013) as trees, one per line: (3 (2 It) (4 (2 's) (4 good)))."""

import re
from collections.abc import Iterator
from pathlib import Path

from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.kinds import Classification
from bertlab.transfer.tasks.assemble import file_task
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.files import read_lines

_LABELS = ("0", "1", "2", "3", "4")
_PART = re.compile(r"\s*(?:\(([0-4]) |([^\s()]+)|(\)))")


def sentiment_trees(
    name: str,
    *,
    train: str | tuple[str, ...],
    valid: str | tuple[str, ...] = (),
    test: str | tuple[str, ...] = (),
    phrases: bool = False,
) -> Task:
    """A classification task with the classes 0 (very negative) to 4 (very positive); words are as in the trees (-LRB-).

    Args:
        name, train, valid, test: as in `bertlab.transfer.tasks.table`.
        phrases: train has every labelled phrase of its sentences, not only the sentences.

    Raises:
        UserError: when loading: a line is not one tree with a label from 0 to 4 at each phrase.
    """

    def read(path: Path, split: str) -> Iterator[Example]:
        for number, line in read_lines(path):
            if not line.strip():
                continue
            try:
                *inner, sentence = _phrases(line)
            except ValueError as error:
                raise UserError(
                    f"{path}:{number}: {error}; expected one tree like (3 (2 It) (3 works)), correct the line"
                ) from None
            for i, (label, words) in enumerate([sentence, *(inner if phrases and split == "train" else [])]):
                yield Example(f"{number - 1}-{i}" if i else str(number - 1), f"{path}:{number}", (" ".join(words),), label)

    return file_task(name, Classification(), ("accuracy",), read, (train, valid, test), label_names=_LABELS)


def _phrases(tree: str) -> list[tuple[str, list[str]]]:
    """(Label, words) of each phrase of a tree, the whole last. Raises: ValueError: it is not a tree."""
    begun, words, found, at = [], [], [], 0
    tree = tree.rstrip()
    while at < len(tree):
        part = _PART.match(tree, at)
        if part is None or (found and not begun):
            raise ValueError(f"unexpected '{tree[at : at + 20]}'")
        label, word, _ = part.groups()
        at = part.end()
        if label:
            begun.append((label, len(words)))
        elif not begun:
            raise ValueError(f"'{part[0].strip()}' is in no phrase")
        elif word:
            words.append(word)
        else:
            label, first = begun.pop()
            if first == len(words):
                raise ValueError("a phrase has no words")
            found.append((label, words[first:]))
    if begun:
        raise ValueError("a bracket is not closed")
    return found
