"""Permutation LM: two streams in one doubled row see what the order of factorisation allows and nothing they must predict."""

import dataclasses

import jax
import numpy as np
import pytest

from bertlab.errors import UserError
from bertlab.objectives.permutation import PermutationLanguageModel
from bertlab.objectives.program import Program
from tests.influence import assert_sees
from tests.references import VOCABULARY, assert_metrics, metrics_of, quick_jit, random_params, summed, tiny_program, views_of

SETTINGS = [dict(predict_one_in=3), dict(predict_one_in=3, context_in_order=False)]


def permuted(batch, seed: int = 0, **settings) -> dict[str, np.ndarray]:
    view = quick_jit(lambda batch, key: PermutationLanguageModel(**settings).view(batch, key, VOCABULARY, 1.0))
    return jax.tree.map(np.asarray, view(batch, jax.random.key(seed)))


def in_order(batch, ranks, **settings) -> dict[str, np.ndarray]:
    view = quick_jit(lambda batch, ranks: PermutationLanguageModel(**settings).in_order(batch, ranks, VOCABULARY))
    return jax.tree.map(np.asarray, view(batch, ranks))


def program_of(objective, family: str = "gpt", direction: str = "bidirectional", **model) -> Program:
    body = tiny_program(family, "", direction=direction, layers=2, **model).body
    return Program(body, {"it": objective} if objective else {}, VOCABULARY)


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
    batch = with_special_tokens(packed_batch(rows=4, length=14))
    ranks = random_ranks(batch)
    view = in_order(batch, ranks, predict_one_in=3)
    for name in ("tokens", "segments", "documents", "positions"):
        assert view[name].shape == (4, 18)
        np.testing.assert_array_equal(view[name][:, :14], batch[name])
    for row in range(4):
        targets = targets_of(batch, ranks, row, 3)
        used = view["permutation_weights"][row]
        assert used.sum() == len(targets) and used[: len(targets)].all()
        np.testing.assert_array_equal(view["permutation_labels"][row, used], batch["tokens"][row, targets])
        assert not np.isin(view["permutation_labels"][row, used], [0, 2, 3]).any()
        assert (view["tokens"][row, 14:] == np.where(used, VOCABULARY.mask_id, VOCABULARY.pad_id)).all()
        for name in ("segments", "documents", "positions"):
            np.testing.assert_array_equal(view[name][row, 14:][used], batch[name][row, targets], err_msg=name)
        assert (view["documents"][row, 14:][~used] == 0).all()


def test_orders_are_uniform():
    tokens = np.full((3000, 6), 7, np.int32)
    zeros = np.zeros_like(tokens)
    view = permuted({"tokens": tokens, "documents": zeros + 1, "segments": zeros, "positions": zeros + np.arange(6)})
    order = view["order"][:, :6]
    np.testing.assert_array_equal(np.sort(order, 1), zeros + np.arange(6))
    counts = np.stack([np.bincount(order[:, t], minlength=6) for t in range(6)])
    assert np.abs(counts - 500).max() < 4.2 * np.sqrt(3000 / 6 * 5 / 6)
    np.testing.assert_array_equal(view["positions"][:, 6], order.argmax(1))


@pytest.mark.parametrize("settings", SETTINGS)
def test_loss_and_accuracy_equal_numpy(settings, packed_batch):
    """Each target's logits are those of a pass over nothing but its context and a mask: one pass a target."""
    batch = with_special_tokens(packed_batch(rows=2, length=12))
    objective = PermutationLanguageModel(**settings)
    program = program_of(objective)
    params = random_params(program, batch)
    ranks = random_ranks(batch, seed=3)
    view = in_order(batch, ranks, **settings)
    metrics = metrics_of(program, params, {"it": view})
    encode = quick_jit(lambda params, v: program.encode(params, v).both[-1])
    expected = np.zeros(3)
    for row in range(2):
        targets = targets_of(batch, ranks, row, 3)
        for target in targets:
            shown = {name: batch[name][row : row + 1] for name in ("tokens", "segments", "documents", "positions")}
            order = ranks[row].copy()
            if not objective.context_in_order:
                order[[t for t in range(12) if t not in targets]] = -1
            # The target's token is covered, and every later one is moved out of its document.
            shown["tokens"] = np.where(np.arange(12) == target, VOCABULARY.mask_id, shown["tokens"])
            shown["documents"] = np.where(ranks[row] > ranks[row, target], 0, shown["documents"])
            if not objective.context_in_order:
                context = [t for t in range(12) if t not in targets]
                shown["documents"][:, context] = batch["documents"][row, context]
            hidden = np.asarray(encode(params, {**shown, "order": order[None]}), np.float64)[0, target]
            logits = hidden @ np.float64(params["body"]["token_embedding"]).T
            expected += summed(logits, batch["tokens"][row, target])
    assert expected[2] >= 4
    assert_metrics(metrics, "it", expected)


@pytest.mark.parametrize(("family", "model"), [("bert", {}), ("modern", dict(local_window=4, global_every=2))])
def test_identity_order_is_left_to_right(family, model, packed_batch):
    """Content states are a left-to-right body's; a query's is that of a row in which [MASK] takes the target's place."""
    batch = packed_batch(rows=2, length=12)
    ranks = np.tile(np.arange(12, dtype=np.int32), (2, 1))
    ours, theirs = program_of(None, family, **model), program_of(None, family, "left-to-right", **model)
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
    shape = tiny_program("bert", "").body.config
    objective = PermutationLanguageModel(predict_one_in=6)
    assert objective.slots(128) == 21
    whole = 149 * shape.flops_per_token(149)
    assert objective.extra_flops(shape, 128) == pytest.approx(whole - 128 * shape.flops_per_token(128))


def test_rows_without_candidates_weigh_nothing(packed_batch):
    batch = packed_batch(rows=2, length=12)
    batch["documents"][0], batch["tokens"][0] = 0, 0
    batch["tokens"][1] = np.where(batch["documents"][1] > 0, VOCABULARY.sep_id, 0)
    program = program_of(PermutationLanguageModel(predict_one_in=3))
    params = random_params(program, batch)
    metrics = metrics_of(program, params, views_of(program, batch))
    assert [float(x) for x in metrics["it/loss"]] == [0.0, 0.0]


def test_refusals():
    with pytest.raises(UserError, match=r"predict_one_in=0 must be 1"):
        PermutationLanguageModel(predict_one_in=0)
    with pytest.raises(UserError, match=r"it asks for tokens with \[MASK\]"):
        PermutationLanguageModel().check(dataclasses.replace(VOCABULARY, mask_id=None))
