"""The best possible model of the synthetic language.

It conditions only on what a model sees. Special tokens that the model must predict cost 0 nats:
exact if all rows are alike, and a lower bound otherwise.

Corruption is a channel P(input | word) between the language and what the model sees. If exactly n
positions of a row are chosen, the choices depend on each other. The model sees every [MASK], so it
knows how many other positions were chosen; the messages of `chain` count those that were chosen
without becoming [MASK]. A document does not see the others of its row but shares the row's count,
so any of their words may be chosen.
"""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Int

from bertlab.evals.floors.chain import (
    Batch,
    Chain,
    Reading,
    evidence_of,
    mixed_nats,
    read,
    words_of,
)
from bertlab.objectives.base import Objective, Vocabulary

SPECIAL_TOKENS = "rows differ in length: special tokens cost 0 nats"
COUNT = "rows differ in length: their documents know how many positions of a row are chosen"

ROWS = 1024
"""Questions at a time, if each of them sees different words."""


class NoFloor(Exception):
    """An objective has no exact floor here; the message says why."""


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

    def chain_rule(self, backward: bool = False) -> Float[np.ndarray, "R L"]:
        """Of every word, given all words before it (backward: after it)."""
        self.caveats.add(SPECIAL_TOKENS)
        tokens = self.batch["tokens"]
        if "swapped" in self.relations:  # what is before in the row is not before in the chain
            length = tokens.shape[1]
            earlier = np.tri(length, k=-1, dtype=bool)
            visible = np.broadcast_to(
                earlier.T if backward else earlier, (len(tokens), length, length)
            )
            nats = self.visible(np.broadcast_to(np.arange(length), tokens.shape), visible)
            return np.where(self.words, nats, 0.0)
        evidence, parts = evidence_of(self.chain, tokens, self.words), []
        for reading in self.readings:
            messages = reading.infer(self.chain, evidence)
            if backward:
                states = np.einsum("ts,ltrs->rls", self.chain.start, messages.after[:, :, :, 0])
                scale = messages.after_scale
            else:
                states = messages.before[:, :, :, 0].sum(axis=1).swapaxes(0, 1)
                scale = messages.before_scale
            states, log = reading.in_row(states), np.log(reading.prior) + reading.in_row(scale)
            parts.append((log, (states * self.emission).sum(-1), states.sum(-1)))
        return np.where(self.words, mixed_nats(parts), 0.0)

    def visible(
        self, target: Int[np.ndarray, "R P"], seen: Bool[np.ndarray, "R P L"]
    ) -> Float[np.ndarray, "R P"]:
        """Of the words at the target positions, given the clean words that each of them sees."""
        nats = np.empty(target.size)
        for first in range(0, target.size, ROWS):
            flat = np.arange(first, min(first + ROWS, target.size))
            row, position = flat // target.shape[1], target.reshape(-1)[flat]
            each = np.arange(len(flat))
            visible = seen.reshape(target.size, -1)[flat] & self.words[row]
            visible[each, position] = False
            evidence, parts = evidence_of(self.chain, self.batch["tokens"][row], visible), []
            for reading in (reading.rows(row) for reading in self.readings):
                messages = reading.infer(self.chain, evidence)
                at = (each, reading.position[each, position])
                states, log = messages.states()[at], np.log(reading.prior) + messages.scale[at]
                right = (states * self.emission[row, position]).sum(-1)
                parts.append((log, right, states.sum(-1)))
            nats[flat] = mixed_nats(parts)
        return nats.reshape(target.shape)

    def corrupted(
        self,
        tokens: Int[np.ndarray, "R L"],
        corruption: Corruption,
        ask: str = "word",
        chosen_only: bool = True,
    ) -> Float[np.ndarray, "R L"]:
        """Of every word, or with ask="original" of whether the token is the original, given the
        corrupted rows.

        Args:
            tokens: The corrupted rows.
            corruption: How they were corrupted.
            ask: "word" or "original".
            chosen_only: Only chosen positions are asked, and the model knows it. Values elsewhere
                have no meaning.
        """
        parts = [self.words]
        if corruption.count is not None:
            if corruption.draws[self.vocabulary.mask_id] < 1:
                self.caveats.add(COUNT)
            documents = self.batch["documents"]
            numbers = range(1, documents.max(initial=1) + 1)
            parts = [self.words & (documents == number) for number in numbers]
        return sum(self._corrupted(tokens, corruption, ask, chosen_only, part) for part in parts)

    def _corrupted(self, tokens, corruption, ask: str, chosen_only: bool, visible):
        """`corrupted` at the visible words, given only these."""
        seen = observe(self.chain, self.words, tokens, corruption, visible)
        same, parts = tokens == self.batch["tokens"], []
        for reading in self.readings:
            messages = reading.infer(self.chain, seen.evidence, seen.chosen, seen.counts)
            states = reading.in_row(messages.states())
            if seen.counts is None:
                rate = np.reshape(corruption.rate, (-1, 1, 1))
                unchosen, chosen = states * (1 - rate), states * rate
            else:
                counted = reading.in_row(messages.states(counted=1))
                unchosen, chosen = states, np.where(seen.certain[..., None], states, counted)
            # P(not chosen, what is visible)
            unchosen = (unchosen * (0.0 if chosen_only else seen.own)).sum(-1)
            if ask == "word":
                likelihood = corruption.keep_share * same + seen.drawn[..., 0]
                right = unchosen * same + (chosen * self.emission).sum(-1) * likelihood
                any_word = corruption.keep_share * seen.own + seen.drawn
                every = unchosen + (chosen * any_word).sum(-1)
            else:
                kept = seen.own * (corruption.keep_share + seen.drawn)
                stays = unchosen + (chosen * kept).sum(-1)
                leaves = (chosen * (1 - seen.own) * seen.drawn).sum(-1)
                right, every = np.where(same, stays, leaves), stays + leaves
            log = np.log(reading.prior) + reading.in_row(messages.scale)
            parts.append((log, right, every))
        return np.where(visible, mixed_nats(parts), 0.0)

    def relation(
        self,
        other: str,
        labels: Int[np.ndarray, "R"],
        tokens: Int[np.ndarray, "R L"],
        corruption: Corruption | None,
    ) -> Float[np.ndarray, "R"]:
        """Of each pair's label: 0 where B follows A, 1 where B is the `other` ("random",
        "swapped").

        Raises:
            NoFloor: The format makes no such pairs.
        """
        if other not in self.relations:
            raise NoFloor(f"config.data.format makes no {other} pairs")
        evidence = (evidence_of(self.chain, tokens, self.words),)
        if corruption is not None:
            seen = observe(self.chain, self.words, tokens, corruption, self.words)
            evidence = (seen.evidence, seen.chosen, seen.counts)
        totals = {
            name: np.log(reading.prior) + reading.infer(self.chain, *evidence).total
            for name, reading in zip(self.relations, self.readings)
        }
        right = np.where(labels == 1, totals[other], totals.get("follows", -np.inf))
        return np.logaddexp.reduce(list(totals.values()), axis=0) - right


