"""Formats: how documents become rows. To add one, write a function and an entry here."""

from collections.abc import Callable
from typing import NamedTuple

from bertlab.data.formats import pairs, sentences
from bertlab.data.formats.stream import MARGIN, stream


class Format(NamedTuple):
    """A value of `config.data.format`."""

    # (text, `config.data`, tokenizer, generator) -> the rows; None for pairs of words.
    plan: Callable | None
    makes: tuple[str, ...] = ()  # fields that an objective may need but not all formats make
    has_padding: bool = True  # rows may end in padding, so they can be packed or bucketed


_LABELS = tuple(pairs.NEGATIVES.values())

FORMATS: dict[str, Format] = {
    "segment_pair": Format(pairs.segment_pair, makes=_LABELS),
    "sentence_pair": Format(pairs.sentence_pair, makes=_LABELS),
    "full_sentences": Format(sentences.full_sentences),
    "doc_sentences": Format(sentences.doc_sentences),
    "sentences": Format(sentences.sentences),
    "stream": Format(stream, ("next_tokens", "continues", "rate_scale"), has_padding=False),
    "cooccurrence": Format(None, ("contexts", "counts"), has_padding=False),
}


def label_field(data) -> str | None:
    """The field that holds the labels of pairs; None without pairs."""
    if FORMATS[data.format].makes != _LABELS:
        return None
    return pairs.NEGATIVES[data[data.format].negatives]


def row_length(data) -> int:
    """Positions per row."""
    if data.format == "stream":
        return data.seq_len + MARGIN * data.stream.vary_length
    return data.pack_length or data.seq_len
