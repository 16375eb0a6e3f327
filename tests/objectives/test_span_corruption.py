"""Span corruption: T5's masks, its input and target in one row, and that no state sees what it must predict."""

import itertools

import numpy as np
import pytest

from bertlab.errors import UserError
from bertlab.objectives.base import Vocabulary
from bertlab.objectives.span_corruption import UL2, SpanCorruption
from tests.influence import assert_sees, influence
from tests.references import (
    VOCABULARY,
    assert_metrics,
    hidden_states,
    metrics_of,
    output_logits,
    program_with,
    random_params,
    sums_of,
    view_of,
    views_of,
)

MASK = VOCABULARY.mask_id
MANY = dict(rate=0.5, mean_span=2.0)  # so that short documents have spans of several lengths


def texts(rows: int, *sizes: int, cls: bool = False) -> dict[str, np.ndarray]:
    """Rows of documents of these sizes, all tokens different (from 5 on); with `cls` each begins with [CLS]."""
    documents = np.tile(np.repeat(np.arange(1, len(sizes) + 1), sizes), (rows, 1)).astype(np.int32)
    positions = np.tile(np.concatenate([np.arange(size) for size in sizes]), (rows, 1)).astype(np.int32)
    tokens = np.tile(np.arange(5, 5 + documents.shape[1], dtype=np.int32), (rows, 1))
    if cls:
        tokens[positions == 0] = VOCABULARY.cls_id
    return {"tokens": tokens, "documents": documents, "positions": positions, "segments": np.zeros_like(tokens)}


def masked_of(view, length: int) -> np.ndarray:
    return view["order"][:, :length] > 0


