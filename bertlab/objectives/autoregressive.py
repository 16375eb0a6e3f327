"""Language modelling in one direction: GPT's (Radford et al. 2018, equation 1) and each half of ELMo's
(Peters et al. 2018, equation 1 and the one below it). Their mean on a biLSTM is ELMo's biLM."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertlab.errors import UserError
from bertlab.keys import setting
from bertlab.models.base import View
from bertlab.objectives.base import Bound, Metrics, Objective, Oracle, Vocabulary, cross_entropy


@dataclasses.dataclass(frozen=True)
class OneDirection(Objective):
    """Base of both directions: the labels, and the full or sampled softmax.

    Attributes:
        negatives: in training the softmax is over the correct token and this many others (Jean et al. 2015; bilm-tf: 8,192).
            They are drawn once per (micro-)batch without replacement from a log-uniform distribution, so ids must be in order
            of frequency. 0: the full softmax, as in evaluation.
    """

    negatives: int = setting(0, least=0)

    def check(self, vocabulary: Vocabulary) -> None:
        if self.negatives >= vocabulary.size:
            raise UserError(
                f"negatives={self.negatives} must be smaller than the vocabulary, {vocabulary.size}; 0 is the full softmax"
            )

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy and accuracy of the neighbouring token at every position that has one in its document."""
        hidden = model.encoded.output(self.reads)
        labels = neighbours(view, self.reads)
        if "next_tokens" not in view:  # the last position (backward: the first) has no neighbour
            keep = slice(None, -1) if self.reads == "forward" else slice(1, None)
            hidden, labels = hidden[:, keep], labels[:, keep]
        weights = labels >= 0
        labels = jnp.maximum(labels, 0)
        if model.deterministic or not self.negatives:
            return model.token_loss(hidden, self.reads, labels, weights)
        return self._sampled(model, hidden, labels, weights)

    def floor(self, oracle: Oracle, view: View, batch: View) -> tuple[np.ndarray, np.ndarray]:
        """By the chain rule, of every token except the first (backward: the last) of a document."""
        backward, documents = self.reads == "backward", batch["documents"]
        asked = (np.roll(documents, -1 if backward else 1, axis=1) == documents) & (documents > 0)
        asked[:, -1 if backward else 0] = False
        return oracle.chain_rule(backward), asked

    def _sampled(self, model: Bound, hidden: Float[Array, "B L D"], labels: Int[Array, "B L"], weights) -> Metrics:
        drawn, expected = draw_log_uniform(model.key, model.vocabulary.size, self.negatives)
        # Subtracting the log of each token's expected count in the sample estimates the full softmax.
        right = model.predict_tokens(hidden, self.reads, among=labels[..., None]) - jnp.log(expected[labels])[..., None]
        others = model.predict_tokens(hidden, self.reads, among=drawn) - jnp.log(expected[drawn])
        others = jnp.where(drawn == labels[..., None], jnp.finfo(jnp.float32).min, others)
        logits = jnp.concatenate([right, others], axis=-1)
        return cross_entropy(logits, jnp.zeros_like(labels), weights)


@dataclasses.dataclass(frozen=True)
class LeftToRight(OneDirection):
    """LTR: −Σ_t log p(x_{t+1} | x_1 … x_t), within a document; the state at t has seen tokens ≤ t."""

    reads = "forward"

    def on_both_sides(self) -> str:
        """The same loss, in an attention mask of its own."""
        return "prefix with config.objectives.prefix.max_share=0"


@dataclasses.dataclass(frozen=True)
class RightToLeft(OneDirection):
    """RTL: −Σ_t log p(x_{t−1} | x_t … x_T), within a document; the state at t has seen tokens ≥ t."""

    reads = "backward"


def neighbours(view: View, side: str) -> Int[Array, "B L"]:
    """The token to predict at each position, or −1 for none.

    Args:
        view: `tokens` and `documents`, or a stream's `next_tokens`; these reach across the ends of rows.
        side: "forward" for the token after each position, "backward" for the token before.
    """
    if "next_tokens" in view:
        return view["next_tokens"]
    tokens, documents = view["tokens"], view["documents"]
    step, edge = (-1, -1) if side == "forward" else (1, 0)
    same = (jnp.roll(documents, step, axis=1) == documents) & (documents > 0)
    same = same.at[:, edge].set(False)  # `roll` puts the row's other end here
    return jnp.where(same, jnp.roll(tokens, step, axis=1), -1)


def draw_log_uniform(key: Array, size: int, number: int) -> tuple[Int[Array, "n"], Float[Array, "V"]]:
    """A sample without replacement from p(k) ∝ log((k + 2) / (k + 1)), as in TensorFlow's log-uniform candidate sampler.

    Returns:
        The ids, and the probability of each id to be in the sample: 1 − (1 − p)^t, where t is the number of draws with
        replacement after which `number` different ids are expected.
    """
    ranks = np.arange(size)
    probability = np.log((ranks + 2) / (ranks + 1)) / math.log(size + 1)
    expected = -np.expm1(_draws_for(probability, number) * np.log1p(-probability))
    # The largest values of log p + Gumbel noise are a sample without replacement.
    noise = jax.random.gumbel(key, (size,))
    drawn = jax.lax.top_k(jnp.log(jnp.asarray(probability, jnp.float32)) + noise, number)[1]
    return drawn, jnp.asarray(expected, jnp.float32)


def _draws_for(probability: np.ndarray, number: int) -> float:
    """The t for which Σ_k 1 − (1 − p_k)^t = number, by bisection."""
    log_miss = np.log1p(-probability)
    low, high = 0.0, float(number)
    while -np.expm1(high * log_miss).sum() < number:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if -np.expm1(middle * log_miss).sum() < number else (low, middle)
    return high
