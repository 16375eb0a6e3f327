"""The text rules of OpenAI's first GPT (Radford et al. 2018): repair, spaCy's English words, lower case, BPE.

Source: openai/finetune-transformer-lm, text_utils.py. There, spaCy's `en` model makes the words; its tokenizer is
`spacy.blank("en")`, whose rules have changed a little since the spaCy 2.0 of that time. ftfy and spaCy come with the extra
`openai`.
"""

import functools
import itertools
import re
from collections.abc import Mapping, Sequence

from bertlab.errors import require

END_OF_WORD = "</w>"

_PLAIN = str.maketrans({"—": "-", "–": "-", "―": "-", "…": "...", "´": "'"})
# OpenAI's pattern says \\+ in a string that is not raw, which is one more "+": the backslash gets no spaces.
_SPACED = re.compile(r"""(-+|~+|!+|"+|;+|\?+|\++|,+|\)+|\(+|/+|\*+|\[+|\]+|}+|{+|\|+|_+)""")
_LINE_BREAK = re.compile(r"\s*\n\s*")
_SPACE = re.compile(r"[^\S\n]+")

# Words whose pieces are remembered; text has few kinds of words.
_REMEMBERED = 1 << 16


def standardise(text: str) -> str:
    """Plain dashes, dots and apostrophes; spaces around runs of punctuation; one space or " \\n " for white space."""
    text = _SPACED.sub(r" \1 ", text.translate(_PLAIN))
    return _SPACE.sub(" ", _LINE_BREAK.sub(" \n ", text)).strip()


@functools.cache
def libraries():
    """ftfy's repair of a text and spaCy's English tokenizer. Raises: UserError: if one of them is not installed."""
    ftfy, spacy = (require(name, "openai", "GPT-1's tokenizer") for name in ("ftfy", "spacy"))
    return ftfy.fix_text, spacy.blank("en").tokenizer


def words(text: str) -> list[str]:
    """The lower-cased words that BPE splits. Raises: UserError: if ftfy or spaCy is not installed."""
    fix_text, split = libraries()
    return [token.text.lower() for token in split(standardise(fix_text(text)))]


class Gpt1Bpe:
    """Byte-pair encoding (Sennrich et al. 2016) whose last piece of a word ends in `</w>`.

    Attributes:
      merges: pairs of pieces, the first to be merged first.
    """

    def __init__(self, ids: Mapping[str, int], merges: Sequence[tuple[str, str]]):
        """Args: ids: id of each piece; a piece that is not there has id 0, <unk>. merges: see the attribute."""
        self.merges = [tuple(merge) for merge in merges]
        self._ids = dict(ids)
        self._ranks = {merge: rank for rank, merge in enumerate(self.merges)}
        self._remembered: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        return [index for word in words(text) for index in self.encode_word(word)]

    def encode_word(self, word: str) -> list[int]:
        """Ids of one word of `words`."""
        if word not in self._remembered:
            if len(self._remembered) >= _REMEMBERED:
                self._remembered.clear()
            self._remembered[word] = [self._ids.get(piece, 0) for piece in self.split(word)]
        return self._remembered[word]

    def split(self, word: str) -> list[str]:
        """Pieces of a word: of the neighbouring pairs, that with the lowest rank is merged everywhere, over and over."""
        # A line break comes as "\n ", from spaces that `standardise` sets.
        if word == "\n ":
            return ["\n" + END_OF_WORD]
        pieces = [*word[:-1], word[-1] + END_OF_WORD]
        while len(pieces) > 1:
            best = min(itertools.pairwise(pieces), key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            merged, position = [], 0
            while position < len(pieces):
                size = 2 if tuple(pieces[position : position + 2]) == best else 1
                merged.append("".join(pieces[position : position + size]))
                position += size
            pieces = merged
        return pieces
