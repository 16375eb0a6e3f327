"""Tokenizers: text to ids and back.

Four kinds behind one contract: SentencePiece `unigram` and `bpe` (with byte fallback, so nothing is unknown),
`wordpiece` (BERT's rules, trained here or read from BERT's `vocab.txt`) and `words`. The ids 0 to 4 of a vocabulary
trained here are `[PAD] [UNK] [CLS] [SEP] [MASK]`. These names are never recognised in text: a text that contains
"[MASK]" is tokenised like any other, and only a caller puts special ids into a sequence.

In every kind, runs of white space in the text count as one space.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
import io
import json
from pathlib import Path
import random
import re
from typing import Protocol

import sentencepiece
import tokenizers

from bertlab.errors import UserError

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
KINDS = ("unigram", "bpe", "wordpiece", "words")

# Characters of text that training looks at, at most; SentencePiece needs about 20 bytes for each of them.
SAMPLE_CHARACTERS = 20_000_000

# SentencePiece ignores longer sentences while training; its own default is 4,192 bytes.
_LONGEST_SENTENCE = 1 << 16

# Google's WordPiece turns longer words into [UNK] (the `tokenizers` library's default is 100).
_LONGEST_WORD = 200

# Distinct characters that WordPiece training keeps; rarer ones become [UNK].
_LARGEST_ALPHABET = 1000

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
        return self._encode([_normalise(text, self.lowercase) for text in texts])

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
        return self._processor.encode(texts, num_threads=1)

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
        self._tokenizer = _bert_tokenizer({piece: index for index, piece in enumerate(pieces)}, lowercase)

    def encode_batch(self, texts):
        return self._encode(list(texts))

    def _encode(self, texts):
        return [encoding.ids for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)]

    def _decode(self, ids):
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def _save_vocabulary(self, directory: Path) -> None:
        (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in self._pieces), encoding="utf-8")


def _bert_tokenizer(vocabulary: dict[str, int], lowercase: bool) -> tokenizers.Tokenizer:
    # The specials are in the vocabulary but are not declared as special, which would make text "[MASK]" the mask.
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=_LONGEST_WORD)
    )
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=lowercase, lowercase=lowercase
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece(prefix="##", cleanup=False)
    return tokenizer


_WORD = re.compile(r"\w+|[^\w\s]")


class WordsTokenizer(_Base):
    """Words and single punctuation marks as they stand; others are [UNK]. Decoding puts spaces between them."""

    def __init__(self, pieces: Sequence[str], lowercase: bool):
        """Args: pieces: vocabulary in the order of ids, with the five specials; lowercase: lower-case text first."""
        super().__init__("words", pieces, lowercase)
        self._ids = {piece: index for index, piece in enumerate(pieces)}

    def _encode(self, texts):
        return [[self._ids.get(word, self.unk_id) for word in _WORD.findall(text)] for text in texts]

    def _decode(self, ids):
        return " ".join(self._pieces[index] for index in ids)

    def _save_vocabulary(self, directory: Path) -> None:
        (directory / "vocab.txt").write_text("".join(f"{piece}\n" for piece in self._pieces), encoding="utf-8")


def sample_texts(texts: Iterable[str], sentences: int, seed: int, characters: int = SAMPLE_CHARACTERS) -> list[str]:
    """Draws a uniform sample of bounded size from a stream of any length, in one pass and in the stream's order.

    Every text gets a random number; those below a threshold are kept, and the threshold falls whenever too much is
    kept. A stream within both bounds is kept whole.

    Args:
      texts: the stream; empty texts are left out.
      sentences: number of texts to keep at most.
      seed: of the random numbers.
      characters: number of characters to keep at most.
    """
    generator = random.Random(seed)
    kept: list[tuple[float, str]] = []
    total, threshold = 0, 1.0
    for text in texts:
        priority = generator.random()
        if priority >= threshold or not text:
            continue
        kept.append((priority, text))
        total += len(text)
        while len(kept) > sentences or (total > characters and len(kept) > 1):
            threshold *= 0.9
            kept = [(priority, text) for priority, text in kept if priority < threshold]
            total = sum(len(text) for _, text in kept)
    return [text for _, text in kept]


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
        raise UserError(f'data.tokenizer.kind="{kind}" is unknown: use one of {", ".join(KINDS)}.')
    if vocab_size <= len(SPECIALS):
        raise UserError(f"data.tokenizer.vocab_size={vocab_size} must be more than the {len(SPECIALS)} special pieces.")
    clean = (_normalise(text, lowercase) for text in texts)
    sample = sample_texts(clean, sample_sentences, seed)
    if not sample:
        raise UserError("The tokenizer was given no text to train on; check data.corpus and data.valid_fraction.")
    if kind in ("unigram", "bpe"):
        return SentencePieceTokenizer(kind, _train_sentencepiece(kind, sample, vocab_size), lowercase)
    if kind == "wordpiece":
        return WordPieceTokenizer(_train_wordpiece(sample, vocab_size, lowercase), lowercase)
    counts = Counter(word for text in sample for word in _WORD.findall(text))
    words = sorted(counts, key=lambda word: (-counts[word], word))
    _require_size(len(SPECIALS) + len(words), vocab_size)
    return WordsTokenizer([*SPECIALS, *words[: vocab_size - len(SPECIALS)]], lowercase)


def _require_size(largest: int, vocab_size: int) -> None:
    if largest < vocab_size:
        raise UserError(
            f"data.tokenizer.vocab_size={vocab_size} is more than the text supports: the largest value that works is "
            f"{largest}."
        )


def _too_small(vocab_size: int, smallest: int) -> UserError:
    return UserError(
        f"data.tokenizer.vocab_size={vocab_size} does not hold the single characters of the text and the specials (and "
        f"for SentencePiece the 256 bytes): use at least {smallest}."
    )


def _train_sentencepiece(kind: str, sample: list[str], vocab_size: int) -> bytes:
    pad, unk, cls, sep, mask = SPECIALS
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            # A NUL character ends the program's strings; as a byte it stays encodable.
            sentence_iterator=(text.replace("\0", "") for text in sample),
            model_writer=model,
            model_type=kind,
            vocab_size=vocab_size,
            byte_fallback=True,
            normalization_rule_name="identity",
            max_sentence_length=_LONGEST_SENTENCE,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            pad_piece=pad,
            unk_piece=unk,
            bos_piece=cls,
            eos_piece=sep,
            control_symbols=[mask],
            minloglevel=2,
        )
    except RuntimeError as error:
        message = str(error)
        if match := re.search(r"set it to a value <= (\d+)", message):
            _require_size(int(match.group(1)), vocab_size)
        if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
            raise _too_small(vocab_size, int(match.group(1))) from error
        raise
    return model.getvalue()


def _train_wordpiece(sample: list[str], vocab_size: int, lowercase: bool) -> list[str]:
    tokenizer = _bert_tokenizer({"[UNK]": 0}, lowercase)
    characters = Counter()
    for text in sample:
        characters.update(tokenizer.normalizer.normalize_str(text))
    del characters[" "]
    alphabet = sorted(characters, key=lambda character: (-characters[character], character))[:_LARGEST_ALPHABET]

    def train(size: int, first: list[str]) -> list[str]:
        trainer = tokenizers.trainers.WordPieceTrainer(
            vocab_size=size,
            special_tokens=first,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        tokenizer.train_from_iterator(sample, trainer)
        vocabulary = tokenizer.get_vocab(with_added_tokens=False)
        return sorted(vocabulary, key=vocabulary.get)

    # The library numbers the continuing characters in the order of a hash table with random keys, and breaks ties
    # between merges by these numbers; naming the characters first makes the training repeatable.
    continuing = sorted(piece for piece in train(0, list(SPECIALS)) if piece.startswith("##"))
    pieces = train(vocab_size, [*SPECIALS, *continuing])
    _require_size(len(pieces), vocab_size)
    if len(pieces) > vocab_size:
        raise _too_small(vocab_size, len(pieces))
    return pieces


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
        f'data.tokenizer.path="{path}" is neither a folder with {_METADATA} (as bertlab tokenizer train writes it) nor '
        "a BERT vocab.txt."
    )


def _read_vocabulary(path: Path) -> list[str]:
    pieces = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    pieces = [piece.rstrip("\r") for piece in pieces]
    missing = [special for special in SPECIALS if special not in pieces]
    if missing:
        raise UserError(f"{path} lacks {' '.join(missing)}: a vocabulary has one piece a line, with {' '.join(SPECIALS)}.")
    return pieces
