"""Texts to a model's rows, in the papers' layouts of special tokens.

pair        prefix A suffix; prefix A separator B suffix: [CLS] A [SEP] B [SEP]
            (Devlin et al. 2018, figure 4)
delimited   start A extract; start A delimiter B extract, with three new embeddings; a pair
            without an order is read in both (Radford et al. 2018, section 3.3 and figure 1)
"""

import dataclasses
import functools
import unicodedata
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt16

from bertlab.data.characters import character_ids, character_table
from bertlab.data.tokenizers import Tokenizer
from bertlab.errors import UserError
from bertlab.transfer.batches import Row

# What the delimited layout adds to the vocabulary, after its last id.
NEW_TOKENS = ("start", "delimiter", "extract")

Pieces = Int[np.ndarray, "T n"]
"""The id of each piece, and its 50 characters if the model reads them: n is 1 or 51."""

Frame = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""Ids before, between and after the texts of a document."""


class Document(NamedTuple):
    """One text or pair with its special ids."""

    pieces: Pieces
    segments: Int[np.ndarray, "T"]
    begins: list[int]  # positions of each text's first piece
    ends: list[int]  # and of its last
    cut: tuple[int, int]  # how many pieces did not fit, and how many there are


class Words(NamedTuple):
    """Words as one document; those that did not fit have no positions."""

    document: Document
    first: Int[np.ndarray, "W"]  # positions of each word's first piece
    last: Int[np.ndarray, "W"]  # and of its last
    read_at: Int[np.ndarray, "W"]  # whichever of them holds the state that stands for the word
    whole: int  # how many words, including those around, are whole in the document


@dataclasses.dataclass(frozen=True)
class Inputs:
    """How examples become the rows of one model."""

    tokenizer: Tokenizer
    layout: str  # pair, delimited
    seq_len: int  # positions per text, at most
    first_piece: bool = True  # a word is read at its first piece; False: at its last
    characters: bool = False  # the model reads characters
    double_separator: bool = False  # two separators between A and B, as in RoBERTa
    doc_stride: int = 128  # a span task's windows (run_squad.py)
    max_query: int = 64
    # A tagged sentence gets as much of its document as fits (Devlin et al. 2019, section 5.3).
    document_context: bool = False
    spelling: bool = False  # tagging rows hold the characters of words
    # Tagging rows hold these numbers for words, 0 for others.
    word_ids: Mapping[str, int] = dataclasses.field(default_factory=dict)
    vector_ids: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def _characters(self) -> UInt16[np.ndarray, "V 50"]:
        return character_table(self.tokenizer)

    @property
    def frame(self) -> Frame:
        tokenizer = self.tokenizer
        if self.layout == "delimited":
            start, delimiter, extract = range(tokenizer.vocab_size, tokenizer.vocab_size + 3)
            return (start,), (delimiter,), (extract,)
        separators = 2 if self.double_separator else 1
        return tokenizer.prefix_ids, (tokenizer.sep_id,) * separators, tokenizer.suffix_ids

    def pieces(self, ids: Sequence[int], words: Sequence[str] | None = None) -> Pieces:
        """Pieces by their ids; `words`: what each one spells, if it is not in the vocabulary."""
        found = np.array(ids, np.int32).reshape(-1, 1)
        if not self.characters:
            return found
        characters = self._characters[found[:, 0]] if words is None else character_ids(words)
        return np.concatenate([found, characters], axis=1, dtype=np.int32)

    def located(self, text: str) -> tuple[Pieces, Int[np.ndarray, "T 2"]]:
        """The pieces of a text, and the characters that each stands for (`piece_offsets`)."""
        if self.characters:
            raise UserError("config.data.characters=True has no pieces at which a text is marked")
        ids, offsets = piece_offsets(text, self.tokenizer)
        return self.pieces(ids), offsets

    def document(self, texts: Sequence[str]) -> Document:
        """A text or a pair, cut to `seq_len`."""
        encode, words = self.tokenizer.encode, [None] * len(texts)
        if self.characters:
            words = [self.tokenizer.words(text) for text in texts]
        return self.framed([self.pieces(encode(text), own) for text, own in zip(texts, words)])

    def framed(self, texts: Sequence[Pieces], frame: Frame | None = None) -> Document:
        """One or two texts between the special ids, cut to `seq_len`. A pair in the delimited
        layout gets half of it for each text, unless a frame is given."""
        before, between, after = map(self.pieces, frame or self.frame)
        sizes, room = [*map(len, texts)], self.seq_len
        total = sum(sizes)
        if frame is None and self.layout == "delimited" and len(texts) == 2:
            sizes = [min(size, room // 2 - 2) for size in sizes]
        else:
            room -= len(before) + len(after) + len(between) * (len(texts) - 1)
            sizes = shortened(sizes, room)
        parts, begins, ends = [before], [], []
        for text, size in zip(texts, sizes):
            parts += [between, text[:size]] if begins else [text[:size]]
            ends.append(sum(map(len, parts)) - 1)
            begins.append(ends[-1] - size + 1)
        pieces = np.concatenate([*parts, after])
        segments = np.zeros(len(pieces), np.int32)
        if self.layout == "pair":
            segments[begins[-1] :] = len(texts) - 1
        return Document(pieces, segments, begins, ends, (total - sum(sizes), total))

    def words(
        self, words: Sequence[str], before: Sequence[str] = (), after: Sequence[str] = ()
    ) -> Words:
        """Words, cut to `seq_len`, and as many of those before and after them as fit: each side
        gets half of the space that the words leave, plus what the other does not need."""
        pieces, starts = self._word_pieces([*before, *words, *after])
        prefix, suffix = self.tokenizer.prefix_ids, self.tokenizer.suffix_ids
        room = self.seq_len - len(prefix) - len(suffix)
        own = starts[len(before) : len(before) + len(words) + 1]
        spare, behind = max(room - (own[-1] - own[0]), 0), len(pieces) - own[-1]
        begin = own[0] - min(own[0], max(spare // 2, spare - behind))
        pieces = pieces[begin : begin + room]
        document = self.framed([pieces], (prefix, (), suffix))
        size, own, starts = len(pieces), own - begin, starts - begin
        first = own[:-1][own[:-1] < size] + len(prefix)
        last = own[1:][own[1:] <= size] - 1 + len(prefix)
        whole = int(((starts[:-1] >= 0) & (starts[1:] <= size)).sum())
        return Words(document, first, last, first if self.first_piece else last, whole)

    def row(self, documents: Sequence[Document]) -> Row:
        """A row of documents, not padded."""
        pieces = np.concatenate([document.pieces for document in documents])
        lengths = [len(document.pieces) for document in documents]
        row = {
            "tokens": pieces[:, 0],
            "segments": np.concatenate([document.segments for document in documents]),
            "documents": np.repeat(np.arange(1, len(documents) + 1, dtype=np.int32), lengths),
            "positions": np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
        }
        if self.characters:
            row["characters"] = pieces[:, 1:].astype(np.uint16)
        return row

    def _word_pieces(self, words: Sequence[str]) -> tuple[Pieces, Int[np.ndarray, "W+1"]]:
        """Pieces of words, and where each word begins in them and the last ends."""
        tokenizer = self.tokenizer
        if not self.characters:
            ids, starts = tokenizer.encode_words(words)
            return self.pieces(ids), np.append(np.asarray(starts, np.int64), len(ids))
        if tokenizer.lowercase:
            words = [word.lower() for word in words]
        encoded = [tokenizer.encode_words([word])[0] for word in words]
        ids = [pieces[0] if len(pieces) == 1 else tokenizer.unk_id for pieces in encoded]
        return self.pieces(ids, words), np.arange(len(ids) + 1)


def shortened(sizes: Sequence[int], room: int) -> list[int]:
    """Lengths of one or two texts that fit, as run_classifier.py's `_truncate_seq_pair` cuts."""
    if len(sizes) == 1:
        return [min(sizes[0], room)]
    first, second = sizes
    second = min(second, max(room - first, room // 2))
    return [min(first, room - second), second]


@functools.lru_cache(maxsize=16)  # questions share contexts
def piece_offsets(
    text: str, tokenizer: Tokenizer
) -> tuple[Int[np.ndarray, "T"], Int[np.ndarray, "T 2"]]:
    """The pieces of a text, and the characters [first, end) that each stands for, at least one.
    Words between white space are tokenised one by one, as in run_squad."""
    words = text.split()
    ids, offsets, at = [], [], 0
    for word, (pieces, spans) in zip(words, tokenizer.encode_spaced(words), strict=True):
        ids += pieces or [tokenizer.unk_id]
        at = text.index(word, at)
        offsets += [(at + first, at + end) for first, end in _in_word(word, spans, tokenizer)]
        at += len(word)
    return np.array(ids, np.int32), np.array(offsets, np.int32).reshape(-1, 2)


def _in_word(word: str, spans, tokenizer: Tokenizer) -> list[tuple[int, int]]:
    """Spans of `tokenizer.changed(word)` in the word itself, in order, with the accents after."""
    source = [i for i, character in enumerate(word) for _ in tokenizer.changed(character)]
    if not spans:  # only control characters: an unknown piece
        return [(0, len(word))]
    begins = [source[min(first, len(source) - 1)] for first, _ in spans] + [len(word)]
    found, least, end = [], 0, 0
    for (first, last), begin, following in zip(spans, begins, begins[1:]):
        least = max(least, begin)
        end = max(end, least + 1, source[last - 1] + 1 if last > first else 0)
        while end < following and unicodedata.category(word[end])[0] == "M":
            end += 1
        found.append((least, end))
    return found
