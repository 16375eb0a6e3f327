"""MLM's masks follow their sources within sampling error; its loss and SBO's equal NumPy."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from scipy.stats import binom

from bertlab.objectives.choosing import choose_spans, choose_words, span_lengths, word_starts
from bertlab.objectives.masked import MaskedLanguageModel, SpanBoundary
from tests.references import (
    VOCABULARY,
    assert_metrics,
    dense,
    gelu,
    hidden_states,
    layer_norm,
    metrics_of,
    output_logits,
    packed_batch,
    program_with,
    quick_jit,
    random_params,
    summed,
    sums_of,
    tiny_program,
    view_of,
    views_of,
)

# A right sampler is beyond this many standard errors once in 30,000 draws; the seeds are fixed.
LIMIT = 4.2
PAD, UNK, CLS, SEP, MASK = range(5)
# Ids from 25 on continue a word.
PIECES = dataclasses.replace(VOCABULARY, continues=tuple(index >= 25 for index in range(50)))
WORDS = np.setdiff1d(np.arange(40), [0, 20, 39])  # of a row of 40 tokens


def rows_of(lengths, width: int) -> dict[str, np.ndarray]:
    """Rows `[CLS] tokens [SEP] tokens [SEP]`; a token may be [UNK] or look like [MASK]."""
    rng, lengths, index = np.random.default_rng(0), np.asarray(lengths), np.arange(width)
    filled = index < lengths[:, None]
    tokens = rng.choice([UNK, *range(MASK, VOCABULARY.size)], size=filled.shape)
    rows = np.arange(len(lengths))
    tokens[:, 0] = CLS
    tokens[rows, lengths // 2] = tokens[rows, lengths - 1] = SEP
    return {
        "tokens": np.where(filled, tokens, PAD).astype(np.int32),
        "segments": np.zeros(filled.shape, np.int32),
        "documents": filled.astype(np.int32),
        "positions": np.where(filled, index, 0).astype(np.int32),
    }


def masked(batch, seed: int = 0, progress: float = 1.0, **settings) -> dict[str, np.ndarray]:
    return view_of(MaskedLanguageModel(**settings), batch, seed, progress, PIECES)


def chosen_positions(view) -> np.ndarray:
    """[B, 48] bool."""
    chosen = np.zeros((len(view["masked_positions"]), 48), bool)
    rows, slots = np.nonzero(view["masked_weights"])
    chosen[rows, view["masked_positions"][rows, slots]] = True
    return chosen


def at_slots(view) -> np.ndarray:
    """[B, P] the input tokens."""
    return np.take_along_axis(view["tokens"], view["masked_positions"], 1)


def fates(view) -> np.ndarray:
    """[B, P]: 0 [MASK], 1 another token, 2 kept; −1 for unused slots and labels that are [MASK]."""
    inputs, label = at_slots(view), view["masked_labels"]
    fate = np.where(inputs == MASK, 0, np.where(inputs == label, 2, 1))
    return np.where(view["masked_weights"] & (label != MASK), fate, -1)


def z_score(count, draws, probability):
    return (count - draws * probability) / np.sqrt(draws * probability * (1 - probability))


@pytest.fixture(scope="module")
def many():
    """4000 rows of 40 tokens, 37 of them candidates, and their view with 6 masks each."""
    batch = rows_of(np.full(4000, 40), 48)
    return batch, masked(batch)


def test_the_number_of_masks_is_exact_at_every_length():
    lengths = np.arange(3, 513)  # the first row has nothing but special tokens
    view = masked(rows_of(lengths, 512), max_predictions=20)
    expected = [min(20, max(1, round(int(n) * 0.15)), n - 3) for n in lengths]
    np.testing.assert_array_equal(view["masked_weights"].sum(1), expected)
    assert view["masked_positions"].shape == (len(lengths), 20)


def test_only_candidates_are_chosen_in_order_and_the_rest_is_untouched(many):
    batch, view = many
    positions, used = view["masked_positions"], view["masked_weights"]
    chosen = np.take_along_axis(batch["tokens"], positions, 1)
    assert not np.isin(chosen[used], [PAD, CLS, SEP]).any() and {UNK, MASK} <= set(chosen[used])
    np.testing.assert_array_equal(view["masked_labels"][used], chosen[used])
    assert (np.diff(positions[:, :6]) > 0).all() and used[:, :6].all()
    assert not used[:, 6:].any() and not positions[:, 6:].any()
    elsewhere = ~chosen_positions(view)
    np.testing.assert_array_equal(view["tokens"][elsewhere], batch["tokens"][elsewhere])


@pytest.mark.parametrize(
    "exact, one, two", [(True, 6 / 37, 6 * 5 / (37 * 36)), (False, 0.15, 0.15**2)]
)
def test_the_choice_is_uniform_and_neighbours_are_independent(exact, one, two, many):
    chosen = chosen_positions(masked(many[0], exact=exact))
    assert not np.delete(chosen, WORDS, axis=1).any()
    assert np.abs(z_score(chosen.sum(0)[WORDS], 4000, one)).max() < LIMIT
    together = (chosen[:, WORDS[:-1]] & chosen[:, WORDS[1:]]).sum(0)
    assert np.abs(z_score(together, 4000, two)).max() < LIMIT
    assert len(np.unique(chosen, axis=0)) > 3600, "every row has its own choice"
    for number in () if exact else (0, 3, 6, 9, 12):
        count, probability = (chosen.sum(1) == number).sum(), binom.pmf(number, 37, 0.15)
        assert abs(z_score(count, 4000, probability)) < LIMIT, number


# BERT's table 8: shares of [MASK] and of a random token.
TABLE_8 = [(0.8, 0.1), (1.0, 0.0), (0.8, 0.2), (0.8, 0.0), (0.0, 0.8), (0.0, 1.0)]


@pytest.fixture(scope="module")
def by_shares(many):
    """Views by their shares, and one that keeps every token."""
    objectives = {
        (mask, random): MaskedLanguageModel(mask_share=mask, random_share=random)
        for mask, random in [*TABLE_8, (0.0, 0.0)]
    }

    def views(batch, key):
        return [item.view(batch, key, PIECES, 1.0) for item in objectives.values()]

    made = quick_jit(views)(many[0], jax.random.key(1))
    return dict(zip(objectives, jax.tree.map(np.asarray, made)))


@pytest.mark.parametrize("shares", TABLE_8)
def test_shares_of_mask_random_and_kept_are_those_of_table_8(by_shares, shares):
    mask, random = shares
    fate = fates(by_shares[shares])
    fate = fate[fate >= 0]
    by_chance = random / VOCABULARY.size  # a random draw may be [MASK], or the token itself
    expected = mask + by_chance, random - 2 * by_chance, 1 - mask - random + by_chance
    for which, share in enumerate(np.round(expected, 12)):
        count = (fate == which).sum()
        if share in (0.0, 1.0):
            assert count == share * len(fate)
        else:
            assert abs(z_score(count, len(fate), share)) < LIMIT, which


def test_random_tokens_are_uniform_over_the_whole_vocabulary(many, by_shares):
    inputs = at_slots(by_shares[0.0, 1.0])[:, :6].ravel()
    counts = np.bincount(inputs)
    assert len(counts) == VOCABULARY.size, "special ids included"
    assert np.abs(z_score(counts, len(inputs), 1 / VOCABULARY.size)).max() < LIMIT
    np.testing.assert_array_equal(by_shares[0.0, 0.0]["tokens"], many[0]["tokens"])


@pytest.mark.slow
def test_the_rate_goes_linearly_to_its_end():
    lengths, settings = np.arange(20, 300), {"rate": 0.3, "final_rate": 0.15}
    batch = rows_of(lengths, 300)
    for progress in (0.0, 0.5, 1.0):
        view, rate = masked(batch, progress=progress, **settings), 0.3 - 0.15 * progress
        expected = rate * lengths
        clear = np.abs(expected % 1 - 0.5) > 1e-3  # float32 may round a half either way
        number = view["masked_weights"].sum(1)
        np.testing.assert_array_equal(number[clear], np.round(expected)[clear])
        assert clear.sum() > 200 and view["masked_positions"].shape[1] == 90
        number = masked(batch, progress=progress, exact=False, **settings)["masked_weights"].sum()
        assert abs(z_score(number, (lengths - 3).sum(), rate)) < LIMIT


def test_independent_masks_have_slots_and_an_overflow_drops_any_of_them(many):
    for length, rate in itertools.product((16, 128, 512, 4096), (0.001, 0.15, 0.8, 1.0)):
        slots = MaskedLanguageModel(exact=False, rate=rate).slots(length)
        assert slots <= length and binom.sf(slots, length, rate) < 1e-6
    assert MaskedLanguageModel(exact=False).slots(512) < 130
    view = masked(many[0], exact=False, max_predictions=4)
    full = view["masked_weights"].all(1)
    assert 0.5 < full.mean() < 1
    counts = chosen_positions(view)[full].sum(0)[WORDS]
    assert np.abs(z_score(counts, full.sum(), 4 / 37)).max() < LIMIT, "not the first ones"


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["token", "span"])
def test_static_masks_are_a_function_of_example_and_visit(unit):
    rows = {name: np.tile(value, (3, 1)) for name, value in rows_of(np.full(20, 40), 48).items()}
    examples = np.tile(np.stack([np.arange(20) // 2, np.arange(20) % 2], 1), (3, 1))
    visits = np.repeat([0, 1, 2], 20).astype(np.int32)
    batch = {**rows, "visit": visits, "example_id": examples.astype(np.int32)}

    def show(batch, seed=0, **settings):
        return masked(batch, seed, static=True, unit=unit, **settings)

    view = show(batch)
    turned = show({name: value[::-1] for name, value in batch.items()}, seed=1, progress=0.2)
    for name, value in view.items():
        np.testing.assert_array_equal(value, turned[name][::-1], err_msg=name)
    chosen = chosen_positions(view)
    assert (chosen[:20] != chosen[20:40]).any(1).mean() > 0.9, "each visit has its own"
    for other in (examples[:, ::-1], examples + np.array([0, 2]), examples + np.array([10, 0])):
        changed = chosen_positions(show({**batch, "example_id": other.astype(np.int32)}))
        assert (changed != chosen).any(1).mean() > 0.8
    assert (chosen_positions(show(batch, static_seed=1)) != chosen).any(1).mean() > 0.9


def google_words(candidates, starts, priority, number) -> set[int]:
    """The loop of create_pretraining_data.py; its shuffled words in the order of `priority`."""
    words, chosen = [], []
    for position in np.flatnonzero(candidates):
        if starts[position]:
            words.append([position])
        else:
            words[-1].append(position)
    for word in sorted(words, key=lambda word: priority[word[0]]):
        if len(chosen) + len(word) <= number:
            chosen.extend(word)
    return set(chosen)


def test_whole_words_are_chosen_as_by_google():
    rng, rows, index = np.random.default_rng(0), 600, np.arange(64)
    tokens = rng.integers(2, 50, (rows, 64))
    second = (index > 40) * (np.arange(rows)[:, None] % 2)
    documents = np.where(index < 60, 1 + second, 0)
    candidates = (documents > 0) & (tokens > 3)
    continues = np.arange(50) >= 8  # long words, so that many do not fit
    starts = np.asarray(word_starts(tokens, documents, candidates, tuple(continues)))
    for row, position in np.argwhere(candidates):
        earlier = np.flatnonzero(candidates[row, :position])
        joins = len(earlier) and documents[row, earlier[-1]] == documents[row, position]
        assert starts[row, position] == (not (joins and continues[tokens[row, position]]))
    number, priority = rng.integers(0, 15, rows), rng.random((rows, 64))
    chosen = np.asarray(quick_jit(choose_words)(candidates, starts, priority, number))
    expected = [google_words(*row) for row in zip(candidates, starts, priority, number)]
    assert [set(np.flatnonzero(row)) for row in chosen] == expected
    short = [len(row) < most for row, most in zip(expected, number)]
    assert 0.05 < np.mean(short) < 0.95
    unknown = word_starts(tokens, documents, candidates, None)
    np.testing.assert_array_equal(unknown, candidates, err_msg="each piece is a word")


def test_pieces_of_a_whole_word_have_fates_of_their_own(many):
    view = masked(many[0], unit="whole_word")
    chosen = chosen_positions(view).sum(1)
    assert chosen.max() == 6 and (chosen == 6).mean() > 0.8
    pairs = np.stack([fates(view)[:, :-1], fates(view)[:, 1:]])
    in_word = (np.diff(view["masked_positions"]) == 1) & (view["masked_labels"][:, 1:] >= 25)
    both_masked = (pairs == 0).all(0)[in_word & (pairs >= 0).all(0)]
    assert len(both_masked) > 2000
    assert abs(z_score(both_masked.sum(), len(both_masked), 0.802**2)) < LIMIT


def test_span_lengths_are_geometric_and_longer_ones_drawn_again():
    chance = np.random.default_rng(0).random(100_000, np.float32)
    lengths = np.asarray(span_lengths(chance, 0.2, 10))
    probability = 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10)
    counts = np.bincount(lengths, minlength=11)
    assert len(counts) == 11 and counts[0] == 0
    assert np.abs(z_score(counts[1:], len(lengths), probability)).max() < LIMIT
    assert abs(lengths.mean() - 3.797) < 0.04, "3.8 in SpanBERT's section 3.1"


def test_without_a_parameter_spans_are_alberts_n_grams():
    chance = np.random.default_rng(0).random(100_000, np.float32)
    counts = np.bincount(span_lengths(chance, 0.0, 3))
    probability = np.array([6, 3, 2]) / 11
    assert np.abs(z_score(counts[1:], len(chance), probability)).max() < LIMIT


def spanbert_spans(rng, starts, end, number):
    """The loop of SpanBERT's masking.py over one row, with starts drawn among words (the paper)."""
    probability = 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10)
    chosen = set()
    while len(chosen) < number:
        length, first = rng.choice(np.arange(1, 11), p=probability), rng.integers(len(starts))
        if starts[first] in chosen:
            continue
        for position in range(starts[first], [*starts, *[end] * 10][first + length]):
            if len(chosen) < number:
                chosen.add(position)
    return list(chosen)


