"""Formats: how documents become batches. To add one, write a subclass of `Format` in its own file and add an entry here."""

from bertlab.data.formats.base import Format
from bertlab.data.formats.cooccurrence import Cooccurrence
from bertlab.data.formats.pairs import NEGATIVES, SegmentPair, SentencePair
from bertlab.data.formats.sentences import DocSentences, FullSentences
from bertlab.data.formats.stream import Stream

__all__ = ["FIELDS", "FORMATS", "NEGATIVES", "Format", "format_of", "row_length"]

FORMATS: dict[str, type[Format]] = {
    kind.name: kind for kind in (SegmentPair, FullSentences, SentencePair, DocSentences, Stream, Cooccurrence)
}

FIELDS = frozenset(field for kind in FORMATS.values() for field in kind.makes)
"""All fields that an objective may need and only some formats make."""


def format_of(data, prepared=None, split: str = "train") -> Format:
    """The format that `config.data` names.

    Args:
        data: `config.data`.
        prepared: the corpus (`Prepared`); without it the format only describes its batches.
        split: of the corpus.

    Raises:
        UserError: the corpus lacks the split.
    """
    return FORMATS[data.format](data, prepared, split)


def row_length(data) -> int:
    """The length of the rows of `config.data`, or of a task's data (without a format)."""
    return format_of(data).row_length if "format" in data else data.seq_len
