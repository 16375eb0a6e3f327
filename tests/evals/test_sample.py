"""Texts drawn from models: the distribution of the pieces, and what each step sees."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from bertlab.errors import UserError
from bertlab.evals.sample import draw_pieces, sample
from bertlab.evals.scoring import HIDDEN, Scoring, scoring
from bertlab.objectives import REGISTRY, Objective
from bertlab.objectives.autoregressive import LeftToRight
from tests.evals.tiny import PIECES, model_of, shared_scorer


def test_pieces_are_drawn_by_their_probabilities_at_a_temperature():
    rng = np.random.default_rng(0)
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]])).repeat(20_000, 0)
    squares = np.array([0.25, 0.09, 0.0225, 0.0025])
    for temperature, forbidden, expected in (
        (1.0, set(), [0.5, 0.3, 0.15, 0.05]),
        (0.5, set(), squares / squares.sum()),
        (1.0, {0}, [0, 0.6, 0.3, 0.1]),
        (0.0, {0}, [0, 1, 0, 0]),
    ):
        drawn = draw_pieces(logits, forbidden, temperature, rng)
        found, expected = np.bincount(drawn, minlength=4) / 20_000, np.array(expected)
        # 4.2 standard errors of a share.
        limit = 4.2 * np.sqrt(expected * (1 - expected) / 20_000)
        assert (np.abs(found - expected) <= limit).all()


BIGRAMS = np.random.default_rng(3).dirichlet(np.full(len(PIECES), 0.5), len(PIECES))


@dataclasses.dataclass(frozen=True)
class Bigrams(LeftToRight):
    """Each piece follows the one before it by a table: a one-hot state reads its row."""

    def token_logits(self, model, hidden, side):
        before = jnp.argmax(hidden[..., : len(PIECES)], axis=-1)
        return jnp.log(BIGRAMS)[before]


def test_left_to_right_has_the_models_distribution():
    model = model_of("static", {"ltr": Bigrams()}, width=len(PIECES))
    table = np.eye(len(PIECES), dtype=np.float32)
    params = {**model.params, "body": {**model.params["body"], "token_embedding": table}}
    model = dataclasses.replace(model, params=params)
    texts = sample(model, 4000, length=2, prompt="a", seed=1)
    allowed = BIGRAMS[PIECES.index("a")].copy()
    allowed[[0, 1, 2, 4]] = 0  # never padding, [UNK], [CLS] or [MASK]; [SEP] ends the text
    allowed /= allowed.sum()
    expected = {"a": allowed[3], **{f"a {p}": allowed[PIECES.index(p)] for p in "abcdefg"}}
    for text, share in expected.items():
        error = np.sqrt(share * (1 - share) / 4000)
        assert texts.count(text) / 4000 == pytest.approx(share, abs=4.2 * error + 1e-9), text
    assert texts == sample(model, 4000, length=2, prompt="a", seed=1)


@dataclasses.dataclass(frozen=True)
class Copying(Objective):
    """Every hidden piece is the one revealed last, or any letter if nothing is."""

    def loss(self, model, view):
        total = model.predict_tokens(model.encode().output("both"), "both").sum()
        return {"loss": (total, total)}


@scoring.register
def _(objective: Copying) -> Scoring:
    def predict(objective, model, view, at):
        ranks, pieces = view["ranks"], jnp.arange(len(PIECES))
        letters = (pieces >= PIECES.index("a")) & (pieces <= PIECES.index("g"))
        last = jnp.argmax(jnp.where(ranks == HIDDEN, -1, ranks), axis=1, keepdims=True)
        token = jnp.take_along_axis(view["tokens"], last, axis=1)
        copied = 99.0 * (pieces == token)
        seen = (ranks.max(axis=1, where=ranks != HIDDEN, initial=0) > 0)[:, None]
        logits = jnp.where(seen, copied, 99.0 * letters)[:, None]
        return jnp.broadcast_to(logits, (*at.shape, len(PIECES)))

    return Scoring(hidden=predict)


def test_in_any_order_a_step_sees_the_steps_before_and_no_piece_of_its_own():
    model = model_of("bert", {"copying": Copying()})
    one_by_one = [text.split() for text in sample(model, 16, length=5)]
    assert all(len(text) == 5 and len(set(text)) == 1 for text in one_by_one)
    assert len({text[0] for text in one_by_one}) > 3
    at_once = [text.split() for text in sample(model, 16, length=5, steps=1)]
    assert np.mean([len(set(text)) for text in at_once]) > 3
    prompted = sample(model, 4, length=5, prompt="g")
    assert all(set(text.split()) == {"g"} for text in prompted)
    assert sample(model, 1, prompt="[MASK] g [MASK] a") == ["g g g a"]
    assert sample(model, 1, prompt="[MASK] g", length=4) == ["g g g g"]


@pytest.mark.parametrize(
    "name", ["ltr", "awd_lstm", "bilm", "prefix", "mlm", "permutation", "electra"]
)
def test_every_kind_of_model_is_sampled(name):
    model = shared_scorer(name).model
    texts = sample(model, 4, length=6, prompt="a b", seed=1)
    assert all(text.startswith("a b") and not set(PIECES[:5]) & set(text.split()) for text in texts)
    assert texts == sample(model, 4, length=6, prompt="a b", seed=1) and len(set(texts)) > 1


def test_refusals():
    model = shared_scorer("mlm").model
    for settings, reason in (
        ({"kind": "left-to-right"}, "it allows any-order"),
        ({"kind": "left-to-right", "prompt": "a [MASK]"}, "it allows any-order"),
        ({"length": 2, "prompt": "a b"}, "more than the prompt's 2 pieces"),
        ({"length": 10_000}, "fit into 512 positions"),
    ):
        with pytest.raises(UserError, match=reason):
            sample(model, **settings)
    with pytest.raises(UserError, match="allows none"):
        sample(model_of("static", {"cbow": REGISTRY["cbow"]()}))
