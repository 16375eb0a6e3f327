"""Span corruption: T5's masks, its input and target in one row, and that no state sees what it must
predict."""

import itertools

import numpy as np
import pytest

from bertlab.objectives.span_corruption import UL2, SpanCorruption
from tests.influence import assert_sees
from tests.references import (
    VOCABULARY,
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

MASK = VOCABULARY.mask_id
MANY = dict(rate=0.5, mean_span=2.0)  # so that short documents have spans of several lengths
with_cls = pytest.mark.parametrize("cls", [False, True])


def texts(rows: int, *sizes: int, cls: bool = False) -> dict[str, np.ndarray]:
    """Rows of documents of these sizes, all tokens different; with `cls` each begins with [CLS]."""
    row = {
        "tokens": np.arange(5, 5 + sum(sizes)),
        "documents": np.repeat(np.arange(1, len(sizes) + 1), sizes),
        "positions": np.concatenate([np.arange(size) for size in sizes]),
        "segments": np.zeros(sum(sizes)),
    }
    if cls:
        row["tokens"][row["positions"] == 0] = VOCABULARY.cls_id
    return {name: np.tile(value.astype(np.int32), (rows, 1)) for name, value in row.items()}


def masked_of(view, length: int) -> np.ndarray:
    return view["order"][:, :length] > 0


def spans_of(masked: np.ndarray) -> list[tuple[int, int]]:
    """(first, end) of each run of masked positions."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], masked.astype(int), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist()))


def t5s_halves(tokens, masked) -> tuple[list[int], list[int], list[int]]:
    """T5's input and target for one document, with [MASK] for all sentinels, and the positions of
    the target's tokens: they count on from their sentinel's."""
    first, second, positions = [], [], []
    for t, token in enumerate(tokens):
        if masked[t] and not masked[t - 1]:
            second.append(MASK)
            positions.append(len(first) - 1)
            first.append(MASK)
        if masked[t]:
            second.append(token)
            positions.append(positions[-1] + 1)
        else:
            first.append(token)
    return first, [*second, MASK], positions


@with_cls
@pytest.mark.parametrize("rate, mean", [(0.15, 3.0), (0.6, 1.0), (0.25, 100.0)])
def test_numbers_of_masked_words_and_spans_are_t5s(rate, mean, cls):
    sizes, begin = (1, 2, 3, 7, 20, 41), 0
    objective = SpanCorruption(rate=rate, mean_span=mean, max_spans=74)
    masked = masked_of(view_of(objective, texts(6, *sizes, cls=cls)), sum(sizes))
    for size in sizes:
        words = size - cls
        number = 0 if words < 2 else min(max(round(rate * words), 1), words - 1)
        spans = min(max(round(number / mean), 1), number, words - number)
        for row in masked[:, begin : begin + size]:
            assert (row.sum(), len(spans_of(row))) == (number, spans), (words, number)
            assert not number or (row[-1] and not row[: cls + 1].any()), "others first, masked last"
        begin += size


def test_all_cuts_are_equally_likely():
    """Eight words: four are masked in two spans, so 3 · 3 masks."""
    masked = masked_of(view_of(SpanCorruption(**MANY), texts(4500, 8)), 8)
    found, counts = np.unique(masked, axis=0, return_counts=True)
    pieces = [(1, 3), (2, 2), (3, 1)]
    expected = {
        tuple(np.repeat([0, 1, 0, 1], [a, b, c, d]))
        for (a, c), (b, d) in itertools.product(pieces, pieces)
    }
    assert {tuple(row) for row in found.astype(int)} == expected
    assert np.abs(counts - 500).max() < 4.2 * np.sqrt(4500 / 9 * 8 / 9)


def test_positions_see_the_first_half_and_what_is_before_them_in_the_second():
    view = view_of(SpanCorruption(**MANY, max_spans=6), packed_batch(rows=3, length=14))

    def expected(row):
        documents, order = view["documents"][row], view["order"][row]
        seen = (documents[:, None] == documents) & ((order == 0) | (order <= order[:, None]))
        return seen & (documents > 0)

    assert_sees(view, expected)


def test_loss_and_accuracy_equal_numpy():
    """T5's input and target one after the other, each document in a row of its own."""
    program = program_with(SpanCorruption(**MANY, max_spans=6))
    batch = packed_batch(rows=4, length=20)
    batch["tokens"][:, 0] = VOCABULARY.cls_id
    params, views = random_params(program, batch), views_of(program, batch)
    masked, made, asked = masked_of(views["it"], 20), [], []
    assert {end - begin for row in masked for begin, end in spans_of(row)} > {1, 2}
    for row, number in itertools.product(range(4), (1, 2)):
        inside = np.flatnonzero(batch["documents"][row] == number)
        tokens = batch["tokens"][row, inside]
        first, second, positions = t5s_halves(tokens, masked[row, inside])
        asked += [(len(made), len(first) + i, token) for i, token in enumerate(second[1:])]
        filled = len(first) + len(second) - 1
        fields = {
            "tokens": [*first, *second[:-1]],
            "positions": [*range(len(first)), *positions],
            "documents": [1] * filled,
            "segments": [number - 1] * filled,
            "order": [0] * len(first) + list(range(1, len(second))),
        }
        padding = [0] * (26 - filled)
        made.append({name: np.int32(values + padding) for name, values in fields.items()})
    rows = {name: np.stack([one[name] for one in made]) for name in made[0]}
    logits = output_logits(params["body"], hidden_states(program, params, rows).both[-1])
    assert len(asked) > 20
    assert_metrics(metrics_of(program, params, views), "it", sums_of(logits, asked))


@pytest.mark.slow
def test_each_row_has_one_of_the_denoisers():
    assert len(SpanCorruption(denoisers="R+S+X").mixture) == sum(map(len, UL2.values())) == 7
    masked = masked_of(view_of(SpanCorruption(denoisers="S+X"), texts(4000, 128)), 128)
    found = [(int(row.sum()), len(spans_of(row))) for row in masked]
    # S: a quarter in one span; X: 50 % in spans of 3, 8 and 64, and 15 % in one of 64.
    kinds = {(32, 1), (64, 21), (64, 8), (64, 1), (19, 1)}
    assert set(found) == kinds
    for kind in kinds:
        assert abs(found.count(kind) - 800) < 4.2 * np.sqrt(4000 * 0.2 * 0.8), kind
    sequential = masked[[kind == (32, 1) for kind in found]]
    assert sequential[:, 96:].all() and not sequential[:, :96].any(), "the last quarter"


@pytest.mark.slow
def test_if_there_are_too_many_spans_any_is_left_out():
    view = view_of(SpanCorruption(max_spans=1), texts(3000, 6, 6))
    masked = masked_of(view, 12)
    assert view["tokens"].shape == (3000, 14) and (masked.sum(1) == 1).all()
    assert abs(masked[:, 5].sum() - 1500) < 4.2 * np.sqrt(3000 / 4)
    assert masked[:, [5, 11]].any(1).all()
    assert ((view["span_targets"] >= 0).sum(1) == 2).all(), "a word and the sentinel after it"


def test_slots():
    assert [SpanCorruption().slots(n) for n in (8, 128, 512)] == [1, 7, 26]
    assert [SpanCorruption(denoisers=name).slots(128) for name in ("R+S+X", "S")] == [22, 1]
