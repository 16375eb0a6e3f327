"""Masked next-token prediction and causal modelling in one model (Charpentier and Samuel 2024,
GPT-BERT)."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array

from bertlab.models.base import View
from bertlab.objectives.autoregressive import neighbours
from bertlab.objectives.base import Metrics, Model, Objective, Vocabulary, cross_entropy
from bertlab.objectives.choosing import from_slots
from bertlab.objectives.masked import MaskedLanguageModel


@dataclasses.dataclass(frozen=True)
class MaskedNextToken(Objective):
    """GPT-BERT's hybrid: −Σ log p(x_t | …), where the state at t − 1 predicts the token at t.

    Each row is causal with probability `causal_share`, otherwise masked. A causal row is read left
    to right and predicts all its tokens (`ltr`). A masked row is read both ways; its tokens are
    masked as in `mlm` (with the other settings), and each chosen one is predicted from the state
    before it, so not at the beginning of a document. The loss is a sum over all predictions, so
    causal rows, which have more of them, weigh more.
    """

    causal_share: float = 0.5
    rate: float = 0.15
    final_rate: float = 0.0
    mask_share: float = 0.8
    random_share: float = 0.1

    def masking(self) -> MaskedLanguageModel:
        """`mlm` with these settings."""
        names = ("rate", "final_rate", "mask_share", "random_share")
        return MaskedLanguageModel(**{name: getattr(self, name) for name in names})

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Array) -> View:
        """The batch with masked tokens in some rows and an `order` in the others, bool [B]
        `causal`, bool [B, L] `masked` (the chosen tokens of masked rows), and int32 [B, L]
        `next_token_targets`: what each state predicts, −1 for nothing."""
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
        """The loss of all rows, and that of each kind."""
        # Logits at all positions: only the device knows which rows are causal.
        targets, causal = view["next_token_targets"], view["causal"]
        logits = model.predict_tokens(model.encode().output("both"), "both")
        labels, weights, row = jnp.maximum(targets, 0), targets >= 0, causal[:, None]
        return {
            **cross_entropy(logits, labels, weights),
            "causal_loss": cross_entropy(logits, labels, weights & row)["loss"],
            "masked_loss": cross_entropy(logits, labels, weights & ~row)["loss"],
        }
