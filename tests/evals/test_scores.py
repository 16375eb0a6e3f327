"""Scores against one text at a time by hand, and as probabilities: over all texts they sum to 1."""

import copy
import dataclasses
import functools
import itertools
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from bertlab.config.defaults import base_config
from bertlab.errors import UserError
from bertlab.evals import questions
from bertlab.evals.code_length import Scorer, bits_per_byte
from bertlab.evals.questions import Question, Text, encode_all
from bertlab.evals.scoring import HIDDEN
from bertlab.objectives import REGISTRY
from bertlab.objectives.autoregressive import LeftToRight, PrefixLanguageModel
from bertlab.objectives.base import Objective, Vocabulary
from bertlab.objectives.electra import ReplacedTokenDetection
from bertlab.objectives.masked import MaskedLanguageModel, SpanBoundary
from bertlab.objectives.masked_next_token import MaskedNextToken
from bertlab.objectives.next_sentence import NextSentence
from bertlab.objectives.permutation import PermutationLanguageModel
from bertlab.objectives.program import Program
from bertlab.transfer.load import Pretrained
from tests.evals.tiny import IDS, MODELS, PIECES, TOKENIZER, model_of, shared_scorer
from tests.objectives.own_diffusion import OwnDiffusion
from tests.references import quick_jit

TEXTS = ["a b c", "abc d", "b", "", "g abcd e ab d b a e", "abc d a c c d e"]
MASKED = ("pseudo", "pseudo-within-word", "any-order")
KINDS = {
    "ltr": ("left-to-right",),
    "awd_lstm": ("left-to-right",),
    "rtl": ("right-to-left",),
    "bilm": ("both directions", "left-to-right", "right-to-left"),
    "prefix": ("left-to-right",),
    "masked_next_token": ("left-to-right", *MASKED),
    "permutation": ("any-order",),
    "mlm": MASKED,
    "diffusion": MASKED,
    "unordered": MASKED,
    "electra": MASKED,
}


@pytest.fixture(autouse=True)
def compile_quickly(monkeypatch):
    monkeypatch.setattr(questions, "jax", SimpleNamespace(jit=quick_jit, nn=jax.nn))
    # Short rows, so that several texts share one, and several batches.
    monkeypatch.setattr(questions, "LENGTH", 32)
    monkeypatch.setattr(questions, "ROWS", 4)


def encode(text):
    (encoded,) = encode_all(shared_scorer("mlm").model, [text])
    return encoded


@functools.cache
def compiled_by_hand(name, side):
    program = shared_scorer(name).model.program

    def logits(model, view):
        return jax.nn.log_softmax(model.predict_tokens(model.encode(view).output(side), side))

    name = list(program.objectives)[-1]
    return quick_jit(lambda params, view: program.call(params, name, view, logits))


def log_p_by_hand(name, ids, side):
    """[T, V] of the output layer after the states of one row of one text."""
    tokens = np.array([ids], np.int32)
    view = {"tokens": tokens, "segments": tokens * 0, "documents": tokens * 0 + 1}
    view["positions"] = np.arange(len(ids), dtype=np.int32)[None]
    return np.asarray(compiled_by_hand(name, side)(shared_scorer(name).model.params, view))[0]


def test_directions_are_sums_of_log_probabilities_of_neighbours():
    for name, side in (("ltr", "forward"), ("rtl", "backward")):
        scorer, texts = shared_scorer(name), [encode(text) for text in TEXTS]
        nats, tokens = scorer.score(texts)
        own_nats, own_tokens = scorer.score(texts, special=False)
        ids = texts[1].tokens
        log_p, at = log_p_by_hand(name, ids, side), np.arange(len(ids) - 1)
        by_hand = log_p[at, ids[1:]] if side == "forward" else log_p[at + 1, ids[:-1]]
        assert nats[1] == pytest.approx(by_hand.sum(), rel=2e-5), name
        own = by_hand[:-1] if side == "forward" else by_hand[1:]
        assert own_nats[1] == pytest.approx(own.sum(), rel=2e-5), name
        assert (tokens[1], own_tokens[1]) == (len(ids) - 1, len(ids) - 2)


