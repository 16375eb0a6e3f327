"""The benchmark's rival does the work that ours does: the same rows, the same predictions, a loss that falls."""

import itertools
import json
import math

import numpy as np
import pytest
import torch

from bertlab.bench import ours, rival
from bertlab.bench.workloads import Workload
from bertlab.data.tokenizers import load_tokenizer

WORDS = {"data.tokenizer.kind": "wordpiece", "data.tokenizer.lowercase": True}
SMALL = {"data.batch_size": 4, "data.seq_len": 32, "model.width": 16, "model.hidden": 24}
BERT = "bert.py:size=tiny,objectives=mlm+nsp"
MASKED = "bert.py:size=tiny,objectives=mlm"
CAUSAL = "bert.py:size=tiny,objectives=ltr"
RECIPES = {
    BERT: SMALL | {"objectives.mlm.max_predictions": 5},
    MASKED: SMALL | {"data.format": "full_sentences", "objectives.mlm.max_predictions": 5},
    CAUSAL: SMALL | {"data.format": "full_sentences", "model.direction": "left-to-right"},
    "gpt.py:size=tiny": SMALL,
    "awd_lstm.py:size=tiny": SMALL | {"data.stream.vary_length": False},
    "elmo.py:size=tiny": SMALL,
}

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(params=RECIPES)
def work(request, small_overrides, tmp_path):
    """A small workload and the directory of its examples."""
    settings = {**small_overrides, **RECIPES[request.param]}
    workload = Workload("small", "", "cpu", "step", request.param, settings)
    ours.write_examples(workload, str(tmp_path), count=2)
    return workload, tmp_path


# torch says so at every backward pass of ELMo's.
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")
def test_as_many_predictions_at_a_loss_of_chance_that_falls(work):
    workload, path = work
    steps = rival.TrainingSteps(workload, str(path), "eager")
    with np.load(path / "rows.npz") as rows:
        rows = dict(rows)
    if "masked_weights" in rows:
        expected = (rows["masked_weights"] > 0).sum()
        chance = math.log(400) + (math.log(2) if workload.recipe == BERT else 0)
    elif "next_tokens" in rows:
        expected, chance = (rows["next_tokens"] >= 0).sum(), math.log(400)
    else:
        same = (rows["documents"][..., 1:] == rows["documents"][..., :-1]) & (rows["documents"][..., 1:] > 0)
        expected, chance = same.sum(), math.log(400)
    labels = [steps.batches[name] for name in ("labels", "next", "previous") if name in steps.batches]
    asked = [int((x != -100).sum()) for x in labels]
    if "input_ids" in steps.batches and len(steps.batches) == 2:  # transformers shifts labels itself, over documents' ends too
        assert asked[0] == (rows["documents"] > 0).sum()
    else:
        assert set(asked) == {expected}

    def loss() -> float:
        """Of the first batch, without dropout, whose noise is more than what so few steps gain."""
        steps.model.eval()
        found = steps.loss({name: x[0] for name, x in steps.batches.items()}).item() / len(labels)
        steps.model.train()
        return found

    first = loss()
    # ELMo's output layer begins with torch's own values, and AWD-LSTM's penalties are small at first.
    assert first == pytest.approx(chance, rel=0.25)
    found = steps.round(30)
    assert loss() < first - 0.01 and found["positions"] == 30 * 4 * 32
    assert found["tokens"] == 15 * (rows["documents"] > 0).sum()


def test_a_left_to_right_rival_sees_nothing_that_it_predicts(small_overrides, tmp_path):
    workload = Workload("small", "", "cpu", "step", CAUSAL, {**small_overrides, **RECIPES[CAUSAL]})
    ours.write_examples(workload, str(tmp_path), count=2)
    model = rival.TrainingSteps(workload, str(tmp_path), "eager").model.eval()
    tokens = torch.arange(5, 37)[None]
    changed = tokens.clone()
    changed[0, 20] = 4
    before, after = (model(x).logits for x in (tokens, changed))
    same = torch.isclose(before, after, atol=1e-6).all(-1)[0]
    assert same[:20].all() and not same[20:].any()


@pytest.mark.parametrize("recipe", [BERT, MASKED])
def test_a_gathered_head_asks_the_same(recipe, small_overrides, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: function)
    workload = Workload("small", "", "cpu", "step", recipe, {**small_overrides, **RECIPES[recipe]})
    ours.write_examples(workload, str(tmp_path), count=2)
    plain, gathered = (rival.TrainingSteps(workload, str(tmp_path), side) for side in ("eager", "gathered"))
    gathered.model.load_state_dict(plain.model.state_dict())
    losses = []
    for steps in (plain, gathered):
        steps.model.eval()
        losses += [steps.loss({name: x[1] for name, x in steps.batches.items()}).item()]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def small(small_overrides, kind: str, **more) -> Workload:
    return Workload("small", "", "cpu", kind, BERT, {**small_overrides, **SMALL, **WORDS, **more})


def test_both_make_rows_of_the_same_tokens(small_overrides, tmp_path):
    workload = small(small_overrides, "prepare")
    ours.write_text(workload, str(tmp_path), size=200_000)
    side = rival.Preparation(workload, str(tmp_path), "eager")
    texts = [json.loads(line)["text"] for line in (tmp_path / "text.jsonl").read_text().splitlines()]
    mine = load_tokenizer(tmp_path / "tokenizer").encode_batch(texts)
    tokens = side._tokens({"text": texts})
    assert [ids[1:-1] for ids in tokens["input_ids"]] == mine
    rows = side._rows(tokens)["input_ids"]  # by `datasets.map` in processes of its own, which do not go with JAX's threads
    everything = list(itertools.chain(*tokens["input_ids"]))
    assert {*map(len, rows)} == {32} and list(itertools.chain(*rows)) == everything[: len(rows) * 32]
    assert len(everything) - len(rows) * 32 < 32


@pytest.mark.nightly
def test_both_fine_tune_on_the_same_task(small_overrides, tmp_path, monkeypatch):
    """One seed of each. (So few steps teach little; with the benchmark's 2,500 examples both come to 0.99.)"""
    monkeypatch.setattr(ours, "SEEDS", 1)
    monkeypatch.setattr(rival, "SEEDS", 1)
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # it trains in a process of its own
    more = {"train.steps": 0, "train.eval_batches": 1, "model.width": 32, "model.hidden": 64}
    workload = small(small_overrides, "finetune", **more)
    ours.write_task(workload, str(tmp_path), train=300, held_out=60)
    scores = [ours.FineTunings(workload, str(tmp_path), "ours").round(1)["score"]]
    scores += [rival.FineTunings(workload, str(tmp_path), "eager").round(1)["score"]]
    assert 0.3 < min(scores) <= max(scores) <= 1, scores
