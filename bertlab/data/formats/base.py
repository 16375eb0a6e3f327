"""The contract of a format."""

import abc
import types
from typing import ClassVar

import grain
import numpy as np

from bertlab.data.buckets import check_buckets
from bertlab.data.prepared import PartOfSource
from bertlab.errors import UserError


class Format(abc.ABC):
    """How documents become batches: everything that other code needs to know about one value of `config.data.format`.

    Attributes:
        name: the value of `config.data.format`; the format's settings are `config.data.NAME`.
        has_pairs: rows are two segments with a label, see `label_field`.
        is_stream: row i of a batch continues row i of the batch before, so a recurrent state can be carried.
        is_word_pairs: positions hold pairs of words with their counts rather than text.
        crosses_documents: a row continues with the next document at the end of one.
        gathers_sentences: its segments are as long as the row allows, so their lengths reveal something about the labels.
        makes: fields that an objective may need and other formats lack.
        data: `config.data`.
        settings: the format's own.
        tokenizer, source: of the text, and the split's documents, by index.
    """

    name: ClassVar[str]
    has_pairs: ClassVar[bool] = False
    is_stream: ClassVar[bool] = False
    is_word_pairs: ClassVar[bool] = False
    crosses_documents: ClassVar[bool] = False
    gathers_sentences: ClassVar[bool] = False
    makes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, data, prepared=None, split: str = "train"):
        """Args: see `format_of`."""
        self.data, self.prepared, self.split = data, prepared, split
        self.settings = types.SimpleNamespace(**data.get(self.name, {}))
        if prepared is not None:
            self.tokenizer = prepared.tokenizer
            self.source = prepared.source(split, keep_unknown=True) if data.get("characters") else prepared.source(split)
            if split == "train" and data.get("unique_tokens"):
                self.source = PartOfSource(self.source, data.unique_tokens)

    @property
    def label_field(self) -> str | None:
        """The field that holds the labels of pairs; None without pairs."""
        return None

    @property
    def row_length(self) -> int:
        """Positions of a row."""
        return self.data.pack_length or self.data.seq_len

    def constant_label(self) -> str:
        """How the labels of all pairs of the split are the same, as a clause; "" if they vary, or without pairs."""
        return ""

    def check(self) -> None:
        """Refuses settings that fit no corpus. Raises: UserError: names the key to change."""
        data, has_padding = self.data, not (self.is_stream or self.is_word_pairs)
        if data.pack_length:
            if not has_padding:
                raise UserError(
                    f"config.data.pack_length={data.pack_length} packs rows that end in padding, but rows of"
                    f" config.data.format={self.name!r} do not; set it to 0"
                )
            if data.pack_length < data.seq_len:
                raise UserError(
                    f"config.data.pack_length={data.pack_length} must be 0 (no packing) or at least"
                    f" config.data.seq_len={data.seq_len}, the length of the rows to pack"
                )
        if data.buckets:
            check_buckets(data)
            if data.pack_length or not has_padding:
                key = "pack_length" if data.pack_length else "format"
                raise UserError(
                    f"config.data.buckets={data.buckets} shorten rows that end in padding, but rows of"
                    f" config.data.{key}={data[key]!r} have little or none; set it to ()"
                )
        if data.get("unique_tokens") and self.is_word_pairs:
            raise UserError(
                f"config.data.unique_tokens={data.unique_tokens} has no effect with config.data.format={self.name!r}, which"
                " counts words in the whole text; set it to 0"
            )
        if data.characters and self.is_word_pairs:
            raise UserError(f"config.data.characters=True has no effect with config.data.format={self.name!r}; set it to False")

    @abc.abstractmethod
    def train(self, index: int, count: int) -> grain.IterDataset:
        """Endless batches, dicts of [B / count, ...] arrays, of part `index` of `count` equal parts of all batches."""

    @abc.abstractmethod
    def evaluate(self, limit: int) -> list[dict[str, np.ndarray]]:
        """Up to `limit` batches (0: all) of the split, always the same; the last is filled with padding."""

    def made_up(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A batch of random rows (`bertlab.train.made_up`) with the fields that only this format has."""
        return batch
