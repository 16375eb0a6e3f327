"""Scorers against the official scripts' numbers, scikit-learn, seqeval and slow definitions."""

import itertools
import random

import numpy as np
import pytest
import seqeval.metrics
import seqeval.scheme
import sklearn.metrics
from scipy import stats

from bertlab.errors import UserError
from bertlab.transfer.examples import Example
from bertlab.transfer.scorers import METRICS, answer_scores, best_threshold, find_scheme

_WORDS = (
    *"the The a an AN theory cat Cats U.S. 1,000 1000 o'clock o’clock — the-a café".split(),
    *"cafe\u0301 ÉCOLE école İstanbul ﬁn fin Straße 北京 北京。 x\u200by \u200b 😀 !!! a.".split(),
    *("\u00a0the\u00a0", "\u3000", "\ta\n", "_", "über", "thé"),
)


def questions(number, seed, lacking):
    """Answers, predictions and odds of "no answer"; predictions often share words."""
    generator = random.Random(seed)
    gold, predicted, odds = [], [], []

    def text():
        return " ".join(generator.choices(_WORDS, k=generator.randint(1, 5)))

    for _ in range(number):
        lacks = generator.random() < lacking
        answers = [] if lacks else [text() for _ in range(generator.randint(1, 4))]
        copied = answers and generator.random() < 0.8
        words = (generator.choice(answers) if copied else text()).split(" ")
        words = [
            word.upper() if generator.random() < 0.2 else word
            for word in words
            if generator.random() < 0.8
        ]
        gold.append(tuple(answers))
        predicted.append(generator.choice((" ", "  ", ", ")).join(words))
        odds.append(generator.randint(-40, 40) / 8 + (-3 if answers else 3))
    return gold, predicted, odds


# What evaluate-v1.1.py and evaluate-v2.0.py gave for these questions, in percent.
@pytest.mark.parametrize(
    ("lacking", "exact", "overlap"),
    [(0.0, 53.9, 63.69960317460318), (0.4, 35.7, 47.406785714285576)],
)
def test_answers_score_as_in_squads_scripts(lacking, exact, overlap):
    gold, predicted, odds = questions(2000, 7, lacking)
    assert 100 * METRICS["exact_match"](gold, predicted) == pytest.approx(exact, rel=1e-13)
    assert 100 * METRICS["span_f1"](gold, predicted) == pytest.approx(overlap, rel=1e-13)
    if lacking:
        has_answer = [bool(answers) for answers in gold]
        for scores, best, threshold in (
            (answer_scores(gold, predicted, exact=True), 56.7, -2.0),
            (answer_scores(gold, predicted), 65.20583333333343, 1.5),
        ):
            found = best_threshold(scores, predicted, odds, has_answer)
            assert found == (threshold, pytest.approx(best / 100, rel=1e-13))


@pytest.mark.parametrize(
    ("answer", "text", "exact", "overlap"),
    [
        ("the U.S.", "us", 1, 1),
        ("An 1,000", "1000 cats", 0, 2 / 3),
        ("café", "cafe\u0301", 0, 0),
        ("x-y z", "xy", 0, 2 / 3),
        ("o’clock", "o'clock", 0, 0),
        ("x’the’y", "x’ ’y", 1, 1),
        ("cat cat dog", "cat dog dog", 0, 2 / 3),
        ("the", "", 1, 0),  # 1.1 finds no shared word
    ],
)
def test_answers_recorded_from_squads_scripts(answer, text, exact, overlap):
    for gold in ((answer,), ("far off", answer)):
        assert answer_scores([gold], [text], exact=True) == [exact]
        assert answer_scores([gold], [text]) == [pytest.approx(overlap)]


def test_questions_without_answers():
    gold = [(), (), ("the", "a"), ("the", "cat")]
    assert answer_scores(gold, ["", "cat", "the", ""], exact=True) == [1, 0, 1, 0]
    assert answer_scores(gold, ["", "cat", "", ""]) == [1, 0, 1, 0]
    # What is only as good as no answers does not move the threshold.
    assert best_threshold([0.0, 1.0], "xy", [-2.0, -1.0], [True, False]) == (0.0, 0.5)


def test_classes_score_as_in_scikit_learn():
    rng = np.random.default_rng(5)
    for classes in (2, 4):
        gold = rng.integers(0, classes, 300)
        predicted = np.where(rng.random(300) < 0.6, gold, rng.integers(0, classes, 300))
        expected = {
            "accuracy": sklearn.metrics.accuracy_score(gold, predicted),
            "f1": sklearn.metrics.f1_score(gold, predicted, labels=[1], average="macro"),
            "macro_f1": sklearn.metrics.f1_score(gold, predicted, average="macro"),
            "matthews": sklearn.metrics.matthews_corrcoef(gold, predicted),
        }
        for name, value in expected.items():
            found = METRICS[name](gold.tolist(), predicted.tolist())
            assert found == pytest.approx(value, rel=1e-12), name


def test_macro_f1_is_of_the_classes_that_occur_and_an_unread_word_is_none():
    assert METRICS["macro_f1"](["a", "a", "b"], ["a", "c", "c"]) == pytest.approx(2 / 9)
    gold, read, unread = (
        [("N", "V", "N"), ("N",)],
        [("N", "V", "V"), ("V",)],
        [("N", "", ""), ("",)],
    )
    assert METRICS["accuracy"](gold, read) == 0.5 and METRICS["accuracy"](gold, unread) == 0.25
    assert METRICS["macro_f1"](gold, unread) == pytest.approx((2 / 4 + 0) / 2)
    with pytest.raises(ValueError, match="shorter"):
        METRICS["accuracy"](gold, [("N", "V"), ("V",)])


