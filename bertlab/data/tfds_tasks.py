"""Labelled examples from TFDS datasets, read without TensorFlow."""

import os
from collections.abc import Iterator

import tensorflow_datasets as tfds

from bertlab.errors import UserError


def read_records(name: str, split: str, features: tuple[str, ...]) -> Iterator[tuple[str, dict]]:
    """("NAME/SPLIT:number", value by feature) of each example: text as str, a class as (name, number), a number as str.

    Args:
        name: what `tfds.builder` takes, such as "glue/cola"; the dataset is looked for in $TFDS_DATA_DIR.
        split: a TFDS split.
        features: those that are wanted.

    Raises:
        UserError: the dataset is not on disk, is stored so that TensorFlow is needed, or has no such split or feature.
    """
    try:
        builder = tfds.builder(name, data_dir=os.environ.get("TFDS_DATA_DIR"))
    except (tfds.core.DatasetNotFoundError, OSError, AssertionError) as error:
        raise UserError(
            f"TFDS finds no dataset '{name}'; check TFDS_DATA_DIR, or give the folder of the task's published files as "
            "config.task_data.directory"
        ) from error
    info = builder.info
    if split not in info.splits:
        raise UserError(
            f"TFDS dataset '{name}' has no split {split} in {builder.data_dir}; run tfds.builder('{name}', "
            "file_format='array_record').download_and_prepare() first"
        )
    for feature in features:
        if feature not in info.features:
            raise UserError(f"TFDS dataset '{name}' has no feature '{feature}'; it has {', '.join(sorted(info.features))}")
    try:
        source = builder.as_data_source(split=split)
    except NotImplementedError as error:
        raise UserError(
            f"TFDS dataset '{name}' is stored as {info.file_format.value}, which cannot be read without TensorFlow; prepare it "
            "again with file_format='array_record'"
        ) from error
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
