"""Language modelling in one direction: GPT's (Radford et al. 2018, equation 1) and each half of
ELMo's biLM (Peters et al. 2018, equation 1 and the one below it)."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from flax import linen as nn
from jaxtyping import Array, Float, Int

from bertlab.models.base import View
from bertlab.objectives.base import Metrics, Model, Objective, cross_entropy


@dataclasses.dataclass(frozen=True)
class OneDirection(Objective):
    """Base of both directions: the labels, and the full or sampled softmax.

    Attributes:
        negatives: In training the softmax is over the right token and this many others (Jean et al.
            2015; bilm-tf: 8,192), drawn once per (micro-)batch from a log-uniform distribution,
            so ids must be in order of frequency. 0: the full softmax, as in evaluation.
    """

    negatives: int = 0

    def head(self, body: nn.Module) -> nn.Module | None:
        return LogUniform(body.shape.vocab_size, self.negatives) if self.negatives else None

    def loss(self, model: Model, view: View) -> Metrics:
        hidden = model.encode().output(self.reads)
        labels = neighbours(view, self.reads)
        if "next_tokens" not in view:  # the last position (backward: the first) has no neighbour
            keep = slice(None, -1) if self.reads == "forward" else slice(1, None)
            hidden, labels = hidden[:, keep], labels[:, keep]
        weights, labels = labels >= 0, jnp.maximum(labels, 0)
        if self.negatives and model.head.has_rng("dropout"):
            logits, labels = self._sampled_logits(model, hidden, labels), jnp.zeros_like(labels)
        else:
            logits = model.predict_tokens(hidden, self.reads)
        return cross_entropy(logits, labels, weights)

    def _sampled_logits(self, model: Model, hidden: Array, labels: Array) -> Array:
        """[B, L, 1 + n], the right token first."""
        drawn, expected = model.head()
        # Subtracting the log of each token's expected count in the sample estimates the full
        # softmax.
        right = model.predict_tokens(hidden, self.reads, labels[..., None])
        right = right - jnp.log(expected[labels])[..., None]
        others = model.predict_tokens(hidden, self.reads, drawn) - jnp.log(expected[drawn])
        others = jnp.where(drawn == labels[..., None], jnp.finfo(jnp.float32).min, others)
        return jnp.concatenate([right, others], axis=-1)


@dataclasses.dataclass(frozen=True)
class LeftToRight(OneDirection):
    """LTR: −Σ_t log p(x_{t+1} | x_1 … x_t) in a document; the state at t has seen tokens ≤ t."""

    reads = "forward"


@dataclasses.dataclass(frozen=True)
class RightToLeft(OneDirection):
    """RTL: −Σ_t log p(x_{t−1} | x_t … x_T) in a document; the state at t has seen tokens ≥ t."""

    reads = "backward"


def neighbours(view: View, side: str) -> Int[Array, "B L"]:
    """The token after each position (side "backward": before it) in its document, or −1 for none.

    A stream's `next_tokens` reach across the ends of rows.
    """
    if "next_tokens" in view:
        return view["next_tokens"]
    tokens, documents = view["tokens"], view["documents"]
    step, edge = (-1, -1) if side == "forward" else (1, 0)
    same = (jnp.roll(documents, step, axis=1) == documents) & (documents > 0)
    same = same.at[:, edge].set(False)  # `roll` puts the other end of the row here
    return jnp.where(same, jnp.roll(tokens, step, axis=1), -1)


class LogUniform(nn.Module):
    """Draws from p(k) ∝ log((k + 2) / (k + 1)), as TensorFlow's log-uniform sampler."""

    vocab_size: int
    number: int

    def __call__(self) -> tuple[Int[Array, "n"], Float[Array, "V"]]:
        """n distinct ids, and each id's expected count in the sample: 1 − (1 − p)^t, where t is
        the number of draws with replacement after which n distinct ids are expected."""
        ranks = np.arange(self.vocab_size)
        probability = np.log((ranks + 2) / (ranks + 1)) / math.log(self.vocab_size + 1)
        expected = expected_counts(probability, self.number)
        # The largest values of log p + Gumbel noise are a sample without replacement.
        noise = jax.random.gumbel(self.make_rng("dropout"), (self.vocab_size,))
        priority = jnp.log(jnp.asarray(probability, jnp.float32)) + noise
        _, drawn = jax.lax.top_k(priority, self.number)
        return drawn, jnp.asarray(expected, jnp.float32)


def expected_counts(probability: Float[np.ndarray, "V"], number: int) -> Float[np.ndarray, "V"]:
    """1 − (1 − p)^t for the t at which these sum to `number`."""
    log_miss = np.log1p(-probability)

    def excess(t):
        return -np.expm1(t * log_miss).sum() - number

    return -np.expm1(scipy.optimize.brentq(excess, 0.0, 1e12) * log_miss)
