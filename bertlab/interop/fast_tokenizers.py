"""Writes tokenizers as Hugging Face's fast tokenizers (tokenizer.json) with the same ids.

Character classes (white space, word characters, punctuation, control characters, accents) are written out as the code points
of this Python's Unicode version. Ids may differ in two cases: for characters newer than this Unicode version, whose lower case
and decomposition come from the `tokenizers` library; and in a unigram model for two splittings of equal score, where
SentencePiece's choice depends on float32 rounding.

One custom of Hugging Face stays: names of special pieces in text, such as "[MASK]", become the special pieces unless you set
`split_special_tokens=True`, as bertlab's tokenizers do.
"""

import functools
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

import sentencepiece
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from bertlab.data.gpt1_words import END_OF_WORD
from bertlab.data.tokenizers import Tokenizer
from bertlab.data.vocabularies import CJK_BLOCKS, LONGEST_WORD, is_bert_control, is_bert_punctuation
from bertlab.errors import UserError

_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"

_BYTE = ["<", "0", "x", "[0-9A-F]", "[0-9A-F]", ">"]


def save_fast_tokenizer(tokenizer: Tokenizer, directory: str | Path, max_length: int, *, segments: bool = True) -> None:
    """Writes tokenizer.json and tokenizer_config.json for transformers' AutoTokenizer.

    WordPiece also gets vocab.txt, and GPT-1's tokenizer vocab.json and merges.txt.

    The special ids around a text are `tokenizer.prefix_ids` and `suffix_ids`. A pair of texts is prefix, first, suffix,
    second, suffix, with token type 1 from the second text on.

    tokenizer.json cannot express how GPT-1 repairs text (ftfy), standardises punctuation and finds words (spaCy). As in
    transformers' OpenAIGPTTokenizer, BERT's words replace them. Ids then differ for contractions (spaCy: "do n't"),
    abbreviations ("U.S."), compounds without a hyphen that spaCy splits ("10km"), links, runs of punctuation ("..."), accents
    (kept by spaCy), dashes and dots that `standardise` simplifies, and line breaks.

    Args:
      tokenizer: of any kind.
      directory: created if it does not exist.
      max_length: the model's most tokens, special ones included.
      segments: whether the model reads token types; otherwise the tokenizer does not return them.

    Raises:
      UserError: a SentencePiece model has its own normalisation rules.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    if tokenizer.kind == "json":
        tokenizer.save(directory)
        (directory / "bertlab_tokenizer.json").unlink()
        backend = Backend.from_file(str(directory / "tokenizer.json"))
    else:
        backend = _BACKENDS[tokenizer.kind](tokenizer)
        _add_specials(backend, tokenizer)
        backend.save(str(directory / "tokenizer.json"))
    pieces = tokenizer.pieces()
    roles = {"pad": "pad", "unk": "unk", "cls": "cls", "sep": "sep", "mask": "mask", "bos": "cls", "eos": "sep"}
    ids = {role: getattr(tokenizer, f"{ours}_id") for role, ours in roles.items()}
    # Without a frame, a second text gets type 1 by default, but no model was trained on such pairs.
    framed = bool(tokenizer.prefix_ids or tokenizer.suffix_ids)
    types = ["token_type_ids"] if segments and framed and 1 in backend.encode("a", "a").type_ids else []
    config = {
        # This class uses tokenizer.json unchanged; others build their own rules around its vocabulary.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": ["input_ids", *types, "attention_mask"],
        "clean_up_tokenization_spaces": False,
        **{f"{role}_token": pieces[index] for role, index in ids.items() if index is not None},
    }
    if isinstance(backend.model, models.WordPiece):
        # For BertTokenizer, which builds its own rules from these.
        (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
        config["do_lower_case"] = tokenizer.lowercase
        if isinstance(rules := backend.normalizer, normalizers.BertNormalizer):
            config |= {"strip_accents": rules.strip_accents, "tokenize_chinese_chars": rules.handle_chinese_chars}
    if tokenizer.kind == "gpt1":
        vocabulary = {piece: index for index, piece in enumerate(pieces)}
        (directory / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
        lines = ["#version: 0.2", *map(" ".join, tokenizer.merges())]
        (directory / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _add_specials(backend: Backend, tokenizer: Tokenizer) -> None:
    pieces = tokenizer.pieces()
    ids = sorted({tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id} - {None})
    backend.add_special_tokens([AddedToken(pieces[index], special=True, normalized=False) for index in ids])
    if tokenizer.prefix_ids or tokenizer.suffix_ids:
        prefix, suffix = ([pieces[index] for index in part] for part in (tokenizer.prefix_ids, tokenizer.suffix_ids))
        single = [*prefix, "$A", *suffix]
        backend.post_processor = processors.TemplateProcessing(
            single=single,
            pair=[*single, "$B:1", *(f"{piece}:1" for piece in suffix)],
            special_tokens=[(pieces[index], index) for index in {*tokenizer.prefix_ids, *tokenizer.suffix_ids}],
        )


@functools.cache
def _characters(chosen: Callable[[str], bool]) -> str:
    """A regular expression's [class] of the chosen characters, as ranges of code points."""
    ranges: list[list[int]] = []
    for code in range(sys.maxunicode + 1):
        # UTF-8 has no surrogates.
        if 0xD800 <= code <= 0xDFFF or not chosen(chr(code)):
            continue
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return _ranges(ranges)


def _ranges(ranges: Sequence[Sequence[int]]) -> str:
    return "[" + "".join(rf"\x{{{first:X}}}-\x{{{last:X}}}" for first, last in ranges) + "]"


def _is_accent(character: str) -> bool:
    return unicodedata.category(character) == "Mn"


def _is_symbol(character: str) -> bool:
    return not (character.isalnum() or character == "_")


