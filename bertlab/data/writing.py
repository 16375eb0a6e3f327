"""The arrays of a split, written as its documents come."""

from pathlib import Path

import numpy as np

from bertlab.data.encode import Encoded


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
        self._dtypes = {"tokens": ids, "sentences": "i8", "documents": "i8", "bytes": "i8"}
        if types is not None:
            self._dtypes["words"] = np.uint32
        self._files = {name: (folder / f"{name}.raw").open("wb") for name in self._dtypes}
        self._append("sentences", [0])
        self._append("documents", [0])
        self.statistics = dict.fromkeys(("documents", "sentences", "tokens", "bytes", "unknown"), 0)

    def _append(self, name: str, values) -> None:
        np.asarray(values, self._dtypes[name]).tofile(self._files[name])

    def add(self, encoded: Encoded) -> None:
        """Appends documents."""
        statistics = self.statistics
        self._append("sentences", statistics["tokens"] + np.cumsum(encoded.sentences))
        self._append("documents", statistics["sentences"] + np.cumsum(encoded.documents))
        self._append("tokens", encoded.tokens)
        self._append("bytes", encoded.bytes)
        is_unknown = encoded.tokens == self._unk_id
        if self._types is not None:
            words = encoded.tokens.copy()
            words[is_unknown] = [
                self._types.setdefault(word, self._vocab_size + len(self._types))
                for word in encoded.unknown_words
            ]
            self._append("words", words)
        self.counts += np.bincount(encoded.tokens, minlength=self._vocab_size)
        statistics["documents"] += len(encoded.documents)
        statistics["sentences"] += len(encoded.sentences)
        statistics["tokens"] += len(encoded.tokens)
        statistics["bytes"] += sum(encoded.bytes)
        statistics["unknown"] += int(is_unknown.sum())

    def close(self) -> None:
        """Gives the files their headers."""
        for name, file in self._files.items():
            file.close()
            raw = Path(file.name)
            np.save(raw.with_suffix(".npy"), np.memmap(raw, self._dtypes[name], "r"))
            raw.unlink()
