"""Scores the likelihood of a text in every way that a model's objectives allow, on one scale: bits per byte.

The tokenizer puts special tokens around a text of T pieces x_1 … x_T: [CLS] x_1 … x_T [SEP] for BERT, none for GPT-2. KINDS are
the kinds of score:

- "left-to-right": Σ log p(token | all tokens before it), over every token but the first: x_1 … x_T and [SEP] in BERT's frame,
  x_2 … x_T without a frame. This is a code length: its exponential is the probability of the text, given a free x_1. Models of
  `prefix` and `masked_next_token` see the tokens in order. A prefix model with `min_share` above 0 has no such score.
- "right-to-left": the same from the other end: x_T … x_1 and [CLS]; without a frame x_T is free.
- "both directions": the mean of the two, for models that have both (biLM).
- "pseudo": pseudo-log-likelihood, Σ log p(x_t | the text with [MASK] in place of x_t) over the T pieces; special tokens are
  neither masked nor scored (Salazar et al. 2020, section 2). It is not the probability of the text: each piece is visible when
  the others are predicted. So it is usually closer to 0 than a left-to-right score, and it favours words of several pieces.
  `masked_next_token` predicts a token from the state before it, so without a frame x_1 is free. A model that never saw [MASK]
  (`mask_share=0`) has no pseudo score.
- "pseudo-within-word": the same with the later pieces of x_t's word masked too (PLL-word-l2r, Kauf and Ivanova 2023). That
  removes the bias towards long words. The tokenizer's `continues` tells which pieces form a word; if it cannot, each piece is
  one.
- "any-order": a lower bound of log p(x_1 … x_T), so an upper bound of a code length, for every model that predicts hidden
  pieces from any others. By the chain rule in an order σ, log p_σ(x) = Σ_k log p(x_σ(k) | x_σ(1) … x_σ(k−1)); the score is
  the mean over all orders (Uria et al. 2014; Hoogeboom et al. 2022). Within a step of an order every hidden piece is as likely
  to be the next, so the mean over all of them is taken: one pass gives many predictions. `ORDERS` random orders are drawn a
  text, and of each at most `STEPS` evenly spaced steps from a random start stand for all. Their mean is unbiased for the bound
  with one piece at a time, at ORDERS · STEPS = 32 passes a text at most (pseudo needs T). If no more sets of pieces can be
  shown (2^T − 1, or as many as there are beginnings of orders if what is shown has an order too), all are computed, and the
  score is exact: with 4 orders for T ≤ 4, or for T ≤ 3 if the order counts. Orders depend on the text alone. A frame tells
  where a text ends, which left-to-right models must predict; then log T(T + 1) nats are added for the number of pieces.
  `electra` is scored by its generator.

Compare left-to-right with right-to-left and with the bound "any-order", and pseudo only with pseudo. Objectives with weight 0
do not count.

Letters: B rows, L length of a row, D width, V vocabulary.
"""

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertlab.data.text_rows import TextRow
from bertlab.data.tokenizers import Tokenizer
from bertlab.errors import UserError
from bertlab.models.base import View
from bertlab.objectives import scoring_objectives
from bertlab.objectives.autoregressive import neighbours
from bertlab.objectives.base import HIDDEN, WAYS, Objective
from bertlab.objectives.judging import scoring_of
from bertlab.objectives.program import Program
from bertlab.transfer.rows import Inference, batches, padded_length, power_of_two, stacked

KINDS = ("both directions", "left-to-right", "right-to-left", "pseudo", "pseudo-within-word", "any-order")
"""What `score` can mean; a model's default is the first of these that it allows."""

ORDERS, STEPS = 4, 8  # of "any-order"; steps of each order

_CLOSING = 2  # a predicted token that tells where a text ends; the text's own are 1

_POSITIONS = 4096  # of masked copies, worked through at a time


@dataclasses.dataclass(frozen=True)
class Score:
    """How likely a model finds a text.

    Attributes:
        log_probability: sum over the scored tokens, in nats.
        tokens: how many tokens were scored.
        kind: one of KINDS: see `bertlab.transfer.likelihood`. The pseudo kinds are not the probability of the text.
        standard_error: of `log_probability` over random orders, 0 if it is exact; None for kinds without.
        closing: the part of `log_probability` that says where the text ends: its special tokens, or for "any-order" its number
            of pieces; 0 if this is not scored.
    """

    log_probability: float
    tokens: int
    kind: str
    standard_error: float | None = None
    closing: float = 0.0


