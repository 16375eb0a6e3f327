"""Scores are those of the old code, and probabilities: summed over all texts they give 1."""

import copy
import dataclasses
import functools
import itertools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertlab.data.tokenizers import WordPieceTokenizer
from bertlab.errors import UserError
from bertlab.evals import questions
from bertlab.evals.code_length import Scorer, bits_per_byte
from bertlab.evals.questions import Question, Text, encode
from bertlab.evals.scoring import HIDDEN
from bertlab.objectives import REGISTRY
from bertlab.objectives.autoregressive import LeftToRight, RightToLeft
from bertlab.objectives.base import Objective, Vocabulary, cross_entropy
from bertlab.objectives.diffusion import MaskedDiffusion
from bertlab.objectives.electra import ReplacedTokenDetection
from bertlab.objectives.masked import MaskedLanguageModel
from bertlab.objectives.masked_next_token import MaskedNextToken
from bertlab.objectives.next_sentence import NextSentence
from bertlab.objectives.permutation import PermutationLanguageModel
from bertlab.objectives.prefix import PrefixLanguageModel
from bertlab.objectives.program import Program
from bertlab.objectives.span_boundary import SpanBoundary
from bertlab.transfer import rows
from bertlab.transfer.load import Pretrained
from tests.references import quick_jit
from tests.evals.models import IDS, programs

PIECES = [*"[PAD] [UNK] [CLS] [SEP] [MASK] a b c d e f g ##a ##b ##c ##d".split()]
TEXTS = ["a b c", "abc d", "b", "", "g abcd e ab d b a e", "abc d a c c d e"]
LONG = TEXTS[4:]  # of one length in the old code, which compiles for each
MODELS = {
    "ltr": ("gpt", {"ltr": LeftToRight()}),
    "rtl": ("bert", {"rtl": RightToLeft()}),
    "bilm": ("elmo", {"ltr": LeftToRight(negatives=3), "rtl": RightToLeft()}),
    "mlm": ("bert", {"nsp": NextSentence(), "mlm": MaskedLanguageModel()}),
    "diffusion": ("bert", {"diffusion": MaskedDiffusion()}),
    "prefix": ("bert", {"prefix": PrefixLanguageModel()}),
    "masked_next_token": ("bert", {"masked_next_token": MaskedNextToken()}),
    "permutation": ("bert", {"permutation": PermutationLanguageModel()}),
    "unordered": ("bert", {"permutation": PermutationLanguageModel(context_in_order=False)}),
    "electra": ("bert", {"electra": ReplacedTokenDetection(generator_size=1.0)}),
}
DIRECTIONS = {"ltr": "left-to-right", "rtl": "right-to-left"}
# The new code also masks one token for models that are asked in any order.
MORE = {"electra", "unordered"}


TOKENIZER = WordPieceTokenizer(PIECES, False)


@functools.cache
def model_of(name):
    """Programs, parameters and a scorer that is compiled once for all tests."""
    family, objectives = MODELS[name]
    direction = {"direction": DIRECTIONS[name]} if name in DIRECTIONS else {}
    model = programs(family, objectives, len(PIECES), **direction)
    model.scorer = Scorer(model.new, TOKENIZER)
    return model


@pytest.fixture(autouse=True)
def compile_quickly(monkeypatch):
    monkeypatch.setattr(questions, "jax", SimpleNamespace(jit=quick_jit, nn=jax.nn))
    monkeypatch.setattr(rows, "jax", SimpleNamespace(jit=quick_jit, device_put=jax.device_put))
    # Short rows, so that several texts share one, and several batches.
    monkeypatch.setattr(questions, "LENGTH", 32)
    monkeypatch.setattr(questions, "ROWS", 4)


@pytest.mark.parametrize("name", MODELS)
def test_scores_of_every_kind_are_those_of_the_old_code(name):
    model = model_of(name)
    old = Pretrained(model.config, TOKENIZER, model.old, model.params)
    pseudo = ("pseudo", "pseudo-within-word") if name in MORE else ()
    assert model.scorer.kinds == (*pseudo, *old.kinds)
    raw = TEXTS if name in ("ltr", "mlm") else LONG
    texts = [encode(text, TOKENIZER) for text in raw]
    for kind in old.kinds:
        ours = model.scorer.score(model.params, texts, kind)
        for one, other in zip(ours, old.score(raw, kind)):
            for field in ("log_probability", "tokens", "closing"):
                value = getattr(other, field)
                assert getattr(one, field) == pytest.approx(value, rel=2e-5, abs=1e-5), field
            assert (one.standard_error is None) == (other.standard_error is None)
        found = dataclasses.asdict(bits_per_byte(texts, ours, TOKENIZER.unk_id))
        for field, value in dataclasses.asdict(old.bits_per_byte(raw, kind)).items():
            if field in found and value != 0:
                assert found[field] == (value and pytest.approx(value, rel=1e-4, abs=1e-6)), field


LENGTH = 2
EVERY = np.array(list(itertools.product(range(len(PIECES)), repeat=LENGTH)), np.int32)


def every_text(side: str) -> tuple[list[Text], SimpleNamespace]:
    """All texts of two tokens, with one special token to predict from and none to predict."""
    first = np.full((len(EVERY), 1), 2, np.int32)
    if side == "backward":
        frame = SimpleNamespace(prefix_ids=(), suffix_ids=(2,))
        tokens, pieces = np.hstack([EVERY, first]), np.arange(LENGTH)
    else:
        frame = SimpleNamespace(prefix_ids=(2,), suffix_ids=())
        tokens, pieces = np.hstack([first, EVERY]), 1 + np.arange(LENGTH)
    return [Text(row, pieces, LENGTH) for row in tokens], frame