def test_spans_are_chosen_as_by_spanbert():
    rng, rows, end, number = np.random.default_rng(0), 6000, 30, 9
    starts = np.array([1, 2, 5, 6, 7, 9, 10, 11, 12, 15, 16, 17, 18, 21, 22, 23, 24, 25, 26, 27])
    expected, index = np.zeros((rows, 32), bool), np.arange(32)
    for row in expected:
        row[spanbert_spans(rng, starts, end, number)] = True
    candidates = np.tile((index > 0) & (index < end), (rows, 1))
    is_start = np.tile(np.isin(index, starts), (rows, 1))
    priority, extent = rng.random((2, rows, 32), np.float32)
    arguments = candidates, is_start, priority, span_lengths(extent, 0.2, 10), np.full(rows, number)
    chosen = np.asarray(quick_jit(choose_spans)(*arguments))
    np.testing.assert_array_equal(chosen.sum(1), number)

    def facts(chosen):
        runs = (chosen[:, 1:] & ~chosen[:, :-1]).sum(1)
        return np.column_stack([chosen, runs, runs == 1, chosen[:, 5] & chosen[:, 6]]) * 1.0

    one, other = facts(expected), facts(chosen)
    deviation = np.sqrt((one.var(0) + other.var(0)) / rows + 1e-12)
    assert np.abs((one.mean(0) - other.mean(0)) / deviation).max() < LIMIT


