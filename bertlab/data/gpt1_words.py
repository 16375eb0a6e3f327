"""The words of OpenAI's first GPT (Radford et al. 2018): repair, spaCy's English words, lower case.

Source: openai/finetune-transformer-lm, text_utils.py. Its spaCy model `en` has the tokenizer `spacy.blank("en")`, whose
rules have changed a little since spaCy 2.0. ftfy and spaCy come with the extra `openai`.
"""

import functools
import re

from bertlab.errors import require

END_OF_WORD = "</w>"
"""The last piece of a word ends in it."""

LINE_BREAK = "\n "
"""How a line break comes among `words`, with a space that `standardise` sets."""

_PLAIN = str.maketrans({"—": "-", "–": "-", "―": "-", "…": "...", "´": "'"})
# OpenAI's pattern says \\+ in a string that is not raw, which is one more "+": the backslash gets no spaces.
_SPACED = re.compile(r"""(-+|~+|!+|"+|;+|\?+|\++|,+|\)+|\(+|/+|\*+|\[+|\]+|}+|{+|\|+|_+)""")
_LINE_BREAK = re.compile(r"\s*\n\s*")
_SPACE = re.compile(r"[^\S\n]+")


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
