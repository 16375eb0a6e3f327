"""The transformer body of BERT, GPT and their successors: one stack of blocks in which every part is a config value.

Letters: B batch, L length, N = B·L rows, D model width, H heads, K head width, F feed-forward width, V vocabulary, k buckets on
either side. Parameters of the blocks are stacked along a first axis `layers`, both for a loop and for unrolled blocks.

A view can set its own order in which positions see each other, row by row: `order` and `shown_at`, int32 [B, L] (`order_mask`).
All zeros give BERT's attention, each position's own number left-to-right attention; rows of both kinds can share a batch.
"""

import dataclasses
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Bool, Float, Int

from bertlab.models.attention import Sight, Window, attend, heads_apart, heads_together
from bertlab.models.base import (
    ACTIVATIONS,
    Body,
    Carry,
    Dense,
    Dropout,
    Encoded,
    Norm,
    OutputConfig,
    Shape,
    TokenPrediction,
    View,
    between_products,
    einsum,
    flattened,
    float8_product,
    lookup,
    normal,
    param,
    positions_apart,
    product,
    rows_apart,
    stacked,
    truncated_normal,
    whole,
)

BUCKETS, DISTANCE = 32, 128  # of T5's relative positions
FARTHEST = 512  # of DeBERTa's: distances from this one on share the last bucket
_SIDE = {"bidirectional": "both", "left-to-right": "forward", "right-to-left": "backward"}


