"""The best possible model of the synthetic language, for an objective's `floor`.

It conditions only on what the model sees. Special tokens that the model must predict count as known (0 nats). This is exact if
all rows are alike, and a lower bound otherwise.

Corruption is a channel P(shown | word) between the language and what the model sees. If exactly n positions of a row are
chosen, the choices depend on each other. The model sees every [MASK], so it knows how many other positions were chosen. The
messages of `bertlab.floors.chain` count them: K counts, 0 to K − 1, of positions so far that were chosen without becoming
[MASK]. A document does not see the other documents of its row but shares the row's count, so any of their words may be chosen.
"""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Int
from ml_collections import ConfigDict

from bertlab.data.formats import format_of
from bertlab.floors.chain import Batch, Chain, Reading, evidence_of, mixed_nats, read, words_of
from bertlab.objectives.base import Corruption, NoFloor, Objective, Vocabulary
from bertlab.objectives.judging import corruption_of

SPECIAL_TOKENS = "rows differ in length: special tokens count as known"
COUNT = "rows differ in length: how many positions are chosen in a row counts as known to its documents"
_ROWS = 1024  # at a time, if each supervised position sees different words


@dataclasses.dataclass(frozen=True, eq=False)
class ExactOracle:
    """Exact inference on some rows; its methods are those of `bertlab.objectives.base.Oracle`.

    Attributes:
        chain: the language in the vocabulary's ids.
        batch: the clean rows.
        vocabulary: of the run.
        relations: prior probability of each relation of a row's segments (`relations_of`).
        view: what the model is shown.
        shown_by: name and objective that made the view; None if the asking objective made it.
        caveats: why an answer is only a lower bound if rows differ in length; each question adds its own.
    """

    chain: Chain
    batch: Batch
    vocabulary: Vocabulary
    relations: Mapping[str, float]
    view: Batch
    shown_by: tuple[str, Objective] | None = None
    caveats: set[str] = dataclasses.field(default_factory=set)

    @property
    def shared(self) -> Corruption | None:
        return None if self.shown_by is None else corruption_of(*self.shown_by, self.view, self.vocabulary)

    @functools.cached_property
    def _words(self) -> Bool[np.ndarray, "R L"]:
        return words_of(self.batch, self.vocabulary)

    @functools.cached_property
    def _readings(self) -> list[Reading]:
        return read(self.batch, self._words, self.relations)

    @functools.cached_property
    def _emission(self) -> Float[np.ndarray, "R L S"]:
        """P(clean word | state)."""
        return self.chain.emission.T[self.batch["tokens"]]

    def chain_rule(self, backward: bool = False) -> Float[np.ndarray, "R L"]:
        self.caveats.add(SPECIAL_TOKENS)
        tokens = self.batch["tokens"]
        if "swapped" in self.relations:  # words that come before in the row do not come before in the chain
            length = tokens.shape[1]
            earlier = np.tri(length, k=-1, dtype=bool)
            visible = np.broadcast_to(earlier.T if backward else earlier, (len(tokens), length, length))
            nats = self.visible(np.broadcast_to(np.arange(length), tokens.shape), visible)
            return np.where(self._words, nats, 0.0)
        evidence, parts = evidence_of(self.chain, tokens, self._words), []
        for reading in self._readings:
            messages = reading.infer(self.chain, evidence)
            if backward:
                states = np.einsum("ts,ltrs->rls", self.chain.start, messages.after[:, :, :, 0])
                scale = messages.after_scale
            else:
                states, scale = messages.before[:, :, :, 0].sum(axis=1).swapaxes(0, 1), messages.before_scale
            states, scale = reading.as_row(states), reading.as_row(scale)
            parts.append((np.log(reading.prior) + scale, (states * self._emission).sum(-1), states.sum(-1)))
        return np.where(self._words, mixed_nats(parts), 0.0)

    def visible(self, target: Int[np.ndarray, "R P"], seen: Bool[np.ndarray, "R P L"]) -> Float[np.ndarray, "R P"]:
        rows, length = self.batch["tokens"].shape
        if np.shape(target)[:1] != (rows,) or np.shape(seen) != (*np.shape(target), length):
            raise ValueError(
                f"visible() asks about target [{rows}, P] and seen [{rows}, P, {length}], got {np.shape(target)} and"
                f" {np.shape(seen)}"
            )
        nats = np.empty(target.size)
        for first in range(0, target.size, _ROWS):
            flat = np.arange(first, min(first + _ROWS, target.size))
            row, position, each = flat // target.shape[1], target.reshape(-1)[flat], np.arange(len(flat))
            shown = seen.reshape(target.size, -1)[flat] & self._words[row]
            shown[each, position] = False
            evidence, parts = evidence_of(self.chain, self.batch["tokens"][row], shown), []
            for reading in (reading.rows(row) for reading in self._readings):
                messages, at = reading.infer(self.chain, evidence), (each, reading.place[each, position])
                states, log = messages.states()[at], np.log(reading.prior) + messages.scale[at]
                parts.append((log, (states * self._emission[row, position]).sum(-1), states.sum(-1)))
            nats[flat] = mixed_nats(parts)
        return nats.reshape(target.shape)

    def corrupted(
        self, shown: Int[np.ndarray, "R L"], corruption: Corruption, ask: str = "word", known: bool = True
    ) -> Float[np.ndarray, "R L"]:
        if ask not in ("word", "original"):
            raise ValueError(f"ask={ask!r} must be 'word' or 'original'")
        self._check(shown, corruption)
        parts = [self._words]
        if corruption.count is not None:
            if corruption.draws[self.vocabulary.mask_id] < 1:
                self.caveats.add(COUNT)
            documents = self.batch["documents"]
            parts = [self._words & (documents == number) for number in range(1, documents.max(initial=1) + 1)]
        return sum(self._corrupted(shown, corruption, ask, known, visible) for visible in parts)

    def _check(self, shown, corruption: Corruption) -> None:
        """Refuses a corruption, or corrupted rows, that do not fit the batch or the vocabulary."""
        rows, length = self.batch["tokens"].shape
        shapes = {"shown": (rows, length), "draws": (self.vocabulary.size,), "count": (rows,), "rate": (rows,)}
        for name, of in {"shown": shown, **vars(corruption)}.items():
            one_for_all = name in ("count", "rate") and not np.ndim(of)
            if name in shapes and np.shape(of) != shapes[name] and not one_for_all:
                raise ValueError(f"{name} of corrupted rows must have shape {shapes[name]}, got {np.shape(of)}")

    def _corrupted(self, shown, corruption: Corruption, ask: str, known: bool, visible: Bool[np.ndarray, "R L"]):
        """`corrupted` at the visible words, given only these."""
        seen, same, parts = _observe(self.chain, self._words, shown, corruption, visible), shown == self.batch["tokens"], []
        for reading in self._readings:
            messages = reading.infer(self.chain, seen.evidence, seen.chosen, seen.counts)
            states = reading.as_row(messages.states())
            if seen.counts is None:
                rate = np.reshape(corruption.rate, (-1, 1, 1))
                unchosen, chosen = states * (1 - rate), states * rate
            else:
                counted = reading.as_row(messages.states(counted=1))
                unchosen, chosen = states, np.where(seen.certain[..., None], states, counted)
            unchosen = (unchosen * (0.0 if known else seen.own)).sum(-1)  # P(not chosen, what is shown)
            if ask == "word":
                likelihood = corruption.keep_share * same + seen.drawn[..., 0]  # P(shown | label, chosen)
                right = unchosen * same + (chosen * self._emission).sum(-1) * likelihood
                every = unchosen + (chosen * (corruption.keep_share * seen.own + seen.drawn)).sum(-1)
            else:
                stays = unchosen + (chosen * seen.own * (corruption.keep_share + seen.drawn)).sum(-1)
                leaves = (chosen * (1 - seen.own) * seen.drawn).sum(-1)
                right, every = np.where(same, stays, leaves), stays + leaves
            parts.append((np.log(reading.prior) + reading.as_row(messages.scale), right, every))
        return np.where(visible, mixed_nats(parts), 0.0)

    def relation(self, other: str, labels: Int[np.ndarray, "R"], shown: Int[np.ndarray, "R L"]) -> Float[np.ndarray, "R"]:
        if other not in self.relations:
            raise NoFloor(f"its label is whether a pair is {other}, but config.data.format makes no {other} pairs")
        if self.shared is None:
            evidence = (evidence_of(self.chain, shown, self._words),)
        else:
            self._check(shown, corruption := self.shared)
            seen = _observe(self.chain, self._words, shown, corruption, self._words)
            evidence = (seen.evidence, seen.chosen, seen.counts)
        totals = {
            name: np.log(reading.prior) + reading.infer(self.chain, *evidence).total
            for name, reading in zip(self.relations, self._readings)
        }
        right = np.where(labels == 1, totals[other], totals.get("follows", -np.inf))
        return np.logaddexp.reduce(list(totals.values()), axis=0) - right


