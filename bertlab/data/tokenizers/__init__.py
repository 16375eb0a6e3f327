"""Tokenizers: trained here (unigram, bpe, wordpiece, words) or read from a vocab.txt of Google's, a
tokenizer.json of Hugging Face's or a SentencePiece model."""

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from bertlab.data.tokenizers import base, sentencepieces
from bertlab.data.tokenizers.base import ROLES, SPECIALS, Tokenizer
from bertlab.data.tokenizers.fast import JsonTokenizer
from bertlab.data.tokenizers.sentencepieces import SentencePieceTokenizer
from bertlab.data.tokenizers.wordpiece import WordPieceTokenizer, train_wordpiece
from bertlab.data.tokenizers.words import DIVIDES, WordsTokenizer, train_words
from bertlab.errors import UserError, require_choice
from bertlab.files import read_json

__all__ = ["SPECIALS", "Tokenizer", "load_tokenizer", "sample_texts", "train_tokenizer"]


def sample_texts(
    texts: Iterable[str], sentences: int, seed: int, lowercase=False, characters=20_000_000
) -> list[str]:
    """Draws a uniform sample of bounded size from a stream, in one pass and in its order.

    The sample is the normalised texts whose random numbers are below a threshold: the highest of 1,
    0.9, 0.81, ... at which it is within both bounds. Empty texts are left out. SentencePiece needs
    about 20 bytes for each character.
    """
    generator = random.Random(seed)
    kept, size, threshold = [], 0, 1.0
    for text in texts:
        number = generator.random()
        text = base.normalise(text, lowercase) if number < threshold else ""
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
    kind: str, sample: Sequence[str], vocab_size: int, lowercase=False, split="punctuation"
) -> Tokenizer:
    """Trains a tokenizer (see `config/defaults.py`) on normalised sentences (`sample_texts`).

    `vocab_size` includes the five specials and SentencePiece's 256 bytes.
    """
    require_choice("config.data.tokenizer.kind", kind, ("unigram", "bpe", "wordpiece", "words"))
    require_choice("config.data.tokenizer.split", split, DIVIDES)
    if kind == "wordpiece":
        tokenizer = train_wordpiece(sample, vocab_size, lowercase)
    elif kind == "words":
        tokenizer = train_words(sample, vocab_size, lowercase, split)
    else:
        tokenizer = sentencepieces.train_sentencepiece(sample, kind, vocab_size, lowercase)
    if (size := tokenizer.vocab_size) != vocab_size:
        most = "largest" if size < vocab_size else "smallest"
        raise UserError(
            f"config.data.tokenizer.vocab_size={vocab_size}: the {most} value that works for this"
            f" text is {size}"
        )
    return tokenizer


def load_tokenizer(path: str | Path, lowercase: bool | None = None) -> Tokenizer:
    """The tokenizer of a folder that `save` wrote; of a vocab.txt (Google's rules), tokenizer.json
    or SentencePiece .model; or of a folder that has one of the first two.

    `lowercase` is only for a vocab.txt and for SentencePiece, whose files do not say so. None: as
    tokenizer_config.json states; else if only a vocabulary's specials have capital letters.
    """
    path = Path(path).expanduser()
    if (path / base.METADATA).is_file():
        return _load_saved(path, **read_json(path / base.METADATA))
    if path.is_dir():
        names = ("tokenizer.json", "vocab.txt")
        path = next((path / name for name in names if (path / name).is_file()), path)
    if not path.is_file() or path.suffix not in (".txt", ".json", ".model"):
        raise UserError(
            f"config.data.tokenizer.path={path} is not a tokenizer: give a folder from bertlab,"
            " or a vocab.txt, a tokenizer.json, a SentencePiece .model, or the folder of one"
        )
    if path.suffix == ".model":
        model = path.read_bytes()
        return SentencePieceTokenizer(model, sentencepieces.model_kind(model), bool(lowercase))
    config = path.with_name("tokenizer_config.json")
    settings = read_json(config) if config.is_file() else {}
    if path.suffix == ".txt":
        return _load_vocabulary(path, settings, lowercase)
    return _load_json(path, settings)


def _load_saved(path: Path, kind: str, lowercase: bool, special_ids=None, split="") -> Tokenizer:
    if kind == "json":
        return JsonTokenizer((path / "tokenizer.json").read_text("utf-8"), special_ids)
    if kind in ("unigram", "bpe"):
        return SentencePieceTokenizer((path / "sentencepiece.model").read_bytes(), kind, lowercase)
    pieces = _read_pieces(path / "vocab.txt")
    if kind == "wordpiece":
        return WordPieceTokenizer(pieces, lowercase)
    return WordsTokenizer(pieces, lowercase, split)


def _load_json(path: Path, settings: Mapping[str, Any]) -> Tokenizer:
    def name(role: str) -> str | None:
        token = settings.get(f"{role}_token")
        return token["content"] if isinstance(token, dict) else token

    names = {role: name(role) for role in ROLES}
    names["cls"] = names["cls"] or name("bos")
    names["sep"] = names["sep"] or name("eos")
    backend = path.read_text("utf-8")
    vocabulary = tokenizers.Tokenizer.from_str(backend).get_vocab(with_added_tokens=True)
    return JsonTokenizer(backend, base.find_specials(vocabulary, names, path))


def _load_vocabulary(path: Path, settings: Mapping[str, Any], lowercase: bool | None) -> Tokenizer:
    # Google strips each line; a line of only white space is kept, or it would be a second "".
    pieces = [line.strip() or line.removesuffix("\r") for line in _read_pieces(path)]
    if missing := [name for name in SPECIALS if name not in pieces]:
        raise UserError(f"{path} lacks {' '.join(missing)}; a vocabulary has one piece per line")
    if lowercase is None:
        words = [piece for piece in pieces if not re.fullmatch(r"\[.*\]", piece)]
        lowercase = settings.get("do_lower_case", all(word == word.lower() for word in words))
    rules = {"tokenizer_class": "(Bert|DistilBert|Electra)Tokenizer(Fast)?"}
    rules |= {"tokenize_chinese_chars": "True", "strip_accents": str(lowercase)}
    for key, rule in rules.items():
        if (value := settings.get(key)) is not None and not re.fullmatch(rule, str(value)):
            raise UserError(
                f"{path} does not have the rules of {key}={value!r} in its tokenizer_config.json;"
                " give a tokenizer.json that does (AutoTokenizer's save_pretrained writes one)"
            )
    return WordPieceTokenizer(pieces, lowercase)


def _read_pieces(path: Path) -> list[str]:
    """The lines of a vocab.txt; a piece may be a carriage return."""
    return path.read_bytes().decode().removesuffix("\n").split("\n")
