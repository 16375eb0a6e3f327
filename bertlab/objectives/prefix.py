"""Prefix language modelling (Dong et al. 2019, UniLM; Raffel et al. 2020, section 3.2)."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bertlab.errors import UserError
from bertlab.models.base import View
from bertlab.objectives.autoregressive import neighbours
from bertlab.objectives.base import Metrics, Model, Objective, Vocabulary, cross_entropy
from bertlab.objectives.choosing import Ids


@dataclasses.dataclass(frozen=True)
class PrefixLanguageModel(Objective):
    """Prefix LM: −Σ_{t ≥ m} log p(x_t | x_0 … x_{t−1}), where a document's positions all see its
    first m tokens.

    For each document of n tokens in a row, a share is drawn uniformly between `min_share` and
    `max_share`, and m = min(⌊share · n⌋, n − 1), so at least the last token is predicted. Later
    tokens see the prefix and everything to their left. The state at t predicts the token at t + 1.

    With max_share=0 it is left-to-right modelling (`ltr`) on a bidirectional body: the same numbers
    from the same parameters. Curricula from left-to-right to masked modelling need that.

    Attributes:
        min_share: Smallest share of a document that is its prefix.
        max_share: Largest share.
    """

    min_share: float = 0.0
    max_share: float = 1.0

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
        targets = jnp.where(position >= prefix - 1, neighbours(batch, "forward"), -1)
        return {**batch, "order": jnp.maximum(position, prefix - 1), "prefix_targets": targets}

    def loss(self, model: Model, view: View) -> Metrics:
        # Logits at all positions: only the device knows which ones predict.
        targets = view["prefix_targets"]
        logits = model.predict_tokens(model.encode().output("both"), "both")
        return cross_entropy(logits, jnp.maximum(targets, 0), targets >= 0)


def position_in_document(documents: Ids) -> tuple[Ids, Ids]:
    """Each position's number in its document, from 0, and the document's length; padding is one."""
    index = jnp.arange(documents.shape[1])
    begins = jnp.diff(documents, axis=1, prepend=-1) != 0
    ends = jnp.diff(documents, axis=1, append=-1) != 0
    first = jax.lax.cummax(jnp.where(begins, index, 0), axis=1)
    last = jax.lax.cummin(jnp.where(ends, index, documents.shape[1]), axis=1, reverse=True)
    return index - first, last - first + 1
