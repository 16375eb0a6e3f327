"""Linear-chain conditional random field (Lafferty et al. 2001): TagLM's output layer (Peters et al. 2017), as pure functions.

score(y) = start[y_1] + Σ_t emissions[t, y_t] + Σ_t transitions[y_t, y_{t+1}] + end[y_last]; p(y) = exp(score(y)) / Σ exp score.
Letters: B rows, W words, C tags. A row's words are the leading ones of `mask`; a row without words has log-likelihood and
score 0. Emissions beyond the words have no influence, even if they are not finite.

Own code because no library fits: optax has no CRF, and SynJax is in no package registry.
"""

import jax
import jax.numpy as jnp
from jax.nn import logsumexp
from jaxtyping import Array, Bool, Float, Int

FORBIDDEN = -1e9
"""Score of what is not allowed: finite, so that gradients are too."""


def log_likelihood(
    emissions: Float[Array, "B W C"],
    mask: Bool[Array, "B W"],
    labels: Int[Array, "B W"],
    transitions: Float[Array, "C C"],
    start: Float[Array, "C"],
    end: Float[Array, "C"],
) -> Float[Array, "B"]:
    """log p(labels) in nats.

    Args:
        emissions: score of each tag at each word.
        mask: true for the words.
        labels: tags; a word's that is not known is −1, and all its tags are added up.
        transitions: score of going from a tag (first axis) to a tag (second).
        start: score of each tag at the first word.
        end: score of each tag at the last word.
    """
    tags = jnp.arange(emissions.shape[-1])
    possible = (labels[:, :, None] < 0) | (labels[:, :, None] == tags)
    given = jnp.where(possible, emissions, FORBIDDEN)
    return log_partition(given, mask, transitions, start, end) - log_partition(emissions, mask, transitions, start, end)


def log_partition(
    emissions: Float[Array, "B W C"],
    mask: Bool[Array, "B W"],
    transitions: Float[Array, "C C"],
    start: Float[Array, "C"],
    end: Float[Array, "C"],
) -> Float[Array, "B"]:
    """log Σ exp(score) over all tag sequences, by the forward recursion; arguments as for `log_likelihood`."""

    def step(before, now):
        emission, inside = now
        after = logsumexp(before[:, :, None] + transitions, axis=1) + emission
        return jnp.where(inside[:, None], after, before), None

    emissions, mask = _words_first(emissions, mask)
    last, _ = jax.lax.scan(step, start + emissions[0], (emissions[1:], mask[1:]))
    return jnp.where(mask[0], logsumexp(last + end, axis=-1), 0.0)


def viterbi(
    emissions: Float[Array, "B W C"],
    mask: Bool[Array, "B W"],
    transitions: Float[Array, "C C"],
    start: Float[Array, "C"],
    end: Float[Array, "C"],
) -> tuple[Int[Array, "B W"], Float[Array, "B"]]:
    """The tag sequence of highest score, int32 with −1 beyond the words, and its score; arguments as for `log_likelihood`."""

    def forward(before, now):
        emission, inside = now
        scores = before[:, :, None] + transitions
        after = jnp.where(inside[:, None], scores.max(axis=1) + emission, before)
        # Beyond the words a tag leads back to itself, up to the last word's.
        return after, jnp.where(inside[:, None], scores.argmax(axis=1), jnp.arange(emission.shape[-1]))

    def backward(tag, origins):
        origin = jnp.take_along_axis(origins, tag[:, None], axis=1)[:, 0]
        return origin, origin

    emissions, mask = _words_first(emissions, mask)
    last, origins = jax.lax.scan(forward, start + emissions[0], (emissions[1:], mask[1:]))
    last = last + end
    final = last.argmax(axis=-1)
    _, tags = jax.lax.scan(backward, final, origins, reverse=True)
    tags = jnp.concatenate([tags, final[None]])
    return jnp.where(mask, tags, -1).T.astype(jnp.int32), jnp.where(mask[0], last.max(axis=-1), 0.0)


def _words_first(emissions, mask):
    emissions = jnp.where(mask[:, :, None], emissions, 0)
    if emissions.dtype != jnp.float64:
        emissions = emissions.astype(jnp.float32)
    return emissions.transpose(1, 0, 2), mask.T
