"""Prefix LM: what each position sees, what is predicted, and that without a prefix it is left-to-right modelling."""

import numpy as np

from bertlab.objectives.autoregressive import LeftToRight
from bertlab.objectives.prefix import PrefixLanguageModel
from tests.influence import assert_sees
from tests.references import (
    assert_metrics,
    hidden_states,
    metrics_of,
    output_logits,
    program_with,
    quick_jit,
    random_params,
    sums_of,
    view_of,
    views_of,
)


def prefixed(batch, **settings) -> dict[str, np.ndarray]:
    return view_of(PrefixLanguageModel(**settings), batch)


def prefix_of(view, row: int, number: int) -> tuple[np.ndarray, int]:
    """The positions of a document, and the length of its prefix: its first token sees as far (and no prefix is like 1)."""
    inside = np.flatnonzero(view["documents"][row] == number)
    return inside, int(view["order"][row, inside[0]]) + 1


def test_each_position_sees_the_prefix_and_what_is_left_of_it(packed_batch):
    batch = packed_batch(rows=3, length=12)
    view = prefixed(batch, min_share=0.3, max_share=0.9)

    def expected(row):
        seen = np.zeros((12, 12), bool)
        for number in (1, 2):
            inside, prefix = prefix_of(view, row, number)
            for t in inside:
                seen[t, inside] = (inside <= t) | (inside < inside[0] + prefix)
                target = view["prefix_targets"][row, t]
                assert target < 0 or not seen[t, t + 1]
        return seen

    assert any(prefix_of(view, row, number)[1] > 1 for row in range(3) for number in (1, 2))
    assert_sees(view, expected)


def test_loss_and_accuracy_equal_numpy(packed_batch):
    program, batch = program_with(PrefixLanguageModel(max_share=0.8)), packed_batch(rows=4, length=14)
    params, views = random_params(program, batch), views_of(program, batch)
    logits = output_logits(params["body"], hidden_states(program, params, views["it"]).both[-1])
    asked = []
    for row in range(4):
        for number in (1, 2):
            inside, prefix = prefix_of(views["it"], row, number)
            # A first token has no state before it.
            asked += [(row, t - 1, batch["tokens"][row, t]) for t in inside[max(prefix, 1) :]]
    assert 0 < len(asked) < (batch["documents"] > 0).sum() - 8, "some tokens are in a prefix"
    assert_metrics(metrics_of(program, params, views), "it", sums_of(logits, asked))


def test_share_is_uniform_between_its_bounds_and_drawn_for_each_document():
    documents = np.tile(np.repeat([1, 2, 3, 0], [10, 10, 1, 3]), (4000, 1)).astype(np.int32)
    batch = {"documents": documents, "tokens": np.full_like(documents, 7)}
    view = prefixed(batch)
    first, second = view["order"][:, 0] + 1, view["order"][:, 10] + 1
    # m = ⌊10u⌋ is each of 0 … 9 once in ten, and 0 is like 1; 4.2 standard errors.
    for lengths in (first, second):
        counts = np.bincount(lengths, minlength=11)[1:10]
        assert np.abs(counts - [800, *[400] * 8]).max() < 4.2 * np.sqrt(4000 * 0.2 * 0.8) and counts.sum() == 4000
        assert np.abs(counts[1:] - 400).max() < 4.2 * np.sqrt(4000 * 0.1 * 0.9)
    assert abs(np.corrcoef(first, second)[0, 1]) < 4.2 / np.sqrt(4000)
    place = np.concatenate([np.arange(10), np.arange(10), [0]])
    for begin, end, lengths in ((0, 10, first), (10, 20, second)):
        np.testing.assert_array_equal(view["order"][:, begin:end], np.maximum(place[begin:end], lengths[:, None] - 1))
        predicted = np.where(lengths > 1, 10 - lengths, 9)
        np.testing.assert_array_equal((view["prefix_targets"][:, begin:end] >= 0).sum(1), predicted)
    assert (view["prefix_targets"][:, 20:] == -1).all(), "one token alone has nothing to be predicted from"
    between = prefixed(batch, min_share=0.4, max_share=0.6)["order"][:, 0] + 1
    assert set(between) == {4, 5}
    whole = prefixed(batch, min_share=1.0)
    assert set(whole["order"][:, 0]) == {8} and ((whole["prefix_targets"] >= 0).sum(1) == 2).all(), "the last is left"


def test_without_a_prefix_it_is_left_to_right_modelling(packed_batch):
    batch = packed_batch(rows=4, length=14)
    ours, theirs = program_with(PrefixLanguageModel(max_share=0.0)), program_with(LeftToRight(), direction="left-to-right")
    params = random_params(ours, batch)
    results = []
    for program, side in ((ours, "both"), (theirs, "forward")):
        run = quick_jit(lambda params, views, p=program: (p.encode(params, *views.values()), p.metrics(params, views)))
        encoded, metrics = run(params, views_of(program, batch))
        results.append((getattr(encoded, side), metrics))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert float(results[0][1]["it/loss"][1]) == (batch["documents"] > 0).sum() - 8
    for name in ("it/loss", "it/accuracy"):
        # The states are the same bits; the sum has one term a row more, of weight 0, and adds up in another order.
        np.testing.assert_allclose(results[0][1][name], results[1][1][name], rtol=1e-6)


def test_a_streams_own_next_tokens_are_predicted():
    tokens = np.arange(5, 11, dtype=np.int32)[None]
    batch = {"tokens": tokens, "documents": np.ones_like(tokens), "next_tokens": np.array([[6, 7, 8, 9, 10, 33]], np.int32)}
    np.testing.assert_array_equal(prefixed(batch, max_share=0.0)["prefix_targets"], batch["next_tokens"])
