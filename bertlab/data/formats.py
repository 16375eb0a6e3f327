"""Formats: how documents become rows of token ids.

A format cuts one document into units and assembles units into rows. A row is a dict of arrays of length L
(`tokens`, `segments`, `documents`, `positions`, int32), two labels (int32), and `example_id` [2] (document index, number
of the row's first unit in it):

    pair_label   0: B follows A, 1: B is random, −1: neither is known
    order_label  0: B follows A, 1: A follows B, −1: neither is known
"""

import abc
import dataclasses
import itertools
from collections.abc import Sequence
from typing import ClassVar, Protocol

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


def make_row(seq_len: int, pad_id: int, tokens, segments, documents, pair_label: int, example_id, order_label: int = -1) -> Row:
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
        "order_label": np.int32(order_label),
        "example_id": np.asarray(example_id, np.int32),
    }


# What the pairs that do not follow each other are, and the field that says which they are.
NEGATIVES = {"random": "pair_label", "swapped": "order_label"}


@dataclasses.dataclass(frozen=True)
class Pairs(abc.ABC):
    """Rows [CLS] A [SEP] B [SEP] of two segments, where B follows A in its document or does not.

    Too long a pair loses tokens one by one from its longer side, front or back at random; a swapped one after the swap, as
    in ALBERT's code, so that what is lost does not tell.

    Attributes:
        source: the split's documents, for random segments.
        random_next_probability: that a pair is a negative, of the kind that `negatives` says.
        force_random_if_single: where nothing is there to follow A (a chunk of one sentence, a document's last one), B is
            random (BERT's quirk: more than half of its pairs are), or, if this is off, the row is A alone, without a label.
            With swapped negatives it always is; ALBERT's code puts a random B there and calls the pair swapped.
        own_document_retries: draws until the random document is another one; after that it may be the same.
        negatives: "random": B is from another document (NSP), and what would have followed A is read again; or "swapped": B
            follows A, and the two change places (ALBERT's sentence order: Lan et al. 2020, section 3.1).
    """

    source: Sequence
    seq_len: int
    pad_id: int
    cls_id: int
    sep_id: int
    random_next_probability: float
    force_random_if_single: bool
    own_document_retries: int
    negatives: str

    has_pairs = True

    @abc.abstractmethod
    def _target(self, rng: np.random.Generator) -> int:
        """How many tokens the pairs of a document should have."""

    @abc.abstractmethod
    def _chunk(self, bounds: np.ndarray, first: int, target: int, rng: np.random.Generator) -> tuple[int, int]:
        """A is the sentences from `first` to the first number, and what follows it those from there to the second."""

    def cut(self, document: dict, rng: np.random.Generator) -> list[Row]:
        """All rows of one document."""
        tokens, bounds = document["tokens"], sentence_bounds(document)
        room = self.seq_len - 3
        target = self._target(rng)
        swaps = self.negatives == "swapped"
        rows, first = [], 0
        while first < len(bounds) - 1:
            split, end = self._chunk(bounds, first, target, rng)
            a, b = tokens[bounds[first] : bounds[split]], tokens[bounds[split] : bounds[end]]
            is_negative = rng.random() < self.random_next_probability
            label, used = int(is_negative), end
            if split == end and (swaps or not self.force_random_if_single):
                label = -1
            elif swaps:
                a, b = (b, a) if is_negative else (a, b)
            elif split == end or is_negative:
                b, label, used = self._random_segment(target - len(a), document["document"], rng), 1, split
            rows.append(self._row(*truncate_pair(a, b, room, rng), label, (document["document"], len(rows))))
            first = used
        return rows

    def _row(self, a: np.ndarray, b: np.ndarray, label: int, row_id: tuple[int, int]) -> Row:
        tokens = np.concatenate([[self.cls_id], a, [self.sep_id], b, [self.sep_id] if len(b) else []])
        segments = np.arange(len(tokens)) > len(a) + 1
        labels = {"pair_label": -1, NEGATIVES[self.negatives]: label}
        return make_row(self.seq_len, self.pad_id, tokens, segments, 1, example_id=row_id, **labels)

    def _random_segment(self, target: int, own: int, rng: np.random.Generator) -> np.ndarray:
        """Sentences from a random one of another document on, at least one, until they have `target` tokens."""
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


