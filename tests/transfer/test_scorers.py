"""Scorers against numbers that the official scripts gave for the same predictions, and against slow definitions.

`ANSWERS` are what SQuAD's evaluate-v1.1.py and evaluate-v2.0.py gave for `questions`; a digest is of all values in turn.
"""

import hashlib
import math
import random

import numpy as np
import pytest
from sklearn.metrics import f1_score, precision_recall_fscore_support
from sklearn.preprocessing import MultiLabelBinarizer

from bertlab.transfer import scorers
from bertlab.transfer.scorers import METRICS, best_threshold


def score(metrics, gold, predicted):
    return {name: METRICS[name](gold, predicted) for name in metrics}


_WORDS = (
    *("the", "The", "a", "an", "AN", "theory", "cat", "Cats", "U.S.", "1,000", "1000", "o'clock", "o’clock", "—", "the-a"),
    *("café", "cafe\u0301", "ÉCOLE", "école", "İstanbul", "ﬁn", "fin", "Straße", "北京", "北京。", "x\u200by", "\u200b"),
    *("😀", "!!!"),
    *("a.", "\u00a0the\u00a0", "\u3000", "\ta\n", "_", "über", "thé"),
)


def questions(number: int, seed: int, lacking: float) -> tuple[list[tuple[str, ...]], list[str], list[float]]:
    """Answers, predictions and odds of "no answer"; predictions often share words with an answer."""
    generator = random.Random(seed)
    gold, predicted, odds = [], [], []
    text = lambda: " ".join(generator.choices(_WORDS, k=generator.randint(1, 5)))
    for _ in range(number):
        answers = [] if generator.random() < lacking else [text() for _ in range(generator.randint(1, 4))]
        words = generator.choice(answers).split(" ") if answers and generator.random() < 0.8 else text().split(" ")
        kept = [word.upper() if generator.random() < 0.2 else word for word in words if generator.random() < 0.8]
        gold.append(tuple(answers))
        predicted.append(generator.choice((" ", "  ", ", ")).join(kept))
        odds.append(generator.randint(-40, 40) / 8 + (-3 if answers else 3))
    return gold, predicted, odds


def digest(values) -> str:
    return hashlib.sha256(",".join(repr(float(value)) for value in values).encode()).hexdigest()[:16]


# Exact match and F1 in percent, digests of the questions' values, and for 2.0 the best score and its threshold of either.
ANSWERS = {
    "1.1": (53.9, 63.69960317460318, "a7a8a2b6cae161e1", "97353b887f5e03f2"),
    "2.0": (35.7, 47.406785714285576, "7dcaee1c26c2a9e2", "76f8dbff6954918e", (56.7, -2.0), (65.20583333333343, 1.5)),
}


@pytest.mark.parametrize("version", ANSWERS)
def test_answers_score_as_in_the_official_scripts(version):
    gold, predicted, odds = questions(2000, 7, lacking=0.0 if version == "1.1" else 0.4)
    exact, overlap = scorers.exact_match_scores(gold, predicted), scorers.span_f1_scores(gold, predicted)
    assert (digest(exact), digest(overlap)) == ANSWERS[version][2:4]
    # The sum of 2,000 numbers has other last digits from Python 3.12 on.
    values = score(["exact_match", "span_f1"], gold, predicted)
    assert [100 * value for value in values.values()] == pytest.approx(ANSWERS[version][:2], rel=1e-14)
    if version == "2.0":
        for values, (best, threshold) in zip((exact, overlap), ANSWERS[version][4:]):
            found = best_threshold(values, predicted, odds, [bool(answers) for answers in gold])
            assert found == (threshold, pytest.approx(best / 100, rel=1e-14))


