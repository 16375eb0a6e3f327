"""The likelihood of texts on one scale, bits per byte.

A tokenizer puts special tokens around a text of T pieces x_1 … x_T: [CLS] x_1 … x_T [SEP] for BERT,
none for GPT-2. KINDS of score, in nats:

    left-to-right       Σ log p(token | all tokens before it) of every token but the first: x_1 … x_T
                        and [SEP] in BERT's frame, x_2 … x_T without one. A code length: its
                        exponential is the probability of the text (without a frame, given x_1).
    right-to-left       The same from the other end: x_T … x_1 and [CLS].
    both directions     The mean of the two, for models that have both (biLM).
    pseudo              Σ log p(x_t | the text with [MASK] in place of x_t), special tokens neither
                        masked nor scored (Salazar et al. 2020, section 2). No probability of the
                        text: each piece is visible when the others are predicted.
    pseudo-within-word  The same with the later pieces of x_t's word masked too (PLL-word-l2r, Kauf
                        and Ivanova 2023), which does not favour words of several pieces.
    any-order           A lower bound of log p(x_1 … x_T), so an upper bound of a code length, for
                        models that predict hidden pieces from any others. In an order σ,
                        log p_σ(x) = Σ_k log p(x_σ(k) | x_σ(1) … x_σ(k−1)); the score is the mean over
                        all orders (Uria et al. 2014; Hoogeboom et al. 2022).

At a step of an order each hidden piece may be the next, so the mean over all of them is taken.
ORDERS random orders are drawn a text, and of each at most STEPS evenly spaced steps from a random
start: unbiased for the bound. If there are no more sets of visible pieces than that, all are
computed, and the score is exact: with 4 orders for T ≤ 4, or T ≤ 3 if the order of what is visible
counts. Orders depend on the text alone. A frame tells where a text ends, which left-to-right models
must predict; so log T(T + 1) nats are added for the number of pieces.

Compare left-to-right with right-to-left and with the bound, and pseudo only with pseudo.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertlab.spine.errors import UserError
from bertlab.spine.evals.scoring import HIDDEN, Predict, scoring
from bertlab.spine.models.base import View
from bertlab.spine.objectives.choosing import at_positions
from bertlab.spine.objectives.program import Program

KINDS = {
    "both directions": {"forward", "backward"},
    "left-to-right": {"forward"},
    "right-to-left": {"backward"},
    "pseudo": {"one hidden"},
    "pseudo-within-word": {"one hidden"},
    "any-order": {"hidden"},
}
"""Each kind of score with what a model must predict for it. A model's default is the first that it
allows."""

ORDERS, STEPS = 4, 8

LENGTH, ROWS = 128, 16
"""The shape in which texts are computed, several in a row; a row of longer texts is longer."""

BLOCK = 1000
"""Texts whose questions are in memory at a time."""


class Text(NamedTuple):
    """A text between its special tokens.

    Attributes:
        tokens: [T] ids, special ones included.
        pieces: Positions to score; all other tokens that are not special are given.
        bytes: UTF-8 bytes of the text.
        characters: [T, 50] of a model that reads them.
    """

    tokens: Int[np.ndarray, "T"]
    pieces: Int[np.ndarray, "n"]
    bytes: int
    characters: Int[np.ndarray, "T 50"] | None = None


class Score(NamedTuple):
    """How likely a model finds a text.

    Attributes:
        log_probability: Nats, summed over the scored tokens.
        tokens: How many were scored.
        closing: The part of `log_probability` for where the text ends: its special tokens, or for
            "any-order" its number of pieces.
        standard_error: Of `log_probability` over random orders, 0 if it is exact; None for kinds
            without.
    """

    log_probability: float
    tokens: int
    closing: float = 0.0
    standard_error: float | None = None


class Question(NamedTuple):
    """Asks for tokens of a text.

    Attributes:
        text: Its number.
        asked: Positions of the tokens.
        ranks: [T] when each token becomes visible (`scoring.HIDDEN`); 0: all visible.
    """

    text: int
    asked: Int[np.ndarray, "P"]
    ranks: Int[np.ndarray, "T"] | int = 0


def encode(text: str, tokenizer) -> Text:
    """The text as the tokenizer frames it."""
    pieces = tokenizer.encode(text)
    tokens = np.array([*tokenizer.prefix_ids, *pieces, *tokenizer.suffix_ids], np.int32)
    first = len(tokenizer.prefix_ids)
    return Text(tokens, np.arange(first, first + len(pieces)), len(text.encode()))


class Scorer:
    """Scores texts with the models of a program. What it compiles serves all texts and
    parameters."""

    def __init__(self, program: Program, tokenizer, trained: Collection[str] | None = None):
        """Finds how the model predicts tokens.

        Args:
            program: Model and objectives.
            tokenizer: Of its texts.
            trained: Names of the objectives with a weight in training; None: all.
        """
        self.program, self.tokenizer = program, tokenizer
        self.scorings = {
            name: scoring(objective)
            for name, objective in program.objectives.items()
            if trained is None or name in trained
        }
        self.names = {}
        for name, found in self.scorings.items():
            hidden = found.hidden if program.vocabulary.mask_id is not None else None
            for ability, can in (
                ("forward", found.forward),
                ("backward", found.backward),
                ("hidden", hidden),
                ("one hidden", hidden and not found.in_order),
            ):
                if can:
                    self.names.setdefault(ability, name)
        self.compiled = {}

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of score that the model allows, its default first."""
        return tuple(kind for kind, needs in KINDS.items() if needs <= self.names.keys())

    def check_kind(self, kind: str | None = None) -> str:
        """The kind, or the default for None.

        Raises:
            UserError: The model has no such score.
        """
        if kind in self.kinds or (kind is None and self.kinds):
            return kind or self.kinds[0]
        reasons = [f"{name}: {s.reason}" for name, s in self.scorings.items() if s.reason]
        if self.program.vocabulary.mask_id is None:
            reasons.append("the tokenizer has no [MASK]")
        raise UserError(
            f"this model has no {kind or 'score of a text'} ({'; '.join(reasons)}); it has"
            f" {', '.join(self.kinds) or 'none'}"
        )

    def score(
        self,
        params: Any,
        texts: Sequence[Text],
        kind: str | None = None,
        orders: int = ORDERS,
        closing: bool = True,
    ) -> list[Score]:
        """The score of each text.

        Args:
            params: Of the program.
            texts: As many as you like.
            kind: One of `kinds`; None: the first.
            orders: Random orders a text, 2 or more, for "any-order".
            closing: Score where each text ends, too.

        Raises:
            UserError: As for `check_kind`, or a text has more tokens than the model has positions.
        """
        kind = self.check_kind(kind)
        longest = longest_text(self.program)
        for number, text in enumerate(texts, 1):
            if len(text.tokens) > longest:
                raise UserError(
                    f"text {number} has {len(text.tokens)} tokens with special ones, but the model"
                    f" has {longest} positions; split it into several"
                )
        scores = []
        for start in range(0, len(texts), BLOCK):
            block = texts[start : start + BLOCK]
            if kind == "any-order":
                scores += self._in_any_order(params, block, orders, closing)
            elif kind.startswith("pseudo"):
                scores += self._pseudo(params, block, kind == "pseudo-within-word")
            else:
                sides = sorted(KINDS[kind], reverse=True)
                by_side = [self._chain_rule(params, block, side, closing) for side in sides]
                scores += [mean_score(same_text) for same_text in zip(*by_side)]
        return scores

    def _chain_rule(self, params, texts, side: str, closing: bool) -> list[Score]:
        """One question a text."""
        questions, special = [], []
        for number, text in enumerate(texts):
            length, asked = len(text.tokens), text.pieces
            first = len(self.tokenizer.prefix_ids)
            last = length - len(self.tokenizer.suffix_ids)
            if closing:
                asked = np.concatenate([np.arange(first), asked, np.arange(last, length)])
            asked = asked[asked > 0] if side == "forward" else asked[asked < length - 1]
            questions.append(Question(number, asked))
            special.append((asked < first) | (asked >= last))
        found = self._answers(params, texts, questions, side, self.names[side])
        return [
            Score(float(nats.sum()), len(nats), float(nats[ends].sum()))
            for nats, ends in zip(found, special)
        ]

    def _pseudo(self, params, texts, within_word: bool) -> list[Score]:
        """One question a piece."""
        name = self.names["one hidden"]
        first = int(self.scorings[name].from_before)
        continues = self.tokenizer.continues() if within_word else None
        questions = []
        for number, text in enumerate(texts):
            for start, end in masked_spans(text, continues):
                ranks = np.zeros(len(text.tokens), np.int32)
                ranks[start:end] = HIDDEN
                if start >= first:
                    questions.append(Question(number, np.array([start]), ranks))
        found = self._answers(params, texts, questions, "hidden", name, asked_share=1 / 8)
        totals, counts = np.zeros(len(texts)), np.zeros(len(texts), int)
        for question, nats in zip(questions, found):
            totals[question.text] += nats[0]
            counts[question.text] += 1
        return [Score(float(total), int(count)) for total, count in zip(totals, counts)]

    def _in_any_order(self, params, texts, orders: int, closing: bool) -> list[Score]:
        """One question for each set of visible pieces that is computed."""
        name = self.names["hidden"]
        how = self.scorings[name]
        questions, steps = [], []
        pieces = [text.pieces[text.pieces >= how.from_before] for text in texts]
        for number, (text, own) in enumerate(zip(texts, pieces)):
            for step in steps_of_orders(text.tokens, len(own), orders, how.in_order):
                ranks, visible = np.zeros(len(text.tokens), np.int32), list(step.visible)
                ranks[own] = HIDDEN
                ranks[own[visible]] = 1 + np.arange(len(visible))
                questions.append(Question(number, np.delete(own, visible), ranks))
                steps.append(step)
        found = self._answers(params, texts, questions, "hidden", name)
        by_order = [{} for _ in texts]
        for question, step, nats in zip(questions, steps, found):
            sums = by_order[question.text]
            sums[step.order] = sums.get(step.order, 0.0) + step.weight * nats.mean()
        scores = []
        for own, sums in zip(pieces, by_order):
            each = np.array([*sums.values()] or [0.0])
            end = 0.0
            if closing and len(own) and self.tokenizer.suffix_ids:
                end = -math.log(len(own) * (len(own) + 1))
            error = each.std(ddof=1) / math.sqrt(len(each)) if len(each) > 1 else 0.0
            scores.append(Score(float(each.mean()) + end, len(own), end, float(error)))
        return scores

    def _answers(
        self,
        params,
        texts: Sequence[Text],
        questions: Sequence[Question],
        ability: str,
        name: str,
        asked_share: float = 1.0,
    ) -> list[Float[np.ndarray, "P"]]:
        """log p of each question's asked tokens.

        Args:
            params: Of the program.
            texts: What the questions are about.
            questions: In any number.
            ability: Field of `Scoring`.
            name: Of the objective that answers.
            asked_share: Positions of a row that can be asked, over its length.
        """
        if (ability, name) not in self.compiled:
            predict = getattr(self.scorings[name], ability)
            function = functools.partial(log_probabilities, self.program, name, predict)
            self.compiled[ability, name] = jax.jit(function)
        lengths = [len(texts[question.text].tokens) for question in questions]
        length = max(LENGTH, 1 << (max(lengths, default=1) - 1).bit_length())
        slots = int(asked_share * length)
        rows = packed(lengths, [len(question.asked) for question in questions], length, slots)
        found, size = [None] * len(questions), max(1, ROWS * LENGTH // length)
        for start in range(0, len(rows), size):
            view, at, answered = self._batch(
                texts, questions, rows[start : start + size], (size, length, slots)
            )
            nats = np.asarray(self.compiled[ability, name](params, view, at), np.float64)
            for number, row, slot, count in answered:
                found[number] = nats[row, slot : slot + count]
        return found

    def _batch(self, texts, questions, rows, shape: tuple[int, int, int]):
        """(view, asked positions, (question, row, first slot, slots) of each): a question is a
        document of its row."""
        size, length, slots = shape
        names = ("tokens", "segments", "documents", "positions", "ranks")
        view = {name: np.zeros((size, length), np.int32) for name in names}
        view["tokens"][:] = self.program.vocabulary.pad_id
        if texts[0].characters is not None:
            view["characters"] = np.zeros((size, length, texts[0].characters.shape[1]), np.int32)
        at, answered = np.zeros((size, slots), np.int32), []
        for row, numbers in enumerate(rows):
            begin, slot = 0, 0
            for document, number in enumerate(numbers, 1):
                question = questions[number]
                text, count = texts[question.text], len(question.asked)
                inside = (row, slice(begin, begin + len(text.tokens)))
                view["tokens"][inside] = text.tokens
                view["documents"][inside] = document
                view["positions"][inside] = np.arange(len(text.tokens))
                view["ranks"][inside] = question.ranks
                if text.characters is not None:
                    view["characters"][inside] = text.characters
                at[row, slot : slot + count] = begin + question.asked
                answered.append((number, row, slot, count))
                begin, slot = begin + len(text.tokens), slot + count
        return view, at, answered


def log_probabilities(
    program: Program, name: str, predict: Predict, params, view: View, at: Int[Array, "B P"]
) -> Float[Array, "B P"]:
    """log p of the tokens at the asked positions, by one objective's model."""

    def ask(model, view):
        labels = at_positions(view["tokens"], at)
        log_p = jax.nn.log_softmax(predict(model, view, at))
        return jnp.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0]

    return program.call(params, name, view, ask)


