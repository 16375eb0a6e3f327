"""ULMFiT's second and third stage: pretraining goes on on a task's own text, then the classifier is thawed layer by layer."""

import json
import re
import shutil

import numpy as np
import pytest

from bertlab.errors import UserError
from bertlab.train.checkpoint import load_params
from bertlab.transfer.adapt import adapt, adaptation_config
from bertlab.transfer.evaluate import evaluate
from bertlab.transfer.evaluations import TEST_SPLIT
from bertlab.transfer.finetune import finetune
from tests.transfer.runs import fresh_run

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def run(small_config, tmp_path_factory):
    """The directory of an AWD-LSTM."""
    settings = {"data__seq_len": 16, "model__width": 12, "model__hidden": 16, "model__layers": 2, "evaluate__sentences": 0}
    config = small_config("awd_lstm", **settings, optimizer__average_after=0, train__steps=2)
    return fresh_run(config, tmp_path_factory.mktemp("run") / "run")


def test_language_model_then_classifier(run, words_task, tmp_path, capsys):
    overrides = {"train.steps": "10", "data.valid_fraction": 0.2, "data.test_fraction": 0.2, "data.seq_len": 8}
    overrides |= {"data.workers": 1, "data.batch_size": 2, "train.eval_batches": 1, "mesh.data": 1}
    result = adapt(run, words_task, tmp_path / "adapted", overrides, recipe="ulmfit")
    assert result["step"] == 10
    texts = [json.loads(line)["text"] for line in (tmp_path / "adapted" / "task_text.jsonl").read_text().splitlines()]
    assert 150 < len(texts) < 170, "the examples for selection and test are not read"
    assert all(re.fullmatch(r"(the value of object|not a module) \d+ (is here|to import)", text) for text in texts), "no labels"
    config = json.loads((tmp_path / "adapted" / "config.json").read_text())
    assert (config["optimizer"]["decay"], config["model"]["width"]) == ("slanted_triangular", 12)
    ours, theirs = load_params(tmp_path / "adapted")["body"], load_params(run)["body"]
    moved = {name: np.abs(ours[name]["input_kernel"] - theirs[name]["input_kernel"]).max() for name in ("layer_0", "layer_1")}
    assert 0 < moved["layer_0"] < moved["layer_1"], "the lower layer goes by 1/2.6 of the rate above"
    assert adapt(run, words_task, tmp_path / "adapted", overrides, recipe="ulmfit") == result
    [(kind, bits)] = evaluate(tmp_path / "adapted", limit=2)["bits_per_byte"][TEST_SPLIT].items()
    assert kind == "left-to-right" and bits["value"] > 0, "its objectives are those of the run, not of its task"

    capsys.readouterr()
    overrides = {"data.seq_len": 16, "data.batch_size": 16, "train.steps": 40, "mesh.data": 1, "head.chunk": 8}
    finetune(tmp_path / "adapted", words_task, tmp_path / "classifier", overrides, "ulmfit")
    stages = [line for line in capsys.readouterr().out.splitlines() if line.startswith("steps ")]
    steps = [re.match(r"steps (\d+) to (\d+)", line).groups() for line in stages]
    assert steps == [("0", "9"), ("10", "19"), ("20", "29"), ("30", "39")], "an epoch each"
    assert [line.count("layer") for line in stages] == [0, 1, 2, 2] and "embeddings" in stages[3]


def test_settings_of_the_task_are_its_own(run, words_task, tmp_path):
    overrides = {"train.steps": "0", "data.valid_fraction": 0.2, "data.test_fraction": 0.2, "data.seq_len": 8}
    overrides |= {"data.workers": 1, "data.batch_size": 2, "mesh.data": 1, "task_data.limit": "40"}
    adapt(run, words_task, tmp_path / "adapted", overrides)
    assert len((tmp_path / "adapted" / "task_text.jsonl").read_text().splitlines()) == 40
    assert json.loads((tmp_path / "adapted" / "config.json").read_text())["task_data"]["limit"] == 40
    with pytest.raises(UserError, match=r"task_text\.jsonl .*--workdir"):
        adapt(run, words_task, tmp_path / "adapted", overrides | {"task_data.limit": "30"})
    with pytest.raises(UserError, match=r"task_data.limit"):
        adapt(run, words_task, tmp_path / "other", overrides | {"task_data.limit": "few"})


def test_warm_up_is_the_share_that_it_was(run, words_task, tmp_path):
    """The run's own is of thousands of steps, and a task's text is read in tens."""
    few = shutil.copytree(run, tmp_path / "few")
    config = json.loads((few / "config.json").read_text())
    config["train"]["steps"], config["optimizer"]["warmup_steps"] = 4000, 200
    (few / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"warmup_steps=90 .*config.train.steps="):
        adapt(few, words_task, tmp_path / "out", {"optimizer.warmup_steps": 90})
    assert not (tmp_path / "out").exists(), "no text is left of what was refused"
    adapted, _ = adaptation_config(few, words_task, tmp_path / "out", {}, "same", 3.0, config)
    assert adapted.train.steps > 20 and adapted.optimizer.warmup_steps == int(0.05 * adapted.train.steps) > 0
    config["optimizer"]["warmup_steps"] = 2000  # half of its steps
    adapted, _ = adaptation_config(few, words_task, tmp_path / "out", {}, "same", 3.0, config)
    assert adapted.optimizer.warmup_steps == int(0.1 * adapted.train.steps) > 0, "a tenth at most"


def test_wrong_requests_are_refused(run, words_task, tmp_path):
    with pytest.raises(UserError, match=r"recipe 'bert' is not known; choose one of same, ulmfit, fitlam"):
        adapt(run, words_task, tmp_path / "out", {}, "bert")
    with pytest.raises(UserError, match=r"no config\.json"):
        adapt(tmp_path, words_task, tmp_path / "out")
    with pytest.raises(UserError, match=r"config has no key 'data.lenght'"):
        adapt(run, words_task, tmp_path / "out", {"data.lenght": 5})
