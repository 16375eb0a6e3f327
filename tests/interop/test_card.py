"""The card of an export has the run's hash, config and scores: at the last step and at an earlier one."""

import json
import re

import jax
import numpy as np
import pytest

from bertlab.interop import export_weights
from bertlab.interop.base import load_run, save_imported
from bertlab.run import Run
from tests.interop import published


def rows(card: str) -> list[list[str]]:
    """The cells of all tables."""
    return [line.strip("| ").split(" | ") for line in card.splitlines() if line.startswith("|")]


def trained(directory, **model) -> Run:
    """A run of two steps with a fine-tuning and an evaluation, as its files say."""
    save_imported(published.random_run(directory.parent / "bert", layers=1, **model), directory, "huggingface", "there")
    run = Run(directory)
    run.imported.delete()
    (run.checkpoints / "0").rename(run.checkpoints / "2")
    lines = [
        {"step": step, "split": split, "tokens": 100 * step, "data_hash": f"hash{step}", "mlm/loss": 5.0 - step}
        for step in (1, 2)
        for split in ("train", "valid")
    ]
    run.metrics.write("".join(json.dumps(line) + "\n" for line in lines))
    metrics = {"valid": {"loss": 3.0, "mlm/loss": 3.0}, "test": {"loss": 3.25, "mlm/loss": 3.25, "mlm/accuracy": 0.5}}
    run.result.write({"step": 2, "tokens": 200, "flops": 1.5e9, "data_hash": "hash2", "metrics": metrics})
    run.data.write({"corpus": {"fingerprint": "f1"}})
    run.stage("finetune", "sst2").result.write({"metrics": {"valid": {"sst2/accuracy": 0.875}}})
    entry, bound = ({"value": value, "standard_error": 0.1} for value in (1.5, 2.25))
    babylm = {"wug_past": {"pseudo": {"score": -0.25, "standard_error": None}}}
    run.evaluation.write({"bits_per_byte": {"test split": {"pseudo": entry, "any-order": bound}}, "babylm": babylm})
    return run


def test_hash_config_and_scores_of_the_last_step(tmp_path):
    run = trained(tmp_path / "run", norm_placement="pre")
    export_weights("huggingface", run.directory, tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    found = rows(card)
    for row in (["step", "2"], ["tokens", "200"], ["hash of the batches (`data_hash`)", "hash2"]):
        assert row in found, row
    assert ["fingerprint of the prepared corpus", "f1"] in found
    scores = [row for row in found if len(row) == 4][2:]
    assert scores == [
        ["mlm", "valid", "loss", "3"],
        ["mlm", "test", "loss", "3.25"],
        ["mlm", "test", "accuracy", "0.5"],
        ["sst2", "valid", "accuracy", "0.875"],
        ["bits per byte (pseudo)", "test split", "mean", "1.5"],
        ["bits per byte (any-order)", "test split", "mean", "≤ 2.25"],
        ["babylm (pseudo)", "wug_past", "mean", "-0.25"],
    ]
    (config,) = re.findall(r"```json\n(.*)\n```", card, re.S)
    assert json.loads(config) == json.loads(json.dumps(run.config.read()))
    assert card.startswith("---\nlibrary_name: transformers\ntags: [bertlab, bert, mlm]\n---\n")
    assert "trust_remote_code=True" in card
    count = sum(np.size(leaf) for leaf in jax.tree.leaves(load_run(run.directory).params))
    assert f"{count:,} parameters" in card


def test_an_earlier_step_and_transformers_own_class(tmp_path):
    run = trained(tmp_path / "run")
    (run.checkpoints / "2").rename(run.checkpoints / "1")
    export_weights("huggingface", run.directory, tmp_path / "out", step=1)
    card = (tmp_path / "out/README.md").read_text()
    assert ["hash of the batches (`data_hash`)", "hash1"] in rows(card) and "sst2" not in card
    assert [row for row in rows(card) if len(row) == 4][2:] == [["mlm", "valid", "loss", "4"]]
    assert "trust_remote_code" not in card


@pytest.mark.parametrize("step", [None, 4])
def test_a_run_that_was_stopped_between_two_log_lines(step, tmp_path):
    """Its weights are the last checkpoint's, and so are the step and the tokens: costs.json has those of each checkpoint."""
    run = trained(tmp_path / "run")
    run.result.delete()
    (run.checkpoints / "2").rename(run.checkpoints / "4")
    run.costs.write({str(n): {"tokens": n * 111, "supervised": 1, "flops": n * 1e9, "seconds": 1.0} for n in (2, 4)})
    export_weights("huggingface", run.directory, tmp_path / "out", step=step)
    found = rows((tmp_path / "out/README.md").read_text())
    steps = run.config.read()["train"]["steps"]
    for row in (["step", "4"], ["tokens", "444"], ["FLOPs", "4e+09"], ["the run", f"unfinished: 4 of {steps:,} steps"]):
        assert row in found, row
    assert not any("data_hash" in cell or cell == "mlm" for row in found for cell in row), "none was written at this step"


@pytest.mark.parametrize(
    "objectives, direction, opens, classes, back_ends, fills",
    [
        ("mlm", "bidirectional", "MaskedLM", {"MaskedLM"}, {"mlm"}, True),
        ("ltr", "left-to-right", "CausalLM", {"CausalLM"}, {"causal"}, False),
        ("prefix", "bidirectional", "CausalLM", {"CausalLM"}, {"causal"}, False),
        ("masked_next_token", "bidirectional", "CausalLM", {"MaskedLM", "CausalLM"}, {"mntp", "causal"}, False),
        ("mlm+prefix", "bidirectional", "MaskedLM", {"MaskedLM", "CausalLM"}, {"mlm", "causal"}, True),
        ("permutation", "bidirectional", "", set(), set(), False),
        ("span_corruption", "bidirectional", "", set(), set(), False),
    ],
)
def test_it_says_how_the_model_predicts(objectives, direction, opens, classes, back_ends, fills, tmp_path):
    """Its example opens the class that predicts so; a class or back end that was not trained is not named."""
    run = published.random_run(tmp_path / "bert", objectives=objectives, direction=direction, layers=1)
    save_imported(run, tmp_path / "run", "huggingface", "there")
    export_weights("huggingface", tmp_path / "run", tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    (model,) = re.findall(r"^model = AutoModel(?:For)?(\w*)\.from_pretrained", card, re.M)
    assert model == opens
    said = card.partition("## How it predicts")[2].partition("## Training")[0]
    assert set(re.findall(r"`AutoModelFor(\w+)`", said)) == classes
    assert set(re.findall(r"back end `(\w+)`", said)) == back_ends
    assert ("fill-mask" not in said) == (fills or not run.ways())
    assert ("one position before a [MASK]" in said) == ("mntp" in back_ends)
    assert said.strip()


def test_a_fine_tuned_run_has_a_card_too(tmp_path):
    run = trained(tmp_path / "run", norm_placement="pre")
    config = run.config.read()
    run.config.write(config | {"task": "sst2", "data": {"seq_len": 48, "batch_size": 16}})
    export_weights("huggingface", run.directory, tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    assert ["fine-tuned on", "sst2"] in rows(card) and "need the task's head, which is not in this export" in card
