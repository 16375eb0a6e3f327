"""Corpora that are TFDS datasets."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import tensorflow_datasets as tfds

from bertlab.data.documents import Document, PartedCorpus, make_document
from bertlab.errors import UserError

_EXAMPLES_PER_PART = 1 << 14


def find_builder(asked: str, name: str) -> tfds.core.DatasetBuilder:
    """The builder of a dataset that is on disk.

    Args:
      asked: the config's key and value, with which errors begin.
      name: what `tfds.builder` takes, looked for in $TFDS_DATA_DIR, or an absolute path.

    Raises:
      UserError: there is no such dataset, or it is not prepared.
    """
    try:
        if os.path.isabs(name):
            builder = tfds.builder_from_directory(name)
        else:
            builder = tfds.builder(name, data_dir=os.environ.get("TFDS_DATA_DIR"))
    except (tfds.core.DatasetNotFoundError, OSError, AssertionError) as error:  # TFDS asserts that a version exists
        raise UserError(
            f'{asked}: TFDS finds no dataset "{name}"; check its name and version, or set TFDS_DATA_DIR to the folder that '
            "holds it."
        ) from error
    if not builder.info.splits:
        raise UserError(
            f'{asked}: dataset "{name}" is not prepared on disk in {builder.data_dir}; run tfds.builder("{name}", '
            'file_format="array_record").download_and_prepare() first (many datasets need TensorFlow for this step only).'
        )
    return builder


def open_split(asked: str, builder: tfds.core.DatasetBuilder, split: str) -> Sequence[dict]:
    """Random access to the examples of a split.

    Raises:
      UserError: the dataset's format needs TensorFlow, or it has no such split.
    """
    info = builder.info
    try:
        return builder.as_data_source(split=split)
    except (ValueError, KeyError) as error:
        raise UserError(
            f'config.data.tfds.split="{split}" is no split of {info.full_name}; it has: {", ".join(sorted(info.splits))}.'
        ) from error
    except NotImplementedError as error:
        raise UserError(
            f"{asked}: dataset {info.full_name} is stored as {info.file_format.value}, which needs TensorFlow to be read; "
            'prepare it again with file_format="array_record".'
        ) from error


class TfdsCorpus(PartedCorpus):
    """A TFDS dataset on disk in a format with random access, read without TensorFlow.

    An example is a document. Its id is the dataset's name, split and the example's number. A part (see `PartedCorpus`) is
    16,384 examples.
    """

    def __init__(self, spec: str, split: str = "train", field: str = ""):
        """Opens the dataset.

        Args:
          spec: `tfds:NAME`, where NAME is what `tfds.builder` takes, such as `ag_news_subset:1.0.0`, or the path of a
            folder that holds a prepared dataset.
          split: a TFDS split, such as `train` or `train[:10%]`.
          field: the feature that holds the text; "" means `text`, or the only text feature.

        Raises:
          UserError: if the dataset is not on disk, or has no such split or field.
        """
        self.spec = spec
        self.split = split
        name, asked = spec.removeprefix("tfds:"), f'config.data.corpus="{spec}"'
        folder = os.path.abspath(os.path.expanduser(name))
        self._builder = find_builder(asked, folder if os.path.isdir(folder) else name)
        info = self._builder.info
        texts = [key for key, feature in info.features.items() if isinstance(feature, tfds.features.Text)]
        self.field = field or ("text" if "text" in texts else texts[0] if len(texts) == 1 else "")
        if self.field not in texts:
            raise UserError(
                f'config.data.tfds.field="{field}" is no text field of {info.full_name}; its text fields are: '
                f"{', '.join(texts) or 'none'}."
            )
        self._source = open_split(asked, self._builder, split)
        self.parts = -(-len(self._source) // _EXAMPLES_PER_PART)

    def fingerprint(self) -> str:
        """Digest of the dataset's full name, split, field and the names, sizes and times of its files."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps([self._builder.info.full_name, self.split, self.field]).encode())
        for path in sorted(Path(self._builder.data_dir).iterdir()):
            status = path.stat()
            digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        return digest.hexdigest()

    def part(self, index: int) -> Iterator[Document]:
        """Streams the documents of part `index`. Raises: UserError: if one is not UTF-8."""
        name = f"{self._builder.info.full_name}/{self.split}"
        start = index * _EXAMPLES_PER_PART
        for number in range(start, min(start + _EXAMPLES_PER_PART, len(self._source))):
            value = self._source[number][self.field]
            if isinstance(value, bytes):
                try:
                    value = value.decode()
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{name}: example {number}, field {self.field}: byte {error.start} is not UTF-8 text; "
                        "prepare the dataset again from UTF-8 text."
                    ) from error
            document = make_document(f"{name}:{number}", value)
            if document is not None:
                yield document

    def no_text(self) -> UserError:
        return UserError(
            f'config.data.corpus="{self.spec}": split {self.split} holds no text; choose another config.data.tfds.split.'
        )
