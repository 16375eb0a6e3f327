"""The linear models find what is planted in words, pairs, choices, numbers and tags."""

import numpy as np
import pytest

from bertlab.transfer.examples import Example
from bertlab.transfer.scoring import linear_scores
from bertlab.transfer.tasks import Task, TaskData

WORDS = [f"{a}{b}{c}" for a in "bdfg" for b in "aeiou" for c in "nr"]


def draw(kind, rng, number):
    """An example of which the label can be read off its words."""
    words, ends = rng.choice(WORDS, 6).tolist(), "nr"
    label = int(rng.integers(2))
    fields = {"id": str(number), "where": f"{number}"}
    if kind == "classification":  # two words whose order counts
        first = ("yes no", "no yes")[label]
        return Example(**fields, texts=(" ".join([*words[:3], first, *words[3:]]),), label=label)
    if kind == "tagging":
        return Example(**fields, words=tuple(words), label=tuple(ends.index(w[-1]) for w in words))
    if kind == "regression":
        other = words[:label] + rng.choice(WORDS, 2).tolist()
        return Example(**fields, texts=(" ".join(words), f"{label} {' '.join(other)}"), label=label)
    choices = ("right " + words[0], "wrong " + words[1])[:: 1 - 2 * label]
    return Example(**fields, texts=(" ".join(words),), choices=choices, label=label)


@pytest.mark.parametrize("kind", ["classification", "tagging", "choice", "regression"])
def test_a_linear_model_finds_what_is_planted(kind):
    rng = np.random.default_rng(0)
    sizes = {"train": 200, "valid": 40, "test": 60}
    examples = {split: [draw(kind, rng, n) for n in range(size)] for split, size in sizes.items()}
    metric = "pearson" if kind == "regression" else "accuracy"
    task = Task("planted", kind, (metric,), load=None)
    labels = () if kind in ("choice", "regression") else ("n", "r")
    scores = linear_scores(task, TaskData(labels, examples))
    assert set(scores) == {"valid", "test"} and scores["test"][metric] > 0.9


def test_one_class_is_always_answered_and_spans_have_no_linear_model():
    rng = np.random.default_rng(0)
    texts = [draw("classification", rng, number) for number in range(20)]
    same = [Example(e.id, e.where, e.texts, 1) for e in texts]
    data = TaskData(("n", "r"), {"train": same, "valid": texts, "test": texts})
    found = linear_scores(Task("one", "classification", ("accuracy",), load=None), data)
    assert found["test"]["accuracy"] == np.mean([example.label for example in texts])
    assert linear_scores(Task("span", "span", ("span_f1",), load=None), data) == {}
