"""Corpora: where documents of text come from.

A corpus is named by one string: `pydocs`, `text:GLOB`, `tfds:NAME` or `synthetic`. It yields documents of sentences, the
same ones in the same order every time, without holding the text in memory, and has a fingerprint that changes when
its text may have changed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from bertlab.data.sentences import split_sentences
from bertlab.errors import UserError


@dataclass(frozen=True)
class Document:
    """One document.

    Attributes:
      id: stable name, by which the document is assigned to train, valid or test.
      sentences: at least one; none is empty or has surrounding white space.
    """

    id: str
    sentences: tuple[str, ...]


class Corpus(Protocol):
    """What every corpus offers; `spec` is the string that names it."""

    spec: str

    def fingerprint(self) -> str:
        """Hexadecimal digest, cheap to compute, that changes when the text may have changed."""

    def documents(self) -> Iterator[Document]:
        """Streams the documents, in the same order every time."""


class PartedCorpus(Corpus, Protocol):
    """A corpus that several machines can read at once; it can be pickled, and `parts` is the number of its parts."""

    parts: int

    def part(self, index: int) -> Iterator[Document]:
        """Streams the documents of part 0, 1, ...; one part after the other they are `documents()`."""

    def no_text(self) -> UserError:
        """The error for a corpus without documents."""


def open_corpus(spec: str, **options) -> Corpus:
    """Opens the corpus that `spec` names.

    Args:
      spec: `pydocs` (this Python installation's documentation), `text:GLOB[,GLOB...]`, `tfds:NAME` or `synthetic`.
      **options: `workers` for pydocs, `split` and `field` for tfds, the language's options for synthetic.

    Raises:
      UserError: if the name is unknown or what it names is not there.
    """
    kind, _, name = spec.partition(":")
    if kind == "text" and name:
        from bertlab.data import text_corpus

        return text_corpus.TextCorpus(spec)
    if kind == "tfds" and name:
        from bertlab.data import tfds_corpus

        return tfds_corpus.TfdsCorpus(spec, **options)
    if spec == "pydocs":
        from bertlab.data import pydocs

        return pydocs.PydocsCorpus(**options)
    if spec == "synthetic":
        from bertlab.data import synthetic

        return synthetic.SyntheticCorpus(**options)
    raise UserError(f'config.data.corpus="{spec}" names no corpus: use pydocs, text:GLOB, tfds:NAME or synthetic.')


def documents_of_parts(corpus: PartedCorpus) -> Iterator[Document]:
    """What `documents` yields: one part after the other. Raises: UserError: `no_text`, if there is none in any."""
    empty = True
    for index in range(corpus.parts):
        for document in corpus.part(index):
            empty = False
            yield document
    if empty:
        raise corpus.no_text()


def make_document(document_id: str, text: str) -> Document | None:
    """Splits `text` into a document's sentences; None if it holds nothing but white space."""
    if not text.isascii():
        # JSON can spell half a surrogate pair, which no UTF-8 file or tokenizer can hold.
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    sentences = tuple(split_sentences(text))
    return Document(document_id, sentences) if sentences else None
