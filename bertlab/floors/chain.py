"""Exact inference in the synthetic language: what is seen of a row, and how probable each word is given that.

For one topic, what is seen before a position and its state have the joint probability that the forward recursion gives, what
is seen after it given its state the backward recursion's; their product, summed over topics, is the state's posterior, and its
mean over the emissions the best prediction of the word. Special tokens are steps at which nothing moves. A document
that begins is a step that forgets: topic and state are drawn anew, so rows may hold several.

Where the text around a row's second segment is not known (it follows, is random, or comes before: the two were swapped), each
relation is a chain of its own, and predictions are mixed by the relations' posterior probabilities.

Letters: T topics, S states, W words, V vocabulary, R rows, L length, P supervised positions, K counts.
Everything is NumPy float64; messages are scaled at each position, so nothing underflows.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from bertlab.data.synthetic import Language

Batch = Mapping[str, np.ndarray]

HOLD, MOVE, START = 0, 1, 2
_ROWS = 1024  # worked through at a time where each supervised position sees something else


@dataclasses.dataclass(frozen=True, eq=False)
class Chain:
    """A language in the ids of a vocabulary.

    Attributes:
        start: P(topic) P(state | topic), of any stretch of a document.
        transition: P(next state | topic, state).
        emission: P(id | state); 0 for ids that are no word's.
    """

    start: Float[np.ndarray, "T S"]
    transition: Float[np.ndarray, "T S S"]
    emission: Float[np.ndarray, "S V"]


def chain_of(language: Language, vocab_size: int, ids: Int[np.ndarray, "W"]) -> Chain:
    """The language with words replaced by their ids; several words may share one ([UNK])."""
    emission = np.zeros((language.emission.shape[0], vocab_size))
    np.add.at(emission.T, np.asarray(ids), language.emission.T)
    return Chain(language.topic_prior[:, None] * language.initial, language.transition, emission)


@dataclasses.dataclass(frozen=True, eq=False)
class Messages:
    """What the two recursions say at every position; the scales are logs to be added.

    Attributes:
        before: joint probability of what is seen before a position, its topic and state, and the count until then.
        after: probability of what is seen after it, with the row's count reached, given topic, state and count at it.
        total: log probability of all that is seen.
    """

    before: Float[np.ndarray, "L T R K S"]
    after: Float[np.ndarray, "L T R K S"]
    before_scale: Float[np.ndarray, "R L"]
    after_scale: Float[np.ndarray, "R L"]
    total: Float[np.ndarray, "R"]

    @property
    def scale(self) -> Float[np.ndarray, "R L"]:
        """Log scale of `states`."""
        return self.before_scale + self.after_scale

    def states(self, counted: int = 0) -> Float[np.ndarray, "R L S"]:
        """Joint probability of each state and all that is seen elsewhere; the position itself counts for 0 or 1."""
        size = self.before.shape[3] - counted
        product = self.before[..., :size, :] * self.after[..., counted:, :]
        return product.sum(axis=(1, 3)).swapaxes(0, 1)


def infer(
    chain: Chain,
    steps: Int[np.ndarray, "R L"],
    evidence: Float[np.ndarray, "R L S"],
    chosen: Float[np.ndarray, "R L S"] | None = None,
    counts: Int[np.ndarray, "R"] | None = None,
) -> Messages:
    """Forward and backward recursion over rows of evidence, topics kept apart.

    Args:
        chain: the language.
        steps: HOLD, MOVE (the chain's next word) or START (a document's first word) before each position.
        evidence: P(what is seen at the position | state), and not chosen where choices are counted; 1 where nothing is seen.
        chosen: P(what is seen, and chosen | state).
        counts: how many positions of the row were chosen in this sense.
    """
    rows, length = steps.shape
    counts = np.zeros(rows, int) if counts is None else counts
    size = counts.max(initial=0) + 1
    evidence = evidence.transpose(1, 0, 2)[:, :, None]  # [L, R, 1, S]
    chosen = None if chosen is None else chosen.transpose(1, 0, 2)[:, :, None]
    start, steps = chain.start[:, None, None], steps.T[:, None, :, None, None]
    shape = (length, len(chain.start), rows, size, evidence.shape[-1])
    before, after, scales = np.empty(shape), np.empty(shape), np.zeros((2, length + 1, rows))

    def enter(message, step):
        begun = start * message.sum(axis=(0, 3), keepdims=True)
        moved = (message.reshape(shape[1], -1, shape[4]) @ chain.transition).reshape(shape[1:])
        return np.where(step == MOVE, moved, np.where(step == START, begun, message))

    def leave(message, step):
        begun = np.broadcast_to((start * message).sum(axis=(0, 3), keepdims=True), shape[1:])
        moved = (message.reshape(shape[1], -1, shape[4]) @ chain.transition.swapaxes(1, 2)).reshape(shape[1:])
        return np.where(step == MOVE, moved, np.where(step == START, begun, message))

    def scaled(message, log):
        top = message.max(axis=(0, 2, 3), keepdims=True)
        top = np.where(top > 0, top, 1.0)  # what cannot be stays zero
        return message / top, log + np.log(top[0, :, 0, 0])

    message = np.zeros(shape[1:])
    message[:, :, 0] = chain.start[:, None]
    for i in range(length):
        before[i], scales[0, i] = scaled(enter(message, steps[i]), scales[0, i - 1] if i else 0.0)
        message = before[i] * evidence[i]
        if chosen is not None:
            message[:, :, 1:] += before[i][:, :, :-1] * chosen[i]
    last = message[:, np.arange(rows), counts].sum(axis=(0, 2))
    message = np.zeros(shape[1:])
    message[:, np.arange(rows), counts] = 1.0
    for i in range(length - 1, -1, -1):
        after[i], scales[1, i] = scaled(message, scales[1, i + 1])
        seen = after[i] * evidence[i]
        if chosen is not None:
            seen[:, :, :-1] += after[i][:, :, 1:] * chosen[i]
        message = leave(seen, steps[i])
    with np.errstate(divide="ignore"):
        total = np.log(last) + scales[0, length - 1]
    return Messages(before, after, scales[0, :length].T, scales[1, :length].T, total)


# How rows are read as chains.


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
    """Rows as chains under one relation of their segments.

    Attributes:
        prior: probability of the relation.
        order: positions of the row in the order of the chain.
        place: where each position of the row is in that order.
        steps: HOLD, MOVE or START, in that order.
    """

    prior: float
    order: Int[np.ndarray, "R L"]
    place: Int[np.ndarray, "R L"]
    steps: Int[np.ndarray, "R L"]

    def infer(self, chain: Chain, evidence, chosen=None, counts=None) -> Messages:
        """`infer` of evidence given in the order of the row; the messages are in the chain's."""
        ordered = lambda array: None if array is None else np.take_along_axis(array, self.order[..., None], axis=1)
        return infer(chain, self.steps, ordered(evidence), ordered(chosen), counts)

    def as_row(self, array: np.ndarray) -> np.ndarray:
        """[R, L, ...] in the order of the chain, put into that of the row."""
        return np.take_along_axis(array, self.place.reshape(self.place.shape + (1,) * (array.ndim - 2)), axis=1)

    def rows(self, index: np.ndarray) -> "Reading":
        """The reading of chosen rows, which may repeat."""
        return Reading(self.prior, self.order[index], self.place[index], self.steps[index])


