"""The corpora that `config.data.corpus` may name."""

from bertlab.data.corpora.pydocs import PydocsCorpus
from bertlab.data.corpora.synthetic import SyntheticCorpus
from bertlab.data.corpora.text import PublishedSplits, TextCorpus, TfdsCorpus
from bertlab.errors import UserError


def open_corpus(data):
    """The corpus of `config.data`: an object with two methods.

    `fingerprint()` is a digest that changes when the text may have changed; `documents()` yields
    every `Document`, in the same order every time.
    """
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
