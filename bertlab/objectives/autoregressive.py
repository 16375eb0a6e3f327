"""Language modelling in one direction: GPT's (Radford et al. 2018, equation 1) and each half of ELMo's
(Peters et al. 2018, equation 1 and the one below it). Their mean on a biLSTM is ELMo's biLM."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from bertlab.models.base import View
from bertlab.objectives.base import Bound, Metrics, Objective, cross_entropy


@dataclasses.dataclass(frozen=True)
class LeftToRight(Objective):
    """LTR: −Σ_t log p(x_{t+1} | x_1 … x_t), within a document; the state at t has seen tokens ≤ t."""

    reads: ClassVar[str] = "forward"

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy and accuracy of the next token at every position but each document's last."""
        tokens, documents = view["tokens"], view["documents"]
        weights = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] > 0)
        logits = model.predict_tokens(model.encoded.forward[-1][:, :-1], "forward")
        return cross_entropy(logits, tokens[:, 1:], weights.astype(jnp.float32))


@dataclasses.dataclass(frozen=True)
class RightToLeft(Objective):
    """RTL: −Σ_t log p(x_{t−1} | x_t … x_T), within a document; the state at t has seen tokens ≥ t."""

    reads: ClassVar[str] = "backward"

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy and accuracy of the previous token at every position but each document's first."""
        tokens, documents = view["tokens"], view["documents"]
        weights = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] > 0)
        logits = model.predict_tokens(model.encoded.backward[-1][:, 1:], "backward")
        return cross_entropy(logits, tokens[:, :-1], weights.astype(jnp.float32))
