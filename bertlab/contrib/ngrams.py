"""Baselines for code lengths: an n-gram model of the same training text, and gzip.

`config.evaluate.baselines` names them by default: with `config.evaluate.bytes`, an evaluation has
`baseline/4-gram`, its standard error over documents, and `baseline/gzip`, in bits per byte of the
same test documents. Both code whole documents: their contexts do not end where a model's row ends.

- 4-gram: interpolated Kneser-Ney over the same pieces, counted on the training text (its first
  33 M tokens). A model that does not beat it has learned little.
- gzip: `gzip -9` of these documents alone, since its format has no place for the training text. It
  also encodes capitals and characters that a tokenizer drops.
"""

import gzip
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from ml_collections import ConfigDict

from bertlab.data.corpora import open_corpus
from bertlab.data.documents import find_bounds, position
from bertlab.data.prepared import Prepared, Split
from bertlab.errors import UserError
from bertlab.evals.code_length import ratio
from bertlab.files import cache_directory, cached_json

ORDER, MOST = 4, 1 << 25
"""The n-grams' order, and how many tokens of the training text are counted."""


class KneserNey:
    """Interpolated Kneser-Ney n-grams with a discount for each order (Chen and Goodman 1999,
    section 2.7). The end of a document is a token too, with the id `vocab_size`.

    Args:
        tokens: Documents end to end.
        ends: Where each ends.
    """

    def __init__(
        self, tokens: Int[np.ndarray, "T"], ends: Int[np.ndarray, "D"], vocab_size: int, order: int
    ):
        self.size, self.order, self.levels = vocab_size + 1, order, []
        stream = self._stream(tokens, ends)
        ids, found = np.zeros_like(stream), []  # ids: the n-gram that ends at each position
        for _ in range(order):
            keys, first, inverse, counts = np.unique(
                np.roll(ids, 1) * self.size + stream,
                return_index=True,
                return_inverse=True,
                return_counts=True,
            )
            if found:  # shorter n-grams count once for each token before them
                found[-1][1] = np.bincount(ids[first])
            found.append([keys, counts])
            ids = inverse
        contexts = 2  # how many there are, plus a last one for all unseen ones
        for keys, counts in found:
            ones, twos = (counts == 1).sum(), (counts == 2).sum()
            discount = ones / (ones + 2 * twos) if ones else 0.75
            totals = np.bincount(keys // self.size, counts, contexts)
            shared = discount * np.bincount(keys // self.size, minlength=contexts)
            self.levels.append((keys, counts - discount, totals, shared))
            contexts = len(keys) + 1

    def _stream(self, tokens, ends) -> Int[np.ndarray, "N"]:
        """The documents, each followed by enough ends that no context reaches past them; the last
        comes before the first."""
        tokens = np.asarray(tokens, np.int64)
        return np.insert(tokens, np.repeat(ends, self.order - 1), self.size - 1)

    def probabilities(self, stream: Int[np.ndarray, "N"]) -> Float[np.ndarray, "N"]:
        """P of each token, given those before it (before the first: the last)."""
        p, ids = np.full(len(stream), 1 / self.size), np.zeros_like(stream)
        for keys, discounted, totals, shared in self.levels:
            context = np.roll(ids, 1)  # -1 is unseen
            wanted = context * self.size + stream
            at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            seen, total = keys[at] == wanted, totals[context]
            interpolated = np.where(seen, discounted[at], 0.0) + shared[context] * p
            p = np.where(total > 0, interpolated / np.maximum(total, 1.0), p)
            ids = np.where(seen, at, -1)
        return p

    def nats(
        self, tokens: Int[np.ndarray, "T"], ends: Int[np.ndarray, "D"]
    ) -> Float[np.ndarray, "D"]:
        """The code length of each document with its end."""
        nats = -np.log(self.probabilities(self._stream(tokens, ends)))
        lengths, padding = np.diff(ends, prepend=0), self.order - 1
        begins = np.cumsum(lengths + padding) - lengths - padding
        return np.array([nats[b : b + n + 1].sum() for b, n in zip(begins, lengths)])


def baselines(
    prepared: Prepared, data: ConfigDict, documents: Int[np.ndarray, "D"]
) -> dict[str, Any]:
    """The metrics of some test documents; `by_document` has the n-grams' sums of each. Computed
    once for all runs on a corpus."""
    content = repr((ORDER, MOST, prepared.fingerprint, documents.tolist()))

    def compute():
        train, test, name = prepared.split("train"), prepared.split("test"), f"{ORDER}-gram"
        print(f"counting {name}s of the training text", flush=True)
        ends, bounds = train.token_bounds()[1:], test.token_bounds()
        ends = ends[: max(1, np.searchsorted(ends, MOST, "right"))]
        ngrams = KneserNey(train.tokens[: ends[-1]], ends, prepared.tokenizer.vocab_size, ORDER)
        tokens = [test.tokens[bounds[number] : bounds[number + 1]] for number in documents]
        nats = ngrams.nats(np.concatenate(tokens), np.cumsum([len(ids) for ids in tokens])).round(2)
        sizes = test.bytes[documents].astype(float)
        bits, error = ratio(nats / math.log(2), sizes)
        text = b"".join(test_texts(data, test, documents.tolist()))
        return {
            f"baseline/{name}": bits,
            f"standard_error/baseline/{name}": error,
            "baseline/gzip": 8 * len(gzip.compress(text, 9, mtime=0)) / len(text),
            "by_document": {name: {"bytes": sizes.tolist(), "nats": nats.tolist()}},
        }

    return cached_json(cache_directory(data.directory) / "ngrams", content, compute)


def test_texts(data: ConfigDict, split: Split, documents: Sequence[int]) -> list[bytes]:
    """The text of some documents of the test split, from the corpus."""
    corpus, texts, number = open_corpus(data), dict.fromkeys(documents), 0
    positions = [position(document.id) for document in corpus.documents() if not document.split]
    bounds = find_bounds(data, positions)
    for document in corpus.documents():
        if bounds.split(document) == "test" and number < len(split.bytes):
            text = "".join(document.parts).encode()
            if len(text) == split.bytes[number]:  # others have no tokens and were left out
                if number in texts:
                    texts[number] = text
                number += 1
    if number < len(split.bytes):
        raise UserError(f"config.data.corpus={data.corpus} has changed since it was prepared")
    return list(texts.values())
