"""TFDS datasets on disk, as corpora and as labelled examples, read without TensorFlow."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from bertlab.spine.data.corpora.text import digest_files
from bertlab.spine.data.documents import LONGEST_DOCUMENT, SECTION, Document, make_documents
from bertlab.spine.errors import UserError


class TfdsCorpus:
    """A dataset in a format with random access; an example is a document.

    Args:
        name: what `tfds.builder` takes, such as `ag_news_subset:1.0.0`, looked for in
            $TFDS_DATA_DIR; or the folder of a prepared dataset.
        split: a TFDS split, such as `train` or `train[:10%]`.
        field: the feature that has the text.
    """

    def __init__(self, name: str, split: str = "train", field: str = "text"):
        builder = _builder(name)
        if field not in builder.info.features:
            fields = ", ".join(builder.info.features)
            raise UserError(f'config.data.tfds.field="{field}" is not one of {fields}')
        self._field, self._folder = field, Path(builder.data_dir)
        self._name = f"{builder.info.full_name}/{split}"
        self._examples = _open_split(builder, split, "config.data.tfds.split")

    def fingerprint(self) -> str:
        """Digest of the files, the split and the field."""
        files = sorted(path for path in self._folder.iterdir() if path.is_file())
        settings = f"{self._name} {self._field} {LONGEST_DOCUMENT} {SECTION}"
        return digest_files(settings, [path.name for path in files], files)

    def documents(self) -> Iterator[Document]:
        """Streams the documents in the order of the examples."""
        for number in range(len(self._examples)):
            text = self._examples[number][self._field].decode()
            yield from make_documents(f"{self._name}:{number}", text)


def read_records(name: str, split: str, features: Sequence[str]) -> Iterator[tuple[str, dict]]:
    """("NAME/SPLIT:number", value by feature) of each example of a dataset.

    Text is str, a class is (name, number), and a number str.
    """
    builder = _builder(name)
    examples = _open_split(builder, split, f"config.task_data.directory=tfds, {name}")
    for number in range(len(examples)):
        example = examples[number]
        values = {key: _value(example[key], builder.info.features[key]) for key in features}
        yield f"{builder.info.full_name}/{split}:{number}", values


def _value(value, feature) -> str | tuple[str, int]:
    if isinstance(feature, tfds.features.ClassLabel):
        return feature.int2str(int(value)), int(value)
    if isinstance(value, bytes):
        return value.decode()
    # TFDS widens a float32; its shortest decimal is what the published file has.
    return str(feature.np_dtype(value))


def _builder(name: str) -> tfds.core.DatasetBuilder:
    folder = Path(name).expanduser().absolute()
    try:
        if folder.is_dir():
            return tfds.builder_from_directory(folder)
        return tfds.builder(name, data_dir=os.environ.get("TFDS_DATA_DIR"))
    except (tfds.core.DatasetNotFoundError, AssertionError) as error:  # no such version: an assert
        raise UserError(
            f'TFDS finds no dataset "{name}"; check its name, or set TFDS_DATA_DIR to its folder'
        ) from error


def _open_split(
    builder: tfds.core.DatasetBuilder, split: str, key: str
) -> Sequence[dict[str, Any]]:
    if not builder.info.splits:
        raise UserError(
            f'dataset "{builder.info.full_name}" is not prepared in {builder.data_dir}; run'
            f' tfds.builder("{builder.info.name}", file_format="array_record")'
            ".download_and_prepare() first"
        )
    try:
        return builder.as_data_source(split=split)
    except (ValueError, KeyError) as error:
        names = ", ".join(sorted(builder.info.splits))
        raise UserError(f'{key}: "{split}" is not one of {names}') from error
    except NotImplementedError as error:
        raise UserError(
            f"dataset {builder.info.full_name} is stored as {builder.info.file_format.value}, which"
            ' needs TensorFlow; prepare it again with file_format="array_record"'
        ) from error
