"""The metrics of tasks: the same numbers as the published scripts, as fractions from 0 to 1. Gold
and predicted have one item per example: a class; a number; a sentence's tags, predicted "" for a
word that was not read; for questions the texts that answer it, or (), and a predicted text."""

import dataclasses
import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bertlab.errors import UserError


def _pairs(gold: Sequence, predicted: Sequence) -> list[tuple]:
    """(Gold, predicted) of each example, or of each word of sentences."""
    pairs = list(zip(gold, predicted, strict=True))
    if not isinstance(gold[0], list | tuple):
        return pairs
    return [pair for one, other in pairs for pair in zip(one, other, strict=True)]


def accuracy(gold: Sequence, predicted: Sequence) -> float:
    """Fraction of correct classes, or of correct word tags."""
    return float(np.mean([one == other for one, other in _pairs(gold, predicted)]))


def f1_of_counts(right: int, predicted: int, gold: int) -> float:
    """F1; 0 if neither side has any items."""
    return 2 * right / (predicted + gold) if predicted + gold else 0.0


def f1(gold: Sequence, predicted: Sequence, label: object = 1) -> float:
    """F1 of one class, as GLUE reports it for MRPC and QQP; 0 if neither side has this class."""
    pairs = _pairs(gold, predicted)
    right = sum(one == other == label for one, other in pairs)
    return f1_of_counts(right, *(side.count(label) for side in zip(*pairs)))


def macro_f1(gold: Sequence, predicted: Sequence) -> float:
    """Mean F1 of the classes on either side, as in scikit-learn; "" (not read) is not a class."""
    gold, predicted = zip(*_pairs(gold, predicted))
    labels = sorted({*gold, *predicted} - {""})
    return float(np.mean([f1(gold, predicted, label) for label in labels]))


def matthews(gold: Sequence, predicted: Sequence) -> float:
    """Matthews' correlation of any number of classes (CoLA); 0 if either side is constant."""
    from sklearn.metrics import matthews_corrcoef  # takes a second to import

    return float(matthews_corrcoef(gold, predicted))


def group_exact_match(gold: Sequence, predicted: Sequence, groups: Sequence) -> float:
    """Share of groups whose classes are all correct: MultiRC's EM (Wang et al. 2019, section 3)."""
    items, total = zip(gold, predicted, groups, strict=True), len(set(groups))
    wrong = {group for one, other, group in items if one != other}
    return (total - len(wrong)) / total


