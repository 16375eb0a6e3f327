"""MLM's masks follow create_pretraining_data.py within sampling error, and its loss a NumPy reference."""

import jax
import numpy as np
import pytest

from bertlab.objectives import MaskedLanguageModel
from tests.references import (
    VOCABULARY,
    assert_metrics,
    dense,
    gelu,
    hidden_states,
    layer_norm,
    metrics_of,
    quick_jit,
    random_params,
    summed,
    tiny_program,
    views_of,
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


def masked(batch, seed: int = 0, **settings) -> dict[str, np.ndarray]:
    view = quick_jit(lambda batch, key: MaskedLanguageModel(**settings).view(batch, key, VOCABULARY))
    return jax.tree.map(np.asarray, view(batch, jax.random.key(seed)))


def z_score(count, draws, probability):
    return (count - draws * probability) / np.sqrt(draws * probability * (1 - probability))


@pytest.fixture(scope="module")
def many():
    """4000 rows of 40 tokens (37 candidates, 6 masks each) and their masked view."""
    batch = rows_of(np.full(4000, 40), 48)
    return batch, masked(batch)


@pytest.mark.parametrize(("rate", "most"), [(0.15, 20), (0.15, 77), (0.3, 512)])
def test_number_of_masks_is_exact_at_every_length(rate, most):
    lengths = np.arange(4, 513)
    view = masked(rows_of(lengths, 512), rate=rate, max_predictions=most)
    expected = [min(most, max(1, round(int(n) * rate)), n - 3) for n in lengths]
    np.testing.assert_array_equal(view["masked_weights"].sum(1), expected)
    assert view["masked_positions"].shape == (len(lengths), most)


def test_rows_without_candidates_are_left_alone():
    batch = rows_of([4, 4, 4], 8)
    batch["tokens"][0] = 0
    batch["documents"][0] = 0
    batch["tokens"][1, :4] = [2, 3, 3, 3]
    view = masked(batch)
    np.testing.assert_array_equal(view["masked_weights"].sum(1), [0, 0, 1])
    np.testing.assert_array_equal(view["tokens"][:2], batch["tokens"][:2])


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


def test_choice_is_uniform_over_candidates_and_neighbours_are_independent(many):
    batch, view = many
    chosen = np.zeros_like(batch["tokens"])
    chosen[np.arange(4000)[:, None], view["masked_positions"][:, :6]] = 1
    candidates = np.setdiff1d(np.arange(40), [0, 20, 39])
    assert np.abs(z_score(chosen.sum(0)[candidates], 4000, 6 / 37)).max() < LIMIT
    together = (chosen[:, candidates[:-1]] & chosen[:, candidates[1:]]).sum(0)
    assert np.abs(z_score(together, 4000, 6 * 5 / (37 * 36))).max() < LIMIT
    assert len(np.unique(chosen, axis=0)) > 3900, "every row has its own choice"


def test_shares_of_mask_random_and_kept_are_80_10_10(many):
    view = many[1]
    shown = np.take_along_axis(view["tokens"], view["masked_positions"], 1)[:, :6].ravel()
    label = view["masked_labels"][:, :6].ravel()
    plain = label != VOCABULARY.mask_id
    shown, label = shown[plain], label[plain]
    by_chance = 0.1 / VOCABULARY.size  # a random draw may be [MASK], or the token itself
    is_mask, is_kept = shown == VOCABULARY.mask_id, shown == label
    shares = {
        "mask": (is_mask, 0.8 + by_chance),
        "kept": (is_kept, 0.1 + by_chance),
        "random": (~is_mask & ~is_kept, 0.1 - 2 * by_chance),
    }
    for name, (where, share) in shares.items():
        assert abs(z_score(where.sum(), len(shown), share)) < LIMIT, name


def test_random_replacement_is_uniform_over_the_whole_vocabulary(many):
    batch, _ = many
    view = masked(batch, mask_share=0.0, random_share=1.0)
    shown = np.take_along_axis(view["tokens"], view["masked_positions"], 1)[:, :6].ravel()
    counts = np.bincount(shown, minlength=VOCABULARY.size)
    assert len(counts) == VOCABULARY.size, "no id beyond the vocabulary"
    assert np.abs(z_score(counts, len(shown), 1 / VOCABULARY.size)).max() < LIMIT, "special ids included"
    kept = masked(batch, mask_share=0.0, random_share=0.0)
    np.testing.assert_array_equal(kept["tokens"], batch["tokens"])


def test_masks_change_with_the_key_and_repeat_with_it(many):
    batch, view = many
    again, other = masked(batch), masked(batch, seed=1)
    np.testing.assert_array_equal(view["tokens"], again["tokens"])
    assert (view["masked_positions"] != other["masked_positions"]).any(1).mean() > 0.95


@pytest.mark.parametrize("family", ["bert", "elmo"])
def test_loss_and_accuracy_equal_numpy(family, packed_batch):
    program, batch = tiny_program(family, "mlm"), packed_batch(rows=6, length=24)
    params = random_params(program, batch)
    views = views_of(program, batch, seed=3)
    metrics = metrics_of(program, params, views)

    view = views["mlm"]
    hidden, output = hidden_states(program, params, view).both[-1], params["body"]["output"]
    name = "transform" if family == "bert" else "transform_both"
    table = params["body"]["token_embedding"] if family == "bert" else output["kernel"]
    predict = lambda params, hidden: program.body.apply({"params": params}, hidden, "both", method="predict_tokens")
    all_logits = np.asarray(quick_jit(predict)(params["body"], hidden.astype(np.float32)))
    expected = np.zeros(3)
    for row in range(6):
        for slot in np.flatnonzero(view["masked_weights"][row]):
            position = view["masked_positions"][row, slot]
            state = layer_norm(gelu(dense(hidden[row, position], output[name])), output[f"{name}_norm"], 1e-12)
            logits = state @ np.float64(table).T + output["bias"]
            np.testing.assert_allclose(all_logits[row, position], logits, rtol=1e-5, atol=1e-5)
            expected += summed(logits, batch["tokens"][row, position])
    assert expected[2] >= 6
    assert_metrics(metrics, "mlm", expected)
