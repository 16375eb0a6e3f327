"""SuperGLUE in its published JSON lines: texts, labels, order and metrics, and the place that an error names."""

import json

import numpy as np
import pytest

from bertlab.errors import UserError
from bertlab.transfer.scoring import scores_of
from bertlab.transfer.tasks import TASKS, find_task, load_task

AS_PUBLISHED = {"dev": "valid"}


def wsc(text, noun, pronoun, label):
    """A record; noun and pronoun are (the number of the first word, the words)."""
    target = {"span2_index": pronoun[0], "span1_index": noun[0], "span1_text": noun[1], "span2_text": pronoun[1]}
    return {"text": text, "target": target, "idx": 4, "label": label}


def wic(word, first, second, places, label):
    """A record; places are (start1, end1, start2, end2)."""
    numbers = dict(zip(("start1", "end1", "start2", "end2"), places))
    return {"word": word, "sentence1": first, "sentence2": second, "idx": 0, "label": label, **numbers, "version": 1.1}


MULTIRC = [
    {
        "idx": 7,
        "version": 1.1,
        "passage": {
            "text": "Two \"companies\" numbered 225 men.",
            "questions": [
                {
                    "question": "How many?",
                    "answers": [{"text": "225", "idx": 178, "label": 1}, {"text": "525", "idx": 179, "label": 0}],
                    "idx": 40,
                },
                {"question": "Who?", "answers": [{"text": "Nobody", "idx": 180, "label": 0}], "idx": 41},
            ],
        },
    },
    {
        "idx": 8,
        "passage": {"text": "P.", "questions": [{"idx": 1, "question": "Q", "answers": [{"text": "A", "idx": 0, "label": 1}]}]},
    },
]  # fmt: skip
NEWS = "Bob Hope met Bob.\n@highlight\nHope, too"


def entity(text, at):
    """Both ends are characters of it."""
    return {"start": at, "end": at + len(text) - 1}


RECORD = [
    {
        "source": "Daily mail",
        "passage": {
            "text": NEWS,
            "entities": [entity("Bob Hope", 0), entity("Bob", 13), entity("Hope", 29), entity("Hope", 4)],
        },
        "qas": [
            {
                "query": "@placeholder's guest",
                "answers": [{**entity("Hope", 29), "text": "Hope"}, {**entity("Bob Hope", 0), "text": "Bob Hope"}],
                "idx": 3,
            },
            {"query": "By @placeholder", "answers": [{**entity("Bob", 13), "text": "Bob"}], "idx": 4},
        ],
        "idx": 0,
    },
    {
        "passage": {"text": "An A.", "entities": [entity("A", 3)]},
        "qas": [{"query": "x @placeholder", "answers": [{**entity("A", 3), "text": "A"}], "idx": 5}],
        "idx": 1,
    },
]
# Folder, classes, records, and (texts, choices, label) of each example.
PUBLISHED = {
    "boolq": (
        "BoolQ",
        ("false", "true"),
        [
            {"question": "is \u00e9l the same", "passage": "Persian -- Yes.", "idx": 0, "label": True},
            {"question": "is it", "passage": "It is \"not\".", "idx": 1, "label": False},
        ],
        [(("is él the same", "Persian -- Yes."), (), 1), (("is it", 'It is "not".'), (), 0)],
    ),
    "cb": (
        "CB",
        ("contradiction", "entailment", "neutral"),
        [
            {"premise": "It was. Do you?", "hypothesis": "the language was", "label": "entailment", "idx": 0},
            {"premise": "B", "hypothesis": "C", "label": "neutral", "idx": 1},
            {"premise": "D", "hypothesis": "E", "label": "contradiction", "idx": 2},
        ],
        [(("It was. Do you?", "the language was"), (), 1), (("B", "C"), (), 2), (("D", "E"), (), 0)],
    ),
    "copa": (
        "COPA",
        (),
        [
            {"premise": "My eyes became red.", "choice1": "I sobbed.", "choice2": "I laughed.", "question": "cause", "label": 0,
             "idx": 7},
            {"premise": "It rained.", "choice1": "I ran.", "choice2": "I got wet.", "question": "effect", "label": 1, "idx": 8},
        ],
        [
            (("My eyes became red. What was the cause of this?",), ("I sobbed.", "I laughed."), 0),
            (("It rained. What happened as a result?",), ("I ran.", "I got wet."), 1),
        ],
    ),
    "multirc": (
        "MultiRC",
        ("0", "1"),
        MULTIRC,
        [
            (('Two "companies" numbered 225 men.', "How many? 225"), (), 1),
            (('Two "companies" numbered 225 men.', "How many? 525"), (), 0),
            (('Two "companies" numbered 225 men.', "Who? Nobody"), (), 0),
            (("P.", "Q A"), (), 1),
        ],
    ),
    "record": (
        "ReCoRD",
        ("false", "true"),
        RECORD,
        [
            *(((NEWS, f"{name}'s guest"), (name,), right) for name, right in (("Bob Hope", 1), ("Bob", 0), ("Hope", 1))),
            *(((NEWS, f"By {name}"), (name,), right) for name, right in (("Bob Hope", 0), ("Bob", 1), ("Hope", 0))),
            (("An A.", "x A"), ("A",), 1),
        ],
    ),
    "wsc": (
        "WSC",
        ("false", "true"),
        [
            # Two spaces, and a comma that is not the pronoun's.
            wsc("I poured water from the  bottle into the cup until it, was full.", (7, "the cup"), (10, "it"), True),
            # The pronoun is before the noun; the first span differs in case.
            wsc("When he left, the old man cried.", (3, "The old man"), (1, "he"), False),
            # Not a part of the text: whole words. One span is within the other.
            wsc("Tell his father.", (1, "His dad"), (1, "his"), False),
        ],
        [
            (("I poured water from the  bottle into * the cup * until # it #, was full.",), (), 1),
            (("When # he # left, * the old man * cried.",), (), 0),
            (("Tell # * his # father. *",), (), 0),
        ],
    ),
    "wic": (
        "WiC",
        ("F", "T"),
        [
            wic("place", "Come to my place later?", "No place here.", (11, 16, 3, 8), False),
            wic("run", "É runs", "Ran", (2, 6, 0, 3), True),
        ],
        [(("Come to my place later?", "No place here."), (), 0), (("É runs", "Ran"), (), 1)],
    ),
}  # fmt: skip


