"""Averaged predictions: probabilities and numbers example by example, on the same examples only."""

import json

import numpy as np
import pytest

from bertlab.cli import main
from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.train import sources
from bertlab.transfer.average import average
from bertlab.transfer.tasks import OPTIONS, find_task, load_task

TABLE = 'from bertlab.transfer.tasks import table\n\nTASK = table("words", train="table.tsv", text="text", label="label"{})\n'
GOLD = ["bad", "good", "good", "bad"]
FORWARD = [[0.9, 0.1], [0.55, 0.45], [0.3, 0.7], [0.2, 0.8]]  # right, wrong, right, wrong
BACKWARD = [[0.4, 0.6], [0.3, 0.7], [0.4, 0.6], [0.45, 0.55]]  # wrong, right, right, wrong


@pytest.fixture
def fine_tuned(tmp_path):
    """(name, predictions' lines, more of the task) -> the directory of a fine-tuning that made them."""
    (tmp_path / "table.tsv").write_text("text\tlabel\n" + "".join(f"text {i}\t{('bad', 'good')[i % 2]}\n" for i in range(40)))

    def make(name, lines, more=""):
        (tmp_path / "words.py").write_text(TABLE.format(more))
        run = tmp_path / name
        (run / "predictions").mkdir(parents=True)
        (run / "config.json").write_text(json.dumps({"task": str(tmp_path / "words.py"), "task_data": OPTIONS}))
        (run / "predictions" / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return run

    return make


def classes(probabilities):
    return [
        {"id": str(i), "gold": gold, "predicted": ["bad", "good"][int(np.argmax(p))], "probabilities": p}
        for i, (gold, p) in enumerate(zip(GOLD, probabilities))
    ]


def averaged(runs, split="test"):
    """Their average, by someone who trusts the task that they name."""
    return average(runs, split, json.loads((runs[0] / "config.json").read_text())["task"])


def test_two_directions_are_better_than_each(fine_tuned, tmp_path, capsys):
    forward, backward = fine_tuned("forward", classes(FORWARD)), fine_tuned("backward", classes(BACKWARD))
    found = averaged([forward, backward])
    assert [values["accuracy"] for values in found.values()] == [0.5, 0.5, 0.75]
    assert main(["average", str(forward), str(backward), f"--task={tmp_path / 'words.py'}"]) in (0, None)
    assert "average: accuracy 0.7500" in capsys.readouterr().out


def test_classes_in_another_order_are_averaged_by_name(fine_tuned):
    forward = fine_tuned("forward", classes(FORWARD))
    turned = [line | {"probabilities": line["probabilities"][::-1]} for line in classes(BACKWARD)]
    backward = fine_tuned("backward", turned)
    (backward / "classes.json").write_text(json.dumps({"other": ["good", "bad"]}))
    assert averaged([forward, backward])["average"]["accuracy"] == 0.75
    (backward / "classes.json").write_text(json.dumps({"other": ["good", "bad", "odd"]}))
    with pytest.raises(UserError, match=r"backward has the classes good, bad, odd, not bad, good"):
        averaged([forward, backward])


def test_numbers_are_averaged(fine_tuned):
    numbers = lambda values: [{"id": str(i), "gold": float(i), "predicted": v} for i, v in enumerate(values)]
    (run, other) = (
        fine_tuned(name, numbers(values), ', kind="regression", metrics=("pearson",)')
        for name, values in (("a", [0.0, 2.0, 1.0, 4.0]), ("b", [1.0, 0.0, 3.0, 2.0]))
    )
    (run.parent / "table.tsv").write_text("text\tlabel\n" + "".join(f"text {i}\t{i}\n" for i in range(40)))
    expected = np.corrcoef(range(4), [0.5, 1.0, 2.0, 3.0])[0, 1]
    assert averaged([run, other])["average"]["pearson"] == pytest.approx(expected)


def test_what_cannot_be_averaged_is_refused(fine_tuned):
    run = fine_tuned("a", classes(FORWARD))
    with pytest.raises(UserError, match="at least two"):
        averaged([run])
    with pytest.raises(UserError, match="task_data"):
        averaged([run, fine_tuned("b", classes(FORWARD)[::-1])])
    relabelled = [{**line, "gold": "good"} for line in classes(FORWARD)]
    with pytest.raises(UserError, match="task_data"):
        averaged([run, fine_tuned("relabelled", relabelled)])
    with pytest.raises(UserError, match=r"predictions/valid.jsonl is missing"):
        averaged([run, fine_tuned("again", classes(FORWARD))], "valid")
    tags = [{"id": "0", "gold": ["bad", "bad"], "predicted": ["bad", "bad"]}]
    (run.parent / "table.tsv").write_text("text\tlabel\n" + "".join(f"text {i}\tbad good\n" for i in range(40)))
    with pytest.raises(UserError, match="has no 'probabilities' to average"):
        averaged([fine_tuned(name, tags, ', kind="tagging"') for name in "cd"])


def test_a_run_given_twice_is_not_averaged_with_itself(fine_tuned, tmp_path):
    run = fine_tuned("a", classes(FORWARD))
    (tmp_path / "link").symlink_to(run)
    for again in (run, tmp_path / "link", tmp_path / "a" / ".." / "a"):
        with pytest.raises(UserError, match="/a and would count twice"):
            averaged([run, again])


# --- tags


TAGGED = 'conll("words", train="tags.conll", valid="tags.conll", test="tags.conll")'
SENTENCE = ("Ada", "saw", "Bonn")
NAMES = ["B-LOC", "B-PER", "O"]  # the classes in order


@pytest.fixture
def tagged(tmp_path):
    """(name, probabilities of each word's tags) -> the directory of a fine-tuning that tagged SENTENCE."""
    tags = ["B-PER", "O", "B-LOC"]
    (tmp_path / "tags.conll").write_text("".join(f"{word} {tag}\n" for word, tag in zip(SENTENCE, tags)))
    (tmp_path / "tags.py").write_text(f"from bertlab.transfer.tasks import conll\n\nTASK = {TAGGED}\n")

    def make(name, probabilities):
        predicted = [NAMES[int(np.argmax(p))] for p in probabilities] + ["O"] * (len(SENTENCE) - len(probabilities))
        return written(
            tmp_path / name, tmp_path / "tags.py", {"gold": tags, "predicted": predicted, "probabilities": probabilities}
        )

    return make


def written(run, task, *lines, split="test", **config):
    (run / "predictions").mkdir(parents=True, exist_ok=True)
    (run / "config.json").write_text(json.dumps({"task": str(task), "task_data": OPTIONS, **config}))
    numbered = ({"id": str(i), **line} for i, line in enumerate(lines))
    (run / "predictions" / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in numbered))
    return run


