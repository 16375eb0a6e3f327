"""Masked next-token prediction and causal modelling in one model (Charpentier and Samuel 2024,
GPT-BERT)."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bertlab.spine.models.base import View
from bertlab.spine.objectives.autoregressive import neighbours
from bertlab.spine.objectives.base import Metrics, Model, Objective, Vocabulary, cross_entropy
from bertlab.spine.objectives.choosing import from_slots
from bertlab.spine.objectives.masked import MaskedLanguageModel


@dataclasses.dataclass(frozen=True)
class MaskedNextToken(Objective):
    """GPT-BERT's hybrid: −Σ log p(x_t | …), where the state at t − 1 predicts the token at t in
    every row.

    Each row is causal with probability `causal_share`, otherwise masked. A causal row is read left
    to right and predicts all its tokens (`ltr`). A masked row is read both ways; its tokens are
    masked as in `mlm`, and each chosen token is predicted from the state before it. A chosen token
    at the beginning of a document has no state before it and is not predicted; with [CLS] there is
    none. Both kinds share all parameters and one forward pass. The loss is a sum over all
    predictions, so causal rows, with more of them, weigh more.

    Attributes:
        causal_share: Probability that a row is causal.
        rate: Share of the positions of a masked row that are chosen.
        final_rate: The rate changes linearly to this value during training; 0: constant rate.
        mask_share: Share of the chosen tokens that become [MASK].
        random_share: Share of the chosen tokens that become a random one.
    """

    causal_share: float = 0.5
    rate: float = 0.15
    final_rate: float = 0.0
    mask_share: float = 0.8
    random_share: float = 0.1

    def masking(self) -> MaskedLanguageModel:
        """`mlm` with these settings."""
        return MaskedLanguageModel(
            rate=self.rate,
            final_rate=self.final_rate,
            mask_share=self.mask_share,
            random_share=self.random_share,
        )

    def view(
        self, batch: View, key: Array, vocabulary: Vocabulary, progress: Float[Array, ""]
    ) -> View:
        """The batch with masked tokens in some rows and an `order` in the others.

        Adds bool [B] `causal`, bool [B, L] `masked` (the chosen tokens of masked rows), and int32
        [B, L] `next_token_targets`: what each state predicts, −1 for nothing.
        """
        row_key, mask_key = jax.random.split(key)
        rows, length = batch["tokens"].shape
        causal = jax.random.uniform(row_key, (rows,)) < self.causal_share
        masked = self.masking().view(batch, mask_key, vocabulary, progress)
        chosen = from_slots(masked["masked_positions"], masked["masked_weights"], length)
        chosen_next = jnp.pad(chosen[:, 1:], ((0, 0), (0, 1)))
        in_causal_row = causal[:, None]
        predicts = in_causal_row | chosen_next
        return {
            **batch,
            "tokens": jnp.where(in_causal_row, batch["tokens"], masked["tokens"]),
            "order": jnp.where(in_causal_row, jnp.arange(length), 0),
            "causal": causal,
            "masked": chosen & ~in_causal_row,
            "next_token_targets": jnp.where(predicts, neighbours(batch, "forward"), -1),
        }

    def loss(self, model: Model, view: View) -> Metrics:
        """Cross-entropy and accuracy of all rows, and the cross-entropy of each kind of rows."""
        # Logits at all positions: only the device knows which rows are causal.
        targets, causal = view["next_token_targets"], view["causal"]
        logits = model.predict_tokens(model.encode().output("both"), "both")
        labels, weights, row = jnp.maximum(targets, 0), targets >= 0, causal[:, None]
        return {
            **cross_entropy(logits, labels, weights),
            "causal_loss": cross_entropy(logits, labels, weights & row)["loss"],
            "masked_loss": cross_entropy(logits, labels, weights & ~row)["loss"],
        }
