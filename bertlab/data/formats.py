"""Formats: how documents become rows of token ids.

A format cuts one document into units and assembles units into rows. A row is a dict of arrays of length L
(`tokens`, `segments`, `documents`, `positions`, int32) and two scalars: `pair_label` (0: B follows A, 1: B is
random, −1: no pair) and `example_id` [2] (document index, number of the row's first unit in it).
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from bertlab.errors import UserError

Row = dict[str, np.ndarray]


class Units(Protocol):
    """A stream of units with one unit of look-ahead."""

    def peek(self):
        """The next unit, or None at the end."""

    def take(self):
        """The next unit; it is consumed."""


class Format(Protocol):
    """Cuts documents into units and assembles units into rows."""

    has_pairs: bool

    def cut(self, document: dict, rng: np.random.Generator) -> Sequence:
        """The units of one prepared document; any randomness comes from `rng`."""

    def assemble(self, units: Units) -> Row | None:
        """The next row, or None when the stream has ended."""


def sentence_bounds(document: dict) -> np.ndarray:
    """[sentences + 1] Where the sentences of a prepared document start in its tokens, and its end; empty ones left out."""
    lengths = document["sentence_lengths"]
    bounds = np.zeros(np.count_nonzero(lengths) + 1, np.int64)
    np.cumsum(lengths[lengths > 0], out=bounds[1:])
    return bounds


def make_row(seq_len: int, pad_id: int, tokens, segments, documents, pair_label: int, example_id) -> Row:
    """Pads to `seq_len`; positions count from 0 within each document of the row."""
    size = len(tokens)
    row = {name: np.zeros(seq_len, np.int32) for name in ("tokens", "segments", "documents", "positions")}
    row["tokens"][:size] = tokens
    row["tokens"][size:] = pad_id
    row["segments"][:size] = segments
    row["documents"][:size] = documents
    row["positions"][:size] = np.arange(size)
    for start in np.flatnonzero(np.diff(row["documents"][:size])) + 1:
        row["positions"][start:size] = np.arange(size - start)
    return {
        **row,
        "pair_label": np.int32(pair_label),
        "example_id": np.asarray(example_id, np.int32),
    }


@dataclasses.dataclass(frozen=True)
class SegmentPair:
    """BERT's pairs of segments, as create_pretraining_data.py makes them (Devlin et al. 2018, appendix A.2).

    Sentences of a document are gathered until a target length is reached (the row's, or with `short_probability`
    a random one, drawn once a document); A is a random number of them from the front. B is the rest, or, half of
    the time and whenever there is only one sentence, text from another document, and then the unused
    sentences are read again. Too long a pair loses tokens one by one from its longer side, front or back at random.

    Attributes:
        source: the split's documents, for random next segments.
        force_random_if_single: BERT's quirk; off, a chunk of one sentence becomes a row without a label.
        own_document_retries: draws until the random document is another one; after that it may be the same.
    """

    source: Sequence
    seq_len: int
    pad_id: int
    cls_id: int
    sep_id: int
    short_probability: float
    random_next_probability: float
    force_random_if_single: bool
    own_document_retries: int

    has_pairs = True

    def cut(self, document: dict, rng: np.random.Generator) -> list[Row]:
        """All rows of one document."""
        tokens, bounds = document["tokens"], sentence_bounds(document)
        sentences = len(bounds) - 1
        room = self.seq_len - 3
        target = room
        if rng.random() < self.short_probability:
            target = int(rng.integers(2, room, endpoint=True))
        rows, first = [], 0
        while first < sentences:
            end = min(int(np.searchsorted(bounds, bounds[first] + target)), sentences)
            single = end == first + 1
            split = first + 1 if single else int(rng.integers(first + 1, end - 1, endpoint=True))
            a = tokens[bounds[first] : bounds[split]]
            draw = rng.random()
            if single and not self.force_random_if_single:
                b, label, used = a[:0], -1, end
            elif single or draw < self.random_next_probability:
                b, label, used = self._random_segment(target - len(a), document["document"], rng), 1, split
            else:
                b, label, used = tokens[bounds[split] : bounds[end]], 0, end
            rows.append(self._row(*truncate_pair(a, b, room, rng), label, (document["document"], len(rows))))
            first = used
        return rows

    def _row(self, a: np.ndarray, b: np.ndarray, label: int, row_id: tuple[int, int]) -> Row:
        tokens = np.concatenate([[self.cls_id], a, [self.sep_id], b, [self.sep_id] if len(b) else []])
        segments = np.arange(len(tokens)) > len(a) + 1
        return make_row(self.seq_len, self.pad_id, tokens, segments, 1, label, row_id)

    def _random_segment(self, target: int, own: int, rng: np.random.Generator) -> np.ndarray:
        """Sentences from a random one of another document on, until they have `target` tokens."""
        for _ in range(max(1, self.own_document_retries)):
            other = self.source[int(rng.integers(len(self.source)))]
            if other["document"] != own:
                break
        bounds = sentence_bounds(other)
        start = int(rng.integers(len(bounds) - 1))
        end = max(start + 1, int(np.searchsorted(bounds, bounds[start] + target)))
        return other["tokens"][bounds[start] : bounds[min(end, len(bounds) - 1)]]

    def assemble(self, units: Units) -> Row | None:
        """A unit is a row already."""
        return None if units.peek() is None else units.take()


def truncate_pair(a: np.ndarray, b: np.ndarray, room: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Removes tokens from the longer side (B at a tie), each from the front or the back with equal chance, until both fit."""
    lengths = [len(a), len(b)]
    front = [0, 0]
    for from_front in rng.random(max(0, sum(lengths) - room)) < 0.5:
        side = 0 if lengths[0] > lengths[1] else 1
        lengths[side] -= 1
        front[side] += int(from_front)
    return a[front[0] : front[0] + lengths[0]], b[front[1] : front[1] + lengths[1]]


