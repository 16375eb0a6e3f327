"""Next-sentence prediction (Devlin et al. 2018, section 3.3.2)."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from bertlab.models.base import Dense, View
from bertlab.objectives.base import Bound, Metrics, Objective, Oracle, cross_entropy


@dataclasses.dataclass(frozen=True)
class NextSentence(Objective):
    """NSP: −log p(label | pooled pair), label 0 where B follows A and 1 where B is random (run_pretraining.py).

    A row is one pair and has one label [B], or packed pairs, its documents 1 to n, with theirs [B, n].
    It shows nothing of its own: beside mlm it shares the masked view and its forward pass, as in BERT. Without mlm it reads the
    batch as it is, beside electra, prefix, permutation and masked_next_token in a pass of its own: of their views a row's
    pooled vector has seen a part, or what their loss is not about.
    """

    reads: ClassVar[str] = "both"
    sees: ClassVar[str] = "any"
    asks: ClassVar[str] = "pairs"
    needs: ClassVar[tuple[str, ...]] = ("pair_label",)
    other: ClassVar[str] = "random"  # what B is where the label is 1

    def head(self, body: nn.Module) -> nn.Module:
        """Two classes from the pooled vector."""
        return Dense(2, ("embed", None))

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy and accuracy over labelled pairs (label ≥ 0)."""
        (field,) = self.needs
        label = view[field]
        pairs = label.shape[1] if label.ndim == 2 else None
        logits = model.head(model.pool(pairs)).astype(jnp.float32)
        return cross_entropy(logits, jnp.maximum(label, 0), label >= 0)

    def floor(self, oracle: Oracle, view: View, batch: View) -> tuple[np.ndarray, np.ndarray]:
        """By likelihood ratio of the two relations, given the row as it is shown."""
        (field,) = self.needs
        return oracle.relation(self.other, batch[field], view["tokens"])[:, None], batch[field][:, None] >= 0
