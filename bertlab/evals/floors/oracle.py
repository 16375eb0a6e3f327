"""The best possible model of the synthetic language, by exact inference in a hidden Markov chain.

A state here is a topic with one of its hidden states; the recursions are forward and backward ones
(Rabiner 1989, section III). Special tokens do not move the chain; each document of a row begins
with a new state. Where the model must predict special tokens they cost 0 nats: exact if all rows
are alike, and a lower bound otherwise.

Corruption is a channel P(input | word) between the language and what the model sees. If exactly n
positions of a row are chosen, the choices depend on each other, and the recursions count them. A
document does not see the others in its row but shares the row's count, so any of their words may be
chosen.

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

# The step before a position: none, to the chain's next word, or to the start of a document.
HOLD, MOVE, START = range(3)
ROWS = 256  # questions at a time, if each one sees different words


class Chain(NamedTuple):
    """A language in the ids of a vocabulary."""

    start: Float[np.ndarray, "S"]  # P(state) at the beginning of any stretch of a document
    transition: Float[np.ndarray, "S S"]  # P(next state | state)
    emission: Float[np.ndarray, "S V"]  # P(id | state); 0 for ids that are not words


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


def words_of(batch: Batch, vocabulary: Vocabulary) -> Bool[np.ndarray, "R L"]:
    """Where a row holds words, not padding, [CLS] or [SEP]."""
    return (batch["documents"] > 0) & ~vocabulary.is_special(batch["tokens"])


def order_of(batch: Batch, words, relation: str) -> Int[np.ndarray, "2 R L"]:
    """Rows as chains: their positions in the chain's order, and the step before each. Their
    segments are in a relation: "follows", "random" (of two documents) or "swapped"."""
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
    steps = np.where(word, np.where((last >= 0) & same, MOVE, START), HOLD)
    return np.stack([positions, steps])


def infer(chain: Chain, order: Int[np.ndarray, "2 R L"], evidence, chosen, counts):
    """[2, R, L, S] joint probability of each state and all that is visible elsewhere, if the
    position itself does not count as chosen (0) or does (1); and [R, L] the log of the factor that
    was divided out.

    `order` is from `order_of`, `counts` [R] are the chosen positions of each row. `evidence` is
    P(what is visible | state) [R, L, S], 1 where nothing is; `chosen` is the same if the position
    counts as chosen, 0 where it cannot be.
    """
    row, size, (positions, steps) = np.arange(len(counts)), counts.max(initial=0) + 1, order
    at = row, positions.T
    evidence, chosen, steps = evidence[at][:, :, None], chosen[at][:, :, None], steps.T
    restart = np.tile(chain.start, (len(chain.start), 1))
    first, last = np.zeros((2, len(row), size, len(chain.start)))
    first[:, 0] = chain.start
    last[row, size - 1 - counts] = 1.0
    before, log_before = recursion(first, steps, chain.transition, restart, evidence, chosen)
    steps = np.vstack([steps[1:], np.full_like(steps[:1], HOLD)])[::-1]
    reverse = evidence[::-1], chosen[::-1]
    after, log_after = recursion(last, steps, chain.transition.T, restart.T, *reverse)
    after = after[::-1, :, ::-1]  # the remaining count
    place = np.argsort(positions, axis=1), row[:, None]
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


class NoFloor(Exception):
    """An objective has no exact floor here; the message says why."""


@dataclasses.dataclass(frozen=True, eq=False)
class Corruption:
    """How an objective's view changes the words that it chooses: `count` in each row, or (None)
    each word independently with probability `rate`."""

    draws: Float[np.ndarray, "V"]  # P(a chosen word becomes this id)
    keep_share: float = 0.0  # P(it stays); sums to 1 with `draws`
    count: Int[np.ndarray, "R"] | None = None
    rate: float | Float[np.ndarray, "R"] = 0.0

    @property
    def chance(self) -> float | Float[np.ndarray, "R 1 1"]:
        """P(a word is chosen); given a row's count, any value leads to the same answers."""
        return 0.5 if self.count is not None else np.reshape(self.rate, (-1, 1, 1))


