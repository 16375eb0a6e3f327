"""ELMo's body: a forward and a backward stack of projected LSTMs above shared token vectors.

Letters: B batch, L length, n layers, D model width (the projection), F cell width, V vocabulary.
Parameters of a direction's layers are stacked along a first axis "layers".
"""

import dataclasses
from collections.abc import Iterable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from bertlab.models.base import Body, Carry, Encoded, Shape, View, summary
from bertlab.models.characters import PUBLISHED_FILTERS, Characters
from bertlab.models.layers import (
    Dropout,
    OutputLayer,
    gather,
    lookup,
    normal,
    param,
    shard_batch,
    stacked,
    uniform,
)
from bertlab.models.recurrent import Borders, Cell, begin_with, borders, lstm, matmul


@dataclasses.dataclass(frozen=True)
class BilstmShape(Shape):
    """Shape of an ELMo body."""

    layers: int
    width: int
    hidden: int  # F
    vocab_size: int
    direction: str  # "bidirectional", both stacks; "left-to-right" or "right-to-left", one
    dtype: jnp.dtype
    clip: float = 3.0  # bound of cell states and projections (bilm-tf: 3)
    epsilon: float = 1e-12
    output_transform: bool = False
    tied: bool = False
    output_bias: bool = True
    dropout: float = 0.1
    token_encoder: str = "ids"  # a table of token embeddings; "characters": the view's
    skip_connections: bool = True  # from layer 2 on, add a layer's dropped input to its output
    highway_layers: int = 2  # the character encoder's
    filters: tuple[tuple[int, int], ...] = PUBLISHED_FILTERS  # (width, number) of its convolutions
    character_width: int = 16  # E
    character_activation: str = "relu"  # or "tanh", after the convolutions; highway: relu
    remat: str = "none"  # see `layers.stacked`
    scan_layers: bool | None = None

    @property
    def sides(self) -> tuple[str, ...]:
        """The stacks of this direction."""
        one = {"left-to-right": ("forward",), "right-to-left": ("backward",)}
        return one.get(self.direction, ("forward", "backward"))

    def initial_carry(self, rows: int, sides: Iterable[str]) -> Carry:
        """States before the first position: zeros [rows, n, F] and [rows, n, D] by side."""
        cell = jnp.zeros((rows, self.layers, self.hidden), jnp.float32)
        state = jnp.zeros((rows, self.layers, self.width), self.dtype)
        return {side: {"cell": cell, "state": state} for side in sides}


class ProjectedLstm(nn.Module):
    """An LSTM with a projection of its output and clipped states (TensorFlow's, as in bilm-tf).

    Gates in the order input, candidate, forget, output; 1 is added to the forget gate at run time.
    Initial values are TensorFlow's default, U(+-sqrt(6 / (inputs + outputs))), where inputs and
    states share one matrix.
    """

    shape: BilstmShape
    reverse: bool

    @nn.compact
    def __call__(
        self, x: Float[Array, "L B D"], layer: tuple, borders: Borders
    ) -> tuple[Array, tuple]:
        """The outputs for the next layer; and these outputs with the states after the last one.

        x is before dropout; `layer` is whether to add it to the output, and the states before the
        first position.
        """
        shape = self.shape
        residual, begin = layer
        width, hidden, dtype = shape.width, shape.hidden, shape.dtype
        init = param(uniform((6 / (2 * width + 4 * hidden)) ** 0.5), "embed", None, "hidden")
        input_kernel = self.param("input_kernel", init, (width, 4, hidden))
        recurrent_kernel = self.param("recurrent_kernel", init, (width, 4, hidden))
        bias = self.param("bias", param(nn.initializers.zeros, None, "hidden"), (4, hidden))
        init = param(uniform((6 / (hidden + width)) ** 0.5), "hidden", "embed")
        projection = gather(self.param("projection", init, (hidden, width)).astype(dtype), 1)
        kernels = [
            gather(kernel.astype(dtype), 0).reshape(width, 4 * hidden)
            for kernel in (input_kernel, recurrent_kernel)
        ]
        inputs = Dropout(shape.dropout)(x)
        bias = (bias + jnp.array([0.0, 0.0, 1.0, 0.0])[:, None]).reshape(-1)
        gates = matmul(inputs, kernels[0]) + bias.astype(dtype)
        cell = Cell((0, 2, 1, 3), shape.clip, self.reverse)
        outputs, end = lstm(cell, gates, kernels[1], projection, begin, borders)
        outputs = shard_batch(outputs + jnp.where(residual, inputs, 0), axis=1)
        return outputs, (outputs, end)


