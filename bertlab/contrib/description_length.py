"""Description length of labels given states (Voita and Titov 2020): how easily a layer yields them.

    python -m bertlab.contrib.description_length RUN DATA [--code=variational]

prints one line per layer for the universal parts of speech of DATA, a CoNLL-U file. In Python:
`code_length` and `variational_code`, for any vectors and labels.

The online code sends the labels in portions. The first goes with the uniform code, each other one
by a probe that was trained on all portions before it: a probe that learns from few labels gives a
shorter code. The variational code sends the probe's weights, then the labels given them. Both
probes are linear; the paper's are networks of one hidden layer.

Checked against sums by hand, a slow definition, and the exact evidence by quadrature
(tests/contrib/test_description_length.py).

Letters: N words, K classes, D width.
"""

import argparse
import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertlab.contrib.word_states import word_states
from bertlab.errors import UserError
from bertlab.transfer.load import load
from bertlab.transfer.tasks import UPOS, conllu, load_task

PORTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
"""Where the portions end, as shares of the data (the paper's)."""

CHOICES = (1e-3, 1e-2, 1e-1, 1.0)
"""Values of C, the inverse of the L2 penalty: the variance of the weights' Gaussian prior."""

STEPS, RATE, WORDS, DRAWS = 1000, 0.03, 1000, 32
"""The variational fit: steps of Adam, the rate, which falls to 0 by a cosine, words per step, and
draws of the weights for the labels' bits."""

Fit = Callable[[np.ndarray, np.ndarray], Callable[[np.ndarray], np.ndarray]]
"""(States [N, D], classes [N]) -> a function from states [M, D] to probabilities [M, K]."""


@dataclasses.dataclass(frozen=True)
class CodeLength:
    """The length of a code for labels.

    Attributes:
        bits: Bits of all labels.
        uniform: Bits of the uniform code, N log₂ K.
        c: Variance of the prior of the probe's weights (scikit-learn's C).
        weights: Bits of the weights, which only the variational code sends.
    """

    bits: float
    uniform: float
    c: float
    weights: float = 0.0

    @property
    def compression(self) -> float:
        """How many times shorter than the uniform code."""
        return self.uniform / self.bits


def online_code(
    features: Float[np.ndarray, "N D"],
    labels: Int[np.ndarray, "N"],
    classes: int,
    fit: Fit,
    groups: Sequence[int] | None = None,
    portions: Sequence[float] = PORTIONS,
    seed: int = 0,
) -> list[float]:
    """Bits of each portion: t₁ log₂ K, then −Σ log₂ p(label) by the probe of all before.

    A probability p of a probe of t labels counts as (t p + 1) / (t + K), so that no class is
    impossible because it is yet unseen. This is ours: the paper's networks give every class some
    probability.

    Args:
        features: States.
        labels: Numbers of their classes, below K.
        classes: K.
        fit: Trains a probe.
        groups: [N] Words of one group, such as a sentence, go together; None: each by itself.
        portions: Where they end, as shares of the groups; the first has at least one group.
        seed: Seed of the order of the groups.
    """
    labels = np.asarray(labels)
    groups = np.arange(len(labels)) if groups is None else groups
    names, group = np.unique(groups, return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(names))[group]
    ends = sorted({max(1, int(share * len(names))) for share in portions})
    bits = [float(np.sum(order < ends[0]) * np.log2(classes))]
    for first, end in itertools.pairwise(ends):
        seen, asked = order < first, (order >= first) & (order < end)
        shares, count = fit(features[seen], labels[seen])(features[asked]), seen.sum()
        own = shares[np.arange(asked.sum()), labels[asked]]
        bits.append(float(-np.log2((count * own + 1) / (count + classes)).sum()))
    return bits


def code_length(
    features: Float[np.ndarray, "N D"], labels: Sequence, groups: Sequence[int] | None = None
) -> CodeLength:
    """The online code of multinomial logistic regression on standardised states.

    The C of `CHOICES` with the shortest code is taken, which the code must name: log₂ of their
    number. `groups` are those of `online_code`.
    """
    numbers, k = numbered(labels)
    codes = [online_code(features, numbers, k, linear(c, k), groups) for c in CHOICES]
    bits, c = min(zip(map(sum, codes), CHOICES))
    return CodeLength(bits + float(np.log2(len(CHOICES))), float(len(numbers) * np.log2(k)), c)


def numbered(labels: Sequence) -> tuple[np.ndarray, int]:
    """The labels as numbers of their classes, and K, which must be two or more."""
    names, numbers = np.unique(np.asarray(labels), return_inverse=True)
    if len(names) < 2:
        raise UserError(f"a code needs at least two classes, and the words have {names.tolist()}")
    return numbers, len(names)


def linear(c: float, classes: int) -> Fit:
    """Logistic regression on standardised states."""

    def fit(features, labels):
        seen = np.unique(labels)
        if len(seen) == 1:
            return lambda asked: np.tile(np.eye(classes)[seen[0]], (len(asked), 1))
        probe = make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=2000))
        probe.fit(features, labels)

        def predict(asked):
            shares = np.zeros((len(asked), classes))
            shares[:, seen] = probe.predict_proba(asked)
            return shares

        return predict

    return fit