@dataclasses.dataclass(frozen=True)
class FullSentences:
    """Rows packed with whole sentences in reading order, across document borders (RoBERTa, Liu et al. 2019, section 4.2).

    A row is [CLS] and sentences until the next does not fit, with a [SEP] where a document ends (`document_separator`) and
    at the row's end. By default the documents of a row do not see each other: each has its own number and positions.

    Attributes:
        attend_across_documents: RoBERTa's way: all tokens of a row are one document.
    """

    seq_len: int
    pad_id: int
    cls_id: int
    sep_id: int
    attend_across_documents: bool
    document_separator: bool

    has_pairs = False

    def cut(self, document: dict, rng: np.random.Generator) -> list[tuple]:
        """(sentence ids, document index, number in the document); a sentence longer than a row is cut into pieces."""
        del rng
        room = self.seq_len - 2
        bounds = sentence_bounds(document).tolist()
        cuts = [(i, min(i + room, end)) for start, end in itertools.pairwise(bounds) for i in range(start, end, room)]
        return [(document["tokens"][start:end], document["document"], number) for number, (start, end) in enumerate(cuts)]

    def assemble(self, units: Units) -> Row | None:
        """Whole sentences while they fit."""
        first = units.peek()
        if first is None:
            return None
        row_id = first[1:]
        tokens, documents, number = [np.array([self.cls_id])], [1], 1
        size = 1
        while (unit := units.peek()) is not None:
            piece, _, place = unit
            # Not by the document's index: in a small corpus a document may follow itself, an epoch later.
            crosses = place == 0 and size > 1
            extra = int(crosses and self.document_separator)
            if size + extra + len(piece) + 1 > self.seq_len:
                break
            if crosses:
                if self.document_separator:
                    tokens.append(np.array([self.sep_id]))
                    documents.append(number)
                number += 1
            tokens.append(piece)
            documents.extend([number] * len(piece))
            size += extra + len(piece)
            units.take()
        tokens = np.concatenate([*tokens, [self.sep_id]])
        documents = np.array([*documents, number])
        if self.attend_across_documents:
            documents = np.ones_like(documents)
        return make_row(self.seq_len, self.pad_id, tokens, np.zeros_like(tokens), documents, -1, row_id)


class WholeBatches:
    """A format whose batches are not rows put together: `stream` (streams.py), `cooccurrence` (cooccurrence.py)."""

    has_pairs = False


FORMATS = {
    "segment_pair": SegmentPair,
    "full_sentences": FullSentences,
    "stream": WholeBatches,
    "cooccurrence": WholeBatches,
}


def format_class(name: str) -> type:
    """The class of `config.data.format`."""
    if name not in FORMATS:
        raise UserError(f"config.data.format={name!r} is not known; choose one of {', '.join(FORMATS)}")
    return FORMATS[name]


def build_format(data, source: Sequence, tokenizer) -> Format:
    """The format of a data config over a split's documents, one that assembles rows."""
    kind = format_class(data.format)
    shared = dict(seq_len=data.seq_len, pad_id=tokenizer.pad_id, cls_id=tokenizer.cls_id, sep_id=tokenizer.sep_id)
    if kind is SegmentPair:
        shared["source"] = source
    return kind(**shared, **data[data.format].to_dict())
