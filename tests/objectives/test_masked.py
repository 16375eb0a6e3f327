"""MLM's masks follow their sources within sampling error, and its loss a NumPy reference."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from scipy.stats import binom

from bertlab.errors import UserError
from bertlab.objectives import MaskedLanguageModel, guessing_in_place
from bertlab.objectives.choosing import choose_spans, choose_words, span_lengths, word_starts
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
    tiny_program,
    view_of,
    views_of,
    without_context,
)

# A right sampler is beyond this many standard errors once in 30,000 draws; the seeds are fixed.
LIMIT = 4.2


def rows_of(lengths, width: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Rows `[CLS] tokens [SEP] tokens [SEP]` of the given lengths; the tokens may be [UNK] or look like [MASK]."""
    rng = np.random.default_rng(seed)
    lengths = np.asarray(lengths)
    filled = np.arange(width) < lengths[:, None]
    tokens = rng.choice([1, *range(4, VOCABULARY.size)], size=filled.shape)
    tokens[:, 0] = VOCABULARY.cls_id
    rows = np.arange(len(lengths))
    tokens[rows, lengths // 2], tokens[rows, lengths - 1] = VOCABULARY.sep_id, VOCABULARY.sep_id
    zeros = np.zeros_like(filled, np.int32)
    positions = np.where(filled, np.arange(width), 0).astype(np.int32)
    return {
        "tokens": np.where(filled, tokens, VOCABULARY.pad_id).astype(np.int32),
        "segments": zeros,
        "documents": filled.astype(np.int32),
        "positions": positions,
        "pair_label": zeros[:, 0],
    }


# Words of one, two and more pieces: ids from 25 on go on with a word.
PIECES = dataclasses.replace(VOCABULARY, continues=tuple(index >= 25 for index in range(50)))


def masked(batch, seed: int = 0, progress: float = 1.0, **settings) -> dict[str, np.ndarray]:
    return view_of(MaskedLanguageModel(**settings), batch, seed, progress, PIECES)


def chosen_positions(view) -> np.ndarray:
    """[B, 48] bool."""
    chosen = np.zeros((len(view["masked_positions"]), 48), bool)
    rows, slots = np.nonzero(view["masked_weights"])
    chosen[rows, view["masked_positions"][rows, slots]] = True
    return chosen


def fates(view) -> np.ndarray:
    """[B, P]: 0 [MASK], 1 something else, 2 kept; of slots that are used and whose token is not [MASK] itself, else −1."""
    shown, label = np.take_along_axis(view["tokens"], view["masked_positions"], 1), view["masked_labels"]
    fate = np.where(shown == VOCABULARY.mask_id, 0, np.where(shown == label, 2, 1))
    return np.where(view["masked_weights"] & (label != VOCABULARY.mask_id), fate, -1)


def z_score(count, draws, probability):
    return (count - draws * probability) / np.sqrt(draws * probability * (1 - probability))


@pytest.fixture(scope="module")
def many():
    """4000 rows of 40 tokens (37 candidates, 6 masks each) and their masked view."""
    batch = rows_of(np.full(4000, 40), 48)
    return batch, masked(batch)


@pytest.mark.parametrize("most", [20, 77])
def test_number_of_masks_is_exact_at_every_length(most):
    lengths = np.arange(3, 513)  # the first row has nothing but special tokens
    view = masked(rows_of(lengths, 512), max_predictions=most)
    expected = [min(most, max(1, round(int(n) * 0.15)), n - 3) for n in lengths]
    np.testing.assert_array_equal(view["masked_weights"].sum(1), expected)
    assert view["masked_positions"].shape == (len(lengths), most)


def test_only_candidates_are_chosen_in_order_and_the_rest_is_untouched(many):
    batch, view = many
    positions, used, rows = view["masked_positions"], view["masked_weights"].astype(bool), np.arange(4000)[:, None]
    chosen = batch["tokens"][rows, positions]
    assert not np.isin(chosen[used], [VOCABULARY.pad_id, VOCABULARY.cls_id, VOCABULARY.sep_id]).any()
    assert {VOCABULARY.unk_id, VOCABULARY.mask_id} <= set(chosen[used]), "any other token may be chosen"
    np.testing.assert_array_equal(view["masked_labels"][used], chosen[used])
    assert (np.diff(positions[:, :6]) > 0).all() and used[:, :6].all(), "ascending, used slots first"
    assert not used[:, 6:].any() and not positions[:, 6:].any()
    elsewhere = np.ones_like(batch["tokens"], bool)
    elsewhere[rows, positions[:, :6]] = False
    np.testing.assert_array_equal(view["tokens"][elsewhere], batch["tokens"][elsewhere])
    for field in ("documents", "segments", "positions", "pair_label"):
        np.testing.assert_array_equal(view[field], batch[field])


@pytest.mark.parametrize(("exact", "one", "two"), [(True, 6 / 37, 6 * 5 / (37 * 36)), (False, 0.15, 0.15**2)])
def test_choice_is_uniform_over_candidates_and_neighbours_are_independent(exact, one, two, many):
    chosen, candidates = chosen_positions(masked(many[0], exact=exact)), np.setdiff1d(np.arange(40), [0, 20, 39])
    assert not np.delete(chosen, candidates, axis=1).any()
    assert np.abs(z_score(chosen.sum(0)[candidates], 4000, one)).max() < LIMIT
    together = (chosen[:, candidates[:-1]] & chosen[:, candidates[1:]]).sum(0)
    assert np.abs(z_score(together, 4000, two)).max() < LIMIT
    assert len(np.unique(chosen, axis=0)) > (3900 if exact else 3600), "every row has its own choice"
    for number in () if exact else (0, 3, 6, 9, 12):
        assert abs(z_score((chosen.sum(1) == number).sum(), 4000, binom.pmf(number, 37, 0.15))) < LIMIT, number


# BERT's table 8: shares of [MASK], of the token itself and of a random one.
TABLE_8 = [(0.8, 0.1, 0.1), (1.0, 0.0, 0.0), (0.8, 0.0, 0.2), (0.8, 0.2, 0.0), (0.0, 0.2, 0.8), (0.0, 0.0, 1.0)]


@pytest.fixture(scope="module")
def by_shares(many):
    """The views of `many` by its shares, and one that keeps every token: one program, which draws but once."""
    shares = [*TABLE_8, (0.0, 1.0, 0.0)]
    objectives = [MaskedLanguageModel(mask_share=mask, random_share=random) for mask, _, random in shares]
    views = quick_jit(lambda batch, key: [o.view(batch, key, PIECES, 1.0) for o in objectives])
    return dict(zip(shares, jax.tree.map(np.asarray, views(many[0], jax.random.key(1)))))


@pytest.mark.parametrize("shares", TABLE_8)
def test_shares_of_mask_kept_and_random_are_those_of_table_8(by_shares, shares):
    mask, kept, random = shares
    fate = fates(by_shares[shares])
    fate = fate[fate >= 0]
    by_chance = random / VOCABULARY.size  # a random draw may be [MASK], or the token itself
    expected = [mask + by_chance, random - 2 * by_chance, kept + by_chance]
    for which, share in enumerate(expected):
        count = (fate == which).sum()
        if share in (0.0, 1.0):
            assert count == share * len(fate)
        else:
            assert abs(z_score(count, len(fate), share)) < LIMIT, which


def test_random_replacement_is_uniform_over_the_whole_vocabulary(many, by_shares):
    view = by_shares[0.0, 0.0, 1.0]
    shown = np.take_along_axis(view["tokens"], view["masked_positions"], 1)[:, :6].ravel()
    counts = np.bincount(shown, minlength=VOCABULARY.size)
    assert len(counts) == VOCABULARY.size, "no id beyond the vocabulary"
    assert np.abs(z_score(counts, len(shown), 1 / VOCABULARY.size)).max() < LIMIT, "special ids included"
    np.testing.assert_array_equal(by_shares[0.0, 1.0, 0.0]["tokens"], many[0]["tokens"])


@pytest.mark.parametrize("settings", [{}, {"exact": False}, {"unit": "whole_word"}, {"unit": "span"}])
def test_rows_do_not_depend_on_each_other(settings, many):
    batch = many[0]
    other = {**batch, "tokens": batch["tokens"].copy(), "documents": batch["documents"].copy()}
    other["tokens"][::2], other["documents"][::2, 30:] = (batch["tokens"][::2] + 7) % 50, 0
    views = [masked(b, **settings) for b in (batch, other)]
    for field, value in views[0].items():
        np.testing.assert_array_equal(value[1::2], views[1][field][1::2], err_msg=field)


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_rate_goes_linearly_to_its_end(progress):
    lengths = np.arange(20, 300)
    batch, settings = rows_of(lengths, 300), {"progress": progress, "rate": 0.3, "final_rate": 0.15}
    view = masked(batch, **settings)
    exact = (0.3 - 0.15 * progress) * lengths
    # float32 may round a half either way.
    clear = np.abs(exact % 1 - 0.5) > 1e-3
    np.testing.assert_array_equal(view["masked_weights"].sum(1)[clear], np.round(exact)[clear])
    assert clear.sum() > 200 and view["masked_positions"].shape[1] == 90
    single = masked(batch, exact=False, **settings)
    rate = 0.3 - 0.15 * progress
    assert abs(z_score(single["masked_weights"].sum(), (lengths - 3).sum(), rate)) < LIMIT


def test_there_are_slots_for_tokens_by_themselves_and_an_overflow_drops_any_of_them(many):
    for length, rate in itertools.product((16, 128, 512, 4096), (0.001, 0.15, 0.8, 1.0)):
        slots = MaskedLanguageModel(exact=False, rate=rate).slots(length)
        assert slots <= length and binom.sf(slots, length, rate) < 1e-6
    assert MaskedLanguageModel(exact=False).slots(512) < 130
    view = masked(many[0], exact=False, max_predictions=4)
    full = view["masked_weights"].all(1)
    assert 0.5 < full.mean() < 1
    candidates = np.setdiff1d(np.arange(40), [0, 20, 39])
    counts = chosen_positions(view)[full].sum(0)[candidates]
    assert np.abs(z_score(counts, full.sum(), 4 / 37)).max() < LIMIT, "the first ones have no better chance"


@pytest.mark.parametrize("unit", ["token", "span"])
def test_static_masks_are_a_function_of_example_and_visit(unit):
    batch = {**rows_of(np.full(60, 40), 48), "visit": np.repeat([0, 1, 2], 20).astype(np.int32)}
    for field in ("tokens", "segments", "documents", "positions"):
        batch[field] = np.tile(batch[field][:20], (3, 1))
    batch["example_id"] = np.tile(np.stack([np.arange(20) // 2, np.arange(20) % 2], 1), (3, 1)).astype(np.int32)
    show = lambda batch, seed=0, **more: masked(batch, seed=seed, static=True, unit=unit, **more)
    view = show(batch)
    turned = show({field: value[::-1] for field, value in batch.items()}, seed=1, progress=0.2)
    for field, value in view.items():
        np.testing.assert_array_equal(value, turned[field][::-1], err_msg=field)
    chosen, fate = chosen_positions(view), fates(view)
    assert (chosen[:20] != chosen[20:40]).any(1).mean() > 0.9, "each visit has its own"
    for other in (batch["example_id"][:, ::-1], batch["example_id"] + [0, 2], batch["example_id"] + [10, 0]):
        assert (chosen_positions(show({**batch, "example_id": other.astype(np.int32)})) != chosen).any(1).mean() > 0.8
    assert 0.7 < (fate == 0).sum() / (fate >= 0).sum() < 0.9
    if unit == "span":
        assert (chosen_positions(show(batch, static_seed=1)) != chosen).any(1).mean() > 0.9
    else:
        first = show({field: value for field, value in batch.items() if field != "visit"})
        np.testing.assert_array_equal(chosen_positions(first), np.tile(chosen[:20], (3, 1)))
    with pytest.raises(UserError, match="needs the batch field example_id"):
        show({field: value for field, value in batch.items() if field != "example_id"})


def google_words(candidates, starts, priority, wanted) -> set[int]:
    """The loop of create_pretraining_data.py over one row, its shuffled groups in the order of `priority`."""
    groups = []
    for position in np.flatnonzero(candidates):
        if starts[position]:
            groups.append([position])
        else:
            groups[-1].append(position)
    chosen = []
    for group in sorted(groups, key=lambda group: priority[group[0]]):
        if len(chosen) >= wanted:
            break
        if len(chosen) + len(group) > wanted:
            continue
        chosen.extend(group)
    return set(chosen)


def test_whole_words_are_chosen_as_by_google():
    rng = np.random.default_rng(0)
    tokens = rng.integers(2, 50, (600, 64))
    documents = np.where(np.arange(64) < 60, 1 + (np.arange(64) > 40) * (np.arange(600)[:, None] % 2), 0)
    candidates = (documents > 0) & (tokens > 3)
    wanted = rng.integers(0, 15, 600)
    priority = rng.random((600, 64))
    continues = tuple(index >= 8 for index in range(50))  # long words, so that many do not fit

    starts = np.asarray(word_starts(tokens, documents, candidates, continues))
    for row in range(600):
        for position in np.flatnonzero(candidates[row]):
            beside = position and candidates[row, position - 1] and documents[row, position - 1] == documents[row, position]
            joins = continues[tokens[row, position]] and beside
            assert starts[row, position] == (not joins)
    chosen = np.asarray(quick_jit(choose_words)(candidates, starts, priority, wanted))
    expected = [google_words(*row) for row in zip(candidates, starts, priority, wanted)]
    assert [set(np.flatnonzero(row)) for row in chosen] == expected
    short = [len(row) < most for row, most in zip(expected, wanted)]
    assert 0.05 < np.mean(short) < 0.95, "both ends of the rule must have been met"


def test_whole_words_are_never_split_and_their_pieces_have_fates_of_their_own(many):
    batch = many[0]
    view = masked(batch, unit="whole_word")
    chosen = chosen_positions(view)
    assert chosen.sum(1).max() == 6 and (chosen.sum(1) == 6).mean() > 0.8
    candidates = (batch["documents"] > 0) & ~np.isin(batch["tokens"], [0, 2, 3])
    for row in range(1000):
        position = np.flatnonzero(candidates[row])
        joins = np.asarray(PIECES.continues)[batch["tokens"][row, position[1:]]] & (np.diff(position) == 1)
        np.testing.assert_array_equal(chosen[row, position[1:]][joins], chosen[row, position[:-1]][joins])
    pairs = np.stack([fates(view)[:, :-1], fates(view)[:, 1:]])
    beside = (np.diff(view["masked_positions"]) == 1) & (pairs >= 0).all(0) & (view["masked_labels"][:, 1:] >= 25)
    both_masked = (pairs == 0).all(0)[beside]
    assert len(both_masked) > 2000 and abs(z_score(both_masked.sum(), len(both_masked), 0.802**2)) < LIMIT
    unknown = word_starts(batch["tokens"], batch["documents"], candidates, VOCABULARY.continues)
    np.testing.assert_array_equal(unknown, candidates, err_msg="each piece is a word")


def test_span_lengths_are_geometric_without_a_heap_at_the_end():
    lengths = np.asarray(span_lengths(np.random.default_rng(0).random(100_000, np.float32), 0.2, 10))
    probability = 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10)
    counts = np.bincount(lengths, minlength=11)
    assert len(counts) == 11 and counts[0] == 0
    assert np.abs(z_score(counts[1:], len(lengths), probability)).max() < LIMIT
    assert abs(lengths.mean() - 3.797) < 0.04, "3.8 in SpanBERT's section 3.1"
    assert set(np.asarray(span_lengths(np.array([0.0, 0.999999], np.float32), 1.0, 10))) == {1}
    assert set(np.asarray(span_lengths(np.array([0.0, 0.999999], np.float32), 0.2, 1))) == {1}


def spanbert_spans(rng, starts, end, wanted):
    """The loop of SpanBERT's masking.py over one row of words, but starts are drawn among words (the paper's section 3.1)."""
    probability = 0.2 * 0.8 ** np.arange(10) / (1 - 0.8**10)
    chosen = set()
    while len(chosen) < wanted:
        length, first = rng.choice(np.arange(1, 11), p=probability), rng.integers(len(starts))
        if starts[first] in chosen:
            continue
        for position in range(starts[first], [*starts, *[end] * 10][first + length]):
            if len(chosen) < wanted:
                chosen.add(position)
    return chosen


def test_spans_are_chosen_as_by_spanbert():
    rng = np.random.default_rng(0)
    starts = np.array([1, 2, 5, 6, 7, 9, 10, 11, 12, 15, 16, 17, 18, 21, 22, 23, 24, 25, 26, 27])
    number, end, wanted = 6000, 30, 9
    expected = np.zeros((number, 32), bool)
    for row in expected:
        row[list(spanbert_spans(rng, starts, end, wanted))] = True
    candidates = np.broadcast_to((np.arange(32) > 0) & (np.arange(32) < end), expected.shape)
    is_start = np.broadcast_to(np.isin(np.arange(32), starts), expected.shape)
    priority, extent = rng.random((2, number, 32), np.float32)
    lengths = np.asarray(span_lengths(extent, 0.2, 10))
    chosen = np.asarray(quick_jit(choose_spans)(candidates, is_start, priority, lengths, np.full(number, wanted)))
    np.testing.assert_array_equal(chosen.sum(1), wanted)
    runs = lambda chosen: (chosen[:, 1:] & ~chosen[:, :-1]).sum(1)
    differ = lambda one, other: (one.mean(0) - other.mean(0)) / np.sqrt((one.var(0) + other.var(0)) / number + 1e-12)
    assert np.abs(differ(expected, chosen)).max() < LIMIT
    for values in zip(*[[runs(c), runs(c) == 1, c[:, 5] & c[:, 6]] for c in (expected, chosen)]):
        assert abs(differ(*values)) < LIMIT


def test_a_span_ends_at_a_gap_and_goes_through_an_earlier_one():
    candidates = np.arange(12) != 9
    starts = candidates & (np.arange(12) != 6)
    priority, lengths = np.full((4, 12), 0.9), np.ones((4, 12), int)
    # The word 4 and the word 5-6; from 2 through them to the gap; then 0; then 10.
    for order, (start, length) in enumerate([(4, 2), (2, 9), (0, 1), (10, 1)]):
        priority[:, start], lengths[:, start] = order / 10, length
    rows = [np.broadcast_to(x, (4, 12)) for x in (candidates, starts)]
    chosen = np.asarray(quick_jit(choose_spans)(*rows, priority, lengths, np.array([2, 6, 8, 9])))
    expected = [[4, 5], [2, 3, 4, 5, 6, 7], [0, 2, 3, 4, 5, 6, 7, 8], [0, 2, 3, 4, 5, 6, 7, 8, 10]]
    assert [list(np.flatnonzero(row)) for row in chosen] == expected


@pytest.fixture(scope="module")
def spans(many):
    """The rows of `many` and their view by spans."""
    return many[0], masked(many[0], unit="span")


def test_spans_spend_the_budget_and_have_boundaries(spans):
    batch, view = spans
    chosen = chosen_positions(view)
    np.testing.assert_array_equal(chosen.sum(1), 6)
    candidates = ~np.isin(batch["tokens"], [0, 2, 3])
    starts = np.asarray(word_starts(batch["tokens"], batch["documents"], candidates, PIECES.continues))
    begins = chosen & ~np.pad(chosen, ((0, 0), (1, 0)))[:, :-1]
    after_special = np.pad(np.isin(batch["tokens"], [2, 3]), ((0, 0), (1, 0)))[:, :-1]
    assert (starts | after_special)[begins].all(), "a span begins with a word"
    for row in range(300):
        for slot in range(6):
            position = left = right = view["masked_positions"][row, slot]
            while chosen[row, left]:
                left -= 1
            while chosen[row, right]:
                right += 1
            found = [view[f"span_{field}"][row, slot] for field in ("left", "right", "place")]
            assert found == [left, right, position - left]
    for field in ("left", "right", "place"):
        assert not view[f"span_{field}"][:, 6:].any()


def test_a_span_has_one_fate(spans):
    _, view = spans
    shown = np.take_along_axis(view["tokens"], view["masked_positions"], 1)
    same_span = view["span_place"][:, 1:] > 1
    is_mask = shown == VOCABULARY.mask_id
    fate = fates(view)
    pairs = (fate[:, :-1] >= 0) & (fate[:, 1:] >= 0) & same_span
    assert pairs.sum() > 5000
    disagree = is_mask[:, :-1] != is_mask[:, 1:]
    assert disagree[pairs].mean() < 3 * 0.1 / VOCABULARY.size, "but for random tokens that are [MASK] by chance"
    first = fate[view["span_place"] == 1]
    for which, share in enumerate((0.802, 0.096, 0.102)):
        assert abs(z_score((first == which).sum(), (first >= 0).sum(), share)) < LIMIT, which
    random = masked(spans[0], unit="span", mask_share=0.0, random_share=1.0)
    drawn = np.take_along_axis(random["tokens"], random["masked_positions"], 1)
    equal = (drawn[:, 1:] == drawn[:, :-1])[random["span_place"][:, 1:] > 1]
    assert abs(z_score(equal.sum(), len(equal), 1 / VOCABULARY.size)) < LIMIT, "random tokens are drawn one by one"


def test_spans_stay_inside_documents_without_specials(packed_batch):
    batch = packed_batch(rows=300, length=30)
    view = masked(batch, unit="span", rate=0.9)
    rows, slots = np.nonzero(view["masked_weights"])
    assert len(rows) > 1000
    at = lambda field: batch["documents"][rows, view[field][rows, slots]]
    np.testing.assert_array_equal(at("span_left"), at("masked_positions"))
    np.testing.assert_array_equal(at("span_right"), at("masked_positions"))


@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_loss_and_accuracy_equal_numpy(family, packed_batch):
    program, batch = tiny_program(family, "mlm"), packed_batch(rows=6, length=24)
    params = random_params(program, batch)
    views = views_of(program, batch, seed=3)
    metrics = metrics_of(program, params, views)

    view = views["mlm"]
    hidden = hidden_states(program, params, view).both[-1]
    logits = output_logits(params["body"], hidden)
    predict = lambda params, hidden: program.body.apply({"params": params}, hidden, "both", method="predict_tokens")
    theirs = quick_jit(predict)(params["body"], hidden.astype(np.float32))
    np.testing.assert_allclose(theirs, logits, rtol=1e-5, atol=1e-5)
    rows, slots = np.nonzero(view["masked_weights"])
    positions = view["masked_positions"][rows, slots]
    assert len(rows) >= 6
    assert_metrics(metrics, "mlm", sums_of(logits, zip(rows, positions, batch["tokens"][rows, positions])))


def test_loss_of_all_tokens_equals_numpy(packed_batch):
    """Special tokens and padding are not asked, nor is a random [SEP] in the place of a word taken for one."""
    objective = MaskedLanguageModel(predict="all", rate=0.4, mask_share=0.4, random_share=0.4)
    program, batch = program_with(objective), packed_batch(rows=6, length=24)
    batch["tokens"][:, 0], batch["tokens"][:, 2] = VOCABULARY.cls_id, VOCABULARY.sep_id
    params, views = random_params(program, batch), views_of(program, batch)
    view = dict(views["it"])
    at = view["masked_positions"][0, 0]  # a slot is never empty in a row with words
    view["tokens"] = view["tokens"].copy()
    view["tokens"][0, at] = VOCABULARY.sep_id
    logits = output_logits(params["body"], hidden_states(program, params, view).both[-1])
    words = (batch["documents"] > 0) & ~np.isin(batch["tokens"], [0, VOCABULARY.cls_id, VOCABULARY.sep_id])
    assert (view["tokens"] != batch["tokens"])[words].sum() >= 6 and (view["tokens"] == batch["tokens"])[words].sum() >= 6
    asked = [(row, t, batch["tokens"][row, t]) for row, t in np.argwhere(words)]
    assert_metrics(metrics_of(program, params, {"it": view}), "it", sums_of(logits, asked))


def test_what_other_tokens_cost_does_not_depend_on_what_is_masked_and_a_planted_leak_shows(packed_batch):
    """Of two texts that differ under the masks, the losses of all tokens differ by those of the chosen ones alone."""
    settings = dict(rate=0.3, mask_share=1.0, random_share=0.0)
    of_all, of_chosen = (program_with(MaskedLanguageModel(**settings, predict=what)) for what in ("all", "chosen"))
    batch = packed_batch(rows=4, length=16)
    params = random_params(of_all, batch, scale=2.0)
    view = views_of(of_all, batch)["it"]
    other = {**view, "masked_labels": np.where(view["masked_weights"], 5 + view["masked_labels"] % 40, 0).astype(np.int32)}
    assert (other["masked_labels"] != view["masked_labels"])[view["masked_weights"]].all()

    def rest(view) -> float:
        return float(metrics_of(of_all, params, {"it": view})["it/loss"][0]) - float(
            metrics_of(of_chosen, params, {"it": view})["it/loss"][0]
        )

    assert abs(rest(view) - rest(other)) < 2e-3
    rows, slots = np.nonzero(view["masked_weights"])
    leaking = []
    for one in (view, other):
        shown = one["tokens"].copy()
        shown[rows, one["masked_positions"][rows, slots]] = one["masked_labels"][rows, slots]
        leaking.append(rest({**one, "tokens": shown}))
    assert abs(leaking[0] - leaking[1]) > 0.05


@pytest.mark.parametrize(("final_rate", "expected"), [(0.15, 0.15), (0.0, 0.3)])
def test_the_floor_is_that_of_the_rate_that_evaluation_masks_with(final_rate, expected):
    objective = MaskedLanguageModel(rate=0.3, final_rate=final_rate, max_predictions=0, exact=False)
    view = view_of(objective, rows_of([20, 20], 24), progress=1.0)
    assert objective.corruption(view, VOCABULARY).rate == expected


FREQUENCY = np.array([0.3, 0.2, *(0.5 / 20 for _ in range(20))])
NATS = without_context(FREQUENCY, 1.0, 0.0)


@pytest.mark.parametrize("predict", ["chosen", "all"])
@pytest.mark.parametrize("shares", [(0.8, 0.1), (0.8, 0.0), (0.8, 0.2), (0.0, 0.8), (0.0, 0.5), (1.0, 0.0), (0.0, 0.0)])
def test_guessing_costs_the_best_model_without_context_what_it_is_said_to(shares, predict):
    chosen = 0.4 if predict == "all" else 1.0  # the share of the predicted tokens
    settings = {"mask_share": shares[0], "random_share": shares[1], "rate": 0.4, "predict": predict}
    least, most = MaskedLanguageModel(**settings).guessing_in_place(NATS)
    best = without_context(FREQUENCY, *(chosen * share for share in shares))
    assert least <= best + 1e-9 and best <= most + 1e-9 and most <= min(least + np.log(2), NATS) + 1e-9
    assert least == pytest.approx(most) or shares[1], "what is not [MASK] is then the answer"


def test_what_is_shown_is_asked_of_the_objective_whose_view_it_is():
    """In saved settings, where others are as in this version and those of an objective from outside are not known."""
    best = without_context(FREQUENCY, 0.8, 0.1)
    of = lambda name, **entries: guessing_in_place(entries, name, NATS)
    shown = of("mlm", mlm={"weight": 1.0})
    assert shown[0] <= best <= shown[1] < NATS
    assert of("sbo", sbo={"weight": 1.0}, mlm={"unit": "span"}) == shown
    assert of("sbo", sbo={}, mlm={"unit": "span", "predict": "all"}) == shown, "it predicts the chosen tokens only"
    assert of("masked_next_token", masked_next_token={"causal_share": 0.0}) == shown
    half = of("masked_next_token", masked_next_token={"causal_share": 0.5, "rate": 0.2})
    assert half == pytest.approx([(NATS + 0.2 * limit) / 1.2 for limit in shown]), "1 and 0.2 predictions of a token"
    unseen = (NATS, NATS)
    assert of("ltr", ltr={}, mlm={}) == of("diffusion", diffusion={}) == of("permutation", permutation={}) == unseen
    assert of("mlm") == of("Mine", Mine={"implementation": "no_such_module:Mine", "rate": 0.1}) == unseen
