"""One text or list of words as a row for a model, for fine-tuning, `bertlab.load` and `bertlab embed`."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from bertlab.data.characters import PADDING, WORD_LENGTH, character_ids, character_table
from bertlab.data.rows import Row, make_row
from bertlab.data.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class TextRow:
    """A text with the special ids around it. A unit is a piece of the text, or a given word.

    Attributes:
        tokens: ids, special ones included.
        names: the units' strings.
        first, last: positions in `tokens` of each unit's first and last piece; a unit that is cut off has no last.
        characters: [T, 50] where the model reads them, else None.
        before: how many words before the units are whole in the row.
    """

    tokens: Int[np.ndarray, "T"]
    names: tuple[str, ...]
    first: Int[np.ndarray, "U"]
    last: Int[np.ndarray, "W"]
    characters: Int[np.ndarray, "T 50"] | None
    before: int = 0

    def padded(self, length: int, pad_id: int, example_id=(0, 0)) -> Row:
        """The row with `length` positions."""
        zeros = np.zeros_like(self.tokens)
        row = make_row(length, pad_id, self.tokens, zeros, zeros + 1, -1, example_id)
        if self.characters is not None:
            row["characters"] = np.full((length, WORD_LENGTH), PADDING, np.int32)
            row["characters"][: len(self.tokens)] = self.characters
        return row


class RowEncoder:
    """Texts and words to rows, with one tokenizer.

    Args:
        tokenizer: its `prefix_ids` and `suffix_ids` go around each text.
        characters: add each word's characters (a "words" tokenizer); a given word is then always one token.
        room: most positions; longer texts are cut, but the special ids stay.
        special: put the special ids around.
    """

    def __init__(self, tokenizer: Tokenizer, characters: bool = False, room: int | None = None, special: bool = True):
        self._tokenizer, self._room = tokenizer, room
        self._around = (tokenizer.prefix_ids, tokenizer.suffix_ids) if special else ((), ())
        self._table = character_table(tokenizer) if characters else None
        self._names = tokenizer.pieces()

    def text(self, text: str) -> TextRow:
        """A row whose units are the pieces of a text."""
        ids = self._tokenizer.encode(text)
        names, characters = [self._names[i] for i in ids], None
        if self._table is not None:
            names = self._tokenizer.words(text)
            characters = character_ids(names)
        places = np.arange(len(ids))
        return self._row(ids, names, places, places, characters)

    def words(self, words: Sequence[str], before: Sequence[str] = (), after: Sequence[str] = ()) -> TextRow:
        """A row whose units are the given words, with as many pieces of the words around them as there is room for.

        Both sides of the units have the same room, and what one does not need is the other's.

        Args:
            words: the units.
            before, after: the words around them, in the order of the text; they are no units.
        """
        ids, starts, characters = self._pieces([*before, *words, *after])
        begin, end = starts[len(before)], starts[len(before) + len(words)]
        left, right = begin, len(ids) - end
        if self._room is not None:
            room = max(self._room - sum(map(len, self._around)) - (end - begin), 0)
            left, right = min(left, max(room // 2, room - right)), min(right, max(room - room // 2, room - left))
        shown = slice(begin - left, end + right)
        bounds = starts[len(before) : len(before) + len(words) + 1] - shown.start
        characters = None if characters is None else characters[shown]
        row = self._row(ids[shown], words, bounds[:-1], bounds[1:] - 1, characters)
        return dataclasses.replace(row, before=int((starts[: len(before)] >= shown.start).sum()))

    def _pieces(self, words: Sequence[str]) -> tuple[list[int], Int[np.ndarray, "W+1"], Int[np.ndarray, "T 50"] | None]:
        """Ids of words, where each begins in them and the last ends, and the characters if the model reads them."""
        if self._table is None:
            ids, starts = self._tokenizer.encode_words(words)
            return ids, np.append(np.asarray(starts, np.int64), len(ids)), None
        if self._tokenizer.lowercase:
            words = [word.lower() for word in words]
        encoded = [self._tokenizer.encode_words([word])[0] for word in words]
        ids = [pieces[0] if len(pieces) == 1 else self._tokenizer.unk_id for pieces in encoded]
        return ids, np.arange(len(ids) + 1), character_ids(words)

    def characters(self, ids: Sequence[int]) -> Int[np.ndarray, "T 50"] | None:
        """The characters of special ids; None for a model that does not read characters."""
        return None if self._table is None else self._table[list(ids)].astype(np.int32)

    def _row(self, ids, names, first, last, characters) -> TextRow:
        prefix, suffix = self._around
        if self._room is not None:
            ids = ids[: self._room - len(prefix) - len(suffix)]
        begun = first < len(ids)
        if characters is not None:
            table = self._table
            characters = np.concatenate([table[list(prefix)], characters[: len(ids)], table[list(suffix)]]).astype(np.int32)
        return TextRow(
            tokens=np.array([*prefix, *ids, *suffix], np.int32),
            names=tuple(name for name, fits in zip(names, begun) if fits),
            first=first[begun] + len(prefix),
            last=last[last < len(ids)] + len(prefix),
            characters=characters,
        )
