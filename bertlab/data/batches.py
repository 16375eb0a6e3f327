"""Batches through Grain: documents in a seeded order, cut into rows, mixed in a window, packed (packing.py), stacked.

Two formats make their batches otherwise: `stream` (streams.py) and `cooccurrence` (cooccurrence.py).

Everything is a function of (prepared corpus, data config), so runs that differ only in model or objective read the
same bytes; `BatchHash` proves it.
"""

import contextlib
import copy
import hashlib
import itertools
from collections.abc import Mapping

import grain
import numpy as np

from bertlab.data.buckets import bucketed, check_buckets
from bertlab.data.characters import character_ids, character_table
from bertlab.data.cooccurrence import eval_entries, train_entries
from bertlab.data.formats import Format, build_format, label_field
from bertlab.data.packing import packed
from bertlab.data.prepared import Prepared, UnknownWords
from bertlab.data.streams import WRAPS, eval_stream, train_stream
from bertlab.errors import UserError

# Documents are read by the thread that makes the rows: handing them over from others costs more than reading them.
READ_HERE = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


class _WithVisit(grain.transforms.MapWithIndex):
    """Counts the readings of a document, one an epoch; what is random in its rows is a function of (seed, document, visit)."""

    def __init__(self, documents: int, seed: int, dupe_factor: int):
        self._documents, self._seed, self._dupe_factor = documents, seed, dupe_factor

    def map_with_index(self, index: int, document: dict) -> tuple[dict, int, list[int]]:
        visit = index // self._documents
        visit = visit % self._dupe_factor if self._dupe_factor else visit
        return document, visit, [self._seed, document["document"], visit]


class RowIterator(grain.DatasetIterator):
    """Rows of a format over a stream of documents, with `visit`: how often the row's first document was read before.

    Its state is the stream's state before the document that holds the next unit, and the number of units already
    taken from it; restoring cuts that document again.
    """

    def __init__(self, parent: grain.DatasetIterator, row_format: Format):
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
    """The rows of a format over a dataset of (document, visit, seed)."""

    def __init__(self, parent: grain.IterDataset, row_format: Format):
        super().__init__(parent)
        self._format = row_format

    def __iter__(self) -> RowIterator:
        return RowIterator(self._parent.__iter__(), self._format)

    def __str__(self) -> str:
        return f"RowDataset({type(self._format).__name__})"


class Shards(grain.IterDataset):
    """Batches of several datasets side by side, as many rows of each.

    Args:
        shards: number -> dataset.
        total: how many there are in all processes.
    """

    def __init__(self, shards: Mapping[int, grain.IterDataset], total: int = 1):
        super().__init__()
        self.shards, self.total = shards, total

    def __iter__(self) -> "ShardsIterator":
        return ShardsIterator({str(number): iter(dataset) for number, dataset in self.shards.items()}, self.total)

    def __str__(self) -> str:
        return f"Shards({', '.join(map(str, self.shards.values()))})"


class ShardsIterator(grain.DatasetIterator):
    """Its state has an entry for each shard, so that another number of processes can share them out anew."""

    def __init__(self, shards: dict[str, grain.DatasetIterator], total: int):
        super().__init__()
        self._shards, self._total = shards, total
        self.hashes = {number: BatchHash() for number in shards}

    def __next__(self) -> dict[str, np.ndarray]:
        parts = {number: next(iterator) for number, iterator in self._shards.items()}
        for number, part in parts.items():
            self.hashes[number].update(part)
        first, *others = parts.values()
        return {name: np.concatenate([part[name] for part in parts.values()]) for name in first} if others else first

    def get_state(self) -> dict:
        """A JSON value: shard -> its position, the hash chain of its batches, and of how many shards it is one."""
        return {
            number: {"position": iterator.get_state(), "hash": self.hashes[number].value, "of": self._total}
            for number, iterator in self._shards.items()
        }

    def set_state(self, state: dict) -> None:
        """Continues where the iterators that gave the states of these shards were; others' are passed over.

        Raises:
            UserError: they are of another number of shards, which each have other documents.
        """
        before = next(iter(state.values())).get("of", len(state))
        if before != self._total:
            raise UserError(
                f"the run was begun with its text in {before} shards and cannot go on with {self._total}; set"
                f" config.data.shards={before}"
            )
        for number, iterator in self._shards.items():
            iterator.set_state(state[number]["position"])
            self.hashes[number] = BatchHash(state[number]["hash"])

    def close(self) -> None:
        """Ends the shards' threads."""
        for iterator in self._shards.values():
            iterator.close()


