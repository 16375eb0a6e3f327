"""Candidates: the answer to a question is the likeliest of its candidates, each judged by itself (ReCoRD)."""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
from scipy.special import softmax

from bertlab.transfer.kinds.base import Line, OneClass, of_each
from bertlab.transfer.kinds.classification import ClassificationHead


class Candidate(OneClass):
    """Whether a candidate answers a question: class 1 of two. The examples of one `group` are a question's candidates.

    Questions may have any number of candidates. The answer is the candidate of highest p(class 1): SuperGLUE's baseline for
    ReCoRD judges each candidate independently of the others and takes the likeliest (Wang et al. 2019, section 4).
    """

    name = "candidate"
    head = ClassificationHead
    metrics = ("span_f1", "exact_match")
    default_metrics = ("span_f1", "exact_match")
    has_classes = True

    def predict(self, examples, labels, outputs, about, settings) -> list[Line]:
        """One line a question: its likeliest candidate, and each candidate's p(class 1)."""
        shares = softmax(outputs["logits"].astype(np.float64), axis=-1)[:, 1]
        questions = defaultdict(list)
        for example, share in zip(examples, shares.tolist(), strict=True):
            questions[example.group or example.id].append((example, share))
        return [
            _answered(
                {
                    "id": question,
                    "gold": None if of[0][0].label is None else [answer.text for answer in of[0][0].answers],
                    "probabilities": {example.choices[0]: share for example, share in of},
                }
            )
            for question, of in questions.items()
        ]

    def most_frequent(self, train, labels, lines) -> list[Line]:
        """None: no candidate is that of another question."""
        return []

    def average(self, lines, labels) -> Line:
        """The candidate with the highest mean probability."""
        runs: list[Mapping[str, float]] = of_each(lines, "probabilities")
        means = {text: float(np.mean([of_run[text] for of_run in runs])) for text in runs[0]}
        return _answered({**lines[0], "probabilities": means})


def _answered(line: Line) -> Line:
    found = line["probabilities"]
    return line | {"predicted": max(found, key=found.get)}
