"""Baselines for code lengths: an n-gram model of the same training text, and gzip.

Both code whole documents: their contexts do not end where a model's row ends.
"""

import gzip
from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bertlab.data.corpora import open_corpus
from bertlab.data.documents import find_bounds, position
from bertlab.data.prepared import Prepared, Split
from bertlab.errors import UserError
from bertlab.evals.ngrams import KneserNey
from bertlab.files import cache_directory, cached_json

VERSION = 1
"""Version of the numbers: a change makes them be computed again."""

ORDER, MOST = 4, 1 << 25
"""The n-grams' order, and how many tokens of the training text are counted."""


def baselines(prepared: Prepared, data: ConfigDict, documents: Sequence[int]) -> dict[str, Any]:
    """For some test documents: `nats` of each one with its end, by the n-gram model; `gzip`, bits
    per byte over all. Computed once for all runs on a corpus.

    gzip reads the test documents alone: its format has no place for the training text.
    """
    content = repr((VERSION, ORDER, MOST, prepared.fingerprint, documents))

    def compute():
        print(f"counting {ORDER}-grams of the training text", flush=True)
        train, test = prepared.split("train"), prepared.split("test")
        ends = train.token_bounds()[1:]
        ends = ends[: max(1, np.searchsorted(ends, MOST, "right"))]
        size, bounds = prepared.tokenizer.vocab_size, test.token_bounds()
        ngrams = KneserNey(train.tokens[: ends[-1]], ends, size, ORDER)
        tokens = [test.tokens[bounds[number] : bounds[number + 1]] for number in documents]
        nats = ngrams.nats(np.concatenate(tokens), np.cumsum([len(ids) for ids in tokens]))
        text = b"".join(test_texts(data, test, documents))
        bits = 8 * len(gzip.compress(text, 9, mtime=0)) / len(text)
        return {"nats": nats.round(2).tolist(), "gzip": bits}

    return cached_json(cache_directory(data.directory) / "baselines", content, compute)


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
