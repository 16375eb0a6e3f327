"""GPT-BERT's hybrid: two kinds of rows in one batch; causal rows are left-to-right modelling."""

import jax
import numpy as np
import pytest

from bertlab.objectives.autoregressive import LeftToRight
from bertlab.objectives.masked import MaskedLanguageModel
from bertlab.objectives.masked_next_token import MaskedNextToken
from tests.influence import assert_sees
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
)


def mixed(batch, seed: int = 0, **settings) -> dict[str, np.ndarray]:
    return view_of(MaskedNextToken(**settings), batch, seed)


def test_causal_rows_see_what_is_left_of_them_and_masked_rows_everything(packed_batch):
    batch = packed_batch(rows=4, length=10)
    view = mixed(batch, seed=1)
    assert 1 <= view["causal"].sum() <= 3
    t = np.arange(10)

    def expected(row):
        documents = batch["documents"][row]
        return (documents[:, None] == documents) & ((t <= t[:, None]) | ~view["causal"][row])

    assert_sees(view, expected)


def test_original_ids_under_masks_are_not_shown(packed_batch):
    batch = packed_batch(rows=8, length=12)
    settings = dict(causal_share=0.0, rate=0.4, mask_share=1.0, random_share=0.0)
    view = mixed(batch, **settings)
    assert not view["causal"].any()
    hidden = view["tokens"] == VOCABULARY.mask_id
    other = {**batch, "tokens": np.where(hidden & (batch["tokens"] != 4), 5 + (batch["tokens"] + 1) % 40, batch["tokens"])}
    other_view = mixed({**other, "tokens": other["tokens"].astype(np.int32)}, **settings)
    np.testing.assert_array_equal(view["tokens"], other_view["tokens"])
    assert (view["next_token_targets"] != other_view["next_token_targets"]).any()
    # What is predicted is what is hidden, one position later, and nothing else.
    np.testing.assert_array_equal(view["next_token_targets"][:, :-1] >= 0, hidden[:, 1:] & (batch["positions"][:, 1:] > 0))
    assert (view["next_token_targets"][:, -1] == -1).all()
    assert (hidden & (batch["positions"] == 0) & (batch["documents"] > 0)).any(), "a chosen first token is not predicted"


def test_loss_and_accuracy_equal_numpy(packed_batch):
    program, batch = program_with(MaskedNextToken(rate=0.4)), packed_batch(rows=6, length=14)
    params, view = random_params(program, batch), mixed(batch, seed=1, rate=0.4)
    logits = output_logits(params["body"], hidden_states(program, params, view).both[-1])
    chosen = view_of(MaskedLanguageModel(rate=0.4), batch, key=jax.random.split(jax.random.key(1))[1])
    asked = {True: [], False: []}
    for row, documents in enumerate(batch["documents"]):
        causal = bool(view["causal"][row])
        slots = chosen["masked_positions"][row][chosen["masked_weights"][row]]
        np.testing.assert_array_equal(view["tokens"][row], (batch if causal else chosen)["tokens"][row])
        inside = [t for t in range(1, 14) if documents[t] > 0 and documents[t - 1] == documents[t]]
        asked[causal] += [(row, t - 1, batch["tokens"][row, t]) for t in inside if causal or t in slots]
    assert view["causal"].sum() == 3 and min(map(len, asked.values())) >= 4
    metrics = metrics_of(program, params, {"it": view})
    assert_metrics(metrics, "it", sums_of(logits, asked[True] + asked[False]))
    for name, causal in (("causal_loss", True), ("masked_loss", False)):
        np.testing.assert_allclose(metrics[f"it/{name}"], sums_of(logits, asked[causal])[[0, 2]], rtol=2e-5)
    # Causal rows are left-to-right modelling with the same parameters.
    others = batch | {"documents": np.where(view["causal"][:, None], batch["documents"], 0)}
    theirs = metrics_of(program_with(LeftToRight(), direction="left-to-right"), params, {"clean": others})
    np.testing.assert_allclose(metrics["it/causal_loss"], theirs["it/loss"], rtol=2e-6)


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_each_row_is_causal_with_its_own_draw(share):
    tokens = np.full((4000, 8), 7, np.int32)
    zeros = np.zeros_like(tokens)
    view = mixed({"tokens": tokens, "documents": zeros + 1, "segments": zeros, "positions": zeros}, causal_share=share)
    causal = view["causal"]
    assert abs(causal.sum() - 4000 * share) <= 4.2 * np.sqrt(4000 * share * (1 - share))
    assert abs((causal[1:] & causal[:-1]).sum() - 3999 * share**2) <= 4.2 * np.sqrt(3999 * share**2 * (1 - share**2)) * 1.5
    assert ((view["next_token_targets"] >= 0).sum(1)[causal] == 7).all()
    assert (view["tokens"][causal] == 7).all() and (share == 1 or (view["tokens"][~causal] != 7).any())


def test_rows_are_masked_with_its_settings():
    settings = dict(rate=0.3, final_rate=0.2, mask_share=0.7, random_share=0.1)
    assert MaskedNextToken(**settings).masking == MaskedLanguageModel(**settings)
