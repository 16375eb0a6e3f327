"""A prepared corpus on disk and random access to its documents."""

import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.errors import UserError


@dataclass(frozen=True)
class Prepared:
    """A prepared corpus on disk.

    Attributes:
      directory: the folder that holds it.
      tokenizer: the tokenizer that made the ids.
      fingerprint: hexadecimal digest of everything that the contents depend on.
      statistics: for each split that is not empty its `documents`, `sentences`, `tokens`, `bytes` (of UTF-8 text) and
        `unknown` (tokens that are [UNK]).
    """

    directory: Path
    tokenizer: Tokenizer
    fingerprint: str
    statistics: dict[str, dict[str, int]]

    def source(self, split: str) -> "PreparedSource":
        """Random access to the documents of "train", "valid" or "test".

        Raises:
          UserError: if the split was prepared without documents (its fraction is 0).
        """
        if split not in self.statistics:
            raise UserError(
                f'There is no split "{split}" in {self.directory}, only {", ".join(self.statistics)}; set '
                f"config.data.{split}_fraction above 0."
            )
        return PreparedSource(str(self.directory), split, self.fingerprint)


class PreparedSource:
    """Documents of one split by index, for Grain: `len(source)`, `source[i]`.

    A record is a dict: `tokens` int32 [N], `sentence_lengths` int32 [S] (they sum to N), `bytes` int (of the UTF-8
    text), `document` int (number of the document in the whole corpus) and `id` str. The arrays are read-only.
    """

    def __init__(self, directory: str, split: str, fingerprint: str):
        """Args: directory: of the prepared corpus; split: its name; fingerprint: of the prepared corpus."""
        self._directory = directory
        self._split = split
        self._fingerprint = fingerprint

    @functools.cached_property
    def _source(self):
        return tfds.builder_from_directory(os.path.join(self._directory, "dataset")).as_data_source(self._split)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index) -> dict[str, Any]:
        record = self._source[index]
        return {**record, "id": record["id"].decode()}

    def __repr__(self) -> str:
        # Grain compares this when it restores an iterator: equal text, wherever the files lie.
        return f"PreparedSource(fingerprint={self._fingerprint}, split={self._split})"

    def __getstate__(self) -> dict[str, str]:
        return {name: value for name, value in vars(self).items() if name != "_source"}


def load_prepared(directory: str | Path) -> Prepared:
    """Opens a prepared corpus. Raises: UserError: if `directory` is not one."""
    directory = Path(directory)
    try:
        summary = json.loads((directory / "prepared.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{directory} is not a prepared corpus (no prepared.json); delete it and prepare again.") from error
    return Prepared(directory, load_tokenizer(directory / "tokenizer"), summary["fingerprint"], summary["statistics"])
