"""Next-sentence prediction (Devlin et al. 2018, section 3.3.2) and sentence-order prediction (Lan
et al. 2020, section 3.1)."""

import dataclasses

import jax.numpy as jnp
from flax import linen as nn

from bertlab.models.base import View
from bertlab.models.layers import Dense
from bertlab.objectives.base import Metrics, Model, Objective, cross_entropy


@dataclasses.dataclass(frozen=True)
class NextSentence(Objective):
    """NSP: −log p(label | pooled pair), label 0 if B follows A and 1 if B is random
    (run_pretraining.py).

    A row is one pair with a label [B], or packed pairs (its documents 1 to n) with labels [B, n].
    With mlm it shares the masked view and its forward pass, as in BERT; otherwise it reads the
    batch.
    """

    shares = "mlm"
    needs = ("pair_label",)

    def head(self, body: nn.Module) -> nn.Module:
        return Dense(2, ("embed", None))

    def loss(self, model: Model, view: View) -> Metrics:
        """Cross-entropy and accuracy over labelled pairs (label ≥ 0)."""
        label = view[self.needs[0]]
        pairs = label.shape[1] if label.ndim == 2 else None
        logits = model.head(model.pool(pairs)).astype(jnp.float32)
        return cross_entropy(logits, jnp.maximum(label, 0), label >= 0)


@dataclasses.dataclass(frozen=True)
class SentenceOrder(NextSentence):
    """SOP (ALBERT): −log p(label | pooled pair), label 0 if B follows A in the text and 1 if the
    two are swapped.

    Both segments are from one document, so unlike in NSP the topic does not give the answer away.
    It needs a pair format with negatives="swapped".
    """

    needs = ("order_label",)