@pytest.mark.parametrize(
    ("answer", "text", "exact", "overlap"),
    [
        ("the U.S.", "us", 1, 1),
        ("An 1,000", "1000 cats", 0, 0.6666666666666666),
        ("a theory", "theory", 1, 1),
        ("café", "cafe\u0301", 0, 0),
        ("ÉCOLE", "école", 1, 1),
        ("x-y z", "xy", 0, 0.6666666666666666),
        ("o’clock", "o'clock", 0, 0),
        ("x’the’y", "x’ ’y", 1, 1),
        ("İstanbul", "istanbul", 0, 0),
        ("cat cat dog", "cat dog dog", 0, 0.6666666666666666),
        ("北京 大学", "北京大学", 0, 0),
        ("\u00a0the\u00a0cat", "cat", 1, 1),
        ("the", "", 1, 0),  # 1.1 finds no shared word
    ],
)
def test_recorded_answers(answer, text, exact, overlap):
    assert score(["exact_match", "span_f1"], [(answer,)], [text]) == {"exact_match": exact, "span_f1": overlap}
    assert score(["exact_match", "span_f1"], [("far off", answer)], [text]) == {"exact_match": exact, "span_f1": overlap}


def test_questions_without_answers():
    gold = [(), (), ("the", "a"), ("the", "cat")]
    assert scorers.exact_match_scores(gold, ["", "cat", "the", ""]) == [1, 0, 1, 0]
    assert scorers.span_f1_scores(gold, ["", "cat", "", ""]) == [1, 0, 1, 0]


def test_no_threshold_is_better_than_the_best_one():
    gold, predicted, odds = questions(300, 3, lacking=0.5)
    odds = [odd + index / 1000 for index, odd in enumerate(odds)]  # no ties: one that splits them cannot be had
    values, has = scorers.span_f1_scores(gold, predicted), [bool(answers) for answers in gold]
    threshold, best = best_threshold(values, predicted, odds, has)
    at = lambda t: scorers.span_f1(gold, [text if odd <= t else "" for text, odd in zip(predicted, odds)])
    assert at(threshold) == pytest.approx(best, rel=1e-12)
    assert best == pytest.approx(max(at(t) for t in [-100, *odds]), rel=1e-12)
    assert best > at(0.0)
    # What is only as good as no answers does not move it.
    assert best_threshold([0.0, 1.0], ["x", "y"], [-2.0, -1.0], [True, False]) == (0.0, 0.5)


def test_superglues_metrics_are_those_of_their_definitions():
    """CB: accuracy and the mean F1 of classes. MultiRC: F1 over all answers; questions all of whose answers are right."""
    rng = np.random.default_rng(5)
    gold, predicted = rng.integers(0, 3, 56), rng.integers(0, 3, 56)
    hits = [((gold == c) & (predicted == c)).sum() for c in range(3)]
    f1s = [2 * hit / ((gold == c).sum() + (predicted == c).sum()) for c, hit in enumerate(hits)]
    expected = {"accuracy": (gold == predicted).mean(), "macro_f1": np.mean(f1s)}
    assert score(list(expected), gold.tolist(), predicted.tolist()) == pytest.approx(expected, rel=1e-14)
    sizes = rng.integers(1, 7, 200)
    gold = rng.integers(0, 2, sizes.sum())
    predicted = np.where(rng.random(len(gold)) < 0.8, gold, 1 - gold)
    right, begins = gold == predicted, np.cumsum(sizes) - sizes
    split = lambda values: [part.tolist() for part in np.split(values, begins[1:])]
    exact = METRICS["group_exact_match"](split(gold), split(predicted))
    assert exact == pytest.approx(np.logical_and.reduceat(right, begins).mean(), rel=1e-14) and 0.2 < exact < 0.8
    of_all = 2 * (gold & predicted).sum() / (gold.sum() + predicted.sum())
    assert METRICS["f1"](gold.tolist(), predicted.tolist()) == pytest.approx(of_all, rel=1e-14)