class Oracle:
    """Exact inference on clean rows: −log p(right answer | what a model sees).

    `relations` are prior probabilities (`relations_of`); `viewed` is the objective that made the
    view, if it is not the asking one. An answer sets `bound` if it is only a lower bound for rows
    that differ in length.
    """

    def __init__(self, chain: Chain, batch: Batch, vocabulary, relations, viewed=None):
        self.chain, self.batch, self.vocabulary = chain, batch, vocabulary
        self.relations, self.viewed, self.bound = relations, viewed, False
        self.words = words_of(batch, vocabulary)
        self.orders = {name: order_of(batch, self.words, name) for name in relations}
        self.emission = chain.emission.T[batch["tokens"]]  # P(clean word | state)

    def states(self, evidence, chosen, counts, rows=slice(None)) -> Float[np.ndarray, "2 R L S"]:
        """As from `infer`, over all relations; up to one factor per position."""
        found, logs = [], []
        for name, order in self.orders.items():
            states, log_scale = infer(self.chain, order[:, rows], evidence, chosen, counts)
            found.append(states)
            logs.append(np.log(self.relations[name]) + log_scale)
        weights = np.exp(logs - np.max(logs, axis=0))[..., None]
        return sum(weight * states for weight, states in zip(weights, found))

    def visible(self, target, seen: Bool[np.ndarray, "R P L"]) -> Float[np.ndarray, "R P"]:
        """For the words at the target positions, given the clean words that each of them sees."""
        nats = np.empty(target.size)
        for first in range(0, target.size, ROWS):
            flat = np.arange(first, min(first + ROWS, target.size))
            row, column = np.divmod(flat, target.shape[1])
            informative = seen[row, column] & self.words[row]
            evidence = np.where(informative[..., None], self.emission[row], 1.0)
            at = target[row, column]
            states = self.states(*uncounted(evidence), row)[0, np.arange(len(flat)), at]
            nats[flat] = nats_of((states * self.emission[row, at]).sum(-1), states.sum(-1))
        return nats.reshape(target.shape)

    def chain_rule(self, backward: bool = False) -> Float[np.ndarray, "R L"]:
        """For every word, given all words before it (backward: after it)."""
        self.bound = True  # special tokens cost 0 nats
        rows, length = self.words.shape
        earlier = np.tri(length, k=-1, dtype=bool)
        seen = np.broadcast_to(earlier.T if backward else earlier, (rows, length, length))
        nats = self.visible(np.broadcast_to(np.arange(length), (rows, length)), seen)
        return np.where(self.words, nats, 0.0)

    def corrupted(self, tokens, corruption: Corruption, ask="word", chosen_only=True):
        """[R, L] for every word, or with ask="original" whether the token is the original, given
        the corrupted rows `tokens` [R, L]. With `chosen_only`, only chosen positions are asked, and
        the model knows it; values elsewhere have no meaning."""
        documents, parts = self.batch["documents"], [self.words]
        if corruption.count is not None:
            numbers = range(1, documents.max(initial=1) + 1)
            parts = [self.words & (documents == number) for number in numbers]
            # Documents know how many positions in the row are chosen.
            self.bound |= len(parts) > 1 and corruption.draws[self.vocabulary.mask_id] < 1
        chance, keep = corruption.chance, corruption.keep_share
        own, drawn = self.chain.emission.T[tokens], corruption.draws[tokens]
        same, nats = tokens == self.batch["tokens"], np.zeros(tokens.shape)
        for visible in parts:
            unchosen, chosen = self.states(*self.observe(tokens, corruption, visible))
            chosen = chance * (unchosen if corruption.count is None else chosen)
            stays = 0.0 if chosen_only else ((1 - chance) * unchosen * own).sum(-1)
            kept, other = (chosen * own).sum(-1), chosen.sum(-1) * drawn
            if ask == "word":
                right = stays * same + (chosen * self.emission).sum(-1) * (keep * same + drawn)
                every = stays + keep * kept + other
            else:
                original = stays + kept * (keep + drawn)
                replaced = (chosen * (1 - own)).sum(-1) * drawn
                right, every = np.where(same, original, replaced), original + replaced
            nats += np.where(visible, nats_of(right, every), 0.0)
        return nats

    def observe(self, tokens, corruption: Corruption, visible: Bool[np.ndarray, "R L"]):
        """The evidence of the visible words of corrupted rows, as `states` takes it; other words
        may be chosen too."""
        own, drawn = self.chain.emission.T[tokens], corruption.draws[tokens][..., None]
        chance, visible, words = corruption.chance, visible[..., None], self.words[..., None]
        evidence = (1 - chance) * np.where(visible, own, 1.0)
        chosen = chance * np.where(visible, corruption.keep_share * own + drawn, 1.0)
        evidence, chosen = np.where(words, evidence, 1.0), np.where(words, chosen, 0.0)
        if corruption.count is None:
            return uncounted(evidence + chosen)
        return evidence, chosen, corruption.count

    def relation(self, other: str, labels, tokens, corruption) -> Float[np.ndarray, "R"]:
        """For each pair's label, given the corrupted rows: 0 where B follows A, 1 where B is the
        `other` ("random", "swapped")."""
        if other not in self.relations:
            raise NoFloor(f"config.data.format makes no {other} pairs")
        evidence, chosen, counts = self.observe(tokens, corruption, self.words)
        totals = {"follows": np.full(len(labels), -np.inf)}
        for name, order in self.orders.items():
            states, log_scale = infer(self.chain, order, evidence, chosen, counts)
            first = states[0, :, 0] * evidence[:, 0] + states[1, :, 0] * chosen[:, 0]
            scale = np.log(self.relations[name]) + log_scale[:, 0]
            totals[name] = scale - nats_of(first.sum(-1), 1.0)
        right = np.where(labels == 1, totals[other], totals["follows"])
        return np.logaddexp.reduce(list(totals.values()), axis=0) - right


def uncounted(evidence: Float[np.ndarray, "R L S"]):
    """Evidence, chosen and counts for `infer` if nothing counts as chosen."""
    return evidence, np.zeros_like(evidence), np.zeros(len(evidence), int)


def nats_of(right: Float[np.ndarray, "..."], every: Float[np.ndarray, "..."]) -> np.ndarray:
    """−log(right / every); what is never asked may be 0 / 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.log(right / every)
