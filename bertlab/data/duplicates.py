"""Counting sentences and documents that occur more than once, in bounded memory.

Hashes of 8 bytes are gathered in files and counted part by part: part p of n holds those that are p modulo n, so equal ones
meet in one part. 100 million sentences take 800 MB of disk while a corpus is prepared.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from bertlab.data.encode import HASH

UNITS = ("sentences", "documents")

_HASHES_AT_ONCE = 1 << 22


class HashFiles(contextlib.ExitStack):
    """Files of hashes, one for each split and unit; a `with` statement removes them at its end."""

    def __init__(self, directory: Path, splits: Sequence[str]):
        """Args: directory: where the files may lie, in a folder of their own; splits: their names, "train" among them."""
        super().__init__()
        folder = Path(self.enter_context(tempfile.TemporaryDirectory(dir=directory)))
        self._paths = {(split, unit): folder / f"{split}-{unit}" for split in splits for unit in UNITS}
        try:
            self._files = {key: self.enter_context(path.open("wb")) for key, path in self._paths.items()}
        except OSError:
            self.close()
            raise

    def add(self, split: str, hashes: Mapping[str, np.ndarray]) -> None:
        """Adds the hashes of a split's "sentences" and "documents", uint64 [n]."""
        for unit, values in hashes.items():
            self._files[split, unit].write(values.tobytes())

    def counts(self, split: str) -> dict[str, int]:
        """How many `duplicate_sentences` and `duplicate_documents` repeat one that came before them in the split.

        For a held-out split also `sentences_in_train` and `documents_in_train`: how many also occur in train.
        """
        for file in self._files.values():
            file.flush()
        found = {}
        for unit in UNITS:
            own, train = self._paths[split, unit], self._paths["train", unit]
            parts = number_of_parts(max(map(_number, (own, train))))
            found[f"duplicate_{unit}"] = sum(map(number_repeated, _sorted_parts(own, parts)))
            if split != "train":
                pairs = zip(_sorted_parts(own, parts), _sorted_parts(train, parts), strict=True)
                found[f"{unit}_in_train"] = sum(number_in(part, of_train) for part, of_train in pairs)
        return found


def _number(path: Path) -> int:
    return path.stat().st_size // HASH.itemsize


def _sorted_parts(path: Path, parts: int) -> Iterator[np.ndarray]:
    for part in range(parts):
        starts = range(0, max(1, _number(path)), _HASHES_AT_ONCE)
        blocks = (np.fromfile(path, HASH, _HASHES_AT_ONCE, offset=start * HASH.itemsize) for start in starts)
        yield np.sort(np.concatenate([block[block % parts == part] for block in blocks]))


def number_of_parts(hashes: int) -> int:
    """The number of parts in which to count so many hashes, each of a size that fits in memory."""
    return 1 + hashes // _HASHES_AT_ONCE


def number_repeated(hashes: np.ndarray) -> int:
    """How many of the sorted `hashes` repeat one before them."""
    # Sorted, since np.unique takes a hundred times as long (numpy 2.4).
    return int((hashes[1:] == hashes[:-1]).sum())


def number_in(values: np.ndarray, others: np.ndarray) -> int:
    """How many of the sorted `values` are among the sorted `others`."""
    return int((np.searchsorted(others, values, "right") > np.searchsorted(others, values, "left")).sum())
