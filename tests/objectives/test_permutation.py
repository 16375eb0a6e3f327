"""Permutation LM: two streams in one doubled row see what the order of factorisation allows and nothing they must predict."""

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
    program_with,
    quick_jit,
    random_params,
    sums_of,
    view_of,
)

SETTINGS = [dict(predict_one_in=3), dict(predict_one_in=3, context_in_order=False)]


@functools.cache
def compiled_order(**settings):
    return quick_jit(lambda batch, ranks: PermutationLanguageModel(**settings).in_order(batch, ranks, VOCABULARY))


def in_order(batch, ranks, **settings) -> dict[str, np.ndarray]:
    return jax.tree.map(np.asarray, compiled_order(**settings)(batch, ranks))


def with_special_tokens(batch):
    """Each document begins with [CLS] and has a [SEP]."""
    tokens = np.where((batch["positions"] == 0) & (batch["documents"] > 0), VOCABULARY.cls_id, batch["tokens"])
    return {**batch, "tokens": np.where(batch["positions"] == 2, VOCABULARY.sep_id, tokens).astype(np.int32)}


def targets_of(batch, ranks, row: int, one_in: int) -> list[int]:
    """The positions to predict, written from the definition: the last of the order that are not special, last first."""
    real = np.flatnonzero((batch["documents"][row] > 0) & ~np.isin(batch["tokens"][row], [0, 2, 3]))
    number = max(1, (batch["documents"][row] > 0).sum() // one_in)
    return sorted(real, key=lambda t: -ranks[row, t])[:number]


def random_ranks(batch, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).random(batch["tokens"].shape)
    return noise.argsort(1).argsort(1).astype(np.int32)


@pytest.mark.parametrize("settings", SETTINGS)
def test_streams_see_what_the_order_allows(settings, packed_batch):
    batch = with_special_tokens(packed_batch(rows=2, length=12))
    ranks = random_ranks(batch)
    view = in_order(batch, ranks, **settings)

    def expected(row):
        targets = targets_of(batch, ranks, row, 3)
        seen = np.zeros((16, 16), bool)
        for i in range(12):
            for j in range(12):
                before = ranks[row, j] <= ranks[row, i]
                if not settings.get("context_in_order", True):
                    before = j not in targets or (i in targets and before)
                seen[i, j] = batch["documents"][row, i] == batch["documents"][row, j] and before
        for slot, target in enumerate(targets, 12):
            seen[slot] = seen[target]  # what its token sees,
            seen[slot, target] = False  # but for the token itself:
            seen[slot, slot] = True  # in its place the query's own mask vector
        return seen

    assert_sees(view, expected)


def test_view_is_the_batch_and_queries_at_the_targets(packed_batch):
    batch = with_special_tokens(packed_batch(rows=2, length=12))
    batch["tokens"][0] = np.where(batch["documents"][0] > 0, VOCABULARY.sep_id, 0)  # nothing to predict
    ranks = random_ranks(batch)
    view = in_order(batch, ranks, predict_one_in=3)
    for name in ("tokens", "segments", "documents", "positions"):
        assert view[name].shape == (2, 16)
        np.testing.assert_array_equal(view[name][:, :12], batch[name])
    for row in range(2):
        targets = targets_of(batch, ranks, row, 3)
        used = view["permutation_weights"][row]
        assert used.sum() == len(targets) == (0, 2)[row] and used[: len(targets)].all()
        np.testing.assert_array_equal(view["permutation_labels"][row, used], batch["tokens"][row, targets])
        assert (view["tokens"][row, 12:] == np.where(used, VOCABULARY.mask_id, VOCABULARY.pad_id)).all()
        for name in ("segments", "documents", "positions"):
            np.testing.assert_array_equal(view[name][row, 12:][used], batch[name][row, targets], err_msg=name)
        assert (view["documents"][row, 12:][~used] == 0).all()


def test_orders_are_uniform():
    tokens = np.full((3000, 6), 7, np.int32)
    zeros = np.zeros_like(tokens)
    batch = {"tokens": tokens, "documents": zeros + 1, "segments": zeros, "positions": zeros + np.arange(6)}
    view = view_of(PermutationLanguageModel(), batch)
    order = view["order"][:, :6]
    np.testing.assert_array_equal(np.sort(order, 1), zeros + np.arange(6))
    counts = np.stack([np.bincount(order[:, t], minlength=6) for t in range(6)])
    assert np.abs(counts - 500).max() < 4.2 * np.sqrt(3000 / 6 * 5 / 6)
    np.testing.assert_array_equal(view["positions"][:, 6], order.argmax(1))


@pytest.mark.parametrize("settings", SETTINGS)
def test_loss_and_accuracy_equal_numpy(settings, packed_batch):
    """Each target's logits are those of a pass over nothing but its context and a mask: one row a target."""
    batch = with_special_tokens(packed_batch(rows=2, length=12))
    objective = PermutationLanguageModel(**settings)
    program = program_with(objective)
    params, ranks = random_params(program, batch), random_ranks(batch, seed=3)
    shown, asked = [], []
    for row in range(2):
        targets = targets_of(batch, ranks, row, 3)
        is_context = ~np.isin(np.arange(12), targets) & (not objective.context_in_order)
        for target in targets:
            one = {name: batch[name][row] for name in ("tokens", "segments", "documents", "positions")}
            # The target's token is covered, and every later one is moved out of its document.
            one["tokens"] = np.where(np.arange(12) == target, VOCABULARY.mask_id, one["tokens"])
            later = (ranks[row] > ranks[row, target]) & ~is_context
            one |= {"documents": np.where(later, 0, one["documents"]), "order": np.where(is_context, -1, ranks[row])}
            asked.append((len(shown), target, batch["tokens"][row, target]))
            shown.append(one)
    rows = {name: np.stack([one[name] for one in shown]) for name in shown[0]}
    hidden = hidden_states(program, params, rows).both[-1]
    assert len(asked) >= 4
    metrics = metrics_of(program, params, {"it": in_order(batch, ranks, **settings)})
    assert_metrics(metrics, "it", sums_of(output_logits(params["body"], hidden), asked))


def test_identity_order_is_left_to_right(packed_batch):
    """Content states are a left-to-right body's; a query's is that of a row in which [MASK] takes the target's place."""
    family, model = "modern", dict(local_window=4, global_every=2)
    batch = packed_batch(rows=2, length=12)
    ranks = np.tile(np.arange(12, dtype=np.int32), (2, 1))
    ours, theirs = (program_with(None, family, direction, **model) for direction in ("bidirectional", "left-to-right"))
    params = random_params(ours, batch)
    view = in_order(batch, ranks, predict_one_in=3)
    left_to_right = quick_jit(theirs.encode)
    states = np.asarray(quick_jit(ours.encode)(params, view).both[-1])
    encode = lambda tokens: np.asarray(left_to_right(params, {**batch, "tokens": tokens}).forward[-1])
    # Masked scores are zero exactly; sums over 12 and over 16 positions may be added up in another order.
    tolerance = dict(rtol=1e-5, atol=1e-5)
    real = batch["documents"] > 0
    np.testing.assert_allclose(states[:, :12][real], encode(batch["tokens"])[real], **tolerance)
    for row in range(2):
        for slot, target in enumerate(targets_of(batch, ranks, row, 3), 12):
            covered = batch["tokens"].copy()
            covered[row, target] = VOCABULARY.mask_id
            np.testing.assert_allclose(states[row, slot], encode(covered)[row, target], **tolerance)


def test_cost_of_the_second_stream():
    shape = program_with(None).body.config
    objective = PermutationLanguageModel(predict_one_in=6)
    assert objective.slots(128) == 21
    whole = 149 * shape.flops_per_token(149)
    assert objective.extra_flops(shape, 128) == pytest.approx(whole - 128 * shape.flops_per_token(128))
