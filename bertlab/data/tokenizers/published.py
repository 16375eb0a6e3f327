"""Tokenizers as others publish them, with the rules that their files state.

It reads Google's vocab.txt, Hugging Face's tokenizer.json and SentencePiece's models, and refuses
tokenizers with rules that these files do not hold: they would silently tokenize differently.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from bertlab.data.tokenizers.base import (
    ROLES,
    SPECIALS,
    Tokenizer,
    find_specials,
    read_vocabulary,
)
from bertlab.data.tokenizers.fast import JsonTokenizer
from bertlab.data.tokenizers.sentencepieces import SentencePieceTokenizer
from bertlab.data.tokenizers.wordpiece import WordPieceTokenizer
from bertlab.errors import UserError
from bertlab.files import read_json

# Values in tokenizer_config.json for which a vocab.txt has Google's rules.
_GOOGLE_RULES = {
    "tokenizer_class": ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"),
    "auto_map": (),
    "do_basic_tokenize": (True,),
    "never_split": ([],),
    "tokenize_chinese_chars": (True,),
    **{f"{role}_token": (name,) for role, name in zip(ROLES, SPECIALS)},
}
# Keys of tokenizer_config.json that repeat part of tokenizer.json, and the key there.
_REPEATED = (
    ("do_lower_case", "normalizer", "lowercase"),
    ("strip_accents", "normalizer", "strip_accents"),
    ("tokenize_chinese_chars", "normalizer", "handle_chinese_chars"),
    ("add_prefix_space", "pre_tokenizer", "add_prefix_space"),
)


def load_published(path: Path, lowercase: bool | None) -> Tokenizer:
    """The tokenizer of a file or folder; arguments as for `load_tokenizer`."""
    if path.is_dir():
        names = ("tokenizer.json", "vocab.txt")
        path = next((path / name for name in names if (path / name).is_file()), path)
    readers = {".txt": _load_vocabulary, ".json": _load_json, ".model": _load_sentencepiece}
    if not path.is_file() or path.suffix not in readers:
        raise UserError(
            f"config.data.tokenizer.path={path} is not a tokenizer: give a folder from bertlab,"
            " or a vocab.txt, a tokenizer.json, a SentencePiece .model, or the folder of one"
        )
    return readers[path.suffix](path, _read_settings(path.parent), lowercase)


def _read_settings(directory: Path) -> dict[str, Any]:
    """Settings that transformers stores next to a tokenizer, without nulls; tokens as strings."""
    settings = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (directory / name).is_file():
            for key, value in read_json(directory / name).items():
                is_token = isinstance(value, dict) and "content" in value
                settings |= {} if value is None else {key: value["content"] if is_token else value}
    if "tokenizer_class" in settings:
        settings["tokenizer_class"] = settings["tokenizer_class"].removesuffix("Fast")
    return settings


def _load_vocabulary(path: Path, settings: Mapping[str, Any], lowercase: bool | None) -> Tokenizer:
    # Google strips each line; a line of only white space is kept, or it would be a second "".
    pieces = [line.strip() or line.removesuffix("\r") for line in read_vocabulary(path)]
    if missing := [name for name in SPECIALS if name not in pieces]:
        raise UserError(f"{path} lacks {' '.join(missing)}; a vocabulary has one piece per line")
    if lowercase is None:
        words = [piece for piece in pieces if not re.fullmatch(r"\[.*\]", piece)]
        is_lower = all(word == word.lower() for word in words)
        lowercase = settings.get("do_lower_case", is_lower)
    rules = _GOOGLE_RULES | {"strip_accents": (lowercase,)}
    for key, values in rules.items():
        if key in settings and settings[key] not in values:
            raise UserError(
                f"{path} does not hold the rules of {key}={settings[key]!r}; add the tokenizer.json"
                " that AutoTokenizer's save_pretrained writes"
            )
    return WordPieceTokenizer(pieces, lowercase)


def _load_json(path: Path, settings: Mapping[str, Any], lowercase: bool | None) -> Tokenizer:
    if "auto_map" in settings:
        raise UserError(f"{path}: the published tokenizer has rules in Python, in auto_map's file")
    description = read_json(path)
    for key, section, name in _REPEATED:
        rules = description.get(section) or {}
        if name not in rules or key not in settings:
            continue
        # Accents are stripped if text is lower-cased.
        value = rules["lowercase"] if rules[name] is None else rules[name]
        if settings[key] != value:  # which one counts depends on transformers' version
            raise UserError(
                f"{path.parent / 'tokenizer_config.json'}: {key}={settings[key]!r}, but"
                f" tokenizer.json has {name}={rules[name]!r}; make them equal"
            )
    backend = path.read_text("utf-8")
    vocabulary = tokenizers.Tokenizer.from_str(backend).get_vocab(with_added_tokens=True)
    names = {role: settings.get(f"{role}_token") for role in ROLES}
    names["cls"] = names["cls"] or settings.get("bos_token")
    names["sep"] = names["sep"] or settings.get("eos_token")
    return JsonTokenizer(backend, find_specials(vocabulary, names, path))


def _load_sentencepiece(path: Path, settings: Mapping[str, Any], lowercase: bool | None):
    from sentencepiece import sentencepiece_model_pb2  # needs protobuf, which may be too old

    model = path.read_bytes()
    trained = sentencepiece_model_pb2.ModelProto.FromString(model).trainer_spec
    kinds = {trained.UNIGRAM: "unigram", trained.BPE: "bpe"}
    if trained.model_type not in kinds:
        raise UserError(f"{path} is a model of words or characters; only unigram and bpe are read")
    return SentencePieceTokenizer(model, kinds[trained.model_type], bool(lowercase))
