"""Tasks of `bertlab.contrib.readers` from small files in their published layout."""

import json

import pytest

from bertlab.errors import UserError
from bertlab.transfer.examples import Answer
from bertlab.transfer.tasks import find_task, load_task
from tests.transfer.tasks.test_published import check, every_split, lines, publish, question, squad

pytestmark = pytest.mark.nightly

TREES = "(3 (2 It) (4 (2 's) (4 (3 good) (2 -LRB-))))\n\n(0 (1 Bad) (2 and\\/or))\n"
BEES = (
    "They hid it, so it was lost.\nit\na ring , a key\na key\n\n"
    "The bee left because it had won.\nit\nThe bee,the wasp\nThe bee\n"
)
COPA = {"premise": "It fell.", "choice1": "a", "choice2": "b", "question": "cause", "label": 1}
MULTIRC = {
    "idx": 5,
    "passage": {
        "text": "<b>Sent 1: </b>He ran.<br>",
        "questions": [
            {
                "question": "Who?",
                "idx": 2,
                "answers": [{"text": x, "idx": i, "label": i} for i, x in enumerate(("A", "B"))],
            }
        ],
    },
}
WSC = {
    "text": "Mark told Pete that he won.",
    "target": {"span1_text": "mark", "span1_index": 0, "span2_text": "he", "span2_index": 4},
    "label": True,
}
WIC_RECORD = {
    **{"sentence1": "The place .", "sentence2": "No place", "label": False},
    **{"start1": 4, "end1": 9, "start2": 3, "end2": 8},
}
RACE = json.dumps(
    {
        "article": "Text.",
        "questions": ["Who?", "It is _ ."],
        "options": [list("abcd"), list("efgh")],
        "answers": ["B", "D"],
    }
)
# Task: files, classes, and (texts, label) of each example.
PUBLISHED = {
    "copa": (
        every_split(["COPA/train.jsonl", "COPA/val.jsonl"], lines(COPA)),
        (),
        [(("It fell. What was the cause of this?", "a", "b"), 1)],
    ),
    "multirc": (
        every_split(["MultiRC/train.jsonl", "MultiRC/val.jsonl"], lines(MULTIRC)),
        ("0", "1"),
        [(("Sent 1: He ran. ", "Who? A"), 0), (("Sent 1: He ran. ", "Who? B"), 1)],
    ),
    "wsc": (
        every_split(["WSC/train.jsonl", "WSC/val.jsonl"], lines(WSC)),
        ("false", "true"),
        [(("* Mark * told Pete that # he # won.",), 1)],
    ),
    "sst5": (
        every_split(["train.txt", "dev.txt", "test.txt"], TREES),
        tuple("01234"),
        [(("It 's good -LRB-",), 3), (("Bad and\\/or",), 0)],
    ),
    "race": (
        every_split(["train/high/1.txt", "dev/high/1.txt", "test/middle/1.txt"], RACE),
        (),
        [
            (("Text.", *(f"Who? {x}" for x in "abcd")), 1),
            (("Text.", *(f"It is _ . {x}" for x in "efgh")), 3),
        ],
    ),
    "dprd": (
        every_split(["DPRD/train.c.txt", "DPRD/test.c.txt"], BEES),
        (),
        [
            (("They hid", "a ring, so it was lost.", "a key, so it was lost."), 1),
            (("The bee left because", "The bee had won.", "the wasp had won."), 0),
        ],
    ),
}


def reader(name):
    return find_task(f"bertlab.contrib.readers:{name.upper()}")


@pytest.mark.parametrize("name", PUBLISHED)
def test_texts_and_labels_as_published(name, tmp_path):
    check(f"bertlab.contrib.readers:{name.upper()}", tmp_path, *PUBLISHED[name])
    assert reader(name).name == name


def test_sst5_trains_on_phrases(tmp_path):
    data = load_task(reader("sst5_phrases"), publish(tmp_path, PUBLISHED["sst5"][0]))
    train = [(one.texts[0], one.label) for one in data.examples["train"]]
    assert ("'s good -LRB-", 4) in train and len(train) == TREES.count("(")
    assert len(data.examples["test"]) == 2


def test_triviaqas_answers_get_the_words_of_the_context(tmp_path):
    context = "The İstanbul RIVER is the Nile ."
    lower = context.lower()
    assert len(lower) == len(context) + 1
    found = [question(x, (x, lower.find(x))) for x in ("nile", "river", "the")]
    text = squad(context, *found, question("none"))
    options = publish(tmp_path, every_split(["train-v1.2.json", "dev-v1.2.json"], text))
    examples = load_task(reader("triviaqa"), options).examples["test"]
    answers = [Answer("Nile", 26), Answer("RIVER", 13), Answer("The", 0)]
    assert [one.answers[0] for one in examples] == answers


def test_record_asks_for_each_entity_once(tmp_path):
    text = "Anna met Bo. Anna won."
    spans = [{"start": 0, "end": 3}, {"start": 9, "end": 10}, {"start": 13, "end": 16}]
    answers = [{"text": "Anna", "start": 13, "end": 16}]
    asked = {"idx": 7, "query": "It was @placeholder.", "answers": answers}
    record = {"passage": {"text": text, "entities": spans}, "qas": [asked]}
    names = ["ReCoRD/train.jsonl", "ReCoRD/val.jsonl"]
    options = publish(tmp_path, every_split(names, lines(record)))
    first, second = load_task(reader("record"), options).examples["train"]
    assert first.texts == (text, "It was Anna.") and first.choices == ("Anna",)
    assert (first.label, second.label, second.choices) == (1, 0, ("Bo",))
    assert first.group == second.group == "7" and second.answers == (Answer("Anna", 13),)


def test_words_in_context(tmp_path):
    names = ["WiC/train.jsonl", "WiC/val.jsonl"]
    options = publish(tmp_path, every_split(names, lines(WIC_RECORD)))
    (one, *_) = load_task(reader("wic"), options).examples["train"]
    found = [text[slice(*target)] for text, target in zip(one.texts, one.targets)]
    assert (found, one.label) == (["place", "place"], 0)


# Task, file, what replaces its text as published above, what is in the message.
REFUSALS = [
    ("sst5", "dev.txt", "(3 (2 It)) (2 a)\n", r"dev\.txt:1: .*one tree"),
    ("sst5", "dev.txt", "(3 x)\n(3 (2 It) (2 a)\n", r"dev\.txt:2: .*one tree"),
    ("race", "dev/high/1.txt", RACE.replace('"D"', '"E"'), r"1\.txt: .*substring not found"),
    ("dprd", "DPRD/test.c.txt", BEES.replace("\na key\n\n", "\na bell\n\n"), r"txt:1: .*'a bell'"),
    ("copa", "COPA/val.jsonl", lines(COPA | {"label": 2}), r"val\.jsonl:1: "),
]


@pytest.mark.parametrize(("name", "file", "text", "message"), REFUSALS)
def test_files_that_are_not_as_published(name, file, text, message, tmp_path):
    options = publish(tmp_path, PUBLISHED[name][0] | {file: text})
    with pytest.raises(UserError, match=message):
        load_task(reader(name), options)