@dataclasses.dataclass(frozen=True, eq=False)
class _Corrupted:
    """Evidence from corrupted rows.

    Attributes:
        own: P(shown | state) of a word that was not chosen.
        drawn: P(shown) of a draw.
        certain: where a word must have been chosen, because it is no word of the language ([MASK]).
        evidence, chosen, counts: for `infer`.
    """

    own: Float[np.ndarray, "R L S"]
    drawn: Float[np.ndarray, "R L 1"]
    certain: Bool[np.ndarray, "R L"]
    evidence: Float[np.ndarray, "R L S"]
    chosen: Float[np.ndarray, "R L S"] | None
    counts: Int[np.ndarray, "R"] | None


def _observe(chain: Chain, words, shown, corruption: Corruption, visible: Bool[np.ndarray, "R L"]) -> _Corrupted:
    """Evidence of the visible words of corrupted rows about their states; other words may also have been chosen."""
    unseen, own, drawn = words & ~visible, chain.emission.T[shown], corruption.draws[shown][..., None]
    certain = visible & ~own.any(axis=-1)
    tells = (visible & ~certain)[..., None]  # a word that must be a draw gives no evidence
    if corruption.count is None:
        rate = np.reshape(corruption.rate, (-1, 1, 1))
        mixed = (1 - rate) * own + rate * (corruption.keep_share * own + drawn)
        return _Corrupted(own, drawn, certain, np.where(tells, mixed, 1.0), None, None)
    counts = corruption.count - certain.sum(axis=1)
    if (counts < 0).any():
        raise ValueError("the corruption's `count` is below the number of replaced words in a row; correct `count`")
    chosen = np.where(tells, corruption.keep_share * own + drawn, unseen[..., None].astype(float))
    return _Corrupted(own, drawn, certain, np.where(tells, own, 1.0), chosen, counts)


