"""Tokenizers as transformers' AutoTokenizer opens them, by the `tokenizers` library's rules. Those
differ from bertlab's in control and private-use characters, a capital sigma at the end of a word,
and names of special pieces in text; the export's folder `tokenizer` has the exact rules."""

from pathlib import Path

import sentencepiece
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from bertlab.data.tokenizers import Tokenizer
from bertlab.data.tokenizers.sentencepieces import SPACE_MARK
from bertlab.data.tokenizers.wordpiece import LONGEST_WORD
from bertlab.errors import UserError
from bertlab.files import write_json

ROLES = dict(pad="pad", unk="unk", cls="cls", sep="sep", mask="mask", bos="cls", eos="sep")


def save_fast_tokenizer(
    tokenizer: Tokenizer, directory: Path, max_length: int, segments: bool
) -> None:
    """Writes tokenizer.json and tokenizer_config.json, for a model with `max_length` positions that
    reads `segments` or not: type 1 from the second text of a pair on."""
    if tokenizer.kind == "words":
        print("not exported: tokenizer.json, which cannot express a vocabulary of words")
        return
    pieces = tokenizer.pieces()
    if tokenizer.kind == "json":
        backend = Backend.from_str(tokenizer.backend)
    else:
        backend = wordpiece(tokenizer) if tokenizer.kind == "wordpiece" else subwords(tokenizer)
        specials = [pieces[index] for index in sorted(tokenizer.special_ids)]
        backend.add_special_tokens([AddedToken(name, normalized=False) for name in specials])
        prefix = [pieces[index] for index in tokenizer.prefix_ids]
        suffix = [pieces[index] for index in tokenizer.suffix_ids]
        single = [*prefix, "$A", *suffix]
        backend.post_processor = processors.TemplateProcessing(
            single=single,
            pair=[*single, "$B:1", *(f"{piece}:1" for piece in suffix)],
            special_tokens=[(name, pieces.index(name)) for name in {*prefix, *suffix}],
        )
    backend.save(str(directory / "tokenizer.json"))
    ids = {role: getattr(tokenizer, f"{ours}_id") for role, ours in ROLES.items()}
    # Without special ids around them, texts of a pair get types that no model was trained on.
    framed = bool(tokenizer.prefix_ids or tokenizer.suffix_ids)
    typed = segments and framed and 1 in backend.encode("a", "a").type_ids
    settings = {
        # This class uses tokenizer.json unchanged; others build rules around its vocabulary.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": ["input_ids", *["token_type_ids"] * typed, "attention_mask"],
        "clean_up_tokenization_spaces": False,
        **{f"{role}_token": pieces[index] for role, index in ids.items() if index is not None},
    }
    write_json(directory / "tokenizer_config.json", settings)


def wordpiece(tokenizer: Tokenizer) -> Backend:
    """BERT's rules."""
    vocabulary = {piece: index for index, piece in enumerate(tokenizer.pieces())}
    longest = dict(max_input_chars_per_word=LONGEST_WORD)
    backend = Backend(models.WordPiece(vocabulary, unk_token="[UNK]", **longest))
    backend.normalizer = normalizers.BertNormalizer(lowercase=tokenizer.lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return backend


def subwords(tokenizer: Tokenizer) -> Backend:
    """SentencePiece's unigram model or BPE."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.model)
    if processor.normalize("ﬁ Ａ①").strip(SPACE_MARK) != f"ﬁ{SPACE_MARK}Ａ①":
        raise UserError(
            "this SentencePiece model normalises text by its own rules, which are not written to"
            " tokenizer.json; use the publisher's tokenizer.json"
        )
    pieces, unknown = tokenizer.pieces(), processor.unk_id()
    scores = {
        piece: processor.get_score(index)
        for index, piece in enumerate(pieces)
        if not (processor.is_control(index) or processor.is_byte(index) or index == unknown)
    }
    if tokenizer.kind == "unigram":
        # The library derives an unknown piece's score from the lowest score of all.
        least = min(scores.values())
        scored = [(piece, scores.get(piece, least)) for piece in pieces]
        backend = Backend(models.Unigram(scored, unk_id=unknown, byte_fallback=True))
    else:
        ids = {piece: index for index, piece in enumerate(pieces)}
        rules = dict(unk_token=pieces[unknown], fuse_unk=True, byte_fallback=True)
        backend = Backend(models.BPE(ids, merges(scores), **rules))
    steps = [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    steps += [normalizers.Lowercase()] if tokenizer.lowercase else []
    backend.normalizer = normalizers.Sequence(steps)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(SPACE_MARK, prepend_scheme="always")
    steps = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    return backend


def merges(scores: dict[str, float]) -> list[tuple[str, str]]:
    """All pairs of pieces that SentencePiece may merge, the best resulting piece first."""
    cuts = [
        (-score, cut, piece[:cut], piece[cut:])
        for piece, score in scores.items()
        for cut in range(1, len(piece))
    ]
    return [(a, b) for _, _, a, b in sorted(cuts) if a in scores and b in scores]