@pytest.mark.parametrize("name", MODELS)
def test_the_probabilities_of_all_texts_sum_to_one(name):
    model = model_of(name)
    scorer = copy.copy(model.scorer)
    for kind, side in (("left-to-right", "forward"), ("right-to-left", "backward")):
        if kind in scorer.kinds:
            texts, scorer.tokenizer = every_text(side)
            scores = scorer.score(model.params, texts, kind)
            probabilities = np.exp([score.log_probability for score in scores])
            assert probabilities.sum() == pytest.approx(1, rel=1e-5)
            assert probabilities.max() > 4 / len(EVERY), "not uniform"
    if "any-order" not in scorer.kinds:
        return
    # The bound is exact here: all orders are computed.
    texts, scorer.tokenizer = every_text("forward")
    scores = scorer.score(model.params, texts, "any-order")
    assert 0.2 < np.exp([score.log_probability for score in scores]).sum() <= 1 + 1e-6
    assert {score.standard_error for score in scores} == {0.0}
    # One order gives a probability, if nothing hidden can be seen.
    total, asked = np.zeros(len(texts)), []
    for number in range(len(texts)):
        asked.append(Question(number, np.array([2]), np.array([0, HIDDEN, HIDDEN])))
        asked.append(Question(number, np.array([1]), np.array([0, HIDDEN, 1])))
    answers = scorer.answerers["hidden"](model.params, texts, asked)
    for question, answer in zip(asked, answers):
        total[question.text] += answer[0]
    assert np.exp(total).sum() == pytest.approx(1, rel=1e-5)


@dataclasses.dataclass(frozen=True)
class Cloze(Objective):
    """Masks tokens independently and predicts them."""

    rate: float = 0.3

    def view(self, batch, key, vocabulary, progress):
        tokens = batch["tokens"]
        words = (batch["documents"] > 0) & ~vocabulary.is_special(tokens)
        chosen = words & jax.random.bernoulli(key, self.rate, tokens.shape)
        masked = jnp.where(chosen, vocabulary.mask_id, tokens)
        return {**batch, "tokens": masked, "chosen": chosen, "original": tokens}

    def loss(self, model, view):
        logits = model.predict_tokens(model.encode().output("both"), "both")
        return cross_entropy(logits, view["original"], view["chosen"])


def test_an_outside_masked_objective_is_scored_as_mlm_with_the_same_parameters():
    texts = [encode(text, TOKENIZER) for text in TEXTS]
    outside, mlm = programs("bert", {"cloze": Cloze()}, len(PIECES)), model_of("mlm")
    scorer = Scorer(outside.new, TOKENIZER)
    assert scorer.kinds == ("pseudo", "pseudo-within-word", "any-order")
    ours = scorer.score({"body": mlm.params["body"]}, texts, "any-order")
    theirs = mlm.scorer.score(mlm.params, texts, "any-order")
    np.testing.assert_allclose(np.array(ours), np.array(theirs), rtol=1e-6)
    assert ours[-1].standard_error > 0


class NewView(PrefixLanguageModel):
    """Trains on other views."""

    def view(self, batch, key, vocabulary, progress):
        return batch


class NewHead(LeftToRight):
    """Predicts by something else."""

    def loss(self, model, view):
        return {}


class SameTraining(PermutationLanguageModel):
    """Overrides nothing that scores depend on."""

    def slots(self, length):
        return length


def test_what_is_registered_holds_for_the_class_and_what_trains_like_it():
    def kinds(objective):
        return Scorer(Program(None, {"own": objective}, Vocabulary(7, **IDS)), None).kinds

    masked = ("pseudo", "pseudo-within-word", "any-order")
    assert kinds(NewView()) == masked, "the default, not the parent's order"
    assert kinds(SameTraining()) == ("any-order",)
    assert kinds(MaskedNextToken(causal_share=1.0)) == ("left-to-right",)
    assert kinds(MaskedNextToken(causal_share=0.0)) == masked
    for objective in (
        NewHead(),
        NextSentence(),
        SpanBoundary(),
        PrefixLanguageModel(min_share=0.1),
        MaskedLanguageModel(mask_share=0.0),
        ReplacedTokenDetection(generator="unigram"),
        *(REGISTRY[name]() for name in "sop span_corruption skip_gram cbow glove ar tar".split()),
    ):
        assert kinds(objective) == ()


def test_refusals_name_the_reason():
    model = model_of("mlm")
    with pytest.raises(UserError, match=r"nsp: its head makes the predictions"):
        Scorer(model.new, TOKENIZER, trained=["nsp"]).check_kind()
    with pytest.raises(UserError, match=r"left-to-right.*pseudo"):
        model.scorer.check_kind("left-to-right")
    long = Text(np.zeros(600, np.int32), np.arange(1, 599), 600)
    with pytest.raises(UserError, match=r"text 1 has 600 tokens .* 512 positions"):
        model.scorer.score(model.params, [long])
    without_mask = dataclasses.replace(model.new.vocabulary, mask_id=None)
    without_mask = dataclasses.replace(model.new, vocabulary=without_mask)
    with pytest.raises(UserError, match=r"no \[MASK\]"):
        Scorer(without_mask, TOKENIZER).check_kind()


def test_any_number_of_texts_of_any_length_is_answered_by_one_compiled_program():
    model = model_of("ltr")
    for number in (1, 40):
        texts = [encode("a b c d " * (1 + index % 7), TOKENIZER) for index in range(number)]
        model.scorer.score(model.params, texts)
    assert model.scorer.answerers["forward"].log_probabilities._cache_size() == 1
