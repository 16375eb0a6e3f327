"""Tokenizers as others publish them, with the rules that their files state.

Read are Google's vocab.txt, Hugging Face's tokenizer.json and SentencePiece's models. Refused is
what has rules that these files do not hold: it would silently tokenize differently.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from bertlab.data.tokenizers.base import ROLES, SPECIALS, Tokenizer, find_specials
from bertlab.data.tokenizers.fast import JsonTokenizer
from bertlab.data.tokenizers.sentencepieces import BpeTokenizer, UnigramTokenizer
from bertlab.data.tokenizers.wordpiece import WordPieceTokenizer
from bertlab.errors import UserError
from bertlab.files import read_json

_BERT_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
# transformers' classes whose rules are in Python: they do not read tokenizer.json.
_PYTHON_CLASSES = (
    *("BertJapaneseTokenizer", "BertweetTokenizer", "BioGptTokenizer", "ByT5Tokenizer"),
    *("CanineTokenizer", "CTRLTokenizer", "EsmTokenizer", "FlaubertTokenizer"),
    *("GPTNeoXJapaneseTokenizer", "GPTSw3Tokenizer", "PhobertTokenizer", "ProphetNetTokenizer"),
    *("RoCBertTokenizer", "TapasTokenizer", "XLMTokenizer"),
)
# Keys of tokenizer_config.json with which a vocab.txt has Google's rules.
_GOOGLE_SETTINGS = {
    "do_basic_tokenize": True,
    "never_split": [],
    "tokenize_chinese_chars": True,
    **{f"{role}_token": name for role, name in zip(ROLES, SPECIALS)},
}
# Keys of tokenizer_config.json that repeat what a part of tokenizer.json states, and its key.
_REPEATED = (
    ("do_lower_case", "normalizer", "lowercase"),
    ("strip_accents", "normalizer", "strip_accents"),
    ("tokenize_chinese_chars", "normalizer", "handle_chinese_chars"),
    ("add_prefix_space", "pre_tokenizer", "add_prefix_space"),
)
_ADD_JSON = "add the tokenizer.json that AutoTokenizer's save_pretrained writes"


def load_published(path: Path, lowercase: bool | None) -> Tokenizer:
    """The tokenizer of a file or folder; arguments as for `load_tokenizer`."""
    if path.is_dir():
        names = ("tokenizer.json", "vocab.txt")
        path = next((path / name for name in names if (path / name).is_file()), path)
    settings = _read_settings(path.parent)
    if path.is_file() and path.suffix == ".txt":
        return _load_vocabulary(path, settings, lowercase)
    if path.is_file() and path.suffix == ".json":
        return _load_json(path, settings)
    if path.is_file() and path.suffix == ".model":
        return _load_sentencepiece(path, bool(lowercase))
    raise UserError(
        f"config.data.tokenizer.path={path} is no tokenizer: give a folder that bertlab wrote, or a"
        f" vocab.txt, a tokenizer.json, a SentencePiece .model, or the folder of one; {_ADD_JSON}"
    )


def _load_vocabulary(path: Path, settings: Mapping[str, Any], lowercase: bool | None) -> Tokenizer:
    lines = path.read_bytes().decode().removesuffix("\n").split("\n")
    # Google strips each line; one of white space only is kept, or it would become a second "".
    pieces = [line.strip() or line.removesuffix("\r") for line in lines]
    if missing := [name for name in SPECIALS if name not in pieces]:
        raise UserError(f"{path} lacks {' '.join(missing)}; a vocabulary has one piece a line")
    capitals = [
        piece for piece in pieces if piece != piece.lower() and not re.fullmatch(r"\[.*\]", piece)
    ]
    if lowercase is None:
        lowercase = settings.get("do_lower_case", not capitals)
    if settings:
        _require_class(path, settings, _class_name(settings) in ("", *_BERT_CLASSES))
        rules = _GOOGLE_SETTINGS | {"strip_accents": lowercase}
        for key in rules.keys() & settings.keys():
            if settings[key] != rules[key]:
                raise UserError(f"{path} has not the rule {key}={settings[key]!r}; {_ADD_JSON}")
        if capitals and "do_lower_case" not in settings:
            raise UserError(
                f"{path} has pieces with capital letters, such as {capitals[0]!r}, but transformers"
                ' lower-cases text by default; put "do_lower_case": false, or true, into'
                " tokenizer_config.json"
            )
    return WordPieceTokenizer(pieces, lowercase)


def _load_json(path: Path, settings: Mapping[str, Any]) -> Tokenizer:
    _require_class(path, settings, _class_name(settings) not in _PYTHON_CLASSES)
    description = read_json(path)
    for key, section, name in _REPEATED:
        rules = description.get(section) or {}
        if name not in rules or key not in settings:
            continue
        # Accents are stripped from lower-cased text.
        value = rules["lowercase"] if rules[name] is None else rules[name]
        if settings[key] != value:  # which counts depends on transformers' version
            raise UserError(
                f"{path.parent / 'tokenizer_config.json'}: {key}={settings[key]!r}, but"
                f" tokenizer.json has {name}={rules[name]!r}; make them equal"
            )
    backend = path.read_text("utf-8")
    tokenizer = tokenizers.Tokenizer.from_str(backend)
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for token in settings.get("added_tokens_decoder", {}).values():
        name = token["content"]
        if name not in added and not (token.get("special") and name in vocabulary):
            raise UserError(f"{path} lacks the added token {name!r}; {_ADD_JSON}")
    names = {role: settings.get(f"{role}_token") for role in ROLES}
    names["cls"] = names["cls"] or settings.get("bos_token")
    names["sep"] = names["sep"] or settings.get("eos_token")
    return JsonTokenizer(backend, find_specials(vocabulary, names, path))


def _load_sentencepiece(path: Path, lowercase: bool) -> Tokenizer:
    from sentencepiece import sentencepiece_model_pb2  # protobuf, which may be too old for it

    model = path.read_bytes()
    trained = sentencepiece_model_pb2.ModelProto.FromString(model).trainer_spec
    kinds = {trained.UNIGRAM: UnigramTokenizer, trained.BPE: BpeTokenizer}
    if trained.model_type not in kinds:
        raise UserError(f"{path} is a model of words or characters; only unigram and bpe are read")
    return kinds[trained.model_type](model, lowercase)


def _read_settings(directory: Path) -> dict[str, Any]:
    """What transformers' files beside a tokenizer state, without nulls; tokens as strings."""
    settings = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (directory / name).is_file():
            read = read_json(directory / name)
            settings |= {key: value for key, value in read.items() if value is not None}
    return {
        key: value["content"] if isinstance(value, dict) and "content" in value else value
        for key, value in settings.items()
    }


def _class_name(settings: Mapping[str, Any]) -> str:
    """transformers' class for the tokenizer, without "Fast"; "" if the files do not state it."""
    return settings.get("tokenizer_class", "").removesuffix("Fast")


def _require_class(path: Path, settings: Mapping[str, Any], is_read: bool) -> None:
    """Refuses a class with rules beyond the file."""
    if not is_read or "auto_map" in settings:
        name = _class_name(settings) or "class of auto_map"
        raise UserError(
            f"{path}: the published tokenizer is a {name}, which has rules that this file does not"
            ' hold; add a tokenizer.json with all of them, and "tokenizer_class":'
            ' "PreTrainedTokenizerFast" in tokenizer_config.json'
        )
