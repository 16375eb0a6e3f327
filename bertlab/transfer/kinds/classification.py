"""Classification: one class for a text or a pair; and the likeliest of a question's candidates."""

import dataclasses
from collections import defaultdict

import numpy as np
from scipy.special import softmax

from bertlab.transfer.heads import TextHead, derived
from bertlab.transfer.kinds.base import Line, OneClass


@dataclasses.dataclass(frozen=True)
class ClassificationHead(TextHead):
    """−log p(class | text or pair)."""

    classes: int = derived(2)


class Classification(OneClass):
    """A class for a text or a pair."""

    name = "classification"
    head = ClassificationHead


class Candidate(OneClass):
    """Whether a candidate answers a question, class 1 of two; a `group` is a question's candidates.

    The answer is the candidate of highest p(class 1): SuperGLUE's baseline for ReCoRD judges each
    independently of the others (Wang et al. 2019, section 4).
    """

    name = "candidate"
    head = ClassificationHead

    def predict(self, examples, labels, outputs, about, settings) -> list[Line]:
        """One line a question: its likeliest candidate, and each candidate's p(class 1)."""
        questions = defaultdict(list)
        for example, output in zip(examples, outputs, strict=True):
            share = float(softmax(output["logits"].astype(np.float64))[1])
            questions[example.group or example.id].append((example, share))
        lines = []
        for question, candidates in questions.items():
            first, shares = candidates[0][0], {e.choices[0]: share for e, share in candidates}
            gold = None if first.label is None else [answer.text for answer in first.answers]
            line = {"id": question, "gold": gold, "probabilities": shares}
            lines.append(self.decided(line, labels))
        return lines

    def decided(self, line, labels) -> Line:
        """The line with its likeliest candidate."""
        shares = line["probabilities"]
        return line | {"predicted": max(shares, key=shares.get)}
