"""Checks the project: `python -m pytest`, in this folder."""

import os
from pathlib import Path

import jax
import numpy as np
import pytest
from objective import Swapped

from bertlab.cli.main import main
from bertlab.objectives import Vocabulary


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """The files name each other from this folder."""
    folder = Path(__file__).parent
    monkeypatch.chdir(folder)
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


def test_the_objective_swaps_neighbours():
    tokens = np.array([[2, 5, 6, 7, 8, 9, 3, 0]])
    vocabulary = Vocabulary(size=10, pad_id=0, unk_id=1, cls_id=2, sep_id=3, mask_id=4)
    batch = {"tokens": tokens, "documents": (tokens > 0).astype(int)}
    view = Swapped(rate=1.0).view(batch, jax.random.key(1), vocabulary, progress=0.0)
    np.testing.assert_array_equal(view["tokens"], [[2, 5, 7, 6, 9, 8, 3, 0]])
    np.testing.assert_array_equal(view["moved"], [[0, 0, 1, 1, 1, 1, 0, 0]])


def test_two_steps_of_training_and_of_fine_tuning(tmp_path):
    run, text = tmp_path / "run", tmp_path / "text.txt"
    sentences = [line.split("\t")[0] for line in Path("train.tsv").read_text().splitlines()]
    text.write_text("\n\n".join(sentences))
    few = ["--config.train.steps=2", "--config.data.batch_size=8", "--config.mesh.data=1"]
    small = ["--config.data.tokenizer.vocab_size=320", "--config.evaluate.sentences=0"]
    small += [f"--config.data.directory={tmp_path}", "--config.train.eval_batches=1"]
    config = f"--config=config.py:corpus=text:{text}"
    assert main(["train", config, f"--workdir={run}", *few, *small]) == 0
    out = f"--workdir={tmp_path}/word_order"
    assert main(["finetune", f"--run={run}", "--task=task.py", out, *few]) == 0


def test_the_study_is_complete(tmp_path, capsys):
    study = "--study=study.py:steps=2,seeds=2"
    assert main(["sweep", study, f"--workdir={tmp_path}/study", "--dry_run"]) == 0
    assert "swapped" in capsys.readouterr().out
