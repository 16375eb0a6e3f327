"""Exact inference in the synthetic language: the probability of each hidden state, given the
visible part of a row.

For each topic the forward recursion gives the joint probability of a state and everything visible
before it, the backward recursion the probability of everything visible after it; their product,
summed over topics, is the state's posterior. Special tokens do not move the chain. A new document
draws a new topic and state, so rows may hold several documents.

The second segment of a row may follow the first, be random, or come before it (swapped). Each of
these relations is a chain of its own; predictions are mixed by their posterior probabilities.

Letters: T topics, S states, W words, V vocabulary, R rows, L length, K counts. NumPy float64;
messages are scaled at each position, so nothing underflows.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from bertlab.objectives.base import Vocabulary

Batch = Mapping[str, np.ndarray]

HOLD, MOVE, START = 0, 1, 2


@dataclasses.dataclass(frozen=True, eq=False)
class Chain:
    """A language in the ids of a vocabulary.

    Attributes:
        start: P(topic) P(state | topic) at the beginning of any stretch of a document.
        transition: P(next state | topic, state).
        emission: P(id | state); 0 for ids of no word.
    """

    start: Float[np.ndarray, "T S"]
    transition: Float[np.ndarray, "T S S"]
    emission: Float[np.ndarray, "S V"]


def chain_of(language, vocab_size: int, ids: Int[np.ndarray, "W"]) -> Chain:
    """The language (`bertlab.data.synthetic`) with words replaced by their ids; several words may
    share one ([UNK])."""
    emission = np.zeros((language.emission.shape[0], vocab_size))
    np.add.at(emission.T, np.asarray(ids), language.emission.T)
    start = language.topic_prior[:, None] * language.initial
    return Chain(start, language.transition, emission)


@dataclasses.dataclass(frozen=True, eq=False)
class Messages:
    """Results of both recursions at every position. Add the scales to the logs.

    Attributes:
        before: Joint probability of topic, state, count so far, and what is visible before.
        after: Probability of what is visible after and of the row's count, given topic, state and
            count.
        before_scale: Log, of `before`.
        after_scale: Log, of `after`.
        total: Log probability of everything visible.
    """

    before: Float[np.ndarray, "L T R K S"]
    after: Float[np.ndarray, "L T R K S"]
    before_scale: Float[np.ndarray, "R L"]
    after_scale: Float[np.ndarray, "R L"]
    total: Float[np.ndarray, "R"]

    @property
    def scale(self) -> Float[np.ndarray, "R L"]:
        """Of `states`."""
        return self.before_scale + self.after_scale

    def states(self, counted: int = 0) -> Float[np.ndarray, "R L S"]:
        """Joint probability of each state and all that is visible elsewhere; the position itself
        adds `counted` to the count."""
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
    """Forward and backward recursion over rows of evidence, for each topic.

    Args:
        chain: The language.
        steps: Before each position: HOLD, MOVE (the chain's next word) or START (a document's first
            word).
        evidence: P(what is visible | state), given that the position is not chosen if choices are
            counted; 1 if nothing is visible.
        chosen: P(what is visible | state, chosen).
        counts: Number of chosen positions in each row.
    """
    rows, length = steps.shape
    counts = np.zeros(rows, int) if counts is None else counts
    size = counts.max(initial=0) + 1
    evidence = evidence.transpose(1, 0, 2)[:, :, None]  # [L, R, 1, S]
    chosen = None if chosen is None else chosen.transpose(1, 0, 2)[:, :, None]
    start, steps = chain.start[:, None, None], steps.T[:, None, :, None, None]
    shape = (length, len(chain.start), rows, size, evidence.shape[-1])
    before, after, scales = np.empty(shape), np.empty(shape), np.zeros((2, length + 1, rows))

    def transform(message, transition):
        return (message.reshape(shape[1], -1, shape[4]) @ transition).reshape(shape[1:])

    def enter(message, step):
        started = start * message.sum(axis=(0, 3), keepdims=True)
        moved = transform(message, chain.transition)
        return np.where(step == MOVE, moved, np.where(step == START, started, message))

    def leave(message, step):
        started = np.broadcast_to((start * message).sum(axis=(0, 3), keepdims=True), shape[1:])
        moved = transform(message, chain.transition.swapaxes(1, 2))
        return np.where(step == MOVE, moved, np.where(step == START, started, message))

    def scaled(message, log):
        top = message.max(axis=(0, 2, 3), keepdims=True)
        top = np.where(top > 0, top, 1.0)  # impossible states stay zero
        return message / top, log + np.log(top[0, :, 0, 0])

    message = np.zeros(shape[1:])
    message[:, :, 0] = chain.start[:, None]
    for i in range(length):
        log = scales[0, i - 1] if i else 0.0
        before[i], scales[0, i] = scaled(enter(message, steps[i]), log)
        message = before[i] * evidence[i]
        if chosen is not None:
            message[:, :, 1:] += before[i][:, :, :-1] * chosen[i]
    last = message[:, np.arange(rows), counts].sum(axis=(0, 2))
    message = np.zeros(shape[1:])
    message[:, np.arange(rows), counts] = 1.0
    for i in range(length - 1, -1, -1):
        after[i], scales[1, i] = scaled(message, scales[1, i + 1])
        visible = after[i] * evidence[i]
        if chosen is not None:
            visible[:, :, :-1] += after[i][:, :, 1:] * chosen[i]
        message = leave(visible, steps[i])
    with np.errstate(divide="ignore"):
        total = np.log(last) + scales[0, length - 1]
    return Messages(before, after, scales[0, :length].T, scales[1, :length].T, total)


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
    """Rows as chains under one relation of their segments.

    Attributes:
        prior: Probability of the relation.
        order: The row's positions in the order of the chain.
        position: In that order, of each position of the row.
        steps: HOLD, MOVE or START, in that order.
    """

    prior: float
    order: Int[np.ndarray, "R L"]
    position: Int[np.ndarray, "R L"]
    steps: Int[np.ndarray, "R L"]

    def infer(self, chain: Chain, evidence, chosen=None, counts=None) -> Messages:
        """`infer` from evidence in the order of the row; messages are in that of the chain."""
        evidence = np.take_along_axis(evidence, self.order[..., None], axis=1)
        if chosen is not None:
            chosen = np.take_along_axis(chosen, self.order[..., None], axis=1)
        return infer(chain, self.steps, evidence, chosen, counts)

    def in_row(self, array: np.ndarray) -> np.ndarray:
        """[R, L, ...] from the order of the chain to that of the row."""
        position = self.position.reshape(self.position.shape + (1,) * (array.ndim - 2))
        return np.take_along_axis(array, position, axis=1)

    def rows(self, index: np.ndarray) -> "Reading":
        """Of these rows."""
        return Reading(self.prior, self.order[index], self.position[index], self.steps[index])


def words_of(batch: Batch, vocabulary: Vocabulary) -> Bool[np.ndarray, "R L"]:
    """Where a row holds words, not padding, [CLS] or [SEP]."""
    return (batch["documents"] > 0) & ~vocabulary.is_special(batch["tokens"])


def read(
    batch: Batch, words: Bool[np.ndarray, "R L"], relations: Mapping[str, float]
) -> list[Reading]:
    """A reading for each relation: "follows", "random" (segments of two documents) or "swapped"."""
    segments, readings = batch["segments"], []
    for relation, prior in relations.items():
        first = segments == 1 if relation == "swapped" else np.ones_like(words)
        order = np.argsort(~(first & words), axis=1, kind="stable")
        # One chain runs through a stretch.
        stretch = batch["documents"] * 2 + (segments if relation == "random" else 0)
        word = np.take_along_axis(words, order, axis=1)
        stretch = np.take_along_axis(stretch, order, axis=1)
        last = np.maximum.accumulate(np.where(word, np.arange(word.shape[1]), -1), axis=1)
        last = np.pad(last, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]  # the word before
        same = np.take_along_axis(stretch, np.maximum(last, 0), axis=1) == stretch
        steps = np.where(word, np.where((last >= 0) & same, MOVE, START), HOLD)
        readings.append(Reading(prior, order, np.argsort(order, axis=1), steps))
    return readings


def mixed_nats(parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> np.ndarray:
    """−log(Σ w·right / Σ w·every) over relations, from (log w, right, every)."""
    logs, right, every = (np.stack(x) for x in zip(*parts))
    weights = np.exp(logs - logs.max(axis=0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.log((weights * right).sum(axis=0) / (weights * every).sum(axis=0))


def evidence_of(chain: Chain, tokens: np.ndarray, words: np.ndarray) -> Float[np.ndarray, "R L S"]:
    """P(word | state) where `words` is true, 1 elsewhere."""
    return np.where(words[..., None], chain.emission.T[tokens], 1.0)
