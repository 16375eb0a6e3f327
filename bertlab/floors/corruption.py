"""Exact inference from corrupted rows: a channel P(shown | word) between the language and what the model sees.

If exactly n positions of a row are chosen, the choices depend on each other. The model sees every [MASK], so it knows how many
other positions were chosen. The messages count them: K counts, 0 to K − 1, of positions so far that were chosen without
becoming [MASK]. A document sees nothing of the row's other documents, which share its count, so any of their words may have
been chosen.

Letters as in `bertlab.floors.chain`.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from bertlab.floors.chain import Chain, evidence_of, mixed_nats, read, words_of
from bertlab.objectives.base import Corruption


@dataclasses.dataclass(frozen=True, eq=False)
class Corrupted:
    """What corrupted rows say: evidence in the sense of `infer`, and its parts.

    Attributes:
        own: P(shown | state) where a word was not chosen.
        drawn: P(shown) of a draw.
        certain: where a word is seen to be chosen: no word is spelled so ([MASK]).
        evidence, chosen, counts: for `infer`.
    """

    own: Float[np.ndarray, "R L S"]
    drawn: Float[np.ndarray, "R L 1"]
    certain: Bool[np.ndarray, "R L"]
    evidence: Float[np.ndarray, "R L S"]
    chosen: Float[np.ndarray, "R L S"] | None
    counts: Int[np.ndarray, "R"] | None


def observe(
    chain: Chain,
    words: Bool[np.ndarray, "R L"],
    shown: Int[np.ndarray, "R L"],
    corruption: Corruption,
    visible: Bool[np.ndarray, "R L"] | None = None,
) -> Corrupted:
    """What the rows shown say of the states behind them.

    Args:
        chain: the language.
        words: the positions among which some were chosen.
        shown: the corrupted tokens.
        corruption: how they were corrupted.
        visible: the words that are seen at all; None: all of them. Others may have been chosen, too.
    """
    unseen = np.zeros_like(words) if visible is None else words & ~visible
    own, drawn = chain.emission.T[shown], corruption.draws[shown][..., None]
    certain = words & ~unseen & ~own.any(axis=-1)
    says = (words & ~unseen & ~certain)[..., None]  # what is surely drawn says nothing
    if corruption.count is None:
        mixed = (1 - corruption.rate) * own + corruption.rate * (corruption.keep_share * own + drawn)
        return Corrupted(own, drawn, certain, np.where(says, mixed, 1.0), None, None)
    counts = corruption.count - certain.sum(axis=1)
    if (counts < 0).any():
        raise ValueError("more words are seen to be replaced than were chosen")
    chosen = np.where(says, corruption.keep_share * own + drawn, unseen[..., None].astype(float))
    return Corrupted(own, drawn, certain, np.where(says, own, 1.0), chosen, counts)


def corrupted_nats(
    chain, batch, vocabulary, relations, shown: Int[np.ndarray, "R L"], corruption: Corruption, ask: str, known: bool
) -> Float[np.ndarray, "R L"]:
    """−log of the right answer's probability at every word of corrupted rows; 0 at special tokens.

    Args:
        batch: the clean rows.
        shown: the corrupted tokens.
        corruption: how they were corrupted.
        ask: "word", or "original": whether the word is the one shown.
        known: only positions that were chosen are asked, so it is known that they were; elsewhere the numbers mean nothing.
    """
    words, documents = words_of(batch, vocabulary), batch["documents"]
    if corruption.count is None:
        return _corrupted_nats(chain, batch, vocabulary, relations, shown, corruption, ask, known, words)
    nats = np.zeros(words.shape)
    # Each document sees itself alone, and shares the row's count with the others.
    for document in range(1, documents.max(initial=1) + 1):
        visible = words & (documents == document)
        nats += _corrupted_nats(chain, batch, vocabulary, relations, shown, corruption, ask, known, visible)
    return nats


def _corrupted_nats(chain, batch, vocabulary, relations, shown, corruption: Corruption, ask: str, known: bool, visible):
    """`corrupted_nats` at the words that are visible, given these alone."""
    words, tokens = words_of(batch, vocabulary), batch["tokens"]
    seen = observe(chain, words, shown, corruption, visible)
    same, label = shown == tokens, chain.emission.T[tokens]
    parts = []
    for reading in read(batch, vocabulary, relations):
        messages = reading.infer(chain, seen.evidence, seen.chosen, seen.counts)
        states = reading.as_row(messages.states())
        if seen.counts is None:
            unchosen, chosen = states * (1 - corruption.rate), states * corruption.rate
        else:
            counted = reading.as_row(messages.states(counted=1))
            unchosen, chosen = states, np.where(seen.certain[..., None], states, counted)
        unchosen = (unchosen * (0.0 if known else seen.own)).sum(-1)  # jointly with what is shown, not chosen
        if ask == "word":
            likelihood = corruption.keep_share * same + seen.drawn[..., 0]  # P(shown | label, chosen)
            right = unchosen * same + (chosen * label).sum(-1) * likelihood
            every = unchosen + (chosen * (corruption.keep_share * seen.own + seen.drawn)).sum(-1)
        else:
            stays = unchosen + (chosen * seen.own * (corruption.keep_share + seen.drawn)).sum(-1)
            leaves = (chosen * (1 - seen.own) * seen.drawn).sum(-1)
            right, every = np.where(same, stays, leaves), stays + leaves
        parts.append((np.log(reading.prior) + reading.as_row(messages.scale), right, every))
    return np.where(visible, mixed_nats(parts), 0.0)


def relation_nats(
    chain, batch, vocabulary, relations, truth: Sequence[str], shown: Int[np.ndarray, "R L"], corruption: Corruption | None
) -> Float[np.ndarray, "R"]:
    """−log p(relation | the rows shown), by likelihood ratio.

    Args:
        batch: the clean rows.
        relations: their prior probabilities.
        truth: the relation of each row.
        shown: the tokens that are seen.
        corruption: how they were corrupted; None: not at all.
    """
    words = words_of(batch, vocabulary)
    if corruption is None:
        evidence = (evidence_of(chain, shown, words), None, None)
    else:
        seen = observe(chain, words, shown, corruption)
        evidence = (seen.evidence, seen.chosen, seen.counts)
    names, readings = list(relations), read(batch, vocabulary, relations)
    totals = [np.log(reading.prior) + reading.infer(chain, *evidence).total for reading in readings]
    right = np.array(totals)[[names.index(name) for name in truth], np.arange(len(truth))]
    return np.logaddexp.reduce(totals, axis=0) - right
