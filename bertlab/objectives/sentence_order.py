"""Sentence-order prediction (Lan et al. 2020, ALBERT, section 3.1)."""

import dataclasses
from typing import ClassVar

from bertlab.objectives.next_sentence import NextSentence


@dataclasses.dataclass(frozen=True)
class SentenceOrder(NextSentence):
    """SOP: −log p(label | pooled pair), label 0 where B follows A in the text and 1 where the two have changed places.

    Both segments of a negative pair are of one document, so that its topic does not tell, as it does in NSP. It needs a format
    of pairs whose `negatives` are "swapped".
    """

    needs: ClassVar[tuple[str, ...]] = ("order_label",)
    other: ClassVar[str] = "swapped"