def publish(folder, name, records=None):
    under, _, published, _ = PUBLISHED[name]
    (folder / under).mkdir(exist_ok=True)
    for file, lines in (("train", published), ("val", records or published)):
        text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
        (folder / under / f"{file}.jsonl").write_text(text)
    # Test files have no labels.
    (folder / under / "test.jsonl").write_text('{"not": "read"}\n')
    return {"directory": str(folder), **AS_PUBLISHED}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_layout(name, tmp_path):
    under, labels, _, expected = PUBLISHED[name]
    data = load_task(find_task(name), publish(tmp_path, name))
    assert data.labels == labels
    for split in ("train", "valid", "test"):
        assert [(example.texts, example.choices, example.label) for example in data.examples[split]] == expected
        assert all(("train" if split == "train" else "val") + ".jsonl:" in example.where for example in data.examples[split])
    assert load_task(find_task(name), {"directory": str(tmp_path / under), **AS_PUBLISHED}) == data, "its own folder too"


def test_metrics_are_the_benchmarks():
    metrics = {name: TASKS[name].metrics for name in PUBLISHED}
    assert metrics.pop("cb") == ("accuracy", "macro_f1") and metrics.pop("multirc") == ("f1", "group_exact_match")
    assert metrics.pop("record") == ("span_f1", "exact_match")
    assert set(metrics.values()) == {("accuracy",)}


def test_marks_of_html_in_a_paragraph_are_not_read(tmp_path):
    """What is expected is what T5's two replacements give: <br> is a space, <b> and </b> are nothing."""
    text = json.dumps(MULTIRC[0]).replace("Two ", "<b>Sent 1: </b>Two ").replace("men.", "men.<br><b>Sent 2: </b>All left.")
    (tmp_path / "MultiRC").mkdir()
    for file in ("train", "val"):
        records = [text.replace('"idx": 7', f'"idx": {i}').replace("225 men", f"{i} men") for i in range(20)]
        (tmp_path / "MultiRC" / f"{file}.jsonl").write_text("\n".join(records) + "\n")
    read = load_task(find_task("multirc"), {"directory": str(tmp_path)}).examples["test"][0].texts
    assert read[0] == 'Sent 1: Two "companies" numbered 0 men. Sent 2: All left.'


