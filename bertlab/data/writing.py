"""The arrays of a split, written as its documents come."""

from pathlib import Path

import numpy as np

from bertlab.data.encode import Encoded


class ArrayWriter:
    """A .npy file of one dimension that grows."""

    def __init__(self, path: Path, dtype):
        self.length, self._dtype = 0, np.dtype(dtype)
        self._file = path.open("wb")
        self._write_header()

    def _write_header(self) -> None:
        # NumPy pads a header for the longest length, so a later one is as long.
        description = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": description, "fortran_order": False, "shape": (self.length,)}
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, values) -> None:
        values = np.ascontiguousarray(values, self._dtype)
        self._file.write(values.data)
        self.length += len(values)

    def close(self) -> None:
        self._file.seek(0)
        self._write_header()
        self._file.close()


class SplitWriter:
    """Writes the arrays of `Split`.

    Args:
        folder: of the split.
        tokenizer: made the ids.
        types: row of `Prepared.characters` of each word outside the vocabulary; all splits add to
            it. None without a words tokenizer.
    """

    def __init__(self, folder: Path, tokenizer, types: dict[str, int] | None):
        folder.mkdir()
        self._unk_id, self._types = tokenizer.unk_id, types
        self._vocab_size = tokenizer.vocab_size
        self.counts = np.zeros(tokenizer.vocab_size, np.int64)
        ids = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
        dtypes = {"tokens": ids, "sentences": np.int64, "documents": np.int64, "bytes": np.int64}
        if types is not None:
            dtypes["words"] = np.uint32
        self._arrays = {name: ArrayWriter(folder / f"{name}.npy", dtypes[name]) for name in dtypes}
        self._arrays["sentences"].append([0])
        self._arrays["documents"].append([0])
        self.statistics = dict.fromkeys(("documents", "sentences", "tokens", "bytes", "unknown"), 0)

    def add(self, encoded: Encoded) -> None:
        """Appends documents."""
        statistics = self.statistics
        self._arrays["sentences"].append(statistics["tokens"] + np.cumsum(encoded.sentences))
        self._arrays["documents"].append(statistics["sentences"] + np.cumsum(encoded.documents))
        self._arrays["tokens"].append(encoded.tokens)
        self._arrays["bytes"].append(encoded.bytes)
        is_unknown = encoded.tokens == self._unk_id
        if self._types is not None:
            words = encoded.tokens.astype(np.uint32)
            words[is_unknown] = [
                self._types.setdefault(word, self._vocab_size + len(self._types))
                for word in encoded.unknown_words
            ]
            self._arrays["words"].append(words)
        self.counts += np.bincount(encoded.tokens, minlength=self._vocab_size)
        statistics["documents"] += len(encoded.documents)
        statistics["sentences"] += len(encoded.sentences)
        statistics["tokens"] += len(encoded.tokens)
        statistics["bytes"] += sum(encoded.bytes)
        statistics["unknown"] += int(is_unknown.sum())

    def close(self) -> None:
        """Completes the files."""
        for array in self._arrays.values():
            array.close()
