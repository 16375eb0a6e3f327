"""Linear-chain conditional random field (Lafferty et al. 2001): TagLM's output layer (Peters et al. 2017), as pure functions.

score(y) = start[y_1] + Σ_t emissions[t, y_t] + Σ_t transitions[y_t, y_{t+1}] + end[y_last]; p(y) = exp(score(y)) / Σ exp score.
Letters: B rows, W words, C tags. `emissions` are the score of each tag at each word. `mask` is true for a row's words; these
come first. Other emissions have no influence, even if they are not finite. A row without words has log-likelihood and score 0.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import logsumexp
from jaxtyping import Array, Bool, Float, Int

FORBIDDEN = -1e9
"""Score of what is not allowed: finite, so that gradients are too."""


class Scores(NamedTuple):
    """Scores of transitions from one tag (first axis) to the next (second), and of tags at the first and at the last word."""

    transitions: Float[Array, "C C"]
    start: Float[Array, "C"]
    end: Float[Array, "C"]


def log_likelihood(
    emissions: Float[Array, "B W C"], mask: Bool[Array, "B W"], labels: Int[Array, "B W"], scores: Scores
) -> Float[Array, "B"]:
    """log p(labels) in nats; a label of −1 is unknown and sums over all tags of its word."""
    tags = jnp.arange(emissions.shape[-1])
    possible = (labels[:, :, None] < 0) | (labels[:, :, None] == tags)
    given = jnp.where(possible, emissions, FORBIDDEN)
    return log_partition(given, mask, scores) - log_partition(emissions, mask, scores)


def log_partition(emissions: Float[Array, "B W C"], mask: Bool[Array, "B W"], scores: Scores) -> Float[Array, "B"]:
    """log Σ exp(score) over all tag sequences, by the forward recursion."""

    def step(before, now):
        emission, inside = now
        after = logsumexp(before[:, :, None] + scores.transitions, axis=1) + emission
        return jnp.where(inside[:, None], after, before), None

    emissions, mask = _words_first(emissions, mask)
    last, _ = jax.lax.scan(step, scores.start + emissions[0], (emissions[1:], mask[1:]))
    return jnp.where(mask[0], logsumexp(last + scores.end, axis=-1), 0.0)


def marginals(emissions: Float[Array, "B W C"], mask: Bool[Array, "B W"], scores: Scores) -> Float[Array, "B W C"]:
    """p(tag of a word | the row), whatever the other words' tags; 0 beyond the words.

    It is the derivative of `log_partition` by the emissions.
    """
    return jax.grad(lambda given: log_partition(given, mask, scores).sum())(emissions)


def viterbi(
    emissions: Float[Array, "B W C"], mask: Bool[Array, "B W"], scores: Scores
) -> tuple[Int[Array, "B W"], Float[Array, "B"]]:
    """The tag sequence with the highest score, int32 with −1 beyond the words, and its score."""

    def forward(before, now):
        emission, inside = now
        reached = before[:, :, None] + scores.transitions
        after = jnp.where(inside[:, None], reached.max(axis=1) + emission, before)
        # After the last word each tag points back to itself.
        return after, jnp.where(inside[:, None], reached.argmax(axis=1), jnp.arange(emission.shape[-1]))

    def backward(tag, origins):
        origin = jnp.take_along_axis(origins, tag[:, None], axis=1)[:, 0]
        return origin, origin

    emissions, mask = _words_first(emissions, mask)
    last, origins = jax.lax.scan(forward, scores.start + emissions[0], (emissions[1:], mask[1:]))
    last = last + scores.end
    final = last.argmax(axis=-1)
    _, tags = jax.lax.scan(backward, final, origins, reverse=True)
    tags = jnp.concatenate([tags, final[None]])
    return jnp.where(mask, tags, -1).T.astype(jnp.int32), jnp.where(mask[0], last.max(axis=-1), 0.0)


def _words_first(emissions, mask):
    emissions = jnp.where(mask[:, :, None], emissions, 0)
    if emissions.dtype != jnp.float64:
        emissions = emissions.astype(jnp.float32)
    return emissions.transpose(1, 0, 2), mask.T