def packed(
    lengths: Sequence[int], asked: Sequence[int], length: int, slots: int
) -> list[list[int]]:
    """Rows of question numbers, of at most `length` tokens and `slots` asked positions each:
    next-fit, in the order of their lengths."""
    rows, free, free_slots = [], -1, -1
    for number in np.argsort(lengths, kind="stable").tolist():
        if lengths[number] > free or asked[number] > free_slots:
            rows.append([])
            free, free_slots = length, slots
        rows[-1].append(number)
        free, free_slots = free - lengths[number], free_slots - asked[number]
    return rows


def longest_text(program: Program) -> int:
    """The most tokens of a text; 2^20 if the model has no limit."""
    shape = program.body.shape
    learned = getattr(shape, "position_encoding", "") == "learned"
    return shape.max_positions if learned else 1 << 20


def masked_spans(text: Text, continues: Sequence[bool] | None) -> Iterator[tuple[int, int]]:
    """(position of a piece, end of what is masked to score it): itself, or with `continues` (by id,
    whether it continues a word) also the rest of its word."""
    end = 0
    for number in reversed(range(len(text.pieces))):
        position, following = int(text.pieces[number]), text.pieces[number + 1 : number + 2]
        if continues is None or not any(continues[text.tokens[place]] for place in following):
            end = position + 1
        yield position, end


