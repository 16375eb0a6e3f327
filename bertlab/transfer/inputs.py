"""Texts to a model's rows, in the papers' layouts of special tokens.

    pair        prefix A suffix; prefix A separator B suffix: [CLS] A [SEP] B [SEP]
                (Devlin et al. 2018, figure 4)
    delimited   start A extract; start A delimiter B extract, with three new embeddings; a pair
                without an order is read in both (Radford et al. 2018, section 3.3 and figure 1)

Choices, and both orders of a pair, share a row as its documents 1 to n: neither attention nor
recurrence crosses documents.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from bertlab.data.characters import character_ids, character_table
from bertlab.data.tokenizers import Tokenizer
from bertlab.errors import UserError
from bertlab.transfer.batches import Row
from bertlab.transfer.offsets import piece_offsets

LAYOUTS = ("pair", "delimited")
NEW_TOKENS = ("start", "delimiter", "extract")
"""What the delimited layout adds to the vocabulary, after its last id."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """How examples become the rows of one model.

    Attributes:
        name: One of `LAYOUTS`.
        seq_len: Most positions of a text.
        first_piece: A word is read at its first piece; False: at its last.
        characters: The model reads characters.
        double_separator: Two separators between A and B, as in RoBERTa.
        doc_stride, max_query: Of a span task's windows (run_squad.py).
        document_context: A tagged sentence has as much of its document around it as fits (Devlin et
            al. 2019, section 5.3, which does not describe the layout).
        spelling: Tagging rows have the characters of words.
        word_ids: Tagging rows have the numbers of these words, from 1; 0 for others.
        vector_ids: Tagging rows have the rows of words in a table of vectors; 0 for none.
    """

    name: str
    seq_len: int
    first_piece: bool = True
    characters: bool = False
    double_separator: bool = False
    doc_stride: int = 128
    max_query: int = 64
    document_context: bool = False
    spelling: bool = False
    word_ids: Mapping[str, int] | None = None
    vector_ids: Mapping[str, int] | None = None


class Text(NamedTuple):
    """Ids of a text's pieces, and the characters of each if the model reads them."""

    ids: Sequence[int]
    characters: Int[np.ndarray, "T 50"] | None = None


