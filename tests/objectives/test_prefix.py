"""Prefix LM: what each position sees, what is predicted, and that without a prefix it is
left-to-right modelling."""

import numpy as np

from bertlab.objectives.autoregressive import LeftToRight
from bertlab.objectives.prefix import PrefixLanguageModel
from tests.influence import assert_sees
from tests.references import (
    assert_metrics,
    hidden_states,
    metrics_of,
    output_logits,
    packed_batch,
    program_with,
    random_params,
    sums_of,
    view_of,
    views_of,
)


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


def test_loss_and_accuracy_equal_numpy():
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


def test_without_a_prefix_it_is_left_to_right_modelling():
    batch = packed_batch(rows=4, length=14)
    ours = program_with(PrefixLanguageModel(max_share=0.0))
    theirs = program_with(LeftToRight(), direction="left-to-right")
    params = random_params(ours, batch)
    found, expected = (
        metrics_of(program, params, views_of(program, batch)) for program in (ours, theirs)
    )
    assert float(found["it/loss"][1]) == (batch["documents"] > 0).sum() - 8
    for name in ("it/loss", "it/accuracy"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)
