"""Co-occurrences of words, weighted by their distance: GloVe's training data (Pennington et al. 2014).

An entry is (i, j, X_ij): X_ij is the sum of 1/distance over all pairs of an i and a j of one document that are at most `window`
words apart, to both sides, so X is symmetric. As in GloVe's cooccur.c, words outside the vocabulary (and other specials) are
taken out first, and distances count the words that are left.

Entries lie in one file beside the prepared corpus, sorted by (i, j), and are made once for each split and window. Sums of a
chunk of pairs are sorted and written as a run; runs are merged range by range, so the chunk bounds the memory.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import grain
import numpy as np

from bertlab import checksums
from bertlab.data.formats.base import Format
from bertlab.data.iterators import IteratorDataset
from bertlab.data.prepared import TEMPORARY, Prepared
from bertlab.errors import UserError
from bertlab.files import TAKEN, move, temporary_folder

# Raise it when a change of the code changes the output.
FORMAT_VERSION = 2

ENTRY = np.dtype([("token", "<i4"), ("context", "<i4"), ("count", "<f4")])

# Pairs in memory at a time; sorting them takes some 50 bytes each.
_CHUNK_PAIRS = 1 << 22

_SUM = np.dtype([("key", "<i8"), ("sum", "<f8")])


def entries(prepared: Prepared, split: str, window: int) -> np.ndarray:
    """All entries of a split, sorted, as a read-only array [N] of `ENTRY` on disk; makes them if they do not exist yet.

    Args:
        prepared: the corpus.
        split: "train", "valid" or "test".
        window: the largest distance (`config.data.cooccurrence.window`).

    Raises:
        UserError: no two words of the split co-occur, or the file is damaged.
    """
    directory = prepared.directory / f"cooccurrence-{FORMAT_VERSION}-{split}-{window}"
    path = directory / "entries.bin"
    if not directory.exists():
        with temporary_folder(prepared.directory.parent, TEMPORARY) as folder:
            runs = _write_runs(_pairs(prepared, split, window), folder)
            whole = folder / "whole"
            whole.mkdir()
            _merge(runs, prepared.tokenizer.vocab_size, whole / path.name)
            checksums.write_list(whole, [whole / path.name])
            try:
                move(whole, directory)
            except OSError as error:  # another process has made the same meanwhile
                if error.errno not in TAKEN:
                    raise
    checksums.require_whole(directory, f"delete {directory} and run the same command again: it counts anew")
    if not path.stat().st_size:
        raise UserError(f"no two known words co-occur in the {split} split; use more text or a larger vocabulary")
    return np.memmap(path, ENTRY, mode="r")


def _pairs(prepared: Prepared, split: str, window: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Keys (i·V + j) of the pairs of words of each document, and their weights."""
    tokenizer, source = prepared.tokenizer, prepared.source(split)
    specials = {tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id} - {None}
    for index in range(len(source)):
        words = source[index]["tokens"].astype(np.int64)
        words = words[~np.isin(words, list(specials))]
        for distance in range(1, min(window, len(words) - 1) + 1):
            left, right = words[:-distance], words[distance:]
            keys = np.concatenate([left * tokenizer.vocab_size + right, right * tokenizer.vocab_size + left])
            yield keys, np.full(len(keys), 1 / distance)


def _write_runs(pairs: Iterable[tuple[np.ndarray, np.ndarray]], folder: Path) -> list[np.ndarray]:
    """Sums chunks of pairs; each becomes a file, sorted by key."""
    runs, chunk, size = [], [], 0

    def write():
        keys, weights = map(np.concatenate, zip(*chunk))
        path = folder / f"run-{len(runs)}"
        _sums(keys, weights).tofile(path)
        runs.append(np.memmap(path, _SUM, mode="r"))

    for part in pairs:
        chunk.append(part)
        size += len(part[0])
        if size >= _CHUNK_PAIRS:
            write()
            chunk, size = [], 0
    if chunk:
        write()
    return runs


def _sums(keys: np.ndarray, weights: np.ndarray) -> np.ndarray:
    distinct, places = np.unique(keys, return_inverse=True)
    result = np.empty(len(distinct), _SUM)
    result["key"], result["sum"] = distinct, np.bincount(places, weights)
    return result