def test_a_span_ends_at_a_gap_and_goes_through_an_earlier_one():
    candidates = np.arange(12) != 9
    starts = candidates & (np.arange(12) != 6)
    priority, lengths = np.full((4, 12), 0.9), np.ones((4, 12), int)
    # The word 4 and the word 5-6; from 2 through them to the gap; then 0; then 10.
    for order, (start, length) in enumerate([(4, 2), (2, 9), (0, 1), (10, 1)]):
        priority[:, start], lengths[:, start] = order / 10, length
    rows = [np.tile(x, (4, 1)) for x in (candidates, starts)]
    chosen = np.asarray(quick_jit(choose_spans)(*rows, priority, lengths, np.array([2, 6, 8, 9])))
    expected = [[4, 5], [2, 3, 4, 5, 6, 7], [0, 2, 3, 4, 5, 6, 7, 8], [0, 2, 3, 4, 5, 6, 7, 8, 10]]
    assert [list(np.flatnonzero(row)) for row in chosen] == expected


@pytest.fixture(scope="module")
def spans(many):
    return masked(many[0], unit="span")


def test_spans_spend_the_budget_and_have_edges(spans):
    chosen = chosen_positions(spans)
    np.testing.assert_array_equal(chosen.sum(1), 6)
    for row, slot in np.ndindex(300, 6):
        position = left = right = spans["masked_positions"][row, slot]
        while chosen[row, left]:
            left -= 1
        while chosen[row, right]:
            right += 1
        found = [spans[f"span_{name}"][row, slot] for name in ("left", "right", "place")]
        assert found == [left, right, position - left]
    assert not any(spans[f"span_{name}"][:, 6:].any() for name in ("left", "right", "place"))


