"""RACE, Story Cloze and definite pronouns in their published files: texts, choices, labels, splits, and what errors name."""

import json

import pytest

from bertlab.errors import UserError
from bertlab.transfer.tasks import find_task, load_task


def article(id, questions):
    return {
        "article": f"Text of {id}.",
        "questions": [question for question, _ in questions],
        "options": [[f"{id} {letter} {question}" for letter in "abcd"] for question, _ in questions],
        "answers": [answer for _, answer in questions],
        "id": id,
    }


RACE = {
    "middle/2": [("What is\n it?", "B"), ("It is _ .", "D")],
    "middle/10": [("Who?", "A")],
    "high/1": [("Why?", "C")],
}


def publish_race(folder, **changes):
    for split in ("train", "dev", "test"):
        for name, questions in RACE.items():
            (folder / split / name).parent.mkdir(parents=True, exist_ok=True)
            record = article(f"{split} {name}", questions) | changes
            (folder / split / f"{name}.txt").write_text(json.dumps(record) + "\n")
    return {"directory": str(folder)}


def test_race_is_a_file_per_article_and_its_choices_begin_with_their_question(tmp_path):
    options = publish_race(tmp_path)
    data = load_task(find_task("race"), options)
    for split, folder in (("train", "train"), ("valid", "dev"), ("test", "test")):
        examples = data.examples[split]
        assert [(example.id, example.label) for example in examples] == [
            ("high/1.txt-0", 2), ("middle/10.txt-0", 0), ("middle/2.txt-0", 1), ("middle/2.txt-1", 3)
        ]  # fmt: skip
        last = examples[-1]
        assert last.texts == (f"Text of {folder} middle/2.",)
        assert last.choices == tuple(f"It is _ . {folder} middle/2 {letter} It is _ ." for letter in "abcd")
        assert last.where == f"{tmp_path}/{folder}/middle/2.txt:1: question 2"
    # One of its two parts is a folder of its own.
    middle = load_task(find_task("race"), options | {"test_file": "test/middle"}).examples["test"]
    assert [example.texts for example in middle] == [example.texts for example in data.examples["test"][1:]]
    assert find_task("race").metrics == ("accuracy",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"article": None}, r"train/high/1\.txt:1: 'article' is missing, or its type is not str"),
        ({"answers": []}, r"train/high/1\.txt:1: 1 questions, 1 lists of options and 0 answers; give each question one"),
        ({"answers": ["E"]}, r"train/high/1\.txt:1: question 1: its answer is 'E', but must be A, B, C or D"),
        ({"options": [["a", "b", "c"]]}, r"train/high/1\.txt:1: question 1: expected a text and a list of four texts"),
        ({"questions": [1]}, r"train/high/1\.txt:1: question 1: expected a text and a list of four texts"),
    ],
)
def test_what_is_wrong_in_race(changes, message, tmp_path):
    with pytest.raises(UserError, match=message):
        load_task(find_task("race"), publish_race(tmp_path, **changes))


def test_race_files_that_are_none(tmp_path):
    options = publish_race(tmp_path)
    (tmp_path / "train/high/1.txt").write_text('{"article":\n')
    with pytest.raises(UserError, match=r"train/high/1\.txt:2: not valid JSON"):
        load_task(find_task("race"), options)
    for path in (tmp_path / "dev").rglob("*.txt"):
        path.unlink()
    publish_race(tmp_path / "other")
    (tmp_path / "other/dev").rename(tmp_path / "other/elsewhere")
    with pytest.raises(UserError, match=r"task 'race' found no file dev/"):
        load_task(find_task("race"), {"directory": str(tmp_path / "other")})
    (tmp_path / "train/high/1.txt").unlink()
    with pytest.raises(UserError, match=r"dev: there are no examples; task 'race' needs at least one"):
        load_task(find_task("race"), options)


