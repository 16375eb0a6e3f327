"""The best possible model of the synthetic language: what an objective's `floor` asks.

It conditions on what the model sees and on nothing else. Special tokens to be predicted count as known, 0 nats: that is exact
if every row is alike and a lower bound otherwise.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Float, Int
from ml_collections import ConfigDict

from bertlab.data.formats import format_of
from bertlab.floors.chain import Batch, Chain, forward_nats, visible_nats
from bertlab.floors.corruption import corrupted_nats, relation_nats
from bertlab.objectives.base import Corruption, NoFloor, Objective, Vocabulary


@dataclasses.dataclass(frozen=True, eq=False)
class ExactOracle:
    """Exact inference on some rows; see `bertlab.objectives.base.Oracle`.

    Attributes:
        chain: the language in the vocabulary's ids.
        batch: the clean rows.
        vocabulary: of the run.
        relations: what the segments of a row may be to each other, with prior probabilities (`relations_of`).
        view: what the model is shown.
        shown_by: the objective whose view it is, if the one that asks shares it.
        caveats: filled as it is asked: why an answer is only a lower bound if rows differ in length.
    """

    chain: Chain
    batch: Batch
    vocabulary: Vocabulary
    relations: Mapping[str, float]
    view: Batch
    shown_by: Objective | None = None
    caveats: set[str] = dataclasses.field(default_factory=set)

    @property
    def shared(self) -> Corruption | None:
        """The corruption of a shared view. Raises: NoFloor: it has no such form."""
        return None if self.shown_by is None else self.shown_by.corruption(self.view, self.vocabulary)

    @property
    def _given(self) -> tuple:
        return self.chain, self.batch, self.vocabulary, self.relations

    def chain_rule(self, backward: bool = False) -> Float[np.ndarray, "R L"]:
        """Of every word, given all words before it (backward: after it)."""
        self.caveats.add(SPECIAL_TOKENS)
        return forward_nats(*self._given, backward=backward)

    def visible(self, target: Int[np.ndarray, "R P"], seen: Bool[np.ndarray, "R P L"]) -> Float[np.ndarray, "R P"]:
        """Of the words at the targets, given the clean words that each of them sees."""
        return visible_nats(*self._given, target, seen)

    def corrupted(
        self, shown: Int[np.ndarray, "R L"], corruption: Corruption, ask: str = "word", known: bool = True
    ) -> Float[np.ndarray, "R L"]:
        """Of every word, or of whether it is the original, given the corrupted rows."""
        if corruption.count is not None and corruption.draws[self.vocabulary.mask_id] < 1:
            self.caveats.add(COUNT)
        return corrupted_nats(*self._given, shown, corruption, ask, known)

    def relation(self, other: str, labels: Int[np.ndarray, "R"], shown: Int[np.ndarray, "R L"]) -> Float[np.ndarray, "R"]:
        """Of each pair's label, by likelihood ratio."""
        if other not in self.relations:
            raise NoFloor(f"it asks whether a segment is {other}, and the format makes no such pairs")
        truth = [other if label == 1 else "follows" for label in labels]
        return relation_nats(*self._given, truth, shown, self.shared)


SPECIAL_TOKENS = "rows differ in length: special tokens count as known"
COUNT = "rows differ in length: how many positions are chosen in a row counts as known to its documents"


def floor(objective: Objective, oracle: ExactOracle) -> tuple[Float[np.ndarray, "R P"], Float[np.ndarray, "R P"]]:
    """An objective's floor on the oracle's rows: nats at every position, 0 where nothing is supervised, and the loss's weights.

    Raises:
        NoFloor: it has none.
    """
    nats, asked = objective.floor(oracle, oracle.view, oracle.batch)
    nats = np.where(asked, nats, 0.0)
    if not np.isfinite(nats).all():
        raise ValueError(
            f"{type(objective).__name__}: the language cannot have made these rows, or the corruption is not theirs"
        )
    return nats, np.asarray(asked, np.float64)


def relations_of(data: ConfigDict) -> dict[str, float]:
    """What the segments of a row may be to each other, with probabilities; {"follows": 1} without pairs.

    Args:
        data: `config.data`, of the synthetic corpus.

    Raises:
        NoFloor: the probabilities depend on lengths, or what a row is cut out of is not known from it.
    """
    kind = format_of(data)
    if kind.is_stream or kind.is_word_pairs:
        raise NoFloor(f"rows of config.data.format={data.format} go on from batch to batch or are no text; use doc_sentences")
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
