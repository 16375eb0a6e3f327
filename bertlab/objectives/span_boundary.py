"""SpanBERT's span boundary objective (Joshi et al. 2020, section 3.2)."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from bertlab.errors import UserError
from bertlab.models.base import View
from bertlab.models.layers import Dense, Norm, param, truncated_normal
from bertlab.objectives.base import Metrics, Model, Objective, cross_entropy
from bertlab.objectives.choosing import Slots, at_positions

States = Float[Array, "B P D"]


@dataclasses.dataclass(frozen=True)
class SpanBoundary(Objective):
    """SBO: −Σ log p(x_i | y_i) over the positions i of each masked span (s, e), from the states
    next to the span.

        h_0 = [x_{s−1}; x_{e+1}; p_{i−s+1}],  h_1 = LayerNorm(GeLU(W_1 h_0)),
        y_i = LayerNorm(GeLU(W_2 h_1))

    It shares mlm's view and forward pass, with mlm's unit="span". As in the paper, the body's
    output layer predicts the tokens "exactly like the MLM objective"; SpanBERT's code multiplies
    y_i by the embeddings directly, with its own bias.

    Attributes:
        places: Relative positions p_1 … p_places; later positions of a span are not predicted
            (SpanBERT's code: 20).
        place_width: Width of their embeddings (SpanBERT's code: 200).
    """

    shares = "mlm"

    places: int = 20
    place_width: int = 200

    def head(self, body: nn.Module) -> nn.Module:
        return FromBoundaries(self.places, self.place_width, body.shape.dtype)

    def loss(self, model: Model, view: View) -> Metrics:
        if "span_place" not in view:
            raise UserError(
                "config.objectives.sbo predicts masked spans: train it together with mlm, with"
                " config.objectives.mlm.unit=span"
            )
        hidden = model.encode().output("both")
        left = at_positions(hidden, view["span_left"])
        right = at_positions(hidden, view["span_right"])
        weights = view["masked_weights"] & (view["span_place"] <= self.places)
        logits = model.predict_tokens(model.head(left, right, view["span_place"]), "both")
        return cross_entropy(logits, view["masked_labels"], weights)


class FromBoundaries(nn.Module):
    """y of the equations, as wide as the states, so the body's output layer can read it."""

    places: int
    place_width: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, left: States, right: States, relative: Slots) -> States:
        width = left.shape[-1]
        init = param(truncated_normal(0.02), None, None)
        table = self.param("places", init, (self.places, self.place_width)).astype(self.dtype)
        # Unused slots (0) and positions beyond the last have no weight in the loss.
        own = table[jnp.clip(relative - 1, 0, self.places - 1)]
        h = jnp.concatenate([left, right, own], axis=-1)
        for name, axes in (("first", (None, "embed")), ("second", ("embed", None))):
            h = jax.nn.gelu(Dense(width, axes, dtype=self.dtype, name=name)(h))
            h = Norm(1e-12, name=f"{name}_norm")(h)
        return h