def test_each_word_has_the_tag_with_the_highest_mean_probability(tagged):
    first = tagged("a", [[0.1, 0.5, 0.4], [0.1, 0.2, 0.7], [0.2, 0.5, 0.3]])  # Bonn is wrong
    second = tagged("b", [[0.3, 0.32, 0.38], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1]])  # Ada is wrong
    scores = [values["entity_f1"] for values in averaged([first, second]).values()]
    assert scores == [0.5, pytest.approx(2 / 3), 1.0], "conlleval's: one of two names; one, and none too many; both"
    # A run that cut the sentence has no say about words that it did not read.
    cut = tagged("c", [[0.0, 0.9, 0.1]])
    assert averaged([second, cut])["average"]["entity_f1"] == 1
    assert averaged([cut, tagged("d", [[0.0, 0.9, 0.1]])])["average"]["entity_f1"] == pytest.approx(2 / 3)
    old = written(first.parent / "old", first.parent / "tags.py", {"gold": ["B-PER", "O", "B-LOC"], "predicted": ["O"] * 3})
    with pytest.raises(
        UserError,
        match=r"old/predictions/test\.jsonl.*: a run's prediction of example 0 has no 'probabilities' to average: an older",
    ):
        averaged([first, old])


# --- spans


def answered(tmp_path, name, *questions, may_lack_answer=False, split="test"):
    """A run's predictions: (gold, {answer: p}, p of no answer) of each question."""
    (tmp_path / "squad.json").write_text(json.dumps({"data": [{"paragraphs": [PARAGRAPH]}]}))
    own = f'squad("q", train="squad.json", valid="squad.json", may_lack_answer={may_lack_answer})'
    (tmp_path / "squad.py").write_text(f"from bertlab.transfer.tasks import squad\n\nTASK = {own}\n")
    lines = []
    for gold, answers, null in questions:
        best = max(answers, key=answers.get)
        line = {"gold": gold, "predicted": best, "n_best": {text: float(np.log(p)) for text, p in answers.items()}}
        odds = {"best_answer": best, "null_odds": float(np.log(null / answers[best])), "null": float(np.log(null))}
        lines.append(line | (odds if may_lack_answer else {}))
    config = {"transfer": {"null_threshold": None}, "task_data": OPTIONS | {"dev": "valid"}}
    return written(tmp_path / name, tmp_path / "squad.py", *lines, split=split, **config)


