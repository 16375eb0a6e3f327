"""SQuAD 1.1 (Rajpurkar et al. 2016) and 2.0 (2018): JSON with articles, paragraphs and questions."""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

from bertlab.errors import UserError
from bertlab.transfer.examples import Answer, Example
from bertlab.transfer.kinds import Span
from bertlab.transfer.tasks.assemble import file_task
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.files import field, read_text, read_value


def squad(
    name: str,
    *,
    train: str | tuple[str, ...],
    valid: str | tuple[str, ...] = (),
    test: str | tuple[str, ...] = (),
    may_lack_answer: bool = False,
) -> Task:
    """A span task. Held-out parts of train are whole paragraphs.

    Args:
        name, train, valid, test: as in `bertlab.transfer.tasks.table`.
        may_lack_answer: questions may have `is_impossible` and no answer (2.0).

    Raises:
        UserError: when loading: the file is not JSON, a key is missing, an id occurs twice, an answer is not at its
            `answer_start`, or a question lacks its answer; names the line of the question's id.
    """

    def read(path: Path, split: str) -> Iterator[Example]:
        ids = set()
        for context, question in _questions(path):
            id = field(question, "id", str, f"{path}: a question")
            where = _Question(path, id)
            if id in ids:
                raise UserError(f"{_Question(path, id, occurrence=2)}: the id occurs twice; make ids unique")
            ids.add(id)
            answers = tuple(_answer(answer, context, where) for answer in field(question, "answers", list, where))
            impossible = question.get("is_impossible", False)
            if impossible and not may_lack_answer:
                raise UserError(f"{where} has no answer (is_impossible); read the file as task 'squad2'")
            if bool(answers) == bool(impossible):
                state = "has answers and is_impossible" if answers else "has no answer"
                raise UserError(f"{where} {state}; give an answer, or give none and set is_impossible (SQuAD 2.0)")
            texts = (field(question, "question", str, where), context)
            yield Example(id=id, where=f"{path}: question {id}", texts=texts, answers=answers)

    return file_task(name, Span(may_lack_answer=may_lack_answer), (), read, (train, valid, test))


@dataclasses.dataclass(frozen=True)
class _Question:
    """A question; as a string "FILE:LINE: question ID". It searches the long file for the line only when needed."""

    path: Path
    id: str
    occurrence: int = 1

    def __str__(self) -> str:
        text = read_text(self.path)
        ids = re.finditer(r'"id"\s*:\s*("(?:[^"\\]|\\.)*")', text)
        spelt = (json.dumps(self.id), json.dumps(self.id, ensure_ascii=False))
        places = [match.start(1) for match in ids if match[1] in spelt]
        if len(places) < self.occurrence:  # it is written with other escapes
            return f"{self.path}: question {self.id}"
        line = text.count("\n", 0, places[self.occurrence - 1]) + 1
        return f"{self.path}:{line}: question {self.id}"


def _questions(path: Path) -> Iterator[tuple[str, dict]]:
    """(Context, question as in the file)."""
    for number, article in enumerate(field(read_value(path), "data", list, str(path)), 1):
        for paragraph in field(article, "paragraphs", list, f"{path}: article {number}"):
            context = field(paragraph, "context", str, f"{path}: a paragraph of article {number}")
            for question in field(paragraph, "qas", list, f"{path}: a paragraph of article {number}"):
                yield context, question


def _answer(answer: dict, context: str, where: _Question) -> Answer:
    text, start = field(answer, "text", str, where), field(answer, "answer_start", int, where)
    if not text.strip():
        raise UserError(f"{where}: an answer is empty; remove it")
    if start < 0 or not context.startswith(text, start):
        places = [i for i in range(len(context)) if context.startswith(text, i)]
        found = f"but at {', '.join(map(str, places[:5]))}" if places else "nor anywhere else in it"
        raise UserError(
            f"{where}: the answer '{text}' is not at character {start} of its context, {found}; correct answer_start or text"
        )
    return Answer(text, start)
