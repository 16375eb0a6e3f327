"""From a task's examples to a model's rows, in the layouts of the papers.

    pair        prefix A suffix, prefix A separator B suffix: [CLS] A [SEP] B [SEP] (Devlin et al. 2018, figure 4)
    delimited   start A extract, start A delimiter B extract, with three new embeddings; a pair that has no order is shown
                both ways round (Radford et al. 2018, section 3.3 and figure 1)

Choices, and both orders of a pair, are packed into one row as its documents 1 to n, which attention and recurrence never cross.
Letters: L positions of a row, W words (as many as positions).
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from bertlab.data.characters import PADDING, WORD_LENGTH, character_ids
from bertlab.data.formats import Row, make_row
from bertlab.data.text_rows import RowEncoder, TextRow
from bertlab.data.tokenizers import Tokenizer
from bertlab.errors import UserError
from bertlab.transfer.heads import NO_LABEL
from bertlab.transfer.spans import Window, encode_question, piece_offsets
from bertlab.transfer.tasks.base import Example, Task

LAYOUTS = ("pair", "delimited")
NEW_TOKENS = ("start", "delimiter", "extract")
"""What the delimited layout adds to the vocabulary, after its last id and in this order."""


class _Document(NamedTuple):
    """One text or pair with its special ids; positions at which each text begins, and of its last piece."""

    tokens: Int[np.ndarray, "T"]
    segments: Int[np.ndarray, "T"]
    characters: Int[np.ndarray, "T 50"] | None
    begins: tuple[int, ...]
    ends: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Layout:
    """How texts become the rows of one model.

    Attributes:
        kind: one of LAYOUTS.
        seq_len: positions of one text; a row of n texts has n times as many.
        first_piece: a word's label lies on its first piece; else on its last.
        characters: the model reads characters.
        double_separator: two of them between A and B, as RoBERTa has.
        doc_stride, max_query: of a span task's windows (run_squad.py).
        spelling: tagging rows hold each word's characters.
        words: tagging rows hold the number of each of these words, from 1; 0 for others.
    """

    kind: str
    seq_len: int
    first_piece: bool = True
    characters: bool = False
    double_separator: bool = False
    doc_stride: int = 128
    max_query: int = 64
    spelling: bool = False
    words: Mapping[str, int] | None = None

    def texts_of(self, task: Task, examples: Sequence[Example]) -> int:
        """Texts in a row: the choices of a question, both orders of a pair that has none, else one.

        Raises:
            UserError: two examples have different numbers of choices.
        """
        if task.kind == "choice":
            count = len(examples[0].choices)
            if odd := next((e for e in examples if len(e.choices) != count), None):
                raise UserError(f"{odd.where}: {len(odd.choices)} choices, and {examples[0].where} has {count}; give as many")
            return count
        return 2 if self.kind == "delimited" and task.symmetric and len(examples[0].texts) == 2 else 1


class Inputs:
    """Rows of examples, with one tokenizer and layout."""

    def __init__(self, tokenizer: Tokenizer, layout: Layout):
        """Args: tokenizer: the pretrained run's; layout: how it is to be shown."""
        self._tokenizer, self.layout = tokenizer, layout
        self._bare = RowEncoder(tokenizer, layout.characters, special=False)
        self._framed = RowEncoder(tokenizer, layout.characters, room=layout.seq_len)
        start = tokenizer.vocab_size
        self._new = {name: start + i for i, name in enumerate(NEW_TOKENS)}

    def rows(self, task: Task, examples: Sequence[Example]) -> tuple[list[Row], list[Window]]:
        """The examples' rows in their order, and, for a span task, the windows that they are.

        Every row has `tokens`, `segments`, `documents`, `positions` [L] and `example_id` (number, window); and by kind
            classification, word_pair, choice: `label`, −1 where it is not known; regression: `target`, NaN;
            tagging: `word_at` and `labels` [W], −1 beyond the words, and `spelling` [W, 50], `word_ids` [W] where asked for;
            word_pair: `word_at` [2];
            span: `start`, `end` (0 where the window lacks the answer) and `context` [L].
        """
        if task.kind == "span":
            return self._windows(examples)
        make = {"tagging": self._tagged, "word_pair": self._word_pair}.get(task.kind, self._text)
        texts = self.layout.texts_of(task, examples) if examples else 1
        return [make(number, example, task, texts) for number, example in enumerate(examples)], []

    def _text(self, number: int, example: Example, task: Task, texts: int) -> Row:
        if task.kind == "choice":
            documents = [self._document((*example.texts, choice)) for choice in example.choices]
        else:
            documents = [self._document(example.texts)]
            if texts == 2:
                documents.append(self._document(example.texts[::-1]))
        return self._packed(documents, texts, number) | label_of(task, example)

    def _document(self, texts: Sequence[str]) -> _Document:
        return self._joined([self._bare.text(text) for text in texts])

    def _joined(self, parts: Sequence[TextRow]) -> _Document:
        """One text, or two, between the special ids, cut to `seq_len`."""
        before, between, after = self._frame()
        sizes = [len(part.tokens) for part in parts]
        if self.layout.kind == "delimited" and len(parts) == 2:
            sizes = [min(size, self.layout.seq_len // 2 - 2) for size in sizes]
        else:
            sizes = shortened(sizes, self.layout.seq_len - len(before) - len(after) - len(between) * (len(parts) - 1))
        ids, segments, characters, begins = [before], [0] * len(before), [self._bare.characters(before)], []
        for segment, (part, size) in enumerate(zip(parts, sizes)):
            end = after if segment == len(parts) - 1 else between
            begins.append(len(segments))
            ids += [part.tokens[:size], end]
            segments += [segment if self.layout.kind == "pair" else 0] * (size + len(end))
            if self.layout.characters:
                characters += [part.characters[:size], self._bare.characters(end)]
        return _Document(
            tokens=np.concatenate([np.asarray(part, np.int32) for part in ids]),
            segments=np.asarray(segments, np.int32),
            characters=np.concatenate(characters) if self.layout.characters else None,
            ends=tuple(begin + size - 1 for begin, size in zip(begins, sizes)),
            begins=tuple(begins),
        )

    def _frame(self) -> tuple[tuple[int, ...], ...]:
        """Ids before, between and after the texts of a document."""
        if self.layout.kind == "delimited":
            return tuple((self._new[name],) for name in NEW_TOKENS)
        separator = (self._tokenizer.sep_id,) * (2 if self.layout.double_separator else 1)
        return tuple(self._tokenizer.prefix_ids), separator, tuple(self._tokenizer.suffix_ids)

    def _packed(self, documents: Sequence[_Document], texts: int, number: int) -> Row:
        length = texts * self.layout.seq_len
        which = np.concatenate([np.full(len(d.tokens), i + 1) for i, d in enumerate(documents)])
        join = lambda name: np.concatenate([getattr(document, name) for document in documents])
        row = make_row(length, self._tokenizer.pad_id, join("tokens"), join("segments"), which, -1, (number, 0))
        if self.layout.characters:
            row["characters"] = np.full((length, WORD_LENGTH), PADDING, np.int32)
            row["characters"][: len(which)] = join("characters")
        return row

    def _tagged(self, number: int, example: Example, task: Task, texts: int) -> Row:
        del task, texts
        length = self.layout.seq_len
        text = self._framed.words(example.words)
        row = text.padded(length, self._tokenizer.pad_id, (number, 0))
        places = text.first if self.layout.first_piece else text.last
        return row | words_of(example, places, self.layout)

    def _word_pair(self, number: int, example: Example, task: Task, texts: int) -> Row:
        del texts
        parts, places = [], []
        for text, (start, end) in zip(example.texts, example.targets):
            ids, offsets = piece_offsets(text, self._tokenizer)
            inside = [i for i, (first, last) in enumerate(offsets) if first < end and last > start]
            if not inside:
                raise UserError(f"{example.where}: no piece of the text holds its word {text[start:end]!r}; look at its place")
            places.append(inside[0] if self.layout.first_piece else inside[-1])
            parts.append(TextRow(np.asarray(ids, np.int32), (), np.arange(len(ids)), np.arange(len(ids)), None))
        document = self._joined(parts)
        row = self._packed([document], 1, number)
        # A word that was cut off is taken for the last one that was not.
        at = [min(begin + place, end) for begin, end, place in zip(document.begins, document.ends, places)]
        return row | {"word_at": np.asarray(at, np.int32)} | label_of(task, example)

    def _windows(self, examples: Iterable[Example]) -> tuple[list[Row], list[Window]]:
        """The windows of all questions, and their rows."""
        layout = self.layout
        if layout.characters:
            raise UserError("spans are found in pieces, and this model reads characters of words; take one of subwords")
        windows = [
            window
            for number, example in enumerate(examples)
            for window in encode_question(
                example,
                self._tokenizer,
                index=number,
                max_seq=layout.seq_len,
                doc_stride=layout.doc_stride,
                max_query=layout.max_query,
                frame=self._frame(),
            )
        ]
        return [window.row(layout.seq_len, self._tokenizer.pad_id) for window in windows], windows


def label_of(task: Task, example: Example) -> Row:
    """The field of an example that has one label: `target` of a regression, NaN where it is not known, else `label`, −1."""
    if task.kind == "regression":
        return {"target": np.float32(np.nan if example.label is None else example.label)}
    return {"label": np.int32(NO_LABEL if example.label is None else example.label)}


def words_of(example: Example, places: Int[np.ndarray, "n"], layout: Layout) -> Row:
    """The fields [W] of a tagging row whose first n words are at these places: `word_at`, `labels`, and what is asked for."""
    length, words = layout.seq_len, example.words[: len(places)]
    labels = np.full(len(words), NO_LABEL) if example.label is None else np.asarray(example.label, np.int32)[: len(words)]
    row = {"word_at": filled(places, length), "labels": filled(labels, length)}
    if layout.spelling:
        row["spelling"] = np.full((length, WORD_LENGTH), PADDING, np.int32)
        row["spelling"][: len(words)] = character_ids(words)
    if layout.words is not None:
        row["word_ids"] = np.zeros(length, np.int32)
        row["word_ids"][: len(words)] = [layout.words.get(word, 0) for word in words]
    return row


def vocabulary_size(config: Mapping[str, Any], tokenizer: Tokenizer) -> int:
    """Entries of a run's token embeddings: the tokenizer's, and those that a fine-tuning's delimited layout adds."""
    return tokenizer.vocab_size + (len(NEW_TOKENS) if transfer_of(config).get("layout") == "delimited" else 0)


def transfer_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `transfer` keys of a run's config, or {} of one that has none: a pretraining's."""
    return config.get("transfer") or {}


def shortened(sizes: Sequence[int], room: int) -> list[int]:
    """Lengths of texts that share `room`: the longer loses one from its end at a time, B where they are equal.

    That is run_classifier.py's `_truncate_seq_pair`.
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


def filled(values: Sequence[int], length: int) -> Int[np.ndarray, "W"]:
    """The values, and −1 beyond them."""
    padded = np.full(length, NO_LABEL, np.int32)
    padded[: len(values)] = values
    return padded
