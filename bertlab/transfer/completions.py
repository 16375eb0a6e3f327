"""Rows that ask for the end of a text, given its beginning."""

import dataclasses

import numpy as np

from bertlab.data.text_rows import RowEncoder, TextRow
from bertlab.data.tokenizers import Tokenizer
from bertlab.transfer.load import Pretrained


def completion(text: str, start: int, model: Pretrained, encoder: RowEncoder) -> tuple[TextRow, int]:
    """The row whose `first` pieces are those from the character `start` on, and how many pieces of its beginning are cut.

    Args:
        text: as a whole, however long.
        start: begins a word or the space before one.
        model: would read the row.
        encoder: with its tokenizer.
    """
    row = encoder.text(text)
    row = dataclasses.replace(row, first=row.first[pieces_before(text, start, model.tokenizer) :])
    return fitted(row, model), max(0, len(row.tokens) - model.longest)


def pieces_before(text: str, start: int, tokenizer: Tokenizer) -> int:
    """How many pieces of a text end before the character `start`, which begins a word or the space before one."""
    if not start:
        return 0
    own, context = tokenizer.encode(text), tokenizer.encode(text[:start])
    same = next((i for i, pair in enumerate(zip(own, context)) if pair[0] != pair[1]), min(len(own), len(context)))
    # SentencePiece may give a space a piece of its own, and drops it at the end of a context.
    adds = tokenizer.decode(own[: same + 1])[len(tokenizer.decode(own[:same])) :]
    return same + (adds.isspace() and text[start - 1].isspace())


def fitted(row: TextRow, model: Pretrained) -> TextRow:
    """The row without its first pieces, if it has more than the model has positions; special tokens stay."""
    over, begin = max(0, len(row.tokens) - model.longest), len(model.tokenizer.prefix_ids)
    first = row.first[row.first >= begin + over] - over
    return dataclasses.replace(row, tokens=np.delete(row.tokens, np.s_[begin : begin + over]), first=first) if over else row
