"""Permutation LM: two streams in one longer row see what the order allows and nothing that they
must predict."""

import functools

import jax
import numpy as np
import pytest

from bertlab.objectives.permutation import PermutationLanguageModel
from tests.influence import assert_sees
from tests.references import (
    VOCABULARY,
    assert_metrics,
    hidden_states,
    metrics_of,
    output_logits,
    packed_batch,
    program_with,
    quick_jit,
    random_params,
    sums_of,
    view_of,
)

FIELDS = ("tokens", "segments", "documents", "positions")
in_context_order = pytest.mark.parametrize("context_in_order", [True, False])


@functools.cache
def compiled_order(context_in_order):
    objective = PermutationLanguageModel(predict_one_in=3, context_in_order=context_in_order)
    return quick_jit(lambda batch, ranks: objective.in_order(batch, ranks, VOCABULARY))


def in_order(batch, ranks, context_in_order=True) -> dict[str, np.ndarray]:
    return jax.tree.map(np.asarray, compiled_order(context_in_order)(batch, ranks))


def batch_with_special_tokens():
    """Three rows; each document begins with [CLS] and has a [SEP]."""
    batch = packed_batch(rows=3)
    batch["tokens"][(batch["positions"] == 0) & (batch["documents"] > 0)] = VOCABULARY.cls_id
    batch["tokens"][batch["positions"] == 2] = VOCABULARY.sep_id
    return batch


def random_ranks(batch, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).random(batch["tokens"].shape)
    return noise.argsort(1).argsort(1).astype(np.int32)


def targets_of(batch, ranks, row: int) -> list[int]:
    """The last third of the order that is not special, last first."""
    documents, tokens = batch["documents"][row], batch["tokens"][row]
    words = np.flatnonzero((documents > 0) & ~np.isin(tokens, [0, 2, 3]))
    return sorted(words, key=lambda t: -ranks[row, t])[: max(1, (documents > 0).sum() // 3)]


@in_context_order
def test_streams_see_what_the_order_allows(context_in_order):
    batch = batch_with_special_tokens()
    ranks = random_ranks(batch)
    view = in_order(batch, ranks, context_in_order)

    def expected(row):
        targets = targets_of(batch, ranks, row)
        seen = np.zeros((16, 16), bool)
        for i, j in np.ndindex(12, 12):
            before = ranks[row, j] <= ranks[row, i]
            if not context_in_order:
                before = j not in targets or (i in targets and before)
            seen[i, j] = batch["documents"][row, i] == batch["documents"][row, j] and before
        for slot, target in enumerate(targets, 12):
            seen[slot] = seen[target]
            seen[slot, target], seen[slot, slot] = False, True
        return seen

    assert_sees(view, expected)


def test_orders_are_uniform():
    tokens = np.full((3000, 6), 7, np.int32)
    zeros = np.zeros_like(tokens)
    batch = {"tokens": tokens, "documents": zeros + 1, "segments": zeros}
    view = view_of(PermutationLanguageModel(), {**batch, "positions": zeros + np.arange(6)})
    order = view["order"][:, :6]
    np.testing.assert_array_equal(np.sort(order, 1), zeros + np.arange(6))
    counts = np.stack([np.bincount(order[:, t], minlength=6) for t in range(6)])
    assert np.abs(counts - 500).max() < 4.2 * np.sqrt(3000 / 6 * 5 / 6)
    np.testing.assert_array_equal(view["positions"][:, 6], order.argmax(1))


@in_context_order
def test_loss_and_accuracy_equal_numpy(context_in_order):
    """A target's logits are those of a row with nothing but its context and a mask."""
    batch = batch_with_special_tokens()
    batch["tokens"][2] = np.where(batch["documents"][2] > 0, VOCABULARY.sep_id, 0)  # no targets
    program = program_with(PermutationLanguageModel(3, context_in_order))
    params, ranks = random_params(program, batch), random_ranks(batch, seed=3)
    shown, asked = [], []
    for row in range(3):
        targets = targets_of(batch, ranks, row)
        is_context = ~np.isin(np.arange(12), targets) & (not context_in_order)
        for target in targets:
            one = {name: batch[name][row].copy() for name in FIELDS}
            one["tokens"][target] = VOCABULARY.mask_id
            one["documents"][(ranks[row] > ranks[row, target]) & ~is_context] = 0
            one["order"] = np.where(is_context, -1, ranks[row]).astype(np.int32)
            asked.append((len(shown), target, batch["tokens"][row, target]))
            shown.append(one)
    rows = {name: np.stack([one[name] for one in shown]) for name in shown[0]}
    logits = output_logits(params["body"], hidden_states(program, params, rows).both[-1])
    assert len(asked) >= 4
    metrics = metrics_of(program, params, {"it": in_order(batch, ranks, context_in_order)})
    assert_metrics(metrics, "it", sums_of(logits, asked))
