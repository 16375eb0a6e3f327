"""Texts drawn from models: the distribution of the pieces, what each step sees, and that a seed repeats them."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from bertlab.cli import main
from bertlab.errors import UserError
from bertlab.objectives import Objective, Scoring
from bertlab.objectives.autoregressive import LeftToRight
from bertlab.objectives.base import HIDDEN
from bertlab.objectives.masked_next_token import MaskedNextToken
from bertlab.objectives.next_sentence import NextSentence
from bertlab.objectives.prefix import PrefixLanguageModel
from bertlab.transfer.sample import draw_pieces, sample
from tests.transfer.test_evaluate import run  # noqa: F401 (a fixture)
from tests.transfer.test_likelihood import PIECES, compile_quickly, ids_of, log_probabilities, model_of  # noqa: F401


def test_pieces_are_drawn_by_their_probabilities_at_a_temperature_from_the_likeliest():
    rng, logits = np.random.default_rng(0), np.log(np.array([[0.5, 0.3, 0.15, 0.05]])).repeat(20_000, 0)
    shares = lambda *settings: np.bincount(draw_pieces(logits, *settings, rng), minlength=4) / 20_000
    squares = np.array([0.25, 0.09, 0.0225, 0.0025])
    for settings, expected in (
        ((1.0, 1.0, set()), [0.5, 0.3, 0.15, 0.05]),
        ((0.5, 1.0, set()), squares / squares.sum()),
        ((1.0, 0.6, set()), [5 / 8, 3 / 8, 0, 0]),  # the second is needed for 0.6
        ((1.0, 0.4, set()), [1, 0, 0, 0]),
        ((1.0, 1.0, {0}), [0, 0.6, 0.3, 0.1]),
        ((0.0, 1.0, {0}), [0, 1, 0, 0]),
    ):
        found, expected = shares(*settings), np.array(expected)
        # 4.2 standard errors of a share.
        assert (np.abs(found - expected) <= 4.2 * np.sqrt(expected * (1 - expected) / 20_000)).all(), settings


@pytest.mark.parametrize("name", ["ltr", "prefix"])
def test_left_to_right_each_piece_follows_from_those_before(name):
    model = model_of("ltr", direction="left-to-right") if name == "ltr" else model_of(PrefixLanguageModel())
    side, ids = ("forward", ids_of(model, "a")[:-1]) if name == "ltr" else ("both", ids_of(model, "a")[:-1])
    while len(ids) < 7:
        likely = log_probabilities(model, [ids], side, ordered=name == "prefix")[0, len(ids) - 1].copy()
        likely[[0, 1, 2, 4]] = -np.inf
        if (best := int(likely.argmax())) == 3:
            break
        ids.append(best)
    assert sample(model, 2, length=6, prompt="a", temperature=0.0) == [model.tokenizer.decode(ids)] * 2
    some = sample(model, 8, length=6, seed=1)
    assert some == sample(model, 8, length=6, seed=1) != sample(model, 8, length=6, seed=2)
    assert len(set(some)) > 4


@dataclasses.dataclass(frozen=True)
class Ending(LeftToRight):
    """After a the text goes on with b, and after b it ends."""

    def token_logits(self, model, hidden, side):
        following = jnp.array([3 if piece == "b" else 6 for piece in PIECES])[model.view["tokens"]]
        logits = 99.0 * (jnp.arange(len(PIECES)) == following[..., None])
        return logits if hidden.ndim == 3 else logits[:, model.view["documents"][0].sum() - 1]


def test_a_text_ends_where_its_end_is_drawn():
    model = model_of(Ending(), direction="left-to-right")
    assert sample(model, 2, length=6, prompt="c b a") == ["c b a b"] * 2
    assert sample(model, 1, length=6, prompt="c b") == ["c b"]


@dataclasses.dataclass(frozen=True)
class Copying(Objective):
    """Every hidden piece is the one shown last, or any letter if nothing is shown."""

    def loss(self, model, view):
        return model.token_loss(model.encoded.output("both"), "both", view["tokens"], view["documents"] > 0)

    def scoring(self):
        return Scoring(("in any order",))

    def hidden_logits(self, model, view, ranks):
        last = jnp.argmax(jnp.where(ranks == HIDDEN, -1, ranks), axis=1, keepdims=True)
        token = jnp.take_along_axis(view["tokens"], last, axis=1)
        letters = (jnp.arange(len(PIECES)) >= 5) & (jnp.arange(len(PIECES)) < 13)
        copied = 99.0 * (jnp.arange(len(PIECES)) == token[..., None])
        logits = jnp.where((ranks.max(axis=1, where=ranks != HIDDEN, initial=0) > 0)[:, None, None], copied, 99.0 * letters)
        return jnp.broadcast_to(logits, (*ranks.shape, len(PIECES)))


def test_in_any_order_a_step_sees_the_steps_before_and_no_piece_of_its_own():
    model = model_of(Copying())
    one_by_one = [text.split() for text in sample(model, 16, length=5)]
    assert all(len(text) == 5 and len(set(text)) == 1 for text in one_by_one)
    assert len({text[0] for text in one_by_one}) > 4
    at_once = [text.split() for text in sample(model, 16, length=5, steps=1)]
    assert np.mean([len(set(text)) for text in at_once]) > 3
    in_two = [text.split() for text in sample(model, 16, length=5, steps=2)]
    assert all(1 <= len(set(text)) <= 3 for text in in_two) and max(len(set(text)) for text in in_two) > 1
    assert all(set(text.split()) == {"h"} for text in sample(model, 4, length=5, prompt="h"))


@dataclasses.dataclass(frozen=True)
class Counting(Copying):
    """The first piece to be revealed is a, all later ones are b."""

    def hidden_logits(self, model, view, ranks):
        shown = (ranks.max(axis=1, where=ranks != HIDDEN, initial=0) > 0)[:, None, None]
        is_next = lambda piece: 99.0 * (jnp.arange(len(PIECES)) == PIECES.index(piece))
        return jnp.broadcast_to(jnp.where(shown, is_next("b"), is_next("a")), (*ranks.shape, len(PIECES)))


def test_each_text_has_an_order_of_its_own():
    texts = [text.split() for text in sample(model_of(Counting()), 32, length=5)]
    assert all(sorted(text) == ["a", "b", "b", "b", "b"] for text in texts)
    assert {text.index("a") for text in texts} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("name", ["mlm", "diffusion", "permutation", "electra", "masked_next_token"])
def test_what_predicts_hidden_pieces_is_sampled_by_revealing_them(name):
    model = model_of(name if name != "masked_next_token" else MaskedNextToken(causal_share=0.0))
    texts = sample(model, 3, length=6, steps=3, prompt="a b", kind="any-order")
    assert texts == sample(model, 3, length=6, steps=3, prompt="a b") and len(set(texts)) == 3
    assert all(text.startswith("a b") and not set(PIECES[:5]) & set(text.split()) for text in texts)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"number": 0}, "number=0 must be at least 1"),
        ({"length": 0}, "length=0"),
        ({"steps": -1}, "steps=-1"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.5}, "top_p=1.5"),
        ({"kind": "pseudo"}, "kind='pseudo' is not known"),
        ({"kind": "left-to-right"}, "kind='left-to-right'.*choose any-order$"),
        ({"steps": 0}, "steps=0"),
        ({"steps": 7, "length": 8, "prompt": "a b"}, "steps=7 is more than the 6 pieces"),
        ({"length": 2, "prompt": "a b"}, "2 pieces, so length=2"),
        ({"length": 10_000}, "length=10000 makes rows of 10002"),
    ],
)
def test_what_cannot_be_sampled_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        sample(model_of("mlm"), **settings)


def test_models_that_predict_no_pieces_in_these_ways_are_refused():
    with pytest.raises(UserError, match="cannot be sampled"):
        sample(model_of(NextSentence()))
    causal = model_of("ltr", direction="left-to-right")
    with pytest.raises(UserError, match="steps=2 has no effect"):
        sample(causal, steps=2)
    causal.tokenizer.prefix_ids = ()
    with pytest.raises(UserError, match="give a prompt"):
        sample(causal)


def test_the_command_prints_a_text_a_line(run, capsys):  # noqa: F811
    printed = []
    for seed in (0, 0, 1):
        assert main(["sample", f"--run={run}", "--number=2", "--length=5", "--top_p=0.9", f"--seed={seed}"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2] and all(len(out.splitlines()) == 2 for out in printed)
    assert main(["sample", f"--run={run}", "--top_p=2"]) == 2 and "top_p=2.0" in capsys.readouterr().err
