"""Linear models on n-grams, trained on a task's own labels: a baseline without pretraining.

texts, pairs   a linear SVM on tf-idf of words and neighbouring words: of each text, and of the
               words that both texts of a pair share
choices        the same on the text with each choice, right or wrong; the highest score wins
numbers        ridge regression on the same features
tags           a linear SVM on the word, its prefixes, suffixes and form, and its neighbours
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.svm import LinearSVC

from bertlab.transfer.examples import Example
from bertlab.transfer.kinds import find_kind
from bertlab.transfer.kinds.tagging import Tagging
from bertlab.transfer.kinds.texts import Choice, OneClass, Regression
from bertlab.transfer.scoring import score_lines
from bertlab.transfer.tasks import Task, TaskData

REACH = 2
"""Words on each side of a tagged one."""
AFFIX = 4
"""Letters of the longest prefix and suffix."""

Outputs = list[dict[str, np.ndarray]]
"""What a kind's `predict` reads."""


def linear_scores(task: Task, data: TaskData) -> dict[str, dict[str, float]]:
    """Split -> a linear model's metrics on the task; {} for kinds without one here."""
    train, kind, found = data.examples["train"], find_kind(task.kind), {}
    if isinstance(kind, Choice):
        answer = choice_model(train)
    elif isinstance(kind, OneClass | Regression):
        answer = text_model(train, is_number=isinstance(kind, Regression))
    elif isinstance(kind, Tagging):
        answer = tag_model(train)
    else:
        return {}
    for split in ("valid", "test"):
        outputs = answer(data.examples[split])
        lines = kind.predict(data.examples[split], data.names, outputs, None)
        found[split] = score_lines(task, data, lines)
    return found


def text_model(train: Sequence[Example], is_number: bool) -> Callable[[Sequence[Example]], Outputs]:
    """A model of one class or number per text or pair."""
    features = NGrams([example.texts for example in train])
    labels = [example.label for example in train]
    model = (Ridge().fit if is_number else fit_classes)(features.train, labels)

    def answer(examples):
        found = model.predict(features([example.texts for example in examples]))
        if is_number:
            return [{"logits": np.array([number])} for number in found]
        return [{"logits": np.eye(number + 1)[number]} for number in found]

    return answer


def choice_model(train: Sequence[Example]) -> Callable[[Sequence[Example]], Outputs]:
    """A model of the right choice."""

    def texts(examples):
        return [(" ".join(e.texts), choice) for e in examples for choice in e.choices]

    features = NGrams(texts(train))
    right = [number == e.label for e in train for number in range(len(e.choices))]
    model = fit_classes(features.train, right)

    def answer(examples):
        scores = model.decision_function(features(texts(examples)))
        ends = np.cumsum([len(example.choices) for example in examples])
        return [{"logits": part} for part in np.split(scores, ends[:-1])]

    return answer


def tag_model(train: Sequence[Example]) -> Callable[[Sequence[Example]], Outputs]:
    """A model of one tag per word."""
    vectorizer = DictVectorizer()
    found = vectorizer.fit_transform([f for e in train for f in word_features(e.words)])
    model = fit_classes(
        side_by_side([found]), [tag for example in train for tag in example.label], cost=0.1
    )

    def answer(examples):
        found = [f for example in examples for f in word_features(example.words)]
        numbers = model.predict(side_by_side([vectorizer.transform(found)]))
        ends = np.cumsum([len(example.words) for example in examples])
        parts = np.split(numbers, ends[:-1])
        return [{"tags": part, "probabilities": np.ones((len(part), 1))} for part in parts]

    return answer


class NGrams:
    """Turns texts or pairs into tf-idf features, learned from those of train."""

    def __init__(self, texts: Sequence[Sequence[str]]):
        columns = self._columns(texts)
        self._vectorizers = [
            TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
            for _ in columns
        ]
        pairs = zip(self._vectorizers, columns)
        self.train = side_by_side([of.fit_transform(column) for of, column in pairs])

    def __call__(self, texts: Sequence[Sequence[str]]) -> Any:
        columns = zip(self._vectorizers, self._columns(texts))
        return side_by_side([of.transform(column) for of, column in columns])

    def _columns(self, texts: Sequence[Sequence[str]]) -> list[list[str]]:
        columns = [list(column) for column in zip(*texts)]
        if len(columns) == 2:
            words = [[set(text.lower().split()) for text in column] for column in columns]
            columns.append([" ".join(sorted(a & b)) or "none" for a, b in zip(*words)])
        return columns


def side_by_side(features: Sequence[Any]) -> scipy.sparse.csr_matrix:
    """Sparse features in one matrix, with the 32-bit indices that liblinear needs."""
    found = scipy.sparse.csr_matrix(scipy.sparse.hstack(features))
    found.indices, found.indptr = found.indices.astype("int32"), found.indptr.astype("int32")
    return found


def fit_classes(features, labels: Sequence[int], cost: float = 1.0):
    """A linear SVM; if there is only one class, a model that always answers it."""
    if len(set(labels)) == 1:
        return DummyClassifier().fit(features, labels)
    return LinearSVC(C=cost).fit(features, labels)


def word_features(words: Sequence[str]) -> list[dict[str, Any]]:
    """The features of each word of a sentence."""
    lower = ["<s>"] * REACH + [word.lower() for word in words] + ["</s>"] * REACH
    found = []
    for at, word in enumerate(words):
        own = lower[at + REACH]
        features = {"upper": word[0].isupper(), "digit": any(map(str.isdigit, word))}
        features |= {"all upper": word.isupper(), "hyphen": "-" in word}
        for size in range(1, AFFIX + 1):
            features |= {f"prefix {size}": own[:size], f"suffix {size}": own[-size:]}
        for distance in range(-REACH, REACH + 1):
            features[f"word {distance}"] = lower[at + REACH + distance]
        found.append(features)
    return found
