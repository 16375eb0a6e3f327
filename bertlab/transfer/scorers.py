"""The metrics of tasks: the same numbers as the published scripts, as fractions from 0 to 1.

Every metric compares gold with predicted, which have one item per example. An item is

    a class: a name or, if classes have none, a number; a number (pearson, spearman); for tagging a
    sentence's tags, predicted "" for a word that was not read;
    gold: the texts that answer a question, () if it has no answer; predicted: a text, "" for none
    (exact_match, span_f1).
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from bertlab.transfer.entities import Scheme


def _flat(gold: Sequence, predicted: Sequence) -> tuple[list, list]:
    """Classes of examples unchanged; those of sentences concatenated."""
    if not isinstance(gold[0], list | tuple):
        return list(gold), list(predicted)
    pairs = zip(gold, predicted, strict=True)
    words = [pair for one, other in pairs for pair in zip(one, other, strict=True)]
    return [one for one, _ in words], [other for _, other in words]


def accuracy(gold: Sequence, predicted: Sequence) -> float:
    """Fraction of correct classes, or of correct word tags."""
    gold, predicted = _flat(gold, predicted)
    return float(np.mean([one == other for one, other in zip(gold, predicted, strict=True)]))


def f1_of_counts(right: int, predicted: int, gold: int) -> float:
    """F1; 0 if neither side has any items."""
    return 2 * right / (predicted + gold) if predicted + gold else 0.0


def f1(gold: Sequence, predicted: Sequence, label: object = 1) -> float:
    """F1 of one class, as GLUE reports it for MRPC and QQP; 0 if neither side has this class."""
    gold, predicted = _flat(gold, predicted)
    right = sum(one == other == label for one, other in zip(gold, predicted, strict=True))
    return f1_of_counts(right, predicted.count(label), gold.count(label))


def macro_f1(gold: Sequence, predicted: Sequence) -> float:
    """Mean F1 of the classes on either side, as in scikit-learn; "" (not read) is not a class."""
    gold, predicted = _flat(gold, predicted)
    labels = {*gold, *predicted} - {""}
    return float(np.mean([f1(gold, predicted, label) for label in labels]))


def matthews(gold: Sequence, predicted: Sequence) -> float:
    """Matthews' correlation of any number of classes (CoLA); 0 if either side is constant."""
    from sklearn.metrics import matthews_corrcoef  # takes a second to import

    return float(matthews_corrcoef(gold, predicted))


def group_exact_match(gold: Sequence, predicted: Sequence, groups: Sequence) -> float:
    """Fraction of groups whose classes are all correct: MultiRC's EM, one group per question.

    Source: Wang et al. 2019 (SuperGLUE), section 3.
    """
    right = dict.fromkeys(groups, True)
    for one, other, group in zip(gold, predicted, groups, strict=True):
        right[group] &= one == other
    return float(np.mean(list(right.values())))


def pearson(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Pearson's correlation; 0 if either side is constant, NaN if a number is not finite."""
    sides = np.asarray([gold, predicted], np.float64)
    if not np.isfinite(sides).all():
        return math.nan
    if (sides == sides[:, :1]).all(axis=1).any():
        return 0.0
    return float(np.corrcoef(sides)[0, 1])


def spearman(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Spearman's rank correlation; equal numbers have their mean rank. 0, NaN as for `pearson`."""
    from scipy.stats import rankdata  # SciPy's statistics take a second to import

    sides = np.asarray([gold, predicted], np.float64)
    return pearson(*rankdata(sides, axis=1)) if np.isfinite(sides).all() else math.nan


def f1_of_sets(gold: Sequence[set], predicted: Sequence[set]) -> float:
    """F1 over the members of all sets together; 0 without any."""
    right = sum(len(one & other) for one, other in zip(gold, predicted, strict=True))
    return f1_of_counts(right, sum(map(len, predicted)), sum(map(len, gold)))


def entity_f1(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: Scheme
) -> float:
    """F1 over all entities, whose types and words must agree (CoNLL's FB1)."""
    return f1_of_sets(
        *([set(scheme.entities(tags)) for tags in side] for side in (gold, predicted))
    )


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower case without ASCII punctuation and articles, one space between words."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _overlap(gold: str, predicted: str, empty_agree: bool) -> float:
    gold, predicted = gold.split(), predicted.split()
    if not gold or not predicted:
        return float(empty_agree and gold == predicted)
    shared = (Counter(gold) & Counter(predicted)).total()
    return f1_of_counts(shared, len(predicted), len(gold))


def answer_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[str], exact: bool = False
) -> list[float]:
    """By question, the largest F1 of the words shared with an answer after `normalize_answer`;
    `exact`: 1 if the prediction equals an answer, else 0.

    SQuAD 1.1's script if every question has an answer, otherwise 2.0's. They differ for answers
    that `normalize_answer` empties: 2.0 drops them, and "" is the answer if none remains. If
    answer or prediction has no words, 1.1's F1 is 0; 2.0's is 1 if both have none.

    Source: SQuAD's evaluate-v1.1.py and evaluate-v2.0.py (Rajpurkar et al. 2016, 2018).
    """
    lacking = not all(gold)
    scores = []
    for answers, text in zip(gold, predicted, strict=True):
        answers, text = [normalize_answer(answer) for answer in answers], normalize_answer(text)
        if lacking:
            answers = [answer for answer in answers if answer] or [""]
        if exact:
            scores.append(float(text in answers))
        else:
            scores.append(max(_overlap(answer, text, lacking) for answer in answers))
    return scores


def exact_match(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> float:
    """Fraction of the questions whose prediction equals an answer."""
    return sum(answer_scores(gold, predicted, exact=True)) / len(gold)


def span_f1(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> float:
    """Mean of `answer_scores`."""
    return sum(answer_scores(gold, predicted)) / len(gold)


def best_threshold(
    scores: Sequence[float],
    predicted: Sequence[str],
    null_odds: Sequence[float],
    has_answer: Sequence[bool],
) -> tuple[float, float]:
    """(Threshold, score): the threshold of "no answer" that is best here, and its mean score.

    A question gets no answer if its odds of none are above the threshold, which is 0 if none beats
    giving no answers at all. `scores` are those of the `predicted` texts.

    Source: find_best_thresh of SQuAD's evaluate-v2.0.py.
    """
    current = best = sum(not has for has in has_answer)
    threshold = 0.0
    for index in sorted(range(len(scores)), key=null_odds.__getitem__):
        current += scores[index] if has_answer[index] else -bool(predicted[index])
        if current > best:
            best, threshold = current, null_odds[index]
    return float(threshold), best / len(scores)


METRICS: dict[str, Callable[..., float]] = {
    metric.__name__: metric
    for metric in (
        *(accuracy, f1, macro_f1, matthews, pearson, spearman, group_exact_match),
        *(entity_f1, exact_match, span_f1),
    )
}
"""Name -> (gold, predicted), at least one item each -> value; higher is better.

`f1` reads which class counts too, `entity_f1` the tags' scheme, `group_exact_match` the group of
each item.
"""
