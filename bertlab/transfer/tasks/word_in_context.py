"""Word in context (WiC, Pilehvar and Camacho-Collados 2019): does a word have the same meaning in two sentences?

Each split has two files: SPLIT.data.txt with WORD, part of speech, I-J (the word's number in each sentence, from 0), and two
sentences, separated by tabs; SPLIT.gold.txt with T or F on each line. SuperGLUE (Wang et al. 2019) has one .jsonl file instead.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.kinds import WordPair
from bertlab.transfer.tasks.assemble import file_task
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.files import field, read_lines, read_records

_LABELS = ("F", "T")


def word_in_context(
    name: str,
    *,
    train: str | tuple[str, ...],
    valid: str | tuple[str, ...] = (),
    test: str | tuple[str, ...] = (),
    metrics: tuple[str, ...] = ("accuracy",),
    folder: str = "",
) -> Task:
    """A word_pair task with classes F and T.

    Args:
        name, train, valid, test, metrics, folder: as in `bertlab.transfer.tasks.table`; name the `*.data.txt` files, or
            `.jsonl` files in SuperGLUE's form. A test file without its `*.gold.txt` has no labels.

    Raises:
        UserError: when loading: the gold file is missing or has another number of lines, a line is not in this format, or a
            sentence lacks its word.
    """
    return file_task(name, WordPair(), metrics, _read, (train, valid, test), folder=folder, label_names=_LABELS)


def _read(path: Path, split: str) -> Iterator[Example]:
    return _read_records(path, split) if path.suffix == ".jsonl" else _read_lines(path, split)


def _read_records(path: Path, split: str) -> Iterator[Example]:
    for number, (where, record) in enumerate(read_records(path)):
        texts = tuple(field(record, key, str, where) for key in ("sentence1", "sentence2"))
        targets = tuple((field(record, f"start{i}", int, where), field(record, f"end{i}", int, where)) for i in (1, 2))
        for text, (start, end) in zip(texts, targets):
            if not 0 <= start < end <= len(text):
                raise UserError(f"{where}: '{text}' has no characters {start} to {end}; correct the word's place")
        label = None if split == "test" and "label" not in record else _LABELS[field(record, "label", bool, where)]
        yield Example(id=str(number), where=where, texts=texts, targets=targets, label=label)


def _read_lines(path: Path, split: str) -> Iterator[Example]:
    rows = [(number, line.split("\t")) for number, line in read_lines(path) if line]
    answers = _answers(path, len(rows), split)
    for i, ((line, fields), answer) in enumerate(zip(rows, answers)):
        where = f"{path}:{line}"
        if len(fields) != 5:
            raise UserError(f"{where}: {len(fields)} fields, expected 5 (word, part of speech, I-J, two sentences)")
        if not (places := re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", fields[2])):
            raise UserError(f"{where}: '{fields[2]}' must be the positions of the word in both sentences, such as 0-3")
        targets = tuple(_place(sentence, int(place), where) for sentence, place in zip(fields[3:], places.groups()))
        yield Example(id=str(i), where=where, texts=tuple(fields[3:]), targets=targets, label=answer)


def _answers(path: Path, number: int, split: str) -> list[str | None]:
    gold = path.with_name(path.name.replace(".data.", ".gold."))
    if gold == path or not gold.is_file():
        if split == "test":
            return [None] * number
        raise UserError(f"{path}: put its labels in {gold.name.replace('.data.', '.gold.')} in the same folder")
    answers = []
    for line, answer in ((line, text.strip()) for line, text in read_lines(gold) if text.strip()):
        if answer not in _LABELS:
            raise UserError(f"{gold}:{line}: '{answer}' must be T if the word means the same, else F; correct the line")
        answers.append(answer)
    if len(answers) != number:
        raise UserError(f"{gold}: {len(answers)} labels for the {number} examples of {path.name}; give one per line")
    return answers


def _place(sentence: str, number: int, where: str) -> tuple[int, int]:
    """(Start, end) in characters of a word by its number."""
    words = [match.span() for match in re.finditer(r"\S+", sentence)]
    if number >= len(words):
        raise UserError(f"{where}: '{sentence}' has {len(words)} words and no word {number}; correct the number")
    return words[number]
