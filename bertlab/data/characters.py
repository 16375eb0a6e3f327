"""Words as characters, for models that read spelling (Peters et al. 2018, ELMo).

A word is 50 ids from 0 to 260: a begin mark, at most 48 bytes of its UTF-8 form, an end mark, and padding. The boundaries of a
sentence are words of one id of their own.

Source: allenai/bilm-tf, bilm/data.py, `UnicodeCharsVocabulary`; the ids are those of training, without the shift by one of its
released models' readers.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt16

WORD_LENGTH = 50
CHARACTERS = 261
SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END, PADDING = range(256, 261)


def character_ids(words: Sequence[str]) -> UInt16[np.ndarray, "N 50"]:
    """Ids of the characters of each word, 0 to 260."""
    encoded = [word.encode("utf-8", "ignore")[: WORD_LENGTH - 2] for word in words]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    rows = np.full((len(encoded), WORD_LENGTH), PADDING, np.uint16)
    rows[:, 0] = WORD_BEGIN
    # Byte number b of all words together lies in the row of its word, b minus its word's first byte behind the mark.
    row = np.repeat(np.arange(len(encoded)), lengths)
    column = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths) + 1
    rows[row, column] = np.frombuffer(b"".join(encoded), np.uint8)
    rows[np.arange(len(encoded)), lengths + 1] = WORD_END
    return rows


def boundary_ids(boundary: int) -> UInt16[np.ndarray, "50"]:
    """The word that stands for SENTENCE_BEGIN or SENTENCE_END."""
    row = np.full(WORD_LENGTH, PADDING, np.uint16)
    row[:3] = WORD_BEGIN, boundary, WORD_END
    return row


def character_table(tokenizer) -> UInt16[np.ndarray, "V 50"]:
    """Character ids of every piece of a tokenizer's vocabulary, to look up by token id.

    Args:
      tokenizer: its cls stands for the begin of a sentence and its sep for the end; of padding, every id is PADDING.
    """
    table = character_ids(tokenizer.pieces())
    # In a vocabulary without padding, the end of text takes its place, and must stay itself.
    table[tokenizer.pad_id] = PADDING
    table[tokenizer.cls_id] = boundary_ids(SENTENCE_BEGIN)
    table[tokenizer.sep_id] = boundary_ids(SENTENCE_END)
    return table
