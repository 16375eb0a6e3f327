"""Tokenizers as transformers' AutoTokenizer opens them: tokenizer.json and tokenizer_config.json.

They are built of the `tokenizers` library's own rules. Those differ from bertlab's in control and
private-use characters, a capital sigma at the end of a word, and names of special pieces in text,
which become the special pieces; the export's folder `tokenizer` has the exact rules. The library
has none for words, and none that are exactly SentencePiece's.
"""

from pathlib import Path

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from bertlab.data.tokenizers import SPECIALS, Tokenizer
from bertlab.data.tokenizers.wordpiece import LONGEST_WORD
from bertlab.files import write_json

ROLES = dict(pad="pad", unk="unk", cls="cls", sep="sep", mask="mask", bos="cls", eos="sep")


def save_fast_tokenizer(
    tokenizer: Tokenizer, directory: Path, max_length: int, segments: bool
) -> None:
    """Writes the two files, or prints that there are none for the tokenizer's kind.

    Args:
        tokenizer: of any kind.
        directory: exists.
        max_length: the model's positions.
        segments: whether the model reads token types.
    """
    if tokenizer.kind not in ("json", "wordpiece"):
        print(
            f"not exported: tokenizer.json, which has no rules for tokenizer.kind={tokenizer.kind};"
            " the folder `tokenizer` has the vocabulary"
        )
        return
    pieces = tokenizer.pieces()
    is_wordpiece = tokenizer.kind == "wordpiece"
    backend = wordpiece(tokenizer) if is_wordpiece else Backend.from_str(tokenizer.backend)
    backend.save(str(directory / "tokenizer.json"))
    ids = {role: getattr(tokenizer, f"{ours}_id") for role, ours in ROLES.items()}
    # Without special ids around them, texts of a pair have types that no model was trained on.
    framed = bool(tokenizer.prefix_ids or tokenizer.suffix_ids)
    typed = segments and framed and 1 in backend.encode("a", "a").type_ids
    settings = {
        # This class takes tokenizer.json as it is; others build rules around its vocabulary.
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
    model = models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD)
    backend = Backend(model)
    backend.normalizer = normalizers.BertNormalizer(lowercase=tokenizer.lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in SPECIALS])
    backend.post_processor = processors.BertProcessing(
        ("[SEP]", tokenizer.sep_id), ("[CLS]", tokenizer.cls_id)
    )
    return backend
