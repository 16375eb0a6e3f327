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
        self._unk_id, self._vocab_size, self._types = tokenizer.unk_id, tokenizer.vocab_size, types
        self.counts = np.zeros(tokenizer.vocab_size, np.int64)
        ids = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
        dtypes = {"tokens": ids, "sentences": np.int64, "documents": np.int64, "bytes": np.int64}
        if types is not None:
            dtypes["words"] = np.uint32
        self._arrays = {name: ArrayWriter(folder / f"{name}.npy", dtypes[name]) for name in dtypes}
        self._arrays["sentences"].append([0])
        self._arrays["documents"].append([0])
        self._bytes = 0

    def add(self, encoded: Encoded) -> None:
        """Appends documents."""
        arrays = self._arrays
        tokens, sentences = arrays["tokens"].length, arrays["sentences"].length - 1
        arrays["sentences"].append(tokens + np.cumsum(encoded.sentences))
        arrays["documents"].append(sentences + np.cumsum(encoded.documents))
        arrays["tokens"].append(encoded.tokens)
        arrays["bytes"].append(encoded.bytes)
        if self._types is not None:
            words = encoded.tokens.copy()
            words[words == self._unk_id] = [
                self._types.setdefault(word, self._vocab_size + len(self._types))
                for word in encoded.unknown_words
            ]
            arrays["words"].append(words)
        self.counts += np.bincount(encoded.tokens, minlength=self._vocab_size)
        self._bytes += sum(encoded.bytes)

    def close(self) -> dict[str, int]:
        """Completes the files; returns the split's statistics."""
        for array in self._arrays.values():
            array.close()
        return {
            "documents": self._arrays["bytes"].length,
            "sentences": self._arrays["sentences"].length - 1,
            "tokens": self._arrays["tokens"].length,
            "bytes": self._bytes,
            "unknown": int(self.counts[self._unk_id]),
        }
