"""The characters of a text that each of its pieces stands for, however the tokenizer changed it.

Letters: P pieces of a text.
"""

import functools
import itertools
import unicodedata
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int

from bertlab.data.tokenizers import Tokenizer

# So many pieces are decoded together: from the first would take quadratic time without spaces.
DECODED = 32

# Typography that GPT-1's tokenizer and ftfy repair, but Unicode normalisation does not.
PLAIN = str.maketrans("—–―´‘’“”", "---'''\"\"")
UNSEEN = ("Cc", "Cf", "Mn", "Mc", "Me", "Zs", "Zl", "Zp")

Fold = Callable[[str], str]


@functools.lru_cache(maxsize=16)
def piece_offsets(
    text: str, tokenizer: Tokenizer
) -> tuple[Int[np.ndarray, "P"], Int[np.ndarray, "P 2"]]:
    """The pieces of a text, and the characters [first, end) that each stands for.

    Words between white space are tokenised one by one, as in run_squad. Each piece is decoded and
    searched for in its word, first unchanged, then without case, accents, compatibility forms and
    control characters. A piece that is not found stands for its whole word; several pieces of one
    character stand for it each. Cached, because questions share contexts.
    """
    words = text.split()
    ids, starts = tokenizer.encode_words(words)
    offsets, at = [], 0
    for word, first, end in zip(words, starts, [*starts[1:], len(ids)]):
        at = text.index(word, at)
        found = _word_offsets(word, tuple(ids[first:end]), tokenizer)
        offsets += [(at + a, at + b) for a, b in found]
        at += len(word)
    return np.array(ids, np.int32), np.array(offsets, np.int32).reshape(-1, 2)


@functools.lru_cache(maxsize=1 << 16)
def _word_offsets(word: str, ids: tuple[int, ...], tokenizer: Tokenizer) -> list[tuple[int, int]]:
    if len(ids) == 1 and word.isalnum():
        return [(0, len(word))]
    for fold in (_exact, _loose):
        if (found := _locate(word, ids, tokenizer, fold)) is not None:
            return found
    return [(0, len(word))] * len(ids)


def _locate(
    word: str, ids: Sequence[int], tokenizer: Tokenizer, fold: Fold
) -> list[tuple[int, int]] | None:
    """The characters of each piece; None if the pieces do not decode to the word after `fold`.

    Unknown pieces stand for the characters between the others: one each if that many are there,
    otherwise all of them.
    """
    folded = [fold(character) for character in word]
    text = "".join(folded)
    if not text:
        return None
    source = [index for index, letters in enumerate(folded) for _ in letters]

    def decode(run: Sequence[int]) -> str:
        return "".join(map(fold, tokenizer.decode(run)))

    runs = [list(run) for _, run in itertools.groupby(ids, lambda i: i == tokenizer.unk_id)]
    spans, at, unknown = [], 0, 0
    for number, run in enumerate(runs):
        if run[0] == tokenizer.unk_id:
            unknown = len(run)
            continue
        decoded = decode(run)
        begin = text.find(decoded, at + unknown)
        if number + 1 == len(runs):
            begin = len(text) - len(decoded) if text.endswith(decoded) else -1
        if not decoded or begin < at + unknown or (begin > at and not unknown):
            return None
        spans += _unknown_spans(at, begin, unknown)
        spans += [(begin + a, begin + b) for a, b in _piece_spans(run, decoded, decode)]
        at, unknown = begin + len(decoded), 0
    if (at < len(text)) != (unknown > 0):
        return None
    return _with_accents(word, folded, source, spans + _unknown_spans(at, len(text), unknown))


def _unknown_spans(first: int, end: int, pieces: int) -> list[tuple[int, int]]:
    if end - first == pieces:
        return [(first + i, first + i + 1) for i in range(pieces)]
    return [(first, end)] * pieces


def _piece_spans(
    run: list[int], text: str, decode: Callable[[Sequence[int]], str]
) -> list[tuple[int, int]]:
    """Where each piece begins and ends in the decoded run; each has at least one character."""
    spans, before, base, at = [], 0, 0, 0  # run[base:] decodes to text[at:]
    for number in range(len(run)):
        decoded = decode(run[base : number + 1])
        pairs = zip(text[at : at + len(decoded)], decoded)
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        matches = shared == len(decoded)
        end = max(at + shared, before) if number + 1 < len(run) else len(text)
        if end > before:
            spans.append((before, end))
        else:
            # A byte of a character, readable only with its last one; else an accent of the
            # character before.
            only = before if decoded.endswith("\ufffd") else before - 1
            only = min(max(only, spans[-1][0] if spans else 0), len(text) - 1)
            spans.append((only, only + 1))
        before = end
        if number - base >= DECODED and matches and number + 1 < len(run):
            # Only if the rest decodes by itself: not before a "##ing" or within a character.
            following = decode(run[number + 1 : number + 2])
            if following and text.startswith(following, end):
                base, at = number + 1, end
    return spans


def _with_accents(word: str, folded, source, spans) -> list[tuple[int, int]]:
    """Spans of the folded word in the word itself.

    Accents that `fold` dropped belong to the letter before, or to the first letter; control
    characters belong to no piece.
    """
    visible = [
        bool(letters) or unicodedata.category(character) not in ("Cc", "Cf")
        for letters, character in zip(folded, word)
    ]
    found = []
    for begin, end in spans:
        first, last = source[begin], source[end - 1]
        following = source[end] if end < len(source) else len(word)
        last = max((i for i in range(last, following) if visible[i]), default=last)
        found.append((visible.index(True) if first == source[0] else first, last + 1))
    return found


def _exact(character: str) -> str:
    return "" if character.isspace() or character == "▁" else character


@functools.cache
def _loose(character: str) -> str:
    """Without case, accents, compatibility forms, control characters and typography."""
    text = _letters(unicodedata.normalize("NFKD", character.translate(PLAIN)))
    return _letters(unicodedata.normalize("NFKD", text.casefold()))


def _letters(text: str) -> str:
    return "".join(c for c in text if c != "▁" and unicodedata.category(c) not in UNSEEN)
