"""Which documents are train, valid and test.

A document has a position in [0, 1), a hash of its id: valid are the positions below the first
bound, test those below the second, train the others, so a document stays in its split when others
come or go. The bounds are the fractions, unless that leaves valid or test without a document: then
it gets the document of the nearest position above.
"""

import hashlib
import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from bertlab.data.documents import Corpus, Document

SPLITS = ("train", "valid", "test")


def position(document_id: str) -> float:
    """A hash of the id, in [0, 1]."""
    name = document_id.encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") / 2**64


@dataclass(frozen=True)
class Bounds:
    """The positions at which valid and test end."""

    valid: float
    test: float

    def split(self, document: Document) -> str:
        """The split of a document: as published, or by its position."""
        if document.split:
            return document.split
        found = position(document.id)
        return "valid" if found < self.valid else "test" if found < self.test else "train"


def used_splits(data) -> list[str]:
    """The splits whose fraction in `config.data` is above 0, and train."""
    return [name for name in SPLITS if name == "train" or data[f"{name}_fraction"] > 0]


class _Positions:
    """What decides the bounds of the documents that pass."""

    def __init__(self, data):
        self._valid, self._test = data.valid_fraction, data.test_fraction
        self._has_valid = False
        self._lowest: list[float] = []  # three, not valid by fraction: valid, test, train need one

    def watch(self, documents: Iterable[Document]) -> Iterator[Document]:
        for document in documents:
            found = position(document.id)
            if document.split:
                pass
            elif found < self._valid:
                self._has_valid = True
            elif len(self._lowest) < 3 or found < self._lowest[-1]:
                self._lowest = heapq.nsmallest(3, [*self._lowest, found])
            yield document

    def bounds(self) -> Bounds:
        """Those of the fractions too if there are so few documents that none is left for train."""
        plain = Bounds(self._valid, self._valid + self._test)
        valid, test, lowest = plain.valid, plain.test, list(self._lowest)
        if self._valid and not self._has_valid and lowest:
            valid = math.nextafter(lowest.pop(0), 2)
        if self._test and lowest and lowest[0] >= test:
            test = math.nextafter(lowest.pop(0), 2)
        return Bounds(valid, max(valid, test)) if lowest else plain


def read_in_splits(
    corpus: Corpus, data, read: Callable[[Iterator[Document], Bounds], Any]
) -> tuple[Any, Bounds]:
    """The result of `read` on all documents, and the bounds, which are certain only after it.

    `read` first gets those of the fractions. If they leave a split empty, as in a small corpus, it
    reads again.
    """
    bounds = Bounds(data.valid_fraction, data.valid_fraction + data.test_fraction)
    while True:
        positions = _Positions(data)
        found = read(positions.watch(corpus.documents()), bounds)
        if positions.bounds() == bounds:
            return found, bounds
        bounds = positions.bounds()
