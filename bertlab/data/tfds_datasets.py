"""TFDS datasets on disk, as corpora and as labelled examples, read without TensorFlow."""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import tensorflow_datasets as tfds

from bertlab.data.documents import LONGEST_DOCUMENT, SECTION, Document, PartedCorpus, make_documents
from bertlab.data.features import FEATURES, require_own_classes
from bertlab.errors import UserError

_EXAMPLES_PER_PART = 1 << 14


def _find_builder(asked: str, name: str) -> tfds.core.DatasetBuilder:
    """The builder of a dataset in $TFDS_DATA_DIR, or at an absolute path; `asked` is the key and value that errors name."""
    try:
        for folder in _folders(name):
            require_own_classes(folder)
        if os.path.isabs(name):
            builder = tfds.builder_from_directory(name)
        else:
            builder = tfds.builder(name, data_dir=os.environ.get("TFDS_DATA_DIR"))
    except (tfds.core.DatasetNotFoundError, OSError, AssertionError) as error:  # TFDS asserts that a version exists
        raise UserError(
            f'{asked}: TFDS finds no dataset "{name}"; check its name and version, or set TFDS_DATA_DIR to its folder.'
        ) from error
    except ValueError as error:
        raise UserError(f'{asked}: dataset "{name}": {error}; use it only through a copy that you trust') from None
    if not builder.info.splits:
        raise UserError(
            f'{asked}: dataset "{name}" is not prepared on disk in {builder.data_dir}; run tfds.builder("{name}", '
            'file_format="array_record").download_and_prepare() first (many datasets need TensorFlow for this step only).'
        )
    return builder


def _folders(name: str) -> list[Path]:
    """Where TFDS may read a dataset's features: the folder at an absolute path, or those of its configs and versions."""
    if os.path.isabs(name):
        return [Path(name)]
    root = (
        Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser() / name.partition("/")[0].partition(":")[0]
    )
    return [file.parent for file in root.glob(f"**/{FEATURES}")]


def _open_split(asked: str, builder: tfds.core.DatasetBuilder, split: str) -> Sequence[dict]:
    """Random access to the examples of a split."""
    info = builder.info
    try:
        return builder.as_data_source(split=split)
    except (ValueError, KeyError) as error:
        raise UserError(
            f'config.data.tfds.split="{split}" is not in {info.full_name}; choose from: {", ".join(sorted(info.splits))}.'
        ) from error
    except NotImplementedError as error:
        raise UserError(
            f"{asked}: dataset {info.full_name} is stored as {info.file_format.value}, and reading that needs TensorFlow; "
            'prepare it again with file_format="array_record".'
        ) from error


class TfdsCorpus(PartedCorpus):
    """A TFDS dataset on disk in a format with random access.

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
        self._builder = _find_builder(asked, folder if os.path.isdir(folder) else name)
        info = self._builder.info
        texts = [key for key, feature in info.features.items() if isinstance(feature, tfds.features.Text)]
        self.field = field or ("text" if "text" in texts else texts[0] if len(texts) == 1 else "")
        if self.field not in texts:
            raise UserError(
                f'config.data.tfds.field="{field}" is not a text field of {info.full_name}; its text fields are: '
                f"{', '.join(texts) or 'none'}."
            )
        self._source = _open_split(asked, self._builder, split)
        self.parts = -(-len(self._source) // _EXAMPLES_PER_PART)
        self.share_read = 0.0

    def fingerprint(self) -> str:
        """Digest of the dataset's full name, split, field and the names, sizes and times of its files."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps([self._builder.info.full_name, self.split, self.field, LONGEST_DOCUMENT, SECTION]).encode())
        for path in sorted(Path(self._builder.data_dir).iterdir()):
            status = path.stat()
            digest.update(f"{path.name}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        return digest.hexdigest()

    def part(self, index: int) -> Iterator[Document]:
        """Streams the documents of part `index`. Raises: UserError: if one is not UTF-8."""
        name = f"{self._builder.info.full_name}/{self.split}"
        start = index * _EXAMPLES_PER_PART
        for number in range(start, min(start + _EXAMPLES_PER_PART, len(self._source))):
            self.share_read = number / len(self._source)
            value = self._source[number][self.field]
            if isinstance(value, bytes):
                try:
                    value = value.decode()
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{name}: example {number}, field {self.field}: byte {error.start} is not UTF-8 text; "
                        "prepare the dataset again from UTF-8 text."
                    ) from error
            yield from make_documents(f"{name}:{number}", value)

    def no_text(self) -> UserError:
        return UserError(
            f'config.data.corpus="{self.spec}": split {self.split} has no text; choose another config.data.tfds.split.'
        )


def read_records(name: str, split: str, features: tuple[str, ...]) -> Iterator[tuple[str, dict]]:
    """("NAME/SPLIT:number", value by feature) of each example: text as str, a class as (name, number), a number as str.

    Args:
        name: what `tfds.builder` takes, such as "glue/cola"; the dataset is looked for in $TFDS_DATA_DIR.
        split: a TFDS split.
        features: those that are wanted.

    Raises:
        UserError: the dataset is not on disk, needs TensorFlow to be read, or has no such split or feature.
    """
    asked = "config.task_data.directory=tfds"
    builder = _find_builder(asked, name)
    info = builder.info
    for kind, wanted, known in (("split", (split,), info.splits), ("feature", features, info.features)):
        for missing in (one for one in wanted if one not in known):
            raise UserError(f'{asked}: dataset "{name}" has no {kind} "{missing}"; it has {", ".join(sorted(known))}')
    source = _open_split(asked, builder, split)
    for number in range(len(source)):
        example = source[number]
        yield f"{info.full_name}/{split}:{number}", {key: _value(example[key], info.features[key]) for key in features}


def _value(value, feature) -> str | tuple[str, int]:
    if isinstance(feature, tfds.features.ClassLabel):
        return feature.int2str(int(value)), int(value)
    if isinstance(value, bytes):
        return value.decode()
    # TFDS widens a float32; its shortest decimal is what the published file has.
    return str(feature.np_dtype(value))
