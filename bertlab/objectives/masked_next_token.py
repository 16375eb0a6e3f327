"""Masked next-token prediction and causal modelling in one model (Charpentier and Samuel 2024, GPT-BERT)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertlab.keys import setting
from bertlab.models.base import View
from bertlab.objectives.autoregressive import neighbours
from bertlab.objectives.base import Bound, Corruption, Metrics, Objective, Oracle, Scoring, Vocabulary, cross_entropy
from bertlab.objectives.choosing import from_slots
from bertlab.objectives.masked import MaskedLanguageModel
from bertlab.objectives.prefix import predicted


@dataclasses.dataclass(frozen=True)
class MaskedNextToken(Objective):
    """GPT-BERT's hybrid: −Σ log p(x_t | …) where the state at t − 1 predicts the token at t in every row.

    Each row is causal with probability `causal_share`, otherwise masked. A causal row is read left to right and predicts all
    its tokens (`ltr`). A masked row is read both ways. Its tokens are masked as in `mlm` (`rate`, `final_rate`, `mask_share`,
    `random_share`), and each chosen token is predicted from the state before it. A chosen token at the beginning of a document
    has no state before it and is not predicted; formats with [CLS] have none.

    Both kinds share all parameters and one forward pass. The loss is summed over all predictions, so causal rows, with more of
    them, weigh more. `causal_loss` and `masked_loss` are the losses of each kind. Only the device knows which rows are causal,
    so logits are computed at all positions of all rows, [B, L, V].

    Attributes:
        causal_share: probability that a row is causal.
        rate: share of the positions of a masked row that are chosen.
        final_rate: the rate changes linearly to this value during training; 0: constant rate.
        mask_share: share of the chosen tokens that become [MASK].
        random_share: share of the chosen tokens that become a random one.
    """

    sees = "own"
    families = ("bert", "gpt", "modern")

    causal_share: float = setting(0.5, least=0, most=1)
    rate: float = setting(0.15, least=0, most=1)
    final_rate: float = setting(0.0, least=0, most=1)
    mask_share: float = setting(0.8, least=0, most=1)
    random_share: float = setting(0.1, least=0, most=1)

    def __post_init__(self):
        super().__post_init__()
        _ = self.masking  # checks what its settings are together

    @property
    def masking(self) -> MaskedLanguageModel:
        """`mlm` with these settings."""
        names = ("rate", "final_rate", "mask_share", "random_share")
        return MaskedLanguageModel(**{name: getattr(self, name) for name in names})

    def check(self, vocabulary: Vocabulary) -> None:
        self.masking.check(vocabulary)

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Float[Array, ""]) -> View:
        """The batch with masked tokens in some rows and an `order` in the others.

        Adds bool [B] `causal`, bool [B, L] `masked` (the chosen tokens of masked rows), and int32 [B, L]
        `next_token_targets`: what each state predicts, −1 for nothing.
        """
        row_key, mask_key = jax.random.split(key)
        rows, length = batch["tokens"].shape
        causal = jax.random.uniform(row_key, (rows,)) < self.causal_share
        masked = self.masking.view(batch, mask_key, vocabulary, progress)
        chosen = from_slots(masked["masked_positions"], masked["masked_weights"], length)
        chosen_next = jnp.pad(chosen[:, 1:], ((0, 0), (0, 1)))
        return {
            **batch,
            "tokens": jnp.where(causal[:, None], batch["tokens"], masked["tokens"]),
            "order": jnp.where(causal[:, None], jnp.arange(length), 0),
            "causal": causal,
            "masked": chosen & ~causal[:, None],
            "next_token_targets": jnp.where(causal[:, None] | chosen_next, neighbours(batch, "forward"), -1),
        }

    def flops_per_prediction(self, shape) -> float:
        return 0.0  # `extra_flops` counts logits

    def extra_flops(self, shape, length: int) -> float:
        """Logits at all positions of a row."""
        return length * shape.flops_per_prediction()

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy and accuracy of all rows, and the cross-entropy of each kind's."""
        targets, causal = view["next_token_targets"], view["causal"]
        logits = model.predict_tokens(model.encoded.output("both"), "both")
        by_row = jax.vmap(cross_entropy)(logits, jnp.maximum(targets, 0), targets >= 0)
        total = lambda name, rows: tuple(jnp.where(rows, values, 0.0).sum() for values in by_row[name])
        return {
            "loss": total("loss", True),
            "accuracy": total("accuracy", True),
            "causal_loss": total("loss", causal),
            "masked_loss": total("loss", ~causal),
        }

    def scoring(self) -> Scoring:
        """By the chain rule like causal rows, and by masking each token in turn like masked rows."""
        in_order, masked = self.causal_share > 0, self.causal_share < 1 and self.mask_share > 0
        lacks = "" if self.mask_share else "mask_share=0 never shows the model a [MASK], but pseudo scores insert it"
        return Scoring(("in order",) * in_order + ("before the mask",) * masked, lacks)

    def corruption(self, view: View, vocabulary: Vocabulary) -> Corruption:
        """As `mlm`'s, in masked rows."""
        return self.masking.corruption({"masked_weights": view["masked"]}, vocabulary)

    def guessing_in_place(self, nats: float, shown: Objective | None = None) -> tuple[float, float]:
        """In masked rows as `mlm`'s, because their states see the token after them; causal rows have `nats`."""
        rate = self.final_rate or self.rate
        masked = (1 - self.causal_share) * rate
        share = masked / (masked + self.causal_share)  # of all predictions
        least, most = self.masking.guessing_in_place(nats)
        return (1 - share) * nats + share * least, (1 - share) * nats + share * most

    def floor(self, oracle: Oracle, view: View, batch: View) -> tuple[np.ndarray, np.ndarray]:
        """By the chain rule in causal rows, as `mlm`'s in masked rows."""
        masked = oracle.corrupted(view["tokens"], self.corruption(view, oracle.vocabulary))
        in_order = oracle.chain_rule()
        return np.where(view["causal"][:, None], in_order, masked), predicted(view["next_token_targets"] >= 0)
