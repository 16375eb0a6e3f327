"""Documents of sentences, and the contract of a corpus."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from bertlab.data.sentences import split_text

LONGEST_DOCUMENT = 100_000
"""Characters; a longer text is several documents."""
SECTION = 50_000
"""Characters of each of them: 8,000 to 9,000 English words."""


@dataclass(frozen=True)
class Document:
    """One document.

    Attributes:
        id: stable name, by which the document is train, valid or test.
        parts: its sentences, each but the first with the white space before it; none is empty.
        split: train, valid or test where the corpus publishes it.
    """

    id: str
    parts: tuple[str, ...]
    split: str = ""


class Corpus(Protocol):
    """A source of documents."""

    def fingerprint(self) -> str:
        """A digest that changes when the text may have changed."""

    def documents(self) -> Iterator[Document]:
        """Streams the documents, in the same order every time."""


def make_documents(document_id: str, text: str, joins_lines: bool = False) -> Iterator[Document]:
    """The document of a text, or its sections if it is longer than `LONGEST_DOCUMENT`.

    Sections follow each other, end with a sentence and have about `SECTION` characters. Each is a
    document, `ID#1`, `ID#2`, ..., and they may be in different splits: so a corpus of a few books
    has all splits, but held-out sections share author and characters with train.
    """
    parts = split_text(text, joins_lines)
    starts = [0, *itertools.accumulate(len(part.lstrip()) for part in parts)]
    count = round(starts[-1] / SECTION) if starts[-1] > LONGEST_DOCUMENT else 1
    sections: dict[int, list[str]] = {}
    for start, part in zip(starts, parts):
        sections.setdefault(start * count // starts[-1], []).append(part)
    for number, (first, *others) in enumerate(sections.values(), 1):
        name = f"{document_id}#{number}" if len(sections) > 1 else document_id
        yield Document(name, (first.lstrip(), *others))
