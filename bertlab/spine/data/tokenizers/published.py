"""Tokenizers as others publish them, with the rules that their files state.

Read are Google's vocab.txt, Hugging Face's tokenizer.json, vocab.txt or vocab.json with merges.txt,
and SentencePiece's models. Refused is what has rules that are only in Python: it would tokenize
differently without a word.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from bertlab.spine.data.tokenizers.base import ROLES, SPECIALS, Tokenizer, find_specials
from bertlab.spine.data.tokenizers.fast import JsonTokenizer
from bertlab.spine.data.tokenizers.sentencepieces import BpeTokenizer, UnigramTokenizer
from bertlab.spine.data.tokenizers.wordpiece import WordPieceTokenizer
from bertlab.spine.errors import UserError

# transformers' tokenizer of a model_type whose files name no tokenizer_class, without "Fast".
_USUAL_CLASSES = {"bert": "BertTokenizer", "roberta": "RobertaTokenizer", "gpt2": "GPT2Tokenizer"}
# Classes without rules beyond vocab.txt and tokenizer_config.json, and vocab.json and merges.txt.
_BERT_CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer")
_BYTE_LEVEL_CLASSES = (
    *("GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer", "LongformerTokenizer"),
)
# Classes whose rules are in Python: they do not read tokenizer.json.
_PYTHON_CLASSES = (
    *("BertJapaneseTokenizer", "BertweetTokenizer", "BioGptTokenizer", "ByT5Tokenizer"),
    *("CanineTokenizer", "CTRLTokenizer", "EsmTokenizer", "FlaubertTokenizer"),
    *("GPTNeoXJapaneseTokenizer", "GPTSw3Tokenizer", "PhobertTokenizer", "ProphetNetTokenizer"),
    *("RoCBertTokenizer", "TapasTokenizer", "XLMTokenizer"),
)
# Keys of tokenizer_config.json that repeat what a part of tokenizer.json states, and its key.
_REPEATED = (
    ("do_lower_case", "normalizer", "lowercase"),
    ("strip_accents", "normalizer", "strip_accents"),
    ("tokenize_chinese_chars", "normalizer", "handle_chinese_chars"),
    ("add_prefix_space", "pre_tokenizer", "add_prefix_space"),
)


def load_published(path: Path, lowercase: bool | None) -> Tokenizer:
    """The tokenizer of a file or folder; arguments as for `load_tokenizer`."""
    if path.is_dir():
        names = ("tokenizer.json", "vocab.txt", "merges.txt")
        path = next((path / name for name in names if (path / name).is_file()), path)
    elif path.name == "vocab.txt" and lowercase is None:
        if path.with_name("tokenizer.json").is_file():
            path = path.with_name("tokenizer.json")
    settings = _read_settings(path.parent)
    if path.is_file() and path.name == "merges.txt":
        return _load_byte_level(path.parent, settings)
    if path.is_file() and path.suffix == ".txt":
        return _load_wordpiece(path, settings, lowercase)
    if path.is_file() and path.suffix == ".json":
        _refuse_other_rules(path, settings)
        _refuse_contradictions(path, settings)
        return _load_json(path.read_text("utf-8"), settings, path)
    if path.is_file() and path.suffix == ".model":
        return _load_sentencepiece(path, bool(lowercase))
    raise UserError(
        f"config.data.tokenizer.path={path} is no tokenizer: give a folder that bertlab wrote, a"
        " BERT vocab.txt, a tokenizer.json, a SentencePiece .model, or a folder with vocab.json and"
        " merges.txt"
    )


def _load_wordpiece(path: Path, settings: Mapping[str, Any], lowercase: bool | None) -> Tokenizer:
    """A vocabulary by Google's rules, or beside transformers' files by its BertTokenizer's.

    Those are the library's: other Unicode tables and customs than Google's (see `wordpiece`), and
    [UNK] for words of more than 100 characters.
    """
    names = {role: settings.get(f"{role}_token", name) for role, name in zip(ROLES, SPECIALS)}
    lines = path.read_bytes().decode().removesuffix("\n").split("\n")
    # Google strips each line; one of white space only is kept, or it would become a second "".
    pieces = [line.strip() or line.removesuffix("\r") for line in lines]
    if missing := [name for name in names.values() if name not in pieces]:
        raise UserError(f"{path} lacks {' '.join(missing)}; a vocabulary has one piece a line")
    capitals = [
        piece for piece in pieces if piece != piece.lower() and not re.fullmatch(r"\[.*\]", piece)
    ]
    lowercase = settings.get("do_lower_case") if lowercase is None else lowercase
    if lowercase is None and settings and capitals:
        raise UserError(
            f"{path} has pieces with capital letters, such as {capitals[0]!r}, but transformers"
            ' lower-cases text by default; put "do_lower_case": false, or true, into'
            " tokenizer_config.json"
        )
    lowercase = not capitals if lowercase is None else lowercase
    if not settings:
        return WordPieceTokenizer(pieces, lowercase)
    _refuse_other_rules(path, settings, _BERT_CLASSES)
    for key, usual in (("do_basic_tokenize", True), ("never_split", [])):
        if settings.get(key, usual) != usual:
            raise UserError(f"{path}: {key}={settings[key]!r} needs a tokenizer.json; add it")
    ids = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(ids, unk_token=names["unk"], max_input_chars_per_word=100)
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        lowercase=lowercase,
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    tokenizer.add_special_tokens([*names.values()])
    sep, cls = ((names[role], ids[names[role]]) for role in ("sep", "cls"))
    tokenizer.post_processor = tokenizers.processors.BertProcessing(sep, cls)
    return _load_json(tokenizer.to_str(), settings, path)


def _load_byte_level(directory: Path, settings: Mapping[str, Any]) -> Tokenizer:
    """Byte-level BPE as GPT-2's and RoBERTa's vocab.json and merges.txt describe it."""
    path = directory / "merges.txt"
    _refuse_other_rules(path, settings, _BYTE_LEVEL_CLASSES)
    vocabulary = _read_json(directory / "vocab.json")
    lines = path.read_bytes().decode().split("\n")
    # Merges may start with "#", but the first line with a version is none.
    lines = lines[1:] if lines[0].startswith("#version") else lines
    merges = [tuple(line.split(" ")) for line in lines if line]
    if any(piece.endswith("</w>") for piece in vocabulary):
        raise UserError(f"{directory} has GPT-1's words, which need rules that its files lack")
    space = bool(settings.get("add_prefix_space", False))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=space)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    specials = [name for names in ROLES.values() for name in names if name in vocabulary]
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(name, lstrip=name == "<mask>", special=True) for name in specials]
    )
    if {"<s>", "</s>"} <= vocabulary.keys() and _class_name(settings) != "GPT2Tokenizer":
        sep, cls = ((name, vocabulary[name]) for name in ("</s>", "<s>"))
        processor = tokenizers.processors.RobertaProcessing(sep, cls, True, space)
    else:
        processor = tokenizers.processors.ByteLevel(trim_offsets=True)
    tokenizer.post_processor = processor
    return _load_json(tokenizer.to_str(), settings, directory / "vocab.json")


def _load_sentencepiece(path: Path, lowercase: bool) -> Tokenizer:
    from sentencepiece import sentencepiece_model_pb2  # protobuf, which may be too old for it

    model = path.read_bytes()
    description = sentencepiece_model_pb2.ModelProto()
    try:
        description.ParseFromString(model)
    except Exception as error:  # protobuf's class of errors depends on its implementation
        raise UserError(f"{path} is not a SentencePiece model: {error}") from error
    trained = description.trainer_spec
    kinds = {trained.UNIGRAM: UnigramTokenizer, trained.BPE: BpeTokenizer}
    if trained.model_type not in kinds:
        raise UserError(f"{path} is a model of words or characters; only unigram and bpe are read")
    return kinds[trained.model_type](model, lowercase)


def _load_json(backend: str, settings: Mapping[str, Any], path: Path) -> JsonTokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_str(backend)
    except Exception as error:  # the library raises no narrower class
        raise UserError(f"{path} is not a tokenizer.json: {error}") from error
    _require_added(tokenizer, settings, path)
    names = {role: settings.get(f"{role}_token") for role in ROLES}
    names["cls"] = names["cls"] or settings.get("bos_token")
    names["sep"] = names["sep"] or settings.get("eos_token")
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    return JsonTokenizer(backend, find_specials(vocabulary, names, path))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error


def _read_settings(directory: Path) -> dict[str, Any]:
    """What transformers' files beside a tokenizer state, without nulls; tokens as strings."""
    settings = {}
    if (directory / "config.json").is_file():
        model = _read_json(directory / "config.json")
        settings = {key: model.get(key) for key in ("model_type", "tokenizer_class")}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (directory / name).is_file():
            read = _read_json(directory / name)
            settings |= {key: value for key, value in read.items() if value is not None}
    return {
        key: value["content"] if isinstance(value, dict) and "content" in value else value
        for key, value in settings.items()
        if value is not None
    }


