import pytest

from bertlab.contrib import zero_shot
from bertlab.transfer import examples
from tests.transfer.planted import finetune, predictions, pretrained, write_task

pytestmark = pytest.mark.nightly


def test_a_language_model_answers_without_training(tmp_path):
    run, task = pretrained(tmp_path, "gpt", 40), write_task(tmp_path / "text", "half")
    settings = {"transfer.answers": "bertlab.contrib.zero_shot:zero_shot", "train.steps": 0}
    result = finetune(run, task, tmp_path / "out", **settings)
    assert result["metrics"]["test"]["half/accuracy"] > 0.85
    assert result["metrics"]["test"]["half/relative"] > 0.7
    assert not (tmp_path / "out" / "checkpoints").exists()
    assert len(predictions(tmp_path / "out")) == 40


def scored(heuristic, text, **fields):
    """(what is given, what is scored) of each class."""
    example = examples.Example("1", "file:1", (text,), **fields)
    return [(text[:start], text[start:]) for text, start in heuristic(example)]


def test_what_of_a_text_is_scored():
    """Radford et al. 2018, section 5, on an example of each kind."""
    assert scored(zero_shot.sentiments, "Good .") == [
        ("Good . very", " negative"),
        ("Good . very", " positive"),
    ]
    choices = ("He is old .", "He is at home .")
    assert scored(zero_shot.choices, "A text .", choices=choices) == [
        ("A text . He is", " old ."),
        ("A text . He is", " at home ."),
    ]
    winograd = "* Ann * met Eve when # she # left ."
    assert scored(zero_shot.readings, winograd) == [
        ("Ann met Eve when she", " left ."),
        ("Ann met Eve when Ann", " left ."),
    ]
    choices = ("Ann left .", "Eve left .")
    pronouns = {"choices": choices, "targets": ((0, 3), (0, 3))}
    assert scored(zero_shot.nouns, "Ann met Eve when", **pronouns) == [
        ("Ann met Eve when Ann", " left ."),
        ("Ann met Eve when Eve", " left ."),
    ]
