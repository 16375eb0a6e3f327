"""The variational code of labels (Voita and Titov 2020): one code for the probe's weights and for the labels given them.

Beside the online code (`bertlab.transfer.description_length`) it says where the bits go: a layer that tells the labels plainly
needs few bits for weights and few for labels.

Letters: N words, K classes, D width.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int
from sklearn.preprocessing import StandardScaler

from bertlab.transfer.description_length import CHOICES, CodeLength, numbered

STEPS, RATE = 1000, 0.03
"""Of the fit: steps of Adam on `_WORDS` words each, at a rate that falls to 0 by a cosine."""

_WORDS = 1000
_DRAWS = 32  # of weights, for the labels' bits

Weights = tuple[Float[Array, "D K"], Float[Array, "D K"]]
"""Means and logarithms of the deviations of q, the probe's weights; the last row are the biases."""


def weight_nats(weights: Weights, deviation: Float[Array, "D 1"]) -> Float[Array, ""]:
    """KL(q ‖ N(0, deviation²)) of the weights: Σ log(s₀ / s) + (s² + m²) / (2 s₀²) − ½."""
    means, logs = weights
    ratio = jnp.exp(logs) / deviation
    return (-jnp.log(ratio) + (ratio**2 + (means / deviation) ** 2 - 1) / 2).sum()


def label_nats(weights: Weights, features: Float[Array, "N D"], labels: Int[Array, "N"], key: Array) -> Float[Array, "N"]:
    """−log p(label) of each word, with weights drawn for each of them.

    Given a state, the logits are independent Gaussians, so they are drawn themselves (Kingma et al. 2015's local
    reparametrisation).
    """
    means, logs = weights
    spread = jnp.sqrt(features**2 @ jnp.exp(2 * logs))
    logits = features @ means + spread * jax.random.normal(key, spread.shape)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1)[:, 0]


def _fitted(
    features: Float[Array, "N D"], labels: Int[Array, "N"], deviation: Float[Array, "D 1"], key: Array, classes: int, steps: int
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Nats of the weights and of the labels, after the fit."""
    number, width = features.shape
    optimizer = optax.adam(optax.cosine_decay_schedule(RATE, steps))
    start = (jnp.zeros((width, classes)), jnp.tile(jnp.log(deviation), (1, classes)))

    def step(carry, key):
        weights, state = carry
        of_words, of_draw = jax.random.split(key)
        some = jax.random.randint(of_words, (min(_WORDS, number),), 0, number)

        def nats(weights):
            return label_nats(weights, features[some], labels[some], of_draw).mean() + weight_nats(weights, deviation) / number

        updates, state = optimizer.update(jax.grad(nats)(weights), state)
        return (optax.apply_updates(weights, updates), state), None

    fit, draw = jax.random.split(key)
    (weights, _), _ = jax.lax.scan(step, (start, optimizer.init(start)), jax.random.split(fit, steps))
    drawn = jax.lax.map(lambda key: label_nats(weights, features, labels, key).sum(), jax.random.split(draw, _DRAWS))
    return weight_nats(weights, deviation), drawn.mean()


@functools.partial(jax.jit, static_argnames=("classes", "steps"))
def _of_priors(features, labels, deviations: Float[Array, "n D 1"], key, classes, steps):
    """`_fitted` with each of n priors."""
    return jax.vmap(lambda deviation: _fitted(features, labels, deviation, key, classes, steps))(deviations)


def variational_code(
    features: Float[np.ndarray, "N D"],
    labels: Sequence,
    classes: Sequence = (),
    choices: Sequence[float] = CHOICES,
    steps: int = STEPS,
    seed: int = 0,
) -> CodeLength:
    """KL(q ‖ prior) − E_q Σ log₂ p(label | state): the code of a linear probe on standardised states, weights included.

    The weights have independent Gaussians, q, and the prior N(0, C); that of the biases is N(0, 1). The C of `choices` with
    the shortest code is taken, which the code must say too. The paper's probes are networks with a hidden layer, and its prior
    is Louizos et al. 2017's, which prunes whole neurons. The value is an upper bound of −log₂ ∫ p(labels | states, weights),
    estimated with 32 draws of the weights for each word.

    Args:
        features, labels, classes, choices: as for `bertlab.transfer.description_length.code_length`.
        steps: of the fit.
        seed: of the draws.

    Raises:
        UserError: as for `code_length`.
    """
    numbers, k = numbered(features, labels, classes)
    states = StandardScaler().fit_transform(np.asarray(features, np.float64))
    states = jnp.asarray(np.column_stack([states, np.ones(len(states))]), jnp.float32)
    deviations = np.ones((len(choices), states.shape[1], 1), np.float32)
    deviations[:, :-1] = np.sqrt(choices)[:, None, None]
    of_weights, of_labels = _of_priors(states, jnp.asarray(numbers), deviations, jax.random.key(seed), k, steps)
    weights, bits = np.float64(of_weights) / np.log(2), np.float64(of_weights + of_labels) / np.log(2)
    best = int(np.argmin(bits))
    uniform = len(numbers) * float(np.log2(k))
    return CodeLength(float(bits[best] + np.log2(len(choices))), uniform, choices[best], float(weights[best]))
