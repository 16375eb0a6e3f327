"""Task heads as objectives: fine-tuning runs through the same loop as pretraining (Devlin et al. 2018, section 3.2)."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from bertlab.models.base import Dense, View
from bertlab.objectives.base import Bound, Metrics, Objective, cross_entropy

NO_LABEL = -1


class Classifier(nn.Module):
    """Dropout and one dense layer."""

    classes: int
    dropout: float

    @nn.compact
    def __call__(self, x: Float[Array, "... D"], deterministic: bool) -> Float[Array, "... C"]:
        """Logits in float32."""
        x = nn.Dropout(self.dropout)(x, deterministic)
        return Dense(self.classes, ("embed", None), name="dense")(x).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class SentenceClassification(Objective):
    """−log p(label | one vector a row), for rows with `label` [B] ≥ 0.

    `pooling` says which vector: "mean" of the last layer's states over the row, or "pooler", the first position (for a model
    that reads left to right, the last) through a dense layer and tanh. The paper's is the pooler; the mean asks
    nothing of a position that a small or left-to-right model has not learned to use.
    """

    reads: ClassVar[str] = "any"
    predicts_tokens: ClassVar[bool] = False

    classes: int = 2
    dropout: float = 0.1
    pooling: str = "mean"

    def head(self, body: nn.Module) -> nn.Module:
        """Classifier on the row's vector."""
        return Classifier(self.classes, self.dropout)

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy and accuracy."""
        label = view["label"]
        vector = model.pool() if self.pooling == "pooler" else mean_over_row(model, view)
        logits = model.head(vector, model.deterministic)
        return cross_entropy(logits, jnp.maximum(label, 0), label >= 0)


def mean_over_row(model: Bound, view: View) -> Float[Array, "B D"]:
    """Mean of the last layer's states over the positions that are not padding."""
    states = model.encoded.widest()[1][-1]
    filled = (view["documents"] > 0).astype(states.dtype)[:, :, None]
    return (states * filled).sum(axis=1) / jnp.maximum(filled.sum(axis=1), 1)


@dataclasses.dataclass(frozen=True)
class TokenClassification(Objective):
    """Σ −log p(label_t | state_t) over the pieces that carry a word's label; `labels` [B, L], −1 elsewhere.

    Two classes; `f1` is the F1 of class 1 over all labelled pieces, 2·TP / (2·TP + FP + FN).
    """

    reads: ClassVar[str] = "any"
    predicts_tokens: ClassVar[bool] = False

    classes: int = 2
    dropout: float = 0.1

    def head(self, body: nn.Module) -> nn.Module:
        """Classifier on every state."""
        return Classifier(self.classes, self.dropout)

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy, accuracy and F1."""
        labels = view["labels"]
        known = labels >= 0
        _, layers = model.encoded.widest()
        logits = model.head(layers[-1], model.deterministic)
        guess = jnp.argmax(logits, -1)
        count = lambda where: jnp.sum(where & known).astype(jnp.float32)
        found = 2 * count((guess == 1) & (labels == 1))
        f1 = (found, found + count((guess == 1) != (labels == 1)))
        return {**cross_entropy(logits, jnp.maximum(labels, 0), known), "f1": f1}
