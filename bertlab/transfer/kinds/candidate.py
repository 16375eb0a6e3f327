"""Candidates: the answer to a question is the likeliest of its candidates (ReCoRD)."""

from collections import defaultdict

import numpy as np
from scipy.special import softmax

from bertlab.transfer.kinds.base import Line, OneClass
from bertlab.transfer.kinds.classification import ClassificationHead


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
            share = softmax(output["logits"].astype(np.float64))[1]
            questions[example.group or example.id].append((example, float(share)))
        lines = []
        for question, candidates in questions.items():
            first, shares = candidates[0][0], {e.choices[0]: share for e, share in candidates}
            gold = None if first.label is None else [answer.text for answer in first.answers]
            lines.append(_answered({"id": question, "gold": gold, "probabilities": shares}))
        return lines

    def average(self, lines, labels) -> Line:
        """The candidate with the highest mean probability."""
        means = {
            text: float(np.mean([line["probabilities"][text] for line in lines]))
            for text in lines[0]["probabilities"]
        }
        return _answered({**lines[0], "probabilities": means})


def _answered(line: Line) -> Line:
    shares = line["probabilities"]
    return line | {"predicted": max(shares, key=shares.get)}
