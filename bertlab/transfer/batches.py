"""Batches of task rows: a pure function of (rows, `config.data`, step). A row is a dict of arrays:
`tokens`, `segments`, `documents`, `positions` [T], fields of its words [W], and labels. A batch of
B rows pads them to one length, that of its bucket."""

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from bertlab.data.characters import PADDING
from bertlab.data.plans import bucketed
from bertlab.errors import UserError

Row = dict[str, np.ndarray]
Batch = dict[str, np.ndarray]

PADDED = ("tokens", "segments", "documents", "positions", "characters")
PADDED += ("word_at", "labels", "spelling", "word_ids", "vector_ids", "features")
"""Fields whose first axis is padded to a batch's length; others have one shape in all batches."""

NO_LABEL = -1

FILL: Mapping[str, float] = {
    "characters": PADDING,
    "spelling": PADDING,
    "target": np.nan,
    **dict.fromkeys("label labels word_at start end target_spans target_labels".split(), NO_LABEL),
}
"""What fields hold as padding, if not 0; `tokens` hold the tokenizer's padding."""


class Batches(Sequence):
    """Training batches by step, and as a sequence the evaluation batches of the same rows, which
    are those of one task or of several (`joined`). `data` is `config.data`; its `seq_len` and
    `buckets` are positions per text. A process gets its slice of each batch. `hash` is a digest of
    the rows and the settings on which their order depends: equal hashes, equal batches."""

    def __init__(
        self, rows: Sequence[Row], data: ConfigDict, pad_id: int, process_index=0, process_count=1
    ):
        self.rows, self._pad_id = rows, pad_id
        self._size, self._seed = data.batch_size, data.seed
        self._share = data.batch_size // process_count
        self._offset = process_index * self._share
        lengths = {length for length in data.buckets if length < data.seq_len} | {data.seq_len}
        self._widths = [most_texts(rows) * length for length in sorted(lengths)]
        self.lengths = np.array([len(row["tokens"]) for row in rows], np.int64)
        self._by_length = np.argsort(self.lengths, kind="stable")
        self._order = functools.lru_cache(2)(self._order_of)  # of `epoch`, and of the current one
        self._shapes = {}  # the largest shape of each field, and its type
        for row in rows:
            for name, value in sorted(row.items()):
                before = self._shapes.get(name, (value.shape, None))[0]
                self._shapes[name] = tuple(map(max, value.shape, before)), value.dtype
        self.hash = digest_of(rows, json.dumps([self._widths, self._size, self._seed]))

    @property
    def epoch(self) -> int:
        """Batches per epoch. Rows that fill no batch are dropped, different ones each epoch."""
        return len(self._order(0)[1])

    def __call__(self, step: int) -> Batch:
        """This process's rows of a training batch: dicts of arrays [B / process_count, ...]."""
        epoch, number = divmod(step, self.epoch)
        order, widths = self._order(epoch)
        first = number * self._size + self._offset
        return self._batch(order[first : first + self._share], int(widths[number]))

    def __len__(self) -> int:
        return -(-len(self.rows) // self._size)

    def __getitem__(self, index: int) -> Batch:
        """An evaluation batch. They have every row once, the shortest first; the last is padded
        with empty rows. `row_number` [B] is each row's number, -1 for an empty one (`by_row`)."""
        first = range(0, len(self.rows), self._size)[index]
        numbers = self._by_length[first : first + self._size]
        width = int(np.searchsorted(self._widths, self.lengths[numbers].max()))
        return self._batch(numbers[self._offset :][: self._share], self._widths[width])

    def add_features(self, states: Float[np.ndarray, "T W"]) -> None:
        """Gives each row its part of `states` as `features`, which are read with a batch."""
        parts = np.split(states, np.cumsum(self.lengths)[:-1])
        self.rows = [row | {"features": part} for row, part in zip(self.rows, parts)]
        self._shapes["features"] = states.shape, np.float32

    def _order_of(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """The rows of an epoch in their order, and the length of each batch."""
        if len(self.rows) < self._size:
            raise UserError(
                f"config.data.batch_size={self._size} exceeds the {len(self.rows)} training rows;"
                " lower it"
            )
        rng = np.random.default_rng([self._seed, epoch])
        return bucketed(self.lengths, self._widths, self._size, rng)

    def _batch(self, numbers: np.ndarray, width: int) -> Batch:
        rows = [self.rows[number] for number in numbers]
        batch = {"row_number": np.full(self._share, -1, np.int32)}
        batch["row_number"][: len(numbers)] = numbers
        for name, (shape, dtype) in self._shapes.items():
            if name in PADDED:
                shape = (width, *shape[1:])
            fill = self._pad_id if name == "tokens" else FILL.get(name, 0)
            batch[name] = np.full((self._share, *shape), fill, dtype)
            for index, row in enumerate(rows):
                if name in row:
                    batch[name][(index, *map(slice, row[name].shape))] = row[name]
        return batch


def digest_of(rows: Sequence[Row], settings: str = "") -> str:
    """A digest of rows, and of settings."""
    digest = hashlib.sha256(settings.encode())
    for row in rows:
        for name, value in sorted(row.items()):
            digest.update(f"{name}{value.shape}".encode() + value.tobytes())
    return digest.hexdigest()[:16]


def most_texts(rows: Sequence[Row]) -> int:
    """The most texts in a row."""
    return max((int(row["documents"].max(initial=1)) for row in rows), default=1)


def joined(parts: Sequence[Sequence[Row]]) -> list[Row]:
    """The rows of several tasks, one task after the other, each with the number of its `task`."""
    return [row | {"task": np.int32(n)} for n, rows in enumerate(parts) for row in rows]


def by_row(outputs: Sequence[Mapping[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Outputs of evaluation batches, each with their `row_number`, in the order of the rows."""
    found = {}
    for arrays in outputs:
        for index, number in enumerate(arrays["row_number"].tolist()):
            found[number] = {name: np.asarray(array[index]) for name, array in arrays.items()}
    return [found[number] for number in sorted(found.keys() - {-1})]
