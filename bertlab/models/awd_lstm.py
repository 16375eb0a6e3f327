"""AWD-LSTM (Merity et al. 2017), the language model of ULMFiT: a stack of LSTMs with dropout in five places.

Letters: B batch, L length, D embedding width, F cell width (of the last layer: D), I a layer's input width, V vocabulary.
"""

import dataclasses
from collections.abc import Iterable

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from bertlab.models.base import (
    Body,
    Carry,
    Dense,
    Dropout,
    Encoded,
    OutputConfig,
    Shape,
    TokenPrediction,
    View,
    between_products,
    lookup,
    normal,
    param,
    rematerialised,
    rows_apart,
    whole,
)
from bertlab.models.recurrent import Cell, begin_with, lstm, of_inputs, of_rows, to_carry, uniform


@dataclasses.dataclass(frozen=True)
class AwdLstmConfig(Shape):
    """Shape of an AWD-LSTM.

    Attributes:
        width: width of the embeddings and of the last layer; the output layer multiplies its states by the embeddings.
        hidden: cell width of the other layers.
        direction: "left-to-right" or "right-to-left".
        embedding_dropout: share of the vocabulary's words that are dropped from a batch.
        input_dropout: on the embedded text; this and the next two have one mask for all positions of a row.
        hidden_dropout: between layers.
        dropout: on the last layer, before the output layer.
        weight_dropout: on the recurrent kernels; one mask for the whole batch.
        remat: "none", "dots" or "full": what the backward pass recomputes. (Layers differ in shape, so no loop runs over them.)
    """

    layers: int
    width: int
    hidden: int
    vocab_size: int
    direction: str
    embedding_dropout: float
    input_dropout: float
    hidden_dropout: float
    dropout: float
    weight_dropout: float
    output: OutputConfig
    dtype: jnp.dtype
    remat: str = "none"

    @property
    def side(self) -> str:
        """The side that its states have seen."""
        return "backward" if self.direction == "right-to-left" else "forward"

    @property
    def cells(self) -> tuple[int, ...]:
        """Cell width of each layer."""
        return (self.hidden,) * (self.layers - 1) + (self.width,)

    def flops_per_token(self, seq_len: int, sides: Iterable[str] = ("both",)) -> float:
        """Forward and backward FLOPs per position: 6 per weight of the products, I·4F + F·4F per layer."""
        return sum(6 * 4 * cell * (before + cell) for before, cell in zip((self.width, *self.cells), self.cells))

    def initial_carry(self, rows: int, sides: Iterable[str]) -> Carry:
        """States of `rows` rows before their first position: zeros, by side and layer, each [rows, F]."""
        zeros = lambda cell: {"cell": jnp.zeros((rows, cell), jnp.float32), "state": jnp.zeros((rows, cell), self.dtype)}
        return {side: {f"layer_{i}": zeros(cell) for i, cell in enumerate(self.cells)} for side in sides}


class DroppedLstm(nn.Module):
    """An LSTM like torch's, with gates in the order input, forget, candidate, output, and dropout on its recurrent kernel.

    Initial values are U(±1/√F), also for the two biases; as in torch, only their sum acts.
    """

    config: AwdLstmConfig
    cell: int
    reverse: bool
    deterministic: bool

    @nn.compact
    def __call__(self, x: Float[Array, "L B I"], begin, rows: tuple) -> tuple[Float[Array, "L B F"], dict]:
        """Outputs of every position, and the states after the last.

        Args:
            x: inputs after dropout.
            begin: {cell [B, F], state [B, F]} before the first position.
            rows: `recurrent.of_rows`.
        """
        c, f = self.config, self.cell
        init = uniform(f**-0.5)
        wx = self.param("input_kernel", param(init, "embed", None, "hidden"), (x.shape[-1], 4, f))
        wh = self.param("recurrent_kernel", param(init, "embed", None, "hidden"), (f, 4, f))
        bias = self.param("input_bias", param(init, None, "hidden"), (4, f))
        bias = bias + self.param("recurrent_bias", param(init, None, "hidden"), (4, f))
        wh = Dropout(c.weight_dropout)(wh, self.deterministic)
        dtype = between_products(c.dtype)
        flat = lambda w: w.reshape(*w.shape[:-2], 4 * f)
        wx, wh = (whole(w.astype(dtype), 0) for w in (wx, wh))
        gates = of_inputs(x, flat(wx), c.dtype) + flat(bias.astype(dtype))
        outputs, end = lstm(Cell((0, 1, 2, 3), None, self.reverse), gates, flat(wh), None, begin, *rows)
        return rows_apart(outputs, axis=1), end


class AwdLstm(Body):
    """Embeddings, LSTMs and the dropouts between them (Merity et al. 2017, section 3 to 4.3; salesforce/awd-lstm-lm)."""

    config: AwdLstmConfig

    def setup(self):
        c = self.config
        self.token_embedding = self.param("token_embedding", param(uniform(0.1), "vocab", "embed"), (c.vocab_size, c.width))
        self.words = Dropout(c.embedding_dropout)
        locked = lambda rate: Dropout(rate, broadcast_dims=(0,))  # time comes first
        self.after_embedding = locked(c.input_dropout)
        self.between_layers = locked(c.hidden_dropout)
        self.after_layers = locked(c.dropout)
        self.pooler = Dense(c.width, ("embed", None), normal(0.02), dtype=c.dtype)
        self.output = TokenPrediction(c.output, c.vocab_size, c.width, 1e-12, uniform(0.1), c.dtype)

    @nn.compact
    def encode(self, view: View, deterministic: bool, carry: Carry) -> tuple[Encoded, Carry]:
        """Hidden states of every layer.

        Returns:
            Encoded: the embeddings after their dropouts [B, L, D], and each layer's raw states, [B, L, F] and [B, L, D] for the
            last layer. Raw states are from before `hidden_dropout`. `dropped` is the last layer after `dropout`.
        """
        c = self.config
        reverse = c.side == "backward"
        rows = of_rows(view, reverse, stateful=bool(carry))
        begin = begin_with(c, carry, c.side, view)
        x = rows_apart(self.after_embedding(self._embed(view["tokens"].T, deterministic), deterministic), axis=1)
        layers, end = [x], {}
        layer = rematerialised(DroppedLstm, c.remat, in_loop=False)
        for i, cell in enumerate(c.cells):
            name = f"layer_{i}"
            x = self.between_layers(x, deterministic) if i else x
            x, end[name] = layer(c, cell, reverse, deterministic, name=name)(x, begin[name], rows)
            layers.append(x)
        batch_first = lambda x: x.transpose(1, 0, 2)
        encoded = {
            c.side: tuple(map(batch_first, layers)),
            "dropped": {c.side: batch_first(self.after_layers(x, deterministic))},
        }
        return Encoded(**encoded), {c.side: to_carry(end, carry[c.side])} if carry else {}

    def _embed(self, tokens: Int[Array, "L B"], deterministic: bool) -> Float[Array, "L B D"]:
        """Rows of the table; `embedding_dropout` drops whole words everywhere in the batch."""
        embedded = lookup(self.token_embedding.astype(between_products(self.config.dtype)), tokens)
        kept = self.words(jnp.ones(self.config.vocab_size, embedded.dtype), deterministic)
        return embedded * kept[tokens][..., None]
