"""ELMo's body: a forward and a backward stack of projected LSTMs over shared token vectors.

Letters: B batch, L length, n layers, D model width (the projection), F cell width, V vocabulary. Parameters of a direction's
layers are stacked along a first axis `layers`.
"""

import dataclasses
from collections.abc import Iterable

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

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
    rows_apart,
    stacked,
    summary,
    whole,
)
from bertlab.models.characters import PUBLISHED_FILTERS, Characters, CharactersConfig
from bertlab.models.recurrent import Cell, begin_with, lstm, of_inputs, of_rows, to_carry, uniform


@dataclasses.dataclass(frozen=True)
class BilstmConfig(Shape):
    """Shape of an ELMo body.

    Attributes:
        direction: "bidirectional" has both stacks, "left-to-right" and "right-to-left" one.
        clip: bound on cell states and projections (bilm-tf: 3).
        token_encoder: "ids", a table of token embeddings; "characters", the view's `characters` [B, L, 50] encoded.
        skip_connections: from the second layer on, add a layer's input (after dropout) to its output.
        highway_layers: of the character encoder.
        filters: of the character encoder, (width, number) each.
        character_width, character_activation: of the character encoder.
        remat: "none", "dots" or "full": what the backward pass recomputes.
        scan_layers: run layers in a loop, or unrolled; None: what suits the device.
    """

    layers: int
    width: int
    hidden: int
    vocab_size: int
    direction: str
    clip: float
    epsilon: float
    output: OutputConfig
    dropout: float
    dtype: jnp.dtype
    token_encoder: str = "ids"
    skip_connections: bool = True
    highway_layers: int = 2
    filters: tuple[tuple[int, int], ...] = PUBLISHED_FILTERS
    character_width: int = 16
    character_activation: str = "relu"
    remat: str = "none"
    scan_layers: bool | None = None

    @property
    def sides(self) -> tuple[str, ...]:
        """The stacks of this direction."""
        off = {"left-to-right": "backward", "right-to-left": "forward"}.get(self.direction)
        return tuple(side for side in ("forward", "backward") if side != off)

    @property
    def characters(self) -> CharactersConfig:
        """Shape of the character encoder."""
        return CharactersConfig(
            self.width, self.highway_layers, self.filters, self.character_width, self.character_activation, self.dtype
        )

    def flops_per_token(self, seq_len: int, sides: Iterable[str] = ("both",)) -> float:
        """Forward and backward FLOPs per position: 6 per weight of the products, D·4F + D·4F + F·D per layer and direction.

        Only directions that an objective reads are computed.
        """
        stacks = set(self.sides) if set(sides) - set(self.sides) else set(sides)
        lstms = 6 * self.layers * 9 * self.width * self.hidden * len(stacks)
        return lstms + (self.characters.flops_per_token() if self.token_encoder == "characters" else 0)

    @property
    def state_width(self) -> int:
        """Width of the states of both directions, side by side."""
        return 2 * self.width

    def initial_carry(self, rows: int, sides: Iterable[str]) -> Carry:
        """States of `rows` rows before their first position: zeros, [rows, n, F] and [rows, n, D]."""
        cell = jnp.zeros((rows, self.layers, self.hidden), jnp.float32)
        state = jnp.zeros((rows, self.layers, self.width), self.dtype)
        return {side: {"cell": cell, "state": state} for side in sides}


class ProjectedLstm(nn.Module):
    """An LSTM with a linear projection of its output and clipped states (TensorFlow's LSTMCell, as bilm-tf uses it).

    Gates in the order input, candidate, forget, output; 1 is added to the forget gate at run time. bilm-tf sets no initial
    values, so they are TensorFlow's default, Glorot's: U(±√(6 / (inputs + outputs))).
    """

    config: BilstmConfig
    reverse: bool
    deterministic: bool

    @nn.compact
    def __call__(self, x: Float[Array, "L B D"], layer: tuple, rows: tuple) -> tuple[Array, tuple]:
        """One layer.

        Args:
            x: the inputs before dropout.
            layer: whether to add the input (after dropout) to the output, and the initial states {cell [B, F], state [B, D]}.
            rows: `recurrent.of_rows`.

        Returns:
            The outputs [L, B, D] for the next layer; and the same outputs with the states after the last position.
        """
        c = self.config
        residual, begin = layer
        both = 2 * c.width + 4 * c.hidden  # TensorFlow's kernel of inputs and states is one matrix
        kernel_init = uniform((6 / both) ** 0.5)
        wx = self.param("input_kernel", param(kernel_init, "embed", None, "hidden"), (c.width, 4, c.hidden))
        wh = self.param("recurrent_kernel", param(kernel_init, "embed", None, "hidden"), (c.width, 4, c.hidden))
        bias = self.param("bias", param(nn.initializers.zeros, None, "hidden"), (4, c.hidden))
        projection_init = uniform((6 / (c.hidden + c.width)) ** 0.5)
        wp = self.param("projection", param(projection_init, "hidden", "embed"), (c.hidden, c.width))
        dtype = between_products(c.dtype)
        flat = lambda w: w.reshape(*w.shape[:-2], 4 * c.hidden)
        wx, wh, wp = (whole(w.astype(dtype), axis) for w, axis in ((wx, 0), (wh, 0), (wp, 1)))
        # bilm-tf applies dropout to the input of each layer, and the residual adds the input after dropout.
        inputs = Dropout(c.dropout)(x, self.deterministic)
        bias = bias + jnp.array([0.0, 0.0, 1.0, 0.0])[:, None]
        gates = of_inputs(inputs, flat(wx), c.dtype) + flat(bias.astype(dtype))
        cell = Cell((0, 2, 1, 3), c.clip, self.reverse)
        outputs, end = lstm(cell, gates, flat(wh), wp, begin, *rows)
        outputs = rows_apart(outputs + jnp.where(residual, inputs, 0), axis=1)
        return outputs, (outputs, end)


