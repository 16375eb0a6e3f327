"""Exact inference in the synthetic language: the probability of each hidden state, given the
visible part of a row.

A state here is a topic with one of its hidden states. The forward recursion gives the joint
probability of a state and everything visible before it, the backward recursion the probability of
everything visible after it (Rabiner 1989, section III). Special tokens do not move the chain. A new
document draws a new state, so rows may hold several documents.

The second segment of a row may follow the first, be random, or come before it (swapped). Each of
these relations is a chain of its own.

Letters: S states, W words, V vocabulary, R rows, L length, K counts. NumPy float64; messages are
scaled at each position, so nothing underflows.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Int

from bertlab.objectives.base import Vocabulary

Batch = Mapping[str, np.ndarray]

HOLD, MOVE, START = 0, 1, 2


@dataclasses.dataclass(frozen=True, eq=False)
class Chain:
    """A language in the ids of a vocabulary.

    Attributes:
        start: P(state) at the beginning of any stretch of a document.
        transition: P(next state | state).
        emission: P(id | state); 0 for ids of no word.
    """

    start: Float[np.ndarray, "S"]
    transition: Float[np.ndarray, "S S"]
    emission: Float[np.ndarray, "S V"]


def chain_of(language, vocab_size: int, ids: Int[np.ndarray, "W"]) -> Chain:
    """The language (`bertlab.data.corpora.synthetic`) with words replaced by their ids; several
    words may share one ([UNK])."""
    topics, states = language.initial.shape
    emission = np.zeros((states, vocab_size))
    np.add.at(emission.T, np.asarray(ids), language.emission.T)
    transition = np.zeros((topics, states, topics, states))
    transition[range(topics), :, range(topics)] = language.transition
    return Chain(
        start=(language.topic_prior[:, None] * language.initial).ravel(),
        transition=transition.reshape(topics * states, -1),
        emission=np.tile(emission, (topics, 1)),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Messages:
    """Results of both recursions at every position.

    Attributes:
        before: Joint probability of state, count so far, and what is visible before.
        after: Probability of what is visible after and of the row's count, given state and count.
        log_scale: Log of the factor that their product lacks.
        log_total: Log probability of everything visible.
    """

    before: Float[np.ndarray, "R L K S"]
    after: Float[np.ndarray, "R L K S"]
    log_scale: Float[np.ndarray, "R L"]
    log_total: Float[np.ndarray, "R"]

    def states(self, counted: int = 0) -> Float[np.ndarray, "R L S"]:
        """Joint probability of each state and all that is visible elsewhere; the position itself
        adds `counted` to the count."""
        size = self.before.shape[2] - counted
        return (self.before[:, :, :size] * self.after[:, :, counted:]).sum(axis=2)


def infer(
    chain: Chain,
    steps: Int[np.ndarray, "R L"],
    evidence: Float[np.ndarray, "R L S"],
    chosen: Float[np.ndarray, "R L S"],
    counts: Int[np.ndarray, "R"],
) -> Messages:
    """Forward and backward recursion over rows of evidence.

    Args:
        chain: The language.
        steps: Before each position: HOLD, MOVE (the chain's next word) or START (a document's first
            word).
        evidence: P(what is visible | state); 1 if nothing is.
        chosen: The same where the position counts as chosen; 0 where it cannot be.
        counts: Chosen positions of each row.
    """
    rows, length = steps.shape
    shape = (rows, counts.max(initial=0) + 1, len(chain.start))
    before, after = np.empty((2, length, *shape))
    log_scale = np.zeros((length, rows))
    evidence, chosen = (x.swapaxes(0, 1)[:, :, None] for x in (evidence, chosen))
    moves, starts = (steps.T[:, :, None, None] == kind for kind in (MOVE, START))

    def scaled(message, log):
        top = message.max(axis=(1, 2))
        top = np.where(top > 0, top, 1.0)  # impossible states stay zero
        return message / top[:, None, None], log + np.log(top)

    message, log = np.zeros(shape), np.zeros(rows)
    message[:, 0] = chain.start
    for i in range(length):
        started = chain.start * message.sum(axis=2, keepdims=True)
        message = np.where(moves[i], message @ chain.transition, message)
        before[i], log = scaled(np.where(starts[i], started, message), log)
        log_scale[i] += log
        message = before[i] * evidence[i]
        message[:, 1:] += before[i, :, :-1] * chosen[i]
    with np.errstate(divide="ignore"):
        log_total = np.log(message[np.arange(rows), counts].sum(axis=1)) + log

    message, log = np.zeros(shape), np.zeros(rows)
    message[np.arange(rows), counts] = 1.0
    for i in range(length - 1, -1, -1):
        after[i], log = scaled(message, log)
        log_scale[i] += log
        message = after[i] * evidence[i]
        message[:, :-1] += after[i, :, 1:] * chosen[i]
        started = (chain.start * message).sum(axis=2, keepdims=True)
        message = np.where(moves[i], message @ chain.transition.T, message)
        message = np.where(starts[i], started, message)
    return Messages(before.swapaxes(0, 1), after.swapaxes(0, 1), log_scale.T, log_total)


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
    """Rows as chains under one relation of their segments.

    Attributes:
        prior: Probability of the relation.
        order: The row's positions in the order of the chain.
        steps: HOLD, MOVE or START, in that order.
    """

    prior: float
    order: Int[np.ndarray, "R L"]
    steps: Int[np.ndarray, "R L"]

    def infer(self, chain: Chain, evidence, chosen, counts, rows=slice(None)) -> Messages:
        """`infer` on some of the rows; evidence and messages are in the order of the row."""
        order = self.order[rows]
        position = np.argsort(order, axis=1)[:, :, None]
        evidence, chosen = (
            np.take_along_axis(x, order[:, :, None], axis=1) for x in (evidence, chosen)
        )
        found = infer(chain, self.steps[rows], evidence, chosen, counts)
        before, after = (
            np.take_along_axis(x, position[..., None], axis=1) for x in (found.before, found.after)
        )
        log_scale = np.take_along_axis(found.log_scale, position[..., 0], axis=1)
        return Messages(before, after, log_scale, found.log_total)


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
        readings.append(Reading(prior, order, steps))
    return readings