def _merge(runs: list[np.ndarray], vocab_size: int, path: Path) -> None:
    """Adds up the runs. A range between two bounds holds at most `_CHUNK_PAIRS` sums."""
    step = max(1, _CHUNK_PAIRS // (2 * max(1, len(runs))))
    samples = np.sort(np.concatenate([np.zeros(0, np.int64), *(run["key"][::step] for run in runs)]))
    # From one bound to the next there are len(runs) samples: so many steps, and at most one more of each run.
    bounds = [*np.unique(samples[:: max(1, len(runs))]), vocab_size**2]
    cuts = [np.searchsorted(run["key"], bounds) for run in runs]
    with path.open("wb") as file:
        for place in range(len(bounds) - 1):
            merged = np.concatenate([run[cut[place] : cut[place + 1]] for run, cut in zip(runs, cuts, strict=True)])
            merged = _sums(merged["key"], merged["sum"])
            result = np.empty(len(merged), ENTRY)
            result["token"], result["context"] = np.divmod(merged["key"], vocab_size)
            result["count"] = merged["sum"]
            result.tofile(file)


class EntryIterator(grain.DatasetIterator):
    """Endless batches of entries: every entry once per epoch, in a different order in each epoch.

    Its state is the number of the next batch: batch t holds the entries from t·B·L on of the endless order.
    """

    def __init__(self, found: np.ndarray, data, index: int, count: int):
        super().__init__()
        self._found, self._data, self._index, self._count = found, data, index, count
        self._batch = 0
        self._epoch, self._order = -1, np.zeros(0, np.int64)

    def __next__(self) -> dict[str, np.ndarray]:
        rows = self._data.batch_size // self._count
        first = (self._batch * self._count + self._index) * rows * self._data.seq_len
        places = np.arange(first, first + rows * self._data.seq_len)
        epochs, places = np.divmod(places, len(self._found))
        chosen = np.empty(len(places), ENTRY)
        for epoch in np.unique(epochs):
            chosen[epochs == epoch] = self._found[self._order_of(int(epoch))[places[epochs == epoch]]]
        self._batch += 1
        starts = slice(None, None, self._data.seq_len)
        return _batch(chosen, np.stack([epochs[starts], places[starts]], 1), rows, self._data.seq_len)

    def _order_of(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:
            self._epoch, self._order = epoch, _order(len(self._found), self._data.seed, epoch)
        return self._order

    def get_state(self) -> dict:
        return {"batch": self._batch}

    def set_state(self, state: dict) -> None:
        self._batch = state["batch"]


class Cooccurrence(Format):
    """Rows of entries; fields are `tokens` (i), `contexts` (j) and `counts` (X_ij, float32), each [B, L], those of every
    batch, and `example_id` (epoch, place of the row's first entry in it)."""

    name = "cooccurrence"
    is_word_pairs = True
    makes = ("counts",)

    def train(self, index: int, count: int) -> grain.IterDataset:
        """See `Format`; all parts share one order of entries."""
        found = entries(self.prepared, self.split, self.settings.window)
        return IteratorDataset(lambda: EntryIterator(found, self.data, index, count))

    def evaluate(self, limit: int) -> list[dict[str, np.ndarray]]:
        data, found = self.data, entries(self.prepared, self.split, self.settings.window)
        order, size = _order(len(found), 0, 0), data.batch_size * data.seq_len
        batches = []
        for start in range(0, len(found), size)[: limit or None]:
            places = start + data.seq_len * np.arange(data.batch_size)
            example_id = np.stack([np.zeros_like(places), places], 1)
            batches.append(_batch(found[order[start : start + size]], example_id, data.batch_size, data.seq_len))
        return batches

    def made_up(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        tokens = batch["tokens"]
        return batch | {"contexts": np.roll(tokens, 1, axis=1), "counts": np.ones_like(tokens, np.float32)}


def _order(size: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(size)


def _batch(chosen: np.ndarray, example_id: np.ndarray, rows: int, length: int) -> dict[str, np.ndarray]:
    """Rows of entries, filled with padding. Its count is 1, so that it has a logarithm."""
    fields = {name: np.zeros(rows * length, np.int32) for name in ("tokens", "contexts", "documents", "segments", "positions")}
    fields["counts"] = np.ones(rows * length, np.float32)
    for name, part in (("tokens", "token"), ("contexts", "context"), ("counts", "count"), ("documents", None)):
        fields[name][: len(chosen)] = chosen[part] if part else 1
    return {
        **{name: values.reshape(rows, length) for name, values in fields.items()},
        "pair_label": np.full(rows, -1, np.int32),
        "example_id": example_id.astype(np.int32),
    }
