"""Language modelling in one direction: GPT's (Radford et al. 2018, equation 1), each half of ELMo's
biLM (Peters et al. 2018, equation 1 and the one below it), with a prefix that all tokens see, and
the penalties of AWD-LSTM."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from bertlab.errors import UserError
from bertlab.models.base import View
from bertlab.objectives.base import Metrics, Model, Objective, Vocabulary, cross_entropy
from bertlab.objectives.choosing import Ids


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


@dataclasses.dataclass(frozen=True)
class PrefixLanguageModel(Objective):
    """Prefix LM: −Σ_{t ≥ m} log p(x_t | x_0 … x_{t−1}), where a document's positions all see its
    first m tokens (Dong et al. 2019, UniLM; Raffel et al. 2020, section 3.2).

    For each document of n tokens in a row, a share is drawn uniformly between `min_share` and
    `max_share`, and m = min(⌊share · n⌋, n − 1), so at least the last token is predicted. Later
    tokens see the prefix and everything to their left. The state at t predicts the token at t + 1.

    With max_share=0 it is left-to-right modelling (`ltr`) on a bidirectional body: the same numbers
    from the same parameters. Curricula from left-to-right to masked modelling need that.

    A row is read from right to left (`rtl`, without a prefix) with probability `backward_share`: at
    max_share=0, backward_share=0.5 one transformer is both halves of a biLM.
    """

    min_share: float = 0.0
    max_share: float = 1.0
    backward_share: float = 0.0

    def __post_init__(self):
        if not self.min_share <= self.max_share:
            raise UserError(f"min_share={self.min_share} is above max_share={self.max_share}")

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Array) -> View:
        """The batch with its `order`, and int32 [B, L] `prefix_targets`: what each state predicts,
        −1 for nothing."""
        position, size = position_in_document(batch["documents"])
        first = jnp.arange(position.shape[1]) - position
        # One draw per document: that of its first position.
        shares = jax.random.uniform(key, position.shape, float, self.min_share, self.max_share)
        share = jnp.take_along_axis(shares, first, axis=1)
        prefix = jnp.minimum((share * size).astype(jnp.int32), size - 1)
        rows = (position.shape[0], 1)
        backward = jax.random.uniform(jax.random.fold_in(key, 1), rows) < self.backward_share
        order = jnp.where(backward, -position, jnp.maximum(position, prefix - 1))
        following = jnp.where(position >= prefix - 1, neighbours(batch, "forward"), -1)
        targets = jnp.where(backward, neighbours(batch, "backward"), following)
        return {**batch, "order": order, "prefix_targets": targets}

    def loss(self, model: Model, view: View) -> Metrics:
        # Logits at all positions: only the device knows which ones predict.
        targets = view["prefix_targets"]
        logits = model.predict_tokens(model.encode().output("both"), "both")
        return cross_entropy(logits, jnp.maximum(targets, 0), targets >= 0)


@dataclasses.dataclass(frozen=True)
class ActivationPenalty(Objective):
    """Regularisers of an LSTM's last layer, added to a language model's loss (Merity et al. 2017,
    section 4.6; salesforce/awd-lstm-lm weights AR by 2 and TAR by 1): they read its own pass."""

    reads = "any"
    shares = "any"


@dataclasses.dataclass(frozen=True)
class ActivationRegularisation(ActivationPenalty):
    """AR: the mean of h² over positions and coordinates; h is the last layer after its dropout."""

    def loss(self, model: Model, view: View) -> Metrics:
        encoded = model.encode()
        side, _ = encoded.widest()
        return {"loss": squares(encoded.output(side), view["documents"] > 0)}


@dataclasses.dataclass(frozen=True)
class TemporalActivationRegularisation(ActivationPenalty):
    """TAR: the mean of (h_{t+1} − h_t)² in a document; h is the last layer before its dropout."""

    def loss(self, model: Model, view: View) -> Metrics:
        _, layers = model.encode().widest()
        hidden, documents = layers[-1].astype(jnp.float32), view["documents"]
        same = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] > 0)
        return {"loss": squares(hidden[:, 1:] - hidden[:, :-1], same)}


def squares(values: Float[Array, "B L D"], where: Bool[Array, "B L"]) -> tuple[Array, Array]:
    """(Σ values² over some positions, number of values there)."""
    squared = jnp.where(where[:, :, None], jnp.square(values.astype(jnp.float32)), 0.0)
    return squared.sum(), (where.sum() * values.shape[-1]).astype(jnp.float32)


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


def position_in_document(documents: Ids) -> tuple[Ids, Ids]:
    """Each position's number in its document, from 0, and the document's length; padding is one."""
    index = jnp.arange(documents.shape[1])
    begins = jnp.diff(documents, axis=1, prepend=-1) != 0
    ends = jnp.diff(documents, axis=1, append=-1) != 0
    first = jax.lax.cummax(jnp.where(begins, index, 0), axis=1)
    last = jax.lax.cummin(jnp.where(ends, index, documents.shape[1]), axis=1, reverse=True)
    return index - first, last - first + 1


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
    import scipy.optimize  # takes half a second

    log_miss = np.log1p(-probability)

    def excess(t):
        return -np.expm1(t * log_miss).sum() - number

    return -np.expm1(scipy.optimize.brentq(excess, 0.0, 1e12) * log_miss)
