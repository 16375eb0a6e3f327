"""BERT's tokenizer by Google's rules (google-research/bert, tokenization.py).

The `tokenizers` library's rules of this name differ: they drop private-use characters, have no
final sigma, leave out 256 characters of a CJK block, and take categories from other versions of
Unicode.
"""

import functools
import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

import tokenizers

from bertlab.data.tokenizers.base import SPECIALS, VocabularyTokenizer

LONGEST_WORD = 200  # longer ones become [UNK]
_CJK = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b73f"
    "\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\U0002f800-\U0002fa1f]"
)
# Distinct characters that training keeps; rarer ones become [UNK].
_LARGEST_ALPHABET = 1000
_REMEMBERED_WORDS = 1 << 16  # these cover 95 % of a text
# The same rules in a tenth of the time for ASCII without control characters.
_PLAIN = re.compile(r"[\t\n\r -~]*")
_PLAIN_WORDS = re.compile(r"[A-Za-z0-9]+|[!-/:-@\[-`{-~]")


def bert_words(text: str, lowercase: bool) -> list[str]:
    """Words and punctuation marks, by the rules of Google's BasicTokenizer; with `lowercase` they
    are lower-cased and stripped of accents, in this order."""
    if _PLAIN.fullmatch(text):
        return _PLAIN_WORDS.findall(text.lower() if lowercase else text)
    return _divided(text, lowercase).split()


def _divided(text: str, lowercase: bool) -> str:
    text = "".join(map(_clean, text))
    if lowercase:
        text = unicodedata.normalize("NFD", text.lower())
    return "".join(_divide(character, lowercase) for character in text)


@functools.cache
def _clean(character: str) -> str:
    category = unicodedata.category(character)
    if character in "\t\n\r" or category == "Zs":
        return " "
    if character in "\0\ufffd" or category in ("Cc", "Cf"):
        return ""
    return f" {character} " if _CJK.match(character) else character


@functools.cache
def _divide(character: str, lowercase: bool) -> str:
    """Marks are words of their own: all ASCII symbols, and Unicode's P*."""
    category = unicodedata.category(character)
    if lowercase and category == "Mn":
        return ""
    is_mark = category.startswith("P") or character in "$+<=>^`|~"
    return f" {character} " if is_mark else character


class WordPieceTokenizer(VocabularyTokenizer):
    """BasicTokenizer's cleaning and splitting, then greedy longest match (Wu et al. 2016)."""

    kind = "wordpiece"

    def __init__(self, pieces: Sequence[str], lowercase: bool):
        super().__init__(pieces, lowercase)
        # The specials are not declared as such: the text "[MASK]" would become the mask.
        self._model = tokenizers.models.WordPiece(
            self.ids, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD
        )
        self._word_ids = functools.lru_cache(_REMEMBERED_WORDS)(self._encode_word)

    def _encode_word(self, word: str) -> list[int]:
        return [piece.id for piece in self._model.tokenize(word)]

    def encode_batch(self, texts):
        words = (bert_words(text, self.lowercase) for text in texts)
        return [list(itertools.chain.from_iterable(map(self._word_ids, some))) for some in words]

    def changed(self, text):
        return _divided(text, self.lowercase)

    def encode_spaced(self, words):
        found = []
        for word in map(self.changed, words):
            ids, spans = [], []
            for match in re.finditer(r"\S+", word):
                ids += (pieces := self._word_ids(match[0]))
                sizes = [len(self._pieces[index].removeprefix("##")) for index in pieces]
                if pieces == [self.unk_id]:
                    sizes = [len(match[0])]
                spans += itertools.pairwise(itertools.accumulate(sizes, initial=match.start()))
            found.append((ids, spans))
        return found

    def decode_pieces(self, ids):
        return " ".join(self._pieces[index] for index in ids).replace(" ##", "")

    def continues(self):
        return self.marked(lambda piece: piece.startswith("##"))


def train_wordpiece(sample: Sequence[str], vocab_size: int, lowercase: bool) -> WordPieceTokenizer:
    """Trains on sentences; the vocabulary has every character of the `_LARGEST_ALPHABET`."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    texts = [" ".join(bert_words(text, lowercase)) for text in sample]
    characters = Counter("".join(texts).replace(" ", ""))
    alphabet = sorted(characters, key=lambda c: (-characters[c], c))[:_LARGEST_ALPHABET]
    # The library numbers continuing characters in random order and breaks ties between merges by
    # these numbers; naming the characters first makes the training repeatable.
    inside = {character for text in texts for word in text.split() for character in word[1:]}
    continuing = sorted(f"##{character}" for character in inside.intersection(alphabet))
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[*SPECIALS, *continuing],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    return WordPieceTokenizer(sorted(vocabulary, key=vocabulary.get), lowercase)