@dataclasses.dataclass(frozen=True)
class BitsPerByte:
    """−Σ log2 p / Σ bytes over texts, by one kind of score.

    The bytes are those of the texts in UTF-8, as given. Bytes that the model does not predict count too and make the value too
    low: capitals, accents and white space that normalisation drops, text behind [UNK], and a free first token. The model
    predicts [SEP] or [CLS] at the end, but they add no bytes.

    Attributes:
        value: bits per byte.
        standard_error: of `value` as a ratio of sums over independent texts; None for a single text.
        kind: one of KINDS.
        texts, bytes: their numbers.
        tokens: scored tokens, as in `Score`.
        pieces: the texts' own tokens; if they are more than `tokens`, one token of each text is free.
        unknown: share of the pieces that are [UNK]; above 0, do not compare the value with other tokenizers'.
        lowercase: the tokenizer drops capitals.
        order_error: the part of `standard_error` that more random orders would remove; 0 if the score is exact, None for kinds
            without.
        closing: the part of `value` that says where the texts end (`Score.closing`). Code lengths pay for [SEP], bounds for the
            number of pieces; without this part the two compare on texts of known length.
    """

    value: float
    standard_error: float | None
    kind: str
    texts: int
    bytes: int
    tokens: int
    pieces: int
    unknown: float
    lowercase: bool
    order_error: float | None = None
    closing: float = 0.0


def ways_of(objectives: Mapping[str, Objective]) -> dict[str, str]:
    """Each way of `bertlab.objectives.base.WAYS` in which these objectives predict a token, and the first that does so."""
    return {way: item[0] for item in reversed(objectives.items()) for way in scoring_of(*item).ways}


def way_of(learned: Mapping[str, str], kind: str) -> tuple[str, str]:
    """The way in which a model predicts pieces for "left-to-right" or "any-order", and the objective that does so.

    Without `ltr` a body sees both sides, so it is shown the tokens in order.
    """
    ways = {"left-to-right": ("forward", "in order"), "any-order": ("at the mask", "before the mask", "in any order")}[kind]
    way = next(way for way in ways if way in learned)
    return way, learned[way]


def kinds_of(objectives: Mapping[str, Objective]) -> tuple[str, ...]:
    """The kinds of score that trained objectives allow, the default first; () if they allow none."""
    learned = ways_of(objectives).keys()
    pseudo = learned & {"at the mask", "before the mask"}
    any_order = pseudo or "in any order" in learned
    both, forward = learned >= {"forward", "backward"}, learned & {"forward", "in order"}
    allowed = (both, forward, "backward" in learned, pseudo, pseudo, any_order)
    return tuple(kind for kind, is_allowed in zip(KINDS, allowed) if is_allowed)


def check_orders(orders: int, name: str = "orders") -> None:
    """Raises: UserError: fewer than two random orders have no spread; the name is that of the argument."""
    if orders < 2:
        raise UserError(f"{name}={orders} must be 2 or more, so that their spread gives a standard error")


def check_kind(kind: str | None, objectives: Mapping[str, Objective], trained: Collection[str]) -> str:
    """The kind, or the model's default for None.

    Args:
        kind: one of KINDS, or None.
        objectives: all objectives of the model.
        trained: names of the objectives with a weight above 0.

    Raises:
        UserError: the kind is unknown, or the model was not trained for it.
    """
    if kind is not None and kind not in KINDS:
        raise UserError(f"kind={kind!r} is not known; choose one of {', '.join(KINDS)}")
    kinds = kinds_of({name: objectives[name] for name in trained})
    reasons = []
    for name, objective in objectives.items():
        scoring = scoring_of(name, objective)
        lacks = scoring.lacks if name in trained else "it had no weight in training" if scoring.ways else ""
        reasons += [f"{name}: {lacks}"] if lacks else []
    names = ", ".join(objectives) or "none"
    if not kinds:
        why = "; ".join(reasons) or f"none of its objectives ({names}) predicts the tokens of a text"
        raise UserError(
            f"this model cannot be scored: {why}; train it with one of {', '.join(scoring_objectives())}, or compare models on"
            " a task (bertlab finetune)"
        )
    if kind is not None and kind not in kinds:
        raise UserError(
            f"kind={kind!r}: this model was not trained for it ({'; '.join([f'objectives: {names}', *reasons])}); choose"
            f" {' or '.join(kinds)}"
        )
    return kind or kinds[0]