def pearson(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Pearson's correlation; 0 if either side is constant."""
    sides = np.asarray([gold, predicted], np.float64)
    if (sides == sides[:, :1]).all(axis=1).any():
        return 0.0
    return float(np.corrcoef(sides)[0, 1])


def spearman(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Spearman's rank correlation; equal numbers have their mean rank. 0 as for `pearson`."""
    from scipy.stats import rankdata  # SciPy's statistics take a second to import

    return pearson(*rankdata([gold, predicted], axis=1))


def f1_of_sets(gold: Sequence[set], predicted: Sequence[set]) -> float:
    """F1 over the members of all sets together; 0 without any."""
    right = sum(len(one & other) for one, other in zip(gold, predicted, strict=True))
    return f1_of_counts(right, sum(map(len, predicted)), sum(map(len, gold)))


# A sentence is two characters per word: "=" if the word has the type of the one before, otherwise
# "|", and the letter of its tag. Each name consists of its scheme's letters.
_ENTITIES = {
    "IOB2": re.compile(r".B(=I)*"),
    # As in seqeval, a single B before a B of another type is not an entity.
    "IOB1": re.compile(r".I(=I)*|=B(?!\|B)(=I)*"),
    "IOE2": re.compile(r".I(=I)*=E|.E"),
    "IOBES": re.compile(r".B(=I)*=E|.S"),
    "BILOU": re.compile(r".B(=I)*=L|.U"),
}
_TAG = re.compile(r"([BIELSU])(?:[\W_](.*))?")  # letter and type: "B-PER", also B_PER
_MOST_STRAY = 0.1  # share of the tags that may break the scheme, as annotators' slips do


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How tags mark entities, as in seqeval's strict mode."""

    name: str  # IOB1, IOB2, IOE2, IOBES or BILOU
    tags: Mapping[str, tuple[str, str]]  # the letter and type of each tag; others are outside

    def entities(self, tags: Sequence[str]) -> list[tuple[str, int, int]]:
        """(Type, first word, end) of each entity; a tag that breaks the scheme is in none."""
        words, sentence, before = [self.tags.get(tag, ("O", None)) for tag in tags], "", None
        for letter, entity in words:
            sentence += ("=" if entity == before else "|") + letter
            before = entity
        spans = [match.span() for match in _ENTITIES[self.name].finditer(sentence)]
        return [(words[first // 2][1], first // 2, end // 2) for first, end in spans]

    def strays(self, tags: Sequence[str]) -> list[int]:
        """The words that have a type but are in no entity."""
        inside = {word for _, first, end in self.entities(tags) for word in range(first, end)}
        return [word for word, tag in enumerate(tags) if tag in self.tags and word not in inside]


def find_scheme(task: str, names: Sequence[str], examples: Mapping) -> tuple[Scheme, list[str]]:
    """The scheme that the fewest tags of all splits break, and notes for the user."""
    labelled = [one for split in examples.values() for one in split if one.label is not None]
    sentences = [(one.where, [names[number] for number in one.label]) for one in labelled]
    counts = Counter(tag for _, sentence in sentences for tag in sentence)
    inside = counts.keys() - {"O", "0"}
    parts = {tag: match.groups("") for tag in inside if (match := _TAG.fullmatch(tag))}
    letters = {letter for letter, _ in parts.values()}
    possible = [Scheme(name, parts) for name in _ENTITIES if letters <= set(name)]
    if len(parts) < len(inside) or not possible:
        tags = ", ".join(sorted(counts))
        raise UserError(f"task '{task}': the tags {tags} mark no entities; use the metric accuracy")
    strays = [[at for at, tags in sentences for _ in one.strays(tags)] for one in possible]
    scheme, found = min(zip(possible, strays), key=lambda pair: len(pair[1]))
    notes = [f"entities are tagged as {scheme.name}"]
    if found:
        total = sum(counts[tag] for tag in inside)
        notes.append(f"{len(found):,} of {total:,} tags break {scheme.name}, first at {found[0]}")
        if len(found) > _MOST_STRAY * total:
            raise UserError(f"task '{task}': {notes[-1]}; write all tags in one scheme")
    return scheme, notes


def entity_f1(gold: Sequence, predicted: Sequence, scheme: Scheme) -> float:
    """F1 over all entities, whose types and words must agree (CoNLL's FB1)."""
    sides = ([set(scheme.entities(tags)) for tags in side] for side in (gold, predicted))
    return f1_of_sets(*sides)


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalize_answer(text: str) -> str:
    """Lower case without ASCII punctuation and articles, one space between words."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _overlap(gold: str, predicted: str) -> float:
    """F1 of the words that two normalized texts share."""
    gold, predicted = Counter(gold.split()), Counter(predicted.split())
    return f1_of_counts((gold & predicted).total(), predicted.total(), gold.total())


def answer_scores(gold: Sequence, predicted: Sequence[str], exact=False) -> list[float]:
    """By question, the largest F1 of the words shared with an answer after `normalize_answer`;
    `exact`: 1 if the prediction equals an answer, else 0. As SQuAD's evaluate-v1.1.py if every
    question has an answer, otherwise evaluate-v2.0.py (Rajpurkar et al. 2016, 2018), which differs
    for answers that `normalize_answer` empties: it drops them, and if answer and prediction have no
    words, F1 is 1."""
    lacking, scores = not all(gold), []
    for answers, text in zip(gold, predicted, strict=True):
        answers, text = [normalize_answer(answer) for answer in answers], normalize_answer(text)
        if lacking:
            answers = [answer for answer in answers if answer] or [""]
        if exact or (lacking and text in answers):
            scores.append(float(text in answers))
        else:
            scores.append(max(_overlap(answer, text) for answer in answers))
    return scores


def exact_match(gold: Sequence, predicted: Sequence[str]) -> float:
    """Fraction of the questions whose prediction equals an answer."""
    return sum(answer_scores(gold, predicted, exact=True)) / len(gold)


def span_f1(gold: Sequence, predicted: Sequence[str]) -> float:
    """Mean of `answer_scores`."""
    return sum(answer_scores(gold, predicted)) / len(gold)


def best_threshold(
    scores: Sequence[float], predicted: Sequence[str], null_odds: Sequence, has_answer: Sequence
) -> tuple[float, float]:
    """(Threshold, mean score): a question gets no answer if its odds of none are above the best
    threshold, 0 if none beats giving no answers at all. `scores` are those of the `predicted`
    texts. Source: find_best_thresh of SQuAD's evaluate-v2.0.py."""
    current = best = sum(not has for has in has_answer)
    threshold = 0.0
    for index in sorted(range(len(scores)), key=null_odds.__getitem__):
        current += scores[index] if has_answer[index] else -bool(predicted[index])
        if current > best:
            best, threshold = current, null_odds[index]
    return float(threshold), best / len(scores)


_ALL = (accuracy, f1, macro_f1, matthews, pearson, spearman, group_exact_match)
_ALL += (entity_f1, exact_match, span_f1)
METRICS: dict[str, Callable[..., float]] = {metric.__name__: metric for metric in _ALL}
"""Name -> (gold, predicted), at least one item each -> value; higher is better. `f1` reads which
class counts too, `entity_f1` the tags' scheme, `group_exact_match` the group of each item."""
