"""Which documents are train, valid and test.

A document has a position in [0, 1), a hash of its id: valid are the positions below the first
bound, test those below the second, train the others, so a document stays in its split while its id
stays the same. The bounds are the fractions, unless that leaves valid or test without a document:
then it gets the document at the nearest position above.
"""

import hashlib
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bertlab.data.documents import Document

SPLITS = ("train", "valid", "test")


def position(document_id: str) -> float:
    """A hash of the id, in [0, 1]."""
    name = document_id.encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") / 2**64


class Bounds(NamedTuple):
    """The positions at which valid and test end."""

    valid: float
    test: float

    def split(self, document: Document) -> str:
        """The split of a document: as published, or by its position."""
        if document.split:
            return document.split
        found = position(document.id)
        return "valid" if found < self.valid else "test" if found < self.test else "train"


def used_splits(data: Mapping) -> list[str]:
    """Train, and the splits that have a share of the documents or are published."""
    published = data["corpus"].startswith("splits:")
    return [s for s in SPLITS if s == "train" or published or data[f"{s}_fraction"] > 0]


def find_bounds(data: Mapping, positions) -> Bounds:
    """The fractions' bounds, raised where valid or test would be empty, unless that leaves none
    for train.

    Args:
        data: `config.data`.
        positions: [D], those of the documents without a published split.
    """
    plain = Bounds(data["valid_fraction"], data["valid_fraction"] + data["test_fraction"])
    valid, test = plain
    positions = np.asarray(positions)
    others = np.sort(positions[positions >= valid])[:3].tolist()
    if valid and others and (positions >= valid).all():
        valid = math.nextafter(others.pop(0), 2)
    if data["test_fraction"] and others and others[0] >= test:
        test = math.nextafter(others.pop(0), 2)
    return Bounds(valid, max(valid, test)) if others else plain
