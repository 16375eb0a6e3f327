"""Questions about texts: SQuAD's JSON (TriviaQA's too), RACE, and SuperGLUE's JSON lines."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from bertlab.transfer.examples import Answer, Example
from bertlab.transfer.tasks.assemble import file_task
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.files import parse_each, parse_json, read_records, read_text


def squad(name: str, *, may_lack_answer: bool = False, matched: bool = False, **task) -> Task:
    """A span task in SQuAD's JSON: articles of paragraphs of questions.

    Args:
        may_lack_answer: questions may have `is_impossible` and no answer (2.0).
        matched: answers were found by their words in the lower case of the context, as in what
            TriviaQA's utils/convert_to_squad_format.py writes (Joshi et al. 2017), and get the
            words of the context. Questions without an answer are left out of every split, so scores
            are not TriviaQA's official ones over all questions and aliases.
        task: of `file_task`.
    """

    def parse(article: dict, where: str) -> Iterator[Example]:
        for paragraph in article["paragraphs"]:
            context = paragraph["context"]
            for question in paragraph["qas"]:
                if matched and not question["answers"]:
                    continue
                impossible = question.get("is_impossible", False)
                if bool(question["answers"]) == impossible or (impossible and not may_lack_answer):
                    raise ValueError(
                        f"question {question['id']} has {len(question['answers'])} answers and"
                        f" is_impossible={impossible}"
                    )
                answers = tuple(_answer(one, context, matched) for one in question["answers"])
                if None in answers:
                    raise ValueError(
                        f"question {question['id']} has an answer that is not at its answer_start"
                    )
                texts = (question["question"], context)
                location = f"{where}: question {question['id']}"
                yield Example(question["id"], location, texts, answers=answers)

    def read(path: Path, split: str) -> Iterator[Example]:
        articles = parse_json(read_text(path), path)["data"]
        rows = ((f"{path}: article {i}", article) for i, article in enumerate(articles, 1))
        return parse_each(rows, parse)

    return file_task(name, "span", read, may_lack_answer=may_lack_answer, **task)


def _answer(answer: dict, context: str, matched: bool) -> Answer | None:
    """The answer in the letters of its context; None if it is not where it should be."""
    text, start = answer["text"], answer["answer_start"]
    if matched and start >= 0 and context.lower().startswith(text, start):
        # "İ" has two characters in lower case, so positions there are not those in the context.
        ends = np.cumsum([len(letter.lower()) for letter in context])
        last = start + len(text) - 1
        start, last = np.searchsorted(ends, [start, last], side="right").tolist()
        text = context[start : last + 1]
    if start < 0 or not text.strip() or not context.startswith(text, start):
        return None
    return Answer(text, start)


def race(name: str, **task) -> Task:
    """RACE (Lai et al. 2017): a folder a split, below it a .txt file of JSON an article.

    Each choice begins with its question, so that a long article is cut and the question is not.
    """

    def parse(record: dict, where: str) -> Iterator[Example]:
        rows = zip(record["questions"], record["options"], record["answers"], strict=True)
        for number, (question, options, answer) in enumerate(rows):
            yield Example(
                f"{where}-{number}",
                where,
                texts=(record["article"],),
                choices=tuple(f"{question} {option}" for option in options),
                label="ABCD".index(answer),
            )

    def read(folder: Path, split: str) -> Iterator[Example]:
        paths = sorted(folder.rglob("*.txt"))
        return parse_each(((str(path), parse_json(read_text(path), path)) for path in paths), parse)

    return file_task(name, "choice", read, **task)


def json_task(
    name: str, kind: str, parse: Callable[[dict, str], Iterable[Example]], **task
) -> Task:
    """A task in JSON lines; `parse`: (record, "FILE:LINE") -> examples, whose fields it names."""

    def read(path: Path, split: str) -> Iterator[Example]:
        return parse_each(read_records(path), parse)

    return file_task(name, kind, read, **task)


# As jiant, the code of SuperGLUE's authors, asks (jiant/tasks/lib/copa.py).
_COPA = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}


def parse_copa(record: dict, where: str) -> Iterator[Example]:
    """A premise and a question, and two choices."""
    text = f"{record['premise']} {_COPA[record['question']]}"
    choices = (record["choice1"], record["choice2"])
    yield Example("", where, (text,), (0, 1).index(record["label"]), choices=choices)


def parse_multirc(record: dict, where: str) -> Iterator[Example]:
    """A paragraph with a question and one of its answers, which stay together if it is cut.

    Some paragraphs have numbered sentences, "<b>Sent 1: </b>...<br>": the marks of HTML go, the
    words stay, as in T5's preprocessor of SuperGLUE.
    """

    def plain(text: str) -> str:
        return re.sub("</?b>", "", text.replace("<br>", " "))

    passage = record["passage"]
    for question in passage["questions"]:
        group = f"{record['idx']}-{question['idx']}"
        for answer in question["answers"]:
            asked = plain(f"{question['question']} {answer['text']}")
            yield Example(
                f"{group}-{answer['idx']}",
                where,
                (plain(passage["text"]), asked),
                str(answer["label"]),
                group=group,
            )


def parse_record(record: dict, where: str) -> Iterator[Example]:
    """A passage, and a query with one of its entities in the place of @placeholder.

    It is true if an answer has the entity's text. Entities of the same text are one candidate, as
    they make the same query (jiant/tasks/lib/record.py). An entity's end is its last character.
    """
    text = record["passage"]["text"]
    spans = [(entity["start"], entity["end"]) for entity in record["passage"]["entities"]]
    for question in record["qas"]:
        answers = tuple(Answer(answer["text"], answer["start"]) for answer in question["answers"])
        right = {answer.text for answer in answers}
        if "@placeholder" not in question["query"] or not right:
            raise ValueError(f"query {question['idx']} lacks @placeholder or an answer")
        for number, entity in enumerate(dict.fromkeys(text[a : b + 1] for a, b in spans)):
            yield Example(
                f"{question['idx']}-{number}",
                where,
                (text, question["query"].replace("@placeholder", entity)),
                str(entity in right).lower(),
                choices=(entity,),
                answers=answers,
                group=str(question["idx"]),
            )


def parse_wic(record: dict, where: str) -> Iterator[Example]:
    """Whether a word means the same in two sentences (Pilehvar and Camacho-Collados 2019)."""
    texts = (record["sentence1"], record["sentence2"])
    targets = tuple((record[f"start{i}"], record[f"end{i}"]) for i in (1, 2))
    if any(not 0 <= start < end <= len(text) for text, (start, end) in zip(texts, targets)):
        raise ValueError(f"a sentence does not have the characters {targets}")
    yield Example("", where, texts, "FT"[record["label"]], targets=targets)


def parse_wsc(record: dict, where: str) -> Iterator[Example]:
    """The text with * a noun * and # a pronoun # marked, as in T5's preprocessor of WSC."""
    text, target = record["text"], record["target"]
    words = [match.span() for match in re.finditer(r"\S+", text)]
    marks = []
    for span, mark in (("span1", "*"), ("span2", "#")):
        named, first = target[f"{span}_text"], target[f"{span}_index"]
        start, end = words[first][0], words[first + len(named.split()) - 1][1]
        # A few published spans differ from their text, and are whole words then.
        if text.lower().startswith(named.lower(), start):
            end = start + len(named)
        marks += [(start, f"{mark} "), (end, f" {mark}")]
    for at, mark in sorted(marks, reverse=True):
        text = text[:at] + mark + text[at:]
    yield Example("", where, (text,), str(record["label"]).lower())