def _lowercase() -> list[normalizers.Normalizer]:
    # The library lower-cases single characters, but a sigma at the end of a word has another form (Unicode, Final_Sigma).
    letter = r"[\p{Cased}&&[^\p{Case_Ignorable}]]"
    final_sigma = rf"(?<={letter}\p{{Case_Ignorable}}{{0,30}})Σ(?!\p{{Case_Ignorable}}*{letter})"
    return [normalizers.Replace(Regex(final_sigma), "ς"), normalizers.Lowercase()]


def _wordpiece(tokenizer: Tokenizer) -> Backend:
    vocabulary = {piece: index for index, piece in enumerate(tokenizer.pieces())}
    backend = Backend(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD))
    steps = [normalizers.Replace(Regex(_characters(is_bert_control)), "")]
    if tokenizer.lowercase:
        steps += [*_lowercase(), normalizers.NFD(), normalizers.Replace(Regex(_characters(_is_accent)), "")]
    backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_characters(str.isspace)), "removed"),
            pre_tokenizers.Split(Regex(_ranges(CJK_BLOCKS)), "isolated"),
            pre_tokenizers.Split(Regex(_characters(is_bert_punctuation)), "isolated"),
        ]
    )
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return backend


def _words(tokenizer: Tokenizer) -> Backend:
    if tokenizer.split != "punctuation":
        raise UserError(
            "this tokenizer splits at white space and divides only unknown words, and a tokenizer.json cannot express"
            " that; export the vectors with --to=word2vec"
        )
    vocabulary = {piece: index for index, piece in enumerate(tokenizer.pieces())}
    backend = Backend(models.WordLevel(vocabulary, unk_token=tokenizer.pieces()[tokenizer.unk_id]))
    if tokenizer.lowercase:
        backend.normalizer = normalizers.Sequence(_lowercase())
    # Python's \w and \s; other regular expressions define them differently.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_characters(str.isspace)), "removed"),
            pre_tokenizers.Split(Regex(_characters(_is_symbol)), "isolated"),
        ]
    )
    # Each word is one piece. To join words by spaces, use WordPiece's decoder with a prefix that no word has.
    backend.decoder = decoders.WordPiece(prefix=" ", cleanup=False)
    return backend


def _sentencepiece(tokenizer: Tokenizer) -> Backend:
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    _require_identity(processor)
    pieces = tokenizer.pieces()
    no_text = lambda i: any((processor.is_control(i), processor.is_byte(i), processor.is_unknown(i), processor.is_unused(i)))
    normal = {piece: processor.get_score(index) for index, piece in enumerate(pieces) if not no_text(index)}
    unknown = pieces[processor.unk_id()]
    if tokenizer.kind == "unigram":
        # Other pieces must not match text (see the pre-tokenizer) or change the lowest score, on which the library relies.
        least = min(normal.values())
        model = models.Unigram(
            [(piece, normal.get(piece, least)) for piece in pieces], unk_id=processor.unk_id(), byte_fallback=True
        )
    else:
        model = models.BPE(
            {piece: index for index, piece in enumerate(pieces)},
            _merges(normal),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    backend = Backend(model)
    backend.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(_characters(str.isspace) + "+"), " "),
            normalizers.Strip(),
            *(_lowercase() if tokenizer.lowercase else []),
            normalizers.Prepend(_SPACE),
            normalizers.Replace(" ", _SPACE),
            normalizers.Replace(Regex(_SPACE + r"+\z"), ""),
        ]
    )
    hidden = [index for index, piece in enumerate(pieces) if piece not in normal and not processor.is_byte(index)]
    names = [[re.escape(character) for character in pieces[index]] for index in hidden]
    backend.pre_tokenizer = pre_tokenizers.Split(
        Regex("|".join(_cut(parts, normal) for parts in [*names, _BYTE])), "merged_with_previous"
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1 << 16, 0)]
    )
    return backend


def _require_identity(processor: sentencepiece.SentencePieceProcessor) -> None:
    """Refuses a model that normalises characters or white space differently from bertlab's."""
    for text, expected in (("ﬁ Ａ①　", "ﬁ▁Ａ①　"), (" a  b ", "▁a▁b")):
        if processor.normalize(text).strip(_SPACE) != expected.strip(_SPACE):
            raise UserError(
                "this SentencePiece model has its own normalisation rules, and tokenizer.json cannot hold them; use a tokenizer"
                " trained by bertlab, or the publisher's tokenizer.json"
            )


def _merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """All pairs of pieces that SentencePiece may merge, in its order: the best resulting piece first."""
    cuts = ((-score, cut, piece[:cut], piece[cut:]) for piece, score in scores.items() for cut in range(1, len(piece)))
    return [(left, right) for _, _, left, right in sorted(cuts) if left in scores and right in scores]


def _cut(parts: Sequence[str], pieces: Sequence[str]) -> str:
    """Splits a special name (the expressions of its characters) in two in text, if possible without splitting a piece."""
    text = "\n".join(pieces)
    cuts = range(1, len(parts))
    cut = next((cut for cut in cuts if not re.search(parts[cut - 1] + parts[cut], text)), 1)
    return "".join(parts[:cut]) + f"(?={''.join(parts[cut:])})"


def _gpt1(tokenizer: Tokenizer) -> Backend:
    pieces = tokenizer.pieces()
    ids = {piece: index for index, piece in enumerate(pieces)}
    backend = Backend(models.BPE(ids, tokenizer.merges(), unk_token=pieces[0], end_of_word_suffix=END_OF_WORD))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.BPEDecoder(suffix=END_OF_WORD)
    return backend


_BACKENDS = {"unigram": _sentencepiece, "bpe": _sentencepiece, "wordpiece": _wordpiece, "words": _words, "gpt1": _gpt1}
