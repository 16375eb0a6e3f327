"""From outputs to predictions and metrics: made-up outputs whose scores are counted by hand."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from bertlab.transfer.entities import Scheme
from bertlab.transfer.examples import Answer, Example
from bertlab.transfer.kinds import KINDS
from bertlab.transfer.scoring import Scoring, scores_of
from bertlab.transfer.tasks.base import Task, TaskData
from bertlab.transfer.windows import encode_question
from tests.transfer.test_inputs import LetterTokenizer

TRANSFER = SimpleNamespace(n_best=20, max_answer_length=30, null_threshold=0.0)


def task_of(kind, *metrics, **fields):
    return Task("stub", KINDS[kind](**fields), metrics, lambda directory, options: None)


def labelled(*labels, **fields):
    return [Example(id=f"x{number}", where="f:1", label=label, **fields) for number, label in enumerate(labels)]


def predicted(task, names, examples, outputs, windows=(), transfer=TRANSFER):
    outputs = {k: np.asarray(v) for k, v in outputs.items()}
    if "tags" in outputs:
        outputs["probabilities"] = np.eye(3)[outputs["tags"]]
    lines = task.kind.predict(examples, names, outputs, windows, transfer)
    return lines, scores_of(task, names, lines, Scheme("IOB2", "B-PER"))


PEARSON = np.corrcoef([0, 2, 5], [1, 9, 4])[0, 1]


@pytest.mark.parametrize(
    ("kind", "metrics", "labels", "outputs", "expected", "scores"),
    [
        ("choice", ("accuracy",), (2, 1), {"logits": [[0, 1, 3], [2, 0, -3e38]]}, [2, 0], [0.5]),
        ("classification", ("accuracy",), (0, None), {"logits": [[1e4, 0, -1e38], [0, 1, 0]]}, [0, 1], [1]),
        ("regression", ("pearson", "spearman"), (0.0, 2.0, 5.0), {"value": [1, 9, 4]}, [1.0, 9.0, 4.0], [PEARSON, 0.5]),
        ("regression", ("pearson",), (None,), {"value": [1.5]}, [1.5], []),
    ],
)
def test_predictions_and_scores(kind, metrics, labels, outputs, expected, scores):
    lines, found = predicted(task_of(kind, *metrics), (), labelled(*labels), {k: np.float32(v) for k, v in outputs.items()})
    assert [(line["gold"], line["predicted"]) for line in lines] == list(zip(labels, expected))
    assert list(found.values()) == pytest.approx(scores)
    json.dumps(lines, allow_nan=False)


def test_classes_go_by_their_names_and_f1_is_that_of_class_number_one():
    # Class 1 (yes): two right, one missed, one too many; so precision and recall are 2/3.
    gold, guess = [1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 0, 0]
    logits = np.float32([[0, 2] if g else [2, 0] for g in guess])
    task = task_of("classification", "f1", "accuracy")
    lines, scores = predicted(task, ("no", "yes"), labelled(*gold), {"logits": logits})
    assert scores == pytest.approx({"f1": 2 / 3, "accuracy": 4 / 6})
    assert [line["predicted"] for line in lines] == ["yes", "yes", "no", "yes", "no", "no"]
    assert lines[0]["id"] == "x0" and lines[0]["gold"] == "yes"
    np.testing.assert_allclose(lines[0]["probabilities"], [1 / (1 + np.e**2), 1 / (1 + np.e**-2)], rtol=1e-12)


WORDS = Example("s", "f:1", words=("a", "b", "c"), label=(1, 2, 1))


def test_words_that_were_cut_off_are_outside_of_every_entity():
    names = ("O", "B-X", "I-X")
    task = task_of("tagging", "entity_f1", "accuracy")
    lines, scores = predicted(task, names, [WORDS], {"tags": [[1, 2, -1, -1]]})
    assert lines[0]["gold"] == ["B-X", "I-X", "B-X"] and lines[0]["predicted"] == ["B-X", "I-X", ""]
    # Of two entities one is found, and nothing else: precision 1, recall 1/2.
    assert scores == pytest.approx({"entity_f1": 2 / 3, "accuracy": 2 / 3})
    _, whole = predicted(task, names, [WORDS], {"tags": [[1, 2, 1, -1]]})
    assert whole == {"entity_f1": 1, "accuracy": 1}
    # A row that is shorter than its sentence.
    lines, _ = predicted(task, names, [WORDS], {"tags": [[1]]})
    assert lines[0]["predicted"] == ["B-X", "", ""]


def test_words_that_were_cut_off_are_wrong():
    task = task_of("tagging", "accuracy", "f1")
    lines, scores = predicted(task, ("NOUN", "VERB", "X"), [WORDS], {"tags": [[1, 2, -1, -1]]})
    assert lines[0]["predicted"] == ["VERB", "X", ""]
    assert scores == pytest.approx({"accuracy": 2 / 3, "f1": 2 / 3}), "one of two VERBs is found"


# --- spans


def span_outputs(windows, picks, nulls, length=16):
    """Logits 5 at each window's (start, end) pick, and `nulls` at position 0; both halves of a sum."""
    start, end = np.zeros((2, len(windows), length), np.float32)
    for number, (pick, null) in enumerate(zip(picks, nulls)):
        start[number, 0] = end[number, 0] = null / 2
        if pick:
            start[number, pick[0]] = end[number, pick[1]] = 5
    return {"start": start, "end": end}