HEADER = (
    "InputStoryid,InputSentence1,InputSentence2,InputSentence3,InputSentence4,"
    "RandomFifthSentenceQuiz1,RandomFifthSentenceQuiz2,AnswerRightEnding\n"
)
STORY = 'id-{0},Rick {0} grew up.,"He, too.","He said ""no"".",The end.,He left.,"He is happy, now.",{1}\n'
# The names in the distribution, and those that TFDS asks for.
STORY_FILES = {
    "cloze_test_{0}__spring2016 - cloze_test_ALL_{0}.csv",
    "cloze_test_{0}__spring2016.csv",
}


@pytest.mark.parametrize("file", sorted(STORY_FILES))
def test_story_cloze_is_trained_on_its_development_set(file, tmp_path):
    for split, answers in (("val", "1212121212"), ("test", "21")):
        rows = "".join(STORY.format(i, answer) for i, answer in enumerate(answers))
        (tmp_path / file.format(split)).write_text(HEADER + rows)
    options = {"directory": str(tmp_path), "valid_fraction": 0.2}
    examples = load_task(find_task("story_cloze"), options).examples
    assert [example.label for example in examples["test"]] == [1, 0]
    assert [len(examples[split]) for split in ("train", "valid")] == [8, 2]
    together = sorted(examples["train"] + examples["valid"], key=lambda example: int(example.id))
    assert [example.label for example in together] == [0, 1] * 5
    assert together[3].texts == ('Rick 3 grew up. He, too. He said "no". The end.',)
    assert together[3].choices == ("He left.", "He is happy, now.")
    assert together[3].where == f"{tmp_path}/{file.format('val')}:5"
    for answer in ("0", "3", ""):
        (tmp_path / file.format("test")).write_text(HEADER + STORY.format(0, answer))
        with pytest.raises(UserError, match=rf"\.csv:2: '{answer}' is not a choice's number; the label must be from 1 to 2"):
            load_task(find_task("story_cloze"), options)


BEES = """The bee landed on the flower because it had pollen.
it
The bee,the flower
The flower

The bee landed on the flower because it wanted pollen.
it
The bee,the flower
The bee

They hid it, so it was lost.
it
a ring , a key
a key
"""


def publish_pronouns(folder, text=BEES):
    (folder / "DPRD").mkdir()
    for file, of in (("train.c.txt", BEES + "\n" + BEES.replace("bee", "wasp").replace("hid", "saw")), ("test.c.txt", text)):
        (folder / "DPRD" / file).write_text(of)
    return {"directory": str(folder)}


def test_definite_pronouns_are_read_with_either_noun_in_their_place(tmp_path):
    data = load_task(find_task("dprd"), publish_pronouns(tmp_path))
    first, second, third = data.examples["test"]
    assert first.texts == second.texts == ("The bee landed on the flower because",)
    assert first.choices == ("The bee had pollen.", "the flower had pollen.") and first.label == 1
    assert second.choices == ("The bee wanted pollen.", "the flower wanted pollen.") and second.label == 0
    assert third.texts == ("They hid",) and third.choices == ("a ring, so it was lost.", "a key, so it was lost.")
    assert [choice[slice(*at)] for choice, at in zip(third.choices, third.targets)] == ["a ring", "a key"]
    assert (third.id, third.where, third.label) == ("2", f"{tmp_path}/DPRD/test.c.txt:11", 1)
    train, valid = ([example.texts for example in data.examples[split]] for split in ("train", "valid"))
    assert len(train) + len(valid) == 6 and not {*train} & {*valid}, "twins stay together"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("The bee,the flower\nThe bee\n", "The bee\nThe bee\n", r"test\.c\.txt:6: expected a sentence, a pronoun, two nouns"),
        ("The flower\n\n", "The flower\n", r"test\.c\.txt:1: expected a sentence"),
        (", a key\na key\n", ", a key\na bell\n", r"test\.c\.txt:11: the answer 'a bell' is none of the nouns; correct it"),
        ("They hid it, so it was", "They hid its items, and was", r"test\.c\.txt:11: the sentence has no word 'it'"),
    ],
)
def test_what_is_wrong_with_pronouns_is_said_with_file_and_line(old, new, message, tmp_path):
    options = publish_pronouns(tmp_path, BEES.replace(old, new))
    with pytest.raises(UserError, match=message):
        load_task(find_task("dprd"), options)
