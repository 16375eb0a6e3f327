"""Scores of every kind equal what the program says of rows masked by hand; bits per byte are their sums."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertlab import objectives
from bertlab.config import base_config
from bertlab.data.tokenizers import WordPieceTokenizer
from bertlab.errors import UserError
from bertlab.objectives.autoregressive import LeftToRight, RightToLeft
from bertlab.objectives.electra import ReplacedTokenDetection
from bertlab.objectives.masked import MaskedLanguageModel
from bertlab.objectives.masked_next_token import MaskedNextToken
from bertlab.objectives.next_sentence import NextSentence
from bertlab.objectives.permutation import PermutationLanguageModel
from bertlab.objectives.prefix import PrefixLanguageModel
from bertlab.objectives.program import Program
from bertlab.transfer import likelihood, rows
from bertlab.transfer.load import Pretrained
from tests.references import log_softmax, quick_jit, random_params, tiny_program

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh")]
VOCABULARY = objectives.Vocabulary(size=len(PIECES), pad_id=0, unk_id=1, cls_id=2, sep_id=3, mask_id=4)
TEXTS = ["a b c", "abc d", "b", "g abcd e ab h c d b a e"]  # "abc" is three pieces: a ##b ##c
COMPILED = {}
ROW = {name: np.zeros((1, 4), np.int32) for name in ("tokens", "segments", "documents", "positions")}


def model_of(objective, family="bert", weights=(), **model) -> Pretrained:
    """A tiny model with random parameters and one objective of any class, several in a dict, or objectives by name."""
    config = base_config()
    config.model.family = family
    if not isinstance(objective, str):
        body = tiny_program(family, "", VOCABULARY, **model).body
        built = objective if isinstance(objective, dict) else {"own name": objective}
        program = Program(body, built, VOCABULARY)
    else:
        program = tiny_program(family, objective, VOCABULARY, **model)
    config.objectives = {name: {"weight": dict(weights).get(name, 1.0)} for name in program.objectives}
    with_labels = ROW | {"documents": np.ones((1, 4), np.int32), "pair_label": np.zeros(1, np.int32)}
    return Pretrained(config, WordPieceTokenizer(PIECES, False), program, random_params(program, with_labels))


def log_probabilities(model: Pretrained, ids, side: str, ordered: bool = False) -> np.ndarray:
    """[B, 20, V] of rows of equal length, padded to 20."""
    ids = np.array(ids, np.int32)
    view = {name: np.zeros((len(ids), 20), np.int32) for name in ROW}
    view["tokens"][:, : ids.shape[1]], view["documents"][:, : ids.shape[1]] = ids, 1
    view["positions"][:] = np.arange(20)
    view |= {"order": view["positions"]} if ordered else {}
    if (key := (id(model.program), side)) not in COMPILED:
        program = model.program
        of_body = lambda params, *given, method: program.body.apply({"params": params["body"]}, *given, method=method)
        predict = lambda params, view: of_body(params, program.encode(params, view).output(side), side, method="predict_tokens")
        COMPILED[key] = (quick_jit(predict), program)  # the program is kept, so that its id stays its own
    return log_softmax(np.float64(COMPILED[key][0](model.params, view)))


def ids_of(model: Pretrained, text: str) -> list[int]:
    return [*model.tokenizer.prefix_ids, *model.tokenizer.encode(text), *model.tokenizer.suffix_ids]


def masked_sum(model: Pretrained, text: str, within_word: bool, shift: int = 0) -> float:
    """Each piece masked in turn, with or without what follows of its word, asked `shift` positions before it."""
    ids = ids_of(model, text)
    copies = np.tile(ids, (20, 1))  # always as many, for few shapes to compile
    for place in range(1, len(ids) - 1):
        copies[place, place] = 4
        after = place + 1
        while within_word and PIECES[ids[after]].startswith("##"):
            copies[place, after] = 4
            after += 1
    found = log_probabilities(model, copies, "both")
    return sum(found[place, place - shift, ids[place]] for place in range(1, len(ids) - 1))


@pytest.fixture(autouse=True)
def compile_quickly(monkeypatch):
    monkeypatch.setattr(rows, "jax", SimpleNamespace(jit=quick_jit, device_put=jax.device_put))


@pytest.fixture(scope="module")
def masked() -> Pretrained:
    return model_of("mlm")


def test_pseudo_kinds_mask_a_piece_or_the_rest_of_its_word_too(masked, monkeypatch):
    monkeypatch.setattr(likelihood, "_POSITIONS", 32)  # several batches, the last not full
    original, within = masked.score(TEXTS, "pseudo"), masked.score(TEXTS, "pseudo-within-word")
    for text, one, other in zip(TEXTS, original, within):
        pieces = len(masked.tokenizer.encode(text))
        assert (one.kind, one.tokens, other.kind, other.tokens) == ("pseudo", pieces, "pseudo-within-word", pieces)
        assert one.log_probability == pytest.approx(masked_sum(masked, text, False), rel=1e-5)
        assert other.log_probability == pytest.approx(masked_sum(masked, text, True), rel=1e-5)
        same = one.log_probability == pytest.approx(other.log_probability, abs=1e-3)
        assert same == (text in ("a b c", "b")), "they differ where a word has several pieces, and nowhere else"
    assert masked.score(TEXTS) == original and masked.kinds == ("pseudo", "pseudo-within-word", "any-order")


def test_masked_spans_end_with_the_word():
    continues = tuple(piece.startswith("##") for piece in PIECES)
    row = likelihood.TextRow(np.array([2, 5, 14, 15, 6, 14, 3]), (), np.arange(1, 6), np.arange(1, 6), None)
    assert sorted(likelihood.masked_spans(row, continues)) == [(1, 4), (2, 4), (3, 4), (4, 6), (5, 6)]
    assert sorted(likelihood.masked_spans(row, None)) == [(place, place + 1) for place in range(1, 6)]
    # A text may begin with a piece that looks like the middle of a word, as in byte-level BPE.
    row = likelihood.TextRow(np.array([14, 5]), (), np.arange(2), np.arange(2), None)
    assert sorted(likelihood.masked_spans(row, continues)) == [(0, 1), (1, 2)]


def test_masked_next_token_is_asked_one_position_before_the_mask_and_left_to_right():
    # Beside it what would be asked at the mask itself, had it been trained, or shown a mask.
    beside = {"mlm": MaskedLanguageModel(), "unmasked": MaskedLanguageModel(mask_share=0.0), "hybrid": MaskedNextToken()}
    model = model_of(beside, weights={"mlm": 0.0})
    assert model.kinds == ("left-to-right", "pseudo", "pseudo-within-word", "any-order")
    for within, kind in ((False, "pseudo"), (True, "pseudo-within-word")):
        for text, score in zip(TEXTS, model.score(TEXTS, kind)):
            assert score.log_probability == pytest.approx(masked_sum(model, text, within, shift=1), rel=1e-5)
    for text, score in zip(TEXTS, model.score(TEXTS)):
        ids = ids_of(model, text)
        found = log_probabilities(model, [ids], "both", ordered=True)[0]
        assert score.tokens == len(ids) - 1
        assert score.log_probability == pytest.approx(sum(found[t, ids[t + 1]] for t in range(len(ids) - 1)), rel=1e-5)


def test_a_prefix_model_read_left_to_right_is_the_left_to_right_model():
    prefix = model_of(PrefixLanguageModel())
    ltr = model_of("ltr", direction="left-to-right")
    assert jax.tree.map(np.shape, prefix.params) == jax.tree.map(np.shape, ltr.params)
    expected = Pretrained(ltr.config, ltr.tokenizer, ltr.program, prefix.params).score(TEXTS)
    for score, other in zip(prefix.score(TEXTS), expected):
        assert (score.kind, score.tokens) == (other.kind, other.tokens) == ("left-to-right", other.tokens)
        assert score.log_probability == pytest.approx(other.log_probability, rel=1e-5)


def test_a_bilm_is_scored_in_each_direction_and_both():
    model = model_of("ltr+rtl", "elmo", layers=1, hidden=12, width=8)
    forward, backward = model.score(TEXTS, "left-to-right"), model.score(TEXTS, "right-to-left")
    for text, one, other, mean in zip(TEXTS, forward, backward, model.score(TEXTS)):
        ids = ids_of(model, text)
        left, right = (log_probabilities(model, [ids], side)[0] for side in ("forward", "backward"))
        assert one.log_probability == pytest.approx(sum(left[t, ids[t + 1]] for t in range(len(ids) - 1)), rel=1e-5)
        assert other.log_probability == pytest.approx(sum(right[t, ids[t - 1]] for t in range(1, len(ids))), rel=1e-5)
        assert mean.log_probability == pytest.approx((one.log_probability + other.log_probability) / 2, rel=1e-5)
        assert mean.kind == "both directions" and one.tokens == other.tokens == mean.tokens == len(ids) - 1


OWN_LAYER = {
    "both directions": ("elmo", {"a": LeftToRight, "b": RightToLeft}),
    "left-to-right": ("bert", {"a": PrefixLanguageModel}),
    "right-to-left": ("elmo", {"a": LeftToRight, "b": RightToLeft}),
    "pseudo": ("bert", {"untrained": MaskedLanguageModel, "a": MaskedLanguageModel, "b": MaskedLanguageModel}),
    "pseudo-within-word": ("bert", {"a": MaskedNextToken}),
    "any-order": ("bert", {"untrained": MaskedLanguageModel, "a": MaskedLanguageModel, "b": MaskedLanguageModel}),
}
RATES = {"a": 0.1, "b": 0.2}


@pytest.mark.parametrize("kind", likelihood.KINDS)
def test_the_logits_are_those_of_the_first_trained_objective_that_predicts_so(kind):
    def own(name, base):
        logits = lambda self, model, hidden, side: jnp.full((*hidden.shape[:-1], 1), RATES[name]) * jnp.arange(len(PIECES))
        return type(name, (base,), {"token_logits": logits} if name in RATES else {})()

    family, bases = OWN_LAYER[kind]
    shape = {"layers": 1, "hidden": 12, "width": 8} if family == "elmo" else {}
    model = model_of({name: own(name, base) for name, base in bases.items()}, family, {"untrained": 0.0}, **shape)
    ids = np.array(ids_of(model, TEXTS[1]))
    asked = {"both directions": [("a", ids[1:]), ("b", ids[:-1])], "right-to-left": [("b", ids[:-1])]}
    both_sided = kind.startswith("pseudo") or kind == "any-order"
    asked = asked.get(kind, [("a", ids[1:-1] if both_sided else ids[1:])])
    expected = [log_softmax(RATES[name] * np.arange(len(PIECES)))[labels].sum() for name, labels in asked]
    expected = [nats - np.log(4 * 5) * (kind == "any-order") for nats in expected]  # and that it has four pieces
    assert model.score(TEXTS[1:2], kind)[0].log_probability == pytest.approx(np.mean(expected), rel=1e-5)


def test_bits_per_byte_are_summed_scores_over_the_original_bytes(masked):
    texts = ["a b c", "abc  zé d", "b"]  # 5, 10 and 1 bytes; z and é are no pieces
    bits = [-score.log_probability / np.log(2) for score in masked.score(texts)]
    found = masked.bits_per_byte(texts)
    value = sum(bits) / 16
    assert found.value == pytest.approx(value, rel=1e-6)
    assert (found.kind, found.texts, found.bytes, found.tokens, found.pieces) == ("pseudo", 3, 16, 9, 9)
    assert found.unknown == pytest.approx(1 / 9) and not found.lowercase
    # Linearised variance of a ratio of sums (Cochran 1977, section 2.11).
    deviations = np.array(bits) - value * np.array([5, 10, 1])
    assert found.standard_error == pytest.approx(np.sqrt(3 / 2 * (deviations**2).sum()) / 16, rel=1e-6)
    assert masked.bits_per_byte(texts[:1]).standard_error is None
    with pytest.raises(UserError, match=r"no token to score"):
        masked.bits_per_byte([""])


def test_without_a_frame_the_first_token_is_free_and_its_bytes_count():
    model = model_of("ltr", "gpt", direction="left-to-right")
    framed = model.bits_per_byte(TEXTS)
    model.tokenizer.prefix_ids = model.tokenizer.suffix_ids = ()
    free = model.bits_per_byte(TEXTS)
    assert (framed.tokens - framed.pieces, free.tokens - free.pieces) == (len(TEXTS), -len(TEXTS))
    assert free.bytes == framed.bytes == sum(map(len, TEXTS))
    (score,) = model.score(["a b"])
    expected = log_probabilities(model, [model.tokenizer.encode("a b")], "forward")[0, 0, 6]
    assert score.log_probability == pytest.approx(expected, rel=1e-5) and score.tokens == 1


def test_the_part_for_the_closing_token_stands_beside_the_code_length():
    model = model_of("ltr", "gpt", direction="left-to-right")
    whole, without = (model.bits_per_byte(TEXTS, closing=closing) for closing in (True, False))
    assert whole.value - whole.closing == pytest.approx(without.value, rel=1e-6) and without.closing == 0
    (score,) = model.score(["a b"])
    ids = [2, *model.tokenizer.encode("a b"), 3]
    assert score.closing == pytest.approx(log_probabilities(model, [ids], "forward")[0, len(ids) - 2, 3], rel=1e-5)


UNTAUGHT = {"prefix": PrefixLanguageModel(min_share=0.5), "mlm": MaskedLanguageModel()}


@pytest.mark.parametrize(
    ("kind", "objectives", "untrained", "reason"),
    [
        ("l2r", {"mlm": MaskedLanguageModel()}, (), "kind='l2r' is not known; .*both directions, left-to-right, "),
        ("left-to-right", {"mlm": MaskedLanguageModel()}, (), "mlm.*pseudo or pseudo-within-word"),
        (None, {"x": NextSentence()}, (), "none of its objectives .x. predicts"),
        ("pseudo", {"x": PermutationLanguageModel()}, (), "x.*choose any-order"),
        ("any-order", {"x": ReplacedTokenDetection(generator="unigram")}, (), "none of its objectives .x. predicts"),
        ("any-order", {"x": PrefixLanguageModel()}, (), "choose left-to-right"),
        (None, {"own": MaskedLanguageModel(mask_share=0.0)}, (), "own: mask_share=0.*mlm, electra, ltr"),
        (None, {"own": MaskedNextToken(mask_share=0.0, causal_share=0.0)}, (), "own: mask_share=0"),
        (None, {"own": PrefixLanguageModel(min_share=0.2)}, (), "own: min_share=0.2"),
        (None, {"own": MaskedLanguageModel()}, ("own",), "own: it had no weight"),
        (None, {"own": PrefixLanguageModel()}, ("own",), "own: it had no weight"),
        ("left-to-right", UNTAUGHT, (), "prefix, mlm; prefix: min_share=0.5 .* pseudo or pseudo-"),
        ("pseudo", {"own": MaskedNextToken(mask_share=0.0)}, (), "own: mask_share=0 .*left-to-right"),
    ],
)
def test_kinds_that_a_model_was_not_trained_for_are_refused_with_the_reason(kind, objectives, untrained, reason):
    with pytest.raises(UserError, match=reason):
        likelihood.check_kind(kind, objectives, [name for name in objectives if name not in untrained])


def test_the_default_is_the_first_kind_that_was_taught():
    assert likelihood.check_kind(None, UNTAUGHT, UNTAUGHT) == "pseudo"
    assert likelihood.check_kind(None, {"p": PermutationLanguageModel(), "m": MaskedLanguageModel()}, "pm") == "pseudo"
    for settings, kinds in ((1.0, ("left-to-right",)), (0.0, ("pseudo", "pseudo-within-word", "any-order"))):
        assert likelihood.kinds_of({"own": MaskedNextToken(causal_share=settings)}) == kinds
    assert likelihood.kinds_of({"own": MaskedNextToken(mask_share=0.0)}) == ("left-to-right",)
