"""SpanBERT's span boundary objective (Joshi et al. 2020, section 3.2)."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from bertlab.spine.errors import UserError
from bertlab.spine.models.base import View
from bertlab.spine.models.layers import Dense, Norm, param, truncated_normal
from bertlab.spine.objectives.base import Metrics, Model, Objective, cross_entropy
from bertlab.spine.objectives.choosing import at_positions


@dataclasses.dataclass(frozen=True)
class SpanBoundary(Objective):
    """SBO: −Σ log p(x_i | y_i) over the positions i of each masked span (s, e), from the states
    next to the span.

        h_0 = [x_{s−1}; x_{e+1}; p_{i−s+1}],  h_1 = LayerNorm(GeLU(W_1 h_0)),
        y_i = LayerNorm(GeLU(W_2 h_1))

    It shares mlm's view and forward pass, with mlm's unit="span". As in the paper, the body's
    output layer predicts the tokens "exactly like the MLM objective". In SpanBERT's code y_i is
    multiplied by the embeddings directly and has its own bias.

    Attributes:
        places: Relative positions p_1 … p_places; later positions of a span are not predicted
            (SpanBERT's code: 20).
        place_width: Width of their embeddings (SpanBERT's code: 200).
    """

    shares = "mlm"

    places: int = 20
    place_width: int = 200

    def head(self, body: nn.Module) -> nn.Module:
        """y from the two states and the relative position."""
        return FromBoundaries(self.places, self.place_width, body.shape.dtype)

    def loss(self, model: Model, view: View) -> Metrics:
        """Cross-entropy and accuracy at the masked positions."""
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
    """The two layers of the equations. y is as wide as the states, so the body's output layer can
    read it."""

    places: int
    place_width: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(
        self,
        left: Float[Array, "B P D"],
        right: Float[Array, "B P D"],
        relative: Int[Array, "B P"],
    ) -> Float[Array, "B P D"]:
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
