"""Length buckets: a batch holds rows of similar length, cut to the length of their bucket.

A row belongs to the smallest bucket that holds it without its padding, and a batch is of one bucket: [B, bucket]. Batches come
in the order in which buckets fill up, so rows of a rare length wait longer than others.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import grain
import numpy as np

from bertlab.data.iterators import IteratorDataset
from bertlab.data.rows import Row
from bertlab.errors import UserError


def check_buckets(data) -> None:
    """Raises: UserError: `config.data.buckets` are not increasing lengths up to `seq_len`."""
    lengths = [*data.buckets]
    is_number = all(isinstance(length, int) and length > 0 for length in lengths)
    if not is_number or lengths != sorted({*lengths}) or lengths[-1:] > [data.seq_len]:
        raise UserError(
            f"config.data.buckets={data.buckets} must be increasing lengths of at most config.data.seq_len="
            f"{data.seq_len}, as in (32, 64, 128)"
        )


def bucketed(rows: grain.IterDataset, data, size: int, texts: int = 1) -> grain.IterDataset:
    """Batches of `config.data.buckets`; the last bucket is always `seq_len`.

    Args:
        rows: of `texts` · `seq_len` positions; every field of this length is cut.
        data: `config.data`.
        size: rows of a batch.
        texts: in a row, each of them up to `seq_len` long: buckets are as many times longer.
    """
    lengths = sorted({*data.buckets, data.seq_len})
    return IteratorDataset(lambda parent: _Buckets(parent, [texts * length for length in lengths], size), rows)


def cut(row: Row, length: int) -> Row:
    """A row's first positions: every field that has one entry for each is cut to so many."""
    whole = row["tokens"].shape
    return {name: values[:length] if np.shape(values)[:1] == whole else values for name, values in row.items()}


class _Waiting(NamedTuple):
    """A row in a bucket that is not full: its number in the order of reading, and the state from which it is read again."""

    number: int
    before: Any
    row: Row


class _Buckets(grain.DatasetIterator):
    """Its state: that of the rows before the oldest one that waits, how many were read since, and which of them wait.

    Restoring reads those again. This is slow only if a bucket seldom fills.
    """

    def __init__(self, parent: grain.DatasetIterator, lengths: Sequence[int], size: int):
        super().__init__(parent)
        self._lengths, self._size = lengths, size
        self._empty()

    def _empty(self) -> None:
        self._read, self._buckets = 0, {length: [] for length in self._lengths}

    def _next_waiting(self) -> tuple[int, _Waiting]:
        """Reads a row: (its bucket, the row)."""
        before = self._parent.get_state()
        row = next(self._parent)
        filled = np.count_nonzero(row["documents"])
        length = next(length for length in self._lengths if length >= filled)
        self._read += 1
        return length, _Waiting(self._read - 1, before, cut(row, length))

    def __next__(self) -> Row:
        while True:
            length, waiting = self._next_waiting()
            bucket = self._buckets[length]
            bucket.append(waiting)
            if len(bucket) == self._size:
                self._buckets[length] = []
                return {name: np.stack([each.row[name] for each in bucket]) for name in bucket[0].row}

    def get_state(self) -> dict:
        waiting = sorted(each.number for bucket in self._buckets.values() for each in bucket)
        if not waiting:
            return {"before": self._parent.get_state(), "read": 0, "waiting": []}
        oldest = next(each for bucket in self._buckets.values() for each in bucket[:1] if each.number == waiting[0])
        return {
            "before": oldest.before,
            "read": self._read - oldest.number,
            "waiting": [number - oldest.number for number in waiting],
        }

    def set_state(self, state: dict) -> None:
        self._parent.set_state(state["before"])
        self._empty()
        kept = {*state["waiting"]}
        for _ in range(state["read"]):
            length, waiting = self._next_waiting()
            if waiting.number in kept:
                self._buckets[length].append(waiting)
