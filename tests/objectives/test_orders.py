"""Objectives that choose an order in which a row is read: prefix and permutation modelling, and
GPT-BERT's mixture of causal and masked rows."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from bertlab.objectives.autoregressive import LeftToRight, PrefixLanguageModel, RightToLeft
from bertlab.objectives.masked_next_token import MaskedNextToken
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
    views_of,
)

FIELDS = ("tokens", "segments", "documents", "positions")


def same_words(rows: int, length: int) -> dict[str, np.ndarray]:
    """Rows of one document, all its words the same."""
    tokens = np.full((rows, length), 7, np.int32)
    zeros = np.zeros_like(tokens)
    positions = zeros + np.arange(length, dtype=np.int32)
    return {"tokens": tokens, "documents": zeros + 1, "segments": zeros, "positions": positions}


def prefixed(batch, **settings) -> dict[str, np.ndarray]:
    return view_of(PrefixLanguageModel(**settings), batch)


def prefix_of(view, row: int, number: int) -> tuple[np.ndarray, int]:
    """A document's positions and the length of its prefix, which its first token sees."""
    inside = np.flatnonzero(view["documents"][row] == number)
    return inside, int(view["order"][row, inside[0]]) + 1


def test_each_position_sees_the_prefix_and_what_is_left_of_it():
    view = prefixed(packed_batch(rows=3), min_share=0.3, max_share=0.9)
    prefixes = []

    def expected(row):
        seen = np.zeros((12, 12), bool)
        for number in (1, 2):
            inside, prefix = prefix_of(view, row, number)
            prefixes.append(prefix)
            for t in inside:
                seen[t, inside] = (inside <= t) | (inside < inside[0] + prefix)
                assert view["prefix_targets"][row, t] < 0 or not seen[t, t + 1]
        return seen

    assert_sees(view, expected)
    assert max(prefixes) > 1


def test_prefix_loss_and_accuracy_equal_numpy():
    program = program_with(PrefixLanguageModel(max_share=0.8))
    batch = packed_batch(rows=4, length=14)
    params, views = random_params(program, batch), views_of(program, batch)
    logits = output_logits(params["body"], hidden_states(program, params, views["it"]).both[-1])
    asked = []
    for row, number in np.ndindex(4, 2):
        inside, prefix = prefix_of(views["it"], row, number + 1)
        asked += [(row, t - 1, batch["tokens"][row, t]) for t in inside[prefix:]]
    assert 0 < len(asked) < (batch["documents"] > 0).sum() - 8, "some tokens are in a prefix"
    assert_metrics(metrics_of(program, params, views), "it", sums_of(logits, asked))


def test_a_share_is_uniform_between_its_bounds_and_drawn_for_each_document():
    documents = np.tile(np.repeat([1, 2, 3, 0], [10, 10, 1, 3]), (4000, 1)).astype(np.int32)
    batch = {"documents": documents, "tokens": np.full_like(documents, 7)}
    view = prefixed(batch)
    first, second = view["order"][:, 0] + 1, view["order"][:, 10] + 1
    for begin, lengths in ((0, first), (10, second)):
        # m = ⌊10u⌋ is each of 0 … 9 once in ten; 0 looks like 1.
        chance = np.array([0, 0.2, *[0.1] * 8])
        deviation = np.sqrt(4000 * chance * (1 - chance)) + 1e-9
        counts = np.bincount(lengths, minlength=10)
        assert (np.abs(counts - 4000 * chance) <= 4.2 * deviation).all()
        order, targets = (view[name][:, begin : begin + 10] for name in ("order", "prefix_targets"))
        np.testing.assert_array_equal(order, np.maximum(np.arange(10), lengths[:, None] - 1))
        predicted = np.where(lengths > 1, 10 - lengths, 9)
        np.testing.assert_array_equal((targets >= 0).sum(1), predicted)
    assert abs(np.corrcoef(first, second)[0, 1]) < 4.2 / np.sqrt(4000)
    assert (view["prefix_targets"][:, 20:] == -1).all(), "a single token is not predicted"
    between = prefixed(batch, min_share=0.4, max_share=0.6)["order"][:, 0] + 1
    assert set(between) == {4, 5}
    whole = prefixed(batch, min_share=1.0)
    assert ((whole["prefix_targets"] >= 0).sum(1) == 2).all(), "each document's last is predicted"


def test_a_share_of_the_rows_is_read_from_right_to_left():
    batch, t = packed_batch(rows=8, length=10), np.arange(10)
    view, forward = (
        prefixed(batch, max_share=0.0, backward_share=0.5),
        prefixed(batch, max_share=0.0),
    )
    backward = (view["order"] != forward["order"]).any(1)
    assert 1 <= backward.sum() <= 7

    def expected(row):
        documents = batch["documents"][row]
        seen = t >= t[:, None] if backward[row] else t <= t[:, None]
        return (documents[:, None] == documents) & seen

    assert_sees(view, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backward_share", "one_direction", "direction"),
    [(0.0, LeftToRight(), "left-to-right"), (1.0, RightToLeft(), "right-to-left")],
)
def test_without_a_prefix_it_models_one_direction(backward_share, one_direction, direction):
    batch = packed_batch(rows=4, length=14)
    ours = program_with(PrefixLanguageModel(max_share=0.0, backward_share=backward_share))
    theirs = program_with(one_direction, direction=direction)
    params = random_params(ours, batch)
    found, expected = (
        metrics_of(program, params, views_of(program, batch)) for program in (ours, theirs)
    )
    assert float(found["it/loss"][1]) == (batch["documents"] > 0).sum() - 8
    for name in ("it/loss", "it/accuracy"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)


