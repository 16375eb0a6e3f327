"""Definite pronouns (Rahman and Ng 2012): which of two nouns does a pronoun stand for?"""

import re
from collections.abc import Iterator
from pathlib import Path

from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.kinds import Choice
from bertlab.transfer.tasks.assemble import file_task
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.files import read_lines

_LINES = 5


def definite_pronouns(name: str, *, train: str, test: str) -> Task:
    """A choice between a sentence's two readings, with either noun in the pronoun's place.

    Of each sentence the file has five lines: the sentence, its pronoun, both nouns with a comma between them, the right noun,
    and an empty line. If the pronoun occurs twice, the first is meant (the published description, which TensorFlow Datasets
    quotes at definite_pronoun_resolution).

    Args:
        name: the task's name.
        train, test: the files' names.

    Raises:
        UserError: when loading: five lines are not these, the sentence lacks the pronoun, or the answer is none of the nouns.
    """
    return file_task(name, Choice(), (), _read, (train, (), test), folder="DPRD")


def _read(path: Path, split: str) -> Iterator[Example]:
    lines = [line.strip() for _, line in read_lines(path)]
    for first in range(0, len(lines), _LINES):
        (sentence, pronoun, given, answer), where = (*lines[first : first + 4], "", "", "", "")[:4], f"{path}:{first + 1}"
        nouns = [noun.strip() for noun in given.split(",")]
        if not (sentence and pronoun) or len(nouns) != 2 or any(lines[first + 4 : first + _LINES]):
            raise UserError(f"{where}: expected a sentence, a pronoun, two nouns with a comma, the right one and an empty line")
        found = re.search(rf"(?<!\w){re.escape(pronoun)}(?!\w)", sentence)
        if not found or answer.casefold() not in map(str.casefold, nouns):
            lacks = f"the answer '{answer}' is none of the nouns" if found else f"the sentence has no word '{pronoun}'"
            raise UserError(f"{where}: {lacks}; correct it")
        yield Example(
            id=str(first // _LINES),
            where=where,
            texts=(sentence[: found.start()].strip(),),
            choices=tuple(noun + sentence[found.end() :] for noun in nouns),
            label=[noun.casefold() for noun in nouns].index(answer.casefold()),
            targets=tuple((0, len(noun)) for noun in nouns),
        )