class Step(NamedTuple):
    """A step of an order.

    Attributes:
        order: Its number.
        visible: Numbers of the pieces that are visible.
        weight: Of the mean log-probability over the hidden pieces; the weighted sum of an order's
            steps is its share of the bound.
    """

    order: int
    visible: tuple[int, ...]
    weight: float


def steps_of_orders(tokens: Sequence[int], pieces: int, orders: int, in_order: bool) -> list[Step]:
    """The steps of a text's orders that are computed. All steps of all orders count as one order if
    they are no more than random ones would be.

    Args:
        tokens: Of the text; its random orders depend on them alone.
        pieces: T, how many are predicted.
        orders: Random orders.
        in_order: The order of what is visible matters.
    """
    number = min(pieces, STEPS)
    count = math.perm if in_order else math.comb
    choose = itertools.permutations if in_order else itertools.combinations
    if pieces <= orders * number >= sum(count(pieces, size) for size in range(pieces)):
        return [
            Step(0, visible, 1 / count(pieces, size))
            for size in range(pieces)
            for visible in choose(range(pieces), size)
        ]
    rng, steps = np.random.default_rng([*map(int, tokens)]), []
    for order in range(orders):
        drawn, start = rng.permutation(pieces), rng.random()
        for step in range(number):
            visible = drawn[: int((start + step) * pieces / number)]
            steps.append(Step(order, tuple(visible.tolist()), pieces / number))
    return steps