class Bilstm(Body):
    """ELMo's biLM (Peters et al. 2018, section 3.1): two directions, shared vectors and softmax."""

    shape: BilstmShape

    def setup(self):
        shape = self.shape
        if shape.token_encoder == "characters":
            self.characters = Characters(shape)
            self.token_embedding = None
        else:
            init = uniform((6 / (shape.vocab_size + shape.width)) ** 0.5)
            size = (shape.vocab_size, shape.width)
            self.token_embedding = self.param(
                "token_embedding", param(init, "vocab", "embed"), size
            )
        self.dropout = Dropout(shape.dropout)
        self.pooler = shape.dense(shape.width, ("embed", None), normal(0.02))
        self.output = OutputLayer(shape, normal(shape.width**-0.5))

    def encode(self, view: View, carry: Carry | None = None) -> tuple[Encoded, Carry]:
        """States of every layer; with a carry, only its sides'; without, documents are separate."""
        embedded = shard_batch(self._embed(view).swapaxes(0, 1), axis=1)
        states, ends = {}, {}
        for side in carry or self.shape.sides:
            layers, end = self._stack(embedded, view, side, carry)
            states[side] = tuple(layer.swapaxes(0, 1) for layer in (embedded, *layers))
            if carry:
                ends[side] = jax.lax.stop_gradient(end)
        dropped = {side: self.dropout(layers[-1]) for side, layers in states.items()}
        if len(states) == 2:
            pairs = zip(states["forward"], states["backward"])
            states["both"] = tuple(jnp.concatenate(pair, -1) for pair in pairs)
            dropped["both"] = jnp.concatenate([dropped["forward"], dropped["backward"]], -1)
        return Encoded(**states, dropped=dropped), ends

    def _embed(self, view: View) -> Float[Array, "B L D"]:
        if self.shape.token_encoder == "characters":
            return self.characters(view["characters"])
        return lookup(self.token_embedding, view["tokens"]).astype(self.shape.dtype)

    @nn.compact
    def _stack(self, embedded: Float[Array, "L B D"], view: View, side: str, carry: Carry):
        """The output of each layer of one direction, and the states after the rows, [B, n, ...]."""
        shape = self.shape
        reverse = side == "backward"
        stack = stacked(ProjectedLstm, shape.layers, shape.remat, shape.scan_layers)
        residual = (jnp.arange(shape.layers) > 0) & shape.skip_connections
        begin = _swap(begin_with(shape, carry, side, view))
        rows = borders(view, reverse, stateful=bool(carry))
        _, (outputs, end) = stack(shape, reverse, name=side)(embedded, (residual, begin), rows)
        return list(outputs), _swap(end)

    def pool(
        self, encoded: Encoded, view: View, documents: int | None = None
    ) -> Float[Array, "B ... D"]:
        """tanh of a dense layer on a text's [last state of forward; first state of backward]."""
        sides = [side for side in ("forward", "backward") if getattr(encoded, side) is not None]
        ends = [summary(getattr(encoded, side)[-1], side, view, documents) for side in sides]
        return jnp.tanh(self.pooler(jnp.concatenate(ends, -1)))


def _swap(states):
    """Rows first to layers first, and back."""
    return jax.tree.map(lambda x: x.swapaxes(0, 1), states)
