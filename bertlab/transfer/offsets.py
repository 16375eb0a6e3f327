"""Finds the characters of a text that each of its pieces stands for, however the tokenizer changed the text.

Letters: P pieces of a text.
"""

import functools
import itertools
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int

from bertlab.data.tokenizers import Tokenizer

# About so many pieces are decoded at once; always decoding from the first would take quadratic time without spaces.
_DECODED = 32

# The offsets of so many words are cached; text repeats its words.
_WORDS = 1 << 16

# Typography that GPT-1's tokenizer and ftfy repair, but Unicode normalisation does not.
_PLAIN = str.maketrans("—–―´‘’“”", "---'''\"\"")


def _exact(character: str) -> str:
    return "" if character.isspace() or character == "▁" else character


@functools.cache
def _loose(character: str) -> str:
    """The text without case, accents, compatibility forms, control characters and typography, as normalisations change them."""
    text = _letters(unicodedata.normalize("NFKD", character.translate(_PLAIN)))
    return _letters(unicodedata.normalize("NFKD", text.casefold()))


def _letters(text: str) -> str:
    unseen = ("Cc", "Cf", "Mn", "Mc", "Me", "Zs", "Zl", "Zp")
    return "".join(c for c in text if c != "▁" and unicodedata.category(c) not in unseen)


def _ends(run: list[int], text: str, decode: Callable[[list[int]], str]) -> list[tuple[int, int]]:
    """Where each piece begins and ends in `text`, the decoded `run`; each piece has at least one character."""
    places, before, base, at = [], 0, 0, 0  # run[base:] decodes to text[at:]
    for number in range(len(run)):
        part = decode(run[base : number + 1])
        shared = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(text[at : at + len(part)], part))
        matches = text.startswith(part, at)
        end = at + (len(part) if matches else len(list(shared)))
        end = max(end, before) if number + 1 < len(run) else len(text)
        if end > before:
            places.append((before, end))
        else:
            # A part of a character, readable only with its last piece; otherwise an accent of the character before.
            only = before if part.endswith("\ufffd") else before - 1
            only = min(max(only, places[-1][0] if places else 0), len(text) - 1)
            places.append((only, only + 1))
        before = end
        if number - base >= _DECODED and matches and number + 1 < len(run):
            # Only if the rest can be decoded by itself: not before a "##ing" or within a character.
            following = decode(run[number + 1 : number + 2])
            if following and text.startswith(following, end):
                base, at = number + 1, end
    return places


def _locate(word: str, ids: Sequence[int], tokenizer: Tokenizer, fold: Callable[[str], str]) -> list[tuple[int, int]] | None:
    """Characters of each piece of a word, found by decoding the pieces; None if they do not decode to the word after `fold`.

    Unknown pieces get the characters between the known ones: one each if the numbers match, otherwise all together.
    """
    folded = [fold(character) for character in word]
    whole = "".join(folded)
    if not whole:
        return None
    source = [index for index, part in enumerate(folded) for _ in part]
    decode = lambda run: "".join(map(fold, tokenizer.decode(run)))
    gap = lambda first, end, size: [(first + i, first + i + 1) if end - first == size else (first, end) for i in range(size)]
    runs = [(known, list(run)) for known, run in itertools.groupby(ids, lambda index: index != tokenizer.unk_id)]
    places, at, unknown = [], 0, 0
    for number, (known, run) in enumerate(runs):
        if not known:
            unknown = len(run)
            continue
        text = decode(run)
        begin = whole.find(text, at + unknown)
        if number + 1 == len(runs):
            begin = len(whole) - len(text) if whole.endswith(text) else -1
        if not text or begin < at + unknown or (begin > at and not unknown):
            return None
        places += [*gap(at, begin, unknown), *((begin + a, begin + b) for a, b in _ends(run, text, decode))]
        at, unknown = begin + len(text), 0
    if (at < len(whole)) != (unknown > 0):
        return None
    places += gap(at, len(whole), unknown)
    # Accents that `fold` dropped belong to the letter before, or to the first letter; control characters belong to no piece.
    visible = [bool(part) or unicodedata.category(c) not in ("Cc", "Cf") for part, c in zip(folded, word)]
    found = []
    for first, end in places:
        first, last = source[first], source[end - 1]
        following = source[end] if end < len(source) else len(word)
        last = max((i for i in range(last, following) if visible[i]), default=last)
        found.append((visible.index(True) if first == source[0] else first, last + 1))
    return found


@functools.lru_cache(maxsize=_WORDS)
def _word_offsets(word: str, ids: tuple[int, ...], tokenizer: Tokenizer) -> list[tuple[int, int]]:
    if len(ids) == 1 and word.isalnum():
        return [(0, len(word))]
    for fold in (_exact, _loose):
        if (found := _locate(word, ids, tokenizer, fold)) is not None:
            return found
    return [(0, len(word))] * len(ids)


@functools.lru_cache(maxsize=16)
def piece_offsets(text: str, tokenizer: Tokenizer) -> tuple[Int[np.ndarray, "P"], Int[np.ndarray, "P 2"]]:
    """The pieces of a text and the characters that each stands for.

    Words between white space are tokenised one by one, as in run_squad. Each piece is decoded and looked up in its word, first
    unchanged, then without case, accents, compatibility forms and control characters. A piece that is not found stands for its
    whole word. If a character has several pieces, each stands for the character.

    Args:
        text: any text.
        tokenizer: of any kind.

    Returns:
        ids, and [first, end) for each piece. Both are read-only, because the last texts are cached: questions share contexts.
    """
    words = text.split()
    ids, starts = tokenizer.encode_words(words)
    offsets, at = [], 0
    for word, first, end in zip(words, starts, [*starts[1:], len(ids)]):
        at = text.index(word, at)
        offsets += [(at + a, at + b) for a, b in _word_offsets(word, tuple(ids[first:end]), tokenizer)]
        at += len(word)
    arrays = np.array(ids, np.int32), np.array(offsets, np.int32).reshape(-1, 2)
    for array in arrays:
        array.setflags(write=False)
    return arrays
