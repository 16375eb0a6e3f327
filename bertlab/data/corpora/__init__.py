"""The corpora that `config.data.corpus` may name."""

import hashlib

from bertlab.data.corpora.pydocs import PydocsCorpus
from bertlab.data.corpora.synthetic import SyntheticCorpus
from bertlab.data.corpora.text import PublishedSplits, TextCorpus, TfdsCorpus
from bertlab.errors import UserError


def open_corpus(data):
    """The corpus of `config.data`: an object with two methods.

    `fingerprint()` is a digest that changes when the text may have changed; `documents()` yields
    every `Document`, in the same order every time.
    """
    return Distinct(_find(data)) if data.get("drop_duplicates") else _find(data)


class Distinct:
    """A corpus without the documents whose text occurred before."""

    def __init__(self, corpus):
        self._corpus = corpus

    def fingerprint(self) -> str:
        return f"distinct {self._corpus.fingerprint()}"

    def documents(self):
        seen = set()
        for document in self._corpus.documents():
            text = hashlib.blake2b("".join(document.parts).encode(), digest_size=16).digest()
            if text not in seen:
                seen.add(text)
                yield document


def _find(data):
    kind, _, name = data.corpus.partition(":")
    if kind in ("text", "files") and name:
        return TextCorpus(name, one_document_a_file=kind == "files")
    if kind == "splits" and name:
        return PublishedSplits(name)
    if kind == "tfds" and name:
        return TfdsCorpus(name, data.tfds.split, data.tfds.field)
    if data.corpus == "pydocs":
        return PydocsCorpus(data.directory)
    if data.corpus == "synthetic":
        return SyntheticCorpus(**data.synthetic)
    raise UserError(
        f'config.data.corpus="{data.corpus}" is not a corpus; use pydocs, text:GLOB, files:GLOB,'
        " splits:FOLDER, tfds:NAME or synthetic"
    )
