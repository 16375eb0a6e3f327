"""The likelihood of texts on one scale, bits per byte.

A tokenizer puts special tokens around a text of T pieces x_1 … x_T: [CLS] x_1 … x_T [SEP] for BERT,
none for GPT-2. The kinds of score, in nats:

    left-to-right       Σ log p(token | all tokens before it) of every token but the first: x_1 …
                        x_T and [SEP] in BERT's frame, x_2 … x_T without one. A code length: its
                        exponential is the probability of the text (without a frame, given x_1).
    right-to-left       The same from the other end: x_T … x_1 and [CLS].
    both directions     The mean of the two, for models that have both (biLM).
    pseudo              Σ log p(x_t | the text with [MASK] in place of x_t), special tokens neither
                        masked nor scored (Salazar et al. 2020, section 2). Not a probability of
                        the text: each piece is visible when the others are predicted.
    pseudo-within-word  The same with the later pieces of x_t's word masked too (PLL-word-l2r, Kauf
                        and Ivanova 2023), which does not favour words of several pieces.
    any-order           A lower bound of log p(x_1 … x_T), so an upper bound of a code length, for
                        models that predict hidden pieces from any others. In an order σ,
                        log p_σ(x) = Σ_k log p(x_σ(k) | x_σ(1) … x_σ(k−1)); the score is the mean
                        over all orders (Uria et al. 2014; Hoogeboom et al. 2022).

Each hidden piece may be the next in an order, so the mean over them is taken, at evenly spaced
steps of a few random orders (ORDERS, STEPS), which is unbiased for the bound, and exact for T ≤ 4
(T ≤ 3 if the order of what is visible matters). A frame reveals where a text ends, which
left-to-right models must predict; so log T(T + 1) nats are added for the number of pieces. Compare
left-to-right with right-to-left and with the bound, and pseudo only with pseudo.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from bertlab.errors import UserError
from bertlab.evals.questions import Answerer, Text, by_chain_rule, in_random_orders, one_by_one
from bertlab.evals.scoring import scoring
from bertlab.train.phases import trained_objectives
from bertlab.transfer.load import Pretrained

# Each kind of score with the fields of `Scoring` that it needs; a model's default is the first that
# it allows.
KINDS = {
    "both directions": ("forward", "backward"),
    "left-to-right": ("forward",),
    "right-to-left": ("backward",),
    "pseudo": ("hidden",),
    "pseudo-within-word": ("hidden",),
    "any-order": ("hidden",),
}
BLOCK = 1000  # texts whose questions are in memory at a time


class Scores(NamedTuple):
    """How likely a model finds N texts: nats summed over the scored tokens, and their number."""

    log_probability: Float[np.ndarray, "N"]
    tokens: Int[np.ndarray, "N"]


class Scorer:
    """Scores texts with a model, by the first of the trained objectives that can. `kinds` are those
    that the model allows, its default first."""

    def __init__(self, model: Pretrained):
        self.model, self.params, self.answerers = model, jax.device_put(model.params), {}
        self.has_mask = model.program.vocabulary.mask_id is not None
        trained = trained_objectives(model.config, model.step) if model.objectives else []
        self.scorings = {name: scoring(model.objectives[name]) for name in trained}
        for name, how in self.scorings.items():
            for ability in ("forward", "backward", "hidden"):
                possible = getattr(how, ability) and (self.has_mask or ability != "hidden")
                if possible and ability not in self.answerers:
                    self.answerers[ability] = Answerer(model.program, name, how, ability)
        ordered = "hidden" in self.answerers and self.answerers["hidden"].how.in_order
        kinds = [kind for kind, needs in KINDS.items() if {*needs} <= self.answerers.keys()]
        self.kinds = tuple(kind for kind in kinds if not (ordered and kind.startswith("pseudo")))

    def check_kind(self, kind: str | None = None) -> str:
        """The kind, or the default for None."""
        if self.kinds and kind in (None, *self.kinds):
            return kind or self.kinds[0]
        reasons = [f"{name}: {how.reason}" for name, how in self.scorings.items() if how.reason]
        reasons += [] if self.has_mask else ["the tokenizer has no [MASK]"]
        raise UserError(
            f"this model has no score of the kind {kind or 'that any objective gives'}"
            f" ({'; '.join(reasons)}); it has {', '.join(self.kinds) or 'none'}"
        )

    def score(self, texts: Sequence[Text], kind: str | None = None, special: bool = True) -> Scores:
        """The score of each text by one of `kinds` (None: the first); special tokens, or the number
        of pieces, are scored too or not."""
        kind = self.check_kind(kind)
        for number, text in enumerate(texts, 1):
            self.model.check_length(number, len(text.tokens))
        blocks = [np.zeros((2, 0))]
        for start in range(0, len(texts), BLOCK):
            block = texts[start : start + BLOCK]
            sums = [self._sums(block, kind, ability, special) for ability in KINDS[kind]]
            blocks.append(np.mean(sums, axis=0))
        log_probability, tokens = np.hstack(blocks)
        return Scores(log_probability, np.round(tokens).astype(int))

    def _sums(self, texts, kind: str, ability: str, special: bool) -> Scores:
        """The scores by one ability."""
        answerer, tokenizer, questions = self.answerers[ability], self.model.tokenizer, []
        first = int(answerer.how.from_before)
        continues = tokenizer.continues() if kind == "pseudo-within-word" else None
        frame = (len(tokenizer.prefix_ids), len(tokenizer.suffix_ids)) if special else (0, 0)
        for number, text in enumerate(texts):
            if kind == "any-order":
                questions += in_random_orders(number, text, first, answerer.how.in_order)
            elif ability == "hidden":
                questions += one_by_one(number, text, first, continues)
            else:
                questions.append(by_chain_rule(number, text, ability, frame))
        nats, asked = np.zeros(len(texts)), [set() for _ in texts]
        for question, answer in zip(questions, answerer(self.params, texts, questions)):
            nats[question.text] += question.weight * answer.sum()
            asked[question.text].update(question.asked.tolist())
        tokens = np.array([len(positions) for positions in asked])
        if kind == "any-order" and frame[1]:
            nats -= np.log(np.maximum(1, tokens * (tokens + 1)))
        return Scores(nats, tokens)


def bits_per_byte(texts: Sequence[Text], scores: Scores, unk_id: int) -> dict[str, Any]:
    """The scores of texts as numbers.

    Bytes that the model does not predict count too and make the value too low: capitals and accents
    that a tokenizer drops, text behind [UNK], and a free first token: then there are more `pieces`
    of the texts than scored `tokens`. If the share of `unknown` pieces is above 0, do not compare
    tokenizers. The standard error is over documents, None for one; perplexity is per scored token.
    """
    nats, tokens = -scores.log_probability, int(scores.tokens.sum())
    sizes, nats_by_document = by_document(texts, nats)
    value, error = ratio(nats_by_document / math.log(2), sizes)
    pieces = np.concatenate([text.tokens[text.pieces] for text in texts])
    return {
        "bits_per_byte": value,
        "standard_error/bits_per_byte": error,
        "perplexity": math.exp(nats.sum() / tokens),
        "tokens": tokens,
        "bytes": round(sizes.sum()),
        "pieces": len(pieces),
        "unknown": float(np.mean(pieces == unk_id)),
    }


def by_document(texts: Sequence[Text], nats: Float[np.ndarray, "N"]) -> Float[np.ndarray, "2 D"]:
    """The bytes and the nats of each document, by its number; a text without one is its own."""
    documents = [n if text.document is None else text.document for n, text in enumerate(texts)]
    _, index = np.unique(documents, return_inverse=True)
    sizes = [text.bytes for text in texts]
    return np.stack([np.bincount(index, weights) for weights in (sizes, nats)])


def ratio(sums: Float[np.ndarray, "N"], weights) -> tuple[float, float | None]:
    """Σ sums / Σ weights, and its first-order standard error over the items with a weight (Cochran
    1977, section 2.11): √(n/(n−1) · Σ (sum − ratio · weight)²) / Σ weight; None for one item."""
    sums, weights = sums[weights > 0], weights[weights > 0]
    number, total = len(sums), weights.sum()
    value = sums.sum() / total
    if number == 1:
        return float(value), None
    squares = ((sums - value * weights) ** 2).sum()
    return float(value), float(np.sqrt(number / (number - 1) * squares) / total)
