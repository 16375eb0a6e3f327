"""Which documents are train, valid and test.

A document has a position in [0, 1), a hash of its id. valid are the positions below the first bound, test those below the
second, train the others, so a document stays in its split when others come or go. The bounds are the fractions, unless that
leaves valid or test without a document: then it gets the document of the nearest position above.

A document whose corpus publishes its splits has its split in its id (`published_id`) and no position.
"""

import hashlib
import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bertlab.data.documents import Corpus, Document
from bertlab.errors import UserError

SPLITS = ("train", "valid", "test")

_PUBLISHED = "published split "

# valid and test may need a document each, and train needs one.
_NEAREST = 3


@dataclass(frozen=True)
class Splits:
    """The bounds of the splits.

    Attributes:
      valid: valid are the positions below it.
      test: test are the positions below it that are not valid.
    """

    valid: float
    test: float

    def of(self, document_id: str) -> str:
        """The split of a document."""
        if published := published_split(document_id):
            return published
        position = position_of(document_id)
        return "valid" if position < self.valid else "test" if position < self.test else "train"


def published_id(split: str, name: str) -> str:
    """The id of a document that its corpus puts into a split."""
    return f"{_PUBLISHED}{split}: {name}"


def published_split(document_id: str) -> str:
    """The split that an id of `published_id` says; "" for other ids."""
    return document_id.removeprefix(_PUBLISHED).partition(":")[0] if document_id.startswith(_PUBLISHED) else ""


def position_of(document_id: str) -> float:
    """A hash of the id, in [0, 1]."""
    digest = hashlib.blake2b(document_id.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def check_fractions(fractions: Mapping) -> None:
    """Raises: UserError: `valid_fraction` and `test_fraction` leave nothing for training."""
    valid, test = fractions["valid_fraction"], fractions["test_fraction"]
    if valid + test >= 1:
        raise UserError(
            f"config.data.valid_fraction={valid} and config.data.test_fraction={test} leave no documents for training; make"
            " their sum less than 1"
        )


def named_splits(fractions: Mapping) -> list[str]:
    """The splits that are not left out, of `valid_fraction` and `test_fraction`."""
    return [split for split in SPLITS if split == "train" or fractions[f"{split}_fraction"] > 0]


def splits_by_fraction(fractions: Mapping) -> Splits:
    """The bounds of a corpus that has documents for each split."""
    valid = fractions["valid_fraction"]
    return Splits(valid, valid + fractions["test_fraction"])


class Positions:
    """Collects the data for the bounds document by document; you can merge those of several parts of a corpus.

    Attributes:
      valid: whether a position is below `valid_fraction`.
      nearest: the three lowest positions that are not.
    """

    def __init__(self, fractions: Mapping):
        """Args: fractions: `valid_fraction` and `test_fraction`."""
        self._fractions = {name: fractions[name] for name in ("valid_fraction", "test_fraction")}
        self.valid, self.nearest = False, []

    def add(self, document_id: str) -> None:
        """Adds a document; one in a published split changes no bound."""
        if published_split(document_id):
            return
        position = position_of(document_id)
        if position < self._fractions["valid_fraction"]:
            self.valid = True
        elif len(self.nearest) < _NEAREST or position < self.nearest[-1]:
            self.nearest = heapq.nsmallest(_NEAREST, [*self.nearest, position])

    def merge(self, valid: bool, nearest: list[float]) -> None:
        """Adds the documents of another one, given by its attributes."""
        self.valid |= valid
        self.nearest = heapq.nsmallest(_NEAREST, self.nearest + nearest)

    def splits(self) -> Splits:
        """The bounds: those of the fractions too if so few documents leave none for training."""
        plain = splits_by_fraction(self._fractions)
        valid, test, rest = plain.valid, plain.test, list(self.nearest)
        if self._fractions["valid_fraction"] and not self.valid and rest:
            valid = math.nextafter(rest.pop(0), 2)
        if self._fractions["test_fraction"] and rest and rest[0] >= test:
            test = math.nextafter(rest.pop(0), 2)
        return Splits(valid, max(valid, test)) if rest else plain


def splits_of(document_ids: Iterable[str], fractions: Mapping) -> Splits:
    """The bounds for these documents, by `valid_fraction` and `test_fraction`."""
    positions = Positions(fractions)
    for document_id in document_ids:
        positions.add(document_id)
    return positions.splits()


def read_in_splits(corpus: Corpus, fractions: Mapping, read: Callable[[Iterator[Document], Splits], Any]) -> tuple[Any, Splits]:
    """The result of `read` on all documents, and the splits. The splits are known only after reading all documents.

    So `read` first gets the splits by fraction. If they leave a split empty (only in a small corpus), it reads again.
    """
    splits = splits_by_fraction(fractions)
    while True:
        positions = Positions(fractions)
        found = read(_watched(corpus.documents(), positions), splits)
        if positions.splits() == splits:
            return found, splits
        splits = positions.splits()


def _watched(documents: Iterable[Document], positions: Positions) -> Iterator[Document]:
    for document in documents:
        positions.add(document.id)
        yield document


def require_documents(documents: Mapping[str, int], corpus: Corpus) -> None:
    """Raises: UserError: a split has none; `documents` are their numbers by split."""
    total = sum(documents.values())
    if not total:
        raise UserError(f'config.data.corpus="{corpus.spec}" is empty: no document has a token; choose another corpus.')
    for split, number in documents.items():
        if not number:
            raise UserError(
                f'config.data.corpus="{corpus.spec}" has {total} document(s), and none is in the {split} '
                "split: use a corpus of more documents, or other values of config.data.valid_fraction and "
                "config.data.test_fraction (0 omits a split)."
            )
