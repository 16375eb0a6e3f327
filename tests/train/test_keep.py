"""Checkpoints along a run: they change nothing of it, outlive a stop, and each can be used."""

import shutil

import jax
import numpy as np
import pytest
import safetensors.numpy

from bertlab.cli import main
from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.studies.doctor import read_facts
from bertlab.train import loop
from bertlab.train.build import begun_from
from bertlab.train.checkpoint import load_params
from bertlab.train.checks import check_config
from bertlab.train.keep import kept_steps
from bertlab.transfer.evaluations import read_evaluations
from bertlab.transfer.load import load
from tests.train.test_resume import assert_same_run, break_at, state_of

EXPORTABLE = {"model__hidden": 64}  # four times the width


@pytest.mark.parametrize(
    ("keep", "steps", "expected"),
    [
        ("", 1000, []),
        ("log", 1000, [10, 20, 50, 100, 200, 500, 1000]),
        ("log", 4000, [10, 20, 50, 100, 200, 500, 1000, 2000, 4000]),
        ("log", 30, [10, 20, 30]),
        ("log", 7, [7]),
        ("1000, 100,4000", 4000, [100, 1000, 4000]),
        ("log,15", 20, [10, 15, 20]),
    ],
)
def test_steps_that_stay(keep, steps, expected):
    assert kept_steps(keep, steps) == expected


@pytest.mark.parametrize(("keep", "named"), [("5,12,21", "step 21"), ("often", "'often'"), ("0", "'0'"), ("1e3", "'1e3'")])
def test_a_step_that_cannot_be_kept_is_refused_before_training(keep, named, small_config):
    with pytest.raises(UserError, match=rf"config\.train\.keep=.*{named}"):
        check_config(small_config("gpt", train__keep=keep))
    check_config(small_config("gpt", train__keep="5,12,20"))


@pytest.fixture(scope="module")
def runs(small_config, tmp_path_factory):
    """(a run without kept steps, the same with some, which was stopped between two of them); do not write to them."""
    directory = tmp_path_factory.mktemp("keep")
    loop.train(small_config("gpt", **EXPORTABLE), directory / "plain")
    config = small_config("gpt", **EXPORTABLE, train__keep="3,7,13", train__keep_checkpoints=1)
    break_at(config, directory / "kept", 8)
    loop.train(config, directory / "kept")
    return directory / "plain", directory / "kept"


@pytest.mark.slow
def test_kept_steps_stay_over_a_stop_and_change_nothing(runs):
    plain, kept = runs
    assert Run(plain).steps() == [15, 20] and Run(kept).steps() == [3, 7, 13, 20]
    assert_same_run(plain, kept, 20)


@pytest.mark.slow
def test_a_checkpoint_is_read_by_its_step(runs):
    _, run = runs
    for step in (3, 7, 13, 20):
        saved = {name: array for name, array in state_of(run, step).items() if name.startswith("['params']")}
        loaded = {f"['params']{jax.tree_util.keystr(path)}": x for path, x in jax.tree.leaves_with_path(load_params(run, step))}
        assert saved.keys() == loaded.keys()
        jax.tree.map(np.testing.assert_array_equal, saved, loaded)
    jax.tree.map(np.testing.assert_array_equal, load(run, 7).params, load_params(run, 7))
    jax.tree.map(np.testing.assert_array_equal, load_params(run, 20), load_params(run))


def test_what_a_step_had_cost_is_recorded(runs):
    _, run = runs
    costs, result = Run(run).costs.read(), Run(run).result.read()
    assert {"3", "7", "13", "20"} <= costs.keys()
    assert costs["20"] == {key: result[key] for key in ("tokens", "supervised", "flops", "seconds")}
    tokens = {int(step): of["tokens"] for step, of in costs.items()}
    lines = {line["step"]: line["tokens"] for line in Run(run).metrics.read() if line["split"] == "train"}
    assert lines[4] < tokens[7] < lines[8] and lines[12] < tokens[13] < lines[16]


def test_a_step_without_a_checkpoint_is_refused_with_those_that_there_are(runs, small_config):
    _, run = runs
    there = r"step 5; it has 3, 7, 13, 20 "
    with pytest.raises(UserError, match=there):
        load_params(run, 5)
    with pytest.raises(UserError, match=there):
        begun_from(small_config("gpt", init_from=str(run), init_step=5))
    with pytest.raises(UserError, match=r"config\.init_step=7 .*config\.init_from"):
        begun_from(small_config("gpt", init_step=7))