@dataclasses.dataclass(frozen=True)
class TransformerConfig(Shape):
    """Shape of a transformer body; the published models are sets of these values (`bertlab.models.presets`).

    Attributes:
        direction: "bidirectional", "left-to-right" or "right-to-left".
        activation: of the feed-forward layers and the output transform, a key of ACTIVATIONS.
        gated: multiply the feed-forward's activation by a second projection (Shazeer 2020).
        norm: "layer_norm" or "rms_norm".
        norm_placement: "post", after each residual sum (BERT, GPT-1), or "pre", before each sublayer (GPT-2).
        first_norm: pre: a norm before the first block's attention too; ModernBERT has none (its scale is then not used).
        final_norm: a norm after the last block.
        embedding_norm: a norm after the summed embeddings.
        position_encoding: "learned"; "sinusoidal", added to the embeddings (Vaswani et al. 2017, section 3.5); "rotary" (Su et
            al. 2021); "relative", a bias of each head's scores by the distance's bucket, the same in all layers (Raffel et al.
            2020, section 2.1); "disentangled", scores of each layer's queries and keys with those of a table of distances
            (`Attention`; He et al. 2021); or "none".
        position_buckets: k, disentangled: the table has 2k rows (DeBERTa-v3: 256; GPT-BERT: 32).
        position_offset: added to learned positions (RoBERTa: 2).
        rotary_base, rotary_base_local: θ of layers that see everything and of layers that see a window.
        local_window: a position of a local layer sees half of it to either side; 0: no layer is local.
        global_every: layers 0, n, 2n, ... are not local (ModernBERT: every third).
        segments: rows of the segment embedding; 0 for none; 1: the same for all tokens (RoBERTa).
        truncated_init: initial values from a truncated normal (BERT) or a plain one (GPT).
        init_stddev: its deviation.
        base_width: the width that learning rates and `init_stddev` are meant for; 0: this one. Another width is scaled by μP
            (`bertlab.train.width`), under which the best rate stays about the same. Keep F / D and the width of a head, so
            that wider models have more heads.
        scaled_residual_init: initial kernels that write to the residual are smaller by √(2·layers) (GPT-2).
        remat: "none", "dots" or "full": what the backward pass recomputes.
        scan_layers: run layers in a loop, or unrolled; None: what suits the device.
        attention: one of `attention.BACKENDS`.
        products: of the blocks' kernels: "as_dtype", or "float8" (`base.float8_product`).
    """

    layers: int
    width: int
    heads: int
    hidden: int
    max_positions: int
    vocab_size: int
    direction: str
    activation: str
    gated: bool
    norm: str
    norm_placement: str
    first_norm: bool
    final_norm: bool
    embedding_norm: bool
    epsilon: float
    use_bias: bool
    position_encoding: str
    position_buckets: int
    position_offset: int
    rotary_base: float
    rotary_base_local: float
    local_window: int
    global_every: int
    segments: int
    truncated_init: bool
    init_stddev: float
    base_width: int
    scaled_residual_init: bool
    output: OutputConfig
    dropout: float
    remat: str
    scan_layers: bool | None
    attention: str
    products: str
    dtype: jnp.dtype

    @property
    def local_layers(self) -> int:
        """How many layers see a window only."""
        return self.layers - len(range(0, self.layers, self.global_every)) if self.local_window else 0

    @property
    def times_base(self) -> float:
        """1 without a `base_width`."""
        return self.width / self.base_width if self.base_width else 1.0

    @property
    def multiply(self):
        """The product of activations and a block's kernel."""
        return float8_product if self.products == "float8" else product

    @property
    def init(self):
        """Initialiser of every kernel and embedding table."""
        return (truncated_normal if self.truncated_init else normal)(self.init_stddev)

    @property
    def residual_init(self):
        """Initialiser of the kernels whose product is added to the residual."""
        scale = (2 * self.layers) ** -0.5 if self.scaled_residual_init else 1.0
        return (truncated_normal if self.truncated_init else normal)(self.init_stddev * scale)

    def flops_per_token(self, seq_len: int, sides: Iterable[str] = ("both",)) -> float:
        """Forward and backward FLOPs of the body per position, attention in full: 6·layers·(4D² + 2·D·F) + 12·layers·D·L.

        Disentangled positions add 12·layers·D·(2L − 1): a query and a key of each token with every distance. Not counted is
        what is done once for a whole batch, the table's own queries and keys.
        """
        products = 3 if self.gated else 2
        distances = 2 * seq_len - 1 if self.position_encoding == "disentangled" else 0
        return 6 * self.layers * (4 * self.width**2 + products * self.width * self.hidden) + 12 * self.layers * self.width * (
            seq_len + distances
        )

    def flops_outside_windows(self, seq_len: int) -> float:
        """Of `flops_per_token`, the scores that local layers' windows hide, the mean over a row's positions.

        What a direction hides counts as visible, as in all layers.
        """
        reach = min(self.local_window // 2, seq_len - 1)
        visible = 2 * reach + 1 - reach * (reach + 1) / seq_len  # fewer at a row's ends
        return 12 * self.local_layers * self.width * (seq_len - visible)

    def flops_per_prediction(self) -> float:
        """Forward and backward FLOPs of one row of logits, with the transform before it."""
        return super().flops_per_prediction() + (6 * self.width**2 if self.output.transform else 0)


def attention_mask(documents: Int[Array, "B L"], direction: str) -> Bool[Array, "B 1 L L"]:
    """Which key (last axis) each query (axis 2) may attend to: its own document, and not against the direction.

    Padding (document 0) attends only to padding, so no row of the softmax is empty.
    """
    mask = documents[:, :, None] == documents[:, None, :]
    length = documents.shape[1]
    if direction == "left-to-right":
        mask &= jnp.tril(jnp.ones((length, length), bool))
    elif direction == "right-to-left":
        mask &= jnp.triu(jnp.ones((length, length), bool))
    return mask[:, None]


def order_mask(order: Int[Array, "B L"], shown_at: Int[Array, "B L"]) -> Bool[Array, "B 1 L L"]:
    """Which key each query may attend to in a view's own order: position i sees j if shown_at[j] ≤ order[i], and itself.

    It is combined with `attention_mask`: it only removes positions that document and direction allow. So use it with
    bidirectional bodies. Every position sees itself, padding too, so no row of the softmax is empty.

    In the next layer, i also sees through j what j has seen. Nothing leaks if order[j] ≤ shown_at[j] everywhere (a view without
    `shown_at` has shown_at = order): i then sees itself and positions shown at order[i] or before.
    """
    itself = jnp.eye(order.shape[1], dtype=bool)
    return ((shown_at[:, None, :] <= order[:, :, None]) | itself)[:, None]


def window_mask(positions: Int[Array, "B L"], window: int) -> Bool[Array, "B 1 L L"]:
    """Positions at most half a window apart, counted in their document and not in the row."""
    return (jnp.abs(positions[:, :, None] - positions[:, None, :]) <= window // 2)[:, None]


def rotary_angles(positions: Int[Array, "B L"], head_width: int, base: float) -> Float[Array, "B L 1 K/2"]:
    """Angle of each pair of coordinates: position · base^(−2i/K) (Su et al. 2021, section 3.2.2)."""
    rates = base ** (-jnp.arange(0, head_width, 2, dtype=jnp.float32) / head_width)
    return positions[:, :, None, None].astype(jnp.float32) * rates


def rotate(x: Float[Array, "B L ... K"], angles: Float[Array, "B L ... K/2"]) -> Float[Array, "B L ... K"]:
    """Rotates coordinates i and i + K/2 by the pair's angle."""
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def sinusoids(positions: Int[Array, "B L"], width: int) -> Float[Array, "B L D"]:
    """sin(position / 10000^(2i/D)) in coordinate 2i, the cosine in 2i + 1 (Vaswani et al. 2017, section 3.5)."""
    angles = rotary_angles(positions, width, 10_000.0)
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], -1).reshape(*positions.shape, -1)[..., :width]