QUESTIONS = [
    Example("p", "f:1", texts=("q", "ab cd ef"), answers=(Answer("cd", 3), Answer("ab cd", 0))),
    Example("n", "f:2", texts=("q", "xy zu"), answers=()),
]
# [ q ] and then the context from position 3.
WINDOWS = [w for n, q in enumerate(QUESTIONS) for w in encode_question(q, LetterTokenizer(), index=n, max_seq=16)]


def squad2(threshold, tmp_path, picks=((5, 6), (3, 6)), nulls=(9, 12)):
    """Metrics of valid and of test, and test's predictions; both have the same two questions, the second without an answer."""
    task = task_of("span", "exact_match", "span_f1", may_lack_answer=True)
    scoring = Scoring(SimpleNamespace(**{**vars(TRANSFER), "null_threshold": threshold}), tmp_path)
    data = TaskData((), {"train": QUESTIONS, "valid": QUESTIONS, "test": QUESTIONS})
    for split in ("valid", "test"):
        scoring.expect(split, "q", task, data, len(WINDOWS), WINDOWS)
    valid = scoring("valid", [{"q": span_outputs(WINDOWS, picks, nulls)}])
    test = scoring("test", [{"q": span_outputs(WINDOWS, [(5, 6), (3, 6)], [9, 12])}])
    return valid, test, [json.loads(line) for line in (tmp_path / "predictions" / "test.jsonl").read_text().splitlines()]


def test_spans_are_slices_of_the_context_and_no_answer_is_for_the_threshold_to_say(tmp_path):
    _, scores, lines = squad2(0.0, tmp_path)
    assert [line["predicted"] for line in lines] == ["cd", ""]
    assert scores == {"q/exact_match": 1, "q/span_f1": 1, "q/null_threshold": 0.0}
    assert [line["best_answer"] for line in lines] == ["cd", "xy zu"]
    assert [line["gold"] for line in lines] == [["cd", "ab cd"], []]
    np.testing.assert_allclose([line["null_odds"] for line in lines], [9 - 10, 12 - 10])
    _, scores, lines = squad2(2.5, tmp_path)
    assert [line["predicted"] for line in lines] == ["cd", "xy zu"] and scores["q/exact_match"] == 0.5
    _, scores, lines = squad2(-1.5, tmp_path)
    assert [line["predicted"] for line in lines] == ["", ""] and scores["q/exact_match"] == 0.5
    # SQuAD 1.1 always answers, with as many pieces as the settings allow.
    answered = span_outputs(WINDOWS[:1], [(3, 6)], [99])
    for longest, text in ((30, "ab cd"), (2, "a")):
        settings = SimpleNamespace(n_best=20, max_answer_length=longest, null_threshold=0.0)
        lines, _ = predicted(task_of("span", "exact_match"), (), QUESTIONS[:1], answered, WINDOWS[:1], settings)
        assert lines[0]["predicted"] == text and "null_odds" not in lines[0]


def test_where_no_threshold_is_set_valid_chooses_it_for_test(tmp_path):
    # On valid the answer stands 3 above none, the question without one 1 above: odds -3 and -1; test's are -1 and 2.
    valid, test, lines = squad2(None, tmp_path, nulls=(7, 9))
    assert valid == {"q/exact_match": 1, "q/span_f1": 1, "q/null_threshold": -3}
    assert test["q/null_threshold"] == -3 and [line["predicted"] for line in lines] == ["", ""]
    # Where nothing is better than no answers at all, it is 0, as in the script.
    valid, test, lines = squad2(None, tmp_path, picks=((3, 4), (3, 6)), nulls=(9, 2))
    assert valid["q/null_threshold"] == test["q/null_threshold"] == 0 and test["q/exact_match"] == 1


def test_examples_of_one_group_are_scored_together_wherever_they_stand():
    # Groups a and b are interleaved; a has one wrong of three, b is right; c is one wrong; two examples are alone.
    groups, gold, guess = ("a", "b", "a", "c", "b", "a", "", ""), (1, 1, 0, 1, 0, 1, 1, 0), (1, 1, 1, 0, 0, 1, 1, 1)
    task = task_of("classification", "f1", "group_exact_match")
    examples = [Example(id=f"x{i}", where="f:1", label=y, group=group) for i, (y, group) in enumerate(zip(gold, groups))]
    lines, scores = predicted(task, ("0", "1"), examples, {"logits": np.eye(2, dtype=np.float32)[list(guess)]})
    # Of class 1: four found of five, six guessed.
    assert scores == pytest.approx({"f1": 2 * 4 / (5 + 6), "group_exact_match": 2 / 5})
    assert [line.get("group", "") for line in lines] == list(groups)
    # Always 1: right for c and for x6 alone.
    always = scores_of(task, ("0", "1"), task.kind.most_frequent(examples, ("0", "1"), lines))
    assert always == pytest.approx({"f1": 2 * 5 / (5 + 8), "group_exact_match": 2 / 5})


