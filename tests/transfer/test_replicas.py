"""Runs side by side in one program are those that each would be alone, but for rounding."""

import io
import json
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from rich.console import Console

from bertlab.cli import main
from bertlab.config import flatten
from bertlab.errors import UserError
from bertlab.studies import grid as grid_module
from bertlab.studies.grid import grid
from bertlab.studies.measurements import load
from bertlab.studies.seeds import summarise
from bertlab.studies.selection import selections
from bertlab.studies.sweep import lock_directory
from bertlab.train import replicas
from bertlab.train.checkpoint import load_params, save_params
from bertlab.transfer.finetune import finetune, finetune_config, overridden
from bertlab.transfer.pretrain import pretrain
from bertlab.transfer.replicas import finetune_replicas, pretrain_replicas
from tests.references import write_config
from tests.train.test_resume import break_at

pytestmark = pytest.mark.usefixtures("quick_compilation")


SETTINGS = {"data.batch_size": 8, "data.seq_len": 16, "optimizer.warmup_steps": 1, "train.steps": 6, "mesh.data": 1}
SETTINGS |= {"train.log_every": 3, "optimizer.layer_decay": 0.5}


def lines_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_same_run(ours, alone):
    """But for the metrics of the result, which are its last lines'."""
    result, expected = (json.loads((run / "result.json").read_text()) for run in (ours, alone))
    for key in ("step", "parameters", "tokens", "supervised", "flops", "data_hash"):
        assert result[key] == expected[key], key
    lines, lines_alone = lines_of(ours), lines_of(alone)
    assert [(line["step"], line["split"]) for line in lines] == [(line["step"], line["split"]) for line in lines_alone]
    for line, of_alone in zip(lines, lines_alone):
        assert line.keys() == of_alone.keys()
        for key in line.keys() - {"split", "seconds", "tokens_per_second"}:
            if isinstance(line[key], str):
                assert line[key] == of_alone[key]
            else:
                assert line[key] == pytest.approx(of_alone[key], rel=2e-4, abs=1e-6), (line["step"], line["split"], key)
    # Sums in another order differ in the last digits, which Adam's first steps enlarge where gradients are small.
    for one, other in zip(*map(jax.tree.leaves, map(load_params, (ours, alone))), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)


def test_each_is_the_run_that_it_would_be_alone(bert_run, words_task, tmp_path):
    of_runs = [{"seed": seed, "optimizer.learning_rate": rate} for seed, rate in ((1, 1e-3), (2, 1e-3), (2, 5e-3))]
    configs = [overridden(finetune_config(bert_run, words_task), SETTINGS | own) for own in of_runs]
    workdirs = [tmp_path / str(i) for i in range(3)]
    together = finetune_replicas(configs, workdirs)
    for own, workdir in zip(of_runs, workdirs):
        finetune(bert_run, words_task, tmp_path / "alone" / workdir.name, SETTINGS | own)
        assert together[workdir] == json.loads((workdir / "result.json").read_text())
        assert_same_run(workdir, tmp_path / "alone" / workdir.name)
        read = lambda path: [json.loads(line) for line in (path / "predictions" / "test.jsonl").read_text().splitlines()]
        assert [line["id"] for line in read(workdir)] == [line["id"] for line in read(tmp_path / "alone" / workdir.name)]
    losses = [lines_of(workdir)[-1]["words/loss"] for workdir in workdirs]
    assert len(set(losses)) == 3, "seeds and rates do differ"
    assert finetune_replicas(configs, workdirs) == together


PRETRAININGS = {
    "bert": {"train__micro_batches": 2},
    "elmo": {},
    "awd_lstm": {"data__stream__vary_length": False, "optimizer__average_after": 0},
    "modern": {"data__pack_length": 64, "data__pack_examples": 4, "optimizer__name": "muon"},
    "glove": {},
}


@pytest.mark.parametrize("recipe", PRETRAININGS)
def test_each_is_the_pretraining_that_it_would_be_alone(recipe, small_config, tmp_path):
    few = {"train__steps": 6, "train__log_every": 3, "train__eval_every": 3, "evaluate__sentences": 2}
    of_runs = [
        {"seed": seed, "data.seed": order, "optimizer.learning_rate": r} for seed, order, r in ((1, 1, 1e-3), (2, 3, 2e-3))
    ]
    configs = []
    for own in of_runs:
        config = small_config(recipe, **few, **PRETRAININGS[recipe])
        config.update_from_flattened_dict(own)
        configs.append(config)
    workdirs = [tmp_path / "1", tmp_path / "2"]
    workdirs[0].mkdir()
    save_params(workdirs[0], {"of": np.zeros(3)})  # as one that was killed before its result was written
    (workdirs[0] / "failed.txt").write_text("error: of an earlier try\n")
    (workdirs[0] / "metrics.jsonl").write_text('{"step": 3, "split": "train"}\n')
    together = pretrain_replicas(configs, workdirs)
    seconds = [together[workdir]["seconds"] for workdir in workdirs]
    assert seconds[0] == seconds[1] > 0, "each has its share"
    for config, workdir in zip(configs, workdirs):
        alone = tmp_path / "alone" / workdir.name
        pretrain(config, alone)
        assert_same_run(workdir, alone)
        names = lambda run: {path.name for path in run.iterdir()}
        assert names(workdir) == names(alone)
    assert together[workdirs[0]]["data_hash"] != together[workdirs[1]]["data_hash"]
    assert pretrain_replicas(configs, workdirs) == together


