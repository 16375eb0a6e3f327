"""Labelled examples from TFDS datasets, read without TensorFlow."""

from collections.abc import Iterator

import tensorflow_datasets as tfds

from bertlab.data.tfds_corpus import find_builder, open_split
from bertlab.errors import UserError


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
    builder = find_builder(asked, name)
    info = builder.info
    for kind, wanted, known in (("split", (split,), info.splits), ("feature", features, info.features)):
        for missing in (one for one in wanted if one not in known):
            raise UserError(f'{asked}: dataset "{name}" has no {kind} "{missing}"; it has {", ".join(sorted(known))}')
    source = open_split(asked, builder, split)
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