Weights = tuple[Float[Array, "D K"], Float[Array, "D K"]]
"""Means and logarithms of the deviations of q, the probe's weights; the last row are the biases."""


def weight_nats(weights: Weights, deviation: Float[Array, "D 1"]) -> Float[Array, ""]:
    """KL(q ‖ N(0, deviation²)): Σ log(s₀ / s) + (s² + m²) / (2 s₀²) − ½."""
    means, logs = weights
    ratio = jnp.exp(logs) / deviation
    return (-jnp.log(ratio) + (ratio**2 + (means / deviation) ** 2 - 1) / 2).sum()


def label_nats(
    weights: Weights, features: Float[Array, "N D"], labels: Int[Array, "N"], key: Array
) -> Float[Array, "N"]:
    """−log p(label) of each word, with weights drawn for each of them.

    Given a state, the logits are independent Gaussians, so they are drawn themselves (Kingma et al.
    2015's local reparametrisation).
    """
    means, logs = weights
    spread = jnp.sqrt(features**2 @ jnp.exp(2 * logs))
    logits = features @ means + spread * jax.random.normal(key, spread.shape)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)[:, 0]


def _fitted(features, labels, deviation: Float[Array, "D 1"], key, classes: int):
    """Nats of the weights and of the labels, after the fit."""
    number, width = features.shape
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, STEPS))
    start = (jnp.zeros((width, classes)), jnp.tile(jnp.log(deviation), (1, classes)))

    def step(carry, key):
        weights, state = carry
        words_key, draw_key = jax.random.split(key)
        some = jax.random.randint(words_key, (min(WORDS, number),), 0, number)

        def nats(weights):
            own = label_nats(weights, features[some], labels[some], draw_key).mean()
            return own + weight_nats(weights, deviation) / number

        updates, state = optimizer.update(jax.grad(nats)(weights), state)
        return (optax.apply_updates(weights, updates), state), None

    fit_key, draw_key = jax.random.split(key)
    keys = jax.random.split(fit_key, STEPS)
    (weights, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), keys)

    def draw(key):
        return label_nats(weights, features, labels, key).sum()

    drawn = jax.lax.map(draw, jax.random.split(draw_key, DRAWS))
    return weight_nats(weights, deviation), drawn.mean()


@functools.partial(jax.jit, static_argnames="classes")
def _fitted_each(features, labels, deviations: Float[Array, "n D 1"], key, classes):
    """`_fitted` with each of n priors."""

    def fit(deviation):
        return _fitted(features, labels, deviation, key, classes)

    return jax.vmap(fit)(deviations)


def variational_code(
    features: Float[np.ndarray, "N D"], labels: Sequence, choices: Sequence[float] = CHOICES
) -> CodeLength:
    """KL(q ‖ prior) − E_q Σ log₂ p(label | state) of a linear probe on standardised states.

    The weights have independent Gaussians, q, and the prior N(0, C), that of the biases N(0, 1).
    The C of `choices` with the shortest code is taken, which the code must name. The paper's prior
    is Louizos et al. 2017's, which prunes neurons. The value is an upper bound of −log₂ ∫ p(labels
    | states, weights).
    """
    numbers, k = numbered(labels)
    states = StandardScaler().fit_transform(np.asarray(features, np.float64))
    states = jnp.asarray(np.column_stack([states, np.ones(len(states))]), jnp.float32)
    deviations = np.ones((len(choices), states.shape[1], 1), np.float32)
    deviations[:, :-1] = np.sqrt(choices)[:, None, None]
    nats = _fitted_each(states, jnp.asarray(numbers), deviations, jax.random.key(0), k)
    weights, own = (np.float64(value) / np.log(2) for value in nats)
    best = int(np.argmin(weights + own))
    bits = float(weights[best] + own[best] + np.log2(len(choices)))
    uniform = len(numbers) * float(np.log2(k))
    return CodeLength(bits, uniform, choices[best], float(weights[best]))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="directory of a run or an import")
    parser.add_argument("data", type=Path, help="a CoNLL-U file")
    parser.add_argument("--code", choices=("online", "variational"), default="online")
    parser.add_argument("--max_words", type=int, default=10_000, help="in whole sentences")
    given = parser.parse_args(arguments)
    name = given.data.name
    task = conllu("words", tag=UPOS, train=name, valid=name, test=name)
    data = load_task(task, {"directory": str(given.data.resolve().parent)})
    tagged = [(example.words, example.label) for example in data.examples["test"]]
    _, tags, groups, layers = word_states(load(given.run), tagged, given.max_words, seed=0)
    print("layer  bits / word  times shorter than the uniform code")
    for number, states in enumerate(layers):
        if given.code == "online":
            found = code_length(states, tags, groups)
        else:
            found = variational_code(states, tags)
        print(f"{number:5}  {found.bits / len(tags):11.3f}  {found.compression:.2f}")


if __name__ == "__main__":
    main()