@pytest.mark.parametrize("kind", ["pseudo", "pseudo-within-word"])
def test_pseudo_masks_each_piece_and_the_later_pieces_of_its_word(kind):
    scorer, text = shared_scorer("mlm"), encode("abc d")
    nats, tokens = scorer.score([text], kind)
    expected = 0.0
    for piece in range(1, len(text.tokens) - 1):
        ids = text.tokens.copy()
        later = [i for i in range(piece, 4) if kind == "pseudo-within-word" and piece < 4]
        ids[[piece, *later]] = TOKENIZER.mask_id
        expected += log_p_by_hand("mlm", ids, "both")[piece, text.tokens[piece]]
    assert [PIECES[i] for i in text.tokens] == ["[CLS]", "a", "##b", "##c", "d", "[SEP]"]
    assert nats[0] == pytest.approx(expected, rel=2e-5) and tokens[0] == 4


def test_any_order_is_the_mean_over_orders_and_pays_for_the_length(monkeypatch):
    scorer, text = shared_scorer("mlm"), encode("a b c")
    (score,), _ = scorer.score([text], "any-order")
    nats = []
    for order in itertools.permutations(range(1, 4)):
        ids, total = text.tokens.copy(), 0.0
        ids[1:4] = TOKENIZER.mask_id
        for piece in order:
            total += log_p_by_hand("mlm", ids, "both")[piece, text.tokens[piece]]
            ids[piece] = text.tokens[piece]
        nats.append(total)
    assert score == pytest.approx(np.mean(nats) - math.log(3 * 4), rel=2e-5)
    long = [encode(TEXTS[4])]  # drawn orders: near the mean over many more
    monkeypatch.setattr(questions, "ORDERS", 16)
    few = scorer.score(long, "any-order").log_probability
    monkeypatch.setattr(questions, "ORDERS", 100)
    assert few == pytest.approx(scorer.score(long, "any-order").log_probability, rel=0.05)


UNIGRAM = np.arange(1, len(PIECES) + 1) / np.arange(1, len(PIECES) + 1).sum()


class Unigram(LeftToRight):
    """Predicts by fixed frequencies."""

    def token_logits(self, model, hidden, side):
        return jnp.broadcast_to(jnp.log(UNIGRAM), (*hidden.shape[:-1], len(PIECES)))


def test_bits_per_byte_of_a_known_distribution():
    model = model_of("gpt", {"ltr": Unigram()}, direction="left-to-right")
    texts = [encode(text) for text in ("a b c", "d", "é x")]
    found = bits_per_byte(texts, Scorer(model).score(texts), TOKENIZER.unk_id)
    bits = [-np.log2(UNIGRAM[text.tokens[1:]]).sum() for text in texts]
    assert found["bits_per_byte"] == pytest.approx(sum(bits) / 10, rel=1e-6), "5, 1 and 4 bytes"
    assert found["perplexity"] == pytest.approx(2 ** (sum(bits) / 9), rel=1e-6), "with [SEP]"
    assert [found[name] for name in ("bytes", "tokens", "pieces")] == [10, 9, 6]
    assert found["unknown"] == pytest.approx(2 / 6)


LENGTH = 2
EVERY = np.array(list(itertools.product(range(len(PIECES)), repeat=LENGTH)), np.int32)


def every_text(scorer: Scorer, side: str) -> list[Text]:
    """All texts of two tokens, with one special token to predict from and none to predict; for a
    scorer with this frame."""
    first = np.full((len(EVERY), 1), 2, np.int32)
    if side == "backward":
        frame = SimpleNamespace(prefix_ids=(), suffix_ids=(2,))
        tokens, pieces = np.hstack([EVERY, first]), np.arange(LENGTH)
    else:
        frame = SimpleNamespace(prefix_ids=(2,), suffix_ids=())
        tokens, pieces = np.hstack([first, EVERY]), 1 + np.arange(LENGTH)
    scorer.model = dataclasses.replace(scorer.model, tokenizer=frame)
    return [Text(row, pieces, LENGTH) for row in tokens]


