"""AWD-LSTM (Merity et al. 2017), the language model of ULMFiT: LSTMs with dropout of five kinds.

Letters: B batch, L length, D embedding width, F cell width (of the last layer: D), I a layer's
input width, V vocabulary.
"""

import dataclasses
from collections.abc import Iterable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from bertlab.models.base import Body, Carry, Encoded, Shape, View
from bertlab.models.layers import (
    Dropout,
    OutputLayer,
    gather,
    lookup,
    normal,
    param,
    rematerialised,
    shard_batch,
    uniform,
)
from bertlab.models.recurrent import Borders, Cell, State, begin_with, borders, lstm, matmul


@dataclasses.dataclass(frozen=True)
class AwdLstmShape(Shape):
    """Shape of an AWD-LSTM. Its layers differ in shape, so no loop runs through them."""

    layers: int
    width: int  # D, of the embeddings and of the last layer
    hidden: int  # F in the other layers
    vocab_size: int
    direction: str  # "left-to-right" or "right-to-left"
    dtype: jnp.dtype
    embedding_dropout: float = 0.1  # share of the vocabulary's words dropped from a batch
    input_dropout: float = 0.65  # on the embedded text; this and the next two: one mask per row
    hidden_dropout: float = 0.3  # between layers
    dropout: float = 0.4  # on the last layer, before the output layer
    weight_dropout: float = 0.5  # on the recurrent kernels, one mask per batch
    output_transform: bool = False
    tied: bool = True
    output_bias: bool = True
    remat: str = "none"  # see `layers.rematerialised`

    @property
    def side(self) -> str:
        """The side that its states have seen."""
        return "backward" if self.direction == "right-to-left" else "forward"

    @property
    def cells(self) -> tuple[int, ...]:
        """F of each layer."""
        return (self.hidden,) * (self.layers - 1) + (self.width,)

    def initial_carry(self, rows: int, sides: Iterable[str]) -> Carry:
        """States before the first position: zeros [rows, F] by side and layer."""
        layers = {
            f"layer_{n}": {
                "cell": jnp.zeros((rows, cell), jnp.float32),
                "state": jnp.zeros((rows, cell), self.dtype),
            }
            for n, cell in enumerate(self.cells)
        }
        return {side: layers for side in sides}


class DroppedLstm(nn.Module):
    """torch's LSTM (gates input, forget, candidate, output) with dropout of its recurrent kernel.

    Initial values are U(+-1/sqrt(F)), as are those of the two biases; only their sum matters.
    """

    shape: AwdLstmShape
    cell: int
    reverse: bool

    @nn.compact
    def __call__(
        self, x: Float[Array, "L B I"], begin: State, borders: Borders
    ) -> tuple[Float[Array, "L B F"], State]:
        """Outputs of all positions, and the state after the last; x is after dropout."""
        cell, dtype = self.cell, self.shape.dtype
        init = uniform(cell**-0.5)
        kernel_init = param(init, "embed", None, "hidden")
        bias_init = param(init, None, "hidden")
        input_kernel = self.param("input_kernel", kernel_init, (x.shape[-1], 4, cell))
        recurrent_kernel = self.param("recurrent_kernel", kernel_init, (cell, 4, cell))
        bias = self.param("input_bias", bias_init, (4, cell))
        bias = bias + self.param("recurrent_bias", bias_init, (4, cell))
        recurrent_kernel = Dropout(self.shape.weight_dropout)(recurrent_kernel)
        input_kernel, recurrent_kernel = (
            gather(kernel.astype(dtype), 0).reshape(-1, 4 * cell)
            for kernel in (input_kernel, recurrent_kernel)
        )
        gates = matmul(x, input_kernel) + bias.reshape(-1).astype(dtype)
        settings = Cell((0, 1, 2, 3), None, self.reverse)
        outputs, end = lstm(settings, gates, recurrent_kernel, None, begin, borders)
        return shard_batch(outputs, axis=1), end


class AwdLstm(Body):
    """Embeddings, LSTMs and the dropouts between them (sections 3 to 4.3; awd-lstm-lm)."""

    shape: AwdLstmShape

    def setup(self):
        shape = self.shape
        size = (shape.vocab_size, shape.width)
        self.token_embedding = self.param(
            "token_embedding", param(uniform(0.1), "vocab", "embed"), size
        )
        self.word_dropout = Dropout(shape.embedding_dropout)
        time = (0,)
        self.input_dropout = Dropout(shape.input_dropout, time)
        self.hidden_dropout = Dropout(shape.hidden_dropout, time)
        self.output_dropout = Dropout(shape.dropout, time)
        self.pooler = shape.dense(shape.width, ("embed", None), normal(0.02))
        self.output = OutputLayer(shape, uniform(0.1))

    @nn.compact
    def encode(self, view: View, carry: Carry | None = None) -> tuple[Encoded, Carry]:
        """Embeddings after their dropouts, [B, L, D]; layers before `hidden_dropout`, [B, L, F]."""
        shape = self.shape
        reverse = shape.side == "backward"
        rows = borders(view, reverse, stateful=bool(carry))
        begin = begin_with(shape, carry, shape.side, view)
        x = shard_batch(self.input_dropout(self._embed(view["tokens"].T)), axis=1)
        layers, end = [x], {}
        layer = rematerialised(DroppedLstm, shape.remat)
        for n, cell in enumerate(shape.cells):
            name = f"layer_{n}"
            x = self.hidden_dropout(x) if n else x
            x, end[name] = layer(shape, cell, reverse, name=name)(x, begin[name], rows)
            layers.append(x)
        dropped = {shape.side: self.output_dropout(x).swapaxes(0, 1)}
        states = {shape.side: tuple(layer.swapaxes(0, 1) for layer in layers)}
        after = {shape.side: jax.lax.stop_gradient(end)} if carry else {}
        return Encoded(**states, dropped=dropped), after

    def _embed(self, tokens: Int[Array, "L B"]) -> Float[Array, "L B D"]:
        """Rows of the table; `embedding_dropout` drops a word everywhere in the batch."""
        embedded = lookup(self.token_embedding, tokens).astype(self.shape.dtype)
        kept = self.word_dropout(jnp.ones(self.shape.vocab_size, embedded.dtype))
        return embedded * kept[tokens][..., None]
