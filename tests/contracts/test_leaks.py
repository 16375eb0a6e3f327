"""No objective sees what it must predict: shown by Jacobians, not by shapes.

Taken of the hidden states, from which logits are computed position by position; that each loss takes the right
position's label is shown by the NumPy references of tests/objectives.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from bertlab import objectives
from bertlab.config import base_config
from bertlab.models.base import SIDES
from bertlab.models.presets import build_body, model_shape
from bertlab.objectives.program import Program
from tests.references import initial, quick_jit

VOCABULARY = objectives.Vocabulary(size=50, pad_id=0, unk_id=1, cls_id=2, sep_id=3, mask_id=4)
# (family, direction, side): every way in which a body gives states of one side.
ONE_SIDED = [
    ("gpt", "left-to-right", "forward"),
    ("bert", "left-to-right", "forward"),
    ("bert", "right-to-left", "backward"),
    ("elmo", "bidirectional", "forward"),
    ("elmo", "bidirectional", "backward"),
    ("elmo", "left-to-right", "forward"),
    ("modern", "left-to-right", "forward"),
    ("awd_lstm", "left-to-right", "forward"),
    ("awd_lstm", "right-to-left", "backward"),
]
ALL = [("bert", "bidirectional"), ("gpt", "left-to-right"), ("elmo", "bidirectional"), ("awd_lstm", "left-to-right")]
ROWS, LENGTH = 2, 10


def build(family, direction, vocab_size=VOCABULARY.size):
    """A program that only encodes."""
    config = base_config()
    config.model.update(family=family, size="tiny", direction=direction, width=16, hidden=24)
    return Program(build_body(model_shape(config.model, vocab_size)), {}, VOCABULARY)


@functools.cache
def encoder(family, direction):
    program = build(family, direction)
    return program, quick_jit(program.encode)


@functools.cache
def jacobians(family, direction):
    """(program, (params, batch) -> by side, the derivatives of its states by every embedding): one compilation a body."""
    # Every position shows a token of its own, so that the embedding table's rows are the positions' embeddings.
    program = build(family, direction, ROWS * LENGTH)

    def states(table, params, batch):
        encoded = program.encode({**params, "body": {**params["body"], "token_embedding": table}}, batch)
        last = {side: getattr(encoded, side)[-1] for side in SIDES if getattr(encoded, side) is not None}
        # Seen through a random direction: LayerNorm makes the plain sum constant.
        return {side: hidden @ jax.random.normal(jax.random.key(2), hidden.shape[-1:]) for side, hidden in last.items()}

    return program, quick_jit(lambda params, batch: jax.jacrev(states)(params["body"]["token_embedding"], params, batch))


def influence(family, direction, side, batch):
    """[B, L, L]: how much the states at each position (axis 1) depend on the embedding of the token at each (axis 2)."""
    batch = {**batch, "tokens": np.arange(ROWS * LENGTH, dtype=np.int32).reshape(ROWS, LENGTH)}
    program, derivatives = jacobians(family, direction)
    jacobian = derivatives(initial(program, batch, seed=1), batch)[side].reshape(ROWS, LENGTH, ROWS, LENGTH, -1)
    strength = np.abs(np.asarray(jacobian)).max(-1)
    own_row = np.eye(ROWS, dtype=bool)[:, None, :, None]
    assert not np.where(own_row, 0, strength).any(), "rows of a batch must not see each other"
    return np.stack([strength[r, :, r] for r in range(ROWS)])


@pytest.mark.parametrize(("family", "direction", "side"), ONE_SIDED)
def test_one_sided_states_see_one_side_of_their_own_document(family, direction, side, packed_batch):
    batch = packed_batch(rows=ROWS, length=LENGTH)
    strength = influence(family, direction, side, batch)
    position = np.arange(LENGTH)
    before = position[None, :] <= position[:, None]
    seen = before if side == "forward" else before.T
    same = batch["documents"][:, :, None] == batch["documents"][:, None, :]
    real = (batch["documents"] > 0)[:, :, None] & (batch["documents"] > 0)[:, None, :]
    assert (strength[np.broadcast_to(~seen, strength.shape)] == 0).all(), "it sees what it must predict"
    assert (strength[real & ~same] == 0).all(), "packed documents see each other"
    assert (strength[real & same & seen] > 0).all(), "it must see what it is allowed to"


@pytest.mark.parametrize("family", ["bert", "modern", "elmo"])
def test_both_sees_all_of_its_own_document_and_nothing_else(family, packed_batch):
    batch = packed_batch(rows=ROWS, length=LENGTH)
    strength = influence(family, "bidirectional", "both", batch)
    same = batch["documents"][:, :, None] == batch["documents"][:, None, :]
    real = (batch["documents"] > 0)[:, :, None] & (batch["documents"] > 0)[:, None, :]
    assert (strength[~same] == 0).all()
    assert (strength[real & same] > 0).all()


@pytest.mark.parametrize(("family", "direction"), ALL)
def test_logits_on_real_tokens_do_not_change_with_what_is_hidden(family, direction, packed_batch):
    """The same by experiment: other tokens after t, another document or other padding leave LTR's logits bit for bit."""
    side = "both" if family == "bert" else "forward"
    program, encode = encoder(family, direction)
    batch = packed_batch(rows=ROWS, length=LENGTH)
    params = initial(program, batch, seed=1)
    documents = batch["documents"]
    changed = np.where(documents == 1, batch["tokens"], (batch["tokens"] + 7) % 50).astype(np.int32)
    if side == "forward":
        cut = int((documents[0] == 1).sum()) - 1
        changed[0, cut] = (changed[0, cut] + 1) % 50
    states = [np.asarray(getattr(encode(params, {**batch, "tokens": t}), side)[-1]) for t in (batch["tokens"], changed)]
    keep = documents == 1
    if side == "forward":
        keep[0, cut] = False
    np.testing.assert_array_equal(states[0][keep], states[1][keep])
    assert (states[0][~keep] != states[1][~keep]).any()


def test_masked_lm_does_not_depend_on_the_original_id_under_a_mask(packed_batch):
    """With every chosen token masked, two texts that differ only there give the same view and the same logits."""
    mlm = objectives.find("mlm")(mask_share=1.0, random_share=0.0)
    program, encode = encoder("bert", "bidirectional")
    program = dataclasses.replace(program, objectives={"mlm": mlm})
    batch = packed_batch(rows=4, length=12)
    key = jax.random.key(3)
    view = program.views(batch, key)["mlm"]
    rows = np.arange(4)[:, None]
    chosen = np.zeros_like(batch["tokens"], bool)
    chosen[rows, np.asarray(view["masked_positions"])] |= np.asarray(view["masked_weights"])
    assert chosen.sum() >= 4
    other = {**batch, "tokens": np.where(chosen, 5 + (batch["tokens"] + 1) % 40, batch["tokens"]).astype(np.int32)}
    other_view = program.views(other, key)["mlm"]
    assert (np.asarray(view["masked_labels"]) != np.asarray(other_view["masked_labels"])).any()
    np.testing.assert_array_equal(view["tokens"], other_view["tokens"])
    params = initial(program, batch, seed=1)
    fields = ("tokens", "segments", "documents", "positions")
    logits = [encode(params, {field: v[field] for field in fields}).both[-1] for v in (view, other_view)]
    np.testing.assert_array_equal(*logits)
    shown = np.asarray(view["tokens"])
    assert (shown[chosen] == VOCABULARY.mask_id).all() and (shown[~chosen] == batch["tokens"][~chosen]).all()
