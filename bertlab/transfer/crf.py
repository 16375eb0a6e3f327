"""Linear-chain conditional random field (Lafferty et al. 2001), TagLM's output layer.

score(y) = start[y_1] + Σ_t emissions[t, y_t] + Σ_t transitions[y_t, y_{t+1}] + end[y_last]

`mask` is true for a row's words, which come first. Letters: B rows, W words, C tags.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.nn import logsumexp
from jaxtyping import Array, Bool, Float, Int

from bertlab.models.layers import param

FORBIDDEN = -1e9  # score of what is not allowed: finite, so that gradients are finite too

Emissions = Float[Array, "B W C"]
Mask = Bool[Array, "B W"]


class Scores(NamedTuple):
    """Scores of one tag after another (second axis after first), and of the first and last tag."""

    transitions: Float[Array, "C C"]
    start: Float[Array, "C"]
    end: Float[Array, "C"]


class Transitions(nn.Module):
    """The trained scores, from zeros."""

    classes: int

    @nn.compact
    def __call__(self) -> Scores:
        def scores(name, rank):
            init = param(nn.initializers.zeros, *["classes"] * rank)
            return self.param(name, init, (self.classes,) * rank)

        return Scores(scores("transitions", 2), scores("start", 1), scores("end", 1))


def log_likelihood(
    emissions: Emissions, mask: Mask, labels: Int[Array, "B W"], scores: Scores
) -> Float[Array, "B"]:
    """log p(labels) in nats; a label of -1 is unknown: it sums over all tags of its word."""
    possible = (labels[..., None] < 0) | (labels[..., None] == jnp.arange(emissions.shape[-1]))
    allowed = jnp.where(possible, emissions, FORBIDDEN)
    return log_partition(allowed, mask, scores) - log_partition(emissions, mask, scores)


def log_partition(
    emissions: Emissions, mask: Mask, scores: Scores, reduce: Callable = logsumexp
) -> Float[Array, "B"]:
    """log Σ exp(score) of all tag sequences; if `reduce` is max, the highest score."""

    def step(before, now):
        emission, inside = now
        after = reduce(before[:, :, None] + scores.transitions, axis=1) + emission
        return jnp.where(inside[:, None], after, before), None

    emissions = jnp.where(mask[..., None], emissions, 0).astype(jnp.float32).transpose(1, 0, 2)
    first, others = scores.start + emissions[0], (emissions[1:], mask.T[1:])
    last, _ = jax.lax.scan(step, first, others)
    return jnp.where(mask[:, 0], reduce(last + scores.end, axis=-1), 0.0)


def marginals(emissions: Emissions, mask: Mask, scores: Scores) -> Float[Array, "B W C"]:
    """p(tag of a word | the row), the derivative of the partition; 0 beyond the words."""
    return jax.grad(lambda x: log_partition(x, mask, scores).sum())(emissions)


def best_tags(emissions: Emissions, mask: Mask, scores: Scores) -> Int[Array, "B W"]:
    """The tags with the highest score, int32 with -1 beyond the words. They are where the highest
    score has a derivative, which is what Viterbi's backtracking finds."""
    slopes = jax.grad(lambda x: log_partition(x, mask, scores, jnp.max).sum())(emissions)
    return jnp.where(mask, jnp.argmax(slopes, axis=-1), -1).astype(jnp.int32)
