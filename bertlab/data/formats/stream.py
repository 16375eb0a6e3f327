"""Streams: text for models that carry their state from batch to batch (truncated back-propagation through time).

A batch has B lanes, its rows. A lane reads one document after the other, and its row continues its row of the previous batch. A
lane that ends a document takes the next in the shuffled order at once, so every document is read once per epoch, and the token
after a row's last one is known.

Rows have `next_tokens`, the token to predict at each position (−1: none); `continues` (1: the row continues with its lane's
state, 0: states start from zero); and `rate_scale`. Nothing in them is random; `visit` is always 0. With
`config.data.stream.backward`, models that read right to left get a second stream of other documents with the prefix
`backward_`. Its rows are in text order; read from the last position to the first, a row continues in the next batch.

How documents are joined (`config.data.stream.wrap`):

    document  w w w w [SEP]            predicted going forward: all but a lane's first
    sentence  [CLS] w w  [CLS] w w     predicted: w w [SEP]  w w [SEP], as in ELMo's training (bilm-tf, data.py): an end
                                       is predicted but never read, a start read but never predicted; backward the reverse
    none      w w w w
"""

import itertools
from typing import NamedTuple

import grain
import numpy as np

from bertlab import papers
from bertlab.data.formats.base import Format
from bertlab.data.iterators import IteratorDataset
from bertlab.data.rows import sentence_bounds

_MARGIN = 20  # by which a row with `vary_length` may be longer than `seq_len`

_BACKWARD_SEED = 1
_LENGTH_SEED = 2


def varied_length(data, batch: int) -> int:
    """The number of tokens in the rows of a training batch with `vary_length`, the same in all rows and on all hosts.

    Normal about `seq_len`, or one time in twenty about its half, with standard deviation 5; at least 5 and at most 20 above
    `seq_len`.
    """
    rng = np.random.default_rng([data.seed, _LENGTH_SEED, batch])
    of = papers.VARIED_LENGTHS
    centre = data.seq_len / 2 if rng.random() < of["half_probability"] else data.seq_len
    return min(max(of["shortest"], int(rng.normal(centre, of["stddev"]))), data.seq_len + _MARGIN)


class _Text(NamedTuple):
    """A document in the order in which a lane reads it: `targets[i]` is predicted once `inputs[i]` is read."""

    document: int
    inputs: np.ndarray
    targets: np.ndarray
    # Whether the last target, −1 so far, is the next token that the lane reads.
    is_open: bool


def _read(document: dict, wrap: str, backward: bool, cls_id: int, sep_id: int) -> _Text:
    tokens, step = document["tokens"], -1 if backward else 1
    if wrap == "sentence":
        bounds = sentence_bounds(document)
        before, after = np.insert(tokens, bounds[:-1], cls_id), np.insert(tokens, bounds[1:], sep_id)
        inputs, targets = (after, before) if backward else (before, after)
        return _Text(document["document"], inputs[::step], targets[::step], False)
    inputs = (np.append(tokens, sep_id) if wrap == "document" else tokens)[::step]
    return _Text(document["document"], inputs, np.append(inputs[1:], -1), True)


class _Lanes:
    """The lanes of one direction, and how far each has come."""

    def __init__(self, stream: "Stream", visits: grain.MapDataset, rows: int, backward: bool):
        self._visits, self._backward = visits, backward
        self._wrap, self._across = stream.settings.wrap, stream.settings.attend_across_documents
        self._tokenizer = stream.tokenizer
        # A visit is the number of a document in the endless order, an offset the place of the next token in its text.
        self._reading, self._offsets, self._next_visit = list(range(rows)), [0] * rows, rows
        self._texts: dict[int, tuple[int, _Text]] = {}

    def state(self) -> dict:
        return {"reading": list(self._reading), "offsets": list(self._offsets), "next_visit": self._next_visit}

    def restore(self, state: dict) -> None:
        self._reading, self._offsets = list(state["reading"]), list(state["offsets"])
        self._next_visit = state["next_visit"]

    def ended(self) -> bool:
        return min(self._reading) >= len(self._visits)

    def _text(self, lane: int) -> _Text | None:
        """The text that a lane reads; None at the end."""
        visit = self._reading[lane]
        if visit >= len(self._visits):
            return None
        if self._texts.get(lane, (None,))[0] != visit:
            tokenizer = self._tokenizer
            text = _read(self._visits[visit], self._wrap, self._backward, tokenizer.cls_id, tokenizer.sep_id)
            self._texts[lane] = visit, text
        return self._texts[lane][1]

    def take(self, length: int, width: int, first: bool) -> dict[str, np.ndarray]:
        """The next `length` tokens of every lane, in rows of `width`; `first`: no batch was before."""
        shape = len(self._reading), width
        fields = {
            "tokens": np.full(shape, self._tokenizer.pad_id, np.int32),
            "documents": np.zeros(shape, np.int32),
            "next_tokens": np.full(shape, -1, np.int32),
            "continues": np.zeros(shape[0], np.int32),
            "example_id": np.zeros((shape[0], 2), np.int32),
        }
        for lane in range(shape[0]):
            if (text := self._text(lane)) is None:
                continue
            fields["continues"][lane] = not first if self._across else self._offsets[lane] > 0
            fields["example_id"][lane] = text.document, self._offsets[lane]
            row = {name: fields[name][lane] for name in ("tokens", "documents", "next_tokens")}
            size = self._fill(lane, row, length)
            if self._backward:
                for values in row.values():
                    values[:size] = values[:size][::-1].copy()
                row["documents"][:size] = row["documents"][0] + 1 - row["documents"][:size]
        # Positions count from 0 where a document begins in the row.
        documents, places = fields["documents"], np.arange(width, dtype=np.int32)
        begins = np.where(np.diff(documents, axis=1, prepend=0) != 0, places, 0)
        positions = np.where(documents > 0, places - np.maximum.accumulate(begins, axis=1), 0).astype(np.int32)
        return {**fields, "segments": np.zeros(shape, np.int32), "positions": positions}

    def _fill(self, lane: int, row: dict[str, np.ndarray], length: int) -> int:
        """Writes a lane's next `length` tokens in the order they are read; returns how many there were."""
        size, number = 0, 0
        while size < length and (text := self._text(lane)) is not None:
            start = self._offsets[lane]
            part = slice(start, start + length - size)
            end = size + len(text.inputs[part])
            number += 1
            row["tokens"][size:end] = text.inputs[part]
            row["next_tokens"][size:end] = text.targets[part]
            row["documents"][size:end] = 1 if self._across else number
            self._offsets[lane] += end - size
            size = end
            if self._offsets[lane] == len(text.inputs):
                self._reading[lane], self._offsets[lane] = self._next_visit, 0
                self._next_visit += 1
                if text.is_open and self._across and (following := self._text(lane)) is not None:
                    row["next_tokens"][size - 1] = following.inputs[0]
        return size