def test_causal_rows_see_what_is_left_of_them_and_masked_rows_everything():
    batch, t = packed_batch(rows=4, length=10), np.arange(10)
    view = view_of(MaskedNextToken(), batch, seed=1)
    assert 1 <= view["causal"].sum() <= 3

    def expected(row):
        documents = batch["documents"][row]
        return (documents[:, None] == documents) & ((t <= t[:, None]) | ~view["causal"][row])

    assert_sees(view, expected)


@pytest.mark.slow
def test_hybrid_loss_and_accuracy_equal_numpy():
    objective = MaskedNextToken(rate=0.4, final_rate=0.5, mask_share=0.6)
    program, batch = program_with(objective), packed_batch(rows=6, length=14)
    params, view = random_params(program, batch), view_of(objective, batch, seed=1)
    logits = output_logits(params["body"], hidden_states(program, params, view).both[-1])
    names = ("rate", "final_rate", "mask_share", "random_share")
    masking = objective.masking()
    assert {name: getattr(masking, name) for name in names} == {
        name: value for name, value in dataclasses.asdict(objective).items() if name in names
    }
    masked = view_of(masking, batch, key=jax.random.split(jax.random.key(1))[1])
    asked = {True: [], False: []}
    for row, documents in enumerate(batch["documents"]):
        causal = bool(view["causal"][row])
        slots = masked["masked_positions"][row][masked["masked_weights"][row]]
        inputs = (batch if causal else masked)["tokens"][row]
        np.testing.assert_array_equal(view["tokens"][row], inputs)
        inside = [t for t in range(1, 14) if documents[t] > 0 and documents[t - 1] == documents[t]]
        predicted = [t for t in inside if causal or t in slots]
        asked[causal] += [(row, t - 1, batch["tokens"][row, t]) for t in predicted]
    assert view["causal"].sum() == 3 and min(map(len, asked.values())) >= 4
    metrics = metrics_of(program, params, {"it": view})
    assert_metrics(metrics, "it", sums_of(logits, asked[True] + asked[False]))
    for name, causal in (("causal_loss", True), ("masked_loss", False)):
        expected = sums_of(logits, asked[causal])[[0, 2]]
        np.testing.assert_allclose(metrics[f"it/{name}"], expected, rtol=2e-5)
    # Causal rows are left-to-right modelling with the same parameters.
    causal_rows = np.where(view["causal"][:, None], batch["documents"], 0)
    theirs = metrics_of(
        program_with(LeftToRight(), direction="left-to-right"),
        params,
        {"batch": {**batch, "documents": causal_rows}},
    )
    np.testing.assert_allclose(metrics["it/causal_loss"], theirs["it/loss"], rtol=2e-6)


def test_each_row_is_causal_with_its_own_draw():
    share, rows = 0.25, 4000
    view = view_of(MaskedNextToken(causal_share=share), same_words(rows, 8))
    causal = view["causal"]
    assert abs(causal.sum() - rows * share) <= 4.2 * np.sqrt(rows * share * (1 - share))
    both, chance = (causal[1:] & causal[:-1]).sum(), share**2
    assert abs(both - rows * chance) <= 6.3 * np.sqrt(rows * chance * (1 - chance))
    assert ((view["next_token_targets"] >= 0).sum(1)[causal] == 7).all()
    assert (view["tokens"][causal] == 7).all() and (view["tokens"][~causal] != 7).any()


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
def test_permutation_streams_see_what_the_order_allows(context_in_order):
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


def test_permutations_are_uniform():
    view = view_of(PermutationLanguageModel(), same_words(3000, 6))
    order = view["order"][:, :6]
    np.testing.assert_array_equal(np.sort(order, 1), np.tile(np.arange(6), (3000, 1)))
    counts = np.stack([np.bincount(order[:, t], minlength=6) for t in range(6)])
    assert np.abs(counts - 500).max() < 4.2 * np.sqrt(3000 / 6 * 5 / 6)
    np.testing.assert_array_equal(view["positions"][:, 6], order.argmax(1))


@in_context_order
def test_permutation_loss_and_accuracy_equal_numpy(context_in_order):
    """A target's logits are those of a row with nothing but its context and a mask."""
    batch = batch_with_special_tokens()
    batch["tokens"][2] = np.where(batch["documents"][2] > 0, VOCABULARY.sep_id, 0)  # no targets
    program = program_with(PermutationLanguageModel(3, context_in_order))
    params, ranks = random_params(program, batch), random_ranks(batch, seed=3)
    inputs, asked = [], []
    for row in range(3):
        targets = targets_of(batch, ranks, row)
        is_context = ~np.isin(np.arange(12), targets) & (not context_in_order)
        for target in targets:
            one = {name: batch[name][row].copy() for name in FIELDS}
            one["tokens"][target] = VOCABULARY.mask_id
            one["documents"][(ranks[row] > ranks[row, target]) & ~is_context] = 0
            one["order"] = np.where(is_context, -1, ranks[row]).astype(np.int32)
            asked.append((len(inputs), target, batch["tokens"][row, target]))
            inputs.append(one)
    rows = {name: np.stack([one[name] for one in inputs]) for name in inputs[0]}
    logits = output_logits(params["body"], hidden_states(program, params, rows).both[-1])
    assert len(asked) >= 4
    metrics = metrics_of(program, params, {"it": in_order(batch, ranks, context_in_order)})
    assert_metrics(metrics, "it", sums_of(logits, asked))
