"""Linear-chain conditional random field (Lafferty et al. 2001), TagLM's output layer.

score(y) = start[y_1] + Σ_t emissions[t, y_t] + Σ_t transitions[y_t, y_{t+1}] + end[y_last]
p(y) = exp(score(y)) / Σ exp(score)

`mask` [B, W] is true for a row's words, which come first; other emissions have no influence. A row
without words has log-likelihood 0. Letters: B rows, W words, C tags.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.nn import logsumexp
from jaxtyping import Array, Bool, Float, Int

from bertlab.models.layers import param

FORBIDDEN = -1e9
"""Score of what is not allowed: finite, so that gradients are too."""


class Scores(NamedTuple):
    """Scores of a tag after another (second axis after first), of the first and the last tag."""

    transitions: Float[Array, "C C"]
    start: Float[Array, "C"]
    end: Float[Array, "C"]


class Transitions(nn.Module):
    """The trained scores, from zeros."""

    classes: int

    @nn.compact
    def __call__(self) -> Scores:
        shapes = {"transitions": (self.classes, self.classes)}
        shapes |= dict.fromkeys(("start", "end"), (self.classes,))
        return Scores(
            **{
                name: self.param(name, param(nn.initializers.zeros, *["classes"] * len(s)), s)
                for name, s in shapes.items()
            }
        )


def log_likelihood(
    emissions: Float[Array, "B W C"],
    mask: Bool[Array, "B W"],
    labels: Int[Array, "B W"],
    scores: Scores,
) -> Float[Array, "B"]:
    """log p(labels) in nats; a label of -1 is unknown: it sums over all tags of its word."""
    possible = (labels[..., None] < 0) | (labels[..., None] == jnp.arange(emissions.shape[-1]))
    allowed = jnp.where(possible, emissions, FORBIDDEN)
    return log_partition(allowed, mask, scores) - log_partition(emissions, mask, scores)


def log_partition(
    emissions: Float[Array, "B W C"], mask: Bool[Array, "B W"], scores: Scores
) -> Float[Array, "B"]:
    """log Σ exp(score) of all tag sequences, by the forward recursion."""

    def step(before, now):
        emission, inside = now
        after = logsumexp(before[:, :, None] + scores.transitions, axis=1) + emission
        return jnp.where(inside[:, None], after, before), None

    emissions, mask = _words_first(emissions, mask)
    last, _ = jax.lax.scan(step, scores.start + emissions[0], (emissions[1:], mask[1:]))
    return jnp.where(mask[0], logsumexp(last + scores.end, axis=-1), 0.0)


def marginals(
    emissions: Float[Array, "B W C"], mask: Bool[Array, "B W"], scores: Scores
) -> Float[Array, "B W C"]:
    """p(tag of a word | the row), the derivative of the partition; 0 beyond the words."""
    return jax.grad(lambda x: log_partition(x, mask, scores).sum())(emissions)


def viterbi(
    emissions: Float[Array, "B W C"], mask: Bool[Array, "B W"], scores: Scores
) -> tuple[Int[Array, "B W"], Float[Array, "B"]]:
    """The tags with the highest score, int32 with -1 beyond the words, and the score."""

    def forward(before, now):
        emission, inside = now
        reached = before[:, :, None] + scores.transitions
        after = jnp.where(inside[:, None], reached.max(axis=1) + emission, before)
        # After the last word each tag points back to itself.
        origins = jnp.where(inside[:, None], reached.argmax(axis=1), jnp.arange(after.shape[-1]))
        return after, origins

    def backward(tag, origins):
        origin = jnp.take_along_axis(origins, tag[:, None], axis=1)[:, 0]
        return origin, origin

    emissions, mask = _words_first(emissions, mask)
    last, origins = jax.lax.scan(forward, scores.start + emissions[0], (emissions[1:], mask[1:]))
    last = last + scores.end
    final = last.argmax(axis=-1)
    _, tags = jax.lax.scan(backward, final, origins, reverse=True)
    tags = jnp.where(mask, jnp.concatenate([tags, final[None]]), -1)
    return tags.T.astype(jnp.int32), jnp.where(mask[0], last.max(axis=-1), 0.0)


def _words_first(emissions, mask):
    emissions = jnp.where(mask[..., None], emissions, 0).astype(jnp.float32)
    return emissions.transpose(1, 0, 2), mask.T
