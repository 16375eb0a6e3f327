"""The metrics of tasks. They give the same numbers as the published scripts.

Every metric compares gold with predicted, one item per example. Fractions are from 0 to 1 (the official scripts of CoNLL and
SQuAD print percent). An item is

    a class: a name or, if classes have none, a number; a number (pearson, spearman); or for tagging the sentence's tags, one
    per word, predicted "" for a word that was not read;
    the number of a class, or the numbers of a sentence's tags (f1);
    a sentence's entities (entity_*; `bertlab.transfer.entities`);
    the classes of a group of examples (group_*);
    the names of the classes of each of a sentence's targets (micro_*, core_role_f1, relation_f1, positive_f1);
    gold: the texts that answer a question, () if it has no answer; predicted: a text, "" for none (exact_match, span_f1);
    gold: a word's senses; predicted: one sense, or None for no answer (sense_f1).
"""

import math
import re
import string
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import scipy  # its parts are imported on first use

# Classes.


def _flat(gold: Sequence, predicted: Sequence) -> tuple[list, list]:
    """Classes of examples unchanged; those of sentences one after the other."""
    if np.ndim(gold[0]) == 0:
        return list(gold), list(predicted)
    for one, other in zip(gold, predicted, strict=True):
        if len(one) != len(other):
            raise ValueError(f"a sentence has {len(one)} gold tags but {len(other)} predicted ones")
    return [tag for sentence in gold for tag in sentence], [tag for sentence in predicted for tag in sentence]


def _sklearn():
    """scikit-learn's metrics, imported on first use because that takes a second."""
    import sklearn.metrics

    return sklearn.metrics


def accuracy(gold: Sequence, predicted: Sequence) -> float:
    """Fraction of correct classes, or of correct word tags."""
    gold, predicted = _flat(gold, predicted)
    return np.mean([one == other for one, other in zip(gold, predicted, strict=True)])


def f1(gold: Sequence[int], predicted: Sequence[int]) -> float:
    """F1 of class 1, as GLUE reports it for MRPC and QQP; 0 if neither side has this class."""
    return _sklearn().f1_score(*_flat(gold, predicted), labels=[1], average="macro", zero_division=0.0)


def macro_f1(gold: Sequence, predicted: Sequence) -> float:
    """Mean of the F1 of the classes that occur on either side, as scikit-learn's; "", no answer, is no class."""
    gold, predicted = _flat(gold, predicted)
    classes = sorted({*gold, *predicted} - {""})
    return _sklearn().f1_score(gold, predicted, labels=classes, average="macro", zero_division=0.0)


def matthews(gold: Sequence, predicted: Sequence) -> float:
    """Matthews' correlation, CoLA's metric; 0 if either side is constant."""
    if len(set(gold)) < 2 or len(set(predicted)) < 2:
        return 0.0
    return _sklearn().matthews_corrcoef(gold, predicted)


def group_exact_match(gold: Sequence[Sequence], predicted: Sequence[Sequence]) -> float:
    """Fraction of groups whose classes are all correct: MultiRC's EM, with a question's answers as a group.

    Source: Wang et al. 2019 (SuperGLUE), section 3.
    """
    return np.mean([list(one) == list(other) for one, other in zip(gold, predicted, strict=True)])


# Numbers.


def _correlation(statistic: Callable, gold: Sequence[float], predicted: Sequence[float]) -> float:
    gold, predicted = np.asarray(gold, np.float64), np.asarray(predicted, np.float64)
    if not (np.isfinite(gold).all() and np.isfinite(predicted).all()):
        return math.nan
    if (gold == gold[0]).all() or (predicted == predicted[0]).all():
        return 0.0
    with warnings.catch_warnings():
        # Predictions of a collapsed model differ only in the last digits: the value means little, so no warning is needed.
        warnings.simplefilter("ignore", scipy.stats.NearConstantInputWarning)
        return statistic(gold, predicted).statistic


