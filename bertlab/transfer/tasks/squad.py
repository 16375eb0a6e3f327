"""SQuAD 1.1 (Rajpurkar et al. 2016) and 2.0 (2018): JSON with articles, paragraphs and questions; TriviaQA in the same form."""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

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
    matched: bool = False,
) -> Task:
    """A span task. Held-out parts of train are whole paragraphs.

    Args:
        name, train, valid, test: as in `bertlab.transfer.tasks.table`.
        may_lack_answer: questions may have `is_impossible` and no answer (2.0).
        matched: answers were found in the context by their words (distant supervision), as in the file that TriviaQA's
            utils/convert_to_squad_format.py writes (Joshi et al. 2017): they stand there in lower case, and a question whose
            answer was not found has none. Such questions are left out, in every split; the others get the words of the
            context. So scores are not TriviaQA's official ones, which are over all questions and all aliases of an answer.

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
            given = field(question, "answers", list, where)
            if matched and not given:
                continue
            answers = tuple(_answer(_as_written(of, context) if matched else of, context, where) for of in given)
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


def _as_written(answer: dict, context: str) -> dict:
    """An answer in the letters of its context, if it is at its place in the context's lower case; otherwise unchanged."""
    text, start = (answer.get(key) if isinstance(answer, dict) else None for key in ("text", "answer_start"))
    lower = context.lower()
    if not isinstance(text, str) or not text or not isinstance(start, int) or start < 0 or not lower.startswith(text, start):
        return answer
    first, last = start, start + len(text) - 1
    if len(lower) != len(context):  # "İ" has two characters in lower case
        ends = np.cumsum([len(letter.lower()) for letter in context])
        first, last = np.searchsorted(ends, [first, last], side="right").tolist()
    return {"text": context[first : last + 1], "answer_start": first}


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
