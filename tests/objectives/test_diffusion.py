"""Masked diffusion: its times, masks and weights, its loss in NumPy, and that its expectation is
the mean code length of all orders."""

import itertools

import jax
import numpy as np
import pytest

from bertlab.objectives.diffusion import MaskedDiffusion
from tests.references import (
    VOCABULARY,
    hidden_states,
    log_softmax,
    metrics_of,
    output_logits,
    packed_batch,
    program_with,
    random_params,
    view_of,
)


def rows_of(rows: int, length: int = 8):
    tokens = np.full((rows, length), 7, np.int32)
    zeros = np.zeros_like(tokens)
    return {"tokens": tokens, "documents": zeros + 1, "segments": zeros, "positions": zeros}


@pytest.mark.parametrize("schedule", ("linear", "cosine"))
def test_a_batch_has_all_times_evenly_and_a_row_any_time(schedule):
    objective, firsts = MaskedDiffusion(schedule=schedule), []
    for seed in range(40):
        view = view_of(objective, rows_of(16), seed)
        share, weight = view["masked_share"], view["masked_weight"]
        time, slope = share, 1.0
        if schedule == "cosine":
            angle = np.arccos(share)
            time, slope = 1 - 2 / np.pi * angle, np.pi / 2 * np.sin(angle)
        # `least_share` makes the steps a little smaller.
        np.testing.assert_allclose(np.diff(np.sort(time)), 1 / 16, atol=2e-3)
        assert share.min() >= objective.least_share * 0.999
        np.testing.assert_allclose(weight, slope / share, rtol=1e-3, atol=1e-3)
        firsts.append(time[0])
    # 4.2 standard errors of the mean of 40 uniform numbers.
    assert abs(np.mean(firsts) - 0.5) < 4.2 / np.sqrt(12 * 40) and np.ptp(firsts) > 0.7


def test_words_are_masked_with_the_probability_of_their_row():
    batch, index = rows_of(32, 400), np.arange(400)
    batch["tokens"][:, :4] = [2, 3, 0, VOCABULARY.mask_id]
    batch["documents"][:, -100:] = 0
    view = view_of(MaskedDiffusion(), batch)
    words, masked, share = view["words"], view["masked"], view["masked_share"]
    np.testing.assert_array_equal(words, np.tile((index >= 4) & (index < 300), (32, 1)))
    assert not (masked & ~words).any()
    hidden = np.where(masked, VOCABULARY.mask_id, batch["tokens"])
    np.testing.assert_array_equal(view["tokens"], hidden)
    np.testing.assert_array_equal(view["original_tokens"], batch["tokens"])
    deviation = np.sqrt(296 * share * (1 - share))
    assert (np.abs(masked.sum(1) - 296 * share) < 5 * deviation + 1).all()


def test_loss_equals_numpy_and_never_predicts_the_mask():
    program, batch = program_with(MaskedDiffusion()), packed_batch(rows=6, length=14)
    params, view = random_params(program, batch), view_of(MaskedDiffusion(), batch)
    logits = output_logits(params["body"], hidden_states(program, params, view).both[-1])
    logits[..., VOCABULARY.mask_id] = -np.inf
    nats = -np.take_along_axis(log_softmax(logits), batch["tokens"][..., None], axis=-1)[..., 0]
    weights = view["masked"] * view["masked_weight"][:, None]
    metrics = metrics_of(program, params, {"it": view})
    assert view["masked"].sum() > 10
    expected = (np.where(view["masked"], nats, 0) * weights).sum(), view["words"].sum()
    np.testing.assert_allclose(metrics["it/loss"], expected, rtol=2e-5)
    right = (logits.argmax(-1) == batch["tokens"]) * weights
    np.testing.assert_allclose(metrics["it/accuracy"], (right.sum(), weights.sum()), rtol=2e-5)


@pytest.mark.parametrize("schedule", ("linear", "cosine"))
def test_its_expectation_is_the_mean_code_length_of_all_orders(schedule):
    """For any function of (hidden words, predicted word), which need not be consistent."""
    size, rng = 4, np.random.default_rng(0)
    hidden_sets = [
        hidden
        for number in range(1, size + 1)
        for hidden in itertools.combinations(range(size), number)
    ]
    nats = {(hidden, word): rng.exponential() for hidden in hidden_sets for word in hidden}
    lengths = [
        sum(nats[tuple(sorted(order[k:])), order[k]] for k in range(size))
        for order in itertools.permutations(range(size))
    ]
    objective = MaskedDiffusion(schedule=schedule, least_share=1e-6)
    middles = (np.arange(200_000, dtype=np.float32) + 0.5) / 200_000
    share, weight = map(np.float64, jax.jit(objective.share_and_weight)(middles))
    expected = 0.0
    for hidden in hidden_sets:
        probability = share ** len(hidden) * (1 - share) ** (size - len(hidden))
        expected += (probability * weight).mean() * sum(nats[hidden, word] for word in hidden)
    assert expected == pytest.approx(np.mean(lengths), rel=1e-4)
