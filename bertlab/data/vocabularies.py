"""Trains the vocabulary of each kind of tokenizer, for `train_tokenizer`."""

import io
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

import sentencepiece
import tokenizers

from bertlab.errors import UserError

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Characters of text that training looks at, at most; SentencePiece needs about 20 bytes for each of them.
SAMPLE_CHARACTERS = 20_000_000

# SentencePiece ignores longer sentences while training; its own default is 4,192 bytes.
_LONGEST_SENTENCE = 1 << 16

# WordPiece's training takes hours for a word of millions of characters, and would learn nothing from it.
_LONGEST_TRAINED_WORD = 1 << 16

# Google's WordPiece turns longer words into [UNK] (the `tokenizers` library's default is 100).
LONGEST_WORD = 200

# The blocks that Google's `_is_chinese_char` names, ends included.
CJK_BLOCKS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)

# Distinct characters that WordPiece training keeps; rarer ones become [UNK].
_LARGEST_ALPHABET = 1000

_WORD = re.compile(r"\w+|[^\w\s]")


class Sample:
    """A uniform sample of bounded size: the texts whose random numbers are below a threshold.

    The threshold is the highest of 1, 0.9, 0.81, ... with which the sample is within its bounds. So the sample depends neither
    on the order of the texts nor on how samples of parts are merged.
    """

    def __init__(self, sentences: int, characters: int = SAMPLE_CHARACTERS):
        """Args: sentences, characters: how many to keep at most; one text is kept however long it is."""
        self._sentences, self._characters = sentences, characters
        self._kept: list[tuple[float, int, str]] = []
        self._size, self._threshold = 0, 1.0

    def add(self, priority: float, number: int, text: str) -> None:
        """Adds a text with its random number in [0, 1) and its place among all texts; an empty one is left out."""
        if priority < self._threshold and text:
            self._kept.append((priority, number, text))
            self._size += len(text)
            self._shrink()

    def merge(self, other: "Sample") -> None:
        """Adds what another sample with the same bounds has kept."""
        self._threshold = min(self._threshold, other._threshold)
        self._kept = self._kept + other._kept
        self._drop()
        self._shrink()

    def texts(self) -> list[str]:
        """The texts in the order of their places."""
        return [text for _, _, text in sorted(self._kept, key=lambda kept: kept[1])]

    def _shrink(self) -> None:
        while len(self._kept) > self._sentences or (self._size > self._characters and len(self._kept) > 1):
            self._threshold *= 0.9
            self._drop()

    def _drop(self) -> None:
        self._kept = [kept for kept in self._kept if kept[0] < self._threshold]
        self._size = sum(len(text) for _, _, text in self._kept)


def sample_texts(texts: Iterable[str], sentences: int, seed: int, characters: int = SAMPLE_CHARACTERS) -> list[str]:
    """Draws a uniform sample of bounded size from a stream, in one pass and in the stream's order.

    Args:
      texts: the stream; empty texts are left out. A stream within both bounds is kept whole.
      sentences: number of texts to keep at most.
      seed: of the texts' random numbers.
      characters: number of characters to keep at most.
    """
    generator = random.Random(seed)
    sample = Sample(sentences, characters)
    for number, text in enumerate(texts):
        sample.add(generator.random(), number, text)
    return sample.texts()


def split_words(text: str) -> list[str]:
    """Words and single punctuation marks of a text."""
    return _WORD.findall(text)


def train_words(sample: list[str], vocab_size: int, split: str = "punctuation") -> list[str]:
    """The specials and the most frequent words (ties in code point order); `split` as for `WordsTokenizer`.

    Raises: UserError: if there are too few.
    """
    divide = split_words if split == "punctuation" else str.split
    counts = Counter(word for text in sample for word in divide(text))
    words = sorted(counts, key=lambda word: (-counts[word], word))
    _require_size(len(SPECIALS) + len(words), vocab_size)
    return [*SPECIALS, *words[: vocab_size - len(SPECIALS)]]


def is_bert_control(character: str) -> bool:
    """Whether Google's `_clean_text` drops the character."""
    return character in "\0\ufffd" or (character not in "\t\n\r" and unicodedata.category(character) in ("Cc", "Cf"))


def is_bert_punctuation(character: str) -> bool:
    """Whether Google's `_is_punctuation` makes the character a word of its own: all ASCII symbols, and Unicode's P*."""
    return (character.isascii() and character.isprintable() and not character.isalnum() and character != " ") or (
        unicodedata.category(character).startswith("P")
    )