@dataclasses.dataclass(frozen=True)
class SegmentPair(Pairs):
    """BERT's pairs of segments, as create_pretraining_data.py makes them (Devlin et al. 2018, appendix A.2).

    Sentences of a document are gathered until a target length is reached (the row's, or with `short_probability`
    a random one, drawn once a document); A is a random number of them from the front, and B the rest.
    """

    short_probability: float

    def _target(self, rng: np.random.Generator) -> int:
        room = self.seq_len - 3
        return int(rng.integers(2, room, endpoint=True)) if rng.random() < self.short_probability else room

    def _chunk(self, bounds: np.ndarray, first: int, target: int, rng: np.random.Generator) -> tuple[int, int]:
        end = min(int(np.searchsorted(bounds, bounds[first] + target)), len(bounds) - 1)
        return first + 1 if end == first + 1 else int(rng.integers(first + 1, end - 1, endpoint=True)), end


@dataclasses.dataclass(frozen=True)
class SentencePair(Pairs):
    """Pairs of single sentences, one pair a row (RoBERTa's SENTENCE-PAIR: Liu et al. 2019, section 4.2).

    Such rows are short, and most of a row is padding: RoBERTa's larger batches, which made up for it, are not made here.
    """

    def _target(self, rng: np.random.Generator) -> int:
        del rng
        return 0  # which one sentence reaches

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
    crosses_documents: ClassVar[bool] = True

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
            if crosses and not self.crosses_documents:
                break
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


@dataclasses.dataclass(frozen=True)
class DocSentences(FullSentences):
    """`FullSentences` that end where their document ends (RoBERTa's DOC-SENTENCES, Liu et al. 2019, section 4.2).

    The last row of a document is padded. RoBERTa's larger batches, which made up for that, are not made here.
    """

    attend_across_documents: bool = dataclasses.field(default=False, init=False)
    document_separator: bool = dataclasses.field(default=True, init=False)
    crosses_documents: ClassVar[bool] = False


class WholeBatches:
    """A format whose batches are not rows put together: `stream` (streams.py), `cooccurrence` (cooccurrence.py)."""

    has_pairs = False


FORMATS = {
    "segment_pair": SegmentPair,
    "full_sentences": FullSentences,
    "sentence_pair": SentencePair,
    "doc_sentences": DocSentences,
    "stream": WholeBatches,
    "cooccurrence": WholeBatches,
}


def format_class(name: str) -> type:
    """The class of `config.data.format`."""
    if name not in FORMATS:
        raise UserError(f"config.data.format={name!r} is not known; choose one of {', '.join(FORMATS)}")
    return FORMATS[name]


def label_field(data) -> str | None:
    """The field that holds the labels of the pairs of `config.data`; None where its format makes no pairs.

    Raises:
        UserError: the format or its `negatives` are not known.
    """
    if not format_class(data.format).has_pairs:
        return None
    negatives = data[data.format].negatives
    if negatives not in NEGATIVES:
        raise UserError(f"config.data.{data.format}.negatives={negatives!r} is not known; choose one of {', '.join(NEGATIVES)}")
    return NEGATIVES[negatives]


def build_format(data, source: Sequence, tokenizer) -> Format:
    """The format of a data config over a split's documents, one that assembles rows."""
    kind = format_class(data.format)
    shared = dict(seq_len=data.seq_len, pad_id=tokenizer.pad_id, cls_id=tokenizer.cls_id, sep_id=tokenizer.sep_id)
    if kind.has_pairs:
        shared["source"] = source
    return kind(**shared, **(data[data.format].to_dict() if data.format in data else {}))
