"""Averaged predictions: probabilities and numbers example by example, on the same examples only."""

import json

import numpy as np
import pytest

from bertlab.cli import main
from bertlab.errors import UserError
from bertlab.transfer.average import average
from bertlab.transfer.tasks import OPTIONS

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


def test_two_directions_are_better_than_each(fine_tuned, capsys):
    forward, backward = fine_tuned("forward", classes(FORWARD)), fine_tuned("backward", classes(BACKWARD))
    found = average([forward, backward])
    assert [values["accuracy"] for values in found.values()] == [0.5, 0.5, 0.75]
    assert main(["average", str(forward), str(backward)]) in (0, None)
    assert "average: accuracy 0.7500" in capsys.readouterr().out


def test_numbers_are_averaged(fine_tuned):
    numbers = lambda values: [{"id": str(i), "gold": float(i), "predicted": v} for i, v in enumerate(values)]
    (run, other) = (
        fine_tuned(name, numbers(values), ', kind="regression", metrics=("pearson",)')
        for name, values in (("a", [0.0, 2.0, 1.0, 4.0]), ("b", [1.0, 0.0, 3.0, 2.0]))
    )
    (run.parent / "table.tsv").write_text("text\tlabel\n" + "".join(f"text {i}\t{i}\n" for i in range(40)))
    expected = np.corrcoef(range(4), [0.5, 1.0, 2.0, 3.0])[0, 1]
    assert average([run, other])["average"]["pearson"] == pytest.approx(expected)


def test_what_cannot_be_averaged_is_refused(fine_tuned):
    run = fine_tuned("a", classes(FORWARD))
    with pytest.raises(UserError, match="at least two"):
        average([run])
    with pytest.raises(UserError, match="task_data"):
        average([run, fine_tuned("b", classes(FORWARD)[::-1])])
    with pytest.raises(UserError, match=r"predictions/valid.jsonl is missing"):
        average([run, run], "valid")
    tags = [{"id": "0", "gold": ["bad", "bad"], "predicted": ["bad", "bad"]}]
    (run.parent / "table.tsv").write_text("text\tlabel\n" + "".join(f"text {i}\tbad good\n" for i in range(40)))
    with pytest.raises(UserError, match="a tagging task have no probabilities"):
        average([fine_tuned(name, tags, ', kind="tagging"') for name in "cd"])
