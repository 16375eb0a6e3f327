"""Which documents are train, valid and test.

A document has a position in [0, 1), a hash of its id: valid are the positions below the first
bound, test those below the second, train the others, so a document stays in its split while its id
does. The bounds are the fractions, unless that leaves valid or test without a document: then
it gets the document of the nearest position above.
"""

import array
import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

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


def read_in_splits(
    corpus: Corpus, data, read: Callable[[Iterator[Document], Bounds], Any]
) -> tuple[Any, Bounds]:
    """The result of `read` on all documents, and the bounds, which are certain only after it.

    `read` first gets those of the fractions. If they leave a split empty, as in a small corpus, it
    reads again.
    """
    bounds = Bounds(data.valid_fraction, data.valid_fraction + data.test_fraction)
    while True:
        positions = array.array("d")

        def documents(positions=positions):
            for document in corpus.documents():
                if not document.split:
                    positions.append(position(document.id))
                yield document

        found = read(documents(), bounds)
        needed = bounds_for(data, np.asarray(positions))
        if needed == bounds:
            return found, bounds
        bounds = needed


def bounds_for(data, positions: np.ndarray) -> Bounds:
    """Those of the fractions, raised where valid or test would be empty; not if that leaves none
    for train.

    Args:
        data: `config.data`.
        positions: [D], of the documents without a published split.
    """
    plain = Bounds(data.valid_fraction, data.valid_fraction + data.test_fraction)
    valid, test = plain.valid, plain.test
    others = np.sort(positions[positions >= valid])[:3].tolist()
    if valid and others and (positions >= valid).all():
        valid = math.nextafter(others.pop(0), 2)
    if data.test_fraction and others and others[0] >= test:
        test = math.nextafter(others.pop(0), 2)
    return Bounds(valid, max(valid, test)) if others else plain
