"""ELMo's body: a forward and a backward stack of projected LSTMs over shared token embeddings.

Letters: B batch, L length, D model width (the projection), F cell width, V vocabulary.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from bertlab.models.base import Dense, Encoded, OutputConfig, TokenPrediction, View, lookup, normal, param, rows_apart, summary


@dataclasses.dataclass(frozen=True)
class BilstmConfig:
    """Shape of an ELMo body on token ids.

    Attributes:
        direction: "bidirectional" has both stacks, "left-to-right" and "right-to-left" one.
        clip: bound on cell states and projections (bilm-tf: 3).
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

    def flops_per_token(self, seq_len: int) -> float:
        """Forward and backward FLOPs per position: 6 per weight of the products, D·4F + D·4F + F·D a layer and direction."""
        del seq_len
        return 6 * self.layers * 9 * self.width * self.hidden * (2 if self.direction == "bidirectional" else 1)

    def flops_per_prediction(self) -> float:
        """Forward and backward FLOPs of one row of logits."""
        return 6 * self.width * self.vocab_size


class ProjectedLstm(nn.Module):
    """An LSTM with a linear projection of its output and clipped states (bilm-tf's LSTMCell).

    Gates in the order input, candidate, forget, output; 1 is added to the forget gate at run time.
    """

    config: BilstmConfig

    @nn.compact
    def __call__(self, x: Float[Array, "L B D"], reset: Bool[Array, "L B"], reverse: bool) -> Float[Array, "L B D"]:
        """States of every position; time comes first, as the scan wants it.

        Args:
            x: the inputs.
            reset: true where a document begins in reading order: nothing is carried into that position.
            reverse: read from the last position to the first.
        """
        c = self.config
        kernel_init = normal(c.width**-0.5)
        wx = self.param("input_kernel", param(kernel_init, "embed", None, "hidden"), (c.width, 4, c.hidden))
        wh = self.param("recurrent_kernel", param(kernel_init, "embed", None, "hidden"), (c.width, 4, c.hidden))
        bias = self.param("bias", param(nn.initializers.zeros, None, "hidden"), (4, c.hidden))
        wp = self.param("projection", param(normal(c.hidden**-0.5), "hidden", "embed"), (c.hidden, c.width))
        flat = lambda w: w.astype(c.dtype).reshape(*w.shape[:-2], 4 * c.hidden)
        wh, wp = flat(wh), wp.astype(c.dtype)
        # The input products of all steps at once: only what depends on the state stays inside the scan.
        gates = jnp.einsum("lbd,df->lbf", x, flat(wx)) + flat(bias)
        keep = (~reset).astype(c.dtype)[:, :, None]

        def step(carry, inputs):
            cell, state = carry
            gate, keep_t = inputs
            cell, state = cell * keep_t, state * keep_t
            enter, candidate, forget, leave = jnp.split(gate + state @ wh, 4, axis=-1)
            cell = cell * jax.nn.sigmoid(forget + 1.0) + jax.nn.sigmoid(enter) * jnp.tanh(candidate)
            cell = jnp.clip(cell, -c.clip, c.clip)
            state = jnp.clip((jax.nn.sigmoid(leave) * jnp.tanh(cell)) @ wp, -c.clip, c.clip)
            return (cell, state), state

        batch = x.shape[1]
        start = (jnp.zeros((batch, c.hidden), c.dtype), jnp.zeros((batch, c.width), c.dtype))
        return jax.lax.scan(step, start, (gates, keep), reverse=reverse)[1]


class Bilstm(nn.Module):
    """ELMo's biLM (Peters et al. 2018, section 3.1): two independent directions, shared embeddings and softmax."""

    config: BilstmConfig

    def setup(self):
        c = self.config
        # bilm-tf draws token embeddings uniformly from (-1, 1).
        uniform = lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -1.0, 1.0)
        self.token_embedding = self.param("token_embedding", param(uniform, "vocab", "embed"), (c.vocab_size, c.width))
        self.dropout = nn.Dropout(c.dropout)
        self.stacks = {
            side: [ProjectedLstm(c, name=f"{side}_{i}") for i in range(c.layers)]
            for side, off in (("forward", "right-to-left"), ("backward", "left-to-right"))
            if c.direction != off
        }
        self.pooler = Dense(c.width, ("embed", None), normal(0.02), dtype=c.dtype)
        self.output = TokenPrediction(c.output, c.vocab_size, c.epsilon, normal(c.width**-0.5), c.dtype)

    def encode(self, view: View, deterministic: bool) -> Encoded:
        """Hidden states of every layer; states never cross from one document of a row to the next."""
        documents = view["documents"].T
        border = documents[1:] != documents[:-1]
        edge = jnp.ones_like(border[:1])
        embedded = rows_apart(lookup(self.token_embedding.astype(self.config.dtype), view["tokens"].T), axis=1)
        sides = {}
        for side, stack in self.stacks.items():
            reverse = side == "backward"
            reset = jnp.concatenate([border, edge] if reverse else [edge, border])
            layers = [embedded]
            for i, lstm in enumerate(stack):
                # bilm-tf drops the input of each layer, and the residual adds the dropped input.
                inputs = self.dropout(layers[-1], deterministic)
                outputs = rows_apart(lstm(inputs, reset, reverse), axis=1)
                layers.append(outputs + inputs if i else outputs)
            sides[side] = tuple(layer.transpose(1, 0, 2) for layer in layers)
        if len(sides) == 2:
            sides["both"] = tuple(jnp.concatenate(pair, -1) for pair in zip(sides["forward"], sides["backward"]))
        return Encoded(**sides)

    def predict_tokens(self, hidden: Float[Array, "... D"], side: str, deterministic: bool) -> Float[Array, "... V"]:
        """Logits over the vocabulary from the softmax that both directions share."""
        return self.output(self.dropout(hidden, deterministic), self.token_embedding, side)

    def pool(self, encoded: Encoded, view: View) -> Float[Array, "B D"]:
        """tanh of a dense layer on [forward state of the last token; backward state of the first]."""
        sides = [s for s in ("forward", "backward") if getattr(encoded, s) is not None]
        ends = [summary(getattr(encoded, side)[-1], side, view) for side in sides]
        return jnp.tanh(self.pooler(jnp.concatenate(ends, -1)))