def test_correlations():
    gold, predicted = [0.0, 2.0, 2.0, 5.0, 1.0], [1.0, 9.0, 4.0, 30.0, 30.0]
    assert METRICS["pearson"](gold, predicted) == pytest.approx(stats.pearsonr(gold, predicted)[0])
    assert METRICS["spearman"](gold, predicted) == pytest.approx(
        stats.spearmanr(gold, predicted)[0]
    )
    for name in ("pearson", "spearman"):
        assert METRICS[name](gold, [3.0] * 5) == METRICS[name]([3.0] * 5, gold) == 0.0
        assert abs(METRICS[name](gold, [3.0, 3.0 + 1e-15, 3.0, 3.0, 3.0])) <= 1
    assert METRICS["matthews"]([0, 1, 1], [1, 1, 1]) == 0.0 == METRICS["f1"]([0, 0], [0, 0])


def test_groups():
    found = METRICS["group_exact_match"]([1, 0, 1, 0], [1, 0, 0, 0], "aabc")
    assert found == pytest.approx(2 / 3)


TYPES = ("PER", "LOC", "X-Y")
SCHEMES = ("IOB1", "IOB2", "IOE2", "IOBES", "BILOU")
FORMS = ("{0}-{1}", "{0}_{1}")


def entity(scheme, length, follows):
    """Letters of an entity; `follows`: it comes directly after one of the same type."""
    inside = "I" * (length - 1)
    if scheme == "IOB1":
        return ("B" if follows else "I") + inside
    if scheme == "IOB2":
        return "B" + inside
    if scheme == "IOE2":
        return inside + "E"
    begin, end, single = {"IOBES": "BES", "BILOU": "BLU"}[scheme]
    return single if length == 1 else begin + inside[1:] + end


def sentence(scheme, generator):
    """(Letter, type) of each word."""
    words = []
    for _ in range(generator.randint(1, 6)):
        name = generator.choice((None, *TYPES[: generator.randint(1, 3)]))
        follows = bool(words) and words[-1][1] == name
        letters = entity(scheme, generator.randint(1, 3), follows)
        words += [("O", None)] if name is None else [(letter, name) for letter in letters]
    return words


def tagged(sentences):
    """The names of tags, and a split of examples with their numbers."""
    names = sorted({tag for tags in sentences for tag in tags})
    return names, [
        Example(str(i), f"f:{i}", words=tuple(tags), label=tuple(map(names.index, tags)))
        for i, tags in enumerate(sentences)
    ]


@pytest.mark.parametrize(("scheme", "form"), [*itertools.product(SCHEMES, FORMS)])
def test_entities_score_as_in_seqevals_strict_mode(scheme, form):
    generator = random.Random(f"{scheme} {form}")
    outside = generator.choice("O0")
    gold = [sentence(scheme, generator) for _ in range(150)]
    words = sorted({word for tags in gold for word in tags}, key=str)
    guess = [[generator.choice(words) if generator.random() < 0.3 else w for w in s] for s in gold]

    def spell(sentences, form, outside):
        return [[outside if w[1] is None else form.format(*w) for w in tags] for tags in sentences]

    spelt = [spell(side, form, outside) for side in (gold, guess)]
    names, examples = tagged(spelt[0])
    found, _ = find_scheme("own", names, {"train": examples})
    sides = [spell(side, "{0}-{1}", "O") for side in (gold, guess)]
    official = getattr(seqeval.scheme, scheme)
    expected = seqeval.metrics.f1_score(*sides, mode="strict", scheme=official)
    assert METRICS["entity_f1"](*spelt, found) == pytest.approx(expected)
    assert 0.1 < expected < 0.9


def test_the_scheme_is_recognised_over_all_splits_and_slips_are_counted():
    # Train alone could be IOB2; the test set has an I after O, as IOB1.
    sentences = [["B-A", "I-A", "O"]] * 3 + [["I-A", "I-A", "O"]] * 30
    names, examples = tagged(sentences)
    scheme, _ = find_scheme("own", names, {"train": examples[:3], "test": examples[3:]})
    assert scheme.name == "IOB1"
    names, examples = tagged([["B-A", "I-A", "O"]] * 30 + [["O", "I-A", "B-A", "B-A"]])
    scheme, notes = find_scheme("own", names, {"train": examples[:-1], "test": examples[-1:]})
    assert scheme.name == "IOB2" and "1 of 63 tags break IOB2, first at f:30" in notes[1]


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ("DET NOUN VERB", "the tags DET, NOUN, VERB mark no entities"),
        ("B-PER M-PER E-PER O", "B-PER, E-PER, M-PER, O mark no entities"),
        ("B-PER I-PER S-PER L-PER O", "mark no entities"),
        ("PER B-LOC O", "mark no entities"),
        ("0 1 2 0", "mark no entities"),
        ("B-PER I-PER O I-LOC I-LOC", "1 of 4 tags break IOB1"),
    ],
)
def test_tags_in_no_scheme_are_refused(tags, message):
    names, examples = tagged([tags.split()])
    with pytest.raises(UserError, match=message):
        find_scheme("own", names, {"train": examples})