class _Replacements(dict):
    """A table for `str.translate` that works out a character's replacement when it first meets the character."""

    def __init__(self, replacement):
        super().__init__()
        self._replacement = replacement

    def __missing__(self, code):
        self[code] = self._replacement(chr(code))
        return self[code]


def _clean(character: str) -> str:
    if is_bert_control(character):
        return ""
    if character in "\t\n\r" or unicodedata.category(character) == "Zs":
        return " "
    return f" {character} " if any(first <= ord(character) <= last for first, last in CJK_BLOCKS) else character


def _strip_accent(character: str) -> str:
    return "" if unicodedata.category(character) == "Mn" else character


def _split_punctuation(character: str) -> str:
    return f" {character} " if is_bert_punctuation(character) else character


_CLEAN, _STRIP_ACCENTS, _SPLIT = map(_Replacements, (_clean, _strip_accent, _split_punctuation))

# The same rules in a tenth of the time for ASCII without control characters.
_PLAIN = re.compile(r"[\t\n\r -~]*")
_PLAIN_WORDS = re.compile(r"[A-Za-z0-9]+|[!-/:-@\[-`{-~]")


def bert_words(text: str, lowercase: bool) -> list[str]:
    """Words and punctuation marks of a text by the rules of Google's BasicTokenizer.

    The `tokenizers` library's rules of this name differ: they drop private-use characters, have no final sigma, leave out 256
    characters of a CJK block, and take categories from other versions of Unicode.

    Args:
      text: any text.
      lowercase: lower-case the words and strip their accents (in this order).

    Source: google-research/bert, tokenization.py.
    """
    if _PLAIN.fullmatch(text):
        return _PLAIN_WORDS.findall(text.lower() if lowercase else text)
    text = text.translate(_CLEAN)
    if lowercase:
        text = unicodedata.normalize("NFD", text.lower()).translate(_STRIP_ACCENTS)
    return text.translate(_SPLIT).split()


def bert_tokenizer(vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
    """WordPiece in the `tokenizers` library's pieces, for text of `bert_words` with spaces between them."""
    # The specials are in the vocabulary but not declared as special: otherwise the text "[MASK]" would become the mask.
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD)
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = tokenizers.decoders.WordPiece(prefix="##", cleanup=False)
    return tokenizer


def wrong_size(vocab_size: int, problem: str) -> UserError:
    """The error for a vocabulary of this size."""
    return UserError(f"vocab_size={vocab_size} (config.data.tokenizer.vocab_size, or --vocab_size) {problem}.")


def _require_size(largest: int, vocab_size: int) -> None:
    if largest < vocab_size:
        raise wrong_size(vocab_size, f"is more than the text supports: the largest value that works is {largest}")


def _too_small(vocab_size: int, smallest: int) -> UserError:
    content = "the single characters of the text and the specials (and for SentencePiece the 256 bytes)"
    return wrong_size(vocab_size, f"does not hold {content}: use at least {smallest}")


def train_sentencepiece(kind: str, sample: list[str], vocab_size: int) -> bytes:
    """Trains a "unigram" or "bpe" model and returns it serialised. Raises: UserError: if the size does not fit."""
    pad, unk, cls, sep, mask = SPECIALS
    if sample and all(len(text.encode()) > _LONGEST_SENTENCE for text in sample):
        raise UserError(
            f"config.data.corpus: all sentences have more than {_LONGEST_SENTENCE} bytes, and SentencePiece learns from shorter"
            " ones only; put line breaks or full stops into the text"
        )
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


def train_wordpiece(sample: list[str], vocab_size: int, lowercase: bool) -> list[str]:
    """Trains WordPiece and returns its pieces in the order of ids. Raises: UserError: if the size does not fit."""
    tokenizer = bert_tokenizer({"[UNK]": 0})
    sample = [" ".join(word for word in bert_words(text, lowercase) if len(word) <= _LONGEST_TRAINED_WORD) for text in sample]
    characters = Counter("".join(sample).replace(" ", ""))
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

    # The library numbers continuing characters in random order and breaks ties between merges by these numbers; naming the
    # characters first makes the training repeatable.
    continuing = sorted(piece for piece in train(0, list(SPECIALS)) if piece.startswith("##"))
    pieces = train(vocab_size, [*SPECIALS, *continuing])
    _require_size(len(pieces), vocab_size)
    if len(pieces) > vocab_size:
        raise _too_small(vocab_size, len(pieces))
    return pieces