@dataclasses.dataclass(frozen=True)
class Scorer:
    """Scores of rows.

    Attributes:
        inference: program and parameters.
        tokenizer: makes the rows.
        longest: the model's number of positions.
        learned: `ways_of` the trained objectives.
    """

    inference: Inference
    tokenizer: Tokenizer
    longest: int
    learned: Mapping[str, str]

    def score(self, rows: Sequence[TextRow], kind: str, orders: int = ORDERS, closing: bool = True) -> list[Score]:
        """The score of each row.

        Args:
            rows: the pieces at `first` are scored and all others are given; a row whose `first` lacks the beginning of a text
                gives log p(rest | beginning), except from right to left.
            kind: one of `kinds_of` the trained objectives.
            orders: 2 or more, for "any-order".
            closing: special tokens are predicted too (for "any-order", the number of pieces).
        """
        if kind == "any-order":
            return self._in_any_order(rows, orders, closing)
        if kind.startswith("pseudo"):
            return self._masked(rows, kind)
        ways = ["backward"] if kind == "right-to-left" else ["forward", "backward"]
        ways = [way_of(self.learned, kind)[0]] if kind == "left-to-right" else ways
        sums = {}
        each = batches(rows, self.longest, self.tokenizer.pad_id)
        for indices, view in self.inference.own(each, "evaluating", len(rows)):
            view = view | {"order": view["positions"]} if "in order" in ways else view
            view["predicted"] = np.zeros_like(view["tokens"])
            for places, index in zip(view["predicted"], indices):
                places[rows[index].first] = 1
                if closing:
                    places[: len(self.tokenizer.prefix_ids)] = _CLOSING
                    places[len(rows[index].tokens) - len(self.tokenizer.suffix_ids) :] = _CLOSING
            found = np.mean([self.inference(_score_neighbours, view, self.learned[way], way) for way in ways], axis=0)
            sums.update(zip(indices, np.asarray(found, np.float64).T.tolist()))
        sums = self.inference.of_all(sums)
        of_rows = (sums[index] for index in range(len(rows)))
        return [Score(total, round(count), kind, closing=end) for total, count, end in of_rows]

    def _masked(self, rows: Sequence[TextRow], kind: str) -> list[Score]:
        """Scores one masked copy for each piece of each row; copies of about the same length share a batch."""
        # Masked-next-token prediction predicts a masked token from the position before it: without [CLS] the first is free.
        way = "at the mask" if "at the mask" in self.learned else "before the mask"
        shift = 0 if way == "at the mask" else 1
        continues = self.tokenizer.continues() if kind == "pseudo-within-word" else None
        copies = [
            (index, place, end)
            for index, row in enumerate(rows)
            for place, end in masked_spans(row, continues)
            if place >= shift
        ]
        totals, counts, found = np.zeros(len(rows)), np.zeros(len(rows), int), {}
        each = self._copied(rows, [index for index, _, _ in copies])
        for numbers, view in self.inference.own(each, "evaluating", len(copies)):
            _, places, ends = np.array(copies)[numbers].T
            found.update(zip(numbers.tolist(), self._at(view, places, ends, shift, self.learned[way]).tolist()))
        found = self.inference.of_all(found)
        for number, (owner, _, _) in enumerate(copies):
            totals[owner] += found[number]
            counts[owner] += 1
        return [Score(float(total), int(count), kind) for total, count in zip(totals, counts)]

    def _copied(self, rows: Sequence[TextRow], owners: Sequence[int]) -> Iterator[tuple[Int[np.ndarray, "C"], View]]:
        """Yields (numbers of the copies, view) for batches of copies of about the same length; `owners` are the rows copied."""
        lengths = np.array([padded_length(len(rows[owner].tokens), self.longest) for owner in owners])
        for length in np.unique(lengths).tolist():
            alike = np.flatnonzero(lengths == length)
            size = power_of_two(min(len(alike), max(1, _POSITIONS // length)))
            for start in range(0, len(alike), size):
                numbers = alike[start : start + size]
                yield numbers, stacked([rows[owners[number]] for number in numbers], length, self.tokenizer.pad_id, size)

    def _in_any_order(self, rows: Sequence[TextRow], orders: int, closing: bool) -> list[Score]:
        """The bound over orders: one copy for each set of shown pieces that is computed."""
        way, name = way_of(self.learned, "any-order")
        # A token is predicted from the position before it: without [CLS] the first is always shown.
        places = [row.first[row.first >= (way == "before the mask")] for row in rows]
        ordered = way == "in any order" and scoring_of(name, self.inference.program.objectives[name]).shown_in_order
        steps = [steps_of(row.tokens, len(of), orders, ordered) for row, of in zip(rows, places)]
        copies = [(index, order, shown, weight) for index, of in enumerate(steps) for order, shown, weight in of]
        sums, found = [np.zeros(1 + max((order for order, *_ in of), default=0)) for of in steps], {}
        each = self._copied(rows, [index for index, *_ in copies])
        for numbers, view in self.inference.own(each, "evaluating", len(copies)):
            ranks = np.zeros_like(view["tokens"])
            for row, number in enumerate(numbers):
                index, _, shown, _ = copies[number]
                ranks[row, places[index]] = HIDDEN
                ranks[row, places[index][list(shown)]] = 1 + np.arange(len(shown))
            of_rows = np.asarray(self.inference(_score_hidden, view | {"ranks": ranks}, name), np.float64)
            found.update(zip(numbers.tolist(), of_rows.tolist()))
        found = self.inference.of_all(found)
        for number, (index, order, shown, weight) in enumerate(copies):
            sums[index][order] += weight * found[number] / (len(places[index]) - len(shown))
        scores = []
        for of, by_order in zip(places, sums):
            end = math.log(len(of) * (len(of) + 1)) if len(of) and closing and self.tokenizer.suffix_ids else 0.0
            error = by_order.std(ddof=1) / math.sqrt(len(by_order)) if len(by_order) > 1 else 0.0
            scores.append(Score(float(by_order.mean()) - end, len(of), "any-order", float(error), -end))
        return scores

    def _at(
        self, view: View, places: Int[np.ndarray, "C"], ends: Int[np.ndarray, "C"], shift: int, name: str
    ) -> Float[np.ndarray, "C"]:
        """log p of the token at one place of each of the first C rows, with those from it up to `end` masked."""
        count, (size, length) = len(places), view["tokens"].shape
        at = np.arange(length)
        hidden = (at >= places[:, None]) & (at < ends[:, None])
        tokens, labels, asked = view["tokens"].copy(), np.zeros(size, np.int32), np.zeros(size, np.int32)
        labels[:count], asked[:count] = tokens[np.arange(count), places], places - shift
        tokens[:count][hidden] = self.tokenizer.mask_id
        found = self.inference(_score_at, view | {"tokens": tokens, "labels": labels, "asked": asked}, name)
        return np.asarray(found, np.float64)[:count]


def masked_spans(row: TextRow, continues: Sequence[bool] | None) -> Iterator[tuple[int, int]]:
    """(place, end) of each piece of a text: the positions [place, end) are masked to score it.

    Args:
        row: the row of a text (not of words).
        continues: by id, whether a piece continues the word before it, to mask the rest of a word too; or None.
    """
    goes_on = [continues is not None and continues[token] for token in row.tokens[row.first]]
    end = 0
    for index in reversed(range(len(row.first))):
        place = int(row.first[index])
        # The last piece of a word: the next piece does not continue it.
        if index + 1 == len(row.first) or not goes_on[index + 1]:
            end = place + 1
        yield place, end


def steps_of(tokens: Sequence[int], pieces: int, orders: int, ordered: bool) -> list[tuple[int, tuple[int, ...], float]]:
    """The steps of orders of a text that are computed: (number of the order, the pieces shown so far, weight).

    The weighted sum of an order's mean log-probability over what is hidden is its share of the bound. All steps of all orders
    count as one order if they are no more than random ones would be.

    Args:
        tokens: of the text; random orders depend on them alone.
        pieces: T, how many are to be predicted.
        orders: random orders.
        ordered: what has been shown matters in its order.
    """
    count, choose = (math.perm, itertools.permutations) if ordered else (math.comb, itertools.combinations)
    budget = orders * min(pieces, STEPS)
    if pieces <= budget and sum(count(pieces, shown) for shown in range(pieces)) <= budget:
        each = [(shown, count(pieces, size)) for size in range(pieces) for shown in choose(range(pieces), size)]
        return [(0, shown, 1 / alike) for shown, alike in each]
    rng, number, found = np.random.default_rng([*map(int, tokens)]), min(pieces, STEPS), []
    for order in range(orders):
        drawn, start = rng.permutation(pieces), rng.random()
        for step in range(number):
            shown = drawn[: int((start + step) * pieces / number)]
            found.append((order, tuple(shown.tolist()), pieces / number))
    return found


def bits_per_byte(texts: Sequence[str], rows: Sequence[TextRow], scores: Sequence[Score], tokenizer: Tokenizer) -> BitsPerByte:
    """Turns the scores of texts into bits per byte.

    Raises:
        UserError: the texts are empty, or none of their tokens is scored.
    """
    bits = np.array([score.log_probability for score in scores]) / -np.log(2)
    sizes = np.array([len(text.encode()) for text in texts], float)
    tokens = sum(score.tokens for score in scores)
    if not tokens or not sizes.sum():
        raise UserError("the texts have no token to score; give longer ones")
    value = bits.sum() / sizes.sum()
    deviations = bits - value * sizes
    error = np.sqrt(len(texts) / (len(texts) - 1) * (deviations**2).sum()) / sizes.sum() if len(texts) > 1 else None
    pieces = np.concatenate([row.tokens[row.first] for row in rows])
    of_orders = None if scores[0].standard_error is None else math.hypot(*(score.standard_error for score in scores))
    return BitsPerByte(
        value=float(value),
        standard_error=None if error is None else float(error),
        kind=scores[0].kind,
        texts=len(texts),
        bytes=int(sizes.sum()),
        tokens=tokens,
        pieces=len(pieces),
        unknown=float(np.mean(pieces == tokenizer.unk_id)),
        lowercase=tokenizer.lowercase,
        order_error=None if of_orders is None else of_orders / math.log(2) / float(sizes.sum()),
        closing=abs(sum(score.closing for score in scores)) / math.log(2) / float(sizes.sum()),
    )


def _score_neighbours(program: Program, name: str, way: str, params, view: View) -> Float[Array, "3 B"]:
    """Σ log p of each row's predicted neighbouring tokens in one way, by the logits of one objective, their number, and the
    part of the sum that is of special tokens."""
    predicted, view = view["predicted"], {name: values for name, values in view.items() if name != "predicted"}
    labels = neighbours(view, "backward" if way == "backward" else "forward")
    predicted = jnp.where(labels >= 0, jnp.roll(predicted, 1 if way == "backward" else -1, axis=1), 0)
    chosen = _log_probability(program.token_logits(params, view, name, WAYS[way]), jnp.maximum(labels, 0))
    total = lambda where: jnp.where(where, chosen, 0.0).sum(axis=1)
    count = (predicted > 0).sum(axis=1).astype(jnp.float32)
    return jnp.stack([total(predicted > 0), count, total(predicted == _CLOSING)])


def _score_at(program: Program, name: str, params, view: View) -> Float[Array, "B"]:
    """log p of one label a row by one of its states and the logits of one objective."""
    return _log_probability(program.token_logits(params, view, name, "both", view["asked"]), view["labels"])


def _score_hidden(program: Program, name: str, params, view: View) -> Float[Array, "B"]:
    """Σ log p of each row's hidden tokens, given the shown ones."""
    ranks, clean = view["ranks"], {field: values for field, values in view.items() if field != "ranks"}
    found = _log_probability(program.hidden_logits(params, clean, name, ranks), clean["tokens"])
    return jnp.where(ranks == HIDDEN, found, 0.0).sum(axis=1)


def _log_probability(logits: Float[Array, "... V"], labels: Int[Array, "..."]) -> Float[Array, "..."]:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)[..., 0]
