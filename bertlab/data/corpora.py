"""Opens the corpus that one string names: `pydocs`, `text:GLOB`, `tfds:NAME` or `synthetic`.

A corpus yields the same documents of sentences in the same order every time, without holding the text in memory. Its
fingerprint changes when its text may have changed.
"""

from bertlab.data.documents import Corpus
from bertlab.data.pydocs import PydocsCorpus
from bertlab.data.synthetic import SyntheticCorpus
from bertlab.data.text_corpus import TextCorpus
from bertlab.data.tfds_corpus import TfdsCorpus
from bertlab.errors import UserError


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
        return TextCorpus(spec)
    if kind == "tfds" and name:
        return TfdsCorpus(spec, **options)
    if spec == "pydocs":
        return PydocsCorpus(**options)
    if spec == "synthetic":
        return SyntheticCorpus(**options)
    raise UserError(f'config.data.corpus="{spec}" is not a corpus; use pydocs, text:GLOB, tfds:NAME or synthetic.')