class StreamIterator(grain.DatasetIterator):
    """Batches of `rows` lanes over the documents of each direction (`visits`).

    Its state: how far each lane has come, and the number of the next batch.
    """

    def __init__(self, stream: "Stream", visits: dict[str, grain.MapDataset], rows: int, varies: bool):
        super().__init__()
        self._data, self._width, self._varies = stream.data, stream.row_length, varies
        self._sides = {name: _Lanes(stream, order, rows, name == "backward") for name, order in visits.items()}
        self._batch = 0

    def __next__(self) -> dict[str, np.ndarray]:
        if all(lanes.ended() for lanes in self._sides.values()):
            raise StopIteration
        data, width = self._data, self._width
        length = varied_length(data, self._batch) if self._varies else data.seq_len
        batch = self._sides["forward"].take(length, width, first=self._batch == 0)
        rows = len(batch["tokens"])
        batch["pair_label"] = np.full(rows, -1, np.int32)
        batch["order_label"] = np.full(rows, -1, np.int32)
        batch["visit"] = np.zeros(rows, np.int32)
        batch["rate_scale"] = np.full(rows, length / data.seq_len, np.float32)
        if "backward" in self._sides:
            backward = self._sides["backward"].take(length, width, first=self._batch == 0)
            del backward["example_id"]
            batch |= {f"backward_{name}": values for name, values in backward.items()}
        self._batch += 1
        return batch

    def get_state(self) -> dict:
        return {"batch": self._batch, **{name: lanes.state() for name, lanes in self._sides.items()}}

    def set_state(self, state: dict) -> None:
        self._batch = state["batch"]
        for name, lanes in self._sides.items():
            lanes.restore(state[name])


class Stream(Format):
    """See the module."""

    name = "stream"
    is_stream = True

    @property
    def row_length(self) -> int:
        """See `Format`: more than `seq_len`, to leave room if lengths vary."""
        return self.data.seq_len + _MARGIN * self.settings.vary_length

    def train(self, index: int, count: int) -> grain.IterDataset:
        """See `Format`; each part reads documents of its own."""
        visits = {name: order[index::count].repeat() for name, order in self._orders(self.data.seed).items()}
        rows = self.data.batch_size // count
        return IteratorDataset(lambda: StreamIterator(self, visits, rows, varies=self.settings.vary_length))

    def evaluate(self, limit: int) -> list[dict[str, np.ndarray]]:
        """See `Format`: every document once, in lanes that continue from batch to batch; a lane that has ended is padding."""
        batches = StreamIterator(self, self._orders(seed=0), self.data.batch_size, varies=False)
        return list(itertools.islice(batches, limit or None))

    def made_up(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        rows = len(batch["tokens"])
        return batch | {
            "next_tokens": np.roll(batch["tokens"], -1, axis=1),
            "continues": np.ones(rows, np.int32),
            "rate_scale": np.ones(rows, np.float32),
        }

    def _orders(self, seed: int) -> dict[str, grain.MapDataset]:
        seeds = {"forward": seed}
        if self.settings.backward:
            # Not a number near `seed`: two runs' seeds may not give one's forward and the other's backward order.
            seeds["backward"] = int(np.random.default_rng([seed, _BACKWARD_SEED]).integers(2**32))
        return {name: grain.MapDataset.source(self.source).seed(value).shuffle() for name, value in seeds.items()}