def pearson(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Pearson's correlation; 0 if either side is constant, NaN if a number is not finite."""
    return _correlation(scipy.stats.pearsonr, gold, predicted)


def spearman(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Spearman's rank correlation; equal numbers get their mean rank; 0 and NaN as for `pearson`."""
    return _correlation(scipy.stats.spearmanr, gold, predicted)


# Labels of spans: each target has any number of classes, each sentence any number of entities.


def _label_counts(gold: Sequence, predicted: Sequence, counted: Callable[[str], bool]) -> tuple[int, int, int]:
    """Numbers of correct, predicted and gold labels over all targets."""
    right = guessed = there = 0
    for one, other in zip(gold, predicted, strict=True):
        for theirs, ours in zip(one, other, strict=True):
            theirs, ours = set(filter(counted, theirs)), set(filter(counted, ours))
            right, guessed, there = right + len(theirs & ours), guessed + len(ours), there + len(theirs)
    return right, guessed, there


def _label_f1(gold: Sequence, predicted: Sequence, counted: Callable[[str], bool]) -> float:
    right, guessed, there = _label_counts(gold, predicted, counted)
    return 2 * right / (guessed + there) if guessed + there else 0.0


def micro_f1(gold: Sequence[Sequence[Sequence[str]]], predicted: Sequence[Sequence[Sequence[str]]]) -> float:
    """F1 over all labels of all targets together (Tenney et al. 2019); 0 if neither side has a label."""
    return _label_f1(gold, predicted, lambda label: True)


def micro_precision(gold: Sequence[Sequence[Sequence[str]]], predicted: Sequence[Sequence[Sequence[str]]]) -> float:
    """Fraction of predicted labels that are right; 0 if none is predicted."""
    right, guessed, _ = _label_counts(gold, predicted, lambda label: True)
    return right / guessed if guessed else 0.0


def micro_recall(gold: Sequence[Sequence[Sequence[str]]], predicted: Sequence[Sequence[Sequence[str]]]) -> float:
    """Fraction of gold labels that were found; 0 if there are none."""
    right, _, there = _label_counts(gold, predicted, lambda label: True)
    return right / there if there else 0.0


def entity_f1(gold: Sequence[Sequence], predicted: Sequence[Sequence]) -> float:
    """F1 over the entities of all sentences, whose types and words must agree (CoNLL's FB1); 0 if neither side has any."""
    return micro_f1([gold], [predicted])


def entity_precision(gold: Sequence[Sequence], predicted: Sequence[Sequence]) -> float:
    """Fraction of predicted entities that are right; 0 if none is predicted."""
    return micro_precision([gold], [predicted])


def entity_recall(gold: Sequence[Sequence], predicted: Sequence[Sequence]) -> float:
    """Fraction of gold entities that were found; 0 if there are none."""
    return micro_recall([gold], [predicted])


def core_role_f1(gold: Sequence[Sequence[Sequence[str]]], predicted: Sequence[Sequence[Sequence[str]]]) -> float:
    """Micro F1 without references and continuations ("R-", "C-"): jiant's `_clean_micro_` of semantic roles."""
    return _label_f1(gold, predicted, lambda label: not label.startswith(("R-", "C-")))


def relation_f1(gold: Sequence[Sequence[Sequence[str]]], predicted: Sequence[Sequence[Sequence[str]]]) -> float:
    """Micro F1 without the class of no relation: "Other" (SemEval 2010), "no_relation", "_...".

    Source: `is_positive_relation` of jiant's probing/analysis_edgeprobe_ICLR_camera_ready.ipynb.
    """
    return _label_f1(gold, predicted, lambda label: not label.startswith("_") and label not in ("Other", "no_relation"))


def positive_f1(gold: Sequence[Sequence[Sequence[str]]], predicted: Sequence[Sequence[Sequence[str]]]) -> float:
    """F1 of the label "1", as jiant reports it for OntoNotes' coreference."""
    return _label_f1(gold, predicted, lambda label: label == "1")


# Answers.

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """The answer in lower case, without ASCII punctuation and English articles, and with one space between words."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _exact(gold: str, predicted: str, agree: bool) -> float:
    return float(gold == predicted)


def _overlap(gold: str, predicted: str, agree: bool) -> float:
    gold, predicted = gold.split(), predicted.split()
    if not gold or not predicted:
        return float(agree and gold == predicted)
    same = sum((Counter(gold) & Counter(predicted)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(predicted), same / len(gold)
    return 2 * precision * recall / (precision + recall)


def _answer_scores(compare: Callable, gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> list[float]:
    lacks_answers = not all(len(answers) for answers in gold)
    values = []
    for answers, text in zip(gold, predicted, strict=True):
        answers = [normalise_answer(answer) for answer in answers]
        if lacks_answers:
            answers = [answer for answer in answers if answer] or [""]
        text = normalise_answer(text)
        values.append(max(compare(answer, text, lacks_answers) for answer in answers))
    return values


def exact_match_scores(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> list[float]:
    """One value per question: 1 if the prediction equals one of the answers after `normalise_answer`, else 0.

    If every question has an answer, it follows SQuAD 1.1's script, otherwise 2.0's. They differ only for answers that
    `normalise_answer` makes empty: 2.0 drops them, and if no answer remains, the answer is "".

    Args:
        gold: texts of the answers; () if the question has none.
        predicted: texts; "" for no answer.

    Source: SQuAD's evaluate-v1.1.py and evaluate-v2.0.py (Rajpurkar et al. 2016, 2018).
    """
    return _answer_scores(_exact, gold, predicted)


def span_f1_scores(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> list[float]:
    """One value per question: the largest F1 of the words shared with an answer; arguments and source: `exact_match_scores`.

    If the answer or the prediction has no words left, 1.1's script gives 0; 2.0's gives 1 if both have none.
    """
    return _answer_scores(_overlap, gold, predicted)


def exact_match(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> float:
    """Mean of `exact_match_scores`."""
    return sum(exact_match_scores(gold, predicted)) / len(gold)


def span_f1(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> float:
    """Mean of `span_f1_scores`."""
    return sum(span_f1_scores(gold, predicted)) / len(gold)


def best_threshold(
    scores: Sequence[float], predicted: Sequence[str], null_odds: Sequence[float], has_answer: Sequence[bool]
) -> tuple[float, float]:
    """(Threshold, score): the "no answer" threshold with the best score on these questions, and this score as a fraction.

    A question gets no answer if its odds are above the threshold. As in the script, the threshold is 0 if no threshold beats
    giving no answers at all, and of several questions with the same odds some may get an answer and others not.

    Args:
        scores: the score of each question's `predicted` text (`exact_match_scores` or `span_f1_scores`).
        predicted: the best answer text for every question.
        null_odds: the odds of no answer: `bertlab.transfer.windows.Prediction.null_odds`.
        has_answer: whether the question has an answer.

    Source: find_best_thresh of SQuAD's evaluate-v2.0.py.
    """
    current = best = sum(not has for has in has_answer)
    threshold = 0.0
    for index in sorted(range(len(scores)), key=lambda index: null_odds[index]):
        current += scores[index] if has_answer[index] else -bool(predicted[index])
        if current > best:
            best, threshold = current, null_odds[index]
    return float(threshold), best / len(scores)


# Senses.


def sense_f1(gold: Sequence[Sequence[str]], predicted: Sequence[str | None]) -> float:
    """Harmonic mean of precision (over the words that got a sense) and recall (over all); 0 if none is right.

    Args:
        gold: each word's senses, of which any is right.
        predicted: a sense, or None for no answer.

    Source: Raganato et al. 2017, section 4, and Navigli 2009, section 5; equal to the accuracy if all words get a sense.
    """
    answered = sum(sense is not None for sense in predicted)
    right = sum(sense in senses for senses, sense in zip(gold, predicted, strict=True))
    return 2 * right / (answered + len(gold))


_OF_ENTITIES = (entity_f1, entity_precision, entity_recall)
_OF_TARGETS = (micro_f1, micro_precision, micro_recall, core_role_f1, relation_f1, positive_f1)
_OF_ANSWERS = (exact_match, span_f1)
NUMBER_METRICS = ("f1",)
"""These read the numbers of classes, the others their names."""
ENTITY_METRICS = {function.__name__: function for function in _OF_ENTITIES}
"""These read the entities of sentences."""
GROUP_METRICS = {function.__name__: function for function in (group_exact_match,)}
"""These read the classes of a group of examples as one item."""
_OTHERS = (accuracy, f1, macro_f1, matthews, pearson, spearman, sense_f1, *_OF_TARGETS, *_OF_ANSWERS)
METRICS: Mapping[str, Callable[[Sequence, Sequence], float]] = (
    {of.__name__: of for of in _OTHERS} | ENTITY_METRICS | GROUP_METRICS
)
"""Name -> (gold, predicted) -> value. Both sequences have the same length, at least 1. Higher is better."""
