"""The transformer body of BERT and GPT: one stack of post-LayerNorm blocks whose direction is a config value.

Letters: B batch, L length, N = B·L rows, D model width, H heads, K head width, F feed-forward width, V vocabulary.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from bertlab.models.base import (
    Dense,
    Encoded,
    LayerNorm,
    OutputConfig,
    TokenPrediction,
    View,
    lookup,
    normal,
    param,
    rows_apart,
    summary,
    truncated_normal,
)


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Shape of a transformer body.

    Attributes:
        direction: "bidirectional", "left-to-right" or "right-to-left".
        segments: rows of the segment embedding; 0 for none (GPT).
        embedding_norm: LayerNorm after the summed embeddings (BERT yes, GPT no).
        truncated: initial values from a truncated normal (BERT) or a plain one (GPT).
        init_stddev: its deviation; both papers' is 0.02.
    """

    layers: int
    width: int
    heads: int
    hidden: int
    max_positions: int
    vocab_size: int
    direction: str
    segments: int
    embedding_norm: bool
    epsilon: float
    truncated: bool
    init_stddev: float
    output: OutputConfig
    dropout: float
    dtype: jnp.dtype

    @property
    def init(self):
        """Initialiser of every kernel and embedding table."""
        return (truncated_normal if self.truncated else normal)(self.init_stddev)

    def flops_per_token(self, seq_len: int) -> float:
        """Forward and backward FLOPs of the body per position: 6·layers·(4D² + 2·D·F) + 12·layers·D·L."""
        return 6 * self.layers * (4 * self.width**2 + 2 * self.width * self.hidden) + 12 * self.layers * self.width * seq_len

    def flops_per_prediction(self) -> float:
        """Forward and backward FLOPs of one row of logits."""
        return 6 * self.width * (self.vocab_size + (self.width if self.output.transform else 0))


def attention_mask(documents: Int[Array, "B L"], direction: str) -> Bool[Array, "B 1 L L"]:
    """Which key (last axis) each query (axis 2) may attend to: its own document, and not against the direction.

    Padding (document 0) attends to padding alone, so no row of the softmax is empty.
    """
    mask = documents[:, :, None] == documents[:, None, :]
    length = documents.shape[1]
    if direction == "left-to-right":
        mask &= jnp.tril(jnp.ones((length, length), bool))
    elif direction == "right-to-left":
        mask &= jnp.triu(jnp.ones((length, length), bool))
    return mask[:, None]


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2) over flattened rows."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: Float[Array, "N D"], mask: Bool[Array, "B 1 L L"], deterministic: bool) -> Float[Array, "N D"]:
        c = self.config
        batch, length, head_width = mask.shape[0], mask.shape[-1], c.width // c.heads
        kernel = self.param("qkv_kernel", param(c.init, "embed", None, "heads", None), (c.width, 3, c.heads, head_width))
        bias = self.param("qkv_bias", param(nn.initializers.zeros, None, "heads", None), (3, c.heads, head_width))
        qkv = jnp.einsum("nd,dthk->tnhk", x, kernel.astype(c.dtype)) + bias.astype(c.dtype)[:, None]
        query, key, value = qkv.reshape(3, batch, length, c.heads, head_width)
        scores = jnp.einsum("blhk,bmhk->bhlm", query, key, preferred_element_type=jnp.float32) / head_width**0.5
        weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(jnp.float32).min)).astype(c.dtype)
        weights = nn.Dropout(c.dropout)(weights, deterministic)
        context = jnp.einsum("bhlm,bmhk->blhk", weights, value).reshape(batch * length, c.heads, head_width)
        out_kernel = self.param("out_kernel", param(c.init, "heads", None, "embed"), (c.heads, head_width, c.width))
        out_bias = self.param("out_bias", param(nn.initializers.zeros, "embed"), (c.width,))
        return jnp.einsum("nhk,hkd->nd", context, out_kernel.astype(c.dtype)) + out_bias.astype(c.dtype)


class Block(nn.Module):
    """Attention and feed-forward, each added to its input and then normalised (post-LN)."""

    config: TransformerConfig

    @nn.compact
    def __call__(self, x: Float[Array, "N D"], mask: Bool[Array, "B 1 L L"], deterministic: bool) -> Float[Array, "N D"]:
        c = self.config
        dropout = nn.Dropout(c.dropout)
        attended = Attention(c, name="attention")(x, mask, deterministic)
        x = LayerNorm(c.epsilon, name="attention_norm")(x + dropout(attended, deterministic))
        hidden = jax.nn.gelu(Dense(c.hidden, ("embed", "hidden"), c.init, dtype=c.dtype, name="up")(x), approximate=True)
        out = Dense(c.width, ("hidden", "embed"), c.init, dtype=c.dtype, name="down")(hidden)
        return LayerNorm(c.epsilon, name="output_norm")(x + dropout(out, deterministic))


class Transformer(nn.Module):
    """BERT (Devlin et al. 2018) and GPT (Radford et al. 2018) as one body; see `TransformerConfig` for what differs."""

    config: TransformerConfig

    def setup(self):
        c = self.config
        table = lambda rows, axis: (param(c.init, axis, "embed"), (rows, c.width))
        self.token_embedding = self.param("token_embedding", *table(c.vocab_size, "vocab"))
        self.position_embedding = self.param("position_embedding", *table(c.max_positions, None))
        if c.segments:
            self.segment_embedding = self.param("segment_embedding", *table(c.segments, None))
        if c.embedding_norm:
            self.embedding_norm = LayerNorm(c.epsilon)
        self.dropout = nn.Dropout(c.dropout)
        self.blocks = [Block(c, name=f"block_{i}") for i in range(c.layers)]
        self.pooler = Dense(c.width, ("embed", None), c.init, dtype=c.dtype)
        self.output = TokenPrediction(c.output, c.vocab_size, c.epsilon, c.init, c.dtype)

    def encode(self, view: View, deterministic: bool) -> Encoded:
        """Hidden states of every layer, on the one side that the direction gives."""
        c = self.config
        batch, length = view["tokens"].shape
        x = lookup(self.token_embedding.astype(c.dtype), view["tokens"])
        x = x + lookup(self.position_embedding.astype(c.dtype), view["positions"])
        if c.segments:
            x = x + lookup(self.segment_embedding.astype(c.dtype), view["segments"])
        if c.embedding_norm:
            x = self.embedding_norm(x)
        x = rows_apart(self.dropout(x, deterministic).reshape(batch * length, c.width))
        mask = attention_mask(view["documents"], c.direction)
        layers = [x]
        for block in self.blocks:
            layers.append(rows_apart(block(layers[-1], mask, deterministic)))
        layers = tuple(layer.reshape(batch, length, c.width) for layer in layers)
        side = {"bidirectional": "both", "left-to-right": "forward", "right-to-left": "backward"}[c.direction]
        return Encoded(**{side: layers})

    def predict_tokens(self, hidden: Float[Array, "... D"], side: str, deterministic: bool) -> Float[Array, "... V"]:
        """Logits over the vocabulary; tied to the token embeddings."""
        del deterministic
        return self.output(hidden, self.token_embedding, side)

    def pool(self, encoded: Encoded, view: View) -> Float[Array, "B D"]:
        """BERT's pooler: tanh of a dense layer on the first position (read left to right: on the last)."""
        side, layers = encoded.widest()
        return jnp.tanh(self.pooler(summary(layers[-1], side, view)))
