"""A killed and resumed run equals one that was never stopped, bit for bit."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from bertlab.errors import UserError
from bertlab.models.presets import FAMILIES
from bertlab.run import Run
from bertlab.train import loop
from bertlab.train.build import build_pretraining
from bertlab.train.checkpoint import load_params
from bertlab.train.cost import body_flops
from bertlab.train.record import Diverged
from tests.references import broken_at

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
        self.checkpoints._manager.wait_until_finished()
        os.kill(os.getpid(), getattr(signal, sys.argv[4]))
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


def kill_at(config, workdir, step, kind="SIGKILL"):
    command = [sys.executable, "-c", KILLED, json.dumps(config.to_dict()), str(workdir), str(step), kind]
    return subprocess.run(command, capture_output=True, text=True)


def break_at(config, workdir, step):
    """Trains until an error of the step after `step`, in this process."""
    with broken_at(step):
        loop.train(config, workdir)


def assert_same_run(straight, other, step):
    """Parameters, optimiser state, log lines and results are equal, but for times."""
    expected, found = state_of(straight, step), state_of(other, step)
    assert expected.keys() == found.keys() and any("opt_state" in name for name in expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert lines_of(other) == lines_of(straight)
    results = [json.loads((run / "result.json").read_text()) for run in (straight, other)]
    for result in results:
        del result["seconds"]
    assert results[0] == results[1]


def assert_resumes(config, tmp_path, the_hard_way=False):
    """A run that ends between two checkpoints and log lines, and is begun again, equals one that does not."""
    loop.train(config, tmp_path / "straight")
    last, step = config.train.steps, config.train.steps * 3 // 5
    if the_hard_way:
        done = kill_at(config, tmp_path / "killed", step)
        assert done.returncode == -signal.SIGKILL, done.stderr
    else:
        break_at(config, tmp_path / "killed", step)
    assert not (tmp_path / "killed" / "result.json").exists()
    loop.train(config, tmp_path / "killed")
    assert_same_run(tmp_path / "straight", tmp_path / "killed", last)
    return state_of(tmp_path / "straight", last)


@pytest.fixture(scope="module")
def of_gpt(small_config, tmp_path_factory):
    """(config, directory) of a run of 20 steps that nothing stops; do not write to it."""
    config, workdir = small_config("gpt"), tmp_path_factory.mktemp("gpt") / "straight"
    loop.train(config, workdir)
    return config, workdir


# Each format of rows (pairs, packed sentences, streams, counted pairs) and each kind of optimiser and of state that is kept.
STAGES = {"optimizer__thaw": "gradual", "optimizer__thaw_steps": 3, "optimizer__layer_decay": 0.5}
AT_NIGHT = ("gpt", "muon in stages")
RESUMED = {
    "bert": ("bert", {}),
    "awd_lstm": ("awd_lstm", {"optimizer__average_after": 1, "optimizer__learning_rate": 40.0, "train__eval_every": 2}),
    "elmo on characters": ("elmo on characters", {}),
    "gpt": ("gpt", {}),
    "glove": ("glove", {}),
    "muon in stages": ("bert", {"optimizer__name": "muon", "train__steps": 12, "model__layers": 1, **STAGES}),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, marks={"bert": (), "awd_lstm": pytest.mark.slow, "glove": pytest.mark.slow}.get(case, pytest.mark.nightly)
        )
        for case in RESUMED
    ],
)
def test_killed_run_resumes_bit_for_bit(case, small_config, tmp_path):
    recipe, overrides = RESUMED[case]
    config = small_config(recipe, **overrides)
    # A process that dies costs its imports again.
    state = assert_resumes(config, tmp_path, the_hard_way=case in ("bert", "awd_lstm"))
    if case == "awd_lstm":  # it begins to average between the checkpoint and the kill, and has to remember it
        assert state[next(name for name in state if "averaging" in name)]
    if config.model.stateful:
        assert any(np.abs(array).max() > 0 for name, array in state.items() if "carry" in name)
    assert any("momentum" in name for name in state) == (case == "muon in stages")


@pytest.mark.nightly
def test_run_on_packed_rows_resumes_bit_for_bit(small_config, tmp_path):
    # Positions begin again in each example, so the model needs no more of them than those have.
    packing = {"data__pack_length": 80, "data__pack_examples": 4, "model__max_positions": 32, "model__layers": 1}
    config = small_config("bert", data__format="sentence_pair", **packing)
    assert_resumes(config, tmp_path)
    batch = build_pretraining(config).evaluations["valid"][0]
    assert batch["tokens"].shape == (8, 80) and batch["pair_label"].shape == (8, 4)
    lines = [line for line in lines_of(tmp_path / "straight") if line["split"] == "train"]
    padding = [line["padding"] for line in lines]
    assert len(padding) == 5 and all(0 < share < 0.4 for share in padding)
    # Positions in all: four steps between log lines, eight rows of 80.
    read = np.diff([0, *(line["tokens"] for line in lines)])
    np.testing.assert_allclose(1 - read / (4 * 8 * 80), padding, rtol=1e-6)


@pytest.mark.nightly
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
    phase = build_pretraining(config).phases[0]
    lines = [line for line in lines_of(tmp_path / "straight") if line["split"] == "train"]
    flops, asked = (np.diff([0, *(line[name] for line in lines)]) for name in ("flops", "supervised"))
    of_body = flops - asked * phase.program.objectives["mlm"].flops_per_prediction(phase.program.body.config)
    short, long = (body_flops(phase, length) for length in (80, 128))
    number = (5 * long - of_body) / (long - short)  # of short batches between two lines
    np.testing.assert_allclose(number, number.round(), atol=1e-6)
    assert {0 <= n <= 5 for n in number} == {True} and 0 < number.sum() < 20


@pytest.mark.parametrize(
    ("kind", "name", "status"), [("SIGTERM", "SIGTERM", 0), pytest.param("SIGINT", "Ctrl-C", 130, marks=pytest.mark.slow)]
)
def test_a_signal_saves_where_it_stands(kind, name, status, of_gpt, tmp_path):
    config, straight = of_gpt
    done = kill_at(config, tmp_path, 7, kind=kind)
    assert done.returncode == status, done.stderr
    assert f"stopped by {name} at step 7" in done.stdout and "Traceback" not in done.stderr
    assert (tmp_path / "checkpoints" / "7").is_dir()
    loop.train(config, tmp_path)
    assert lines_of(tmp_path) == lines_of(straight)


@pytest.mark.parametrize(
    "batches", [pytest.param(0, marks=pytest.mark.nightly, id="before an evaluation"), pytest.param(1, id="in an evaluation")]
)
def test_a_signal_ends_an_evaluation_and_the_run_that_goes_on_begins_with_it(batches, of_gpt, tmp_path, monkeypatch):
    config, straight = of_gpt
    advance, put_batch, step, put = loop.Session.advance, loop.put_batch, [0], []
    press = lambda: os.kill(os.getpid(), signal.SIGINT)

    def advance_to(session, steps):
        advance(session, steps)
        step[0] = session.step
        if session.step == 10 and not batches:
            press()

    def in_evaluation(mesh, batch, whole=False):
        if whole and step[0] == 10:
            put.append(1)
            if len(put) == batches:
                press()
        return put_batch(mesh, batch, whole=whole)

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.setattr(loop.Session, "advance", advance_to)
        patch.setattr(loop, "put_batch", in_evaluation)
        loop.train(config, tmp_path)
    assert end.value.code == 130 and len(put) == batches and config.train.eval_batches > 1
    assert (tmp_path / "checkpoints" / "10").is_dir() and (10, "valid") not in steps_of(tmp_path)
    loop.train(config, tmp_path)
    assert steps_of(tmp_path).count((10, "valid")) == 1
    assert_same_run(straight, tmp_path, 20)


@pytest.mark.nightly
def test_a_run_goes_on_with_another_number_of_micro_batches(small_config, tmp_path, capsys):
    """As on half the chips: the same data, and without dropout the same losses, up to the order of sums in float32."""
    config = small_config("gpt", model__dropout=0.0, model__layers=1, train__checkpoint_every=10)
    break_at(config, tmp_path / "moved", 13)
    shutil.copytree(tmp_path / "moved", tmp_path / "straight")
    loop.train(config, tmp_path / "straight")
    config.train.micro_batches = 2
    loop.train(config, tmp_path / "moved")
    assert json.loads((tmp_path / "moved" / "config.json").read_text())["train"]["micro_batches"] == 2
    kind = jax.devices()[0].device_kind
    assert f"\non 1 {kind} device of 1 process, as a mesh of data 1, fsdp 1, tensor 1" in capsys.readouterr().out
    straight, moved = (lines_of(tmp_path / name) for name in ("straight", "moved"))
    assert len(straight) == len(moved) and any(line["step"] == 20 for line in moved)
    assert len({line["data_hash"] for line in moved if line["split"] == "train"}) == 5, "a hash of all batches so far"
    for expected, found in zip(straight, moved):
        same = ("step", "split", "tokens", "data_hash")
        assert [found.get(name) for name in same] == [expected.get(name) for name in same]
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    with pytest.raises(AssertionError):
        np.testing.assert_equal(state_of(tmp_path / "moved", 20), state_of(tmp_path / "straight", 20))


def steps_of(workdir):
    return [(line["step"], line["split"]) for line in lines_of(workdir)]


@pytest.mark.slow
def test_no_line_is_written_twice(of_gpt, tmp_path):
    config, straight = of_gpt
    break_at(config, tmp_path, 3)  # before the first checkpoint: the evaluation at step 0 is repeated
    loop.train(config, tmp_path)
    assert lines_of(tmp_path) == lines_of(straight)
    # Killed between the last checkpoint and the result: the final evaluation is repeated.
    (tmp_path / "result.json").unlink()
    loop.train(config, tmp_path)
    assert lines_of(tmp_path) == lines_of(straight)


def test_warm_up_that_is_left_open_is_a_number_in_the_run_and_stays_that_of_the_run(small_config, tmp_path):
    config = small_config("bert", model__layers=1, train__checkpoint_every=0, train__eval_batches=1)
    settled = lambda: json.loads((tmp_path / "config.json").read_text())["optimizer"]["warmup_steps"]
    loop.train(config, tmp_path)
    assert (config.optimizer.warmup_steps, settled()) == (None, 2)
    # A run of before the default was a share has 100 steps or any other number.
    of_before = json.loads((tmp_path / "config.json").read_text())
    of_before["optimizer"]["warmup_steps"] = 7
    (tmp_path / "config.json").write_text(json.dumps(of_before))
    (tmp_path / "result.json").unlink()
    for name in ("files.json", "run.json"):
        (tmp_path / "checkpoints" / "20" / name).unlink()
    assert loop.train(config, tmp_path)["step"] == 20 and settled() == 7
    config.optimizer.warmup_steps = 3
    with pytest.raises(UserError, match=r"optimizer.warmup_steps \(7 there, 3 given\)"):
        loop.train(config, tmp_path)


def test_a_finished_run_is_left_alone_and_another_config_refused(of_gpt, small_config):
    config, straight = of_gpt
    recorded = json.loads((straight / "config.json").read_text())
    recorded["optimizer"]["ratio"] = 20  # from before such a setting without effect was refused
    (straight / "config.json").write_text(json.dumps(recorded))
    (straight / "files.json").unlink()
    older = config.copy_and_resolve_references()
    older.optimizer.ratio = 20.0
    before = {path: path.stat().st_mtime_ns for path in straight.rglob("*")}
    assert loop.train(older, straight) == loop.train(config, straight) == json.loads((straight / "result.json").read_text())
    with pytest.raises(UserError, match=r"seed \(0 there, 5 given\).*another --workdir"):
        loop.train(small_config("gpt", seed=5), straight)
    assert before == {path: path.stat().st_mtime_ns for path in straight.rglob("*")}


@pytest.fixture(scope="module")
def broken_run(small_config, tmp_path_factory):
    """(config, directory) of a run that broke after checkpoints at 5 and 10."""
    config, workdir = small_config("bert", model__layers=1), tmp_path_factory.mktemp("broken") / "run"
    break_at(config, workdir, 11)
    return config, workdir


def damage(run, step):
    """Flips one bit in the middle of a checkpoint's largest file, which holds arrays; returns its path."""
    file = max((run / "checkpoints" / str(step) / "state").rglob("d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    return file


@pytest.mark.slow
def test_a_run_with_a_damaged_checkpoint_ends_as_an_undisturbed_one(of_gpt, tmp_path, capsys):
    config, straight = of_gpt
    break_at(config, tmp_path, 11)
    file = damage(tmp_path, 10)
    said = rf"^{file} is damaged \(its content does not match files.json\); "
    with pytest.raises(UserError, match=said + "run the command again that trained it: it goes on from the checkpoint before$"):
        load_params(tmp_path)
    capsys.readouterr()
    loop.train(config, tmp_path)
    (warning,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert re.match(f"warning: {said[1:]}training goes on from step 5, and .*/checkpoints/damaged-10 may be deleted$", warning)
    assert (tmp_path / "checkpoints" / "damaged-10").is_dir() and sorted(Run(tmp_path).steps()) == [15, 20]
    assert_same_run(straight, tmp_path, 20)
    # Of a finished run no earlier checkpoint is read instead; the same command makes the last one again.
    file = damage(tmp_path, 20)
    with pytest.raises(UserError, match=f"^{file} is damaged"):
        load_params(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / "20")
    with pytest.raises(UserError, match="has lost the checkpoint of its last step 20; run the command again that trained it"):
        load_params(tmp_path)
    assert load_params(tmp_path, 15)
    loop.train(config, tmp_path)
    assert_same_run(straight, tmp_path, 20)


def test_a_run_without_a_whole_checkpoint_is_refused(broken_run, tmp_path):
    config, run = broken_run[0], shutil.copytree(broken_run[1], tmp_path / "run")
    damage(run, 5)
    file = damage(run, 10)
    with pytest.raises(UserError, match=f"^{file} is damaged .* no whole checkpoint before it; .* it starts over$"):
        loop.train(config, run)
    with pytest.raises(UserError, match=r"checkpoints/5/state/.* is damaged .*; restore the file, or choose another step$"):
        load_params(run, 5)
    assert Run(run).steps() == [5, 10]


# TensorStore's threads still tell Orbax of other arrays, whose loop is closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_damaged_checkpoint_of_before_there_were_lists_is_named_with_the_one_before_it(broken_run, tmp_path):
    config, run = broken_run[0], shutil.copytree(broken_run[1], tmp_path / "run")
    (run / "checkpoints" / "10" / "files.json").unlink()
    for file in [path for path in (run / "checkpoints" / "10" / "state").rglob("*") if path.is_file()]:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(UserError, match=r"checkpoints/10 cannot be read \(.*\); .*checkpoints/5$"):
        loop.train(config, run)
    with pytest.raises(UserError, match="checkpoints/10 cannot be read"):
        load_params(run)


def test_what_is_not_finite_is_named_by_step_and_examples_and_never_saved(small_config, tmp_path):
    """An update that overflows is found when the host next looks, three steps later and before a checkpoint is due there."""
    overflow = {"optimizer__learning_rate": 1e38, "optimizer__decay": "constant", "optimizer__clip_norm": 0.0}
    config = small_config("gpt", optimizer__warmup_steps=0, train__checkpoint_every=4, **overflow)
    with pytest.raises(Diverged, match=r"not finite at step 1; example ids .*\[\[\d+, \d+\].*last good checkpoint: none yet"):
        loop.train(config, tmp_path)
    assert not (tmp_path / "result.json").exists() and not list((tmp_path / "checkpoints").glob("[0-9]*"))
    text = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in text and "Infinity" not in text


@pytest.mark.slow
def test_a_run_goes_on_with_another_mesh_and_other_writers(small_config, tmp_path):
    """What the optimiser observes is placed on the mesh as its compiled step expects."""
    common = {"train__steps": 8, "train__eval_every": 3, "train__eval_batches": 1}
    straight = loop.train(small_config("awd_lstm", **common), tmp_path / "straight")
    config = small_config("awd_lstm", **common, mesh__fsdp=2)
    break_at(config, tmp_path / "moved", 7)
    moved = loop.train(small_config("awd_lstm", **common, writers="jsonl,tensorboard"), tmp_path / "moved")
    assert moved["data_hash"] == straight["data_hash"]
    assert moved["metrics"]["test"]["loss"] == pytest.approx(straight["metrics"]["test"]["loss"], rel=1e-5)
    assert list((tmp_path / "moved" / "tensorboard").iterdir())


@pytest.mark.slow
def test_a_killed_run_goes_on_with_its_rows_in_other_parts(small_config, tmp_path):
    """Whole rows, from step 2 four parts of each, from step 4 two: the batches are the same, and the losses nearly."""
    common = {"train__steps": 6, "train__log_every": 1, "train__checkpoint_every": 2, "train__eval_batches": 1}
    made = lambda **mesh: small_config("gpt", **common, optimizer__warmup_steps=1, model__heads=4, model__layers=1, **mesh)
    straight = loop.train(made(), tmp_path / "straight")
    break_at(made(), tmp_path / "moved", 3)
    break_at(made(mesh__sequence=4), tmp_path / "moved", 5)
    moved = loop.train(made(mesh__sequence=2, mesh__data=2), tmp_path / "moved")
    assert moved["data_hash"] == straight["data_hash"]
    losses = [[line["loss"] for line in lines_of(tmp_path / name)] for name in ("straight", "moved")]
    # Sums in another order: last bits of float32, which later steps of training make larger.
    np.testing.assert_allclose(*losses, rtol=1e-4)
    assert losses[0] != losses[1], "it was computed otherwise"


@pytest.mark.nightly
@pytest.mark.parametrize("name", [*FAMILIES, "glove"])
def test_every_family_goes_on_on_other_devices(name, small_config, tmp_path, capsys):
    """One device, from step 2 a mesh of eight, from step 4 one again: the batches are the same, and the losses nearly.

    Static vectors learn from rows of text or, for GloVe, of counted pairs.
    """
    recipe = {"static": "skip_gram"}.get(name, name)
    cadence = {"steps": 6, "log_every": 1, "checkpoint_every": 2, "eval_every": 2, "eval_batches": 1}
    settings = {f"train__{key}": value for key, value in cadence.items()} | {"optimizer__warmup_steps": 1}
    model = small_config(recipe).model
    assert model.family == ("static" if name == "glove" else name)
    if "layers" in FAMILIES[model.family].sizes[model.size]:
        settings["model__layers"] = 1
    one = small_config(recipe, **settings)
    eight = small_config(recipe, **settings, mesh__data=2, mesh__fsdp=2, mesh__tensor=2)
    loop.train(one, tmp_path / "one")
    break_at(one, tmp_path / "moved", 3)
    capsys.readouterr()
    break_at(eight, tmp_path / "moved", 5)
    assert "going on with" in (said := capsys.readouterr().out) and "from step 2" in said
    loop.train(one, tmp_path / "moved")
    assert "going on with" in (said := capsys.readouterr().out) and "from step 4" in said
    stayed, moved = lines_of(tmp_path / "one"), lines_of(tmp_path / "moved")
    names = lambda lines: [(line["step"], line["split"], line.get("data_hash"), line.keys()) for line in lines]
    assert names(moved) == names(stayed) and sum("data_hash" in line for line in stayed) == 6
    for expected, found in zip(stayed, moved):
        numbers = {key: value for key, value in expected.items() if isinstance(value, float)}
        # Eight devices add in another order: last bits of float32, which later steps of training make larger.
        assert {key: found[key] for key in numbers} == pytest.approx(numbers, rel=1e-4, abs=1e-6), expected["step"]
    otherwise = any(found["loss"] != expected["loss"] for expected, found in zip(stayed, moved))
    assert otherwise or model.family == "static", "it was computed otherwise; few terms may have the same sum"


def test_metrics_lines_have_the_promised_keys(broken_run):
    lines = [json.loads(line) for line in (broken_run[1] / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["split"]) for line in lines] == [
        (0, "valid"), (4, "train"), (8, "train"), (10, "valid")
    ]  # fmt: skip
    promised = {"step", "split", "loss", "mlm/loss", "mlm/accuracy", "nsp/accuracy", "tokens", "learning_rate"}
    for line in lines:
        assert {*promised, "tokens_per_second"} <= line.keys() and isinstance(line["step"], int)
        assert all(isinstance(v, (int, float, str)) for v in line.values()), "flat"
        assert line["loss"] == pytest.approx(line["mlm/loss"] + line["nsp/loss"])
    environment = json.loads((broken_run[1] / "environment.json").read_text())
    assert {"packages", "devices", "git_commit"} <= environment.keys()
