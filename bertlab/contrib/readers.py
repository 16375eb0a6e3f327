"""Tasks in their own formats: --task=bertlab.contrib.readers:RACE.

COPA, MULTIRC, RECORD, WIC, WSC: of SuperGLUE (Wang et al. 2019). BoolQ, CB and RTE are the core's.
RACE: Lai et al. 2017. TRIVIAQA: Joshi et al. 2017, as its script writes it in SQuAD's form.
SST5, SST5_PHRASES: Socher et al. 2013, with train's sentences or all of their labelled phrases.
DPRD: definite pronouns (Rahman and Ng 2012).
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from bertlab.transfer.examples import Answer, Example
from bertlab.transfer.tasks.base import Task
from bertlab.transfer.tasks.readers import (
    json_task,
    parse_article,
    read_articles,
    read_blocks,
    read_lines,
    rows_task,
)

# As jiant, the code of SuperGLUE's authors, asks (jiant/tasks/lib/copa.py).
_COPA = {"cause": "What was the cause of this?", "effect": "What happened as a result?"}
_TREE = re.compile(r"\((\S+)\s|([^\s()]+)|\)")


def parse_copa(record: dict, where: str) -> Iterator[Example]:
    """A premise and a question, and two choices."""
    text = f"{record['premise']} {_COPA[record['question']]}"
    choices = (record["choice1"], record["choice2"])
    yield Example("", where, (text,), (0, 1).index(record["label"]), choices=choices)


def parse_multirc(record: dict, where: str) -> Iterator[Example]:
    """A paragraph with a question and one of its answers, which stay together if it is cut.

    Some paragraphs have numbered sentences, "<b>Sent 1: </b>...<br>": the HTML marks go, the
    words stay, as in T5's preprocessor of SuperGLUE.
    """

    def plain(text: str) -> str:
        return re.sub("</?b>", "", text.replace("<br>", " "))

    passage = record["passage"]
    for question in passage["questions"]:
        group = f"{record['idx']}-{question['idx']}"
        for answer in question["answers"]:
            asked = plain(f"{question['question']} {answer['text']}")
            name, texts = f"{group}-{answer['idx']}", (plain(passage["text"]), asked)
            yield Example(name, where, texts, str(answer["label"]), group=group)


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
        # A few published spans differ from their text; they are whole words then.
        if text.lower().startswith(named.lower(), start):
            end = start + len(named)
        marks += [(start, f"{mark} "), (end, f" {mark}")]
    for at, mark in sorted(marks, reverse=True):
        text = text[:at] + mark + text[at:]
    yield Example("", where, (text,), str(record["label"]).lower())


def parse_race(record: dict, where: str) -> Iterator[Example]:
    """The questions of an article.

    Each choice begins with its question, so that a long article is cut and the question is not.
    """
    rows = zip(record["questions"], record["options"], record["answers"], strict=True)
    for number, (question, options, answer) in enumerate(rows):
        yield Example(
            f"{where}-{number}",
            where,
            texts=(record["article"],),
            choices=tuple(f"{question} {option}" for option in options),
            label="ABCD".index(answer),
        )


def _read_folder(folder: Path) -> Iterator[tuple[str, dict]]:
    """(File, its JSON) of each .txt file."""
    return ((str(path), json.loads(path.read_bytes())) for path in sorted(folder.rglob("*.txt")))


def parse_trivia(article: dict, where: str) -> Iterator[Example]:
    """An article as TriviaQA's utils/convert_to_squad_format.py writes it.

    Answers were found by their words in the lower case of the context, and get the words of the
    context. Questions without an answer are left out of every split, so scores are not TriviaQA's
    official ones over all questions and aliases.
    """
    for paragraph in article["paragraphs"]:
        for question in paragraph["qas"]:
            answers = question["answers"]
            question["answers"] = [_in_context(one, paragraph["context"]) for one in answers]
        paragraph["qas"] = [question for question in paragraph["qas"] if question["answers"]]
    return parse_article(article, where)


def _in_context(answer: dict, context: str) -> dict:
    text, start = answer["text"], answer["answer_start"]
    if start < 0 or not context.lower().startswith(text, start):
        return answer
    # "İ" has two characters in lower case, so positions there are not those in the context.
    ends = np.cumsum([len(letter.lower()) for letter in context])
    last = start + len(text) - 1
    start, last = np.searchsorted(ends, [start, last], side="right").tolist()
    return {"text": context[start : last + 1], "answer_start": start}


def parse_tree(line: str, where: str) -> Iterator[Example]:
    """The sentence of a tree such as (3 (2 It) (4 (2 's) (4 good))), then its phrases."""
    open_phrases, words, phrases = [], [], []
    for match in _TREE.finditer(line):
        label, word = match.groups()
        if label:
            open_phrases.append((label, len(words)))
        elif word:
            words.append(word)
        else:
            label, first = open_phrases.pop()
            phrases.append((label, words[first:]))
    if open_phrases or phrases[-1][1] != words or not all(of for _, of in phrases):
        raise ValueError("a line is one tree such as (3 (2 It) (3 works))")
    for label, of in [phrases[-1], *phrases[:-1]]:
        yield Example("", where, (" ".join(of),), label)


def _parse_sentence(line: str, where: str) -> Iterator[Example]:
    yield next(parse_tree(line, where))


def _trees(name: str, parse) -> Task:
    return rows_task(
        name,
        "classification",
        lambda path: (row for row in read_lines(path) if row[1].strip()),
        parse,
        label_names=tuple("01234"),
        metrics="accuracy",
        train="train.txt",
        valid="dev.txt",
        test="test.txt",
    )


def parse_pronoun(block: list[tuple[str, str]], where: str) -> Iterator[Example]:
    """A choice between a sentence's two readings, with either noun for its pronoun.

    A block has four lines: the sentence, its pronoun, both nouns with a comma between them, and the
    right noun. If the pronoun occurs twice, the first is meant.
    """
    sentence, pronoun, pair, answer = (line.strip() for _, line in block)
    first, second = (noun.strip() for noun in pair.split(","))
    match = re.search(rf"(?<!\w){re.escape(pronoun)}(?!\w)", sentence)
    if not match:
        raise ValueError(f"the sentence has no word '{pronoun}'")
    yield Example(
        "",
        where,
        texts=(sentence[: match.start()].strip(),),
        label=[first.casefold(), second.casefold()].index(answer.casefold()),
        choices=tuple(noun + sentence[match.end() :] for noun in (first, second)),
        targets=((0, len(first)), (0, len(second))),
    )


def _superglue(name: str, kind: str, folder: str, parse, classes=(), metrics=()) -> Task:
    options = {"folder": folder, "label_names": classes, "metrics": metrics}
    return json_task(name, kind, parse, train="train.jsonl", valid="val.jsonl", **options)


_FALSE_TRUE = ("false", "true")
COPA = _superglue("copa", "choice", "COPA", parse_copa)
# F1 is over all answers; exact match counts questions whose answers are all right.
MULTIRC = _superglue(
    "multirc",
    "classification",
    "MultiRC",
    parse_multirc,
    ("0", "1"),
    ("f1", "group_exact_match"),
)
RECORD = _superglue(
    "record",
    "bertlab.contrib.superglue:CANDIDATE",
    "ReCoRD",
    parse_record,
    _FALSE_TRUE,
    ("span_f1", "exact_match"),
)
WIC = _superglue(
    "wic", "bertlab.contrib.superglue:WORD_PAIR", "WiC", parse_wic, ("F", "T"), "accuracy"
)
WSC = _superglue("wsc", "classification", "WSC", parse_wsc, _FALSE_TRUE, "accuracy")
RACE = rows_task(
    "race", "choice", _read_folder, parse_race, train="train/", valid="dev/", test="test/"
)
TRIVIAQA = rows_task(
    "triviaqa",
    "span",
    read_articles,
    parse_trivia,
    train=("train-v1.2.json", "*train*.json"),
    valid=("dev-v1.2.json", "*dev*.json"),
)
SST5, _PHRASES = _trees("sst5", _parse_sentence), _trees("sst5_phrases", parse_tree)
DPRD = rows_task(
    "dprd",
    "choice",
    read_blocks,
    parse_pronoun,
    train="train.c.txt",
    test="test.c.txt",
    folder="DPRD",
)


def _load_phrases(directory: Path | None, options: Mapping) -> dict[str, list[Example]]:
    """All phrases of train, and the sentences of valid and test."""
    phrases = _PHRASES.load(directory, options)["train"]
    return {**SST5.load(directory, options), "train": phrases}


SST5_PHRASES = dataclasses.replace(_PHRASES, load=_load_phrases)
