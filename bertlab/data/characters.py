"""Words as characters, for models that read spelling (Peters et al. 2018, ELMo).

A word is 50 ids from 0 to 260: a begin mark, at most 48 bytes of its UTF-8 form, an end mark, and
padding. Sentence boundaries are words with a single id of their own. Source: allenai/bilm-tf,
bilm/data.py, `UnicodeCharsVocabulary`, without the shift by one in its released models' readers.
"""

from collections.abc import Sequence

import numpy as np

WORD_LENGTH = 50
CHARACTERS = 261
SENTENCE_BEGIN, SENTENCE_END, WORD_BEGIN, WORD_END, PADDING = range(256, 261)


def character_ids(words: Sequence[str]) -> np.ndarray:
    """uint16 [N, 50]: ids of the characters of each word."""
    encoded = [word.encode("utf-8", "ignore")[: WORD_LENGTH - 2] for word in words]
    rows = np.full((len(encoded), WORD_LENGTH), PADDING, np.uint16)
    rows[:, 0] = WORD_BEGIN
    for row, content in zip(rows, encoded):
        row[1 : 1 + len(content)] = np.frombuffer(content, np.uint8)
        row[1 + len(content)] = WORD_END
    return rows


def character_table(tokenizer) -> np.ndarray:
    """uint16 [V, 50]: characters of every piece of a tokenizer's vocabulary, where cls stands for
    the beginning of a sentence and sep for the end; padding is only PADDING."""
    table = character_ids(tokenizer.pieces())
    boundaries = [tokenizer.cls_id, tokenizer.sep_id]
    # Padding first: in a vocabulary without it, the end of text has its id.
    table[[tokenizer.pad_id, *boundaries]] = PADDING
    table[boundaries, 0], table[boundaries, 2] = WORD_BEGIN, WORD_END
    table[boundaries, 1] = SENTENCE_BEGIN, SENTENCE_END
    return table