def mean_score(scores: Sequence[Score]) -> Score:
    """The mean of the scores of one text."""
    total, tokens, closing = np.mean([score[:3] for score in scores], axis=0).tolist()
    return Score(total, round(tokens), closing)


@dataclasses.dataclass(frozen=True)
class BitsPerByte:
    """−Σ log2 p / Σ bytes over texts, by one kind of score.

    Bytes that the model does not predict count too and make the value too low: capitals and accents
    that a tokenizer drops, text behind [UNK], and a free first token. A predicted [SEP] or [CLS] adds
    no bytes.

    Attributes:
        value: Bits per byte.
        standard_error: Of `value` as a ratio of sums over independent texts; None for one text.
        texts: Their number.
        bytes: Theirs in UTF-8.
        tokens: Scored tokens.
        pieces: The texts' own tokens; if they are more than `tokens`, one of each text is free.
        unknown: Share of the pieces that are [UNK]; above 0, do not compare tokenizers.
        order_error: The part of `standard_error` that more random orders would remove; 0 if the
            score is exact, None for kinds without.
        closing: The part of `value` for where the texts end: code lengths pay for [SEP], bounds for
            the number of pieces. Without it the two compare on texts of known length.
    """

    value: float
    standard_error: float | None
    texts: int
    bytes: int
    tokens: int
    pieces: int
    unknown: float
    order_error: float | None = None
    closing: float = 0.0


