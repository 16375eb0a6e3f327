"""Activation regularisers of an LSTM's last layer (Merity et al. 2017, section 4.6; salesforce/awd-lstm-lm main.py).

Beside a language model's loss, with weights 2 (AR) and 1 (TAR) in the original.
"""

import dataclasses

import jax.numpy as jnp

from bertlab.models.base import View
from bertlab.objectives.base import Bound, Metrics, Objective


@dataclasses.dataclass(frozen=True)
class ActivationRegularisation(Objective):
    """AR: the mean of h² over positions and coordinates; h is the last layer after its dropout."""

    reads = "any"
    sees = "any"
    asks = "other"

    def loss(self, model: Bound, view: View) -> Metrics:
        """Sum of squares and number of coordinates, without padding."""
        hidden = model.encoded.output(model.encoded.widest()[0])
        return {"loss": _squares(hidden, view["documents"] > 0)}


@dataclasses.dataclass(frozen=True)
class TemporalActivationRegularisation(Objective):
    """TAR: the mean of (h_{t+1} − h_t)² over neighbours in a document; h is the last layer before its dropout."""

    reads = "any"
    sees = "any"
    asks = "other"

    def loss(self, model: Bound, view: View) -> Metrics:
        """Sum of squared differences and number of coordinates."""
        hidden, documents = model.encoded.widest()[1][-1].astype(jnp.float32), view["documents"]
        neighbours = (documents[:, 1:] == documents[:, :-1]) & (documents[:, 1:] > 0)
        return {"loss": _squares(hidden[:, 1:] - hidden[:, :-1], neighbours)}


def _squares(values, where):
    """(Σ values² over the positions in `where`, number of values there)."""
    squares = jnp.where(where[:, :, None], jnp.square(values.astype(jnp.float32)), 0.0)
    return squares.sum(), (where.sum() * values.shape[-1]).astype(jnp.float32)
