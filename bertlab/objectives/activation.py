"""Activation regularisers of an LSTM's last layer (Merity et al. 2017, section 4.6), added to a
language model's loss; salesforce/awd-lstm-lm weights AR by 2 and TAR by 1."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertlab.models.base import View
from bertlab.objectives.base import Metrics, Model, Objective


@dataclasses.dataclass(frozen=True)
class ActivationPenalty(Objective):
    """Base of both: they read the states of the language model's own pass."""

    reads = "any"
    shares = "any"


@dataclasses.dataclass(frozen=True)
class ActivationRegularisation(ActivationPenalty):
    """AR: the mean of h² over positions and coordinates; h is the last layer after its dropout."""

    def loss(self, model: Model, view: View) -> Metrics:
        encoded = model.encode()
        side, _ = encoded.widest()
        return {"loss": squares(encoded.output(side), view["documents"] > 0)}


@dataclasses.dataclass(frozen=True)
class TemporalActivationRegularisation(ActivationPenalty):
    """TAR: the mean of (h_{t+1} − h_t)² in a document; h is the last layer before its dropout."""

    def loss(self, model: Model, view: View) -> Metrics:
        _, layers = model.encode().widest()
        hidden, documents = layers[-1].astype(jnp.float32), view["documents"]
        same = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] > 0)
        return {"loss": squares(hidden[:, 1:] - hidden[:, :-1], same)}


def squares(values: Float[Array, "B L D"], where: Bool[Array, "B L"]) -> tuple[Array, Array]:
    """(Σ values² over some positions, number of values there)."""
    squared = jnp.where(where[:, :, None], jnp.square(values.astype(jnp.float32)), 0.0)
    return squared.sum(), (where.sum() * values.shape[-1]).astype(jnp.float32)
