"""Batches: a pure function of (prepared corpus, `config.data`, step), without iterator state."""

import functools
import hashlib
import itertools
import json

from ml_collections import ConfigDict

from bertlab.data import rows
from bertlab.data.prepared import Prepared
from bertlab.data.rows import Batch, Rows

# Raise it when a code change alters the rows: it is part of `Batches.hash`.
_VERSION = 1


class Batches:
    """Training batches by step, and a split's evaluation batches.

    Attributes:
        hash: digest of all that rows depend on, including the seed: equal hashes, equal batches.
    """

    def __init__(
        self,
        prepared: Prepared,
        data: ConfigDict,
        split: str = "train",
        process_index: int = 0,
        process_count: int = 1,
    ):
        """Process i of n gets its slice of each batch's rows."""
        self._arguments = prepared, data, split
        self._size, self._share = data.batch_size, data.batch_size // process_count
        self._offset = process_index * self._share
        self.hash = _hash(prepared, data, split)

    @functools.cached_property
    def _rows(self) -> Rows:
        """Made for training only: evaluation does not read `unique_tokens`."""
        return Rows(*self._arguments, counts_file=f"rows-{self.hash}.npy")

    def __call__(self, step: int) -> Batch:
        """This process's rows of a batch: dicts of arrays [B / process_count, ...]."""
        first = step * self._size + self._offset
        return self._rows.read(first, first + self._share)

    def evaluation(self, limit: int = 0) -> list[Batch]:
        """Every row of the split once, in up to `limit` batches (0: all); the last is padded.

        They are the same for every seed.
        """
        prepared, data, split = self._arguments
        data = ConfigDict(data.to_dict())
        data.update(seed=0, dupe_factor=0, unique_tokens=0, buckets=())
        data.stream.update(vary_length=False, whole_documents=True)
        rows = Rows(prepared, data, split, epochs=1)
        batches = []
        for step in itertools.count():
            first = step * self._size
            if (limit and step == limit) or not rows.has(first):
                return batches
            first += self._offset
            batches.append(rows.read(first, first + self._share))


def _hash(prepared: Prepared, data: ConfigDict, split: str) -> str:
    keys = ("format", "seq_len", "batch_size", "seed", "dupe_factor", "unique_tokens")
    keys += ("pack_length", "pack_examples", "buckets", "characters", data.format)
    settings = {key: data.to_dict().get(key) for key in keys}
    read = [_VERSION, prepared.fingerprint, split, rows.BLOCK_TOKENS, rows.GROUP_BLOCKS, settings]
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()[:16]
