"""The characters of a text that each of its pieces stands for. Letters: P pieces of a text."""

import functools
import unicodedata

import numpy as np
from jaxtyping import Int

from bertlab.data.tokenizers import Tokenizer


@functools.lru_cache(maxsize=16)
def piece_offsets(
    text: str, tokenizer: Tokenizer
) -> tuple[Int[np.ndarray, "P"], Int[np.ndarray, "P 2"]]:
    """The pieces of a text, and the characters [first, end) that each stands for, at least one.

    Words between white space are tokenised one by one, as in run_squad. Several pieces of one
    character stand for it each. Cached, because questions share contexts.
    """
    words = text.split()
    ids, starts = tokenizer.encode_words(words)
    offsets, at = [], 0
    for word, start, spans in zip(words, starts, tokenizer.spans(words), strict=True):
        if len(offsets) != start:
            raise RuntimeError(f"the pieces before {word!r} do not match their offsets")
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