def spans_of(masked: np.ndarray) -> list[tuple[int, int]]:
    """(first, end) of each run of masked positions."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], masked.astype(int), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist()))


def as_in_t5(tokens, masked) -> tuple[list[int], list[int], list[int], list[int]]:
    """Of one document the input and the target as T5 makes them, with [MASK] for all sentinels, and positions of each token.

    The target's positions are those that it would have if it stood in the place of its sentinel in the input.
    """
    first, second, places = [], [], []
    for t, token in enumerate(tokens):
        if masked[t] and not masked[t - 1]:
            second.append(MASK)
            places.append(len(first) - 1)
            first.append(MASK)
        if masked[t]:
            second.append(token)
            places.append(places[-1] + 1)
        else:
            first.append(token)
    return first, [*second, MASK], list(range(len(first))), places


@pytest.mark.parametrize("cls", [False, True])
@pytest.mark.parametrize(("rate", "mean"), [(0.15, 3.0), (0.5, 3.0), (0.3, 1.0), (0.6, 1.0), (0.25, 100.0)])
def test_numbers_of_masked_words_and_spans_are_t5s(rate, mean, cls):
    sizes = (1, 2, 3, 7, 20, 41)
    view = view_of(SpanCorruption(rate=rate, mean_span=mean, max_spans=74), texts(6, *sizes, cls=cls))
    masked, begin = masked_of(view, sum(sizes)), 0
    for size in sizes:
        words = size - cls
        for row in masked[:, begin : begin + size]:
            number = min(max(int(np.round(np.float32(rate) * np.float32(words))), 1), words - 1) if words > 1 else 0
            most = min(number, words - number)
            expected = min(max(int(np.round(np.float32(number) / np.float32(mean))), 1), most)
            assert (row.sum(), len(spans_of(row))) == (number, expected), (words, number)
            assert not number or (row[-1] and not row[: cls + 1].any()), "others first, masked last"
        begin += size


def test_all_ways_to_cut_are_equally_likely():
    """Eight words: four are masked in two spans, so 3 · 3 masks."""
    masked = masked_of(view_of(SpanCorruption(rate=0.5, mean_span=2.0), texts(4500, 8)), 8)
    found, counts = np.unique(masked, axis=0, return_counts=True)
    parts = [(1, 3), (2, 2), (3, 1)]
    expected = {tuple(np.repeat([0, 1, 0, 1], [a, b, c, d])) for (a, c), (b, d) in itertools.product(parts, parts)}
    assert {tuple(row) for row in found.astype(int)} == expected
    assert np.abs(counts - 500).max() < 4.2 * np.sqrt(4500 / 9 * 8 / 9)


@pytest.mark.parametrize("cls", [False, True])
def test_a_row_is_t5s_input_and_target(cls):
    batch = texts(20, 9, 6, cls=cls)
    view = view_of(SpanCorruption(**MANY), batch)
    masked, lengths = masked_of(view, 15), set()
    for row, number in itertools.product(range(20), (1, 2)):
        inside = np.flatnonzero(batch["documents"][row] == number)
        first, second, positions, places = as_in_t5(batch["tokens"][row, inside], masked[row, inside])
        lengths |= {end - begin for begin, end in spans_of(masked[row, inside])}
        of = {name: view[name][row, view["documents"][row] == number] for name in ("tokens", "positions", "order")}
        targets = view["span_targets"][row, view["documents"][row] == number]
        shown, later = of["order"] == 0, np.argsort(of["order"], kind="stable")[(of["order"] == 0).sum() :]
        in_text = np.argsort(of["positions"][shown])
        assert of["tokens"][shown][in_text].tolist() == first
        assert of["positions"][shown][in_text].tolist() == positions, "positions do not tell how long a span is"
        assert of["tokens"][later].tolist() == second[:-1] and targets[later].tolist() == second[1:]
        assert of["positions"][later].tolist() == places and (targets[shown] == -1).all()
        assert len(np.unique(of["order"][later])) == len(later)
    assert len(lengths) >= 3 and (view["positions"] < 9).all() and (view["positions"] >= 0).all()


def seen_by(view, row: int) -> np.ndarray:
    """[L, L] by the definition: the first part sees itself, the second also what comes before in it."""
    documents, order = view["documents"][row], view["order"][row]
    seen = (documents[:, None] == documents) & ((order == 0) | (order <= order[:, None]))
    return seen & (documents > 0)


def leaks(view, length: int) -> tuple[int, int]:
    """How many states see the word that they must predict (by Jacobians), and how many could."""
    seen, found, asked = influence(view), 0, 0
    spans = view["tokens"].shape[1] - (view["tokens"].shape[1] - length) // 2
    for row, masked in enumerate(masked_of(view, length)):
        for number, (begin, end) in enumerate(spans_of(masked)):
            states = [spans + number, *range(begin, end - 1)]  # each predicts the next word of its span
            found += sum(seen[row, state, word] for state, word in zip(states, range(begin, end), strict=True))
            asked += end - begin
    return found, asked


def test_no_state_sees_what_it_must_predict_and_a_planted_leak_is_counted(packed_batch):
    batch = packed_batch(rows=3, length=14)
    view = view_of(SpanCorruption(**MANY, max_spans=6), batch)
    assert_sees(view, lambda row: seen_by(view, row))
    found, asked = leaks(view, 14)
    assert found == 0 and asked == masked_of(view, 14).sum() >= 8
    spans = sum(len(spans_of(row)) for row in masked_of(view, 14))
    too_early = {**view, "order": view["order"] + view["order"] % 2}  # a sentinel counts as the first word after it
    assert leaks(too_early, 14)[0] == spans
    whole = {**view, "order": np.minimum(view["order"], 1)}
    assert leaks(whole, 14)[0] == asked


@pytest.mark.parametrize("family", ["bert", "gpt"])
def test_loss_and_accuracy_equal_numpy(family, packed_batch):
    """Each document in a row of its own, its input and target one after the other."""
    program, batch = program_with(SpanCorruption(**MANY, max_spans=6), family), packed_batch(rows=4, length=14)
    params, views = random_params(program, batch), views_of(program, batch)
    masked, made, asked = masked_of(views["it"], 14), [], []
    for row, number in itertools.product(range(4), (1, 2)):
        inside = np.flatnonzero(batch["documents"][row] == number)
        first, second, positions, places = as_in_t5(batch["tokens"][row, inside], masked[row, inside])
        asked += [(len(made), len(first) + i, token) for i, token in enumerate(second[1:])]
        filled = len(first) + len(second) - 1
        one = {
            "tokens": [*first, *second[:-1]],
            "positions": [*positions, *places],
            "documents": [1] * filled,
            "segments": [number - 1] * filled,
            "order": [0] * len(first) + list(range(1, len(second))),
        }
        made.append({name: np.pad(np.array(values, np.int32), (0, 26 - filled)) for name, values in one.items()})
    rows = {name: np.stack([one[name] for one in made]) for name in made[0]}
    hidden = hidden_states(program, params, rows).both[-1]
    assert len(asked) > 20
    assert_metrics(metrics_of(program, params, views), "it", sums_of(output_logits(params["body"], hidden), asked))


def test_each_row_has_one_of_the_denoisers():
    assert SpanCorruption(denoisers="R+S+X").mixture == (*UL2["R"], *UL2["S"], *UL2["X"])
    masked = masked_of(view_of(SpanCorruption(denoisers="S+X"), texts(4000, 128)), 128)
    found = [(int(row.sum()), len(spans_of(row))) for row in masked]
    # S: a quarter in one span; X: 50 % in spans of 3, 8 and 64, and 15 % in one of 64.
    kinds = {(32, 1), (64, 21), (64, 8), (64, 1), (19, 1)}
    assert set(found) == kinds
    for kind in kinds:
        assert abs(found.count(kind) - 800) < 4.2 * np.sqrt(4000 * 0.2 * 0.8), kind
    sequential = masked[[kind == (32, 1) for kind in found]]
    assert sequential[:, 96:].all() and not sequential[:, :96].any(), "the last quarter"


def test_a_mode_token_tells_which_denoiser_a_row_has():
    """In each document of the row, in the place of its [CLS]; all else is as without."""
    batch = texts(200, 40, 24, cls=True)
    plain = view_of(SpanCorruption(denoisers="R+S+X"), batch)
    view = view_of(SpanCorruption(denoisers="R+S+X", mode_tokens=True), batch)
    # Of 39 words R masks 6 in two spans, S 10, X 20; 6 in one span may be R's or X's.
    expected, mask = {(6, 2): VOCABULARY.cls_id, (10, 1): VOCABULARY.sep_id}, VOCABULARY.mask_id
    expected |= {(20, 7): mask, (20, 2): mask, (20, 1): mask}
    found = [(int(row.sum()), len(spans_of(row))) for row in masked_of(view, 64)[:, :40]]
    assert set(found) == {*expected, (6, 1)}
    assert all(view["tokens"][row, 0] == expected[of] for row, of in enumerate(found) if of in expected)
    np.testing.assert_array_equal(view["tokens"][:, 40], view["tokens"][:, 0])
    changed = {name for name in view if not np.array_equal(view[name], plain[name])}
    assert changed == {"tokens"} and set(np.argwhere(view["tokens"] != plain["tokens"])[:, 1]) == {0, 40}


def test_of_too_many_spans_any_is_left_out():
    view = view_of(SpanCorruption(max_spans=1), texts(3000, 6, 6))
    masked = masked_of(view, 12)
    assert view["tokens"].shape == (3000, 14) and (masked.sum(1) == 1).all()
    assert abs(masked[:, 5].sum() - 1500) < 4.2 * np.sqrt(3000 / 4) and masked[:, [5, 11]].any(1).all()
    assert ((view["span_targets"] >= 0).sum(1) == 2).all(), "a word and the sentinel after it"


def test_slots_and_cost():
    shape = program_with(None).body.config
    assert [SpanCorruption().slots(n) for n in (8, 128, 512)] == [1, 7, 26]
    assert SpanCorruption(denoisers="R+S+X").slots(128) == 22 and SpanCorruption(denoisers="S").slots(128) == 1
    longer = 142 * (shape.flops_per_token(142) + shape.flops_per_prediction())
    assert SpanCorruption().extra_flops(shape, 128) == pytest.approx(longer - 128 * shape.flops_per_token(128))


def test_what_it_cannot_work_with_is_refused():
    with pytest.raises(UserError, match=r"replaces spans by \[MASK\]"):
        SpanCorruption().check(Vocabulary(8, 0, 1, 2, 3, None))
    with pytest.raises(UserError, match="needs a tokenizer with"):
        SpanCorruption(denoisers="R+S", mode_tokens=True).check(Vocabulary(8, 0, 0, 0, 0, 4))
    with pytest.raises(UserError, match="mode_tokens=True has no effect"):
        SpanCorruption(mode_tokens=True)
    with pytest.raises(UserError, match=r"mean_span=4\.0 has no effect"):
        SpanCorruption(denoisers="R", mean_span=4.0)
