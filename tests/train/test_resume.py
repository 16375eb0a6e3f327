"""A killed and resumed run equals one that was never stopped, bit for bit."""

import json
import os
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from bertlab.errors import UserError
from bertlab.train import loop
from bertlab.train.build import build_pretraining
from bertlab.train.checkpoint import load_params
from bertlab.train.cost import body_flops
from bertlab.train.record import Diverged
from tests.conftest import RECIPES

TIMES = ("seconds", "tokens_per_second")

# Trains, and kills its own process the hard way when the given step has been dispatched.
KILLED = """
import json, os, signal, sys
import jax
jax.config.update("jax_num_cpu_devices", 8)
from ml_collections import ConfigDict
from bertlab.train import loop

advance = loop.Session.advance
def advance_then_die(self, step):
    advance(self, step)
    if self.step == int(sys.argv[3]):
        self.checkpoints._manager.wait_until_finished() if sys.argv[4] == "settle" else None
        os.kill(os.getpid(), getattr(signal, sys.argv[5]))
loop.Session.advance = advance_then_die
loop.train(ConfigDict(json.loads(sys.argv[1])), sys.argv[2])
"""


def state_of(workdir, step):
    """Every array of a checkpoint, by path."""
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
        tree = checkpointer.restore(workdir / "checkpoints" / str(step) / "state")
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def lines_of(workdir):
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]


def kill_at(config, workdir, step, settle="settle", kind="SIGKILL"):
    command = [sys.executable, "-c", KILLED, json.dumps(config.to_dict()), str(workdir), str(step), settle, kind]
    return subprocess.run(command, capture_output=True, text=True)


def break_at(config, workdir, step):
    """Trains until an error of the step after `step`, in this process."""
    advance = loop.Session.advance

    def advance_or_fail(session, train_step):
        if session.step == step:
            raise KeyboardInterrupt
        advance(session, train_step)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop.Session, "advance", advance_or_fail)
        loop.train(config, workdir)


# A process that dies costs its imports again; what resuming needs of a family shows in either way.
KILLED_THE_HARD_WAY = ("bert", "elmo on characters", "awd_lstm")
QUICK = ("bert", "awd_lstm")


@pytest.mark.parametrize("recipe", [pytest.param(r, marks=[pytest.mark.slow] * (r not in QUICK)) for r in RECIPES])
def test_killed_run_resumes_bit_for_bit(recipe, small_config, tmp_path):
    config = small_config(recipe)
    if recipe == "awd_lstm":  # NT-ASGD begins to average between the checkpoint and the kill, and has to remember it
        config.update(optimizer=dict(average_after=1, learning_rate=40.0), train=dict(eval_every=2))
    assert_resumes(config, tmp_path, recipe in KILLED_THE_HARD_WAY)
    straight = state_of(tmp_path / "straight", 20)
    if recipe == "awd_lstm":
        assert straight[next(name for name in straight if "averaging" in name)]
    if config.model.stateful:
        assert any(np.abs(array).max() > 0 for name, array in straight.items() if "carry" in name)


@pytest.mark.slow
def test_run_on_packed_rows_resumes_bit_for_bit(small_config, tmp_path):
    # Positions begin again in each example, so the model needs no more of them than those have.
    packing = {"data__pack_length": 80, "data__pack_examples": 4, "model__max_positions": 32}
    config = small_config("bert", data__format="sentence_pair", **packing)
    assert_resumes(config, tmp_path)
    lines = lines_of(tmp_path / "straight")
    batch = build_pretraining(config).evaluations["valid"][0]
    assert batch["tokens"].shape == (8, 80) and batch["pair_label"].shape == (8, 4)
    padding = [line["padding"] for line in lines if line["split"] == "train"]
    assert len(padding) == 5 and all(0 < share < 0.4 for share in padding)
    # Positions in all: four steps between log lines, eight rows of 80.
    read = np.diff([0, *(line["tokens"] for line in lines if line["split"] == "train")])
    np.testing.assert_allclose(1 - read / (4 * 8 * 80), padding, rtol=1e-6)


