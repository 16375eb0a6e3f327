"""The transformer body of BERT, GPT and their successors; every choice is a value of its shape.

Letters: B batch, L length, N = B·L positions, D model width, H heads, K head width, F feed-forward
width, V vocabulary. Parameters of the blocks are stacked along a first axis "layers".
"""

import dataclasses
import pkgutil
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from bertlab.errors import UserError
from bertlab.models.attention import (
    attend,
    attention_mask,
    attention_rule,
    order_mask,
    refusal,
    window_mask,
)
from bertlab.models.base import Body, Carry, Encoded, Shape, View
from bertlab.models.layers import (
    ACTIVATIONS,
    Dropout,
    OutputLayer,
    lookup,
    normal,
    param,
    platform,
    shard_batch,
    stacked,
    truncated_normal,
)
from bertlab.models.positions import (
    BUCKETS,
    ENCODINGS,
    distance_buckets,
    rotary_angles,
    rotate,
    sinusoids,
)

SIDE = {"bidirectional": "both", "left-to-right": "forward", "right-to-left": "backward"}


@dataclasses.dataclass(frozen=True)
class TransformerShape(Shape):
    """Shape of a transformer body, by default GPT-1's; `presets` has the published ones."""

    layers: int
    width: int
    heads: int
    hidden: int  # F
    vocab_size: int
    direction: str  # "bidirectional", "left-to-right" or "right-to-left"
    dtype: jnp.dtype
    max_positions: int = 512  # rows of the table of learned positions
    activation: str = "gelu_tanh"  # in feed-forward layers and the output's transform
    gated: bool = False  # multiplies that activation by a second projection (Shazeer 2020)
    norm: str = "layer_norm"  # or "rms_norm"
    norm_placement: str = "post"  # after each residual sum (BERT, GPT-1); "pre": before (GPT-2)
    first_norm: bool = True  # pre: a norm before the first attention too (not in ModernBERT)
    final_norm: bool = False  # a norm after the last block
    embedding_norm: bool = False  # a norm after the summed embeddings
    epsilon: float = 1e-5
    use_bias: bool = True  # of dense layers and norms
    # "learned"; "sinusoidal" (Vaswani et al. 2017); "rotary" (Su et al. 2021); "relative", each
    # head's bias by distance, the same in all layers (Raffel et al. 2020); "none"; or
    # "module:Class" (`positions`).
    position_encoding: str = "learned"
    position_buckets: int = 256  # for outside encodings
    position_offset: int = 0  # added to learned positions (RoBERTa: 2)
    rotary_base: float = 10_000.0  # for layers that see everything
    rotary_base_local: float = 10_000.0  # for local ones
    local_window: int = 0  # positions a local layer sees, both sides together; 0: none is local
    global_every: int = 1  # layers 0, n, 2n, ... are not local (ModernBERT: 3)
    segments: int = 0  # rows of the segment embedding; 1: the same for all tokens (RoBERTa)
    truncated_init: bool = False  # normal, truncated at two deviations (BERT) or not (GPT)
    init_stddev: float = 0.02
    base_width: int = 0  # the width that rates and `init_stddev` are meant for; 0: this one
    scaled_residual_init: bool = False  # 1 / sqrt(2 layers) for kernels that write to the residual
    output_transform: bool = False
    tied: bool = True
    output_bias: bool = False
    dropout: float = 0.1
    remat: str = "none"  # see `layers.stacked`
    scan_layers: bool | None = None
    attention: str = "auto"  # `attention_rule`; "xla", "cudnn" or "module:function"

    @property
    def head_width(self) -> int:
        """K."""
        return self.width // self.heads

    @property
    def times_base(self) -> float:
        """The width over the base width."""
        return self.width / self.base_width if self.base_width else 1.0

    @property
    def longest(self) -> int:
        """The most positions of a text: the rows of a table, if there is one."""
        return self.max_positions if self.position_encoding == "learned" else Shape.longest

    @property
    def initializer(self) -> nn.initializers.Initializer:
        """For kernels and embedding tables."""
        return (truncated_normal if self.truncated_init else normal)(self.init_stddev)

    @property
    def residual_initializer(self) -> nn.initializers.Initializer:
        """For kernels whose product is added to the residual."""
        scale = (2 * self.layers) ** -0.5 if self.scaled_residual_init else 1.0
        return dataclasses.replace(self, init_stddev=self.init_stddev * scale).initializer

    @property
    def outside_positions(self):
        """The class of an outside position encoding (see `positions`), or None."""
        inside = self.position_encoding in ENCODINGS
        return None if inside else pkgutil.resolve_name(self.position_encoding)