class Bilstm(Body):
    """ELMo's biLM (Peters et al. 2018, section 3.1): two independent directions, shared token vectors and softmax."""

    config: BilstmConfig

    def setup(self):
        c = self.config
        if c.token_encoder == "characters":
            self.characters = Characters(c.characters)
            self.token_embedding = None
        else:
            # TensorFlow's default again; bilm-tf uses U(−1, 1) only for characters.
            init = uniform((6 / (c.vocab_size + c.width)) ** 0.5)
            self.token_embedding = self.param("token_embedding", param(init, "vocab", "embed"), (c.vocab_size, c.width))
        self.dropout = Dropout(c.dropout)
        self.pooler = Dense(c.width, ("embed", None), normal(0.02), dtype=c.dtype)
        self.output = TokenPrediction(c.output, c.vocab_size, c.width, c.epsilon, normal(c.width**-0.5), c.dtype)

    def encode(self, view: View, deterministic: bool, carry: Carry) -> tuple[Encoded, Carry]:
        """Hidden states of every layer; without a carry they never cross from one document of a row to the next."""
        sides, carried = {}, {}
        embedded = rows_apart(self._embed(view).transpose(1, 0, 2), axis=1)
        for side in carry or self.config.sides:
            layers, end = self._stack(embedded, view, side, deterministic, carry)
            sides[side] = tuple(layer.transpose(1, 0, 2) for layer in (embedded, *layers))
            carried |= {side: to_carry(end, carry[side])} if carry else {}
        # Once for all logits of a position: a sampled softmax computes them in two parts.
        dropped = {side: self.dropout(layers[-1], deterministic) for side, layers in sides.items()}
        if len(sides) == 2:
            sides["both"] = tuple(jnp.concatenate(pair, -1) for pair in zip(sides["forward"], sides["backward"]))
            dropped["both"] = jnp.concatenate([dropped["forward"], dropped["backward"]], -1)
        return Encoded(**sides, dropped=dropped), carried

    def _embed(self, view: View) -> Float[Array, "B L D"]:
        if self.config.token_encoder == "characters":
            return self.characters(view["characters"])
        return lookup(self.token_embedding.astype(between_products(self.config.dtype)), view["tokens"])

    @nn.compact
    def _stack(self, embedded: Float[Array, "L B D"], view: View, side: str, deterministic: bool, carry: Carry):
        """The output of each layer of one direction, and the states at the end of its rows ([B, n, ...])."""
        c = self.config
        reverse = side == "backward"
        begin = begin_with(c, carry, side, view)
        layers_first = lambda tree: jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), tree)
        stack = stacked(ProjectedLstm, c.layers, c.remat, c.scan_layers)(c, reverse, deterministic, name=side)
        residual = (jnp.arange(c.layers) > 0) & c.skip_connections
        rows = of_rows(view, reverse, stateful=bool(carry))
        _, (outputs, end) = stack(embedded, (residual, layers_first(begin)), rows)
        return list(outputs), layers_first(end)

    def pool(self, encoded: Encoded, view: View, documents: int | None = None) -> Float[Array, "B ... D"]:
        """tanh of a dense layer on a text's [forward state of the last token; backward state of the first]."""
        sides = [s for s in ("forward", "backward") if getattr(encoded, s) is not None]
        ends = [summary(getattr(encoded, side)[-1], side, view, documents) for side in sides]
        return jnp.tanh(self.pooler(jnp.concatenate(ends, -1)))