@pytest.mark.slow
def test_run_on_buckets_resumes_bit_for_bit(small_config, tmp_path, monkeypatch):
    """Each length is compiled once a process, when it first comes, and the clock stands still meanwhile."""
    happened, compile_one, start, fetch = [], loop.Session._compile, loop.Session.start_clock, loop.Session.fetch
    note = lambda what, call: lambda session, *batch: (happened.append(what(*batch)), call(session, *batch))[1]
    monkeypatch.setattr(loop.Session, "_compile", note(lambda batch: batch["tokens"].shape[1], compile_one))
    monkeypatch.setattr(loop.Session, "start_clock", note(lambda: "clock runs", start))
    monkeypatch.setattr(loop.Session, "fetch", note(lambda: "clock stops", fetch))
    lengths = {"data__seq_len": 128, "data__buckets": (80,)}
    config = small_config("bert", data__format="sentence_pair", train__log_every=5, model__layers=1, **lengths)
    assert_resumes(config, tmp_path)
    # A run, the same until it breaks, and the rest of it; held-out rows are as long as the longest bucket.
    assert [what for what in happened if isinstance(what, int)] == [128, 80] * 3
    for before, what, after in zip(happened, happened[1:], happened[2:]):
        assert what != 80 or (before, after) == ("clock stops", "clock runs")
    phase, lines = (
        build_pretraining(config).phases[0],
        [line for line in lines_of(tmp_path / "straight") if line["split"] == "train"],
    )
    flops, asked = (np.diff([0, *(line[name] for line in lines)]) for name in ("flops", "supervised"))
    of_body = flops - asked * phase.program.objectives["mlm"].flops_per_prediction(phase.program.body.config)
    short, long = (body_flops(phase, length) for length in (80, 128))
    number = (5 * long - of_body) / (long - short)  # of short batches between two lines
    np.testing.assert_allclose(number, number.round(), atol=1e-6)
    assert {0 <= n <= 5 for n in number} == {True} and 0 < number.sum() < 20


def assert_resumes(config, tmp_path, the_hard_way=False):
    """A run of 20 steps that ends between two checkpoints, and is begun again, equals one that does not."""
    loop.train(config, tmp_path / "straight")

    # Killed at step 12: the last checkpoint is step 10's, two steps and half a logging window are lost.
    if the_hard_way:
        done = kill_at(config, tmp_path / "killed", 12)
        assert done.returncode == -signal.SIGKILL, done.stderr
    else:
        break_at(config, tmp_path / "killed", 12)
    assert not (tmp_path / "killed" / "result.json").exists()
    loop.train(config, tmp_path / "killed")

    straight, killed = state_of(tmp_path / "straight", 20), state_of(tmp_path / "killed", 20)
    assert straight.keys() == killed.keys() and any("opt_state" in name for name in straight)
    for name, array in straight.items():
        np.testing.assert_array_equal(array, killed[name], err_msg=name)
    assert lines_of(tmp_path / "straight") == lines_of(tmp_path / "killed")
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("straight", "killed")]
    for result in results:
        del result["seconds"]
    assert results[0] == results[1]


def test_sigterm_saves_where_it_stands_and_exits_0(small_config, tmp_path):
    config = small_config("gpt")
    loop.train(config, tmp_path / "straight")
    done = kill_at(config, tmp_path / "stopped", 7, kind="SIGTERM")
    assert done.returncode == 0, done.stderr
    assert "stopped by SIGTERM at step 7" in done.stdout
    assert (tmp_path / "stopped" / "checkpoints" / "7").is_dir()
    loop.train(config, tmp_path / "stopped")
    assert lines_of(tmp_path / "straight") == lines_of(tmp_path / "stopped")


def test_no_line_is_written_twice(small_config, tmp_path):
    config = small_config("gpt", train__steps=8)
    loop.train(config, tmp_path / "straight")
    # Killed before the first checkpoint: the evaluation at step 0 is repeated.
    assert kill_at(config, tmp_path / "killed", 3).returncode == -signal.SIGKILL
    loop.train(config, tmp_path / "killed")
    assert lines_of(tmp_path / "killed") == lines_of(tmp_path / "straight")
    # Killed between the last checkpoint and the result: the final evaluation is repeated.
    (tmp_path / "killed" / "result.json").unlink()
    loop.train(config, tmp_path / "killed")
    assert lines_of(tmp_path / "killed") == lines_of(tmp_path / "straight")


def test_a_finished_run_is_left_alone(small_config, tmp_path):
    config = small_config("gpt", train__steps=4)
    first = loop.train(config, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert loop.train(config, tmp_path) == first
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}


