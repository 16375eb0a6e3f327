"""Opens the corpus that one string names: `pydocs`, `text:GLOB`, `files:GLOB`, `splits:FOLDER`, `tfds:NAME` or `synthetic`.

A corpus yields the same documents in the same order every time, without holding the text in memory. Its fingerprint changes
when its text may have changed.
"""

from collections.abc import Mapping

from bertlab.data.documents import Corpus
from bertlab.data.published_splits import PublishedSplits
from bertlab.data.pydocs import PydocsCorpus
from bertlab.data.synthetic import SyntheticCorpus
from bertlab.data.text_corpus import TextCorpus
from bertlab.data.tfds_datasets import TfdsCorpus
from bertlab.errors import UserError

NAMED = {"text": TextCorpus, "files": TextCorpus, "splits": PublishedSplits, "tfds": TfdsCorpus}
"""Corpora whose string goes on with a name: `text:GLOB`."""
UNNAMED = {"pydocs": PydocsCorpus, "synthetic": SyntheticCorpus}


def open_corpus(spec: str, **options) -> Corpus:
    """Opens the corpus that `spec` names.

    Args:
      spec: `pydocs` (the documentation of Python's standard library), `text:GLOB[,GLOB...]`, `files:GLOB[,GLOB...]`,
        `splits:FOLDER` (published files of train, valid and test), `tfds:NAME` or `synthetic`.
      **options: `directory` (the cache) for pydocs, `split` and `field` for tfds, the language's options for synthetic.

    Raises:
      UserError: if the corpus is unknown or not there.
    """
    kind, _, name = spec.partition(":")
    if name and kind in NAMED:
        return NAMED[kind](spec, **options)
    if spec in UNNAMED:
        return UNNAMED[spec](**options)
    raise UserError(
        f'config.data.corpus="{spec}" is not a corpus; use pydocs, text:GLOB, splits:FOLDER, tfds:NAME or synthetic.'
    )


def corpus_of(data: Mapping) -> Corpus:
    """Opens the corpus of `config.data` with its options.

    Raises:
      UserError: as `open_corpus`; or the corpus has published splits, and a fraction leaves one of them out.
    """
    kind = data["corpus"].partition(":")[0]
    left_out = [name for name in ("valid_fraction", "test_fraction") if kind == "splits" and not data[name]]
    if left_out:
        raise UserError(f"config.data.{left_out[0]}=0 leaves a split out, and {data['corpus']} publishes it; set it above 0")
    of_group = {name: data.get(name, {}) for name in ("tfds", "synthetic")}
    return open_corpus(data["corpus"], **({"pydocs": {"directory": data["directory"]}} | of_group).get(kind, {}))