def test_a_span_has_one_fate(many, spans):
    inside, fate = spans["span_place"][:, 1:] > 1, fates(spans)
    is_mask = at_slots(spans) == MASK
    pairs = (fate[:, :-1] >= 0) & (fate[:, 1:] >= 0) & inside
    assert pairs.sum() > 5000
    # A random token may be [MASK].
    assert (is_mask[:, :-1] != is_mask[:, 1:])[pairs].mean() < 3 * 0.1 / VOCABULARY.size
    first = fate[spans["span_place"] == 1]
    for which, share in enumerate((0.802, 0.096, 0.102)):
        assert abs(z_score((first == which).sum(), (first >= 0).sum(), share)) < LIMIT, which
    drawn = at_slots(masked(many[0], unit="span", mask_share=0.0, random_share=1.0))
    equal = (drawn[:, 1:] == drawn[:, :-1])[inside]
    assert abs(z_score(equal.sum(), len(equal), 1 / VOCABULARY.size)) < LIMIT, "each its own draw"


def test_spans_stay_inside_documents():
    batch = packed_batch(rows=300, length=30)
    view = masked(batch, unit="span", rate=0.9)
    rows, slots = np.nonzero(view["masked_weights"])
    assert len(rows) > 1000
    names = ("masked_positions", "span_left", "span_right")
    documents = [batch["documents"][rows, view[name][rows, slots]] for name in names]
    np.testing.assert_array_equal(documents, [documents[0]] * 3)


