"""SuperGLUE (Wang et al. 2019), from its published JSON lines. Its test sets have no labels, so they are not read.

RTE is GLUE's, and `wic` reads WiC in both its forms.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertlab.errors import UserError
from bertlab.transfer.examples import Answer, Example
from bertlab.transfer.kinds import Candidate, Choice, Classification
from bertlab.transfer.tasks.assemble import file_task
from bertlab.transfer.tasks.files import field, read_records
from bertlab.transfer.tasks.table import table

_FALSE_TRUE = ("false", "true")
# As nyu-mll/jiant, the benchmark's own code, asks (jiant/tasks/lib/copa.py).
_COPA = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}
_PLACEHOLDER = "@placeholder"


def _copa(path: Path, split: str) -> Iterator[Example]:
    for number, (where, record) in enumerate(read_records(path)):
        asked, label = field(record, "question", str, where), field(record, "label", int, where)
        if asked not in _COPA or label not in (0, 1):
            raise UserError(f"{where}: question '{asked}' must be cause or effect, and label {label} 0 or 1; correct the line")
        yield Example(
            id=str(number),
            where=where,
            texts=(f"{field(record, 'premise', str, where)} {_COPA[asked]}",),
            choices=tuple(field(record, key, str, where) for key in ("choice1", "choice2")),
            label=label,
        )


def _multirc(path: Path, split: str) -> Iterator[Example]:
    """A paragraph with a question and one of its answers. The question stays with the answer: the paragraph may be cut.

    Some published paragraphs have numbered sentences, "<b>Sent 1: </b>...<br>"; the marks of HTML go, the words stay, as in
    T5's preprocessor of SuperGLUE.
    """
    read = lambda record, key, where: field(record, key, str, where).replace("<br>", " ").replace("<b>", "").replace("</b>", "")
    for where, record in read_records(path):
        passage, number = field(record, "passage", dict, where), field(record, "idx", int, where)
        for question in field(passage, "questions", list, where):
            group = f"{number}-{field(question, 'idx', int, where)}"
            for answer in field(question, "answers", list, where):
                yield Example(
                    id=f"{group}-{field(answer, 'idx', int, where)}",
                    where=where,
                    texts=(
                        read(passage, "text", where),
                        f"{read(question, 'question', where)} {read(answer, 'text', where)}",
                    ),
                    label=str(field(answer, "label", int, where)),
                    group=group,
                )


def _record(path: Path, split: str) -> Iterator[Example]:
    """A passage, and a query with one of its entities in the place of @placeholder: right if an answer has its text.

    Entities of the same text are one candidate, because they make the same query (nyu-mll/jiant, jiant/tasks/lib/record.py,
    reads it once for each of them). The end of an entity or answer is its last character.
    """
    for where, record in read_records(path):
        passage = field(record, "passage", dict, where)
        text = field(passage, "text", str, where)
        entities = dict.fromkeys(_entity(entity, text, where) for entity in field(passage, "entities", list, where))
        for question in field(record, "qas", list, where):
            query, number = field(question, "query", str, where), field(question, "idx", int, where)
            answers = tuple(
                Answer(field(answer, "text", str, where), field(answer, "start", int, where))
                for answer in field(question, "answers", list, where)
            )
            if _PLACEHOLDER not in query or not answers:
                raise UserError(f"{where}: query {number} lacks {_PLACEHOLDER} or an answer; give the file as it is published")
            right = {answer.text for answer in answers}
            for place, entity in enumerate(entities):
                yield Example(
                    id=f"{number}-{place}",
                    where=where,
                    texts=(text, query.replace(_PLACEHOLDER, entity)),
                    label=_FALSE_TRUE[entity in right],
                    choices=(entity,),
                    answers=answers,
                    group=str(number),
                )


def _entity(entity: Any, text: str, where: str) -> str:
    start, last = field(entity, "start", int, where), field(entity, "end", int, where)
    if not 0 <= start <= last < len(text):
        raise UserError(f"{where}: the passage has no characters {start} to {last} of an entity; correct the entity")
    return text[start : last + 1]


def _wsc(path: Path, split: str) -> Iterator[Example]:
    """The text with * a noun * and # a pronoun # marked, as T5 does (Raffel et al. 2020; t5's preprocessor of WSC)."""
    for number, (where, record) in enumerate(read_records(path)):
        text, target = field(record, "text", str, where), field(record, "target", dict, where)
        marks = []
        for span, mark in (("span1", "*"), ("span2", "#")):
            named, index = field(target, f"{span}_text", str, where), field(target, f"{span}_index", int, where)
            start, end = _span(text, named, index, where)
            marks += [(start, f"{mark} "), (end, f" {mark}")]
        for at, mark in sorted(marks, reverse=True):
            text = text[:at] + mark + text[at:]
        yield Example(str(number), where, (text,), _FALSE_TRUE[field(record, "label", bool, where)])


def _span(text: str, named: str, index: int, where: str) -> tuple[int, int]:
    """(Start, end) in characters of the words from number `index` on.

    A few published spans differ from their text in case or punctuation; there whole words are taken.
    """
    words = [match.span() for match in re.finditer(r"\S+", text)]
    if not named.strip() or not 0 <= index < len(words):
        raise UserError(f"{where}: the text has {len(words)} words, but '{named}' is word {index}; correct the span")
    start, end = words[index][0], words[min(index + len(named.split()), len(words)) - 1][1]
    if text.lower().startswith(named.lower(), start):
        end = start + len(named)
    return start, end


def _splits(name, kind, metrics, read, folder, label_names=()):
    return file_task(name, kind, metrics, read, ("train.jsonl", "val.jsonl", ()), folder=folder, label_names=label_names)


TASKS = (
    table(
        "boolq",
        train="train.jsonl",
        valid="val.jsonl",
        text="question",
        pair="passage",
        label="label",
        label_names=_FALSE_TRUE,
        metrics=("accuracy",),
        folder="BoolQ",
    ),
    table(
        "cb",
        train="train.jsonl",
        valid="val.jsonl",
        text="premise",
        pair="hypothesis",
        label="label",
        label_names=("contradiction", "entailment", "neutral"),
        folder="CB",
    ),
    _splits("copa", Choice(), ("accuracy",), _copa, "COPA"),
    # Its F1 is over all answers; its exact match counts questions all of whose answers are right.
    _splits("multirc", Classification(), ("f1", "group_exact_match"), _multirc, "MultiRC", ("0", "1")),
    _splits("record", Candidate(), (), _record, "ReCoRD", _FALSE_TRUE),
    _splits("wsc", Classification(), ("accuracy",), _wsc, "WSC", _FALSE_TRUE),
)
