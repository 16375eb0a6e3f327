"""Linear models of a task's own labels, a baseline without pretraining: a linear SVM on tf-idf of
words and neighbouring words, for numbers ridge regression; of tags, on the word, its prefixes,
suffixes and form, and its neighbours. Of choices, right or wrong, the highest score wins."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from bertlab.transfer.examples import Example
from bertlab.transfer.kinds import find_kind
from bertlab.transfer.kinds.base import Kind
from bertlab.transfer.kinds.tagging import Tagging
from bertlab.transfer.kinds.texts import Choice, OneClass, Regression
from bertlab.transfer.scoring import as_outputs, score_lines
from bertlab.transfer.tasks import Task, TaskData

REACH = 2  # words on each side of a tagged one
AFFIX = 4  # letters of the longest prefix and suffix
TF_IDF = dict(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")


def linear_scores(task: Task, data: TaskData) -> dict[str, dict[str, float]]:
    """Split -> a linear model's metrics on the task; {} for kinds without one here."""
    kind = find_kind(task.kind)
    if not isinstance(kind, OneClass | Regression | Tagging):
        return {}
    _, features, labels = questions(kind, data.examples["train"])
    if isinstance(kind, Regression):
        model = Ridge()
    elif len(set(labels)) == 1:
        model = DummyClassifier()  # always answers the only class
    else:
        model = LinearSVC(C=0.1 if isinstance(kind, Tagging) else 1.0)
    read = DictVectorizer() if isinstance(kind, Tagging) else TfidfVectorizer(**TF_IDF)
    columns = [(str(number), read, number) for number in range(features.shape[1])]
    reader = ColumnTransformer(columns, sparse_threshold=1)
    model = make_pipeline(reader, model).fit(features, labels)
    ask = model.decision_function if isinstance(kind, Choice) else model.predict

    found = {}
    for split in ("valid", "test"):
        sizes, features, _ = questions(kind, data.examples[split])
        by_example = np.split(ask(features), np.cumsum(sizes)[:-1])
        if isinstance(kind, Choice | Regression):
            outputs = [{"logits": answers} for answers in by_example]
        else:
            outputs = [as_outputs(kind, answers) for answers in by_example]
        lines = kind.predict(data.examples[split], data.names, outputs, None)
        found[split] = score_lines(task, data, lines)
    return found


def questions(kind: Kind, examples: Sequence[Example]) -> tuple[list[int], np.ndarray, list]:
    """What the model answers one by one (each word, each choice, otherwise the text or pair): how
    many an example has, the columns [N, n] that features are made from, and N labels."""
    sizes, found, labels = [], [], []
    for example in examples:
        if isinstance(kind, Tagging):
            columns = [(features,) for features in word_features(example.words)]
            labels += example.label or ()
        elif isinstance(kind, Choice):
            text = " ".join(example.texts)
            columns = [with_shared_words((text, choice)) for choice in example.choices]
            labels += [number == example.label for number in range(len(columns))]
        else:
            columns = [with_shared_words(example.texts)]
            labels.append(example.label)
        sizes.append(len(columns))
        found += columns
    return sizes, np.array(found, object), labels


def with_shared_words(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Texts and, for a pair, the words that both have."""
    if len(texts) != 2:
        return texts
    first, second = (set(text.lower().split()) for text in texts)
    return *texts, " ".join(sorted(first & second)) or "none"


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