@pytest.mark.parametrize(
    "family, predict, shares", [("bert", "chosen", (0.8, 0.1)), ("elmo", "all", (0.4, 0.4))]
)
def test_loss_and_accuracy_equal_numpy(family, predict, shares):
    """Of all tokens, a random [SEP] counts as the word that it hides."""
    mask, random = shares
    objective = MaskedLanguageModel(0.4, predict=predict, mask_share=mask, random_share=random)
    program, batch = program_with(objective, family), packed_batch(rows=6, length=24)
    batch["tokens"][:, 0], batch["tokens"][:, 2] = CLS, SEP
    params, view = random_params(program, batch), dict(views_of(program, batch)["it"])
    view["tokens"] = view["tokens"].copy()
    view["tokens"][0, view["masked_positions"][0, 0]] = SEP
    logits = output_logits(params["body"], hidden_states(program, params, view).both[-1])
    words = (batch["documents"] > 0) & ~np.isin(batch["tokens"], [PAD, CLS, SEP])
    changed = (view["tokens"] != batch["tokens"])[words]
    assert changed.sum() >= 6 and (~changed).sum() >= 6
    if predict == "chosen":
        words = chosen_positions(view)[:, :24]
    asked = [(row, t, batch["tokens"][row, t]) for row, t in np.argwhere(words)]
    assert_metrics(metrics_of(program, params, {"it": view}), "it", sums_of(logits, asked))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_span_boundary_loss_and_accuracy_equal_numpy(family):
    mlm = MaskedLanguageModel(0.4, unit="span", mask_share=1.0, random_share=0.0)
    objectives = {"mlm": mlm, "sbo": SpanBoundary(places=3, place_width=6)}
    program = dataclasses.replace(tiny_program(family, ""), objectives=objectives)
    batch = packed_batch(rows=6, length=24)
    params, views = random_params(program, batch), views_of(program, batch, seed=3)
    view, head = views["mlm"], params["heads_sbo"]
    hidden = hidden_states(program, params, view).both[-1]
    expected, deep = np.zeros(3), 0
    for row in range(6):
        chosen = set(view["masked_positions"][row][view["masked_weights"][row]].tolist())
        for position in chosen:
            before = max(p for p in range(position) if p not in chosen)
            after = min(p for p in range(position, 24) if p not in chosen)
            if position - before > 3:
                deep += 1
                continue
            own = head["places"][position - before - 1]
            h = np.concatenate([hidden[row, before], hidden[row, after], own])
            for layer in ("first", "second"):
                h = layer_norm(gelu(dense(h, head[layer])), head[f"{layer}_norm"], 1e-12)
            expected += summed(output_logits(params["body"], h), batch["tokens"][row, position])
    assert expected[2] >= 10 and deep >= 3
    assert_metrics(metrics_of(program, params, views), "sbo", expected)
