"""Masked diffusion: its times, masks and weights, its loss in NumPy, and that its expectation is the bound over all orders."""

import itertools
import json

import jax
import numpy as np
import pytest

from bertlab.objectives import REGISTRY
from bertlab.objectives.diffusion import SCHEDULES, MaskedDiffusion
from bertlab.objectives.program import Program
from bertlab.train import loop
from tests.conftest import ROOT
from tests.references import (
    VOCABULARY,
    hidden_states,
    log_softmax,
    metrics_of,
    output_logits,
    program_with,
    random_params,
    tiny_program,
    view_of,
)


def rows_of(rows: int, length: int = 8):
    tokens = np.full((rows, length), 7, np.int32)
    zeros = np.zeros_like(tokens)
    return {"tokens": tokens, "documents": zeros + 1, "segments": zeros, "positions": zeros}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_batch_has_all_times_evenly_and_a_row_any_time(schedule):
    objective = MaskedDiffusion(schedule=schedule)
    time = lambda share: share if schedule == "linear" else 1 - 2 / np.pi * np.arccos(share)
    firsts = []
    for seed in range(40):
        view = view_of(objective, rows_of(16), seed)
        share, weight = view["masked_share"], view["masked_weight"]
        times = np.sort(time(share))
        np.testing.assert_allclose(np.diff(times), 1 / 16, atol=2e-3)  # least_share shrinks them
        assert share.min() >= objective.least_share * 0.999
        slope = 1 if schedule == "linear" else np.pi / 2 * np.sin(np.arccos(share))
        np.testing.assert_allclose(weight, slope / share, rtol=1e-3, atol=1e-3)
        firsts.append(time(share)[0])
    # The same row of different steps: a mean of 40 uniform numbers, within 4.2 standard errors; its extremes are far apart.
    assert abs(np.mean(firsts) - 0.5) < 4.2 / np.sqrt(12 * 40) and np.ptp(firsts) > 0.7


def test_words_are_masked_with_the_probability_of_their_row(packed_batch):
    batch = rows_of(32, 400)
    batch["tokens"][:, :4] = [VOCABULARY.cls_id, VOCABULARY.sep_id, VOCABULARY.pad_id, VOCABULARY.mask_id]
    batch["documents"][:, -100:] = 0
    view = view_of(MaskedDiffusion(), batch)
    words, masked, share = view["words"], view["masked"], view["masked_share"]
    np.testing.assert_array_equal(words, (np.arange(400) >= 4) & (np.arange(400) < 300) & np.ones((32, 1), bool))
    assert not (masked & ~words).any()
    np.testing.assert_array_equal(view["tokens"], np.where(masked, VOCABULARY.mask_id, batch["tokens"]))
    np.testing.assert_array_equal(view["original_tokens"], batch["tokens"])
    assert (np.abs(masked.sum(1) - 296 * share) < 5 * np.sqrt(296 * share * (1 - share)) + 1).all()


@pytest.mark.parametrize("settings", [{}, {"schedule": "cosine", "time_conditioning": True}])
def test_loss_equals_numpy_and_never_predicts_the_mask(settings, packed_batch):
    program, batch = program_with(MaskedDiffusion(**settings)), packed_batch(rows=6, length=14)
    params, view = random_params(program, batch), view_of(MaskedDiffusion(**settings), batch)
    states = hidden_states(program, params, view).both[-1]
    if settings:
        words = (batch["documents"] > 0) & ~np.asarray(VOCABULARY.is_special(batch["tokens"]))
        shown_masks = ((view["tokens"] == VOCABULARY.mask_id) & (batch["documents"] > 0)).sum(1) / words.sum(1)
        waves = np.pi * shown_masks[:, None] * 2.0 ** np.arange(6)
        dense = params["heads_it"]["Dense_0"]
        scale, shift = np.split(np.hstack([np.sin(waves), np.cos(waves)]) @ dense["kernel"] + dense["bias"], 2, axis=-1)
        states = states * (1 + scale[:, None]) + shift[:, None]
    logits = output_logits(params["body"], states)
    logits[..., VOCABULARY.mask_id] = -np.inf
    nats = -np.take_along_axis(log_softmax(logits), batch["tokens"][..., None], axis=-1)[..., 0]
    weights = view["masked"] * view["masked_weight"][:, None]
    metrics = metrics_of(program, params, {"it": view})
    expected = (np.where(view["masked"], nats, 0) * weights).sum(), view["words"].sum()
    assert view["masked"].sum() > 10
    np.testing.assert_allclose(metrics["it/loss"], expected, rtol=2e-5)
    right = (logits.argmax(-1) == batch["tokens"]) * weights
    np.testing.assert_allclose(metrics["it/accuracy"], (right.sum(), weights.sum()), rtol=2e-5)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_its_expectation_is_the_mean_code_length_over_all_orders(schedule):
    """Every set of masks at every time, against every order: one function of (context, word), which need not be consistent."""
    size, rng = 4, np.random.default_rng(0)
    nats = {
        (hidden, i): rng.exponential()
        for r in range(1, size + 1)
        for hidden in itertools.combinations(range(size), r)
        for i in hidden
    }
    orders = list(itertools.permutations(range(size)))
    bound = np.mean([sum(nats[tuple(sorted(order[k:])), order[k]] for k in range(size)) for order in orders])

    objective = MaskedDiffusion(schedule=schedule, least_share=1e-6)
    middles = (np.arange(200_000) + 0.5) / 200_000
    share, weight = (np.float64(of) for of in jax.jit(objective.share_and_weight)(middles.astype(np.float32)))
    expected = 0.0
    for hidden in {hidden for hidden, _ in nats}:
        probability = share ** len(hidden) * (1 - share) ** (size - len(hidden))
        expected += (probability * weight).mean() * sum(nats[hidden, i] for i in hidden)
    # Numbers in float32, and what lies below the least share.
    assert expected == pytest.approx(bound, rel=1e-4)


@pytest.mark.nightly
def test_it_follows_left_to_right_and_masked_modelling_and_precedes_them(small_config, tmp_path):
    bert = f"{ROOT}/experiments/pretrain/bert.py:objectives="
    short = {"train__log_every": 1, "train__eval_every": 0, "train__eval_batches": 1, "model__layers": 1}
    loop.train(small_config(f"{bert}ltr", train__steps=1, model__direction="left-to-right", **short), tmp_path / "ltr")
    only = lambda name: " ".join(f"objectives.{of}.weight=0" for of in ("mlm", "diffusion", "prefix") if of != name)
    phases = f"0.25 {only('mlm')}; 0.5 {only('diffusion')}; 0.25 {only('prefix')}"
    config = small_config(
        f"{bert}mlm+diffusion+prefix", train__steps=4, train__phases=phases, model__direction="bidirectional", **short
    )
    config.init_from, config.objectives.prefix.max_share = str(tmp_path / "ltr"), 0.0
    loop.train(config, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    trained = [[key for key in line if key.endswith("/loss")] for line in lines if line["split"] == "train"]
    assert trained == [["mlm/loss"], ["diffusion/loss"], ["diffusion/loss"], ["prefix/loss"]]
    assert all(np.isfinite(line["loss"]) for line in lines)


def test_it_trains_beside_left_to_right_and_masked_modelling():
    objectives = {name: REGISTRY[name]() for name in ("mlm", "diffusion", "ltr")}
    program = Program(tiny_program("elmo", "").body, objectives, VOCABULARY)
    assert program.groups == {"mlm": ("mlm",), "diffusion": ("diffusion",), "clean": ("ltr",)}
