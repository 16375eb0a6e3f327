"""Row plans: which spans of a flat array of tokens make each row, and the gather of these spans.

A format turns a `Text` into a plan with array operations. Letters: S sentences, D documents, R
rows, N spans, B rows of a batch.
"""

import dataclasses
import functools
from dataclasses import dataclass

import numpy as np


def special(token: int) -> int:
    """The start of a span that is one special token and no text."""
    return -1 - token


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """counts[0] numbers from starts[0] on, then counts[1] from starts[1] on, and so on."""
    ends = np.cumsum(counts)
    return np.repeat(starts - (ends - counts), counts) + np.arange(counts.sum())


def bounds_of(counts: np.ndarray) -> np.ndarray:
    """[n + 1]: where items of these sizes begin when laid end to end, and the end."""
    return np.concatenate([[0], np.cumsum(counts)])


def chain(following: np.ndarray) -> np.ndarray:
    """The orbit of 0: 0, following[0], following[following[0]], ... up to the end of `following`.

    Greedy filling is such an orbit: `following[i]` > i is the unit after a row that begins with i.
    Jumps double in length, so an orbit of R elements takes log2(R) operations on whole arrays.
    """
    end = len(following)
    jump = np.append(following, end)
    is_reached = np.zeros(end + 1, bool)
    is_reached[0] = True
    while jump[0] < end:
        is_reached[jump[is_reached]] = True
        jump = jump[jump]
    return np.flatnonzero(is_reached[:-1])


