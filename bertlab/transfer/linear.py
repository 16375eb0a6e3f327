"""Linear models on n-grams, trained on a task's own labels: a baseline without pretraining.

texts, pairs   a linear SVM on tf-idf of words and neighbouring words: of each text, and of the
               words that both texts of a pair share
choices        the same on the text with each choice, right or wrong; the highest score wins
numbers        ridge regression on the same features
tags           a linear SVM on the word, its prefixes, suffixes and form, and its neighbours
"""

from collections.abc import Sequence
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
from bertlab.transfer.scoring import as_outputs, score_lines
from bertlab.transfer.tasks import Task, TaskData

REACH = 2  # words on each side of a tagged one
AFFIX = 4  # letters of the longest prefix and suffix
TF_IDF = dict(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")


def linear_scores(task: Task, data: TaskData) -> dict[str, dict[str, float]]:
    """Split -> a linear model's metrics on the task; {} for kinds without one here."""
    train, kind = data.examples["train"], find_kind(task.kind)
    if not isinstance(kind, OneClass | Regression | Tagging):
        return {}
    features = [part for example in train for part in parts(kind, example)]
    if isinstance(kind, Tagging):
        labels = [tag for example in train for tag in example.label]
    elif isinstance(kind, Choice):
        labels = [n == example.label for example in train for n in range(len(example.choices))]
    else:
        labels = [example.label for example in train]
    is_words = isinstance(kind, Tagging)
    vectorizers = [DictVectorizer() if is_words else TfidfVectorizer(**TF_IDF) for _ in features[0]]
    pairs = zip(vectorizers, zip(*features))
    model = linear_model(kind, labels)
    model.fit(side_by_side([of.fit_transform(column) for of, column in pairs]), labels)
    ask = model.decision_function if isinstance(kind, Choice) else model.predict

    found = {}
    for split in ("valid", "test"):
        examples = data.examples[split]
        asked = [parts(kind, example) for example in examples]
        columns = zip(*(part for of_example in asked for part in of_example))
        answers = ask(side_by_side([of.transform(c) for of, c in zip(vectorizers, columns)]))
        by_example = np.split(answers, np.cumsum([len(one) for one in asked])[:-1])
        if isinstance(kind, Choice | Regression):
            outputs = [{"logits": answers} for answers in by_example]
        else:
            outputs = [as_outputs(kind, answers) for answers in by_example]
        lines = kind.predict(examples, data.names, outputs, None)
        found[split] = score_lines(task, data, lines)
    return found


def parts(kind, example: Example) -> list[tuple]:
    """What the model answers one by one (a text or pair, each choice, each word): each with the
    content of its columns of features."""
    if isinstance(kind, Tagging):
        return [(features,) for features in word_features(example.words)]
    if isinstance(kind, Choice):
        return [with_shared_words((" ".join(example.texts), one)) for one in example.choices]
    return [with_shared_words(example.texts)]


def with_shared_words(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Texts and, for a pair, the words that both have."""
    if len(texts) != 2:
        return texts
    first, second = (set(text.lower().split()) for text in texts)
    return *texts, " ".join(sorted(first & second)) or "none"


def linear_model(kind, labels: Sequence[int]):
    """If there is only one class, a model that always answers it."""
    if isinstance(kind, Regression):
        return Ridge()
    if len(set(labels)) == 1:
        return DummyClassifier()
    return LinearSVC(C=0.1 if isinstance(kind, Tagging) else 1.0)


def side_by_side(features: Sequence[Any]) -> scipy.sparse.csr_matrix:
    """Sparse features in one matrix, with the 32-bit indices that liblinear needs."""
    found = scipy.sparse.csr_matrix(scipy.sparse.hstack(features))
    found.indices, found.indptr = found.indices.astype("int32"), found.indptr.astype("int32")
    return found


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