# --- what is not known, several tasks, and the file


def test_rows_of_several_tasks_are_told_apart_and_padding_is_dropped(tmp_path):
    scoring = Scoring(TRANSFER, tmp_path)
    first, second = task_of("classification", "accuracy"), task_of("regression", "pearson")
    of_first = labelled(0, 1, 0)  # its most frequent answer is not that of train
    of_second = labelled(1.0, 2.0, None, 4.0)
    scoring.expect("test", "one", first, TaskData(("no", "yes"), {"train": labelled(1, 0, 1), "test": of_first}), 3, [])
    scoring.expect("test", "two", second, TaskData((), {"train": labelled(1.0), "test": of_second}), 4, [])
    # Rows 0 to 2 are the first task's, 3 to 6 the second's; batches of 4, of which the last has a row of padding.
    guesses, values = [0, 1, 1, 9, 9, 9, 9, 9], [9, 9, 9, 1.0, 2.5, 7.0, 3.5, 9]
    logits = np.float32([[1, 0] if g == 0 else [0, 1] for g in guesses])
    values = np.float32(values)
    batches = [{"one": {"logits": logits[i : i + 4]}, "two": {"value": values[i : i + 4]}} for i in (0, 4)]
    metrics = scoring("test", batches)
    assert metrics == pytest.approx({"one/accuracy": 2 / 3, "two/pearson": np.corrcoef([1, 2, 4], [1, 2.5, 3.5])[0, 1]})
    lines = [json.loads(line) for line in (tmp_path / "predictions" / "test.jsonl").read_text().splitlines()]
    places = [("one", f"x{i}") for i in range(3)] + [("two", f"x{i}") for i in range(4)]
    assert [(line["task"], line["id"]) for line in lines] == places
    assert lines[3] == {"task": "two", "id": "x0", "gold": 1.0, "predicted": 1.0}
    assert lines[5]["gold"] is None and lines[5]["predicted"] == 7.0
    assert set(lines[0]) == {"task", "id", "gold", "predicted", "probabilities"}
    assert [path.name for path in (tmp_path / "predictions").iterdir()] == ["test.jsonl"]
    assert json.loads((tmp_path / "most_frequent.json").read_text()) == {"test": {"one/accuracy": 1 / 3}}
    # A second evaluation takes the place of the first.
    scoring("test", [{"one": {"logits": logits[::-1]}, "two": {"value": values}}])
    lines = [json.loads(line) for line in (tmp_path / "predictions" / "test.jsonl").read_text().splitlines()]
    assert len(lines) == 7 and lines[0]["predicted"] == "yes"


@pytest.mark.parametrize(
    ("kind", "names", "train", "test", "expected"),
    [
        ("classification", ("a", "b", "c"), (2, 0, 2), (2, 2, 0, 1), {"accuracy": 1 / 2}),
        ("classification", (), (1, 1, 0), (0, 0, 0, 1), {"accuracy": 1 / 4}),
        ("choice", (), (3, 1, 3), (3, 0, None), {"accuracy": 1 / 2}),
        ("tagging", ("O", "B-x"), ((0, 0), (0, 1)), ((0, 1), (0, 0), None), {"accuracy": 3 / 4, "entity_f1": 0.0}),
        ("tagging", ("O", "B-x"), ((1, 0), (1, 1)), ((0, 1), (0, 0)), {"accuracy": 1 / 4, "entity_f1": 2 / 5}),
        ("regression", (), (1.0,), (1.0, 2.0), {}),
        ("span", (), (None,), (None,), {}),
    ],
)
def test_the_most_frequent_answer_is_that_of_train_and_scored_on_what_is_asked(kind, names, train, test, expected):
    words = {"words": ("w", "w")} if kind == "tagging" else {}
    task = task_of(kind, *expected)
    known = [label if label is None or not names else [names[i] for i in label] if words else names[label] for label in test]
    made = [{"id": f"x{i}", "gold": gold, "predicted": ["-"] * 2 if words else "-"} for i, gold in enumerate(known)]
    lines = task.kind.most_frequent(labelled(*train, **words), names, made)
    assert scores_of(task, names, lines, Scheme("IOB2", "B-PER")) == pytest.approx(expected)


def test_without_a_directory_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scoring = Scoring(TRANSFER, None)
    scoring.expect("valid", "one", task_of("classification", "accuracy"), TaskData(("a", "b"), {"valid": labelled(1)}), 1, [])
    assert scoring("valid", [{"one": {"logits": np.float32([[0, 1]])}}]) == {"one/accuracy": 1}
    assert not list(tmp_path.iterdir())