def distance_buckets(length: int, both_sides: bool) -> Int[np.ndarray, "L L"]:
    """The bucket of each key (last axis) seen from each query (Raffel et al. 2020, section 2.1; transformers' T5 has the same).

    Distances below half of a side's buckets have their own; longer ones share, in steps that grow up to DISTANCE. With both
    sides, keys after the query have the upper half of the BUCKETS; with one, its keys have all.
    """
    ahead = np.arange(length)[None] - np.arange(length)[:, None]
    distance = np.abs(ahead)
    buckets = BUCKETS // 2 if both_sides else BUCKETS
    exact = buckets // 2
    share = np.log(np.maximum(distance, 1) / exact) / np.log(DISTANCE / exact)
    far = np.minimum(exact + (share * (buckets - exact)).astype(np.int64), buckets - 1)
    return np.where(distance < exact, distance, far) + np.where(both_sides & (ahead > 0), buckets, 0)


def log_buckets(length: int, buckets: int) -> Int[np.ndarray, "2*L-1"]:
    """The row of DeBERTa-v2's table [2k, D] of each distance, query minus key, from 1 − L to L − 1.

    Row k is distance 0. Distances up to k/2 have their own rows; longer ones share, in steps that grow up to FARTHEST.
    """
    distance = np.arange(1 - length, length)
    own, far = buckets // 2, np.abs(distance)
    share = np.log(np.maximum(far, own) / own) / np.log((FARTHEST - 1) / own)
    bucket = np.where(far <= own, far, own + np.ceil(share * (own - 1)).astype(np.int64))
    return np.clip(buckets + np.sign(distance) * bucket, 0, 2 * buckets - 1)


def by_distance(x: Float[Array, "... L 2*L-1"]) -> Float[Array, "... L L"]:
    """Column b of row a is x[a, b − a + L − 1]: each row begins one further to the left, which needs no gathering."""
    length = x.shape[-2]
    rows = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)]).reshape(*x.shape[:-2], -1)
    return rows[..., length - 1 : -1].reshape(*x.shape[:-2], length, -1)[..., :length]