def train_batches(prepared: Prepared, data, process: tuple[int, int] = (0, 1)) -> Shards:
    """Endless training batches, dicts of [B, ...] arrays.

    Args:
        prepared: the corpus.
        data: `config.data`. Its documents are dealt out to `shards` in turn (0: one for each process), each the same number
            of the batch's rows, so that the rows are the same for every number of processes that shares them.
        process: (index, count) of this process among all; B is its part.

    Raises:
        UserError: there are fewer documents than shards, or shards do not divide the batch or are not divided by processes;
            or there are several, and buckets.
    """
    index, count = process
    total = data.shards or count
    if total % count or data.batch_size % total:
        raise UserError(
            f"config.data.shards={data.shards or f'0 (one a process: {count})'} must divide config.data.batch_size="
            f"{data.batch_size} and be a multiple of the {count} processes"
        )
    if data.buckets and total > 1:
        raise UserError(
            f"config.data.buckets={data.buckets} with {total} parts of the text side by side (config.data.shards, or one a"
            " process): each would fill another bucket; set it to (), or config.data.shards=1 and train in one process"
        )
    own = range(index * total // count, (index + 1) * total // count)
    return Shards({number: _shard(prepared, data, (number, total)) for number in own}, total)


def _shard(prepared: Prepared, data, shard: tuple[int, int]) -> grain.IterDataset:
    """One shard's part of all batches; `shard` is its number and how many there are."""
    index, count = shard
    source = _open(prepared, data, "train")
    if len(source) < count:
        raise UserError(f"the train split has {len(source)} documents for {count} shards; use more text or fewer of them")
    if data.format == "stream":
        batches = train_stream(source, prepared.tokenizer, data, shard)
    elif data.format == "cooccurrence":
        batches = train_entries(prepared, data, shard)
    else:
        share = _documents(source, data.seed)[index::count]
        visits = share.repeat().map_with_index(_WithVisit(len(share), data.seed, data.dupe_factor))
        rows = RowDataset(visits.to_iter_dataset(READ_HERE), build_format(data, source, prepared.tokenizer))
        if data.shuffle_window > 1:
            rows = grain.experimental.WindowShuffleIterDataset(rows, window_size=data.shuffle_window, seed=data.seed)
        if data.pack_length:
            rows = packed(rows, data, prepared.tokenizer.pad_id, data.seed)
        size = data.batch_size // count
        batches = bucketed(rows, data, size) if data.buckets else rows.batch(size, drop_remainder=True)
    if data.characters:
        batches = batches.map(AddCharacters(prepared.tokenizer, source.unknown))
    return grain.experimental.ThreadPrefetchIterDataset(batches, prefetch_buffer_size=4)


def eval_batches(prepared: Prepared, data, split: str, limit: int) -> list[dict[str, np.ndarray]]:
    """Up to `limit` batches (0: all) of a held-out split, the same for every run on the same data.

    The last is filled with padding. `data.seed` does not matter here, nor do `data.buckets`: rows are `seq_len` long.
    """
    source = _open(prepared, data, split)
    if data.format == "stream":
        batches = list(itertools.islice(eval_stream(source, prepared.tokenizer, data), limit or None))
    elif data.format == "cooccurrence":
        batches = eval_entries(prepared, data, split, limit)
    else:
        visits = _documents(source, seed=0).map_with_index(_WithVisit(len(source), seed=0, dupe_factor=0))
        rows = RowDataset(visits.to_iter_dataset(READ_HERE), build_format(data, source, prepared.tokenizer))
        if data.pack_length:
            rows = packed(rows, data, prepared.tokenizer.pad_id, seed=0)
        with contextlib.closing(iter(rows)) as iterator:
            rows = list(itertools.islice(iterator, limit * data.batch_size or None))
        batches = [pad_batch(rows[i : i + data.batch_size], data.batch_size) for i in range(0, len(rows), data.batch_size)]
    if not batches:
        raise UserError(
            f"the {split} split of {data.corpus} gives no rows; raise config.data.{split}_fraction or use more text"
        )
    return list(map(AddCharacters(prepared.tokenizer, source.unknown), batches)) if data.characters else batches


def pad_batch(rows: list[dict], size: int) -> dict[str, np.ndarray]:
    """Stacks rows; missing ones are empty: document 0 everywhere, so every weight in them is zero."""
    empty = {k: np.full_like(v, -1 if "label" in k else 0) for k, v in rows[0].items()}
    rows = rows + [empty] * (size - len(rows))
    return {k: np.stack([row[k] for row in rows]) for k in rows[0]}


def check_data(data, tokenizer_kind: str | None = None) -> None:
    """Refuses batches that no corpus could give.

    Args:
        data: `config.data`.
        tokenizer_kind: the tokenizer's, where it is known.

    Raises:
        UserError: names the key to change.
    """
    if label_field(data):
        _check_pairs(data)
    if data.dupe_factor < 0:
        raise UserError(f"config.data.dupe_factor={data.dupe_factor} must be 0 (every reading is cut anew) or more")
    if data.format == "stream" and data.stream.wrap not in WRAPS:
        raise UserError(f"config.data.stream.wrap={data.stream.wrap!r} is not known; choose one of {', '.join(WRAPS)}")
    if data.format == "cooccurrence" and data.cooccurrence.window < 1:
        raise UserError(f"config.data.cooccurrence.window={data.cooccurrence.window} must be at least 1")
    if data.pack_length:
        _check_packing(data)
    if data.buckets:
        check_buckets(data)
        if data.pack_length or data.format in ("stream", "cooccurrence"):
            key = "pack_length" if data.pack_length else "format"
            raise UserError(
                f"config.data.buckets={data.buckets} are for rows that end in padding, and those of config.data.{key}="
                f"{data[key]!r} have little or none; set it to ()"
            )
    if data.characters and data.format == "cooccurrence":
        raise UserError("config.data.characters=True has no use with config.data.format='cooccurrence'; set it to False")
    if data.characters and tokenizer_kind not in ("words", None):
        raise UserError(
            f"config.data.characters=True needs whole words, and config.data.tokenizer.kind={tokenizer_kind!r} cuts them;"
            " set config.data.tokenizer.kind='words'"
        )


def _check_packing(data) -> None:
    if data.format in ("stream", "cooccurrence"):
        raise UserError(
            f"config.data.pack_length={data.pack_length} packs rows that end in padding, and those of config.data.format="
            f"{data.format!r} have none; set it to 0"
        )
    if data.pack_length < data.seq_len:
        raise UserError(
            f"config.data.pack_length={data.pack_length} must be 0 (no packing) or at least config.data.seq_len={data.seq_len},"
            " the length of what is packed"
        )
    if data.pack_examples < 1:
        raise UserError(f"config.data.pack_examples={data.pack_examples} must be at least 1: the most examples of a packed row")


def _check_pairs(data) -> None:
    if data.seq_len < 8:
        raise UserError(f"config.data.seq_len={data.seq_len} must be at least 8: three specials and tokens of two segments")
    for key in ("short_probability", "random_next_probability"):
        if not 0 <= (probability := data[data.format].get(key, 0)) <= 1:
            raise UserError(f"config.data.{data.format}.{key}={probability} must be between 0 and 1")
    if (retries := data[data.format].own_document_retries) < 0:
        raise UserError(f"config.data.{data.format}.own_document_retries={retries} must be 0 or more")


def _open(prepared: Prepared, data, split: str):
    check_data(data, prepared.tokenizer.kind)
    source = prepared.source(split, keep_unknown=True) if data.characters else prepared.source(split)
    if len(source) == 0:
        raise UserError(f"the {split} split of the corpus is empty; change config.data.{split}_fraction or use more text")
    return source


def _documents(source, seed: int) -> grain.MapDataset:
    return grain.MapDataset.source(source).seed(seed).shuffle()


class AddCharacters:
    """Adds `characters` [B, L, 50] to batches of words, and `backward_characters` where there are `backward_tokens`.

    A word outside the vocabulary keeps its own characters, and becomes [UNK] in every other field.
    """

    def __init__(self, tokenizer, unknown: UnknownWords):
        """Args: tokenizer: of the words; unknown: tells apart the ids beyond its vocabulary."""
        self._table = character_table(tokenizer)
        self._pad_id, self._unknown = tokenizer.pad_id, unknown

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The batch with characters."""
        added = {}
        for side in ("", "backward_"):
            if f"{side}tokens" in batch:
                added[f"{side}characters"] = self._characters(batch[f"{side}tokens"], batch[f"{side}documents"])
        known = {
            name: np.where(values < self._unknown.first_id, values, self._unknown.unk_id).astype(values.dtype)
            for name, values in batch.items()
            if name.endswith("tokens")
        }
        return {**batch, **known, **added}

    def _characters(self, tokens: np.ndarray, documents: np.ndarray) -> np.ndarray:
        is_unknown = tokens >= self._unknown.first_id
        characters = self._table[np.where(is_unknown, self._unknown.unk_id, tokens)].astype(np.int32)
        ids, places = np.unique(tokens[is_unknown], return_inverse=True)
        if len(ids):
            characters[is_unknown] = character_ids(self._unknown.words(ids))[places]
        characters[documents == 0] = self._table[self._pad_id]
        return characters


def combined_hash(hashes: Mapping[str, str]) -> str:
    """One value of the hash chains of all shards; of one shard, its own."""
    if len(hashes) == 1:
        return next(iter(hashes.values()))
    return hashlib.blake2b("".join(hashes[n] for n in sorted(hashes, key=int)).encode(), digest_size=16).hexdigest()


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
