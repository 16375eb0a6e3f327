"""Several real processes on this machine work on one command; what one process with as many devices does is the truth."""

import json

import numpy as np
import pytest

from tests.several import assert_ended_well, starting

NIGHTLY = (pytest.mark.slow, pytest.mark.nightly)


@pytest.fixture
def start(tmp_path):
    """`tests.several.starting` in the test's folder."""
    with starting(tmp_path) as begin:
        yield begin


def lines_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("count", "rounding", "more"),
    [
        # A sum over two devices has one order; over more, processes add in another order than one process does.
        pytest.param(2, 0.0, (), marks=NIGHTLY),
        pytest.param(4, 1e-4, ("--config.data.buckets=16,32", "--config.data.seq_len=32"), marks=NIGHTLY),
    ],
)
def test_processes_fine_tune_as_one(count, rounding, more, bert_run, words_task, start, tmp_path):
    settings = ["--config.train.steps=12", "--config.train.log_every=3", "--config.data.batch_size=8", *more]
    command = lambda name: ["finetune", f"--run={bert_run}", f"--task={words_task}", f"--workdir={tmp_path / name}", *settings]
    assert_ended_well(start(command("one"), 1, count))
    assert_ended_well(start(command("several"), count))
    one, several = tmp_path / "one", tmp_path / "several"
    expected, found = (lines_of(directory / "metrics.jsonl") for directory in (one, several))
    what = lambda lines: [(line["step"], line["split"], line["tokens"], line.get("data_hash")) for line in lines]
    assert what(found) == what(expected), "the same batches, each line once"
    losses = [[line["words/loss"] for line in lines] for lines in (found, expected)]
    np.testing.assert_allclose(*losses, rtol=rounding)
    for split in ("valid", "test"):
        expected, found = (lines_of(directory / "predictions" / f"{split}.jsonl") for directory in (one, several))
        assert len(found) > 8
        probabilities = [[line.pop("probabilities") for line in lines] for lines in (found, expected)]
        np.testing.assert_allclose(*probabilities, rtol=rounding)
        assert found == expected, "order, gold and predicted answers"
    assert sorted(path.name for path in several.iterdir()) == sorted(path.name for path in one.iterdir())