def test_seeds_of_a_pretraining_are_a_study_by_one_command(small_config, tmp_path, capsys):
    config = small_config("bert", train__steps=4, evaluate__sentences=0)
    command = ["train", f"--config={write_config(config, tmp_path / 'config.py')}", f"--workdir={tmp_path}/study"]
    command += ["--seeds=1,2", "--rates=1e-3,1e30", "--together=yes", "--config.optimizer.clip_norm=0.0"]
    assert main([*command, "--config.train.log_every=2"]) == 1
    shown = capsys.readouterr().out
    assert "2 of 4 runs are finished" in shown and shown.count("failed: optimizer.learning_rate=1e+30") == 2
    results = load(tmp_path / "study")
    assert results.runs["status"].tolist() == ["finished"] * 2 + ["failed"] * 2
    assert results.runs["seed"].tolist() == ["1", "2"] * 2
    assert results.variants == ["0.001", "1e+30"]
    assert results.runs["error"].str.contains("is not finite at step").tolist() == [False, False, True, True]
    keys = [flatten(json.loads((of / "config.json").read_text())) for of in sorted((tmp_path / "study").glob("*0.001*"))]
    assert [(of["seed"], of["data.seed"], of["train.log_every"], of["optimizer.clip_norm"]) for of in keys] == [
        (1, 1, 2, 0.0),
        (2, 2, 2, 0.0),
    ]


def test_a_grid_is_a_study_and_one_that_diverges_does_not_stop_the_others(bert_run, words_task, tmp_path, capsys):
    overrides = {**SETTINGS, "optimizer.clip_norm": 0.0, "optimizer.weight_decay": 0.0}
    arguments = ["--seeds=1,2", "--rates=1e-2,1e30", "--together=yes", *(f"--config.{k}={v}" for k, v in overrides.items())]
    assert main(["finetune", f"--run={bert_run}", f"--task={words_task}", f"--workdir={tmp_path}/grid", *arguments]) == 1
    assert "2 of 4 runs are finished" in capsys.readouterr().out
    results = load(tmp_path / "grid")
    assert results.runs["status"].tolist() == ["finished"] * 2 + ["failed"] * 2
    assert results.runs["error"].str.contains("is not finite").tolist() == [False, False, True, True]
    [row] = selections(results).to_dict("records")
    assert (row["chosen"], row["seeds"], row["metric"]) == ("optimizer.learning_rate=0.01", 2, "words/accuracy")


def test_a_run_that_has_begun_alone_is_not_begun_again_with_others(small_config, tmp_path):
    configs = [small_config("bert", seed=seed, model__layers=1) for seed in (1, 2)]
    break_at(configs[0], tmp_path / "a", 11)
    with pytest.raises(UserError, match=r"a has reached step 10 by itself, and .* begin at 0; set --together=no"):
        pretrain_replicas(configs, [tmp_path / "a", tmp_path / "b"])
    assert not (tmp_path / "b").exists()


def test_parameters_are_not_saved_below_a_later_step(tmp_path):
    with ocp.CheckpointManager(tmp_path / "checkpoints") as manager:
        manager.save(7, args=ocp.args.StandardSave({"x": np.zeros(2)}))
    with pytest.raises(UserError, match="has a later step than 0, beside which parameters are not saved"):
        save_params(tmp_path, {"x": np.ones(2)})


def test_only_one_is_at_work_on_a_study(small_config, tmp_path):
    file = write_config(small_config("bert"), tmp_path / "config.py")
    (tmp_path / "study").mkdir()
    with lock_directory(tmp_path / "study", Console(file=io.StringIO())):
        with pytest.raises(UserError, match="another sweep is at work here"):
            grid_module.pretraining_grid(str(file), tmp_path / "study", "1,2", together=True)


