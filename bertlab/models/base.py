"""The contract of every family: a view in, hidden states out, keyed by the context they have seen.

Letters in shapes, here and in every model: B batch, L length, N = B·L positions, D model width,
H heads, K head width, F feed-forward or cell width, V vocabulary.

A body is a Linen module with a field `shape` (a frozen dataclass) and three methods:

    encode(view, carry=None) -> (Encoded, carry)
    predict_tokens(hidden, side, among=None) -> float32 logits [..., V], or those of candidates
    pool(encoded, view, documents=None) -> one vector per row, [B, D], or per document, [B, n, D]

Dropout is on if and only if `apply` got an rng named "dropout".
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from bertlab.models.layers import Dense, Norm

SIDES = ("forward", "backward", "both")

View = Mapping[str, Array]
"""What the model is shown: int32 [B, L] `tokens`, `segments`, `documents` (0: padding) and
`positions` (counted in their document), and an objective's own fields:

    order, shown_at   int32 [B, L], transformers: in its document, position i sees itself and each j
                      with shown_at[j] <= order[i] (`shown_at` is `order` where it is missing)
    characters        int [B, L, 50], ELMo on characters
    continues         int32 [B], carried states: 1 if the row continues the row before it
    cut               bool [B, L], recurrent: no gradient flows to states read before the position
"""

Carry = Mapping[str, Any]
"""States of recurrent bodies before the rows, by side: {"forward": arrays [B, ...]}; or {}."""


@struct.dataclass
class Encoded:
    """Hidden states of every layer (embeddings first), by the side that they have seen, or None."""

    # Position t has seen tokens up to t.
    forward: tuple[Float[Array, "B L D"], ...] | None = None
    # Position t has seen tokens from t on.
    backward: tuple[Float[Array, "B L D"], ...] | None = None
    # Position t has seen its document, or what `order` shows it; for a biLSTM [B, L, 2D].
    both: tuple[Float[Array, "B L D"], ...] | None = None
    # For LSTMs, by side: the last layer, after the dropout before the output layer.
    dropped: Mapping[str, Float[Array, "B L D"]] | None = None

    def output(self, side: str) -> Float[Array, "B L D"]:
        """The input of the output layer."""
        return getattr(self, side)[-1] if self.dropped is None else self.dropped[side]

    def widest(self) -> tuple[str, tuple[Float[Array, "B L D"], ...]]:
        """The side that has seen the most, and its states."""
        sides = ("both", "forward", "backward")
        return next((side, x) for side in sides if (x := getattr(self, side)) is not None)


class Shape:
    """Base of the frozen dataclasses that describe bodies, whose fields are keys of `config.model`.

    All have `width`, `vocab_size`, `direction`, `dtype`, and for the output layer the values below
    and `output_transform` (dense layer, activation and norm before the product, as in BERT), `tied`
    (the product is with the token embeddings) and `output_bias` (one number per token).
    """

    epsilon = 1e-12
    norm = "layer_norm"
    use_bias = True
    activation = "gelu_tanh"
    times_base = 1.0
    longest = 1 << 20  # positions of a text, at most: none without a table of positions

    def dense(self, features: int, axes: tuple, initializer, name: str | None = None) -> Dense:
        """A dense layer with the body's biases and dtype."""
        return Dense(features, axes, initializer, self.use_bias, self.dtype, name=name)

    def norm_layer(self, name: str | None = None) -> Norm:
        """A norm of the body's kind."""
        return Norm(self.epsilon, self.norm, self.use_bias, name=name)


class Body(nn.Module):
    """Base of all bodies; `setup` makes `output`, `pooler` and `token_embedding` (or None)."""

    def predict_tokens(
        self, hidden: Float[Array, "... D"], side: str, among: Int[Array, "..."] | None = None
    ) -> Float[Array, "... V"]:
        """Logits in float32 from states of `Encoded.output`, which have seen this side; only those
        `among` these tokens: [n], the same for all states, or [..., k], per state."""
        return self.output(hidden, self.token_embedding, side, among)

    def pool(
        self, encoded: Encoded, view: View, documents: int | None = None
    ) -> Float[Array, "B ... D"]:
        """tanh of a dense layer on the state that has seen a whole text (BERT's is its first)."""
        side, layers = encoded.widest()
        return jnp.tanh(self.pooler(summary(layers[-1], side, view, documents)))


def sides_of(family: str, direction: str) -> tuple[str, ...]:
    """The sides of `Encoded` that a body of this family and direction has."""
    if direction == "left-to-right":
        return ("forward",)
    if direction == "right-to-left":
        return ("backward",)
    return SIDES if family in ("elmo", "static") else ("both",)


def summary(
    hidden: Float[Array, "B L D"], side: str, view: View, documents: int | None = None
) -> Float[Array, "B ... D"]:
    """The state that has seen a whole text: its last for the side "forward", otherwise its first.

    `documents` is None if a row is one text, [B, D], or n for a state per document, [B, n, D].
    """
    if not documents and side != "forward":
        return hidden[:, 0]
    inside = inside_documents(view, documents)
    if side == "forward":
        position = inside.shape[1] - 1 - jnp.argmax(inside[:, ::-1], axis=1)
    else:
        position = jnp.argmax(inside, axis=1)
    states = jnp.take_along_axis(hidden, position[..., None], axis=1)
    return states if documents else states[:, 0]


def mean_state(
    hidden: Float[Array, "B L D"], view: View, documents: int | None = None
) -> Float[Array, "B ... D"]:
    """The mean of a text's states, arguments as for `summary`; zeros for an empty text."""
    inside = inside_documents(view, documents).astype(hidden.dtype)
    sums, counts = jnp.einsum("bln,bld->bnd", inside, hidden), inside.sum(axis=1)
    means = sums / jnp.maximum(counts, 1)[..., None]
    return means if documents else means[:, 0]


def inside_documents(view: View, documents: int | None) -> Bool[Array, "B L n"]:
    """Which positions belong to each document 1 to n of a row; None: a row is one (n = 1)."""
    if documents is None:
        return (view["documents"] > 0)[..., None]
    return view["documents"][..., None] == jnp.arange(1, documents + 1)