@pytest.mark.parametrize("name", MODELS)
def test_the_probabilities_of_all_texts_sum_to_one(name):
    scorer = copy.copy(shared_scorer(name))
    assert scorer.kinds == KINDS[name]
    for kind, side in (("left-to-right", "forward"), ("right-to-left", "backward")):
        if kind in KINDS[name]:
            probabilities = np.exp(scorer.score(every_text(scorer, side), kind).log_probability)
            assert probabilities.sum() == pytest.approx(1, rel=1e-5)
            assert probabilities.max() > 4 / len(EVERY), "not uniform"
    if "any-order" not in KINDS[name]:
        return
    # The bound is exact here: all orders are computed.
    texts = every_text(scorer, "forward")
    probabilities = np.exp(scorer.score(texts, "any-order").log_probability)
    assert 0.2 < probabilities.sum() <= 1 + 1e-6
    # One order gives a probability, if nothing hidden can be seen.
    total, asked = np.zeros(len(texts)), []
    for number in range(len(texts)):
        asked.append(Question(number, np.array([2]), np.array([0, HIDDEN, HIDDEN])))
        asked.append(Question(number, np.array([1]), np.array([0, HIDDEN, 1])))
    answers = scorer.answerers["hidden"](scorer.params, texts, asked)
    for question, answer in zip(asked, answers):
        total[question.text] += answer[0]
    assert np.exp(total).sum() == pytest.approx(1, rel=1e-5)


def test_an_outside_masked_objective_is_scored_as_mlm_with_the_same_parameters():
    texts = [encode(text) for text in TEXTS]
    outside, mlm = model_of("bert", {"own": OwnDiffusion()}), shared_scorer("mlm")
    scorer = Scorer(dataclasses.replace(outside, params={"body": mlm.model.params["body"]}))
    assert scorer.kinds == MASKED
    ours = scorer.score(texts, "any-order")
    theirs = mlm.score(texts, "any-order")
    np.testing.assert_allclose(np.array(ours), np.array(theirs), rtol=1e-6)


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


@dataclasses.dataclass(frozen=True)
class OwnHead(Objective):
    """Its head predicts."""

    def view(self, batch, key, vocabulary, progress):
        return batch

    def head(self, body):
        return body


def test_what_is_registered_holds_for_the_class_and_what_trains_like_it():
    def kinds(objective):
        program = Program(None, {"own": objective}, Vocabulary(7, **IDS))
        config = base_config()
        config.objectives = ConfigDict({"own": {"weight": 1.0}})
        return Scorer(Pretrained(config, {}, TOKENIZER, program)).kinds

    assert kinds(NewView()) == MASKED, "the default, not the parent's order"
    assert kinds(SameTraining()) == ("any-order",)
    assert kinds(MaskedNextToken(causal_share=1.0)) == ("left-to-right",)
    assert kinds(MaskedNextToken(causal_share=0.0)) == MASKED
    for objective in (
        NewHead(),
        OwnHead(),
        NextSentence(),
        SpanBoundary(),
        PrefixLanguageModel(min_share=0.1),
        MaskedLanguageModel(mask_share=0.0),
        ReplacedTokenDetection(generator="unigram"),
        *(REGISTRY[name]() for name in "sop span_corruption skip_gram cbow glove ar tar".split()),
    ):
        assert kinds(objective) == ()


def test_refusals_name_the_reason():
    scorer = shared_scorer("mlm")
    model = scorer.model
    untrained = dataclasses.replace(model, config=copy.deepcopy(model.config))
    untrained.config.objectives.mlm.weight = 0.0
    vocabulary = dataclasses.replace(model.program.vocabulary, mask_id=None)
    program = dataclasses.replace(model.program, vocabulary=vocabulary)
    maskless = dataclasses.replace(model, program=program)
    long = Text(np.zeros(600, np.int32), np.arange(1, 599), 600)
    for call, reason in (
        (lambda: Scorer(untrained).check_kind(), "nsp: its head makes"),
        (lambda: scorer.check_kind("left-to-right"), r"left-to-right.*pseudo"),
        (lambda: scorer.score([long]), "text 1 has 600 tokens .* 512"),
        (lambda: Scorer(maskless).check_kind(), r"no \[MASK\]"),
    ):
        with pytest.raises(UserError, match=reason):
            call()


def test_any_number_of_texts_of_any_length_is_answered_by_one_compiled_program():
    scorer = shared_scorer("ltr")
    for number in (1, 40):
        texts = [encode("a b c d " * (1 + index % 7)) for index in range(number)]
        scorer.score(texts)
    assert scorer.answerers["forward"].log_probabilities._cache_size() == 1
