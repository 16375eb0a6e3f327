"""Tokenizers: text to ids and back.

Four kinds behind one contract: SentencePiece `unigram` and `bpe` (with byte fallback, so nothing is unknown),
`wordpiece` (BERT's rules, trained here or read from BERT's `vocab.txt`) and `words`. The ids 0 to 4 of a vocabulary
trained here are `[PAD] [UNK] [CLS] [SEP] [MASK]`. These names are never recognised in text: a text that contains
"[MASK]" is tokenised like any other, and only a caller puts special ids into a sequence.

In every kind, runs of white space in the text count as one space.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import sentencepiece

from bertlab.data.vocabularies import (
    SPECIALS,
    bert_tokenizer,
    sample_texts,
    split_words,
    train_sentencepiece,
    train_wordpiece,
    train_words,
)
from bertlab.errors import UserError

KINDS = ("unigram", "bpe", "wordpiece", "words")

_METADATA = "bertlab_tokenizer.json"


class Tokenizer(Protocol):
    """Text to ids and back. `kind` is one of `KINDS`; the five ids are those of the special pieces."""

    kind: str
    lowercase: bool
    vocab_size: int
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int

    def encode(self, text: str) -> list[int]:
        """Ids of the pieces of `text`, without special ids around them."""

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, faster."""

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """Ids of all words one after the other, and for each word the index of its first id (it has at least one)."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the pieces; special ids are dropped."""

    def pieces(self) -> list[str]:
        """The string of every id."""

    def save(self, directory: str | Path) -> None:
        """Writes files from which `load_tokenizer(directory)` makes the same tokenizer."""


class _Base:
    """What the kinds share: the special ids, white space and case, words, and the description that is saved."""

    def __init__(self, kind: str, pieces: Sequence[str], lowercase: bool):
        self.kind = kind
        self.lowercase = lowercase
        self.vocab_size = len(pieces)
        self._pieces = list(pieces)
        ids = {piece: index for index, piece in enumerate(pieces)}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (ids[special] for special in SPECIALS)
        self._special_ids = frozenset((self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id))

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return self._encode(texts)

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        ids, starts = [], []
        for word_ids in self.encode_batch(words):
            starts.append(len(ids))
            # A word of control characters only has no pieces, but labels need a position.
            ids.extend(word_ids or [self.unk_id])
        return ids, starts

    def decode(self, ids: Sequence[int]) -> str:
        return self._decode([int(index) for index in ids if int(index) not in self._special_ids])

    def pieces(self) -> list[str]:
        return list(self._pieces)

    def save(self, directory: str | Path) -> None:
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._save_vocabulary(directory)
        metadata = {"kind": self.kind, "vocab_size": self.vocab_size, "lowercase": self.lowercase}
        (directory / _METADATA).write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")


def _normalise(text: str, lowercase: bool) -> str:
    text = " ".join(text.split())
    return text.lower() if lowercase else text


class SentencePieceTokenizer(_Base):
    """SentencePiece unigram language model (Kudo 2018) or byte-pair encoding (Sennrich et al. 2016).

    Characters outside the vocabulary become bytes, so that decoding gives back the text (lower-cased if so chosen). The
    character U+2581, by which SentencePiece marks a space, is read as a space.
    """

    def __init__(self, kind: str, model: bytes, lowercase: bool):
        """Args: kind: "unigram" or "bpe"; model: serialised SentencePiece model; lowercase: lower-case text first."""
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = [self._processor.id_to_piece(index) for index in range(self._processor.get_piece_size())]
        super().__init__(kind, pieces, lowercase)

    def _encode(self, texts):
        return self._processor.encode([_normalise(text, self.lowercase) for text in texts], num_threads=1)

    def _decode(self, ids):
        return self._processor.decode(ids)

    def _save_vocabulary(self, directory: Path) -> None:
        (directory / "sentencepiece.model").write_bytes(self._model)


class WordPieceTokenizer(_Base):
    """BERT's tokenizer: BasicTokenizer's cleaning and splitting, then greedy longest-match WordPiece (Wu et al. 2016).

    Same results as Google's tokenization.py, including [UNK] for words of more than 200 characters. With `lowercase`,
    accents are stripped too.
    """

    def __init__(self, pieces: Sequence[str], lowercase: bool):
        """Args: pieces: vocabulary in the order of ids, with the five specials; lowercase: as in BERT's uncased models."""
        super().__init__("wordpiece", pieces, lowercase)
        self._tokenizer = bert_tokenizer({piece: index for index, piece in enumerate(pieces)}, lowercase)

    def _encode(self, texts):
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def _decode(self, ids):
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def _save_vocabulary(self, directory: Path) -> None:
        (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in self._pieces), encoding="utf-8")


