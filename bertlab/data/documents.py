"""Documents of sentences, and the contract of a corpus that yields them."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from bertlab.data.sentences import split_sentences
from bertlab.errors import UserError

LONGEST_DOCUMENT = 100_000
"""Characters; a longer text is several documents."""
SECTION = 50_000
"""Characters of each of them: 8,000 to 9,000 English words."""


@dataclass(frozen=True)
class Document:
    """One document.

    Attributes:
      id: stable name, by which the document is assigned to train, valid or test.
      sentences: at least one; none is empty or has surrounding white space.
      spaces: the white space before each sentence but the first; None: one space each.
    """

    id: str
    sentences: tuple[str, ...]
    spaces: tuple[str, ...] | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The text, cut before the white space before each sentence."""
        spaces = " " * (len(self.sentences) - 1) if self.spaces is None else self.spaces
        return tuple(map("".join, zip(("", *spaces), self.sentences, strict=True)))


class Corpus(Protocol):
    """What every corpus offers; `spec` is the string that names it."""

    spec: str
    share_read: float | None
    """Of the text, while `documents()` streams; None if it is not known."""

    def fingerprint(self) -> str:
        """Hexadecimal digest, cheap to compute, that changes when the text may have changed."""

    def documents(self) -> Iterator[Document]:
        """Streams the documents, in the same order every time."""


class PartedCorpus(Corpus):
    """A corpus that several machines can read at once. It can be pickled; `parts` is the number of its parts."""

    parts: int

    def part(self, index: int) -> Iterator[Document]:
        """Streams the documents of part 0, 1, ... Raises: UserError: the text cannot be read."""
        raise NotImplementedError

    def no_text(self) -> UserError:
        """The error for a corpus without documents."""
        raise NotImplementedError

    def documents(self) -> Iterator[Document]:
        """Streams the documents of all parts, in order. Raises: UserError: as `part`, or if there are none."""
        empty = True
        for index in range(self.parts):
            for document in self.part(index):
                empty = False
                yield document
        if empty:
            raise self.no_text()


def make_document(document_id: str, text: str) -> Document | None:
    """Splits `text` into a document's sentences; None if it holds nothing but white space.

    A line end becomes a space. Other white space is kept, and so are blank lines, which separate paragraphs.
    """
    if not text.isascii():
        # JSON can spell half a surrogate pair, which no UTF-8 file or tokenizer can hold.
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    sentences, spaces, at = tuple(split_sentences(text)), [], 0
    for sentence in sentences:
        begin = text.index(sentence, at)
        space = text[at:begin]
        spaces.append(" " if space.count("\n") == 1 else space)
        at = begin + len(sentence)
    return Document(document_id, sentences, tuple(spaces[1:])) if sentences else None


def make_documents(document_id: str, text: str) -> Iterator[Document]:
    """The document of a text, or its sections if it has more than `LONGEST_DOCUMENT` characters; none of white space only.

    Sections follow each other, end with a sentence and have about `SECTION` characters. Each is a document, `ID#1`, `ID#2`,
    ..., and they may be in different splits: a corpus of a few books has all splits, and each split has a part of every book.
    No sentence is in two sections, but held-out sections share author and characters with train. To hold out whole books, keep
    their files out of the corpus and evaluate on them.
    """
    document = make_document(document_id, text)
    if document is None:
        return
    ends = list(itertools.accumulate(map(len, document.sentences)))
    sections = round(ends[-1] / SECTION) if ends[-1] > LONGEST_DOCUMENT else 1
    starts = [0, *ends[:-1]]
    groups = itertools.groupby(range(len(starts)), lambda number: starts[number] * sections // ends[-1])
    found = [list(group) for _, group in groups]
    if len(found) == 1:
        yield document
        return
    for number, (first, *rest) in enumerate(found, 1):
        end = first + 1 + len(rest)
        yield Document(f"{document_id}#{number}", document.sentences[first:end], document.spaces[first : end - 1])
