"""Batches: a pure function of (prepared corpus, `config.data`, step), without iterator state.

Documents lie in blocks, in an order that the epoch draws. A group of `GROUP_BLOCKS` blocks (a small
corpus is one) is planned at once and its rows are shuffled together, so memory stays bounded. The
batches' rows are those of all groups of all epochs, end to end. How many a group has is known once
it is planned; a small file next to a large corpus keeps these numbers.
"""

import bisect
import collections
import contextlib
import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from bertlab.data.characters import PADDING
from bertlab.data.formats import FORMATS, row_length
from bertlab.data.formats.cooccurrence import EntryPlan, entries
from bertlab.data.plans import Text, bounds_of, bucketed, pack
from bertlab.data.prepared import Prepared, write_array
from bertlab.errors import UserError

BLOCK_TOKENS = 1 << 22
GROUP_BLOCKS = 8

# Raise it when a code change alters the rows: it is part of `Batches.hash`.
_VERSION = 1
_GROUP_NUMBERS = 1 << 24  # example numbers of a group are below this
_BLOCKS, _PLAN, _ORDER = range(3)  # what a generator is for, part of its seed

Batch = dict[str, np.ndarray]


class Group(NamedTuple):
    """The rows of a group, in reading order; `widths`: with buckets, the length of each batch."""

    plan: Any
    order: np.ndarray
    widths: np.ndarray | None
    visit: int
    first_number: int