Frame = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Ids before, between and after the texts of a document."""


class Document(NamedTuple):
    """One text or pair with its special ids.

    Attributes:
        begins, ends: Positions of each text's first and last piece.
        cut: How many pieces did not fit, and how many there are.
    """

    tokens: Int[np.ndarray, "T"]
    segments: Int[np.ndarray, "T"]
    characters: Int[np.ndarray, "T 50"] | None
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    cut: tuple[int, int]


class Words(NamedTuple):
    """Words as one document.

    Attributes:
        first, last: Positions of each word's first and last piece; those that did not fit lack.
        read_at: The one of them at which the model's state stands for the word.
        whole: How many words, those around included, are whole in the document.
    """

    document: Document
    first: Int[np.ndarray, "W"]
    last: Int[np.ndarray, "W"]
    read_at: Int[np.ndarray, "W"]
    whole: int


class Inputs:
    """Examples to rows with one tokenizer and layout."""

    def __init__(self, tokenizer: Tokenizer, layout: Layout):
        self.tokenizer, self.layout = tokenizer, layout
        self._table = character_table(tokenizer) if layout.characters else None

    @property
    def frame(self) -> Frame:
        """The frame of a layout's documents."""
        tokenizer = self.tokenizer
        if self.layout.name == "delimited":
            start, delimiter, extract = range(tokenizer.vocab_size, tokenizer.vocab_size + 3)
            return (start,), (delimiter,), (extract,)
        separators = 2 if self.layout.double_separator else 1
        return tokenizer.prefix_ids, (tokenizer.sep_id,) * separators, tokenizer.suffix_ids

    def text(self, text: str) -> Text:
        """The pieces of a text."""
        ids = self.tokenizer.encode(text)
        if self._table is None:
            return Text(ids)
        return Text(ids, character_ids(self.tokenizer.words(text)))

    def located(self, text: str) -> tuple[Int[np.ndarray, "P"], Int[np.ndarray, "P 2"]]:
        """The P pieces of a text, and the characters that each stands for (`piece_offsets`)."""
        if self._table is not None:
            raise UserError(
                "places in a text need subword pieces, and config.data.characters=True reads"
                " characters; choose another model"
            )
        return piece_offsets(text, self.tokenizer)

    def document(self, texts: Sequence[str]) -> Document:
        """A text or a pair, cut to `seq_len`."""
        return self.framed([self.text(text) for text in texts])

    def framed(self, texts: Sequence[Text], frame: Frame | None = None) -> Document:
        """One or two texts between the special ids, cut to `seq_len`.

        A pair in the delimited layout has half of it for each text, unless a frame is given.
        """
        sizes = [len(text.ids) for text in texts]
        total, room = sum(sizes), self.layout.seq_len
        halved = frame is None and self.layout.name == "delimited" and len(texts) == 2
        before, between, after = frame or self.frame
        if halved:
            sizes = [min(size, room // 2 - 2) for size in sizes]
        else:
            special = len(before) + len(after) + len(between) * (len(texts) - 1)
            sizes = shortened(sizes, room - special)
        ids, segments, begins = list(before), [0] * len(before), []
        characters = [self._characters(before)]
        for segment, (text, size) in enumerate(zip(texts, sizes)):
            end = after if segment == len(texts) - 1 else between
            begins.append(len(ids))
            ids += [*text.ids[:size], *end]
            number = segment if self.layout.name == "pair" else 0
            segments += [number] * (size + len(end))
            if self._table is not None:
                characters += [text.characters[:size], self._characters(end)]
        return Document(
            tokens=np.array(ids, np.int32),
            segments=np.array(segments, np.int32),
            characters=None if self._table is None else np.concatenate(characters),
            begins=tuple(begins),
            ends=tuple(begin + size - 1 for begin, size in zip(begins, sizes)),
            cut=(total - sum(sizes), total),
        )

    def words(
        self, words: Sequence[str], before: Sequence[str] = (), after: Sequence[str] = ()
    ) -> Words:
        """Words, cut to `seq_len`, and as many of those before and after them as fit: each side has
        half of the room that the words leave, and what the other does not need."""
        text, starts = self._word_pieces([*before, *words, *after])
        prefix, suffix = self.tokenizer.prefix_ids, self.tokenizer.suffix_ids
        room = self.layout.seq_len - len(prefix) - len(suffix)
        own = starts[len(before) : len(before) + len(words) + 1]
        spare, behind = max(room - (own[-1] - own[0]), 0), len(text.ids) - own[-1]
        begin = own[0] - min(own[0], max(spare // 2, spare - behind))
        kept = slice(begin, begin + room)
        characters = None if text.characters is None else text.characters[kept]
        document = self.framed([Text(text.ids[kept], characters)], (prefix, (), suffix))
        size, own, starts = len(text.ids[kept]), own - begin, starts - begin
        first = own[:-1][own[:-1] < size] + len(prefix)
        last = own[1:][own[1:] <= size] - 1 + len(prefix)
        whole = int(((starts[:-1] >= 0) & (starts[1:] <= size)).sum())
        return Words(document, first, last, first if self.layout.first_piece else last, whole)

    def row(self, documents: Sequence[Document]) -> Row:
        """A row of documents, not padded."""
        lengths = [len(document.tokens) for document in documents]
        row = {
            "tokens": np.concatenate([document.tokens for document in documents]),
            "segments": np.concatenate([document.segments for document in documents]),
            "documents": np.repeat(np.arange(1, len(documents) + 1, dtype=np.int32), lengths),
            "positions": np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
        }
        if self._table is not None:
            row["characters"] = np.concatenate([document.characters for document in documents])
        return row

    def _word_pieces(self, words: Sequence[str]) -> tuple[Text, Int[np.ndarray, "W+1"]]:
        """Pieces of words, and where each word begins in them and the last ends."""
        tokenizer = self.tokenizer
        if self._table is None:
            ids, starts = tokenizer.encode_words(words)
            return Text(ids), np.append(np.asarray(starts, np.int64), len(ids))
        if tokenizer.lowercase:
            words = [word.lower() for word in words]
        encoded = [tokenizer.encode_words([word])[0] for word in words]
        ids = [pieces[0] if len(pieces) == 1 else tokenizer.unk_id for pieces in encoded]
        return Text(ids, character_ids(words)), np.arange(len(ids) + 1)

    def _characters(self, ids: Sequence[int]) -> Int[np.ndarray, "T 50"] | None:
        return None if self._table is None else self._table[list(ids)]


def shortened(sizes: Sequence[int], room: int) -> list[int]:
    """Lengths of one or two texts that fit: the longer one loses a piece at a time; B, if equal.

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
