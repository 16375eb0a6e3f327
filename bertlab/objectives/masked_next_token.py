"""Masked next-token prediction beside causal modelling in one model (Charpentier and Samuel 2024, GPT-BERT)."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertlab.models.base import View
from bertlab.objectives.autoregressive import neighbours
from bertlab.objectives.base import Bound, Metrics, Objective, Oracle, Scoring, Vocabulary, check_share, cross_entropy
from bertlab.objectives.masked import MaskedLanguageModel
from bertlab.objectives.prefix import predicted


@dataclasses.dataclass(frozen=True)
class MaskedNextToken(Objective):
    """GPT-BERT's hybrid: −Σ log p(x_t | …) where the state at t − 1 predicts the token at t in every row.

    Each row is drawn for itself: causal with probability `causal_share`, else masked. A causal row is read left to right and
    predicts all its tokens (`ltr`). A masked row is read both ways; its tokens are masked as `mlm` masks them (`rate`,
    `final_rate`, `mask_share`, `random_share` are its), and the chosen ones predicted, each from the state before it. A chosen
    token at which its document begins has no state before it and is not predicted; in formats with [CLS] there is none.

    Both kinds use the same parameters, the output layer included, and one forward pass; the loss is summed over all
    predictions, so a causal row, which has more of them, weighs more. `causal_loss` and `masked_loss` are those of each kind.
    Which rows are causal is known on the device alone, so logits are computed at all positions of all rows, [B, L, V].
    """

    reads: ClassVar[str] = "both"
    sees: ClassVar[str] = "own"
    families: ClassVar[tuple[str, ...]] = ("bert", "gpt", "modern")

    causal_share: float = 0.5
    rate: float = 0.15
    final_rate: float = 0.0
    mask_share: float = 0.8
    random_share: float = 0.1

    def __post_init__(self):
        """Refuses settings that are no probabilities."""
        check_share("causal_share", self.causal_share)
        _ = self.masking  # refuses the others

    @property
    def masking(self) -> MaskedLanguageModel:
        """How the masked rows are masked."""
        names = ("rate", "final_rate", "mask_share", "random_share")
        return MaskedLanguageModel(**{name: getattr(self, name) for name in names})

    def check(self, vocabulary: Vocabulary) -> None:
        """Refuses to mask with a tokenizer that has nothing to mask with."""
        self.masking.check(vocabulary)

    def view(self, batch: View, key: Array, vocabulary: Vocabulary, progress: Float[Array, ""]) -> View:
        """The batch with masked tokens in some rows and an `order` in the others.

        Adds bool [B] `causal`, bool [B, L] `masked`, the chosen tokens of the masked rows, and int32 [B, L]
        `next_token_targets`: what each state predicts, −1 for nothing.
        """
        row_key, mask_key = jax.random.split(key)
        rows, length = batch["tokens"].shape
        causal = jax.random.uniform(row_key, (rows,)) < self.causal_share
        masked = self.masking.view(batch, mask_key, vocabulary, progress)
        choose = jax.vmap(lambda at, used: jnp.zeros(length, bool).at[at].max(used))
        chosen = choose(masked["masked_positions"], masked["masked_weights"] > 0)
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
        """Nothing by the prediction: see `extra_flops`."""
        return 0.0

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
        """By the chain rule as its causal rows, and by masking each token in turn as its masked rows."""
        in_order, masked = self.causal_share > 0, self.causal_share < 1 and self.mask_share > 0
        lacks = "" if self.mask_share else "mask_share=0 never shows the model a [MASK], which pseudo scores put in"
        return Scoring(("in order",) * in_order + ("before the mask",) * masked, lacks)

    def floor(self, oracle: Oracle, view: View, batch: View) -> tuple[np.ndarray, np.ndarray]:
        """By the chain rule in causal rows, as mlm's in masked ones."""
        corruption = self.masking.corruption({"masked_weights": view["masked"]}, oracle.vocabulary)
        masked, in_order = oracle.corrupted(view["tokens"], corruption), oracle.chain_rule()
        return np.where(view["causal"][:, None], in_order, masked), predicted(view["next_token_targets"] >= 0)
