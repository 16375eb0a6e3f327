"""Word senses: published files, rows, the nearest mean state, and a run without training."""

import numpy as np
import pytest

from bertlab.contrib.senses.kind import SENSE
from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.inputs import Inputs
from bertlab.transfer.scorers import METRICS
from bertlab.transfer.tasks import find_task, load_task
from tests.transfer.letters import LetterTokenizer, spelled
from tests.transfer.planted import HALVES, WORDS, finetune, pretrained
from tests.transfer.tasks.test_published import every_split, publish

pytestmark = pytest.mark.nightly

COARSE = {
    "apple/classes_map.txt": '{"0": "apple_inc", "1": "apple_fruit"}',
    **every_split(["apple/train.data.txt", "apple/test.data.txt"], "1\tAn apple fell\n"),
    **every_split(["apple/train.gold.txt", "apple/test.gold.txt"], "1\n"),
}


def test_published_files(tmp_path):
    xml = (
        '<corpus lang="en"><text id="d0"><sentence id="d0.s0"><wf lemma="a" pos="DET">A</wf>'
        '<instance id="d0.s0.t0" lemma="Hot dog" pos="NOUN">hot dog</instance>'
        '<instance id="d0.s0.t1" lemma="run" pos="VERB">ran</instance></sentence></text></corpus>'
    )
    gold = "d0.s0.t0 hot_dog%1:13:00::\nd0.s0.t1 run%2:38:00:: run%2:38:01::\n"
    index = "run%2:38:00:: 01926311 1 106\nrun%2:38:01:: 02075049 2 1\nrun%5:00:00:: 1 1 0\n"
    files = {"semcor.data.xml": xml, "semcor.gold.key.txt": gold, "dict/index.sense": index}
    files |= {"ALL.data.xml": xml, "ALL.gold.key.txt": gold}
    task = find_task("bertlab.contrib.senses:WSD")
    examples = load_task(task, publish(tmp_path, files)).examples
    first, second = examples["train"]
    assert examples["valid"] == examples["train"] and examples["test"][0].label == first.label
    assert (first.words, first.targets) == (("A", "hot", "dog", "ran"), ((1, 3),))
    assert (second.group, second.choices) == ("run#VERB", ("run%2:38:00::",))
    assert second.label == ("run%2:38:00::", "run%2:38:01::") and first.choices == ()
    task = find_task("bertlab.contrib.senses:COARSE")
    (one,) = load_task(task, publish(tmp_path / "coarse", COARSE)).examples["test"]
    assert (one.words[1], one.targets, one.label) == ("apple", ((1, 2),), ("apple_fruit",))


def made(words, target, seq_len, **settings):
    example = Example("0", "f:1", words=words, targets=(target,))
    return SENSE.rows(Inputs(LetterTokenizer(), "pair", seq_len, **settings), [example])


def test_a_long_sentence_is_cut_around_its_word():
    result = made(tuple("abcdefghijklmnopqrst"), (19, 20), 16)
    assert result.cut == {"examples": 1, "of_examples": 1, "words": 6, "of_words": 20}
    assert spelled(result.rows[0]) == "[ghijklmnopqrst]" and result.rows[0]["sense_at"] == 14
    (row,) = made(("ab", "cd", "ef", "gh"), (1, 3), 8).rows
    assert spelled(row) == "[bcdefg]" and row["sense_at"] == 2
    (row,) = made(("ab", "cd", "ef", "gh"), (1, 3), 10, first_piece=False).rows
    assert spelled(row) == "[abcdefgh]" and row["sense_at"] == 6
    with pytest.raises(UserError, match="fit"):
        made(("abcdefghi",), (0, 1), 10, first_piece=False)


def test_a_sense_is_the_nearest_mean_of_its_word_or_the_first():
    def line(name, word, state, senses, first=None):
        example = Example(name, "f:1", group=word, label=senses, choices=(first,) if first else ())
        return SENSE.predict([example], (), [{"state": np.float32(state)}], None)[0]

    # By cosine the mean of a is nearer to (1, 0.1), although b is nearer in space.
    train = [line("0", "w", (10, 0), ("a",)), line("1", "w", (30, 2), ("a",))]
    train += [line("2", "w", (1, 1), ("b",))]
    test = [line("3", "w", (1, 0.1), ("a",)), line("4", "new", (1, 0), ("c",), first="c")]
    lines, _ = SENSE.finish(test, train)
    assert [x["predicted"] for x in lines] == ["a", "c"] and "state" not in lines[0]
    own, _ = SENSE.finish(train, train)
    assert [x["gold"] for x in own] == [None] * 3, "valid has no score"
    with pytest.raises(UserError, match="'new' is not in the training data"):
        SENSE.finish([line("5", "new", (1, 0), None)], train)
    with pytest.raises(NotImplementedError, match="not averaged"):
        SENSE.average([], ())
    with pytest.raises(UserError, match="bilstm=2 would stay random"):
        SENSE.head(bilstm=2)


def test_the_metric_counts_words_without_a_sense_as_not_found():
    senses = [("s1", "s2"), ("s3",), ("s4",)]
    assert METRICS["sense_f1"](senses, ["s2", "s3", None]) == pytest.approx(4 / 5)
    assert METRICS["sense_f1"](senses, ["s2", "s3", "s5"]) == pytest.approx(2 / 3)


def test_senses_planted_in_the_words_are_found_without_training(tmp_path):
    """Each sense has a form of the word of its own."""
    rng, folder = np.random.default_rng(0), tmp_path / "task"
    files = {"w/classes_map.txt": '{"0": "even", "1": "odd"}'}
    for split, size in (("train", 60), ("test", 40)):
        labels = rng.integers(2, size=size)
        sentences = []
        for label in labels:
            around = rng.choice(WORDS, 4).tolist()
            around.insert(2, HALVES[label][0])
            sentences.append(" ".join(around))
        files[f"w/{split}.data.txt"] = "".join(f"2\t{text}\n" for text in sentences)
        files[f"w/{split}.gold.txt"] = "".join(f"{label}\n" for label in labels)
    publish(folder, files)
    result = finetune(
        pretrained(tmp_path, "bert"),
        "bertlab.contrib.senses:COARSE",
        tmp_path / "senses",
        task_data__directory=folder,
    )
    assert result["step"] == 0
    assert result["metrics"]["test"]["senses_coarse/sense_f1"] > 0.9
