"""Linear probes of what layers know of words, with control tasks (Hewitt and Liang 2019).

Letters: N and M words of training and test, D width.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from bertlab.transfer.load import Pretrained

HELD_OUT = 0.2  # of a probe's training sentences
CHOICES = (1e-3, 1e-2, 1e-1, 1.0)
"""Values of C, the inverse of the L2 penalty."""

Tagged = Sequence[tuple[Sequence[str], Sequence[Any]]]
"""Sentences as (words, tags); a word whose tag is None is only context."""


def probe(
    features: Float[np.ndarray, "N D"],
    labels: Sequence,
    test_features: Float[np.ndarray, "M D"],
    test_labels: Sequence,
    groups: Sequence[int],
    seed: int = 0,
) -> dict[str, float]:
    """Multinomial logistic regression on standardised features (Peters et al. 2018, section 5.3).

    C is the one with the highest accuracy on a fifth of the training words, the smallest of equal
    ones; then all are fitted. Words of one of the `groups` [N], such as a sentence, are held out
    together, by `seed`.

    Returns:
        `accuracy` on the test words, its `standard_error` (words of one sentence are dependent, so
        a lower bound), that of the `majority` class, and `c`.
    """
    # Imported here because it takes a second.
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GroupShuffleSplit
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    labels, test_labels = np.asarray(labels), np.asarray(test_labels)
    split = GroupShuffleSplit(1, test_size=HELD_OUT, random_state=seed)
    fitted, held_out = next(split.split(features, labels, groups))

    def fit(c, rows):
        model = make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=2000))
        return model.fit(features[rows], labels[rows])

    scores = [fit(c, fitted).score(features[held_out], labels[held_out]) for c in CHOICES]
    best = CHOICES[int(np.argmax(scores))]
    accuracy = float(fit(best, slice(None)).score(test_features, test_labels))
    names, counts = np.unique(labels, return_counts=True)
    return {
        "accuracy": accuracy,
        "standard_error": float(np.sqrt(accuracy * (1 - accuracy) / len(test_labels))),
        "majority": float(np.mean(test_labels == names[np.argmax(counts)])),
        "c": best,
    }


def control_labels(
    words: Sequence[str], test_words: Sequence[str], labels: Sequence[Any], seed: int = 0
) -> tuple[list[Any], list[Any]]:
    """The labels of a control task: every type of word has one, drawn with its share of `labels`.

    A probe can only learn the control task by heart; what it does better on the true labels is its
    selectivity.
    """
    names, counts = np.unique(np.asarray(labels), return_counts=True)
    types = sorted({*words, *test_words})
    drawn = np.random.default_rng(seed).choice(names, len(types), p=counts / counts.sum())
    label = dict(zip(types, drawn.tolist()))
    return [label[word] for word in words], [label[word] for word in test_words]


def probe_layers(
    model: Pretrained, train: Tagged, test: Tagged, max_words: int = 10_000, seed: int = 0
) -> list[dict[str, float]]:
    """A probe of the words' tags on every layer, and of its control task.

    Of each split at most `max_words` are read, in whole sentences drawn at random.

    Returns:
        A dict a layer: those of `probe`, `train_words`, `test_words`, `control_accuracy` and
        `selectivity`, which is accuracy − control_accuracy.
    """
    words, tags, groups, states = encoded(model, train, max_words, seed)
    test_words, test_tags, _, test_states = encoded(model, test, max_words, seed)
    control, test_control = control_labels(words, test_words, tags, seed)
    rows = []
    for features, test_features in zip(states, test_states):
        row = probe(features, tags, test_features, test_tags, groups, seed)
        by_heart = probe(features, control, test_features, test_control, groups, seed)["accuracy"]
        row |= {"train_words": len(tags), "test_words": len(test_tags)}
        row |= {"control_accuracy": by_heart, "selectivity": row["accuracy"] - by_heart}
        rows.append(row)
    return rows


def encoded(model: Pretrained, sentences: Tagged, max_words: int, seed: int):
    """(words, tags, number of the sentence, [n, N, D] states) of the tagged words of a sample."""
    order = np.random.default_rng(seed).permutation(len(sentences))
    sizes = np.cumsum([len(sentences[number][0]) for number in order])
    chosen = [sentences[number] for number in order[sizes <= max_words] if sentences[number][0]]
    embeddings = model.embed([list(words) for words, _ in chosen], pretokenized=True)
    states = np.concatenate([embedding.states for embedding in embeddings], axis=1)
    items = [
        (word, tag, number)
        for number, sentence in enumerate(chosen)
        for word, tag in zip(*sentence, strict=True)
    ]
    tagged = [at for at, (_, tag, _) in enumerate(items) if tag is not None]
    words, tags, groups = zip(*(items[at] for at in tagged))
    return list(words), list(tags), np.array(groups), states[:, tagged]