def test_class_metrics():
    """Class 1 is meant by f1, not the last or the rarest, and macro_f1 is of the classes that occur."""
    gold, predicted = [1, 1, 0, 0, 0, 0], [1, 0, 1, 1, 0, 0]  # true and false positives, false and true negatives: 1, 2, 1, 2
    expected = {"accuracy": 3 / 6, "f1": 2 / 5, "macro_f1": (2 / 5 + 4 / 7) / 2, "matthews": 0.0}
    assert score(list(expected), gold, predicted) == pytest.approx(expected, rel=1e-14, abs=1e-14)
    assert METRICS["matthews"]([1, 1, 0, 0], [1, 0, 0, 0]) == pytest.approx(2 / math.sqrt(12), rel=1e-14)
    assert METRICS["f1"]([1, 0, 0, 2], [1, 1, 0, 1]) == 0.5
    assert METRICS["macro_f1"](["a", "a", "b"], ["a", "c", "c"]) == pytest.approx(2 / 9, rel=1e-15)


def test_tags_count_word_by_word():
    gold, predicted = [("N", "V", "N"), ("N",)], [("N", "V", "V"), ("V",)]
    assert score(["accuracy"], gold, predicted) == {"accuracy": 0.5}
    with pytest.raises(ValueError, match="3 gold tags but 2"):
        score(["accuracy"], gold, [("N", "V"), ("V",)])


def test_equal_numbers_have_their_mean_rank():
    gold, predicted = [0.0, 2.0, 2.0, 5.0], [1.0, 9.0, 4.0, 30.0]
    expected = {
        "pearson": np.corrcoef(gold, predicted)[0, 1],
        "spearman": np.corrcoef([1, 2.5, 2.5, 4], [1, 3, 2, 4])[0, 1],
    }
    assert score(list(expected), gold, predicted) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("predicted", [[1, 1, 1, 1], [0, 0, 0, 0]])
@pytest.mark.parametrize("gold", [[0, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
def test_constant_predictions_neither_fail_nor_warn(gold, predicted):
    values = score(["accuracy", "f1", "macro_f1", "matthews", "pearson", "spearman"], gold, predicted)
    assert values["matthews"] == values["pearson"] == values["spearman"] == 0.0
    assert values["accuracy"] == np.mean(np.equal(gold, predicted))
    assert score(["pearson", "spearman"], predicted, gold) == {"pearson": 0.0, "spearman": 0.0}


def test_collapsed_and_diverged_models_have_correlations():
    nearly = [3.0, 3.0 + 1e-15, 3.0, 3.0 - 1e-15]
    assert all(abs(value) <= 1 for value in score(["pearson", "spearman"], [1.0, 2.0, 3.0, 5.0], nearly).values())
    for diverged in (math.nan, math.inf):
        assert all(map(math.isnan, score(["pearson", "spearman"], [1, 2, 3], [1, 2, diverged]).values()))


def test_labels_of_targets_score_as_scikit_learns_micro_averages():
    rng = np.random.default_rng(0)
    names = np.array(["A0", "A1", "R-A0", "C-A1", "1", "Other", "no_relation"])
    draw = lambda share: [[names[rng.random(7) < share].tolist() for _ in range(1 + i % 4)] for i in range(50)]
    gold, predicted = draw(0.3), draw(0.4)
    k_hot = MultiLabelBinarizer(classes=names).fit([])
    gold_k, predicted_k = (k_hot.transform([of for sentence in side for of in sentence]) for side in (gold, predicted))
    expected = dict(zip(("micro_precision", "micro_recall", "micro_f1"), _micro(gold_k, predicted_k, range(7))))
    expected |= {
        "core_role_f1": _micro(gold_k, predicted_k, [0, 1, 4, 5, 6])[2],
        "relation_f1": _micro(gold_k, predicted_k, [0, 1, 2, 3, 4])[2],
        "positive_f1": f1_score(gold_k[:, 4], predicted_k[:, 4]),
    }
    assert score(expected, gold, predicted) == pytest.approx(expected)
    # By hand: one right of two predicted and three there.
    assert METRICS["micro_f1"]([[["a", "b"]], [["c"]]], [[["a"]], [["d"]]]) == pytest.approx(2 / 5)
    nothing = [[[], []]], [[[], []]]
    assert score(expected, *nothing) == dict.fromkeys(expected, 0.0)


def _micro(gold, predicted, columns):
    return precision_recall_fscore_support(gold[:, columns], predicted[:, columns], average="micro")[:3]