def test_answers_to_one_question_are_a_group_and_a_paragraph_is_in_one_split(tmp_path):
    records = [
        json.loads(json.dumps(MULTIRC[0]).replace('"idx": 7', f'"idx": {i}').replace("225 men", f"{i} men")) for i in range(20)
    ]
    (tmp_path / "MultiRC").mkdir()
    for file in ("train", "val"):
        (tmp_path / "MultiRC" / f"{file}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    data = load_task(find_task("multirc"), {"directory": str(tmp_path)})
    assert [example.group for example in data.examples["test"][:6]] == ["0-40", "0-40", "0-41", "1-40", "1-40", "1-41"]
    assert [example.id for example in data.examples["test"][:3]] == ["0-40-178", "0-40-179", "0-41-180"]
    train, valid = ({example.texts[0] for example in data.examples[split]} for split in ("train", "valid"))
    assert len(train) == 18 and len(valid) == 2 and not train & valid


def test_the_likeliest_entity_answers_a_query_and_is_scored_as_by_the_official_script(tmp_path):
    """Scores are those of record_evaluation.py (its version 1.0, with SQuAD's F1) for these answers."""
    task = find_task("record")
    data = load_task(task, publish(tmp_path, "record"))
    examples = data.examples["test"]
    # p(right): of query 3 "Bob" is likeliest, of 4 "Bob Hope", although the logit of class 1 is higher for "Hope".
    logits = np.float32([[0, -1], [0, 1], [0, 0], [0, 2], [0, 1], [5, 3], [3, -3]])
    lines = task.kind.predict(examples, data.labels, {"logits": logits}, None, None)
    assert [(line["id"], line["predicted"], line["gold"]) for line in lines] == [
        ("3", "Bob", ["Hope", "Bob Hope"]),
        ("4", "Bob Hope", ["Bob"]),
        ("5", "A", ["A"]),
    ]
    # "A" is an article: nothing is left of it, so its F1 is 0 although it is exact.
    assert scores_of(task, data.labels, lines) == pytest.approx({"span_f1": (2 / 3 + 2 / 3 + 0) / 3, "exact_match": 1 / 3})
    np.testing.assert_allclose(lines[0]["probabilities"]["Bob"], 1 / (1 + np.exp(-1)))
    other = task.kind.predict(examples, data.labels, {"logits": np.roll(logits, 1, axis=0)}, None, None)
    mean = task.kind.average([lines[0], other[0]], data.labels)
    assert mean["probabilities"]["Hope"] == pytest.approx((1 / 2 + 1 / (1 + np.exp(-1))) / 2) and mean["predicted"] == "Hope"


def test_words_of_wic_are_at_their_characters(tmp_path):
    examples = load_task(find_task("wic"), publish(tmp_path, "wic")).examples["train"]
    cut = [[text[slice(*target)] for text, target in zip(example.texts, example.targets)] for example in examples]
    assert cut == [["place", "place"], ["runs", "Ran"]]


def changed(name, **changes):
    """The first record with other fields; a key "a__b" is field b of a."""
    record = json.loads(json.dumps(PUBLISHED[name][2][0]))
    for key, value in changes.items():
        *path, last = key.split("__")
        held = record
        for part in path:
            held = held[part]
        held[last] = value
    return [PUBLISHED[name][2][1], record]


@pytest.mark.parametrize(
    ("name", "records", "message"),
    [
        ("boolq", changed("boolq", label="maybe"), r"BoolQ/val\.jsonl:2: .* label 'maybe', but label_names are false, true"),
        ("boolq", changed("boolq", passage=None), r"BoolQ/val\.jsonl:2: the field 'passage' is missing"),
        ("cb", changed("cb", label=None), r"CB/val\.jsonl:2: the field 'label' is missing"),
        ("copa", changed("copa", question="why"), r"COPA/val\.jsonl:2: question 'why' must be cause or effect"),
        ("copa", changed("copa", label=2), r"COPA/val\.jsonl:2: .* label 2 0 or 1"),
        ("copa", changed("copa", choice2=3), r"COPA/val\.jsonl:2: 'choice2' is missing, or its type is not str"),
        ("multirc", changed("multirc", passage__questions=None), r"MultiRC/val\.jsonl:2: 'questions' is missing"),
        (
            "multirc",
            changed("multirc", passage__questions=[{"idx": 0, "question": "Q"}]),
            r"val\.jsonl:2: 'answers' is missing",
        ),
        (
            "record",
            changed("record", passage__entities=[entity("x", 40)]),
            r"val\.jsonl:2: the passage has no characters 40 to 40",
        ),
        (
            "record",
            changed("record", qas=[RECORD[0]["qas"][0] | {"answers": []}]),
            r"val\.jsonl:2: query 3 lacks @placeholder or an",
        ),
        (
            "record",
            changed("record", qas=[RECORD[0]["qas"][1] | {"query": "By"}]),
            r"val\.jsonl:2: query 4 lacks @placeholder or an",
        ),
        ("wsc", changed("wsc", target__span1_index=14), r"WSC/val\.jsonl:2: the text has 13 words, but 'the cup' is word 14"),
        ("wsc", changed("wsc", target__span2_text=" "), r"WSC/val\.jsonl:2: the text has 13 words, but ' ' is word 10"),
        ("wsc", changed("wsc", label="True"), r"WSC/val\.jsonl:2: 'label' is missing, or its type is not bool"),
        ("wic", changed("wic", end2=15), r"WiC/val\.jsonl:2: 'No place here\.' has no characters 3 to 15"),
        ("wic", changed("wic", label=0), r"WiC/val\.jsonl:2: 'label' is missing, or its type is not bool"),
        ("wsc", ["\n", "x\n"], r"WSC/val\.jsonl:2: not valid JSON"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(name, records, message, tmp_path):
    with pytest.raises(UserError, match=message):
        load_task(find_task(name), publish(tmp_path, name, records))
