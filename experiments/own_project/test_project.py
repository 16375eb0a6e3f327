"""Checks the project: `python -m pytest`, in this folder."""

import os
from pathlib import Path

import jax
import numpy as np
import pytest
from objective import Swapped

from bertlab.cli import main
from bertlab.objectives import Vocabulary


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """The files name each other from this folder."""
    monkeypatch.chdir(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))


def test_the_objective_swaps_neighbours():
    tokens = np.array([[2, 5, 6, 7, 8, 9, 3, 0]])
    vocabulary = Vocabulary(size=10, pad_id=0, unk_id=1, cls_id=2, sep_id=3, mask_id=4)
    batch = {"tokens": tokens, "documents": (tokens > 0).astype(int)}
    view = Swapped(rate=1.0).view(batch, jax.random.key(1), vocabulary, progress=0.0)
    np.testing.assert_array_equal(view["tokens"], [[2, 5, 7, 6, 9, 8, 3, 0]])
    np.testing.assert_array_equal(view["moved"], [[0, 0, 1, 1, 1, 1, 0, 0]])


def test_two_steps_of_training_and_of_fine_tuning(tmp_path):
    run = f"{tmp_path}/run"
    few = ["--config.train.steps=2", "--config.data.batch_size=4", "--config.train.eval_batches=1"]
    small = ["--config.data.tokenizer.vocab_size=512", "--config.evaluate.sentences=0"]
    assert main(["train", "--config=config.py", f"--workdir={run}", f"--config.data.directory={tmp_path}", *few, *small]) == 0
    assert main(["finetune", f"--run={run}", "--task=task.py", f"--workdir={tmp_path}/word_order", *few[:2]]) == 0


def test_the_study_is_complete(tmp_path, capsys):
    assert main(["sweep", "--study=study.py:steps=2,seeds=2", f"--workdir={tmp_path}/study", "--dry_run"]) == 0
    assert "swapped" in capsys.readouterr().out