def floor(objective: Objective, oracle: ExactOracle) -> tuple[Float[np.ndarray, "R P"], Float[np.ndarray, "R P"]]:
    """An objective's floor on the oracle's rows: nats at every position (0 where nothing is supervised), and weights.

    Raises:
        NoFloor: the objective has no floor here.
        TypeError: it gives no nats and weights of these rows.
        ValueError: a weight is negative or not finite, or the language cannot have made these rows.
    """
    found = objective.floor(oracle, oracle.view, oracle.batch)
    if not isinstance(found, tuple) or len(found) != 2:
        raise TypeError(f"floor() must return (nats, weights), got {type(found).__name__}")
    nats, weights = (np.asarray(of, np.float64) for of in found)
    if nats.ndim != 2 or nats.shape != weights.shape or len(nats) != len(oracle.batch["tokens"]):
        rows = len(oracle.batch["tokens"])
        raise TypeError(f"floor() must give nats and weights [{rows}, P] of {rows} rows, got {nats.shape} and {weights.shape}")
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise ValueError("floor() must return finite weights of 0 or more")
    nats = np.where(weights > 0, nats, 0.0)
    if not np.isfinite(nats).all():
        raise ValueError(
            f"{type(objective).__name__}: the language cannot produce these rows, or they were corrupted differently"
        )
    return nats, weights


def relations_of(data: ConfigDict) -> dict[str, float]:
    """Probability of each relation of a row's segments; {"follows": 1} without pairs.

    Args:
        data: `config.data`, of the synthetic corpus.

    Raises:
        NoFloor: the probabilities depend on lengths, or a row does not show where its text begins.
    """
    kind = format_of(data)
    if kind.is_stream or kind.is_word_pairs:
        raise NoFloor(
            f"rows of config.data.format={data.format} continue from batch to batch or are not text; use doc_sentences"
        )
    if data.pack_length:
        raise NoFloor("a row is several texts; set config.data.pack_length=0")
    if not kind.has_pairs:
        if kind.crosses_documents and kind.settings.attend_across_documents:
            raise NoFloor("config.data.full_sentences.attend_across_documents hides where documents begin; set it to False")
        return {"follows": 1.0}
    settings, (shortest, longest) = kind.settings, data.synthetic.sentence_words
    room, swapped = data.seq_len - 3, settings.negatives == "swapped"
    if kind.gathers_sentences:
        if not swapped:
            raise NoFloor(
                "lengths tell segments that follow from random ones; use config.data.format=sentence_pair, or doc_sentences"
                " where no objective asks about pairs"
            )
        if shortest != longest or room % longest:
            raise NoFloor(
                "segments are truncated, and their lengths tell which was first; set"
                " config.data.synthetic.sentence_words=(n, n) with n dividing config.data.seq_len − 3"
            )
    elif 2 * longest > room:
        raise NoFloor(f"pairs are truncated; set config.data.seq_len to {2 * longest + 3} or more")
    if not swapped and settings.force_random_if_single:
        raise NoFloor(f"how often B is random is not known; set config.data.{data.format}.force_random_if_single=False")
    share = settings.random_next_probability
    return {k: p for k, p in (("follows", 1 - share), ("swapped" if swapped else "random", share)) if p}
