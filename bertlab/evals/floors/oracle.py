"""The best possible model of the synthetic language.

It conditions only on what a model sees. Special tokens that the model must predict cost 0 nats:
exact if all rows are alike, and a lower bound otherwise.

Corruption is a channel P(input | word) between the language and what the model sees. If exactly n
positions of a row are chosen, the choices depend on each other, and the recursions of `chain` count
them. A document does not see the others in its row but shares the row's count, so any of their
words may be chosen.
"""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Int

from bertlab.evals.floors.chain import Batch, Chain, Order, infer, order_of, words_of
from bertlab.objectives.base import Objective, Vocabulary

ROWS = 256
"""Questions at a time, if each one sees different words."""


class NoFloor(Exception):
    """An objective has no exact floor here; the message says why."""


@dataclasses.dataclass(frozen=True, eq=False)
class Corruption:
    """How an objective's view changes the words that it chooses.

    Attributes:
        draws: [V] probability that a chosen word becomes each id.
        keep_share: Probability that it stays; it sums to 1 with `draws`.
        count: [R] words chosen in each row; None: each word independently with probability `rate`.
        rate: One for all rows, or [R].
    """

    draws: Float[np.ndarray, "V"]
    keep_share: float = 0.0
    count: Int[np.ndarray, "R"] | None = None
    rate: float | Float[np.ndarray, "R"] = 0.0

    @property
    def chance(self) -> float | Float[np.ndarray, "R 1 1"]:
        """P(a word is chosen); given a row's count, any value leads to the same answers."""
        return 0.5 if self.count is not None else np.reshape(self.rate, (-1, 1, 1))


@dataclasses.dataclass(eq=False)
class Oracle:
    """Exact inference on some rows. Every method returns −log p(right answer | what a model sees).

    Attributes:
        chain: The language in the vocabulary's ids.
        batch: The clean rows.
        vocabulary: The run's vocabulary.
        relations: Prior probability of each relation of a row's segments (`relations_of`).
        viewed: The objective that made the view, if it is not the asking one.
        bound: Whether an answer is only a lower bound if rows differ in length; set by answers.
    """

    chain: Chain
    batch: Batch
    vocabulary: Vocabulary
    relations: Mapping[str, float]
    viewed: Objective | None = None
    bound: bool = False

    @functools.cached_property
    def words(self) -> Bool[np.ndarray, "R L"]:
        """Where the rows have words."""
        return words_of(self.batch, self.vocabulary)

    @functools.cached_property
    def orders(self) -> dict[str, Order]:
        """The orders by relation."""
        return {name: order_of(self.batch, self.words, name) for name in self.relations}

    @functools.cached_property
    def emission(self) -> Float[np.ndarray, "R L S"]:
        """P(clean word | state)."""
        return self.chain.emission.T[self.batch["tokens"]]

    def states(self, evidence, chosen, counts, rows=slice(None)) -> Float[np.ndarray, "2 R L S"]:
        """As from `infer`, over all relations; up to one factor per position."""
        found, logs = [], []
        for name, order in self.orders.items():
            order = Order(*(array[rows] for array in order))
            states, log_scale = infer(self.chain, order, evidence, chosen, counts)
            found.append(states)
            logs.append(np.log(self.relations[name]) + log_scale)
        weights = np.exp(logs - np.max(logs, axis=0))[..., None]
        return sum(weight * states for weight, states in zip(weights, found))

    def visible(
        self, target: Int[np.ndarray, "R P"], seen: Bool[np.ndarray, "R P L"]
    ) -> Float[np.ndarray, "R P"]:
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

    def corrupted(
        self,
        tokens: Int[np.ndarray, "R L"],
        corruption: Corruption,
        ask: str = "word",
        chosen_only: bool = True,
    ) -> Float[np.ndarray, "R L"]:
        """For every word, or with ask="original" for whether the token is the original, given the
        corrupted rows `tokens`.

        With `chosen_only`, only chosen positions are asked, and the model knows it; values
        elsewhere have no meaning.
        """
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

    def relation(
        self, other: str, labels: Int[np.ndarray, "R"], tokens, corruption: Corruption
    ) -> Float[np.ndarray, "R"]:
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
