"""Fine-tunings side by side in one program are those that each would be alone, but for rounding."""

import json
import time

import jax
import numpy as np
import pytest

from bertlab.cli import main
from bertlab.errors import UserError
from bertlab.studies import grid as grid_module
from bertlab.studies.grid import grid
from bertlab.studies.results import load
from bertlab.studies.selection import selections
from bertlab.train.checkpoint import load_params
from bertlab.transfer import replicas
from bertlab.transfer.finetune import finetune, finetune_config, overridden
from bertlab.transfer.replicas import finetune_replicas

pytestmark = pytest.mark.usefixtures("quick_compilation")


SETTINGS = {"data.batch_size": 8, "data.seq_len": 16, "optimizer.warmup_steps": 1, "train.steps": 6, "mesh.data": 1}
SETTINGS |= {"train.log_every": 3, "optimizer.layer_decay": 0.5}


def lines_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_each_is_the_run_that_it_would_be_alone(bert_run, words_task, tmp_path):
    of_runs = [{"seed": seed, "optimizer.learning_rate": rate} for seed, rate in ((1, 1e-3), (2, 1e-3), (2, 5e-3))]
    configs = [overridden(finetune_config(bert_run, words_task), SETTINGS | own) for own in of_runs]
    workdirs = [tmp_path / str(i) for i in range(3)]
    together = finetune_replicas(configs, workdirs)
    for own, workdir in zip(of_runs, workdirs):
        alone = finetune(bert_run, words_task, tmp_path / "alone" / workdir.name, SETTINGS | own)
        assert together[workdir] == json.loads((workdir / "result.json").read_text())
        for key in ("step", "parameters", "tokens", "data_hash"):
            assert together[workdir][key] == alone[key], key
        ours, theirs = lines_of(workdir), lines_of(tmp_path / "alone" / workdir.name)
        assert [(line["step"], line["split"]) for line in ours] == [(line["step"], line["split"]) for line in theirs]
        for line, expected in zip(ours, theirs):
            for key in ("words/loss", "words/accuracy", "learning_rate", "gradient_norm"):
                assert line.get(key, 0) == pytest.approx(expected.get(key, 0), rel=2e-4), (line["step"], line["split"], key)
        # Sums in another order differ in the last digits, which Adam's first steps enlarge where gradients are small.
        for ours, theirs in zip(*map(jax.tree.leaves, map(load_params, (workdir, tmp_path / "alone" / workdir.name)))):
            np.testing.assert_allclose(ours, theirs, atol=2e-4)
        read = lambda path: [json.loads(line) for line in (path / "predictions" / "test.jsonl").read_text().splitlines()]
        assert [line["id"] for line in read(workdir)] == [line["id"] for line in read(tmp_path / "alone" / workdir.name)]
    losses = [lines_of(workdir)[-1]["words/loss"] for workdir in workdirs]
    assert len(set(losses)) == 3, "seeds and rates do differ"
    assert finetune_replicas(configs, workdirs) == together


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


def test_their_time_is_without_compilation(bert_run, words_task, tmp_path, monkeypatch):
    def slowly(lowered):
        time.sleep(5)
        return lowered.compile()

    monkeypatch.setattr(replicas, "compiled", slowly)
    configs = [overridden(finetune_config(bert_run, words_task), SETTINGS | {"train.steps": 2, "seed": n}) for n in (1, 2)]
    together = finetune_replicas(configs, [tmp_path / "a", tmp_path / "b"])
    assert all(0 < result["seconds"] < 5 for result in together.values())


def test_on_an_accelerator_they_go_together_unless_jobs_or_buckets_are_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(grid_module, "train_together", lambda *_: "together")
    monkeypatch.setattr(grid_module, "sweep", lambda *_: "apart")
    monkeypatch.setattr(grid_module, "Local", lambda jobs: None)
    ask = lambda **asked: grid("run", "task", tmp_path, "1,2", **asked)
    assert ask() == ask(together=True, jobs=2) == "together"
    assert ask(jobs=2) == ask(overrides={"data.buckets": (8, 16)}) == ask(together=False) == "apart"


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