class Sight(NamedTuple):
    """What a layer's positions see, and the angles of rotary positions or None."""

    mask: Bool[Array, "B 1 L L"]
    angles: Float[Array, "B L 1 K/2"] | None


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2.2)."""

    shape: TransformerShape

    @nn.compact
    def __call__(self, x: Float[Array, "N D"], sight: Sight, positions) -> Float[Array, "N D"]:
        """Projected means of the visible values; x is the residual stream, or its norm, and
        `positions` relative positions' bias [1, H, L, L], or an outside encoding's arrays."""
        shape = self.shape
        batch, length = sight.mask.shape[0], sight.mask.shape[-1]
        size = (shape.width, 3, shape.heads, shape.head_width)
        kernel = self.param(
            "qkv_kernel", param(shape.initializer, "embed", None, "heads", None), size
        )
        kernel, bias = kernel.astype(shape.dtype), jnp.zeros(size[1:], shape.dtype)
        if shape.use_bias:
            bias_init = param(nn.initializers.zeros, None, "heads", None)
            bias = self.param("qkv_bias", bias_init, size[1:]).astype(shape.dtype)

        def project(states):
            return jnp.tensordot(states.astype(shape.dtype), kernel[:, :2], 1) + bias[:2]

        qkv = jnp.tensordot(x.astype(shape.dtype), kernel, 1) + bias
        query, key, value = jnp.moveaxis(qkv.reshape(batch, length, *size[1:]), 2, 0)
        if sight.angles is not None:
            query, key = rotate(query, sight.angles), rotate(key, sight.angles)
        score_bias = positions
        if shape.outside_positions is not None:
            score = shape.outside_positions.score
            query, key, score_bias = score(shape, positions, query, key, project)
        implementation, _ = attention_rule(shape, length, platform())
        if implementation == "cudnn" and (reason := refusal(shape, length)):
            raise UserError(f"config.model.attention=cudnn: {reason}; set it to auto")
        context = attend(
            implementation, query, key, value, sight.mask, score_bias, Dropout(shape.dropout)
        )
        out_init = param(shape.residual_initializer, "heads", None, "embed")
        out_kernel = self.param("out_kernel", out_init, (*size[2:], shape.width))
        context = context.reshape(batch * length, *size[2:])
        out = jnp.tensordot(context, out_kernel.astype(shape.dtype), 2)
        if shape.use_bias:
            out_bias = self.param("out_bias", param(nn.initializers.zeros, "embed"), (shape.width,))
            out = out + out_bias.astype(out.dtype)
        return out


class Block(nn.Module):
    """Attention and feed-forward, each added to its input; norms before (pre) or after (post)."""

    shape: TransformerShape

    @nn.compact
    def __call__(self, x: Float[Array, "N D"], layer: tuple, shared: tuple) -> tuple[Array, Array]:
        """The new residual stream, twice: for the next layer, and to keep.

        `layer` is whether it is the first, and whether it is local; `shared` the sight of layers
        that see everything, that of local ones, and `positions`.
        """
        shape = self.shape
        is_first, is_local = layer
        sight, local_sight, positions = shared
        if local_sight is not None:
            sight = jax.tree.map(lambda a, b: jnp.where(is_local, a, b), local_sight, sight)
        attention = Attention(shape, name="attention")
        attention_norm = shape.norm_layer(name="attention_norm")
        feed_forward_norm = shape.norm_layer(name="feed_forward_norm")
        dropout = Dropout(shape.dropout)
        if shape.norm_placement == "pre":
            normed = attention_norm(x)
            normed = normed if shape.first_norm else jnp.where(is_first, x, normed)
            x = x + dropout(attention(normed, sight, positions))
            x = x + dropout(self._feed_forward(feed_forward_norm(x)))
        else:
            x = attention_norm(x + dropout(attention(x, sight, positions)))
            x = feed_forward_norm(x + dropout(self._feed_forward(x)))
        x = shard_batch(x)
        return x, x

    def _feed_forward(self, x: Float[Array, "N D"]) -> Float[Array, "N D"]:
        """Two dense layers with an activation between them, gated or not."""
        shape = self.shape
        up = shape.hidden, ("embed", "hidden"), shape.initializer
        hidden = ACTIVATIONS[shape.activation](shape.dense(*up, name="up")(x))
        if shape.gated:
            hidden = hidden * shape.dense(*up, name="gate")(x)
        down = shape.width, ("hidden", "embed"), shape.residual_initializer
        return shape.dense(*down, name="down")(hidden)


class Transformer(Body):
    """BERT (Devlin et al. 2018), GPT (Radford et al. 2018) and their successors."""

    shape: TransformerShape

    def setup(self):
        shape = self.shape
        self.token_embedding = self._table("token_embedding", "vocab", shape.vocab_size)
        if shape.position_encoding == "learned":
            rows = shape.max_positions + shape.position_offset
            self.position_embedding = self._table("position_embedding", None, rows)
        if shape.segments:
            self.segment_embedding = self._table("segment_embedding", None, shape.segments)
        if shape.embedding_norm:
            self.embedding_norm = shape.norm_layer()
        self.dropout = Dropout(shape.dropout)
        self.pooler = shape.dense(shape.width, ("embed", None), shape.initializer)
        self.output = OutputLayer(shape, shape.initializer)

    def _table(self, name: str, axis: str | None, rows: int) -> Float[Array, "rows D"]:
        init = param(self.shape.initializer, axis, "embed")
        return self.param(name, init, (rows, self.shape.width))

    def encode(self, view: View, carry: Carry | None = None) -> tuple[Encoded, Carry]:
        """Hidden states of every layer, for the direction's one side; nothing is carried."""
        layers = self.run_blocks(self.embed(view), view)
        return Encoded(**{SIDE[self.shape.direction]: layers}), {}

    def embed(self, view: View) -> Float[Array, "B L D"]:
        """The input of the first block: the summed embeddings, normed if so set, after dropout."""
        shape = self.shape
        x = lookup(self.token_embedding, view["tokens"]).astype(shape.dtype)
        if shape.position_encoding == "learned":
            positions = view["positions"] + shape.position_offset
            x = x + lookup(self.position_embedding, positions).astype(x.dtype)
        if shape.position_encoding == "sinusoidal":
            x = x + sinusoids(view["positions"], shape.width).astype(x.dtype)
        if shape.segments:
            segments = view["segments"] if shape.segments > 1 else jnp.zeros_like(view["segments"])
            x = x + lookup(self.segment_embedding, segments).astype(x.dtype)
        if shape.embedding_norm:
            x = self.embedding_norm(x)
        return self.dropout(x)

    @nn.compact
    def run_blocks(self, x: Float[Array, "B L D"], view: View) -> tuple[Float[Array, "B L D"], ...]:
        """The first block's input and each block's output, the last after the final norm if any."""
        shape = self.shape
        size = x.shape
        mask = attention_mask(view["documents"], shape.direction)
        if "order" in view:
            mask &= order_mask(view["order"], view.get("shown_at", view["order"]))
        sight, local_sight = self._sight(mask, view, shape.rotary_base), None
        if shape.local_window:
            mask = mask & window_mask(view["positions"], shape.local_window)
            local_sight = self._sight(mask, view, shape.rotary_base_local)
        positions = None
        if shape.position_encoding == "relative":
            # Neighbours in a document are neighbours in the row, so indices can serve as positions.
            buckets = distance_buckets(size[1], shape.direction == "bidirectional")
            bias_init = param(shape.initializer, None, "heads")
            table = self.param("relative_bias", bias_init, (BUCKETS, shape.heads))
            positions = jnp.moveaxis(table[buckets], -1, 0)[None]
        if shape.outside_positions is not None:
            positions = shape.outside_positions(shape, name="positions")(size[1])
        number = jnp.arange(shape.layers)
        layer = (number == 0, number % shape.global_every != 0)
        blocks = stacked(Block, shape.layers, shape.remat, shape.scan_layers)(shape, name="blocks")
        # As matrices: gradients that sum along two axes take twice as long on a CPU.
        x = shard_batch(x.reshape(-1, shape.width))
        _, outputs = blocks(x, layer, (sight, local_sight, positions))
        layers = [x, *outputs]
        if shape.final_norm:
            final_norm = shape.norm_layer("final_norm")
            layers[-1] = final_norm(layers[-1])
        return tuple(layer.reshape(size) for layer in layers)

    def _sight(self, mask: Bool[Array, "B 1 L L"], view: View, base: float) -> Sight:
        rotary = self.shape.position_encoding == "rotary"
        head_width = self.shape.head_width
        return Sight(mask, rotary_angles(view["positions"], head_width, base) if rotary else None)
