"""The best possible model of the synthetic language.

It conditions only on what a model sees. Special tokens that the model must predict cost 0 nats:
exact if all rows are alike, and a lower bound otherwise.

Corruption is a channel P(input | word) between the language and what the model sees. If exactly n
positions of a row are chosen, the choices depend on each other, and the messages of `chain` count
them. A document does not see the others of its row but shares the row's count, so any of their
words may be chosen.
"""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Int

from bertlab.evals.floors.chain import Batch, Chain, Reading, read, words_of
from bertlab.objectives.base import Objective, Vocabulary

ROWS = 256
"""Questions at a time, if each of them sees different words."""


class NoFloor(Exception):
    """An objective has no exact floor here; the message has the reason."""


@dataclasses.dataclass(frozen=True, eq=False)
class Corruption:
    """How an objective's view changes the words that it chooses.

    Attributes:
        draws: [V] probability that a chosen word becomes each id.
        keep_share: Probability that it stays; with `draws` it sums to 1.
        count: [R] words chosen in each row; None: each word independently with probability `rate`.
        rate: One for all rows, or [R].
    """

    draws: Float[np.ndarray, "V"]
    keep_share: float = 0.0
    count: Int[np.ndarray, "R"] | None = None
    rate: float | Float[np.ndarray, "R"] = 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class Oracle:
    """Exact inference on some rows. Every method returns −log p(right answer | what a model sees).

    Attributes:
        chain: The language in the vocabulary's ids.
        batch: The clean rows.
        vocabulary: Of the run.
        relations: Prior probability of each relation of a row's segments (`relations_of`).
        viewed: The objective that made the view, if it is not the asking one.
        caveats: Why an answer is only a lower bound if rows differ in length; added by answers.
    """

    chain: Chain
    batch: Batch
    vocabulary: Vocabulary
    relations: Mapping[str, float]
    viewed: Objective | None = None
    caveats: set[str] = dataclasses.field(default_factory=set)

    @functools.cached_property
    def words(self) -> Bool[np.ndarray, "R L"]:
        """Where the rows have words."""
        return words_of(self.batch, self.vocabulary)

    @functools.cached_property
    def readings(self) -> list[Reading]:
        """Of each relation."""
        return read(self.batch, self.words, self.relations)

    @functools.cached_property
    def emission(self) -> Float[np.ndarray, "R L S"]:
        """P(clean word | state)."""
        return self.chain.emission.T[self.batch["tokens"]]

    def states(self, evidence, chosen, counts, rows=slice(None)):
        """Joint probability of what is visible elsewhere, each state, and that the position is not,
        or is, counted as chosen; both [R, L, S] up to one factor a position.
        """
        found = [
            reading.infer(self.chain, evidence, chosen, counts, rows) for reading in self.readings
        ]
        priors = np.log([reading.prior for reading in self.readings])
        logs = np.stack([prior + messages.log_scale for prior, messages in zip(priors, found)])
        weights = np.exp(logs - logs.max(axis=0))[..., None]
        return tuple(
            sum(weight * messages.states(counted) for weight, messages in zip(weights, found))
            for counted in (0, 1)
        )

    def visible(
        self, target: Int[np.ndarray, "R P"], seen: Bool[np.ndarray, "R P L"]
    ) -> Float[np.ndarray, "R P"]:
        """Of the words at the target positions, given the clean words that each of them sees."""
        nats = np.empty(target.size)
        for first in range(0, target.size, ROWS):
            flat = np.arange(first, min(first + ROWS, target.size))
            row, column = np.divmod(flat, target.shape[1])
            informative = seen[row, column] & self.words[row]
            evidence = np.where(informative[..., None], self.emission[row], 1.0)
            at = target[row, column]
            states = self.states(*uncounted(evidence), row)[0][np.arange(len(flat)), at]
            nats[flat] = nats_of((states * self.emission[row, at]).sum(-1), states.sum(-1))
        return nats.reshape(target.shape)

    def chain_rule(self, backward: bool = False) -> Float[np.ndarray, "R L"]:
        """Of every word, given all words before it (backward: after it)."""
        self.caveats.add("special tokens cost 0 nats")
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
        """Of every word, or with ask="original" of whether the token is the original, given the
        corrupted rows `tokens`.

        With `chosen_only`, only chosen positions are asked, and the model knows it; values
        elsewhere have no meaning.
        """
        parts = [self.words]
        if corruption.count is not None:
            documents = self.batch["documents"]
            numbers = range(1, documents.max(initial=1) + 1)
            parts = [self.words & (documents == number) for number in numbers]
            if len(parts) > 1 and corruption.draws[self.vocabulary.mask_id] < 1:
                self.caveats.add("documents know how many positions of a row are chosen")
        return sum(self._corrupted(tokens, corruption, ask, chosen_only, part) for part in parts)

    def _corrupted(self, tokens, corruption, ask: str, chosen_only: bool, visible):
        """`corrupted` at the visible words, given only these."""
        unchosen, chosen = self.states(*self.observe(tokens, corruption, visible))
        if corruption.count is None:
            chosen = unchosen
        rate, keep = rate_of(corruption), corruption.keep_share
        own, drawn = self.chain.emission.T[tokens], corruption.draws[tokens][..., None]
        same = tokens == self.batch["tokens"]
        unchosen = 0.0 if chosen_only else (unchosen * (1 - rate) * own).sum(-1)
        chosen = chosen * rate
        if ask == "word":
            likelihood = keep * same + drawn[..., 0]
            right = unchosen * same + (chosen * self.emission).sum(-1) * likelihood
            every = unchosen + (chosen * (keep * own + drawn)).sum(-1)
        else:
            original = unchosen + (chosen * own * (keep + drawn)).sum(-1)
            replaced = (chosen * (1 - own) * drawn).sum(-1)
            right, every = np.where(same, original, replaced), original + replaced
        return np.where(visible, nats_of(right, every), 0.0)

    def observe(self, tokens, corruption: Corruption, visible: Bool[np.ndarray, "R L"]):
        """The evidence of the visible words of corrupted rows, as `states` takes it; other words
        may be chosen too."""
        own, drawn = self.chain.emission.T[tokens], corruption.draws[tokens][..., None]
        rate = rate_of(corruption)
        evidence = np.where(visible[..., None], (1 - rate) * own, 1 - rate)
        chosen = np.where(visible[..., None], rate * (corruption.keep_share * own + drawn), rate)
        chosen = np.where(self.words[..., None], chosen, 0.0)
        evidence = np.where(self.words[..., None], evidence, 1.0)
        if corruption.count is None:
            return uncounted(evidence + chosen)
        return evidence, chosen, corruption.count

    def relation(
        self,
        other: str,
        labels: Int[np.ndarray, "R"],
        tokens: Int[np.ndarray, "R L"],
        corruption: Corruption | None,
    ) -> Float[np.ndarray, "R"]:
        """Of each pair's label: 0 where B follows A, 1 where B is the `other` ("random",
        "swapped").
        """
        if other not in self.relations:
            raise NoFloor(f"config.data.format makes no {other} pairs")
        if corruption is None:  # clean rows: nothing is chosen
            corruption = Corruption(np.zeros(self.vocabulary.size))
        observed = self.observe(tokens, corruption, self.words)
        totals = {
            name: np.log(reading.prior) + reading.infer(self.chain, *observed).log_total
            for name, reading in zip(self.relations, self.readings)
        }
        right = np.where(labels == 1, totals[other], totals.get("follows", -np.inf))
        return np.logaddexp.reduce(list(totals.values()), axis=0) - right


def uncounted(evidence: Float[np.ndarray, "R L S"]):
    """Evidence, chosen and counts for `infer` if nothing counts as chosen."""
    return evidence, np.zeros_like(evidence), np.zeros(len(evidence), int)


def rate_of(corruption: Corruption) -> float | Float[np.ndarray, "R 1 1"]:
    """Probability that a word is chosen; given a row's count, any leads to the same answers."""
    return 0.5 if corruption.count is not None else np.reshape(corruption.rate, (-1, 1, 1))


def nats_of(right: Float[np.ndarray, "..."], every: Float[np.ndarray, "..."]) -> np.ndarray:
    """−log(right / every); what is never asked may be 0 / 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.log(right / every)
