"""TFDS datasets on disk, read without TensorFlow."""

import os
from collections.abc import Iterator
from pathlib import Path

import tensorflow_datasets as tfds

from bertlab.data.corpora.text import digest_files
from bertlab.data.documents import LONGEST_DOCUMENT, SECTION, Document, make_documents
from bertlab.errors import UserError


class TfdsCorpus:
    """A dataset in a format with random access; each example is a document.

    Args:
        name: what `tfds.builder` takes, such as `ag_news_subset:1.0.0`, looked for in
            $TFDS_DATA_DIR; or the folder of a prepared dataset.
        split: a TFDS split, such as `train` or `train[:10%]`.
        field: the feature that holds the text.
    """

    def __init__(self, name: str, split: str = "train", field: str = "text"):
        folder = Path(name).expanduser().absolute()
        if folder.is_dir():
            builder = tfds.builder_from_directory(folder)
        else:
            builder = tfds.builder(name, data_dir=os.environ.get("TFDS_DATA_DIR"))
        if field not in builder.info.features:
            fields = ", ".join(builder.info.features)
            raise UserError(f'config.data.tfds.field="{field}" is not one of {fields}')
        self._examples = builder.as_data_source(split=split)
        self._field, self._folder = field, Path(builder.data_dir)
        self._name = f"{builder.info.full_name}/{split}"

    def fingerprint(self) -> str:
        files = sorted(path for path in self._folder.iterdir() if path.is_file())
        settings = f"{self._name} {self._field} {LONGEST_DOCUMENT} {SECTION}"
        return digest_files(settings, [path.name for path in files], files)

    def documents(self) -> Iterator[Document]:
        for number in range(len(self._examples)):
            text = self._examples[number][self._field].decode()
            yield from make_documents(f"{self._name}:{number}", text)
