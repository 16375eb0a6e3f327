"""Exact inference in the synthetic language: the probability of each hidden state, given the
visible part of a row.

A state here is a topic with one of its hidden states. The forward recursion gives the joint
probability of a state and everything visible before it, the backward recursion the probability of
everything visible after it (Rabiner 1989, section III). Special tokens do not move the chain. A new
document draws a new state, so a row may hold several documents.

The second segment of a row may follow the first, be random, or come before it (swapped). Each of
these relations is a chain of its own.

Letters: S states, W words, V vocabulary, R rows, L length, K counts. NumPy float64; messages are
scaled at each position, so nothing underflows.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

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
        emission: P(id | state); 0 for ids that are not words.
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


def log_probability(chain: Chain, tokens: Int[np.ndarray, "T"]) -> float:
    """log P of any stretch of a document."""
    state, total = chain.start, 0.0
    for token in tokens:
        joint = state * chain.emission[:, token]
        total += np.log(joint.sum())
        state = joint / joint.sum() @ chain.transition
    return total


class Order(NamedTuple):
    """Rows as chains: their positions in the chain's order, and the step before each: HOLD, MOVE
    (to the chain's next word) or START (of a document)."""

    positions: Int[np.ndarray, "R L"]
    steps: Int[np.ndarray, "R L"]


def words_of(batch: Batch, vocabulary: Vocabulary) -> Bool[np.ndarray, "R L"]:
    """Where a row holds words, not padding, [CLS] or [SEP]."""
    return (batch["documents"] > 0) & ~vocabulary.is_special(batch["tokens"])


def order_of(batch: Batch, words: Bool[np.ndarray, "R L"], relation: str) -> Order:
    """The order of rows whose segments are in a relation: "follows", "random" (of two documents) or
    "swapped"."""
    segments = batch["segments"]
    first = segments == 1 if relation == "swapped" else np.ones_like(words)
    positions = np.argsort(~(first & words), axis=1, kind="stable")
    # One chain runs through a stretch.
    stretch = batch["documents"] * 2 + (segments if relation == "random" else 0)
    word = np.take_along_axis(words, positions, axis=1)
    stretch = np.take_along_axis(stretch, positions, axis=1)
    last = np.maximum.accumulate(np.where(word, np.arange(word.shape[1]), -1), axis=1)
    last = np.pad(last, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]  # the word before
    same = np.take_along_axis(stretch, np.maximum(last, 0), axis=1) == stretch
    return Order(positions, np.where(word, np.where((last >= 0) & same, MOVE, START), HOLD))


def infer(
    chain: Chain,
    order: Order,
    evidence: Float[np.ndarray, "R L S"],
    chosen: Float[np.ndarray, "R L S"],
    counts: Int[np.ndarray, "R"],
) -> tuple[Float[np.ndarray, "2 R L S"], Float[np.ndarray, "R L"]]:
    """Joint probability of each state and all that is visible elsewhere, if the position itself
    does not count as chosen (0) or does (1); and the log of the factor that was divided out.

    Args:
        chain: The language.
        order: Order of the rows' positions.
        evidence: P(what is visible | state); 1 where nothing is.
        chosen: The same where the position counts as chosen; 0 where it cannot be.
        counts: Chosen positions of each row.
    """
    row, size = np.arange(len(counts)), counts.max(initial=0) + 1
    at = row, order.positions.T
    evidence, chosen, steps = evidence[at][:, :, None], chosen[at][:, :, None], order.steps.T
    restart = np.tile(chain.start, (len(chain.start), 1))
    first, last = np.zeros((2, len(row), size, len(chain.start)))
    first[:, 0] = chain.start
    last[row, size - 1 - counts] = 1.0
    before, log_before = recursion(first, steps, chain.transition, restart, evidence, chosen)
    steps = np.vstack([steps[1:], np.full_like(steps[:1], HOLD)])[::-1]
    after, log_after = recursion(
        last, steps, chain.transition.T, restart.T, evidence[::-1], chosen[::-1]
    )
    after = after[::-1, :, ::-1]  # the remaining count
    place = np.argsort(order.positions, axis=1), row[:, None]
    states = [
        (before[:, :, : size - counted] * after[:, :, counted:]).sum(axis=2)[place]
        for counted in (0, 1)
    ]
    return np.stack(states), (log_before + log_after[::-1])[place]


def recursion(message: Float[np.ndarray, "R K S"], steps, move, restart, evidence, chosen):
    """The message before the evidence of each position [L, R, K, S], by state and count so far; and
    the log of its scale [L, R]."""
    found = np.empty((len(steps), *message.shape))
    tops = np.empty(steps.shape)
    for i, step in enumerate(steps):
        message = np.choose(step[:, None, None], (message, message @ move, message @ restart))
        top = message.max(axis=(1, 2))
        tops[i] = np.where(top > 0, top, 1.0)  # impossible states stay zero
        found[i] = message / tops[i, :, None, None]
        message = found[i] * evidence[i]
        message[:, 1:] += found[i, :, :-1] * chosen[i]
    return found, np.log(tops).cumsum(axis=0)