def _class_name(settings: Mapping[str, Any]) -> str:
    """transformers' class for the tokenizer, without "Fast"; "" if the files do not state it."""
    name = settings.get("tokenizer_class") or _USUAL_CLASSES.get(settings.get("model_type"), "")
    return name.removesuffix("Fast")


def _refuse_other_rules(
    path: Path, settings: Mapping[str, Any], classes: Sequence[str] = ()
) -> None:
    """Refuses rules beyond the file; `classes` have none (not given: all but those in Python)."""
    name = _class_name(settings)
    has_none = name in classes if classes else name not in _PYTHON_CLASSES
    if "auto_map" in settings:
        name, has_none = f"{settings['auto_map']} (auto_map)", False
    if name and not has_none:
        raise UserError(
            f"{path}: the published tokenizer is a {name}, which has rules that this file does not"
            " hold; add a tokenizer.json with all of them, and"
            ' tokenizer_class="PreTrainedTokenizerFast" in tokenizer_config.json'
        )


def _refuse_contradictions(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuses settings against tokenizer.json: which counts depends on transformers' version."""
    backend = _read_json(path)
    for key, part, name in _REPEATED:
        rules = backend.get(part) or {}
        if name not in rules or key not in settings:
            continue
        # Accents are stripped from lower-cased text.
        value = rules["lowercase"] if rules[name] is None else rules[name]
        if settings[key] != value:
            raise UserError(
                f"{path.parent / 'tokenizer_config.json'}: {key}={settings[key]!r}, but"
                f" tokenizer.json has {name}={rules[name]!r}; make them equal"
            )


def _require_added(
    tokenizer: tokenizers.Tokenizer, settings: Mapping[str, Any], path: Path
) -> None:
    """Refuses a tokenizer without a token that the files beside it add."""
    added = {
        token["content"]: token.get("special", False)
        for token in settings.get("added_tokens_decoder", {}).values()
    }
    if (path.parent / "added_tokens.json").is_file():
        added = dict.fromkeys(_read_json(path.parent / "added_tokens.json"), False) | added
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for name, is_special in added.items():
        is_in_vocabulary = tokenizer.token_to_id(name) is not None
        if name not in known and not (is_special and is_in_vocabulary):
            raise UserError(
                f"{path} lacks the added token {name!r} of the files beside it; add the"
                " tokenizer.json that AutoTokenizer's save_pretrained writes"
            )