@dataclasses.dataclass(frozen=True, eq=False)
class Evidence:
    """What corrupted rows say of their states.

    Attributes:
        own: P(token | state) of a word that was not chosen.
        drawn: P(token) of a draw.
        certain: Where a word must have been chosen, because it is no word of the language ([MASK]).
        evidence: For `infer`, like the next two.
        chosen: None if choices are independent.
        counts: None likewise.
    """

    own: Float[np.ndarray, "R L S"]
    drawn: Float[np.ndarray, "R L 1"]
    certain: Bool[np.ndarray, "R L"]
    evidence: Float[np.ndarray, "R L S"]
    chosen: Float[np.ndarray, "R L S"] | None = None
    counts: Int[np.ndarray, "R"] | None = None


def observe(
    chain: Chain, words, tokens, corruption: Corruption, visible: Bool[np.ndarray, "R L"]
) -> Evidence:
    """The evidence of the visible words of corrupted rows; others may also have been chosen."""
    own, drawn = chain.emission.T[tokens], corruption.draws[tokens][..., None]
    certain = visible & ~own.any(axis=-1)
    informative = (visible & ~certain)[..., None]  # what must be a draw gives no evidence
    if corruption.count is None:
        rate = np.reshape(corruption.rate, (-1, 1, 1))
        mixed = (1 - rate) * own + rate * (corruption.keep_share * own + drawn)
        return Evidence(own, drawn, certain, np.where(informative, mixed, 1.0))
    elsewhere = (words & ~visible)[..., None].astype(float)
    chosen = np.where(informative, corruption.keep_share * own + drawn, elsewhere)
    counts = corruption.count - certain.sum(axis=1)
    return Evidence(own, drawn, certain, np.where(informative, own, 1.0), chosen, counts)
