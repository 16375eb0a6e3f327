"""GPT-BERT's hybrid: two kinds of rows in one batch, whose gradients are those of two pure batches added."""

import jax
import numpy as np
import pytest

from bertlab.errors import UserError
from bertlab.objectives.autoregressive import LeftToRight
from bertlab.objectives.masked import MaskedLanguageModel
from bertlab.objectives.masked_next_token import MaskedNextToken
from bertlab.objectives.program import Program
from tests.influence import assert_sees
from tests.references import VOCABULARY, assert_metrics, metrics_of, quick_jit, random_params, summed, tiny_program


def mixed(batch, seed: int = 0, **settings) -> dict[str, np.ndarray]:
    view = quick_jit(lambda batch, key: MaskedNextToken(**settings).view(batch, key, VOCABULARY, 1.0))
    return jax.tree.map(np.asarray, view(batch, jax.random.key(seed)))


def program_of(objective, direction: str = "bidirectional") -> Program:
    """A program of a small body whose logits are its states times the token embeddings (gpt)."""
    return Program(tiny_program("gpt", "", direction=direction, layers=2).body, {"it": objective}, VOCABULARY)


def gradient_of(program):
    """(params, view) -> loss sum and its gradient."""
    views = lambda view: {name: view for name in program.groups}
    return quick_jit(jax.value_and_grad(lambda params, view: program.metrics(params, views(view))["it/loss"][0]))


def rows_of(view, rows) -> dict[str, np.ndarray]:
    return {name: field[rows] for name, field in view.items()}


@pytest.fixture
def both_kinds(packed_batch):
    """A program, parameters, a batch of six rows and its view, some rows of each kind."""
    program, batch = program_of(MaskedNextToken(rate=0.4)), packed_batch(rows=6, length=14)
    view = mixed(batch, seed=1, rate=0.4)
    assert view["causal"].sum() == 3
    return program, random_params(program, batch), batch, view


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


def test_loss_and_accuracy_equal_numpy(both_kinds):
    program, params, batch, view = both_kinds
    hidden = np.asarray(quick_jit(program.encode)(params, view).both[-1], np.float64)
    mlm = quick_jit(lambda b, k: MaskedNextToken(rate=0.4).masking.view(b, k, VOCABULARY, 1.0))
    masked_key = jax.random.split(jax.random.key(1))[1]
    chosen = jax.tree.map(np.asarray, mlm(batch, masked_key))
    expected = {True: np.zeros(3), False: np.zeros(3)}
    for row in range(6):
        causal = bool(view["causal"][row])
        slots = chosen["masked_positions"][row][chosen["masked_weights"][row] > 0]
        np.testing.assert_array_equal(view["tokens"][row], (batch if causal else chosen)["tokens"][row])
        for t in range(1, 14) if causal else slots:
            if t and batch["documents"][row, t] > 0 and batch["documents"][row, t - 1] == batch["documents"][row, t]:
                logits = hidden[row, t - 1] @ np.float64(params["body"]["token_embedding"]).T
                expected[causal] += summed(logits, batch["tokens"][row, t])
    metrics = metrics_of(program, params, {"it": view})
    assert_metrics(metrics, "it", expected[True] + expected[False])
    for name, causal in (("causal_loss", True), ("masked_loss", False)):
        assert expected[causal][2] >= 4
        np.testing.assert_allclose(metrics[f"it/{name}"], expected[causal][[0, 2]], rtol=2e-5)


def test_gradient_of_a_mixed_batch_is_that_of_its_two_kinds_added(both_kinds):
    program, params, batch, view = both_kinds
    causal = view["causal"]
    gradient = gradient_of(program)
    mixed_loss, mixed_gradient = gradient(params, view)
    pure = [gradient(params, rows_of(view, rows)) for rows in (causal, ~causal)]
    alone = gradient_of(program_of(LeftToRight(), "left-to-right"))(params, rows_of(batch, causal))
    # The same float32 terms, added up in another order: a few units in the last place of the largest.
    np.testing.assert_allclose(mixed_loss, pure[0][0] + pure[1][0], rtol=2e-6)
    np.testing.assert_allclose(pure[0][0], alone[0], rtol=2e-6)
    leaves = [jax.tree.leaves(tree) for tree in (mixed_gradient, pure[0][1], pure[1][1], alone[1])]
    for whole, of_causal, of_masked, of_ltr in zip(*leaves, strict=True):
        tolerance = dict(rtol=0, atol=1e-5 * np.abs(whole).max())
        assert np.abs(of_causal).max() > 0 and np.abs(of_masked).max() > 0
        np.testing.assert_allclose(whole, of_causal + of_masked, **tolerance)
        np.testing.assert_allclose(of_causal, of_ltr, **tolerance)


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


def test_settings():
    with pytest.raises(UserError, match=r"causal_share=2 must be between 0 and 1"):
        MaskedNextToken(causal_share=2)
    with pytest.raises(UserError, match=r"rate=-1 must be"):
        MaskedNextToken(rate=-1)
    settings = dict(rate=0.3, final_rate=0.2, mask_share=0.7, random_share=0.1)
    assert MaskedNextToken(**settings).masking == MaskedLanguageModel(**settings)
    without = VOCABULARY.__class__(size=50, pad_id=0, unk_id=1, cls_id=2, sep_id=3, mask_id=None)
    with pytest.raises(UserError, match="it masks tokens"):
        MaskedNextToken().check(without)