# TensorStore's threads still tell Orbax of other arrays, whose loop is closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("part", "files"), [("state", "*"), ("state", "d/*"), ("progress", "*")])
def test_a_damaged_checkpoint_is_named_with_the_one_before_it(part, files, small_config, tmp_path):
    config = small_config("bert", model__layers=1)
    break_at(config, tmp_path, 11)
    damaged = [path for path in (tmp_path / "checkpoints" / "10" / part).rglob(files) if path.is_file()]
    assert damaged
    for file in damaged:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(UserError, match=r"checkpoints/10 cannot be read \(.*\); remove it to go on from .*checkpoints/5$"):
        loop.train(config, tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / "5")
    with pytest.raises(UserError, match=r"checkpoints/10 cannot be read \(.*\); remove it to begin anew$"):
        loop.train(config, tmp_path)
    if part == "state":
        with pytest.raises(UserError, match="checkpoints/10 cannot be read"):
            load_params(tmp_path)


def test_nan_stops_with_step_examples_and_last_good_checkpoint(small_config, tmp_path):
    experiment = build_pretraining(small_config("gpt", optimizer__learning_rate=1e30, optimizer__clip_norm=0.0))
    with pytest.raises(Diverged, match=r"not finite at step (\d+); example ids .*\[\[\d+, \d+\].*checkpoint: ") as error:
        loop.run(experiment, tmp_path)
    step = int(str(error.value).split("at step ")[1].split(";")[0])
    assert 1 < step <= 4, "found at the first look, not at the first log line after it"
    saved = [int(path.name) for path in (tmp_path / "checkpoints").iterdir()]
    assert all(s < step for s in saved)
    assert not (tmp_path / "result.json").exists()


def test_an_update_that_overflows_is_never_saved_or_finished(small_config, tmp_path):
    overrides = dict(optimizer__learning_rate=1e38, optimizer__decay="constant", optimizer__clip_norm=0.0)
    config = small_config("gpt", optimizer__warmup_steps=0, train__steps=1, train__checkpoint_every=1, **overrides)
    with pytest.raises(Diverged, match=r"not finite at step 1; .*last good checkpoint: none yet"):
        loop.train(config, tmp_path)
    assert not (tmp_path / "result.json").exists()
    assert not list((tmp_path / "checkpoints").glob("[0-9]*"))
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        assert "NaN" not in line and "Infinity" not in line


@pytest.mark.parametrize(
    "recipe", ["awd_lstm", *(pytest.param(r, marks=pytest.mark.slow) for r in ("gpt", "elmo on characters"))]
)
def test_a_run_goes_on_with_another_mesh_and_other_writers(recipe, small_config, tmp_path):
    straight = loop.train(small_config(recipe, train__steps=10), tmp_path / "straight")
    config = small_config(recipe, train__steps=10, mesh__data=2, mesh__fsdp=2, mesh__tensor=2)
    break_at(config, tmp_path / "moved", 7)
    moved = loop.train(small_config(recipe, train__steps=10, writers="jsonl,tensorboard"), tmp_path / "moved")
    assert moved["data_hash"] == straight["data_hash"]
    assert moved["metrics"]["test"]["loss"] == pytest.approx(straight["metrics"]["test"]["loss"], rel=1e-5)


def test_another_config_is_refused(small_config, tmp_path):
    loop.train(small_config("gpt", train__steps=4), tmp_path)
    with pytest.raises(ValueError, match=r"seed \(0 there, 5 given\).*another --workdir"):
        loop.train(small_config("gpt", train__steps=4, seed=5), tmp_path)


def test_metrics_lines_have_the_promised_keys(small_config, tmp_path):
    loop.train(small_config("bert", train__steps=8, writers="jsonl,tensorboard"), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    train = [line for line in lines if line["split"] == "train"]
    promised = {
        "step",
        "split",
        "loss",
        "mlm/loss",
        "mlm/accuracy",
        "nsp/accuracy",
        "tokens",
        "tokens_per_second",
        "learning_rate",
    }
    assert all({"step", "split", "loss", "tokens", "tokens_per_second", "learning_rate"} <= line.keys() for line in lines)
    for line in train:
        assert promised <= line.keys()
        assert all(isinstance(v, (int, float, str)) for v in line.values()), "flat"
        assert isinstance(line["step"], int)
        assert line["loss"] == pytest.approx(line["mlm/loss"] + line["nsp/loss"])
    assert [line["step"] for line in train] == [4, 8]
    assert {line["split"] for line in lines} == {"train", "valid", "test"}
    assert list((tmp_path / "tensorboard").iterdir())
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert {"packages", "devices", "git_commit"} <= environment.keys()
    assert os.path.isdir(tmp_path / "checkpoints")
