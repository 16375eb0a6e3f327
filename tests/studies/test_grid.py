"""`--seeds` and `--rates` turn one command into a study."""

import json

import pytest
from conftest import InThisProcess

from bertlab.cli import main
from bertlab.config import flatten
from bertlab.errors import UserError
from bertlab.results import load, summarise
from bertlab.studies import launchers
from bertlab.studies.grid import finetuning_grid, pretraining_grid
from bertlab.studies.selection import selections
from bertlab.studies.sweep import sweep
from tests.references import write_config

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture
def in_this_process(monkeypatch):
    monkeypatch.setattr(launchers, "Local", InThisProcess)


@pytest.mark.slow
def test_seeds_and_rates_of_a_pretraining_are_a_study(in_this_process, small_config, tmp_path):
    """Each seed sets initial values and the order of the text."""
    config = small_config("bert", train__steps=4, evaluate__sentences=0, model__layers=1)
    command = ["train", f"--config={write_config(config, tmp_path / 'config.py')}", f"--workdir={tmp_path}/study"]
    command += ["--seeds=1,2", "--rates=1e-3", "--config.optimizer.clip_norm=0.0", "--config.train.log_every=2"]
    assert main(command) == 0
    results = load(tmp_path / "study")
    assert results.runs["status"].tolist() == ["finished"] * 2
    assert results.runs["seed"].tolist() == ["1", "2"] and results.variants == ["0.001"]
    keys = [flatten(json.loads((of / "config.json").read_text())) for of in sorted((tmp_path / "study").glob("*0.001*"))]
    names = ("seed", "data.seed", "optimizer.learning_rate", "train.log_every", "optimizer.clip_norm")
    assert [tuple(of[name] for name in names) for of in keys] == [(1, 1, 0.001, 2, 0.0), (2, 2, 0.001, 2, 0.0)]
    summary = summarise(results).query("metric == 'mlm/loss' and split == 'valid'")
    assert summary["seeds"].tolist() == [2] and summary["sd"].item() > 0


@pytest.mark.nightly
def test_valid_selects_the_rate_of_fine_tunings(in_this_process, bert_run, words_task, tmp_path):
    settings = {"data.batch_size": 8, "data.seq_len": 16, "optimizer.warmup_steps": 1, "train.steps": 6, "mesh.data": 1}
    arguments = ["--seeds=1,2", "--rates=1e-2,1e-3", *(f"--config.{key}={value}" for key, value in settings.items())]
    assert main(["finetune", f"--run={bert_run}", f"--task={words_task}", f"--workdir={tmp_path}/grid", *arguments]) == 0
    results = load(tmp_path / "grid")
    assert results.runs["status"].tolist() == ["finished"] * 4
    [row] = selections(results).to_dict("records")
    assert row["chosen"].startswith("optimizer.learning_rate=") and (row["seeds"], row["metric"]) == (2, "accuracy")


def test_a_study_is_not_written_into_a_run(small_config, tmp_path):
    file = write_config(small_config("bert"), tmp_path / "config.py")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="run holds a single run"):
        sweep(pretraining_grid(str(file), "1,2"), tmp_path / "run")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--jobs=2"], "--jobs=2"),
        (["--seeds="], "--seeds="),
        (["--seeds=1,2", "--config.seed=3"], "--seeds=1,2 and --config.seed"),
        (["--rates=1e-3", "--config.optimizer.learning_rate=3"], "--rates=1e-3 and --config.optimizer.learning_rate"),
    ],
)
def test_options_without_effect_are_refused(options, named, small_config, tmp_path, capsys):
    file = write_config(small_config("bert"), tmp_path / "config.py")
    assert main(["train", f"--config={file}", f"--workdir={tmp_path}/x", *options]) == 2
    assert f"bertlab train: {named}" in capsys.readouterr().err
    assert main(["finetune", "--run=x", "--task=sst2", f"--workdir={tmp_path}/x", *options]) == 2
    assert f"bertlab finetune: {named}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("axis", "text"),
    [
        ("seeds", "1,x"),
        ("seeds", "1,-2"),
        ("rates", "1e-3,1e-3"),
        *(("rates", f"1e-3,{r}") for r in ("nan", "inf", "0", "-1e-3")),
    ],
)
def test_lists_that_cannot_be_are_refused(axis, text):
    with pytest.raises(UserError, match=f"--{axis}={text}: "):
        finetuning_grid("run", "task", **{axis: text})