class Attention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2) over flattened rows.

    With disentangled positions (He et al. 2021, equation 4) the score of query i and key j is

        (q_i·k_j + q_i·k(δ) + q(δ)·k_j) / √(3K)

    where q(δ) and k(δ) are made of row δ = δ(i, j) of a table of distances by the layer's own projections, with dropout of
    the row. It is the variant of DeBERTa-v2 and v3, in the switches of their released configs: share_att_key=True (v1 has
    projections of its own for the table), pos_att_type=c2p|p2c (v1 too), position_buckets=k (`log_buckets`; v1 cuts
    distances at k) and norm_rel_ebd=layer_norm (v1 has no norm of the table). As in the released code of all versions, the
    last term has δ(i, j), where the paper has δ(j, i). Tokens have no absolute positions (position_biased_input=False).
    DeBERTa's enhanced mask decoder, which adds them before the output layer, is not part of it, nor v2's convolution.
    """

    config: TransformerConfig
    deterministic: bool

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "N D"],
        sight: Sight,
        angles: Float[Array, "B L 1 K/2"] | None,
        table: Float[Array, "2*k D"] | None = None,
    ) -> Float[Array, "N D"]:
        """Projected sums of the visible values; `angles` rotate queries and keys, and `table` has the distances.

        Where the mesh divides positions, each device gets its heads' queries, keys and values of whole rows, and then all
        heads' sums of its positions, by two exchanges of all to all (Jacobs et al. 2023, "DeepSpeed Ulysses").
        """
        c = self.config
        batch, length, head_width = sight.mask.shape[0], sight.mask.shape[-1], c.width // c.heads
        kernel = self.param("qkv_kernel", param(c.init, "embed", None, "heads", None), (c.width, 3, c.heads, head_width))
        bias = None
        if c.use_bias:
            bias = self.param("qkv_bias", param(nn.initializers.zeros, None, "heads", None), (3, c.heads, head_width))
        biased = lambda y: y if bias is None else y + bias[: y.shape[1]].astype(y.dtype)
        qkv = biased(c.multiply(x, kernel, c.dtype)).reshape(batch, length, 3, c.heads, head_width)
        if angles is not None:
            turned = rotate(qkv[:, :, :2], angles[:, :, None])
            qkv = jnp.concatenate([turned, qkv[:, :, 2:]], axis=2)
        qkv = heads_apart(qkv, 3, positions=1)
        if table is not None:
            rows = log_buckets(length, c.position_buckets)
            seen = Dropout(c.dropout, deterministic=self.deterministic, name="table_dropout")(table[rows[0] : rows[-1] + 1])
            places = heads_apart(biased(product(seen, kernel[:, :2], c.dtype))[rows - rows[0]], 2)
            of_queries = jnp.array([3**-0.5, 1, 1], qkv.dtype)[:, None, None]
            qkv, places = qkv * of_queries, places * of_queries[:2]
            sight = dataclasses.replace(sight, bias=position_scores(qkv, places, c.dtype))
        drop = Dropout(c.dropout, deterministic=False) if c.dropout and not self.deterministic else None
        context = attend(c.attention, qkv, sight, drop, c.dtype)
        context = heads_together(context).reshape(*x.shape[:-1], c.heads, head_width)
        out_kernel = self.param("out_kernel", param(c.residual_init, "heads", None, "embed"), (c.heads, head_width, c.width))
        out = c.multiply(context, out_kernel, c.dtype, axes=2)
        if c.use_bias:
            out = out + self.param("out_bias", param(nn.initializers.zeros, "embed"), (c.width,)).astype(out.dtype)
        return out


def position_scores(
    qkv: Float[Array, "B L 3 H K"], places: Float[Array, "2*L-1 2 H K"], dtype: jnp.dtype
) -> Float[Array, "B H L L"]:
    """Scores of queries with distances' keys and of distances' queries with keys, over √K.

    Args:
        qkv: of the tokens.
        places: queries and keys of the distances, query minus key, from 1 − L to L − 1.
        dtype: of the products; they are summed in float32.
    """
    scores = lambda tokens, of: by_distance(einsum("blhk,dhk->bhld", tokens, of, dtype, jnp.float32))
    to_position = scores(qkv[:, :, 0], places[::-1, 1])
    to_content = scores(qkv[:, :, 1], places[:, 0])
    return (to_position + to_content.swapaxes(2, 3)) / qkv.shape[-1] ** 0.5


class Block(nn.Module):
    """Attention and feed-forward, each added to its input; norms before them (pre) or after the sum (post)."""

    config: TransformerConfig
    deterministic: bool

    @nn.compact
    def __call__(self, x: Float[Array, "N D"], layer: tuple, views) -> tuple[Float[Array, "N D"], Array]:
        """One layer.

        Args:
            x: the residual stream.
            layer: whether it is the first, and whether it attends to all visible positions or to a window.
            views: (mask, angles) for a layer that sees all, and for one that sees a window (or None); `Sight.documents`,
                `Sight.bias` and the table of distances (or None).

        Returns:
            The new residual stream, twice: as the scan's carry and as its output.
        """
        c = self.config
        norm = lambda name: Norm(c.epsilon, c.norm, c.use_bias, name=name)
        dropout = Dropout(c.dropout, deterministic=self.deterministic)
        is_first, sees_all = layer
        everything, window, documents, bias, table = views
        mask, angles = (
            everything if window is None else jax.tree.map(lambda a, b: jnp.where(sees_all, a, b), everything, window)
        )
        seen = None if window is None else Window(c.local_window // 2, ~sees_all, c.local_layers, c.layers)
        sight = Sight(mask, documents, c.direction, bias, seen)
        attend_to = Attention(c, self.deterministic, name="attention")
        attention = lambda x: attend_to(x, sight, angles, table)
        if c.norm_placement == "pre":
            normed = norm("attention_norm")(x)
            normed = normed if c.first_norm else jnp.where(is_first, x, normed)
            x = x + dropout(attention(normed))
            x = x + dropout(self._feed_forward(norm("feed_forward_norm")(x)))
        else:
            x = norm("attention_norm")(x + dropout(attention(x)))
            x = norm("feed_forward_norm")(x + dropout(self._feed_forward(x)))
        x = rows_apart(x)
        return x, x

    def _feed_forward(self, x: Float[Array, "N D"]) -> Float[Array, "N D"]:
        """Two dense layers with an activation between them, gated or not."""
        c = self.config
        dense = lambda name, width, axes, init: Dense(width, axes, init, c.use_bias, c.dtype, c.multiply, name=name)
        hidden = ACTIVATIONS[c.activation](dense("up", c.hidden, ("embed", "hidden"), c.init)(x))
        if c.gated:
            hidden = hidden * dense("gate", c.hidden, ("embed", "hidden"), c.init)(x)
        return dense("down", c.width, ("hidden", "embed"), c.residual_init)(hidden)


class Transformer(Body):
    """BERT (Devlin et al. 2018), GPT (Radford et al. 2018) and later models; `TransformerConfig` has their differences."""

    config: TransformerConfig

    def setup(self):
        c = self.config
        table = lambda rows, axis: (param(c.init, axis, "embed"), (rows, c.width))
        self.token_embedding = self.param("token_embedding", *table(c.vocab_size, "vocab"))
        if c.position_encoding == "learned":
            self.position_embedding = self.param("position_embedding", *table(c.max_positions + c.position_offset, None))
        self._setup_distances()
        if c.segments:
            self.segment_embedding = self.param("segment_embedding", *table(c.segments, None))
        if c.embedding_norm:
            self.embedding_norm = Norm(c.epsilon, c.norm, c.use_bias)
        if c.final_norm:
            self.final_norm = Norm(c.epsilon, c.norm, c.use_bias)
        self.dropout = Dropout(c.dropout)
        self.pooler = Dense(c.width, ("embed", None), c.init, c.use_bias, c.dtype)
        self.output = TokenPrediction(
            c.output, c.vocab_size, c.width, c.epsilon, c.init, c.dtype, c.norm, c.use_bias, c.activation, c.times_base
        )

    def _setup_distances(self):
        """What all blocks know of distances."""
        c = self.config
        if c.position_encoding == "relative":
            self.relative_bias = self.param("relative_bias", param(c.init, None, "heads"), (BUCKETS, c.heads))
        if c.position_encoding == "disentangled":
            shape = (2 * c.position_buckets, c.width)
            self.relative_embedding = self.param("relative_embedding", param(c.init, None, "embed"), shape)
            self.relative_norm = Norm(c.epsilon, c.norm, c.use_bias)

    def encode(self, view: View, deterministic: bool, carry: Carry) -> tuple[Encoded, Carry]:
        """Hidden states of every layer, on the direction's only side; nothing is carried."""
        c = self.config
        batch, length = view["tokens"].shape
        x = rows_apart(flattened(self.embed(view, deterministic)))
        layers = (x, *self._blocks(x, view, deterministic))
        if c.final_norm:
            layers = (*layers[:-1], self.final_norm(layers[-1]))
        layers = tuple(layer.reshape(batch, length, c.width) for layer in layers)
        return Encoded(**{_SIDE[c.direction]: layers}), carry

    def embed(self, view: View, deterministic: bool) -> Float[Array, "B L D"]:
        """The input of the first block: the sum of the embeddings, with a norm if the config has one, and dropout."""
        c = self.config
        field = lambda name: positions_apart(view[name])
        x = lookup(self.token_embedding.astype(between_products(c.dtype)), field("tokens"))
        if c.position_encoding == "learned":
            x = x + lookup(self.position_embedding.astype(between_products(c.dtype)), field("positions") + c.position_offset)
        if c.position_encoding == "sinusoidal":
            x = x + sinusoids(field("positions"), c.width).astype(x.dtype)
        if c.segments:
            segments = field("segments") if c.segments > 1 else jnp.zeros_like(field("segments"))
            x = x + lookup(self.segment_embedding.astype(between_products(c.dtype)), segments)
        if c.embedding_norm:
            x = self.embedding_norm(x)
        return self.dropout(x, deterministic)

    @nn.compact
    def _blocks(self, x: Float[Array, "N D"], view: View, deterministic: bool) -> list[Float[Array, "N D"]]:
        """The output of each block."""
        c = self.config
        mask = attention_mask(view["documents"], c.direction)
        if "order" in view:
            mask &= order_mask(view["order"], view.get("shown_at", view["order"]))
        angles = lambda base: rotary_angles(positions_apart(view["positions"]), c.width // c.heads, base)
        rotary = c.position_encoding == "rotary"
        everything = (mask, angles(c.rotary_base) if rotary else None)
        window = None
        if c.local_window:
            local = mask & window_mask(view["positions"], c.local_window)
            window = (local, angles(c.rotary_base_local) if rotary else None)
        blocks = stacked(Block, c.layers, c.remat, c.scan_layers)(c, deterministic, name="blocks")
        number = jnp.arange(c.layers)
        documents = None if "order" in view else view["documents"]
        bias = table = None
        # A document's tokens are neighbours in its row, so indices serve as positions.
        if c.position_encoding == "relative":
            buckets = distance_buckets(mask.shape[-1], c.direction == "bidirectional")
            bias = heads_apart(jnp.moveaxis(self.relative_bias[buckets], -1, 0)[None], 1)
        if c.position_encoding == "disentangled":
            table = self.relative_norm(whole(self.relative_embedding, 1))
        _, outputs = blocks(x, (number == 0, number % c.global_every == 0), (everything, window, documents, bias, table))
        return list(outputs)