@dataclass(frozen=True)
class Text:
    """Documents in the order of a plan; sentences are numbered across documents (int64)."""

    starts: np.ndarray  # [S], where each sentence begins in the split's tokens
    bounds: np.ndarray  # [S + 1], where it begins with these documents end to end, and the end
    documents: np.ndarray  # [D + 1], the first sentence of each document, and the end

    @functools.cached_property
    def document(self) -> np.ndarray:
        """int64 [S]: the document of each sentence."""
        return np.repeat(np.arange(len(self.documents) - 1), np.diff(self.documents))

    def take(self, chosen: np.ndarray) -> "Text":
        """The chosen documents, by their numbers, in this order."""
        first = self.documents[chosen]
        counts = self.documents[chosen + 1] - first
        sentences = ranges(first, counts)
        lengths = self.bounds[sentences + 1] - self.bounds[sentences]
        return Text(self.starts[sentences], bounds_of(lengths), bounds_of(counts))

    def cut(self, room: int) -> "Text":
        """The same text, with longer sentences cut into pieces of `room` tokens and the rest."""
        lengths = np.diff(self.bounds)
        pieces = -(-lengths // room)
        offsets = room * ranges(np.zeros_like(pieces), pieces)
        counts = np.add.reduceat(pieces, self.documents[:-1])
        remaining = np.repeat(lengths, pieces) - offsets
        starts = np.repeat(self.starts, pieces) + offsets
        return Text(starts, bounds_of(np.minimum(remaining, room)), bounds_of(counts))


@dataclass(frozen=True)
class RowPlan:
    """Rows as spans of the tokens. Other plans have a length, `is_ordered` and `gather` too."""

    starts: np.ndarray  # int64 [N], where each span begins in the tokens; negative: `special`
    lengths: np.ndarray  # int32 [N], its number of tokens
    segments: np.ndarray  # int8 [N], 0 or 1
    documents: np.ndarray  # int32 [N], numbered in each row from 1
    bounds: np.ndarray  # int64 [R + 1], the first span of each row, and the end
    # By name, int32 [R], or [R, n] if up to n examples are packed in a row: `pair_label` (0: B
    # follows A, 1: B is random), `order_label` (0: B follows A, 1: A follows B) and `number` (of
    # the example in the plan); −1: none.
    labels: dict[str, np.ndarray]
    is_ordered = False  # a stream's rows are read in order, others are shuffled

    @classmethod
    def from_groups(cls, starts, lengths, documents, segments, first, **labels) -> "RowPlan":
        """Rows of groups of K spans; those of length 0 are left out.

        `starts` and `lengths` are [G, K], `documents` [G], `segments` the same K in every group,
        `first` [R] the first group of each row, and labels [R].
        """
        is_used = lengths > 0
        used = is_used.sum(axis=1)
        labels |= {"number": np.arange(len(first))}
        return cls(
            starts[is_used],
            lengths[is_used].astype(np.int32),
            np.broadcast_to(np.asarray(segments, np.int8), starts.shape)[is_used],
            np.repeat(documents, used).astype(np.int32),
            bounds_of(used)[np.append(first, len(starts))],
            {name: label.astype(np.int32) for name, label in labels.items()},
        )

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def row_lengths(self) -> np.ndarray:
        """[R]: tokens of each row, with special ones and without padding."""
        return np.diff(bounds_of(self.lengths)[self.bounds])

    def take(self, rows: np.ndarray) -> "RowPlan":
        """The plan of these rows."""
        counts = self.bounds[rows + 1] - self.bounds[rows]
        spans = ranges(self.bounds[rows], counts)
        fields = (self.starts, self.lengths, self.segments, self.documents)
        labels = {name: label[rows] for name, label in self.labels.items()}
        return RowPlan(*(field[spans] for field in fields), bounds_of(counts), labels)

    def gather(self, arrays, rows: np.ndarray, width: int, pad_id: int) -> dict[str, np.ndarray]:
        """The fields of `rows` [B]: labels, and those of `read`."""
        chosen = self.take(rows)
        return chosen.read(arrays, width, pad_id) | chosen.labels

    def read(self, arrays, width: int, pad_id: int) -> dict[str, np.ndarray]:
        """Of all rows, padded to `width` positions, int32 [R, width]: a field for each of the
        split's `arrays` by name, `segments`, `documents` (0: padding) and `positions` (from 0 in
        each document of a row)."""
        # Padding is one more span at the end of each row.
        padding = self.bounds[1:] + np.arange(len(self))
        row_start = self.bounds[:-1] + np.arange(len(self))
        is_text = np.ones(len(self.starts) + len(self), bool)
        is_text[padding] = False
        spans = np.zeros((4, len(is_text)), np.int64)
        spans[:, is_text] = self.starts, self.lengths, self.segments, self.documents
        starts, lengths, segments, documents = spans
        lengths[padding] = width - np.add.reduceat(lengths, row_start)

        begins = np.cumsum(lengths) - lengths  # of each span, with all rows end to end
        is_new = np.diff(documents, prepend=0) != 0
        is_new[row_start] = True
        origin = np.maximum.accumulate(np.where(is_new, begins, 0))  # of the span's document
        at = np.arange(len(self) * width)
        index = np.repeat(starts - begins, lengths) + at
        fields = {
            "segments": np.repeat(segments.astype(np.int32), lengths),
            "documents": np.repeat(documents.astype(np.int32), lengths),
            "positions": at.astype(np.int32) - np.repeat(origin.astype(np.int32), lengths),
        }
        is_padding = fields["documents"] == 0
        fields["positions"][is_padding] = 0
        is_special = (starts < 0) & (lengths > 0) & (documents > 0)
        for name, array in arrays.items():
            values = array.take(index, mode="clip").astype(np.int32)
            values[begins[is_special]] = -1 - starts[is_special]
            values[is_padding] = pad_id
            fields[name] = values
        return {name: values.reshape(len(self), width) for name, values in fields.items()}


def bucketed(lengths, buckets, size: int, rng: np.random.Generator):
    """The order of rows that makes batches of one length bucket each.

    A row of `lengths` [R] belongs to the smallest of the increasing `buckets` that holds it. Rows
    that do not fill a batch of `size` move to the next longer bucket; in the longest, they are
    dropped. Returns int64 [n · size], the rows of n batches, and [n], the positions of each batch.
    """
    order = rng.permutation(len(lengths))
    bucket = np.searchsorted(buckets, lengths[order])
    batches, widths, remaining = [], [], order[:0]
    for number, width in enumerate(buckets):
        rows = np.concatenate([remaining, order[bucket == number]])
        full = len(rows) // size
        batches.append(rows[: full * size].reshape(full, size))
        widths += [width] * full
        remaining = rows[full * size :]
    shuffled = rng.permutation(len(widths))
    return np.concatenate(batches)[shuffled].ravel(), np.asarray(widths, np.int64)[shuffled]


def pack(plan: RowPlan, length: int, examples: int, rng: np.random.Generator) -> RowPlan:
    """Packs rows without their padding (MLPerf's BERT): next-fit, in a random order.

    A packed row has at most `length` positions and at most `examples` examples, n. Its `documents`
    number the documents of all examples, `positions` begin again in each, and labels are [n].
    """
    rows = plan.take(rng.permutation(len(plan)))
    filled = bounds_of(rows.row_lengths())
    number = np.arange(len(rows))
    following = np.searchsorted(filled, filled[:-1] + length, side="right") - 1
    first = chain(np.minimum(following, number + examples))
    pack_of = np.repeat(np.arange(len(first)), np.diff(first, append=len(rows)))
    slot = number - first[pack_of]

    # Documents of the packed row before each example.
    before = bounds_of(rows.documents[rows.bounds[1:] - 1])[:-1]
    before -= before[first][pack_of]
    documents = (rows.documents + np.repeat(before, np.diff(rows.bounds))).astype(np.int32)
    labels = {}
    for name, label in rows.labels.items():
        labels[name] = np.full((len(first), examples), -1, np.int32)
        labels[name][pack_of, slot] = label
    bounds = rows.bounds[np.append(first, len(rows))]
    return dataclasses.replace(rows, documents=documents, bounds=bounds, labels=labels)
