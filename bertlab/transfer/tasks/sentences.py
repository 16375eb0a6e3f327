"""Sentences in formats of their own: the Stanford Sentiment Treebank, and definite pronouns."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from bertlab.transfer.examples import Example
from bertlab.transfer.tasks.assemble import file_task
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.files import parse_each, read_lines

_TREE = re.compile(r"\((\S+)\s|([^\s()]+)|\)")


def sentiment_trees(name: str, *, phrases: bool = False, **task) -> Task:
    """Trees of Socher et al. 2013, one a line: (3 (2 It) (4 (2 's) (4 good))).

    With `phrases`, train has every labelled phrase of its sentences too.
    """

    def read(path: Path, split: str) -> Iterator[Example]:
        def parse(tree: str, where: str) -> Iterator[Example]:
            *inner, sentence = _parse_tree(tree)
            for label, words in [sentence, *(inner if phrases and split == "train" else [])]:
                yield Example("", where, (" ".join(words),), label)

        return parse_each((row for row in read_lines(path) if row[1].strip()), parse)

    return file_task(name, "classification", read, label_names=tuple("01234"), **task)


def _parse_tree(tree: str) -> list[tuple[str, list[str]]]:
    """(Label, words) of each phrase, the whole last."""
    open_phrases, words, phrases = [], [], []
    for match in _TREE.finditer(tree):
        label, word = match.groups()
        if label:
            open_phrases.append((label, len(words)))
        elif word:
            words.append(word)
        else:
            label, first = open_phrases.pop()
            phrases.append((label, words[first:]))
    if open_phrases or phrases[-1][1] != words or not all(words for _, words in phrases):
        raise ValueError("a line is one tree such as (3 (2 It) (3 works))")
    return phrases


def definite_pronouns(name: str, **task) -> Task:
    """A choice between a sentence's two readings, with either noun for its pronoun.

    Of each sentence the file has five lines: the sentence, its pronoun, both nouns with a comma
    between them, the right noun, and an empty line. If the pronoun occurs twice, the first is meant
    (Rahman and Ng 2012).
    """

    def parse(lines: list[str], where: str) -> Iterator[Example]:
        sentence, pronoun, pair, answer = (line.strip() for line in lines)
        first, second = (noun.strip() for noun in pair.split(","))
        match = re.search(rf"(?<!\w){re.escape(pronoun)}(?!\w)", sentence)
        if not match or not pronoun:
            raise ValueError(f"the sentence has no word '{pronoun}'")
        yield Example(
            "",
            where,
            texts=(sentence[: match.start()].strip(),),
            label=[first.casefold(), second.casefold()].index(answer.casefold()),
            choices=tuple(noun + sentence[match.end() :] for noun in (first, second)),
            targets=((0, len(first)), (0, len(second))),
        )

    def read(path: Path, split: str) -> Iterator[Example]:
        blocks = itertools.groupby(read_lines(path), lambda row: bool(row[1].strip()))
        filled = (list(block) for is_filled, block in blocks if is_filled)
        return parse_each(((rows[0][0], [line for _, line in rows]) for rows in filled), parse)

    return file_task(name, "choice", read, **task)
