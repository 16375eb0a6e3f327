"""Tokenizers: trained here (unigram, bpe, wordpiece, words) or read from published files."""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from bertlab.data.tokenizers.base import METADATA, SPECIALS, Tokenizer, normalise, read_vocabulary
from bertlab.data.tokenizers.fast import JsonTokenizer
from bertlab.data.tokenizers.published import load_published
from bertlab.data.tokenizers.sentencepieces import SentencePieceTokenizer, train_sentencepiece
from bertlab.data.tokenizers.wordpiece import WordPieceTokenizer, train_wordpiece
from bertlab.data.tokenizers.words import WordsTokenizer, train_words
from bertlab.errors import UserError
from bertlab.files import read_json

__all__ = ["SPECIALS", "Tokenizer", "load_tokenizer", "sample_texts", "train_tokenizer"]

# Characters of text to train on, at most; SentencePiece needs about 20 bytes for each one.
_SAMPLE_CHARACTERS = 20_000_000


def sample_texts(
    texts: Iterable[str],
    sentences: int,
    seed: int,
    lowercase: bool = False,
    characters: int = _SAMPLE_CHARACTERS,
) -> list[str]:
    """Draws a uniform sample of bounded size from a stream, in one pass and in its order.

    The sample is the normalised texts whose random numbers are below a threshold: the highest of 1,
    0.9, 0.81, ... at which it has at most `sentences` sentences and `characters` characters. Empty
    texts are left out.
    """
    generator = random.Random(seed)
    kept, size, threshold = [], 0, 1.0
    for text in texts:
        number = generator.random()
        text = normalise(text, lowercase) if number < threshold else ""
        if not text:
            continue
        kept.append((number, text))
        size += len(text)
        while len(kept) > sentences or (size > characters and len(kept) > 1):
            threshold *= 0.9
            kept = [(number, text) for number, text in kept if number < threshold]
            size = sum(len(text) for _, text in kept)
    return [text for _, text in kept]


def train_tokenizer(
    kind: str,
    sample: Sequence[str],
    vocab_size: int,
    lowercase: bool = False,
    split: str = "punctuation",
) -> Tokenizer:
    """Trains a tokenizer; the same arguments give the same one.

    Args:
        kind: unigram, bpe, wordpiece or words.
        sample: normalised sentences (`sample_texts`).
        vocab_size: number of pieces, with the five specials (and SentencePiece's 256 bytes).
        lowercase: lower-case text (for WordPiece: strip accents too).
        split: for words only, see `WordsTokenizer`.
    """
    if kind in ("unigram", "bpe"):
        return train_sentencepiece(sample, kind, vocab_size, lowercase)
    if kind == "wordpiece":
        return train_wordpiece(sample, vocab_size, lowercase)
    if kind == "words":
        return train_words(sample, vocab_size, lowercase, split)
    raise UserError(
        f'config.data.tokenizer.kind="{kind}" is not one of unigram, bpe, wordpiece, words'
    )


def load_tokenizer(path: str | Path, lowercase: bool | None = None) -> Tokenizer:
    """Loads a tokenizer.

    Args:
        path: a folder that `save` wrote; a vocab.txt (Google's rules); a tokenizer.json; a
            SentencePiece .model; or a folder that has a tokenizer.json or vocab.txt.
        lowercase: lower-case text first; only for a vocab.txt and for SentencePiece, whose files
            do not say so. None: as tokenizer_config.json states; else a vocabulary is
            lower-cased if only its specials have capital letters.
    """
    path = Path(path).expanduser()
    if not (path / METADATA).is_file():
        return load_published(path, lowercase)
    metadata = read_json(path / METADATA)
    kind, lowercase = metadata["kind"], metadata["lowercase"]
    if kind == "json":
        return JsonTokenizer((path / "tokenizer.json").read_text("utf-8"), metadata["special_ids"])
    if kind in ("unigram", "bpe"):
        return SentencePieceTokenizer((path / "sentencepiece.model").read_bytes(), kind, lowercase)
    pieces = read_vocabulary(path / "vocab.txt")
    if kind == "wordpiece":
        return WordPieceTokenizer(pieces, lowercase)
    return WordsTokenizer(pieces, lowercase, metadata["split"])
