"""Words and single punctuation marks, unchanged; those outside the vocabulary are [UNK]."""

import re
from collections import Counter
from collections.abc import Sequence

from bertlab.data.tokenizers.base import SPECIALS, VocabularyTokenizer, normalise

_WORD = re.compile(r"\w+|[^\w\s]")
DIVIDES = {"punctuation": _WORD.findall, "whitespace": str.split}
"""How a sentence becomes words, by `config.data.tokenizer.split`."""


class WordsTokenizer(VocabularyTokenizer):
    """Words of a text; decoding puts spaces between them.

    A word that a caller gives is looked up whole, and split at punctuation only if the vocabulary
    lacks it. With `split="whitespace"` the same holds for the words between white space in a text,
    for vocabularies made elsewhere that have "n't", "10,000" or "New-York".
    """

    kind = "words"
    has_whole_words = True

    def __init__(self, pieces: Sequence[str], lowercase: bool, split: str = "punctuation"):
        super().__init__(pieces, lowercase)
        self.split = self.metadata["split"] = split
        self._word_ids = {word: i for word, i in self.ids.items() if i not in self.special_ids}

    def words(self, text: str) -> list[str]:
        """The words of a text (lower-cased if so chosen), one for each id of `encode`."""
        text = normalise(text, self.lowercase)
        if self.split == "punctuation":
            return _WORD.findall(text)
        words = []
        for token in text.split(" "):
            words += [token] if token in self._word_ids else _WORD.findall(token)
        return words

    def encode_batch(self, texts):
        ids = self._word_ids
        return [[ids.get(word, self.unk_id) for word in self.words(text)] for text in texts]

    def encode_spaced(self, words):
        found = []
        for word in map(self.changed, words):
            if word in self._word_ids:
                found.append(([self._word_ids[word]], [(0, len(word))]))
            else:
                found.append((self.encode(word), [each.span() for each in _WORD.finditer(word)]))
        return found

    def decode_pieces(self, ids):
        return " ".join(self._pieces[index] for index in ids)

    def continues(self):
        return (False,) * self.vocab_size


def train_words(sample: Sequence[str], vocab_size: int, lowercase: bool, split: str):
    """The most frequent words of normalised sentences; ties in the order of code points."""
    counts = Counter(word for text in sample for word in DIVIDES[split](text))
    words = sorted(counts, key=lambda word: (-counts[word], word))
    return WordsTokenizer([*SPECIALS, *words][:vocab_size], lowercase, split)