class WordsTokenizer(_Base):
    """Words and single punctuation marks as they stand; others are [UNK]. Decoding puts spaces between them."""

    def __init__(self, pieces: Sequence[str], lowercase: bool):
        """Args: pieces: vocabulary in the order of ids, with the five specials; lowercase: lower-case text first."""
        super().__init__("words", pieces, lowercase)
        self._ids = {piece: index for index, piece in enumerate(pieces)}

    def _encode(self, texts):
        words = (split_words(_normalise(text, self.lowercase)) for text in texts)
        return [[self._ids.get(word, self.unk_id) for word in text_words] for text_words in words]

    def _decode(self, ids):
        return " ".join(self._pieces[index] for index in ids)

    def _save_vocabulary(self, directory: Path) -> None:
        (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in self._pieces), encoding="utf-8")


def train_tokenizer(
    kind: str,
    texts: Iterable[str],
    vocab_size: int,
    *,
    seed: int,
    lowercase: bool = False,
    sample_sentences: int = 1_000_000,
) -> Tokenizer:
    """Trains a tokenizer on a sample of the texts. The same arguments give the same tokenizer.

    Args:
      kind: one of `KINDS`.
      texts: sentences, read once as a stream.
      vocab_size: number of pieces, the five specials (and for SentencePiece 256 bytes) included.
      seed: of the sample, where the texts are more than it may hold.
      lowercase: lower-case the text (for WordPiece: strip accents too).
      sample_sentences: number of sentences to train on at most (and at most `SAMPLE_CHARACTERS` characters).

    Raises:
      UserError: if the kind is unknown, there is no text, or the text does not support a vocabulary of this size.
    """
    if kind not in KINDS:
        raise UserError(f'kind="{kind}" (config.data.tokenizer.kind, or --kind) is unknown: use one of {", ".join(KINDS)}.')
    if vocab_size <= len(SPECIALS):
        raise UserError(
            f"vocab_size={vocab_size} (config.data.tokenizer.vocab_size, or --vocab_size) must be more than the "
            f"{len(SPECIALS)} special pieces."
        )
    clean = (_normalise(text, lowercase) for text in texts)
    sample = sample_texts(clean, sample_sentences, seed)
    if not sample:
        raise UserError("The tokenizer was given no text to train on; check config.data.corpus and config.data.valid_fraction.")
    if kind in ("unigram", "bpe"):
        return SentencePieceTokenizer(kind, train_sentencepiece(kind, sample, vocab_size), lowercase)
    if kind == "wordpiece":
        return WordPieceTokenizer(train_wordpiece(sample, vocab_size, lowercase), lowercase)
    return WordsTokenizer(train_words(sample, vocab_size), lowercase)


def load_tokenizer(path: str | Path, *, lowercase: bool | None = None) -> Tokenizer:
    """Loads a tokenizer.

    Args:
      path: a directory that `save` wrote, or a BERT vocabulary file (one piece a line, such as `vocab.txt`).
      lowercase: only for a vocabulary file, which does not say it: whether text is lower-cased. None means that it is
        when no piece but the specials has a capital letter.

    Raises:
      UserError: if there is no such file, or it lacks the special pieces.
    """
    path = Path(path).expanduser()
    metadata_file = path / _METADATA
    if metadata_file.is_file():
        metadata = json.loads(metadata_file.read_text(encoding="utf-8"))
        kind, lowercase = metadata["kind"], metadata["lowercase"]
        if kind in ("unigram", "bpe"):
            return SentencePieceTokenizer(kind, (path / "sentencepiece.model").read_bytes(), lowercase)
        pieces = _read_vocabulary(path / "vocab.txt")
        return WordPieceTokenizer(pieces, lowercase) if kind == "wordpiece" else WordsTokenizer(pieces, lowercase)
    if path.is_file() and path.suffix == ".txt":
        pieces = _read_vocabulary(path)
        if lowercase is None:
            lowercase = not any(piece != piece.lower() for piece in pieces if not re.fullmatch(r"\[.*\]", piece))
        return WordPieceTokenizer(pieces, lowercase)
    raise UserError(
        f'path="{path}" (config.data.tokenizer.path, or --tokenizer) is neither a folder with {_METADATA} (as bertlab '
        "tokenizer train writes it) nor a BERT vocab.txt."
    )


def _read_vocabulary(path: Path) -> list[str]:
    pieces = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    pieces = [piece.rstrip("\r") for piece in pieces]
    missing = [special for special in SPECIALS if special not in pieces]
    if missing:
        raise UserError(f"{path} lacks {' '.join(missing)}: a vocabulary has one piece a line, with {' '.join(SPECIALS)}.")
    return pieces
