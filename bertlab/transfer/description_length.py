"""How many bits a probe needs to say the labels of words whose states both sides know (Voita and Titov 2020).

The online code sends the labels in portions. The first goes with the uniform code, each other one with a probe that was trained
on all portions before it. A probe that learns from few labels gives a shorter code than one that needs many.

Letters: N words, K classes, D width.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertlab.errors import UserError

PORTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
"""Where the portions end, as shares of the data (Voita and Titov 2020: 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.25, 12.5, ... 100 %)."""
CHOICES = (1e-3, 1e-2, 1e-1, 1.0)
"""Values of a linear probe's C, the variance of its weights' prior."""

Predict = Callable[[Float[np.ndarray, "M D"]], Float[np.ndarray, "M K"]]
Fit = Callable[[Float[np.ndarray, "N D"], Int[np.ndarray, "N"]], Predict]
"""(States, numbers of their classes) -> a function that gives the classes' probabilities of other states."""


def online_code(
    features: Float[np.ndarray, "N D"],
    labels: Int[np.ndarray, "N"],
    classes: int,
    fit: Fit,
    groups: Sequence[int] | None = None,
    portions: Sequence[float] = PORTIONS,
    seed: int = 0,
) -> list[float]:
    """Bits of each portion (Voita and Titov 2020): t₁ log₂ K, then −Σ log₂ p(label) by the probe of all before.

    A probability p of a probe of t labels counts as (t p + 1) / (t + K), so that no class is impossible because it was not seen
    yet. This is ours: the paper's probes are networks that give every class some probability.

    Args:
        features: states.
        labels: numbers of their classes, below `classes`.
        classes: K.
        fit: trains a probe.
        groups: [N], words of one group, such as a sentence, go together; None: each word by itself.
        portions: where they end, as shares of the groups. The first has one group at least; empty portions are omitted.
        seed: of the order of the groups.
    """
    labels = np.asarray(labels)
    names, of_group = np.unique(np.arange(len(labels)) if groups is None else groups, return_inverse=True)
    place = np.random.default_rng(seed).permutation(len(names))[of_group]
    ends = sorted({max(1, int(share * len(names))) for share in portions})
    bits = [float(np.sum(place < ends[0]) * np.log2(classes))]
    for first, end in itertools.pairwise(ends):
        seen, asked = place < first, (place >= first) & (place < end)
        shares, count = fit(features[seen], labels[seen])(features[asked]), seen.sum()
        own = shares[np.arange(asked.sum()), labels[asked]]
        bits.append(float(-np.log2((count * own + 1) / (count + classes)).sum()))
    return bits


@dataclasses.dataclass(frozen=True)
class CodeLength:
    """The length of a code for labels.

    Attributes:
        bits: of all labels.
        uniform: bits of the uniform code, N log₂ K.
        c: scikit-learn's C of the probe.
        weights: bits of the probe's weights, which only the variational code sends.
    """

    bits: float
    uniform: float
    c: float
    weights: float = 0.0

    @property
    def compression(self) -> float:
        """How many times shorter than the uniform code."""
        return self.uniform / self.bits


def code_length(
    features: Float[np.ndarray, "N D"],
    labels: Sequence,
    groups: Sequence[int] | None = None,
    classes: Sequence = (),
    choices: Sequence[float] = CHOICES,
    portions: Sequence[float] = PORTIONS,
    seed: int = 0,
) -> CodeLength:
    """The online code of a linear probe, multinomial logistic regression on standardised states.

    It takes the C from `choices` that gives the shortest code, which the code must say too: log₂ of their number. The paper's
    probes are networks of one hidden layer, stopped by a development set.

    Args:
        features, labels: of the words.
        groups, portions, seed: as for `online_code`.
        classes: all classes; () for those of the labels.
        choices: values of C.

    Raises:
        UserError: there are fewer than two classes, or not one label for each state.
    """
    numbers, k = numbered(features, labels, classes)
    of = lambda c: sum(online_code(features, numbers, k, _linear(c, k), groups, portions, seed))
    bits, c = min((of(c), c) for c in choices)
    return CodeLength(bits + float(np.log2(len(choices))), float(len(numbers) * np.log2(k)), c)


def numbered(features: Float[np.ndarray, "N D"], labels: Sequence, classes: Sequence = ()) -> tuple[Int[np.ndarray, "N"], int]:
    """The labels as numbers of their classes, and K; arguments and errors as for `code_length`."""
    labels = np.asarray(labels)
    if len(features) != len(labels):
        raise UserError(f"{len(features)} vectors with {len(labels)} labels: give one label for each vector")
    names = np.unique(classes if len(classes) else labels)
    if len(names) < 2:
        raise UserError(f"a code needs at least two classes, and the words have {names.tolist()}; give more")
    if missing := sorted({*labels.tolist()} - {*names.tolist()}):
        raise UserError(f"the words have the label {missing[0]!r}, which is none of the classes; add it to them")
    return np.searchsorted(names, labels), len(names)


def _linear(c: float, classes: int) -> Fit:
    def fit(features, labels) -> Predict:
        seen = np.unique(labels)
        if len(seen) == 1:
            return lambda asked: np.tile(np.eye(classes)[seen[0]], (len(asked), 1))
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=2000)).fit(features, labels)

        def predict(asked):
            shares = np.zeros((len(asked), classes))
            shares[:, seen] = probe.predict_proba(asked)
            return shares

        return predict

    return fit