def bits_per_byte(texts: Sequence[Text], scores: Sequence[Score], unk_id: int) -> BitsPerByte:
    """The scores of texts as one number.

    Raises:
        UserError: No token is scored.
    """
    bits = np.array([score.log_probability for score in scores]) / -math.log(2)
    sizes = np.array([text.bytes for text in texts], float)
    number, total, tokens = len(texts), sizes.sum(), sum(score.tokens for score in scores)
    if not tokens:
        raise UserError("the texts have no token to score; give longer ones")
    value = bits.sum() / total
    # Linearised variance of a ratio of sums (Cochran 1977, section 2.11).
    squares = ((bits - value * sizes) ** 2).sum()
    error = math.sqrt(number / (number - 1) * squares) / total if number > 1 else None
    order_errors = [score.standard_error for score in scores]
    order_error = None
    if None not in order_errors:
        order_error = math.hypot(*order_errors) / math.log(2) / total
    pieces = np.concatenate([text.tokens[text.pieces] for text in texts])
    return BitsPerByte(
        value=float(value),
        standard_error=error,
        texts=number,
        bytes=int(total),
        tokens=tokens,
        pieces=len(pieces),
        unknown=float(np.mean(pieces == unk_id)),
        order_error=order_error,
        closing=abs(sum(score.closing for score in scores)) / math.log(2) / float(total),
    )
