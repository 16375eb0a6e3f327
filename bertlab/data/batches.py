"""Batches through Grain: documents in a seeded order, cut into rows, mixed in a window, stacked.

Everything is a function of (prepared corpus, data config), so runs that differ only in model or objective read the
same bytes; `BatchHash` proves it.
"""

import contextlib
import copy
import hashlib
import itertools

import grain
import numpy as np

from bertlab.data.formats import Format, build_format
from bertlab.data.prepare import Prepared
from bertlab.errors import UserError

# Documents are read by the thread that makes the rows: handing them over from others costs more than reading them.
_READ_HERE = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


class _WithSeed(grain.transforms.RandomMap):
    """Gives each visit of a document (one an epoch) the seed of everything random in its rows."""

    def random_map(self, element, rng: np.random.Generator):
        return element, rng.integers(2**32, size=4, dtype=np.uint32).tolist()


class RowIterator(grain.DatasetIterator):
    """Rows of a format over a stream of documents.

    Its state is the stream's state before the document that holds the next unit, and the number of units already
    taken from it; restoring cuts that document again.
    """

    def __init__(self, parent: grain.DatasetIterator, row_format: Format):
        super().__init__(parent)
        self._format = row_format
        self._before_document = copy.deepcopy(parent.get_state())
        self._units = ()
        self._taken = 0

    def __next__(self):
        row = self._format.assemble(self)
        if row is None:
            raise StopIteration
        return row

    def peek(self):
        """The next unit, or None at the end; draws documents until one has units left."""
        while self._taken >= len(self._units):
            before = copy.deepcopy(self._parent.get_state())
            try:
                document, seed = next(self._parent)
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
        """A JSON value that `set_state` takes."""
        return {"before_document": copy.deepcopy(self._before_document), "taken": self._taken}

    def set_state(self, state: dict) -> None:
        """Continues where the iterator that gave the state was."""
        self._before_document = copy.deepcopy(state["before_document"])
        self._parent.set_state(copy.deepcopy(state["before_document"]))
        self._units, self._taken = (), 0
        if self.peek() is not None:
            self._taken = state["taken"]


class RowDataset(grain.IterDataset):
    """The rows of a format over a dataset of (document, seed)."""

    def __init__(self, parent: grain.IterDataset, row_format: Format):
        super().__init__(parent)
        self._format = row_format

    def __iter__(self) -> RowIterator:
        return RowIterator(self._parent.__iter__(), self._format)

    def __str__(self) -> str:
        return f"RowDataset({type(self._format).__name__})"


def train_batches(prepared: Prepared, data, shard: tuple[int, int] = (0, 1)) -> grain.IterDataset:
    """Endless training batches, dicts of [B, ...] arrays.

    Args:
        prepared: the corpus.
        data: `config.data`.
        shard: (index, count) of this host among the hosts; documents are dealt out in turn, and B is the host's part.

    Raises:
        UserError: there are fewer documents than hosts.
    """
    index, count = shard
    documents = _documents(prepared, "train", data.seed)
    if len(documents) < count:
        raise UserError(f"the train split has {len(documents)} documents for {count} hosts; use more text or fewer hosts")
    documents = documents[index::count].repeat().to_iter_dataset(_READ_HERE)
    rows = RowDataset(documents, build_format(data, prepared.source("train"), prepared.tokenizer))
    if data.shuffle_window > 1:
        rows = grain.experimental.WindowShuffleIterDataset(rows, window_size=data.shuffle_window, seed=data.seed)
    batches = rows.batch(data.batch_size // count, drop_remainder=True)
    return grain.experimental.ThreadPrefetchIterDataset(batches, prefetch_buffer_size=4)


def eval_batches(prepared: Prepared, data, split: str, limit: int) -> list[dict[str, np.ndarray]]:
    """Up to `limit` batches (0: all) of a held-out split, the same for every run on the same data.

    The last is filled with padding. `data.seed` does not matter here.
    """
    documents = _documents(prepared, split, seed=0)
    row_format = build_format(data, prepared.source(split), prepared.tokenizer)
    with contextlib.closing(iter(RowDataset(documents.to_iter_dataset(_READ_HERE), row_format))) as iterator:
        rows = list(itertools.islice(iterator, limit * data.batch_size or None))
    if not rows:
        raise UserError(
            f"the {split} split of {data.corpus} gives no rows; raise config.data.{split}_fraction or use more text"
        )
    return [pad_batch(rows[i : i + data.batch_size], data.batch_size) for i in range(0, len(rows), data.batch_size)]


def pad_batch(rows: list[dict], size: int) -> dict[str, np.ndarray]:
    """Stacks rows; missing ones are empty: document 0 everywhere, so every weight in them is zero."""
    empty = {k: np.full_like(v, -1 if k == "pair_label" or k.startswith("label") else 0) for k, v in rows[0].items()}
    rows = rows + [empty] * (size - len(rows))
    return {k: np.stack([row[k] for row in rows]) for k in rows[0]}


def _documents(prepared: Prepared, split: str, seed: int) -> grain.MapDataset:
    source = prepared.source(split)
    if len(source) == 0:
        raise UserError(f"the {split} split of the corpus is empty; change config.data.{split}_fraction or use more text")
    return grain.MapDataset.source(source).seed(seed).shuffle().random_map(_WithSeed())


class BatchHash:
    """A hash chain over batches: equal values at a step prove equal batches in equal order up to it."""

    def __init__(self, value: str = ""):
        self.value = value

    def update(self, batch: dict[str, np.ndarray]) -> None:
        """Adds a batch."""
        digest = hashlib.blake2b(self.value.encode(), digest_size=16)
        for name in sorted(batch):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(batch[name]))
        self.value = digest.hexdigest()
