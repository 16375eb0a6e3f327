import json
import math
from types import SimpleNamespace

import numpy as np
import pytest

from bertlab import objectives
from bertlab.data.batches import eval_batches
from bertlab.data.facts import batch_facts, data_facts, length_rule_accuracy, unigram_entropy, unique_note
from bertlab.data.prepare import prepare
from bertlab.train.build import objective_facts


def test_unigram_entropy():
    assert unigram_entropy(np.array([0, 5, 5, 0])) == pytest.approx(math.log(2))
    # −(¾ log ¾ + ¼ log ¼)
    assert unigram_entropy(np.array([3, 0, 1])) == pytest.approx(0.5623351446)


def pairs(labels, first, second, length=12):
    """A batch of pairs with these numbers of tokens in A and B."""
    places = np.arange(length)[None]
    first, second = np.asarray(first)[:, None], np.asarray(second)[:, None]
    return {
        "documents": (places < first + second).astype(np.int32),
        "segments": ((places >= first) & (places < first + second)).astype(np.int32),
        "pair_label": np.asarray(labels, np.int32),
        "order_label": np.full(len(labels), -1, np.int32),
    }


def test_batches_are_described_without_rows_of_padding():
    facts = batch_facts([pairs([1, 0], [3, 4], [2, 8]), pairs([-1, -1], [5, 0], [0, 0])])
    assert facts == {
        "rows": 3,
        "positions": 36,
        "tokens": 22,
        "pair_label": {"rows": 2, "share": 0.5, "length_rule": pytest.approx(0.5, abs=0.5)},
    }
    plain = {"documents": np.array([[1, 1, 0, 0], [1, 2, 2, 2]])}
    assert batch_facts([plain]) == {"rows": 2, "positions": 8, "tokens": 6}
    only_order = pairs([-1, -1], [3, 4], [3, 4]) | {"order_label": np.array([1, 1])}
    assert set(batch_facts([only_order])) == {"rows", "positions", "tokens", "order_label"}


def test_packed_pairs_are_described_as_pairs():
    """The same three pairs, packed: the lengths are those of each pair's own segments."""
    apart = pairs([1, 0, 0], [3, 4, 2], [2, 3, 5])
    packed = {
        "documents": np.array([[1] * 5 + [2] * 7, [1] * 7 + [0] * 5, [0] * 12]),
        "segments": np.array([[0] * 3 + [1] * 2 + [0] * 4 + [1] * 3, [0] * 2 + [1] * 5 + [0] * 5, [0] * 12]),
        "pair_label": np.array([[1, 0], [0, -1], [-1, -1]]),
        "order_label": np.full((3, 2), -1),
    }
    found, expected = batch_facts([packed]), batch_facts([apart])
    assert found == {"rows": 2, "positions": 24, "tokens": 19, "pair_label": expected["pair_label"]}
    assert expected["pair_label"]["rows"] == 3


def test_length_rule():
    rng = np.random.default_rng(0)
    labels, lengths = rng.integers(2, size=1000), rng.integers(1, 60, size=(1000, 2))
    # Where lengths say nothing, nothing is gained, however many cells there are: five standard errors of 1,000 guesses.
    assert abs(length_rule_accuracy(labels, lengths) - 0.5) < 5 * 0.5 / math.sqrt(1000)
    # Where B tells, the rule finds it, and where only both together tell, it does too.
    telling = np.where(labels == 1, rng.integers(1, 20, size=1000), rng.integers(40, 60, size=1000))
    # (A bin at the border between the labels may hold some of both.)
    assert length_rule_accuracy(labels, np.stack([lengths[:, 0], telling], axis=1)) > 0.9
    side = rng.integers(2, size=1000)
    both = np.stack([10 + 40 * side, 10 + 40 * (side ^ labels)], axis=1)
    assert length_rule_accuracy(labels, both) == 1
    # A share of 80 % is the rule's, where lengths add nothing.
    mostly = (rng.random(1000) < 0.8).astype(int)
    assert abs(length_rule_accuracy(mostly, np.ones((1000, 2))) - mostly.mean()) < 1e-9
    assert length_rule_accuracy(np.array([1]), np.array([[3, 4]])) in (0, 1)


def test_facts_of_a_run_are_json(small_config):
    config = small_config("bert")
    prepared = prepare(config.data)
    batches = {"valid": eval_batches(prepared, config.data, "valid", 0)}
    facts = json.loads(json.dumps(data_facts(prepared, batches)))
    assert facts["corpus"]["splits"] == prepared.statistics
    labels = np.concatenate([batch["pair_label"] for batch in batches["valid"]])
    held_out = facts["batches"]["valid"]
    assert held_out["pair_label"]["share"] == pytest.approx((labels == 1).sum() / (labels >= 0).sum())
    assert held_out["tokens"] == sum(int((batch["documents"] > 0).sum()) for batch in batches["valid"])
    assert held_out["rows"] * config.data.seq_len == held_out["positions"]
    assert 0 < facts["corpus"]["unigram_entropy"] < math.log(prepared.tokenizer.vocab_size)


def test_a_limit_that_whole_documents_exceed_by_far_is_said(small_config):
    prepared = prepare(small_config("bert").data)
    tokens = prepared.statistics["train"]["tokens"]
    few, many = (data_facts(prepared, {}, limit) for limit in (3, tokens - 1))
    one = few["corpus"]["unique"]["tokens"]
    assert unique_note(few, 3) == f"config.data.unique_tokens=3: 1 whole document has {one:,} tokens" and one > 3
    assert unique_note(many, tokens - 1) == unique_note(data_facts(prepared, {}), 0) == ""


def test_the_loss_of_guessing_is_that_of_the_validation_rows():
    rows = {"valid": [{"pair_label": np.array([0, 1])}], "test": [{"pair_label": np.array([0, 0, 0, 1])}]}
    facts = objective_facts({"nsp": objectives.find("nsp")()}, SimpleNamespace(counts=None), rows)
    assert facts["nsp"] == {"asks": "pairs", "labels": "pair_label", "guessing": pytest.approx(np.log(2))}
