"""Tests what layers know: linear probes with their control tasks, and word senses by the nearest neighbour.

Letters: N and M words of training and test, D width.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertlab.errors import UserError
from bertlab.progress import over
from bertlab.transfer.description_length import code_length
from bertlab.transfer.inspect import in_context
from bertlab.transfer.load import Pretrained
from bertlab.transfer.variational_code import variational_code

_HELD_OUT = 0.2  # of a probe's training groups


def sense_neighbours(
    vectors: Float[np.ndarray, "N D"],
    words: Sequence[str],
    senses: Sequence[str],
    test_vectors: Float[np.ndarray, "M D"],
    test_words: Sequence[str],
    first_sense: Mapping[str, str],
) -> list[str]:
    """Word senses by the nearest neighbour (Peters et al. 2018, section 5.3, after Melamud et al. 2016).

    Each sense is represented by the mean of its training vectors. A test word gets the sense of that word with the nearest
    mean, by cosine, or its first sense if it has no training vector.

    Args:
        vectors, words, senses: training data: for each vector, the word (a lemma, or lemma and part of speech) and its sense.
        test_vectors, test_words: the vectors and words that get a sense.
        first_sense: the sense of words that training may lack, such as WordNet's first.

    Raises:
        UserError: a test word is neither in training nor in first_sense.
    """
    if not len(vectors) == len(words) == len(senses) or len(test_vectors) != len(test_words):
        raise UserError("vectors, words and senses differ in length; give a word and a sense for every vector")
    sums: dict[str, dict[str, np.ndarray]] = collections.defaultdict(dict)
    for vector, word, sense in zip(np.asarray(vectors, np.float64), words, senses):
        sums[word][sense] = sums[word].get(sense, 0) + vector
    found = []
    for vector, word in zip(np.asarray(test_vectors, np.float64), test_words):
        if word in sums:
            # A sense's sum has the same direction as its mean.
            cosine = {sense: vector @ total / np.linalg.norm(total) for sense, total in sums[word].items()}
            found.append(max(cosine, key=cosine.get))
        elif word in first_sense:
            found.append(first_sense[word])
        else:
            raise UserError(f"the test word {word!r} is not in training and has no first_sense; give it one or omit the word")
    return found


@dataclasses.dataclass(frozen=True)
class Probe:
    """The result of a linear probe on test words.

    Attributes:
        accuracy: share of correct test words.
        standard_error: of the accuracy, √(a(1−a)/N) over N test words. Words of one sentence are not independent, so it is a
            lower bound.
        majority: accuracy of always answering the most frequent class of the training words.
        c: scikit-learn's C, the inverse of the L2 penalty, chosen on held-out training words.
    """

    accuracy: float
    standard_error: float
    majority: float
    c: float


def probe(
    features: Float[np.ndarray, "N D"],
    labels: Sequence,
    test_features: Float[np.ndarray, "M D"],
    test_labels: Sequence,
    groups: Sequence[int] | None = None,
    choices: Sequence[float] = (1e-3, 1e-2, 1e-1, 1.0),
    seed: int = 0,
) -> Probe:
    """Fits a linear probe: multinomial logistic regression on standardised features (Peters et al. 2018, section 5.3).

    It takes the C from `choices` with the highest accuracy on a held-out fifth of the training groups, and the smallest C if
    several are equal. Then it fits the probe on all groups.

    Args:
        features, labels: training data.
        test_features, test_labels: used only for scoring; a class that training lacks counts as an error of the probe.
        groups: [N], words of one group, such as a sentence, are held out together; None: each word by itself.
        choices: values of C to try.
        seed: chooses the held-out groups.

    Raises:
        UserError: training has fewer than two classes or groups, or the test has no words.
    """
    labels, test_labels, choices = np.asarray(labels), np.asarray(test_labels), sorted(choices)
    if len(features) != len(labels) or len(test_features) != len(test_labels) or not len(test_labels):
        raise UserError(
            f"{len(features)} and {len(test_features)} vectors with {len(labels)} and {len(test_labels)} labels:"
            " give one label for each vector, and at least one test vector"
        )
    groups = np.arange(len(labels)) if groups is None else np.asarray(groups)
    if len(np.unique(groups)) < 2:
        raise UserError("a probe holds out a training group (sentence), so it needs at least two; give more")
    fitted, held = next(GroupShuffleSplit(1, test_size=_HELD_OUT, random_state=seed).split(features, labels, groups))
    if len(classes := np.unique(labels[fitted])) < 2:
        raise UserError(f"a probe needs at least two classes, and the training words have {classes.tolist()}; give more")
    fit = lambda c, rows: make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=2000)).fit(
        features[rows], labels[rows]
    )
    # max takes the first of equals: the strongest penalty.
    best = max(choices, key=lambda c: fit(c, fitted).score(features[held], labels[held]))
    accuracy = float(fit(best, np.arange(len(labels))).score(test_features, test_labels))
    names, counts = np.unique(labels, return_counts=True)
    majority = float(np.mean(test_labels == names[np.argmax(counts)]))
    return Probe(accuracy, float(np.sqrt(accuracy * (1 - accuracy) / len(test_labels))), majority, best)


def control_labels(
    words: Sequence[str], test_words: Sequence[str], labels: Sequence[Any], seed: int = 0
) -> tuple[list[Any], list[Any]]:
    """The labels of a control task (Hewitt and Liang 2019): every word type has one label, at random.

    A label is drawn with its share of the training labels, as in the released code for part of speech. A probe can only learn
    the control task by heart; what it does better on the true labels is its selectivity.

    Args:
        words, test_words: the words that get labels; equal words get the same one.
        labels: the true labels of `words`.
        seed: of the draw; with other words, a type may get another label.
    """
    names, counts = np.unique(np.asarray(labels), return_counts=True)
    types = sorted({*words, *test_words})
    drawn = np.random.default_rng(seed).choice(names, len(types), p=counts / counts.sum()).tolist()
    label_of = dict(zip(types, drawn))
    return [label_of[word] for word in words], [label_of[word] for word in test_words]


def probe_layers(
    model: Pretrained,
    tagged: Sequence[tuple[Sequence[str], Sequence[Any]]],
    test: Sequence[tuple[Sequence[str], Sequence[Any]]],
    layers: str | Sequence[int] = "all",
    max_words: int = 10_000,
    seed: int = 0,
    control: bool = False,
    code: bool = False,
    variational: bool = False,
) -> pd.DataFrame:
    """Fits a linear probe for the words' tags on every layer.

    Args:
        model: from `bertlab.load`.
        tagged, test: sentences as (words, tags); a word whose tag is None is only context.
        layers: as for `Pretrained.encode`.
        max_words: the most words of each of the two, in whole sentences.
        seed: of the samples, and of the control task.
        control: also probe a control task (`control_labels`).
        code: also measure the code length of the training words' tags (`bertlab.transfer.description_length.code_length`), and
            with `control` that of the control task's.
        variational: the same for `bertlab.transfer.variational_code.variational_code`.

    Returns:
        A table by `layer`: the columns of `Probe`, `train_words` and `test_words`; with `control` also `control_accuracy` and
        `selectivity`, the accuracy minus it; with `code` also `code_bits`, `uniform_bits` and `compression`, and with both
        `control_compression`; with `variational` also `variational_bits`, `weight_bits` among them, `uniform_bits` and
        `variational_compression`, and with both `control_variational_compression`.

    Raises:
        UserError: as for `in_context` and `probe`, or a sentence does not have one tag per word.
    """
    sides = []
    for name, part in (("tagged", tagged), ("test", test)):
        for number, (words, tags) in enumerate(part):
            if len(words) != len(tags):
                raise UserError(f"{name} sentence {number} has {len(words)} words and {len(tags)} tags; give each word one tag")
        found = in_context(model, [words for words, _ in part], layers, max_words, seed)
        tags = [part[s][1][p] for s, p in zip(found[0].sentence, found[0].position)]
        known = np.array([tag is not None for tag in tags])
        sides.append(([layer.where(known) for layer in found], [tag for tag in tags if tag is not None]))
    (train, train_tags), (tested, test_tags) = sides
    control_tags = control_labels(train[0].words, tested[0].words, train_tags, seed) if control else None
    classes, rows = np.unique(np.asarray(train_tags)), {}
    for ours, theirs in over(zip(train, tested), "probing", len(train)):
        result = probe(ours.vectors, train_tags, theirs.vectors, test_tags, ours.sentence, seed=seed)
        row = dataclasses.asdict(result) | {"train_words": len(train_tags), "test_words": len(test_tags)}
        if control:
            accuracy = probe(ours.vectors, control_tags[0], theirs.vectors, control_tags[1], ours.sentence, seed=seed).accuracy
            row |= {"control_accuracy": accuracy, "selectivity": result.accuracy - accuracy}
        if code:
            length = code_length(ours.vectors, train_tags, ours.sentence, seed=seed)
            row |= {"code_bits": length.bits, "uniform_bits": length.uniform, "compression": length.compression}
        if variational:
            length = variational_code(ours.vectors, train_tags, seed=seed)
            row |= {"variational_bits": length.bits, "weight_bits": length.weights, "uniform_bits": length.uniform}
            row |= {"variational_compression": length.compression}
        if control and code:
            other = code_length(ours.vectors, control_tags[0], ours.sentence, classes, seed=seed)
            row |= {"control_compression": other.compression}
        if control and variational:
            other = variational_code(ours.vectors, control_tags[0], classes, seed=seed)
            row |= {"control_variational_compression": other.compression}
        rows[ours.layer] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("layer")