class Batches:
    """Training batches by step, and a split's evaluation batches.

    Process i of n gets its slice of each batch's rows. Rows after the last of the `epochs` are
    padding; with 0 the text is read again and again. Equal `hash`, a digest of all that rows depend
    on, means equal batches.
    """

    def __init__(
        self,
        prepared: Prepared,
        data: ConfigDict,
        split: str = "train",
        process_index: int = 0,
        process_count: int = 1,
        epochs: int = 0,
    ):
        self._prepared, self._data, self._split = prepared, data, prepared.split(split)
        self._process, self._epochs = (process_index, process_count), epochs
        keys = ("format", "seq_len", "batch_size", "seed", "dupe_factor", "unique_tokens")
        keys += ("pack_length", "pack_examples", "buckets", "characters", data.format)
        settings = {key: data.to_dict().get(key) for key in keys}
        read = [_VERSION, prepared.fingerprint, split, BLOCK_TOKENS, GROUP_BLOCKS, settings]
        content = json.dumps(read, sort_keys=True).encode()
        self.hash = hashlib.sha256(content).hexdigest()[:16]
        self._arrays = {"tokens": self._split.tokens}
        if data.characters:
            self._arrays["words"] = self._split.words
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="plans")
        self._planned: dict[int, Future] = {}
        # Rows up to the end of each group of the first epochs.
        self._counts_file = prepared.directory / f"rows-{self.hash}.npy"
        self._ends = [0]
        if not epochs and self._counts_file.exists():
            self._ends = np.load(self._counts_file).tolist()

    def __call__(self, step: int) -> Batch:
        """This process's rows of a batch: dicts of arrays [B / process_count, ...]."""
        index, count = self._process
        share = self._data.batch_size // count
        first = step * self._data.batch_size + index * share
        return self._read(first, first + share)

    def evaluation(self, limit: int = 0) -> list[Batch]:
        """Every row of the split once, in up to `limit` batches (0: all), the same for every seed;
        the last is padded."""
        data = ConfigDict(self._data.to_dict())
        data.update(seed=0, dupe_factor=0, unique_tokens=0, buckets=())
        data.stream.update(vary_length=False, whole_documents=True)
        batches = Batches(self._prepared, data, self._split.name, *self._process, epochs=1)
        steps = range(limit) if limit else itertools.count()
        found = itertools.takewhile(lambda step: batches._has(step * data.batch_size), steps)
        return [batches(step) for step in found]

    @functools.cached_property
    def _parts(self) -> tuple[list[np.ndarray], int]:
        """What groups are made of (blocks of documents, or pairs of words), and how many groups."""
        data, split = self._data, self._split
        documents = unique_documents(split, data.unique_tokens)
        if data.format == "cooccurrence":
            found = entries(self._prepared, split.name, documents, data.cooccurrence.window)
            size = data.seq_len * (BLOCK_TOKENS * GROUP_BLOCKS // data.seq_len)
            parts = [found[start : start + size] for start in range(0, len(found), size)]
            return parts, len(parts)
        bounds = split.token_bounds()
        block = bounds_of(bounds[documents + 1] - bounds[documents])[:-1] // BLOCK_TOKENS
        parts = np.split(documents, np.flatnonzero(np.diff(block)) + 1)
        return parts, -(-len(parts) // GROUP_BLOCKS)

    def _has(self, row: int) -> bool:
        """Whether there is such a row; plans groups until it is known."""
        while self._ends[-1] <= row:
            number, groups = len(self._ends) - 1, self._parts[1]
            if number >= groups and self._ends[-1] == 0:
                raise UserError(
                    f"the {self._split.name} split of {self._prepared.directory} yields no rows of"
                    f" config.data.format={self._data.format!r}; use more text"
                )
            if self._epochs and number == self._epochs * groups:
                return False
            self._ends.append(self._ends[-1] + len(self._group(number).order))
            if not self._epochs and len(self._ends) % 16 == 0:
                with contextlib.suppress(OSError):  # a corpus that someone else owns
                    write_array(self._counts_file, np.asarray(self._ends))
        return True

    def _read(self, first: int, last: int) -> Batch:
        """The fields of rows first .. last; rows after the last epoch are padding."""
        pieces, row = [], first
        while row < last and self._has(row):
            number = bisect.bisect_right(self._ends, row) - 1
            end = min(last, self._ends[number + 1])
            offset = self._ends[number]
            pieces.append(self.fields(self._group(number), row - offset, end - offset))
            row = end
        if row < last:
            example = pieces[0] if pieces else self._read(0, 1)
            pieces.append(_padding(example, last - row, self._prepared.tokenizer.pad_id))
        if len(pieces) == 1:
            return pieces[0]
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}

    def fields(self, group: Group, first: int, last: int) -> Batch:
        """The fields of rows first .. last of a group, in its order."""
        width = row_length(self._data)
        if group.widths is not None:
            width = int(group.widths[first // self._data.batch_size])
        chosen, pad_id = group.order[first:last], self._prepared.tokenizer.pad_id
        gathered = group.plan.gather(self._arrays, chosen, width, pad_id)
        number = gathered.pop("number", chosen).astype(np.int64)
        none = np.full(number.shape, -1, np.int32)
        fields = {"pair_label": none, "order_label": none} | gathered
        is_example = number >= 0
        number = np.where(is_example, group.first_number + number, 0).astype(np.int32)
        fields["visit"] = np.where(is_example, group.visit, 0).astype(np.int32)
        fields["example_id"] = np.stack([fields["visit"], number], axis=-1)
        for name in [name for name in fields if name.endswith("words")]:
            words = fields.pop(name)
            fields[name.removesuffix("words") + "characters"] = self._prepared.characters[words]
        return fields

    def _group(self, number: int) -> Group:
        """A group by its number over all epochs; meanwhile the next one is planned."""
        last = self._epochs * self._parts[1] or number + 2
        self._planned = {
            n: self._planned.get(n) or self._planner.submit(self.make_group, n)
            for n in range(number, min(number + 2, last))
        }
        return self._planned[number].result()

    def make_group(self, number: int) -> Group:
        data, split, (parts, groups) = self._data, self._split, self._parts
        epoch, group = divmod(number, groups)
        visit = epoch % data.dupe_factor if data.dupe_factor else epoch
        if data.format == "cooccurrence":
            plan = EntryPlan(parts[group], data.seq_len)
        else:
            order = self._generator(_BLOCKS, visit, 0).permutation(len(parts))
            chosen = np.sort(np.array_split(order, groups)[group])
            documents = np.concatenate([parts[block] for block in chosen])
            rng = self._generator(_PLAN, visit, group)
            text = Text(split.sentences[:-1], split.sentences, split.documents)
            text = text.take(rng.permutation(documents))
            plan = FORMATS[data.format].plan(text, data, self._prepared.tokenizer, rng)
            if data.pack_length:
                plan = pack(plan, data.pack_length, data.pack_examples, rng)
        rng, widths = self._generator(_ORDER, epoch, group), None
        if data.buckets:
            buckets = sorted({*data.buckets, data.seq_len})
            order, widths = bucketed(plan.row_lengths(), buckets, data.batch_size, rng)
        else:
            order = np.arange(len(plan)) if plan.is_ordered else rng.permutation(len(plan))
        return Group(plan, order, widths, visit, group * _GROUP_NUMBERS)

    def _generator(self, use: int, epoch: int, group: int) -> np.random.Generator:
        return np.random.default_rng([self._data.seed, use, epoch, group])


def unique_documents(split, tokens: int) -> np.ndarray:
    """Sorted numbers of documents with this many tokens (`config.data.unique_tokens`; 0: all), the
    first of an order that is the same for all runs: a smaller set is in every larger one."""
    count = len(split.documents) - 1
    if not tokens:
        return np.arange(count)
    if tokens > len(split.tokens):
        raise UserError(
            f"config.data.unique_tokens={tokens}: the {split.name} split has only"
            f" {len(split.tokens):,} tokens; lower it"
        )
    order = np.random.default_rng(0).permutation(count)
    reached = np.cumsum(np.diff(split.token_bounds())[order])
    return np.sort(order[: np.searchsorted(reached, tokens) + 1])


def _padding(fields: Batch, rows: int, pad_id: int) -> Batch:
    """Rows without a document: all their weights are zero."""
    values = {"tokens": pad_id, "contexts": pad_id, "counts": 1, "rate_scale": 1}
    values |= {"next_tokens": -1, "pair_label": -1, "order_label": -1, "characters": PADDING}
    return {
        name: np.full((rows, *x.shape[1:]), values.get(name.removeprefix("backward_"), 0), x.dtype)
        for name, x in fields.items()
    }


def prefetch(batches: Callable, start: int, put: Callable, ahead: int = 2) -> Iterator[Any]:
    """`put(batches(step))` for start, start + 1, ..., made by a thread while the caller works."""
    thread, waiting = ThreadPoolExecutor(1, thread_name_prefix="batches"), collections.deque()
    try:
        for step in itertools.count(start):
            waiting.append(thread.submit(lambda step=step: put(batches(step))))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
    finally:
        thread.shutdown(cancel_futures=True)
