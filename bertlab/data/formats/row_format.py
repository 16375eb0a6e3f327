"""Formats that cut documents into units and assemble units into rows: `RowFormat` and its Grain pipeline."""

import abc
import contextlib
import copy
import itertools
from collections.abc import Sequence

import grain
import numpy as np

from bertlab.data.buckets import bucketed
from bertlab.data.formats.base import Format
from bertlab.data.iterators import IteratorDataset
from bertlab.data.packing import packed
from bertlab.data.rows import Row, pad_batch

# Documents are read by the thread that makes the rows: handing them over from other threads costs more than reading them.
READ_HERE = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


class RowFormat(Format):
    """Documents in a seeded order, cut into rows, mixed in a window, packed or sorted into buckets, stacked."""

    @abc.abstractmethod
    def cut(self, document: dict, rng: np.random.Generator) -> Sequence:
        """The units of one prepared document; any randomness comes from `rng`."""

    @abc.abstractmethod
    def assemble(self, units: "RowIterator") -> Row | None:
        """The next row, made from `units` with `peek` and `take`; None at the end of the stream."""

    def train(self, index: int, count: int) -> grain.IterDataset:
        """See `Format`; each part has its own documents."""
        data, size = self.data, self.data.batch_size // count
        share = self._documents(data.seed)[index::count]
        rows = self._rows(share.repeat().map_with_index(_WithVisit(len(share), data.seed, data.dupe_factor)))
        if data.shuffle_window > 1:
            rows = grain.experimental.WindowShuffleIterDataset(rows, window_size=data.shuffle_window, seed=data.seed)
        rows = self._packed(rows, data.seed)
        return bucketed(rows, data, size) if data.buckets else rows.batch(size, drop_remainder=True)

    def evaluate(self, limit: int) -> list[dict[str, np.ndarray]]:
        """See `Format`; rows are `seq_len` long, whatever the buckets."""
        size = self.data.batch_size
        visits = self._documents(seed=0).map_with_index(_WithVisit(len(self.source), seed=0, dupe_factor=0))
        with contextlib.closing(iter(self._packed(self._rows(visits), seed=0))) as iterator:
            rows = list(itertools.islice(iterator, limit * size or None))
        return [pad_batch(rows[i : i + size], size) for i in range(0, len(rows), size)]

    def _documents(self, seed: int) -> grain.MapDataset:
        return grain.MapDataset.source(self.source).seed(seed).shuffle()

    def _rows(self, visits: grain.MapDataset) -> grain.IterDataset:
        return IteratorDataset(lambda parent: RowIterator(parent, self), visits.to_iter_dataset(READ_HERE))

    def _packed(self, rows: grain.IterDataset, seed: int) -> grain.IterDataset:
        return packed(rows, self.data, self.tokenizer.pad_id, seed) if self.data.pack_length else rows


class _WithVisit(grain.transforms.MapWithIndex):
    """Counts the readings of a document, one an epoch; its rows' random choices depend only on (seed, document, visit)."""

    def __init__(self, documents: int, seed: int, dupe_factor: int):
        self._documents, self._seed, self._dupe_factor = documents, seed, dupe_factor

    def map_with_index(self, index: int, document: dict) -> tuple[dict, int, list[int]]:
        visit = index // self._documents
        visit = visit % self._dupe_factor if self._dupe_factor else visit
        return document, visit, [self._seed, document["document"], visit]


class RowIterator(grain.DatasetIterator):
    """Rows of a format over a stream of (document, visit, seed); `visit` counts earlier readings of the first document.

    Its state is the stream's state before the document of the next unit, and the number of units already taken from
    that document. Restoring cuts the document again.
    """

    def __init__(self, parent: grain.DatasetIterator, row_format: RowFormat):
        super().__init__(parent)
        self._format = row_format
        self._before_document = copy.deepcopy(parent.get_state())
        self._units = ()
        self._taken = 0
        self._visit = 0

    def __next__(self):
        if self.peek() is None:
            raise StopIteration
        visit = np.int32(self._visit)
        return {**self._format.assemble(self), "visit": visit}

    def peek(self):
        """The next unit, or None at the end; draws documents until one has units left."""
        while self._taken >= len(self._units):
            before = copy.deepcopy(self._parent.get_state())
            try:
                document, self._visit, seed = next(self._parent)
            except StopIteration:
                return None
            self._before_document = before
            self._units = self._format.cut(document, np.random.default_rng(seed))
            self._taken = 0
        return self._units[self._taken]

    def take(self):
        """The next unit; it is consumed."""
        unit = self.peek()
        self._taken += 1
        return unit

    def get_state(self) -> dict:
        return {"before_document": copy.deepcopy(self._before_document), "taken": self._taken}

    def set_state(self, state: dict) -> None:
        self._before_document = copy.deepcopy(state["before_document"])
        self._parent.set_state(copy.deepcopy(state["before_document"]))
        self._units, self._taken = (), 0
        if self.peek() is not None:
            self._taken = state["taken"]
