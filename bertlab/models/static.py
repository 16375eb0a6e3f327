"""The body of static word vectors: a token's vector is the same in every context.

Letters: B batch, L length, D width, V vocabulary.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from bertlab.models.base import (
    Body,
    Carry,
    Encoded,
    OutputConfig,
    Shape,
    TokenPrediction,
    View,
    lookup,
    mean_state,
    param,
    rows_apart,
)


@dataclasses.dataclass(frozen=True)
class StaticConfig(Shape):
    """Shape of a table of word vectors, and of a second one for the output.

    Attributes:
        width: D, width of the vectors.
        vocab_size: V.
        direction: "bidirectional"; a lookup has no direction.
        output: its matrix is word2vec's syn1neg and GloVe's context vectors.
        dtype: of the computation.
        output_init: initial values of the output matrix: "zeros" (word2vec) or "uniform" like the vectors (GloVe).
    """

    width: int
    vocab_size: int
    direction: str
    output: OutputConfig
    dtype: Any
    output_init: str = "zeros"

    def flops_per_token(self, seq_len: int, sides: Iterable[str] = ("both",)) -> float:
        """None: a lookup multiplies nothing."""
        return 0.0


class Static(Body):
    """Vectors by lookup, with the initial values of word2vec.c and GloVe: U(−.5, .5) / D."""

    config: StaticConfig

    def setup(self):
        c = self.config
        uniform = lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -0.5, 0.5) / c.width
        self.token_embedding = self.param("token_embedding", param(uniform, "vocab", "embed"), (c.vocab_size, c.width))
        output_init = uniform if c.output_init == "uniform" else nn.initializers.zeros
        self.output = TokenPrediction(c.output, c.vocab_size, c.width, 1e-12, output_init, c.dtype)

    def encode(self, view: View, deterministic: bool, carry: Carry) -> tuple[Encoded, Carry]:
        """One layer, the same on every side: each state has seen only its own token."""
        del deterministic, carry
        layers = (rows_apart(lookup(self.token_embedding.astype(self.config.dtype), view["tokens"])),)
        return Encoded(forward=layers, backward=layers, both=layers), {}

    def pool(self, encoded: Encoded, view: View, documents: int | None = None) -> Float[Array, "B ... D"]:
        """The mean of a text's vectors, padding left out; zeros for an empty one."""
        return mean_state(encoded.both[-1], view, documents)
