"""Static word vectors: a token's vector is the same in every context (word2vec, GloVe).

Letters: B batch, L length, D width, V vocabulary.
"""

import dataclasses

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from bertlab.models.base import Body, Carry, Encoded, Shape, View, mean_state
from bertlab.models.layers import OutputLayer, lookup, param, shard_batch, uniform


@dataclasses.dataclass(frozen=True)
class StaticShape(Shape):
    """Shape of a table of vectors, and of a second for the output (syn1neg, GloVe's contexts)."""

    width: int
    vocab_size: int
    direction: str  # "bidirectional"; a lookup has no direction
    dtype: jnp.dtype
    output_transform: bool = False
    tied: bool = False
    output_bias: bool = False
    output_init: str = "zeros"  # of the second table (word2vec); "uniform": as the vectors (GloVe)


class Static(Body):
    """Vectors by lookup, with the initial values of word2vec.c and GloVe: U(-0.5, 0.5) / D."""

    shape: StaticShape

    def setup(self):
        shape = self.shape
        init = uniform(0.5 / shape.width)
        size = (shape.vocab_size, shape.width)
        self.token_embedding = self.param("token_embedding", param(init, "vocab", "embed"), size)
        output_init = init if shape.output_init == "uniform" else nn.initializers.zeros
        self.output = OutputLayer(shape, output_init)

    def encode(self, view: View, carry: Carry | None = None) -> tuple[Encoded, Carry]:
        """One layer, the same on every side: each state has seen its own token only."""
        vectors = shard_batch(lookup(self.token_embedding, view["tokens"]))
        vectors = vectors.astype(self.shape.dtype)
        return Encoded(forward=(vectors,), backward=(vectors,), both=(vectors,)), {}

    def pool(
        self, encoded: Encoded, view: View, documents: int | None = None
    ) -> Float[Array, "B ... D"]:
        """The mean of a text's vectors; zeros for an empty one."""
        return mean_state(encoded.both[-1], view, documents)