def words_of(batch: Batch, vocabulary) -> Bool[np.ndarray, "R L"]:
    """Where a row holds words: neither padding nor [CLS] nor [SEP]."""
    special = np.isin(batch["tokens"], [vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id])
    return (batch["documents"] > 0) & ~special


def read(batch: Batch, vocabulary, relations: Mapping[str, float]) -> list[Reading]:
    """The chains that a batch's rows may be: "follows", "random" (segments of two documents), "swapped"."""
    words, documents, segments = words_of(batch, vocabulary), batch["documents"], batch["segments"]
    readings = []
    for relation, prior in relations.items():
        first = segments == 1 if relation == "swapped" else np.ones_like(words)
        order = np.argsort(~(first & words), axis=1, kind="stable")
        place = np.argsort(order, axis=1)
        ordered = lambda array, order=order: np.take_along_axis(array, order, axis=1)
        # A stretch is what one chain runs through.
        stretch = documents * 2 + (segments if relation == "random" else 0)
        word, stretch = ordered(words), ordered(stretch)
        held = np.maximum.accumulate(np.where(word, np.arange(word.shape[1]), -1), axis=1)
        held = np.concatenate([np.full((len(word), 1), -1), held[:, :-1]], axis=1)  # the word before
        same = (held >= 0) & (np.take_along_axis(stretch, np.maximum(held, 0), axis=1) == stretch)
        steps = np.where(word, np.where(same, MOVE, START), HOLD)
        readings.append(Reading(prior, order, place, steps))
    return readings


