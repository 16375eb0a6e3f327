"""BERT's tokenizer by Google's rules (google-research/bert, tokenization.py).

The `tokenizers` library's rules of this name differ: they drop private-use characters, have no
final sigma, leave out 256 characters of a CJK block, and take categories from other versions of
Unicode.
"""

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import tokenizers

from bertlab.data.tokenizers.base import SPECIALS, VocabularyTokenizer
from bertlab.errors import UserError

LONGEST_WORD = 200
"""Longer words become [UNK]."""
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
# Distinct characters that training keeps; rarer ones become [UNK].
_LARGEST_ALPHABET = 1000
# The tokenizer remembers this many words (they cover 95 % of a text), up to this length.
_REMEMBERED_WORDS, _LONGEST_REMEMBERED = 1 << 16, 30
# The same rules in a tenth of the time for ASCII without control characters.
_PLAIN = re.compile(r"[\t\n\r -~]*")
_PLAIN_WORDS = re.compile(r"[A-Za-z0-9]+|[!-/:-@\[-`{-~]")


def is_bert_control(character: str) -> bool:
    """Whether Google's `_clean_text` drops the character."""
    category = unicodedata.category(character)
    return character in "\0\ufffd" or (character not in "\t\n\r" and category in ("Cc", "Cf"))


def is_bert_punctuation(character: str) -> bool:
    """Whether the character is a word of its own: all ASCII symbols, and Unicode's P*."""
    if character.isascii():
        return character.isprintable() and not character.isalnum() and character != " "
    return unicodedata.category(character).startswith("P")


def _clean(character: str) -> str:
    if is_bert_control(character):
        return ""
    if character in "\t\n\r" or unicodedata.category(character) == "Zs":
        return " "
    is_cjk = any(first <= ord(character) <= last for first, last in CJK_BLOCKS)
    return f" {character} " if is_cjk else character


def _strip_accent(character: str) -> str:
    return "" if unicodedata.category(character) == "Mn" else character


def _split_punctuation(character: str) -> str:
    return f" {character} " if is_bert_punctuation(character) else character


class _Replacements(dict):
    """A table for `str.translate` that is filled as characters are met."""

    def __init__(self, replacement: Callable[[str], str]):
        super().__init__()
        self._replacement = replacement

    def __missing__(self, code: int) -> str:
        self[code] = self._replacement(chr(code))
        return self[code]


_CLEAN, _STRIP_ACCENTS, _SPLIT = map(_Replacements, (_clean, _strip_accent, _split_punctuation))


def bert_words(text: str, lowercase: bool) -> list[str]:
    """Words and punctuation marks, by the rules of Google's BasicTokenizer; with `lowercase` they
    are lower-cased and stripped of accents, in this order."""
    if _PLAIN.fullmatch(text):
        return _PLAIN_WORDS.findall(text.lower() if lowercase else text)
    text = text.translate(_CLEAN)
    if lowercase:
        text = unicodedata.normalize("NFD", text.lower()).translate(_STRIP_ACCENTS)
    return text.translate(_SPLIT).split()


class WordPieceTokenizer(VocabularyTokenizer):
    """BasicTokenizer's cleaning and splitting, then greedy longest match (Wu et al. 2016)."""

    kind = "wordpiece"

    def __init__(self, pieces: Sequence[str], lowercase: bool):
        super().__init__(pieces, lowercase)
        self._tokenizer = _backend(self.ids)
        self._remembered: dict[str, list[int]] = {}

    @classmethod
    def train(cls, sample: Sequence[str], vocab_size: int, lowercase: bool) -> Self:
        return cls(_train(sample, vocab_size, lowercase), lowercase)

    @classmethod
    def load(cls, directory: Path, metadata: Mapping[str, Any]) -> Self:
        return cls(cls.read(directory), metadata["lowercase"])

    def encode_batch(self, texts):
        words = [bert_words(text, self.lowercase) for text in texts]
        different = set(itertools.chain.from_iterable(words))
        ids = {word: self._remembered[word] for word in different & self._remembered.keys()}
        new = list(different - ids.keys())
        found = self._tokenizer.encode_batch(new, add_special_tokens=False)
        ids |= {word: encoding.ids for word, encoding in zip(new, found)}
        if len(self._remembered) + len(new) <= _REMEMBERED_WORDS:
            short = (word for word in new if len(word) <= _LONGEST_REMEMBERED)
            self._remembered |= {word: ids[word] for word in short}
        return [[index for word in text_words for index in ids[word]] for text_words in words]

    def decode_pieces(self, ids):
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def continues(self):
        return self.marked(lambda piece: piece.startswith("##"))


def _backend(vocabulary: dict[str, int]) -> tokenizers.Tokenizer:
    """WordPiece in the library's pieces, for single words of `bert_words`."""
    # The specials are not declared as such: the text "[MASK]" would become the mask.
    model = tokenizers.models.WordPiece(
        vocabulary, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD
    )
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = tokenizers.decoders.WordPiece(prefix="##", cleanup=False)
    return tokenizer


def _train(sample: Sequence[str], vocab_size: int, lowercase: bool) -> list[str]:
    """The pieces of a trained WordPiece vocabulary in the order of ids."""
    tokenizer = _backend({"[UNK]": 0})
    texts = [" ".join(bert_words(text, lowercase)) for text in sample]
    characters = Counter("".join(texts).replace(" ", ""))
    alphabet = sorted(characters, key=lambda c: (-characters[c], c))[:_LARGEST_ALPHABET]

    def train(size: int, first: list[str]) -> list[str]:
        trainer = tokenizers.trainers.WordPieceTrainer(
            vocab_size=size,
            special_tokens=first,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        vocabulary = tokenizer.get_vocab(with_added_tokens=False)
        return sorted(vocabulary, key=vocabulary.get)

    # The library numbers continuing characters in random order and breaks ties between merges by
    # these numbers; naming the characters first makes the training repeatable.
    continuing = sorted(piece for piece in train(0, list(SPECIALS)) if piece.startswith("##"))
    pieces = train(vocab_size, [*SPECIALS, *continuing])
    if len(pieces) != vocab_size:
        most = "largest" if len(pieces) < vocab_size else "smallest"
        raise UserError(
            f"config.data.tokenizer.vocab_size={vocab_size}: the {most} value that works for this"
            f" text is {len(pieces)}"
        )
    return pieces
