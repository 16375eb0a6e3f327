"""A pretraining through the loop: it resumes bit for bit, learns, and refuses to be another run."""

import contextlib
import shutil

import jax
import numpy as np
import pytest

from bertlab.config import load_config
from bertlab.errors import UserError
from bertlab.files import read_json, write_json
from bertlab.train import loop
from bertlab.train.build import build_pretraining
from bertlab.train.checkpoint import load_params, save_params
from bertlab.train.run_directory import RunDirectory
from tests.train.runs import RECIPES, make


def untimed(lines):
    """Lines of metrics.jsonl without what depends on the clock."""
    timed = ("seconds", "tokens_per_second")
    return [{key: value for key, value in line.items() if key not in timed} for line in lines]


SLOW = ("gpt, two phases", "stateful awd_lstm")  # tests/contracts has them in processes too


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in RECIPES]
)
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
    finished = loop.run(make(name, tmp_path), tmp_path / "whole")
    assert finished == whole, "nothing is trained"


def test_a_directory_has_one_run(tmp_path):
    workdir, few = tmp_path / "run", {"train__steps": 1, "train__eval_every": 0}
    loop.run(make("bert", tmp_path, **few), workdir)
    loop.run(make("bert", tmp_path, **few, train__log_every=1), workdir)
    with pytest.raises(UserError, match=r"config\.seed is 0 there and 1 here"):
        loop.run(make("bert", tmp_path, **few, seed=1), workdir)
    config = read_json(workdir / "config.json")
    del config["train"]["tokens"]
    for value in ("", 1):  # of a key that is no more
        write_json(workdir / "config.json", config | {"gone": value})
        refused = pytest.raises(UserError, match=r"config\.gone is 1 there and None here")
        with refused if value else contextlib.nullcontext():
            loop.run(make("bert", tmp_path, **few), workdir)
    write_json(workdir / "config.json", config)
    (tmp_path / "text" / "b.txt").write_text("Another text.\n\nIt is short.\n")
    with pytest.raises(UserError, match="on different data"):
        loop.run(make("bert", tmp_path, **few), workdir)


def test_a_run_starts_from_another_one(tmp_path):
    few = {"train__steps": 0, "train__phases": ""}
    loop.run(make("gpt, two phases", tmp_path, **few), tmp_path / "gpt")
    start = {"init_from": str(tmp_path / "gpt"), "seed": 1, **few}
    started = make("gpt, two phases", tmp_path, **start, model__width=None, model__hidden=None)
    assert started.config.model.width == 16
    loop.run(started, tmp_path / "started")
    ours, theirs = (load_params(RunDirectory(tmp_path / run)) for run in ("gpt", "started"))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    for key, value in (("model__activation", "relu"), ("model__width", 32)):
        with pytest.raises(UserError, match=f"config.{key.replace('__', '.')} is"):
            make("gpt, two phases", tmp_path, **start, **{key: value})


def test_a_left_to_right_model_goes_on_masked(tmp_path):
    few = {"train__steps": 2, "train__phases": ""}
    loop.run(make("gpt, two phases", tmp_path, **few), tmp_path / "gpt")
    recipe = f"experiments/pretrain/continued.py:run={tmp_path / 'gpt'},objectives=mlm,steps=0"
    continued = build_pretraining(load_config(recipe))
    assert continued.config.model.direction == "bidirectional"
    assert list(continued.config.objectives) == ["mlm"]
    assert continued.config.data.seq_len == 32
    loop.run(continued, tmp_path / "masked")
    before, after = (load_params(RunDirectory(tmp_path / run)) for run in ("gpt", "masked"))
    jax.tree.map(np.testing.assert_array_equal, before["body"], after["body"])


def test_loaded_parameters_have_their_low_rank_updates(tmp_path):
    """So a run that starts from them keeps what the updates learned."""
    run, rng = RunDirectory(tmp_path), np.random.default_rng(0)
    kernel, a, b = (rng.normal(size=size).astype(np.float32) for size in ((4, 6), (4, 2), (2, 6)))
    updates = {"body": {"up": {"kernel": {"a": a, "b": b}}}}
    save_params(run, {"body": {"up": {"kernel": kernel}}, "lora": updates})
    run.write("config", {"lora": {"rank": 2, "alpha": 4.0, "targets": "kernel$"}})
    loaded = load_params(run)
    np.testing.assert_allclose(loaded["body"]["up"]["kernel"], kernel + 2 * a @ b, rtol=1e-5)
    assert loaded.keys() == {"body"}


def test_tokens_set_the_steps_of_the_run_and_of_its_phases(tmp_path):
    experiment = make("gpt, two phases", tmp_path, train__tokens=20_000)
    steps = experiment.config.train.steps
    assert 90 < steps < 130  # 8 rows of 16 and of 32 positions, without padding
    assert [phase.end for phase in experiment.phases] == [round(0.6 * steps), steps]
