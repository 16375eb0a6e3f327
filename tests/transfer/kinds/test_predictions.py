"""From outputs to predictions, thresholds and averages of runs, on numbers that one can check."""

import numpy as np
import pytest

from bertlab.transfer.examples import Example
from bertlab.transfer.kinds import KINDS


def lines_of(kind, examples, outputs, labels=("x", "y")):
    return KINDS[kind].predict(examples, labels, outputs, None)


def test_classes_and_choices_have_probabilities_and_their_average_decides():
    example = Example("a", "f:1", texts=("t",), label=1, group="g")
    runs = [[{"logits": np.log(np.float32([p, 1 - p]))}] for p in (0.6, 0.1)]
    lines = [lines_of("classification", [example], outputs)[0] for outputs in runs]
    assert [line["predicted"] for line in lines] == ["x", "y"] and lines[0]["gold"] == "y"
    assert lines[0]["probabilities"] == pytest.approx([0.6, 0.4]) and lines[0]["group"] == "g"
    assert KINDS["classification"].average(lines, ("x", "y"))["predicted"] == "y"
    (choice,) = lines_of("choice", [example], runs[0], ())
    assert (choice["gold"], choice["predicted"]) == (1, 0)
    number = KINDS["regression"].average([{"predicted": 1.0}, {"predicted": 2.0}], ())
    assert number["predicted"] == 1.5


def span_line(gold, best, odds, **fields):
    return {"gold": gold, "predicted": best, "best_answer": best, "null_odds": odds} | fields


def test_a_threshold_is_chosen_on_valid_where_questions_lack_answers():
    valid = [span_line(["a"], "a", 1.0), span_line([], "b", 2.0), span_line(["c"], "c", -1.0)]
    test = [span_line(["a"], "a", 0.5), span_line([], "b", 3.0)]
    lines, chosen = KINDS["span"].finish(test, valid)
    assert [line["predicted"] for line in lines] == ["a", ""]
    assert chosen == {"null_threshold": 1.0}
    answered = [line for line in valid if line["gold"]]
    assert KINDS["span"].finish(test, answered) == (test, {})


@pytest.mark.parametrize("name", KINDS)
def test_settings_of_a_kind_build_its_head_and_exclude_what_follows_from_the_task(name):
    kind = KINDS[name]
    settings = kind.settings()
    head = kind.build_head(settings, number=3, classes=7, texts=2)
    assert kind.name == name and head.number == 3
    derived = {"number", "classes", "texts", "word_types", "vector_shape"}
    assert not derived & settings.keys() and {"layers", "bilstm", "dropout"} <= settings.keys()
