"""A pretraining through the new loop: it resumes bit for bit, and learns."""

import shutil
from pydoc_data.topics import topics

import jax
import numpy as np
import pytest

from bertlab.config.defaults import base_config
from bertlab.config.load import set_key
from bertlab.config.recipes import train_on
from bertlab.train import loop
from bertlab.train.build import build_pretraining
from bertlab.train.checkpoint import load_params
from bertlab.train.run_directory import RunDirectory

SETTINGS = {
    "data.tokenizer.vocab_size": 400,
    "data.valid_fraction": 0.2,
    "data.test_fraction": 0.2,
    "data.seq_len": 32,
    "data.batch_size": 8,
    "model.layers": 1,
    "model.width": 16,
    "train.steps": 12,
    "train.log_every": 5,
    "train.eval_every": 6,
    "train.eval_batches": 1,
    "train.checkpoint_every": 4,
    "optimizer.learning_rate": 0.01,
    "mesh.data": 1,
}
RECIPES = {
    "bert": ("bert", "mlm+nsp", {"model.hidden": 24}),
    "gpt, two phases": (
        "gpt",
        "ltr",
        {"model.hidden": 24, "train.phases": "0.6 data.seq_len=16; 0.4 data.seq_len=32"},
    ),
    "stateful awd_lstm": (
        "awd_lstm",
        "ltr",
        {"model.hidden": 24, "data.format": "stream", "model.stateful": True},
    ),
}


def make(name, folder):
    """The experiment of a recipe on a part of Python's language reference."""
    (folder / "text").mkdir(exist_ok=True)
    text = "\n\n".join(" ".join(topics[name].split()) for name in sorted(topics)[:40])
    (folder / "text" / "a.txt").write_text(text)
    family, objectives, settings = RECIPES[name]
    config = base_config()
    config.model.family = family
    train_on(config, f"text:{folder}/text/*.txt", objectives)
    for key, value in (SETTINGS | settings | {"data.directory": str(folder / "cache")}).items():
        set_key(config, key, value)
    return build_pretraining(config)


def untimed(lines):
    """Lines of metrics.jsonl without what depends on the clock."""
    timed = ("seconds", "tokens_per_second")
    return [{key: value for key, value in line.items() if key not in timed} for line in lines]


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_that_stops_twice_ends_as_one_that_does_not(name, tmp_path, monkeypatch):
    whole = loop.run(make(name, tmp_path), tmp_path / "whole")
    first, *_, last = RunDirectory(tmp_path / "whole").metrics()
    assert last["loss"] < first["loss"]
    for step in (5, 9):
        with monkeypatch.context() as patch, pytest.raises(SystemExit):
            patch.setattr(loop.StopSignal, "requested", lambda self, done, at=step: done == at)
            loop.run(make(name, tmp_path), tmp_path / "stopped")
        assert RunDirectory(tmp_path / "stopped").steps()[-1] == step
    stopped = loop.run(make(name, tmp_path), tmp_path / "stopped")
    assert stopped["metrics"] == whole["metrics"]
    ours, theirs = (load_params(RunDirectory(tmp_path / run)) for run in ("whole", "stopped"))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    one, other = (untimed(RunDirectory(tmp_path / run).metrics()) for run in ("whole", "stopped"))
    assert one == other
    shutil.rmtree(tmp_path / "whole" / "checkpoints")
    assert loop.run(make(name, tmp_path), tmp_path / "whole") == whole, (
        "finished: nothing is trained"
    )
