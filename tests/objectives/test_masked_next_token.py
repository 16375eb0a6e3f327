"""GPT-BERT's hybrid: two kinds of rows in one batch; causal rows are left-to-right modelling."""

import dataclasses

import jax
import numpy as np

from bertlab.objectives.autoregressive import LeftToRight
from bertlab.objectives.masked_next_token import MaskedNextToken
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
)


def test_causal_rows_see_what_is_left_of_them_and_masked_rows_everything():
    batch, t = packed_batch(rows=4, length=10), np.arange(10)
    view = view_of(MaskedNextToken(), batch, seed=1)
    assert 1 <= view["causal"].sum() <= 3

    def expected(row):
        documents = batch["documents"][row]
        return (documents[:, None] == documents) & ((t <= t[:, None]) | ~view["causal"][row])

    assert_sees(view, expected)


def test_loss_and_accuracy_equal_numpy():
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
        shown = (batch if causal else masked)["tokens"][row]
        np.testing.assert_array_equal(view["tokens"][row], shown)
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
    tokens = np.full((rows, 8), 7, np.int32)
    zeros = np.zeros_like(tokens)
    batch = {"tokens": tokens, "documents": zeros + 1, "segments": zeros, "positions": zeros}
    view = view_of(MaskedNextToken(causal_share=share), batch)
    causal = view["causal"]
    assert abs(causal.sum() - rows * share) <= 4.2 * np.sqrt(rows * share * (1 - share))
    both, chance = (causal[1:] & causal[:-1]).sum(), share**2
    assert abs(both - rows * chance) <= 6.3 * np.sqrt(rows * chance * (1 - chance))
    assert ((view["next_token_targets"] >= 0).sum(1)[causal] == 7).all()
    assert (view["tokens"][causal] == 7).all() and (view["tokens"][~causal] != 7).any()