def test_a_run_begins_at_a_step_of_another_and_is_told_from_one_that_begins_at_its_end(runs, small_config, tmp_path):
    _, run = runs
    config = small_config("gpt", **EXPORTABLE, train__steps=0, init_from=str(run), init_step=7)
    loop.train(config, tmp_path)
    jax.tree.map(np.testing.assert_array_equal, load_params(tmp_path), load_params(run, 7))
    assert Run(tmp_path).config.read()["init_step"] == 7
    with pytest.raises(UserError, match=r"init_step \(7 there, None given\)"):
        loop.train(small_config("gpt", **EXPORTABLE, train__steps=0, init_from=str(run)), tmp_path)


@pytest.mark.parametrize(("step", "known"), [(7, []), (13, ["ltr"]), (None, ["ltr"])])
def test_an_objective_that_had_no_weight_yet_is_not_asked(step, known, runs):
    """In a curriculum the first checkpoints know nothing of later objectives; here the second begins after step 10."""
    model = load(runs[1], step)
    model.config.objectives.mlm = {"weight": 1.0}
    model.config.train.phases = "0.5 objectives.ltr.weight=0; 0.5 objectives.mlm.weight=0"
    assert list(model._trained) == known


@pytest.fixture
def run(runs, tmp_path):
    """A copy of the run with kept steps."""
    return shutil.copytree(runs[1], tmp_path / "run")


def test_evaluate_keeps_a_file_for_each_step(run, tmp_path):
    (tmp_path / "lines.txt").write_text("The parser reads a file.\nA file holds a grammar.\n")
    command = ["evaluate", f"--run={run}", f"--text={tmp_path / 'lines.txt'}"]
    for step in ("7", "13", "20"):
        assert main([*command, f"--step={step}"]) == 0
    files = {path.name: read_evaluations(path)["bits_per_byte"] for path in run.glob("evaluation*.json")}
    assert set(files) == {"evaluation-7.json", "evaluation-13.json", "evaluation.json"}
    values = [of[str(tmp_path / "lines.txt")]["left-to-right"]["value"] for of in files.values()]
    assert len(set(values)) == 3
    assert main([*command, "--step=5"]) == 2


def test_embed_and_export_read_the_step_that_is_named(run, tmp_path):
    (tmp_path / "lines.txt").write_text("The parser reads a file.\n")
    out = tmp_path / "lines.npz"
    assert main(["embed", f"--run={run}", "--step=7", f"--text={tmp_path / 'lines.txt'}", f"--out={out}"]) == 0
    (expected,), (last,) = (load(run, step).encode(["The parser reads a file."]) for step in (7, None))
    with np.load(out) as file:
        np.testing.assert_array_equal(file["0"], expected.states)
    assert np.abs(expected.states - last.states).max() > 1e-4
    assert main(["export", str(run), "--step=7", "--to=huggingface", str(tmp_path / "exported")]) == 0
    tensors = safetensors.numpy.load_file(tmp_path / "exported" / "model.safetensors")
    table = next(tensor for name, tensor in tensors.items() if name.endswith("tokens_embed.weight"))
    np.testing.assert_array_equal(table, load_params(run, 7)["body"]["token_embedding"])


def test_doctor_judges_what_was_logged_up_to_a_step(run, capsys):
    facts = read_facts(run, 13)
    assert [line["step"] for line in facts.lines] == [0, 4, 8, 10, 12] and facts.result is None
    assert read_facts(run, 20).result == read_facts(run).result is not None
    main(["doctor", str(run), "--step=13"])
    said = capsys.readouterr().out
    assert "judged as it was at step 13" in said and "result.json is missing" not in said
    assert main(["doctor", str(run), "--step=12"]) == 2


def test_finetune_begins_at_a_step_and_records_it(run, words_task, tmp_path, capsys):
    command = ["finetune", f"--run={run}", f"--task={words_task}", f"--workdir={tmp_path / 'tuned'}"]
    command += [f"--config.{setting}" for setting in ("train.steps=0", "data.seq_len=16", "mesh.data=1")]
    assert main([*command, "--step=5"]) == 2
    assert "it has 3, 7, 13, 20" in capsys.readouterr().err
    assert main([*command, "--step=7"]) == 0
    tuned, expected = load_params(tmp_path / "tuned")["body"], load_params(run, 7)["body"]
    jax.tree.map(np.testing.assert_array_equal, tuned, {name: expected[name] for name in tuned})
    assert Run(tmp_path / "tuned").config.read()["init_step"] == 7
    assert main(command) == 2, "another step is another fine-tuning"
    assert "init_step (7 there, None given)" in capsys.readouterr().err
    assert main([*command, "--step=7", "--config.init_step=3"]) == 2
    assert main([*command, "--step=7", "--config.transfer.random=True"]) == 2
