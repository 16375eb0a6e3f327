"""Prefix language modelling (Dong et al. 2019, UniLM; Raffel et al. 2020, section 3.2)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertlab.errors import UserError
from bertlab.keys import setting
from bertlab.models.base import View
from bertlab.objectives.autoregressive import neighbours
from bertlab.objectives.base import Bound, Metrics, Objective, Oracle, Scoring, Vocabulary


@dataclasses.dataclass(frozen=True)
class PrefixLanguageModel(Objective):
    """Prefix LM: −Σ_{t ≥ m} log p(x_t | x_0 … x_{t−1}), where all positions see the first m tokens of their document.

    For each document of n tokens in a row, a share is drawn uniformly between `min_share` and `max_share`, and
    m = min(⌊share · n⌋, n − 1), so at least the last token is predicted. The tokens of the prefix see each other. Later tokens
    see the prefix and the tokens to their left. The state at t predicts the token at t + 1.

    With max_share=0 this is left-to-right modelling (`ltr`) on a bidirectional body: the same numbers from the same parameters.
    Curricula from left-to-right to masked modelling need that.

    Attributes:
        min_share: smallest share of a document that is its prefix.
        max_share: largest share of a document that is its prefix.
    """

    sees = "own"
    families = ("bert", "gpt", "modern")

    min_share: float = setting(0.0, least=0, most=1)
    max_share: float = setting(1.0, least=0, most=1)

    def __post_init__(self):
        super().__post_init__()
        if self.min_share > self.max_share:
            raise UserError(f"min_share={self.min_share} must not be above max_share={self.max_share}")

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Float[Array, ""]) -> View:
        """The batch with its `order`, and int32 [B, L] `prefix_targets`: what each state predicts, −1 for nothing."""
        place, size = place_in_document(batch["documents"])
        first = jnp.arange(place.shape[1]) - place
        # One draw per document: that of its first position.
        drawn = jax.random.uniform(key, place.shape, minval=self.min_share, maxval=self.max_share)
        share = jnp.take_along_axis(drawn, first, axis=1)
        prefix = jnp.minimum((share * size).astype(jnp.int32), size - 1)
        targets = jnp.where(place >= prefix - 1, neighbours(batch, "forward"), -1)
        return {**batch, "order": jnp.maximum(place, prefix - 1), "prefix_targets": targets}

    def flops_per_prediction(self, shape) -> float:
        return 0.0  # `extra_flops` counts logits

    def extra_flops(self, shape, length: int) -> float:
        """Logits at all positions of a row, because only the device knows which ones it predicts."""
        return length * shape.flops_per_prediction()

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy and accuracy of the tokens after the prefix."""
        targets = view["prefix_targets"]
        return model.token_loss(model.encoded.output("both"), "both", jnp.maximum(targets, 0), targets >= 0)

    def scoring(self) -> Scoring:
        """By the chain rule, with tokens shown in order, if training also predicts the first tokens of a text."""
        if self.min_share:
            return Scoring(lacks=f"min_share={self.min_share} never asks for the first tokens of a text")
        return Scoring(("in order",))

    def floor(self, oracle: Oracle, view: View, batch: View) -> tuple[np.ndarray, np.ndarray]:
        """By the chain rule, of every token after the prefix."""
        return oracle.chain_rule(), predicted(view["prefix_targets"] >= 0)


def predicted(predicting: np.ndarray) -> np.ndarray:
    """[R, L] the predicted tokens' positions, from the positions of the states that predict the next token."""
    return np.pad(predicting[:, :-1], ((0, 0), (1, 0)))


def place_in_document(documents: Int[Array, "B L"]) -> tuple[Int[Array, "B L"], Int[Array, "B L"]]:
    """Each position's place in its document, from 0, and the document's number of positions; padding counts as a document."""
    index = jnp.arange(documents.shape[1])
    begins = jnp.diff(documents, axis=1, prepend=-1) != 0
    ends = jnp.diff(documents, axis=1, append=-1) != 0
    first = jax.lax.cummax(jnp.where(begins, index, 0), axis=1)
    last = jax.lax.cummin(jnp.where(ends, index, documents.shape[1]), axis=1, reverse=True)
    return index - first, last - first + 1
