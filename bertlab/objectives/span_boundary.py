"""SpanBERT's span boundary objective (Joshi et al. 2020, section 3.2)."""

import dataclasses
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from bertlab.keys import setting
from bertlab.models.base import Dense, Norm, View, param, truncated_normal
from bertlab.objectives.base import Bound, Metrics, Objective, Oracle
from bertlab.objectives.choosing import at_positions


@dataclasses.dataclass(frozen=True)
class SpanBoundary(Objective):
    """SBO: −Σ log p(x_i | y_i) over the positions i of each masked span (s, e), from the states next to the span.

        h_0 = [x_{s−1}; x_{e+1}; p_{i−s+1}],  h_1 = LayerNorm(GeLU(W_1 h_0)),  y_i = LayerNorm(GeLU(W_2 h_1))

    It shares mlm's view and forward pass, and needs mlm's unit="span". As in the paper, the body's output layer predicts the
    tokens "exactly like the MLM objective", with its transform (BERT's) and bias. In SpanBERT's code y_i is multiplied by the
    embeddings directly and has its own bias.

    Attributes:
        places: relative positions p_1 … p_places; later positions of a span are not predicted (SpanBERT's code: 20).
        place_width: width of the embeddings of these positions (SpanBERT's code: 200).
    """

    sees = "mlm"
    shows = MappingProxyType({"unit": "span"})

    places: int = setting(20, least=1)
    place_width: int = setting(200, least=1)

    def head(self, body: nn.Module) -> nn.Module:
        """f: y from the two states and the place."""
        return _FromBoundaries(self.places, self.place_width, body.config.dtype)

    def flops_per_prediction(self, shape) -> float:
        """The head's two products and a row of logits."""
        width = getattr(shape, "state_width", shape.width)  # two directions side by side, or one state that sees both
        return super().flops_per_prediction(shape) + 6 * width * (3 * width + self.place_width)

    def loss(self, model: Bound, view: View) -> Metrics:
        """Cross-entropy and accuracy at the masked positions."""
        hidden = model.encoded.output("both")
        left, right = (at_positions(hidden, view[f"span_{side}"]) for side in ("left", "right"))
        place = view["span_place"]
        asked = view["masked_weights"] & (place <= self.places)
        return model.token_loss(model.head(left, right, place), "both", view["masked_labels"], asked)

    def guessing_in_place(self, nats: float, shown: Objective | None = None) -> tuple[float, float]:
        """As mlm's of the chosen tokens: the states next to the span see what stands in it."""
        return dataclasses.replace(shown, predict="chosen").guessing_in_place(nats) if shown else (nats, nats)

    def floor(self, oracle: Oracle, view: View, batch: View) -> tuple[np.ndarray, np.ndarray]:
        """As mlm's: the states next to the span see everything that is shown."""
        nats = np.take_along_axis(oracle.corrupted(view["tokens"], oracle.shared), view["masked_positions"], axis=1)
        return nats, view["masked_weights"] & (view["span_place"] <= self.places)


class _FromBoundaries(nn.Module):
    """f of the equations. y is as wide as the states, so the body's output layer can read it."""

    places: int
    place_width: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(
        self, left: Float[Array, "B P D"], right: Float[Array, "B P D"], place: Int[Array, "B P"]
    ) -> Float[Array, "B P D"]:
        width = left.shape[-1]
        table = self.param("places", param(truncated_normal(0.02), None, None), (self.places, self.place_width))
        # The loss ignores slots without a row: unused ones (place 0), and places beyond the last.
        own = table.astype(self.dtype)[jnp.clip(place - 1, 0, self.places - 1)]
        h = jnp.concatenate([left, right, own], axis=-1)
        for name, axes in (("first", (None, "embed")), ("second", ("embed", None))):
            h = jax.nn.gelu(Dense(width, axes, dtype=self.dtype, name=name)(h))
            h = Norm(1e-12, name=f"{name}_norm")(h)
        return h