PARAGRAPH = {
    "context": "red green blue",
    "qas": [{"id": str(i), "question": "which?", "answers": [{"text": "red", "answer_start": 0}]} for i in range(3)],
}


def test_the_answer_is_the_slice_with_the_highest_mean_probability(tmp_path):
    # Right in the mean alone: 0.35 of 0.4 and 0.3; a slice that one run does not list has 0 there.
    first = answered(tmp_path, "a", (["green"], {"red": 0.5, "green": 0.4}, 0.1))
    second = answered(tmp_path, "b", (["green"], {"blue": 0.6, "green": 0.3}, 0.1))
    again = answered(tmp_path, "c", (["green"], {"red": 0.5, "green": 0.4}, 0.1))
    assert [values["exact_match"] for values in averaged([first, second]).values()] == [0, 0, 1]
    assert [values["span_f1"] for values in averaged([first, again]).values()] == [0, 0, 0]


def test_the_average_of_questions_without_answers_has_its_own_threshold(tmp_path):
    """On valid, no answer has odds of 0.3 / 0.4 with an answer and of 0.5 / 0.3 without: the threshold is log 0.75."""
    for name, shift in (("a", 0.1), ("b", -0.1)):
        asked = lambda gold, red, null: (gold, {"red": red + shift}, null + shift)  # noqa: B023
        make = lambda split, *questions: answered(tmp_path, name, *questions, may_lack_answer=True, split=split)  # noqa: B023
        make("valid", asked(["red"], 0.4, 0.3), asked([], 0.3, 0.5))
        make("test", asked(["red"], 0.4, 0.2), asked([], 0.2, 0.6), asked([], 0.4, 0.35))
    found = averaged([tmp_path / "a", tmp_path / "b"])
    assert found["average"]["exact_match"] == 1
    (tmp_path / "a" / "predictions" / "valid.jsonl").unlink()
    found = averaged([tmp_path / "a", tmp_path / "b"])
    assert found["average"]["exact_match"] == pytest.approx(2 / 3), "a threshold of 0 answers the last question"


def test_damaged_predictions_are_not_averaged(fine_tuned):
    runs = [fine_tuned(name, classes(values)) for name, values in (("forward", FORWARD), ("backward", BACKWARD))]
    for run in runs:
        Run(run).list_files()
    own_task = str(runs[0].parent / "words.py")
    assert average(runs, own_task=own_task)
    file = runs[1] / "predictions" / "test.jsonl"
    file.write_text(file.read_text().replace("0.6", "0.2", 1))
    with pytest.raises(UserError, match=f"^{file} is damaged "):
        average(runs, own_task=own_task)


def test_labels_that_changed_since_are_not_those_of_the_predictions(fine_tuned, tmp_path):
    runs = [fine_tuned("a", classes(FORWARD)), fine_tuned("b", classes(BACKWARD))]
    task = find_task(str(tmp_path / "words.py"))
    digests = sources.of_tasks({task.name: (task, load_task(task, OPTIONS))})
    assert digests.keys() == {f"examples/words/{split}" for split in ("train", "valid", "test")}
    Run(runs[1]).result.write({"metrics": {}, "sources": digests})
    averaged(runs)
    Run(runs[0]).result.write({"metrics": {}, "sources": digests | {"examples/words/train": "of task_data.limit"}})
    averaged(runs)
    (tmp_path / "table.tsv").write_text((tmp_path / "table.tsv").read_text().replace("good", "fine"))
    with pytest.raises(
        UserError, match=r"^the valid examples of task words changed since .*/a predicted them; put the same back"
    ):
        averaged(runs)
