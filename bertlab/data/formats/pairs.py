"""Rows of two segments, where the second follows the first or does not."""

import abc
import itertools

import numpy as np

from bertlab.data.formats.row_format import RowFormat, RowIterator
from bertlab.data.rows import Row, make_row, sentence_bounds

# Kinds of negative pairs, and the field that labels them.
NEGATIVES = {"random": "pair_label", "swapped": "order_label"}
_LABELLED = {"random": "has a random B", "swapped": "is swapped"}  # label 1


class Pairs(RowFormat):
    """Rows [CLS] A [SEP] B [SEP] of two segments, where B follows A in its document or does not.

    Too long a pair loses tokens one by one from its longer side, front or back at random. A swapped pair is cut after the swap,
    as in ALBERT's code, so the cut does not give away the label.

    Settings:
        random_next_probability: of a negative pair.
        force_random_if_single: if nothing follows A (a chunk of one sentence, a document's last one), B is random (BERT's
            quirk). If this is off, and always with swapped negatives, the row is A only, without a label. ALBERT's code puts
            a random B there and calls the pair swapped.
        own_document_retries: draws to find another document; after that it may be the same.
        negatives: "random": B is from another document (NSP), and what would have followed A is read again; "swapped": B
            follows A, and the two change places (ALBERT's sentence order: Lan et al. 2020, section 3.1).
    """

    has_pairs = True
    makes = tuple(NEGATIVES.values())

    @property
    def label_field(self) -> str:
        """See `Format`."""
        return NEGATIVES[self.settings.negatives]

    def constant_label(self) -> str:
        """See `Format`; judged from the pairs of a thousand documents, which are read again if there are fewer."""
        labels: list[int] = []
        for number, index in enumerate(itertools.islice(itertools.cycle(range(len(self.source))), 1000)):
            rows = self.cut(self.source[index], np.random.default_rng([self.data.seed, number]))
            labels += [row[self.label_field] for row in rows if row[self.label_field] >= 0]
            if len(set(labels)) > 1:
                return ""
        said = "no pair has a label"
        if labels:
            said = f"each of {len(labels):,} pairs {_LABELLED[self.settings.negatives] if labels[0] else 'is in order'}"
        counts = self.prepared.statistics[self.split]
        alone = counts["sentences"] == counts["documents"]
        return said + ", as no document has two sentences (a blank line in a text file ends a document)" * alone

    @abc.abstractmethod
    def _target(self, rng: np.random.Generator) -> int:
        """How many tokens the pairs of a document should have."""

    @abc.abstractmethod
    def _chunk(self, bounds: np.ndarray, first: int, target: int, rng: np.random.Generator) -> tuple[int, int]:
        """The ends of A (the sentences from `first` on) and of the sentences that follow it."""

    def cut(self, document: dict, rng: np.random.Generator) -> list[Row]:
        """All rows of one document."""
        tokens, bounds = document["tokens"], sentence_bounds(document)
        room = self.data.seq_len - 3
        target = self._target(rng)
        swaps = self.settings.negatives == "swapped"
        rows, first = [], 0
        while first < len(bounds) - 1:
            split, end = self._chunk(bounds, first, target, rng)
            a, b = tokens[bounds[first] : bounds[split]], tokens[bounds[split] : bounds[end]]
            is_negative = rng.random() < self.settings.random_next_probability
            label, used = int(is_negative), end
            if split == end and (swaps or not self.settings.force_random_if_single):
                label = -1
            elif swaps:
                a, b = (b, a) if is_negative else (a, b)
            elif split == end or is_negative:
                b, label, used = self._random_segment(target - len(a), document["document"], rng), 1, split
            rows.append(self._row(*truncate_pair(a, b, room, rng), label, (document["document"], len(rows))))
            first = used
        return rows

    def _row(self, a: np.ndarray, b: np.ndarray, label: int, row_id: tuple[int, int]) -> Row:
        cls_id, sep_id = self.tokenizer.cls_id, self.tokenizer.sep_id
        tokens = np.concatenate([[cls_id], a, [sep_id], b, [sep_id] if len(b) else []])
        segments = np.arange(len(tokens)) > len(a) + 1
        labels = {"pair_label": -1, self.label_field: label}
        return make_row(self.data.seq_len, self.tokenizer.pad_id, tokens, segments, 1, example_id=row_id, **labels)

    def _random_segment(self, target: int, own: int, rng: np.random.Generator) -> np.ndarray:
        """Sentences from a random one of another document on, at least one, until they have `target` tokens."""
        for _ in range(max(1, self.settings.own_document_retries)):
            other = self.source[int(rng.integers(len(self.source)))]
            if other["document"] != own:
                break
        bounds = sentence_bounds(other)
        start = int(rng.integers(len(bounds) - 1))
        end = max(start + 1, int(np.searchsorted(bounds, bounds[start] + target)))
        return other["tokens"][bounds[start] : bounds[min(end, len(bounds) - 1)]]

    def assemble(self, units: RowIterator) -> Row | None:
        """A unit is a row already."""
        return None if units.peek() is None else units.take()


class SegmentPair(Pairs):
    """BERT's pairs of segments, as create_pretraining_data.py makes them (Devlin et al. 2018, appendix A.2).

    Sentences of a document are gathered until a target length is reached (the row's, or with `short_probability`
    a random one, drawn once a document); A is a random number of them from the front, and B the rest.
    """

    name = "segment_pair"
    gathers_sentences = True

    def _target(self, rng: np.random.Generator) -> int:
        room = self.data.seq_len - 3
        return int(rng.integers(2, room, endpoint=True)) if rng.random() < self.settings.short_probability else room

    def _chunk(self, bounds: np.ndarray, first: int, target: int, rng: np.random.Generator) -> tuple[int, int]:
        end = min(int(np.searchsorted(bounds, bounds[first] + target)), len(bounds) - 1)
        return first + 1 if end == first + 1 else int(rng.integers(first + 1, end - 1, endpoint=True)), end


class SentencePair(Pairs):
    """Pairs of single sentences, one pair a row (RoBERTa's SENTENCE-PAIR: Liu et al. 2019, section 4.2).

    Most of such a row is padding. RoBERTa enlarged the batches to make up for it; this format does not.
    """

    name = "sentence_pair"

    def _target(self, rng: np.random.Generator) -> int:
        del rng
        return 0  # one sentence reaches it

    def _chunk(self, bounds: np.ndarray, first: int, target: int, rng: np.random.Generator) -> tuple[int, int]:
        del target, rng
        return first + 1, min(first + 2, len(bounds) - 1)


def truncate_pair(a: np.ndarray, b: np.ndarray, room: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Removes tokens from the longer side (B at a tie), each from the front or the back with equal chance, until both fit."""
    lengths = [len(a), len(b)]
    front = [0, 0]
    for from_front in rng.random(max(0, sum(lengths) - room)) < 0.5:
        side = 0 if lengths[0] > lengths[1] else 1
        lengths[side] -= 1
        front[side] += int(from_front)
    return a[front[0] : front[0] + lengths[0]], b[front[1] : front[1] + lengths[1]]
