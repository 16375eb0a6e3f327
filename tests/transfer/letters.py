"""A tokenizer with an id a letter, and rows that tests can read."""

import numpy as np

from bertlab.objectives.base import Vocabulary
from bertlab.transfer.inputs import NEW_TOKENS, Inputs
from bertlab.transfer.kinds import KINDS

NAMES = "." * 10 + "abcdefghijklmnopqrstuvwxyz"
SIGNS = {2: "[", 3: "]"} | {len(NAMES) + i: sign for i, sign in enumerate("(/)")}
VOCABULARY = Vocabulary(
    size=len(NAMES) + len(NEW_TOKENS), pad_id=0, unk_id=1, cls_id=2, sep_id=3, mask_id=4
)


class LetterTokenizer:
    """Ids from 10 for a; white space has none."""

    vocab_size = len(NAMES)
    pad_id, unk_id, cls_id, sep_id = 0, 1, 2, 3
    prefix_ids, suffix_ids = (2,), (3,)
    lowercase = False

    def pieces(self):
        return list(NAMES)

    def encode(self, text):
        return [NAMES.index(letter) for letter in "".join(text.split())]

    def encode_words(self, words):
        ends = np.cumsum([len(word) for word in words])
        return self.encode("".join(words)), [0, *ends[:-1].tolist()]

    def changed(self, text):
        return text

    def encode_spaced(self, words):
        return [(self.encode(word), [(i, i + 1) for i in range(len(word))]) for word in words]

    def decode(self, ids):
        return "".join(NAMES[i] for i in ids)


def made(kind, *examples, layout="pair", seq_len=10, tokenizer=None, symmetric=False, **settings):
    """`TaskRows` of examples."""
    inputs = Inputs(tokenizer or LetterTokenizer(), layout, seq_len, **settings)
    return KINDS[kind].rows(inputs, examples, symmetric)


def spelled(row, document=1):
    """A document's pieces: [ for cls, ] for sep, ( / ) for start, delimiter and extract."""
    tokens = row["tokens"][row["documents"] == document].tolist()
    return "".join(SIGNS.get(token) or NAMES[token] for token in tokens)
