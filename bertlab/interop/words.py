"""Vocabularies of whole words, one for each row of a model's embeddings."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import AddedToken, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from bertlab.compressed import text_of
from bertlab.data.tokenizers import JsonTokenizer, Tokenizer, WordsTokenizer, load_tokenizer
from bertlab.data.vocabularies import SPECIALS
from bertlab.errors import UserError
from bertlab.files import read_json

TOKENIZER = "tokenizer"
"""The folder of an export that holds the run's tokenizer, where a format has no rules for splitting text."""

# What bilm-tf, awd-lstm-lm and fastai call their specials.
_NAMES = {
    "pad": ("[PAD]", "xxpad", "_pad_", "<pad>"),
    "unk": ("[UNK]", "<UNK>", "xxunk", "_unk_", "<unk>"),
    "cls": ("[CLS]", "<S>", "xxbos", "_bos_", "<s>"),
    "sep": ("[SEP]", "</S>", "<eos>", "xxeos", "_eos_", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}


def word_tokenizer(pieces: Sequence[str], source: Path) -> Tokenizer:
    """A tokenizer that maps each word to its row.

    A vocabulary with our five special pieces splits text as bertlab does. Other vocabularies were made from text with spaces
    between tokens, so their tokenizers split at spaces. The special piece for the end of a text (else the start, else unknown
    words) stands in for missing ones, except for the mask. So unknown words become </S> in bilm-tf's small vocabularies, which
    list all words of a data set and have no <UNK>.

    Args:
        pieces: words in the order of rows.
        source: their file, for messages.

    Raises:
        UserError: a word occurs twice, or the vocabulary has no piece for unknown words.
    """
    ids = {piece: index for index, piece in enumerate(pieces)}
    if len(ids) < len(pieces):
        twice = next(piece for index, piece in enumerate(pieces) if ids[piece] != index)
        raise UserError(f"{source} has {twice!r} twice; list each word once")
    if all(special in ids for special in SPECIALS):
        return WordsTokenizer(pieces, lowercase=False)
    names = {role: next((name for name in known if name in ids), None) for role, known in _NAMES.items()}
    stand_in = next((names[role] for role in ("sep", "cls", "unk") if names[role] is not None), None)
    if stand_in is None:
        raise UserError(f"{source} has no piece for unknown words; add one of {', '.join(_NAMES['unk'])}")
    backend = Backend(models.WordLevel(ids, names["unk"] or stand_in))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    framing = [names[role] for role in ("cls", "sep") if names[role] is not None]
    backend.add_special_tokens([AddedToken(name, special=True) for name in names.values() if name is not None])
    template = [name for name in (names["cls"], "$A", names["sep"]) if name is not None]
    backend.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(name, ids[name]) for name in framing]
    )
    chosen = {role: name or (None if role == "mask" else stand_in) for role, name in names.items()}
    return JsonTokenizer(backend.to_str(), {role: name if name is None else ids[name] for role, name in chosen.items()})


def read_words(path: Path) -> list[str]:
    """The words of a vocabulary file: one per line (.txt), or a list (.json).

    Raises:
        UserError: the file is neither, or is not UTF-8.
    """
    if path.suffix != ".json":
        # read_text would split lines at carriage returns too.
        return text_of(path.read_bytes(), str(path), mark=False).removesuffix("\n").split("\n")
    words = read_json(path)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise UserError(f"{path}: expected a list of words in the order of the embedding's rows")
    return words


def find_vocabulary(directory: Path, names: Sequence[str]) -> Path | None:
    """The first of these files that exists in the directory, or None."""
    return next((directory / name for name in names if (directory / name).is_file()), None)


def require_words(directory: Path, names: Sequence[str], hint: str = "") -> Path:
    """The tokenizer that an export put into the directory, or the first of these files.

    Raises:
        UserError: the directory has neither; the message has the hint.
    """
    if (own := directory / TOKENIZER).is_dir():
        return own
    if (vocabulary := find_vocabulary(directory, names)) is None:
        listed = f"{', '.join(names[:-1])} or {names[-1]}"
        raise UserError(f"{directory} has no {listed}{hint}; write the model's words there, one per line, in order of ids")
    return vocabulary


def tokenizer_of_rows(words: Path, rows: int, tensor: str) -> Tokenizer:
    """The tokenizer of `require_words`, with a piece for each row of an embedding.

    Raises:
        UserError: the sizes differ; `tensor` names the embedding.
    """
    if words.is_dir():
        tokenizer = load_tokenizer(words)
        pieces = tokenizer.pieces()
    else:
        tokenizer, pieces = None, read_words(words)
    if len(pieces) != rows:
        raise UserError(f"{words} has {len(pieces)} words, but {tensor} has {rows} rows; use the vocabulary of this model")
    return tokenizer or word_tokenizer(pieces, words)