def mixed_nats(parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> np.ndarray:
    """−log Σ w·right / Σ w·every over relations, from (log w, right, every)."""
    logs, right, every = (np.stack(x) for x in zip(*parts))
    weights = np.exp(logs - logs.max(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.log((weights * right).sum(axis=0) / (weights * every).sum(axis=0))


def evidence_of(chain: Chain, tokens: np.ndarray, words: np.ndarray) -> Float[np.ndarray, "R L S"]:
    """Evidence of uncorrupted words, 1 elsewhere."""
    return np.where(words[..., None], chain.emission.T[tokens], 1.0)


def forward_nats(chain, batch, vocabulary, relations, backward: bool = False) -> Float[np.ndarray, "R L"]:
    """−log p(word | the words before it), or after it, at every word; 0 at special tokens."""
    words, tokens = words_of(batch, vocabulary), batch["tokens"]
    if "swapped" in relations:  # what is before in the row is not before in the chain
        length = tokens.shape[1]
        earlier = np.tri(length, k=-1, dtype=bool)
        targets = np.broadcast_to(np.arange(length), tokens.shape)
        visible = np.broadcast_to(earlier.T if backward else earlier, (len(tokens), length, length))
        return np.where(words, visible_nats(chain, batch, vocabulary, relations, targets, visible), 0.0)
    evidence, emission = evidence_of(chain, tokens, words), chain.emission.T[tokens]
    parts = []
    for reading in read(batch, vocabulary, relations):
        messages = reading.infer(chain, evidence)
        if backward:
            states = np.einsum("ts,ltrs->rls", chain.start, messages.after[:, :, :, 0])
            scale = messages.after_scale
        else:
            states, scale = messages.before[:, :, :, 0].sum(axis=1).swapaxes(0, 1), messages.before_scale
        states, scale = reading.as_row(states), reading.as_row(scale)
        parts.append((np.log(reading.prior) + scale, (states * emission).sum(-1), states.sum(-1)))
    return np.where(words, mixed_nats(parts), 0.0)


def visible_nats(
    chain, batch, vocabulary, relations, targets: Int[np.ndarray, "R P"], visible: Bool[np.ndarray, "R P L"]
) -> Float[np.ndarray, "R P"]:
    """−log p(word at a target | the words that are visible to it)."""
    words, tokens = words_of(batch, vocabulary), batch["tokens"]
    rows, number = targets.shape
    readings, nats = read(batch, vocabulary, relations), np.empty(rows * number)
    for first in range(0, rows * number, _ROWS):
        flat = np.arange(first, min(first + _ROWS, rows * number))
        row, target = flat // number, targets.reshape(-1)[flat]
        shown = visible.reshape(rows * number, -1)[flat] & words[row]
        shown[np.arange(len(flat)), target] = False
        evidence, label = evidence_of(chain, tokens[row], shown), tokens[row, target]
        parts = []
        for reading in (reading.rows(row) for reading in readings):
            messages, at = reading.infer(chain, evidence), reading.place[np.arange(len(row)), target]
            at = (np.arange(len(row)), at)
            states = messages.states()[at]
            log = np.log(reading.prior) + messages.scale[at]
            parts.append((log, (states * chain.emission.T[label]).sum(-1), states.sum(-1)))
        nats[flat] = mixed_nats(parts)
    return nats.reshape(rows, number)
