"""Turns texts into a model's rows, in the layouts of the papers.

    pair        prefix A suffix, prefix A separator B suffix: [CLS] A [SEP] B [SEP] (Devlin et al. 2018, figure 4)
    delimited   start A extract, start A delimiter B extract, with three new embeddings; an unordered pair is shown in both
                orders (Radford et al. 2018, section 3.3 and figure 1)

Choices, and both orders of a pair, share one row as its documents 1 to n. Attention and recurrence never cross documents.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from bertlab.data.characters import PADDING, WORD_LENGTH
from bertlab.data.rows import Row, make_row
from bertlab.data.text_rows import RowEncoder, TextRow
from bertlab.data.tokenizers import Tokenizer
from bertlab.transfer.examples import Example
from bertlab.transfer.word_vectors import WordVectors

LAYOUTS = ("pair", "delimited")
NEW_TOKENS = ("start", "delimiter", "extract")
"""What the delimited layout adds to the vocabulary, after its last id and in this order."""


class Document(NamedTuple):
    """One text or pair with its special ids.

    Attributes:
        begins, ends: positions of each text's first and last piece.
        lost: how many pieces of the texts did not fit, and how many there are.
    """

    tokens: Int[np.ndarray, "T"]
    segments: Int[np.ndarray, "T"]
    characters: Int[np.ndarray, "T 50"] | None
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    lost: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Layout:
    """How texts become the rows of one model.

    Attributes:
        name: one of LAYOUTS.
        seq_len: positions per text; a row of n texts has n times as many.
        first_piece: whether a word is read at its first piece or at its last.
        characters: whether the model reads characters.
        double_separator: put two separators between A and B, as in RoBERTa.
        doc_stride, max_query: for a span task's windows (run_squad.py).
        spelling: tagging rows hold each word's characters.
        words: tagging rows hold the number of each of these words, from 1; 0 for other words.
        vectors: tagging rows hold the row of each word's pretrained vector.
        document_context: tagging rows show as much of a sentence's document around it as they have room for (BERT's "maximal
            document context": Devlin et al. 2019, section 5.3, which does not say how it is laid out).
    """

    name: str
    seq_len: int
    first_piece: bool = True
    characters: bool = False
    double_separator: bool = False
    doc_stride: int = 128
    max_query: int = 64
    spelling: bool = False
    words: Mapping[str, int] | None = None
    vectors: WordVectors | None = None
    document_context: bool = False


class Inputs:
    """Makes rows of texts with one tokenizer and layout."""

    def __init__(self, tokenizer: Tokenizer, layout: Layout):
        """Args: tokenizer: the pretrained run's; layout: the rows' layout."""
        self.tokenizer, self.layout = tokenizer, layout
        self._bare = RowEncoder(tokenizer, layout.characters, special=False)
        self._framed = RowEncoder(tokenizer, layout.characters, room=layout.seq_len)
        start = tokenizer.vocab_size
        self._new = {name: start + i for i, name in enumerate(NEW_TOKENS)}

    def document(self, texts: Sequence[str]) -> Document:
        """One text or a pair between the special ids."""
        return self.joined([self._bare.text(text) for text in texts])

    def words(self, example: Example, first: int = 0) -> TextRow:
        """An example's words, from the `first` on, as one text between the tokenizer's special ids, cut to `seq_len`.

        The words before the first, and with `document_context` the words of their document that are around them, fill the room
        that is left.
        """
        words, before, after = example.words[first:], example.words[:first], ()
        if self.layout.document_context:
            at, most = example.document_at, self.layout.seq_len
            before = (*example.document[max(at - most, 0) : at], *before)
            after = example.document[at + len(example.words) :][:most]
        return self._framed.words(words, before, after)

    def joined(self, parts: Sequence[TextRow]) -> Document:
        """One or two encoded texts between the special ids, cut to `seq_len`."""
        before, between, after = self.frame
        sizes = [len(part.tokens) for part in parts]
        whole = sum(sizes)
        if self.layout.name == "delimited" and len(parts) == 2:
            sizes = [min(size, self.layout.seq_len // 2 - 2) for size in sizes]
        else:
            sizes = shortened(sizes, self.layout.seq_len - len(before) - len(after) - len(between) * (len(parts) - 1))
        ids, segments, characters, begins = [before], [0] * len(before), [self._bare.characters(before)], []
        for segment, (part, size) in enumerate(zip(parts, sizes)):
            end = after if segment == len(parts) - 1 else between
            begins.append(len(segments))
            ids += [part.tokens[:size], end]
            segments += [segment if self.layout.name == "pair" else 0] * (size + len(end))
            if self.layout.characters:
                characters += [part.characters[:size], self._bare.characters(end)]
        return Document(
            tokens=np.concatenate([np.asarray(part, np.int32) for part in ids]),
            segments=np.asarray(segments, np.int32),
            characters=np.concatenate(characters) if self.layout.characters else None,
            ends=tuple(begin + size - 1 for begin, size in zip(begins, sizes)),
            begins=tuple(begins),
            lost=(whole - sum(sizes), whole),
        )

    @property
    def frame(self) -> tuple[tuple[int, ...], ...]:
        """Ids before, between and after the texts of a document."""
        if self.layout.name == "delimited":
            return tuple((self._new[name],) for name in NEW_TOKENS)
        separator = (self.tokenizer.sep_id,) * (2 if self.layout.double_separator else 1)
        return tuple(self.tokenizer.prefix_ids), separator, tuple(self.tokenizer.suffix_ids)

    def packed(self, documents: Sequence[Document], texts: int, number: int) -> Row:
        """A row with room for `texts` documents; `number` is the example's number."""
        length = texts * self.layout.seq_len
        which = np.concatenate([np.full(len(d.tokens), i + 1) for i, d in enumerate(documents)])
        join = lambda name: np.concatenate([getattr(document, name) for document in documents])
        row = make_row(length, self.tokenizer.pad_id, join("tokens"), join("segments"), which, -1, (number, 0))
        if self.layout.characters:
            row["characters"] = np.full((length, WORD_LENGTH), PADDING, np.int32)
            row["characters"][: len(which)] = join("characters")
        return row


def vocabulary_size(config: Mapping[str, Any], tokenizer: Tokenizer) -> int:
    """Size of a run's token embeddings: the tokenizer's vocabulary plus the tokens that a delimited layout adds."""
    return tokenizer.vocab_size + (len(NEW_TOKENS) if transfer_of(config).get("layout") == "delimited" else 0)


def transfer_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `transfer` keys of a run's config; {} for a pretraining."""
    return config.get("transfer") or {}


def shortened(sizes: Sequence[int], room: int) -> list[int]:
    """Lengths of one or two texts that must fit into `room`. The longer text loses one piece at a time; B if both are equal.

    Source: run_classifier.py's `_truncate_seq_pair`.
    """
    if len(sizes) == 1:
        return [min(sizes[0], room)]
    first, second = sizes
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return [first, second]