def test_a_study_is_not_written_into_a_run(small_config, tmp_path):
    file = write_config(small_config("bert"), tmp_path / "config.py")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    for together in (True, False):
        with pytest.raises(UserError, match="run holds a single run, and a study is to be written there"):
            grid_module.pretraining_grid(str(file), tmp_path / "run", "1,2", together=together)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--together=yes"], "--together and --jobs are of several runs; add --seeds=1,2,3"),
        (["--jobs=2"], "--together and --jobs are of several runs"),
        (["--seeds="], "--seeds=: expected numbers joined by commas"),
        (["--seeds=1,2", "--config.seed=3"], "--seeds=1,2 and --config.seed set the same key"),
        (["--rates=1e-3", "--config.optimizer.learning_rate=3"], "--rates=1e-3 and --config.optimizer.learning_rate set the"),
    ],
)
def test_options_without_effect_are_refused(options, message, small_config, tmp_path, capsys):
    file = write_config(small_config("bert"), tmp_path / "config.py")
    assert main(["train", f"--config={file}", f"--workdir={tmp_path}/x", *options]) == 2
    assert f"bertlab train: {message}" in capsys.readouterr().err
    assert main(["finetune", "--run=x", "--task=sst2", f"--workdir={tmp_path}/x", *options]) == 2
    assert f"bertlab finetune: {message}" in capsys.readouterr().err


def test_seeds_alone_are_of_one_variant(small_config, tmp_path):
    file = write_config(small_config("bert", train__steps=3, evaluate__sentences=0), tmp_path / "tiny.py")
    assert grid_module.pretraining_grid(str(file), tmp_path / "study", "1,2", together=True) == 0
    results = load(tmp_path / "study")
    assert results.variants == ["tiny"]
    [row] = summarise(results).query("split == 'valid' and metric == 'mlm/loss'").to_dict("records")
    assert row["seeds"] == 2 and row["sd"] > 0


def test_their_time_is_a_share_of_the_programs_without_compilation(bert_run, words_task, tmp_path, monkeypatch):
    def slowly(lowered):
        time.sleep(5)
        return lowered.compile()

    advance = replicas._Session.advance
    monkeypatch.setattr(replicas, "compiled", slowly)
    monkeypatch.setattr(replicas._Session, "advance", lambda session: (time.sleep(2), advance(session)))
    configs = [overridden(finetune_config(bert_run, words_task), SETTINGS | {"train.steps": 2, "seed": n}) for n in (1, 2)]
    together = finetune_replicas(configs, [tmp_path / "a", tmp_path / "b"])
    assert all(2 < result["seconds"] < 4 for result in together.values()), "half of two steps' 4 s and what they take besides"


def test_on_an_accelerator_they_go_together_unless_it_cannot_be(bert_run, words_task, small_config, monkeypatch, tmp_path):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(grid_module, "train_together", lambda *_: "together")
    monkeypatch.setattr(grid_module, "sweep", lambda *_: "apart")
    monkeypatch.setattr(grid_module, "Local", lambda jobs: None)
    ask = lambda **asked: grid(bert_run, words_task, tmp_path, "1,2", **asked)
    assert ask() == ask(together=True, jobs=2) == "together"
    assert ask(jobs=2) == ask(overrides={"data.buckets": (8, 16)}) == ask(together=False) == "apart"
    config = str(write_config(small_config("bert"), tmp_path / "config.py"))
    pretrainings = lambda *argv: grid_module.pretraining_grid(config, tmp_path, "1,2", argv=argv)
    assert pretrainings() == "together"
    for apart in ("train.budget=tokens=1e6", "profile=2", "train.phases=0.5 data.seq_len=16; 0.5 data.seq_len=32"):
        assert pretrainings(f"--config.{apart}") == "apart"


def test_wrong_requests_are_refused(bert_run, words_task, tmp_path):
    configs = [overridden(finetune_config(bert_run, words_task), SETTINGS | {"train.steps": n}) for n in (3, 4)]
    with pytest.raises(UserError, match=r"config.train.steps is 3 in one run and 4 in another"):
        finetune_replicas(configs, [tmp_path / "a", tmp_path / "b"])
    average = [overridden(finetune_config(bert_run, words_task), SETTINGS | {"optimizer.average_after": 3})] * 2
    with pytest.raises(UserError, match=r"config.optimizer.average_after=3: .*--together=no"):
        finetune_replicas(average, [tmp_path / "a", tmp_path / "b"])
    for axis, text, message in (
        ("seeds", "1,x", "expected numbers"),
        ("seeds", "1,-2", "-2 is below 0"),
        ("rates", "1e-3,1e-3", "there twice"),
        *(("rates", f"1e-3,{rate}", "should be finite and above 0") for rate in ("nan", "inf", "0", "-1e-3")),
    ):
        with pytest.raises(UserError, match=f"--{axis}={text}: .*{message}"):
            grid(bert_run, words_task, tmp_path / "grid", **{axis: text})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table.tsv", "words.py"]
