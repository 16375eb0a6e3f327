"""A transformer of bertlab in PyTorch, for transformers. This file travels beside the weights that bertlab exports.

    AutoModelForMaskedLM.from_pretrained(directory, trust_remote_code=True)

It needs torch and transformers, from 4.51 on, and nothing of bertlab. Config keys have the names of bertlab's `config.model`.
Letters: B batch, L length, D model width, H heads, K head width.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    CausalLMOutput,
    MaskedLMOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

try:
    from transformers import PreTrainedConfig
except ImportError:  # transformers 4
    from transformers import PretrainedConfig as PreTrainedConfig

BUCKETS, DISTANCE = 32, 128  # of relative positions
FARTHEST = 512  # of disentangled positions
ACTIVATIONS = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
}


class BertlabConfig(PreTrainedConfig):
    """Keys of `config.model`; `tie_word_embeddings` is its `tied`, and `pooler` says whether the weights have a pooler."""

    model_type = "bertlab"
    attribute_map = {  # noqa: RUF012
        "hidden_size": "width",
        "num_hidden_layers": "layers",
        "num_attention_heads": "heads",
        "intermediate_size": "hidden",
        "max_position_embeddings": "max_positions",
        "initializer_range": "init_stddev",
    }
    vocab_size: int = 4096
    layers: int = 2
    width: int = 128
    heads: int = 2
    hidden: int = 512
    direction: str = "bidirectional"
    activation: str = "gelu_tanh"
    gated: bool = False
    norm: str = "layer_norm"
    norm_placement: str = "post"
    first_norm: bool = True
    embedding_norm: bool = True
    final_norm: bool = False
    epsilon: float = 1e-12
    use_bias: bool = True
    max_positions: int = 512
    position_encoding: str = "learned"
    position_buckets: int = 256
    position_offset: int = 0
    rotary_base: float = 10_000.0
    rotary_base_local: float = 10_000.0
    local_window: int = 0
    global_every: int = 1
    segments: int = 2
    output_transform: bool = True
    output_bias: bool = True
    tie_word_embeddings: bool = True
    pooler: bool = False
    dropout: float = 0.1
    init_stddev: float = 0.02
    base_width: int = 0
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None


def norm_of(config: BertlabConfig) -> nn.Module:
    """A norm of the config's kind."""
    if config.norm == "rms_norm":
        return nn.RMSNorm(config.width, config.epsilon)
    return nn.LayerNorm(config.width, config.epsilon, bias=config.use_bias)


def angles_of(positions: torch.Tensor, width: int, base: float) -> torch.Tensor:
    """The angle of each pair of coordinates, position · base^(−2i/width): [B, L, width/2]."""
    rates = base ** (-torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width)
    return positions[:, :, None].float() * rates


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates coordinates i and i + K/2 of x [B, H, L, K] by angles [B, 1, L, K/2]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Attention(nn.Module):
    """Multi-head self-attention over the visible positions."""

    def __init__(self, config: BertlabConfig):
        super().__init__()
        self.heads, self.rate = config.heads, config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.use_bias)
        self.out = nn.Linear(config.width, config.width, bias=config.use_bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, visible, rotation, table, bucket):
        """The sums of the visible values, projected.

        Args:
            x: [B, L, D].
            visible: [B, 1, L, L] bool, or [B, H, L, L] a bias of the scores.
            rotation: (cos, sin) or None.
            table: embeddings [2k, D] of disentangled positions, or None.
            bucket: [L, L], the table's row of each query and key.
        """
        query, key, value = self.split(self.qkv(x))
        if rotation is not None:
            query, key = rotate(query, *rotation), rotate(key, *rotation)
        if table is not None:
            there, here, _ = self.split(self.qkv(self.dropout(table))[None])
            query, there = query / 3**0.5, there / 3**0.5
            bucket = bucket.expand(*query.shape[:2], -1, -1)
            scores = (query @ here.mT).gather(-1, bucket) + (key @ there.mT).gather(-1, bucket.mT).mT
            scores = scores / query.shape[-1] ** 0.5
            visible = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        rate = self.rate if self.training else 0.0
        context = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, dropout_p=rate)
        return self.out(context.transpose(1, 2).flatten(2))

    def split(self, x):
        """Queries, keys and values [3, B, H, L, K] of [B, L, 3D]."""
        return x.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)


class Block(nn.Module):
    """Attention and feed-forward, each added to its input; norms before them (pre) or after the sum (post)."""

    def __init__(self, config: BertlabConfig, is_first: bool):
        super().__init__()
        self.bare = is_first and not config.first_norm
        self.pre, self.activation = config.norm_placement == "pre", ACTIVATIONS[config.activation]
        self.attention = Attention(config)
        self.attention_norm, self.feed_forward_norm = norm_of(config), norm_of(config)
        self.up = nn.Linear(config.width, config.hidden, bias=config.use_bias)
        self.gate = nn.Linear(config.width, config.hidden, bias=config.use_bias) if config.gated else None
        self.down = nn.Linear(config.hidden, config.width, bias=config.use_bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, *sight):
        """The next residual stream [B, L, D]; `sight` is the attention's."""
        if self.pre:
            normed = x if self.bare else self.attention_norm(x)
            x = x + self.dropout(self.attention(normed, *sight))
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, *sight)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))

    def feed_forward(self, x):
        """Two dense layers with an activation between them, gated or not."""
        hidden = self.activation(self.up(x))
        return self.down(hidden if self.gate is None else hidden * self.gate(x))


class Output(nn.Module):
    """Hidden states to logits."""

    def __init__(self, config: BertlabConfig):
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.transform = nn.Linear(config.width, config.width, bias=config.use_bias) if config.output_transform else None
        self.transform_norm = norm_of(config) if config.output_transform else None
        self.decoder = nn.Linear(config.width, config.vocab_size, bias=config.output_bias)
        self.divisor = config.width / config.base_width if config.base_width else 1.0

    def forward(self, x):
        """Logits [B, L, V]."""
        x = x if self.transform is None else self.transform_norm(self.activation(self.transform(x)))
        return self.decoder(x / self.divisor)


class BertlabPreTrainedModel(PreTrainedModel):
    """The base of all classes here."""

    config_class = BertlabConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _no_split_modules = ["Block"]  # noqa: RUF012


class BertlabModel(BertlabPreTrainedModel):
    """The body: hidden states, embeddings first and the last one after `final_norm`, and the pooler's output if it has one."""

    def __init__(self, config: BertlabConfig):
        super().__init__(config)
        c, learned = config, config.position_encoding == "learned"
        self.token_embedding = nn.Embedding(c.vocab_size, c.width)
        self.position_embedding = nn.Embedding(c.max_positions + c.position_offset, c.width) if learned else None
        self.segment_embedding = nn.Embedding(c.segments, c.width) if c.segments else None
        self.relative_bias = nn.Embedding(BUCKETS, c.heads) if c.position_encoding == "relative" else None
        disentangled = c.position_encoding == "disentangled"
        self.relative_embedding = nn.Embedding(2 * c.position_buckets, c.width) if disentangled else None
        self.relative_norm = norm_of(c) if disentangled else None
        self.embedding_norm = norm_of(c) if c.embedding_norm else None
        self.blocks = nn.ModuleList(Block(c, number == 0) for number in range(c.layers))
        self.final_norm = norm_of(c) if c.final_norm else None
        self.pooler = nn.Linear(c.width, c.width, bias=c.use_bias) if c.pooler else None
        self.dropout = nn.Dropout(c.dropout)
        self.post_init()

    def get_input_embeddings(self):
        """The token embeddings."""
        return self.token_embedding

    def set_input_embeddings(self, value):
        """Replaces the token embeddings."""
        self.token_embedding = value

    @can_return_tuple
    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        token_type_ids=None,
        position_ids=None,
        inputs_embeds=None,
        output_hidden_states=None,
        causal=False,
        **_,
    ):
        """Encodes rows.

        Args:
            input_ids: [B, L]; or `inputs_embeds` [B, L, D] instead.
            attention_mask: [B, L], 0 for padding; or [B, L, L], the keys (last axis) that each query may see, for packed rows.
            token_type_ids: [B, L], segments; none are zeros.
            position_ids: [B, L]; none count from 0.
            output_hidden_states: whether to return every layer's states.
            causal: whether a bidirectional body is read from left to right, so that no position sees a later one.
        """
        c = self.config
        x = self.token_embedding(input_ids) if inputs_embeds is None else inputs_embeds
        batch, length, _ = x.shape
        zeros = torch.zeros(batch, length, dtype=torch.long, device=x.device)
        positions = zeros + torch.arange(length, device=x.device) if position_ids is None else position_ids
        mask = zeros + 1 if attention_mask is None else attention_mask
        if self.position_embedding is not None:
            x = x + self.position_embedding(positions + c.position_offset)
        if c.position_encoding == "sinusoidal":
            x = x + self.sinusoids(positions).to(x.dtype)
        if self.segment_embedding is not None:
            x = x + self.segment_embedding(zeros if token_type_ids is None or c.segments == 1 else token_type_ids)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        states = [self.dropout(x)]
        everything, window = self.sights(mask, positions, x.dtype, causal)
        table = None if self.relative_norm is None else self.relative_norm(self.relative_embedding.weight)
        distances = (table, None if table is None else self.distance_rows(length))
        for number, block in enumerate(self.blocks):
            sight = everything if number % c.global_every == 0 or not c.local_window else window
            states.append(block(states[-1], *sight, *distances))
        if self.final_norm is not None:
            states[-1] = self.final_norm(states[-1])
        pooled = None if self.pooler is None else torch.tanh(self.pooler(self.summary(states[-1], mask)))
        asked = c.output_hidden_states if output_hidden_states is None else output_hidden_states
        return BaseModelOutputWithPooling(states[-1], pooled, tuple(states) if asked else None)

    def sights(self, mask, positions, dtype, causal):
        """(visible positions, rotation) of layers that see everything, and of those that see a window."""
        c, index = self.config, torch.arange(positions.shape[1], device=positions.device)
        visible = (mask if mask.dim() == 3 else mask[:, None, :].expand(-1, len(index), -1)).bool()
        if c.direction == "left-to-right" or causal:
            visible = visible & (index[None, :] <= index[:, None])
        elif c.direction == "right-to-left":
            visible = visible & (index[None, :] >= index[:, None])
        itself = index[None, :] == index[:, None]  # so that padding sees something, and its states are numbers
        bias = None if self.relative_bias is None else self.distance_bias(len(index)).to(dtype)
        scored = lambda seen: seen if bias is None else bias.masked_fill(~seen, torch.finfo(dtype).min)
        near = (positions[:, :, None] - positions[:, None, :]).abs() <= c.local_window // 2
        return tuple(
            (scored((seen | itself)[:, None]), self.rotation(positions, base, dtype))
            for seen, base in ((visible, c.rotary_base), (visible & near, c.rotary_base_local))
        )

    def distance_bias(self, length):
        """The bias [1, H, L, L] of each head's scores, by the bucket of the distance (T5's)."""
        index = torch.arange(length, device=self.relative_bias.weight.device)
        ahead = index[None, :] - index[:, None]
        both_sides, distance = self.config.direction == "bidirectional", ahead.abs()
        buckets = BUCKETS // 2 if both_sides else BUCKETS
        exact = buckets // 2
        share = (distance.clamp(min=1).double() / exact).log() / math.log(DISTANCE / exact)
        bucket = torch.where(distance < exact, distance, (exact + (share * (buckets - exact)).long()).clamp(max=buckets - 1))
        bucket = bucket + buckets * (both_sides & (ahead > 0))
        return self.relative_bias(bucket).permute(2, 0, 1)[None]

    def distance_rows(self, length):
        """The row of the table of disentangled positions for each query and key, [L, L] (DeBERTa-v2's)."""
        index = torch.arange(length, device=self.relative_embedding.weight.device)
        behind = index[:, None] - index[None, :]
        buckets, distance = self.config.position_buckets, behind.abs()
        own = buckets // 2
        share = (distance.clamp(min=own).double() / own).log() / math.log((FARTHEST - 1) / own)
        bucket = torch.where(distance <= own, distance, own + (share * (own - 1)).ceil().long())
        return (buckets + behind.sign() * bucket).clamp(0, 2 * buckets - 1)

    def sinusoids(self, positions):
        """sin(position / 10000^(2i/D)) in coordinate 2i, the cosine in 2i + 1."""
        angles = angles_of(positions, self.config.width, 10_000.0)
        return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., : self.config.width]

    def rotation(self, positions, base, dtype):
        """Cosines and sines of each pair of coordinates' angle; None without rotary positions."""
        if self.config.position_encoding != "rotary":
            return None
        angles = angles_of(positions, self.config.width // self.config.heads, base)[:, None]
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def summary(self, x, mask):
        """The state [B, D] that has seen a whole row: left to right that of its last token, otherwise that of its first."""
        if self.config.direction != "left-to-right":
            return x[:, 0]
        filled = (mask if mask.dim() == 2 else mask.diagonal(dim1=1, dim2=2)) != 0
        last = x.shape[1] - 1 - filled.flip(1).int().argmax(1)
        return x[torch.arange(len(x), device=x.device), last]


class _WithOutput(BertlabPreTrainedModel):
    """A body with the output layer."""

    _tied_weights_keys = {"output.decoder.weight": "model.token_embedding.weight"}  # noqa: RUF012

    def __init__(self, config: BertlabConfig):
        super().__init__(config)
        self.model, self.output = BertlabModel(config), Output(config)
        self.post_init()

    def get_output_embeddings(self):
        """The layer whose weights may be the token embeddings."""
        return self.output.decoder

    def set_output_embeddings(self, value):
        """Replaces that layer."""
        self.output.decoder = value


class BertlabForMaskedLM(_WithOutput):
    """Logits at each position for the token at this position."""

    @can_return_tuple
    def forward(self, input_ids=None, attention_mask=None, labels=None, num_items_in_batch=None, **given):
        """As `BertlabModel`; labels [B, L], −100 for positions that do not count."""
        encoded = self.model(input_ids, attention_mask, **given)
        logits, loss = self.output(encoded.last_hidden_state), None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.config.vocab_size, num_items_in_batch)
        return MaskedLMOutput(loss, logits, encoded.hidden_states)


class BertlabForCausalLM(_WithOutput, GenerationMixin):
    """Logits at each position for the next token, from those before it; right to left for the previous one, from those after.

    A bidirectional body is read from left to right here, as bertlab scores one that was trained to predict in order (`prefix`,
    `masked_next_token`).
    """

    @can_return_tuple
    def forward(self, input_ids=None, attention_mask=None, labels=None, num_items_in_batch=None, **given):
        """As `BertlabModel`; labels [B, L] are the tokens themselves, −100 for those that do not count."""
        causal = self.config.direction != "right-to-left"
        encoded = self.model(input_ids, attention_mask, causal=causal, **given)
        logits, loss = self.output(encoded.last_hidden_state), None
        if labels is not None:
            turn = (lambda x: x.flip(1)) if self.config.direction == "right-to-left" else lambda x: x
            loss = self.loss_function(turn(logits), turn(labels), self.config.vocab_size, num_items_in_batch)
        return CausalLMOutput(loss, logits, encoded.hidden_states)

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, token_type_ids=None, **_):
        """The whole text at each step: nothing is cached. Positions count from the first token that is not padding."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        given = {"attention_mask": mask, "token_type_ids": token_type_ids, "position_ids": positions}
        return {"input_ids": input_ids, **given}


class BertlabForSequenceClassification(BertlabPreTrainedModel):
    """A dense layer on the pooler's output, or without a pooler on the state that has seen the whole row."""

    def __init__(self, config: BertlabConfig):
        super().__init__(config)
        self.model = BertlabModel(config)
        self.dropout, self.classifier = nn.Dropout(config.dropout), nn.Linear(config.width, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(self, input_ids=None, attention_mask=None, labels=None, num_items_in_batch=None, **given):
        """As `BertlabModel`; labels [B]."""
        encoded = self.model(input_ids, attention_mask, **given)
        x, pooled, loss = encoded.last_hidden_state, encoded.pooler_output, None
        if pooled is None:
            pooled = self.model.summary(x, x.new_ones(x.shape[:2]) if attention_mask is None else attention_mask)
        logits = self.classifier(self.dropout(pooled))
        if labels is not None:
            loss = self.loss_function(labels, logits, self.config, num_items_in_batch=num_items_in_batch)
        return SequenceClassifierOutput(loss, logits, encoded.hidden_states)


class BertlabForTokenClassification(BertlabPreTrainedModel):
    """A dense layer on each state."""

    def __init__(self, config: BertlabConfig):
        super().__init__(config)
        self.model = BertlabModel(config)
        self.dropout, self.classifier = nn.Dropout(config.dropout), nn.Linear(config.width, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(self, input_ids=None, attention_mask=None, labels=None, num_items_in_batch=None, **given):
        """As `BertlabModel`; labels [B, L]."""
        encoded = self.model(input_ids, attention_mask, **given)
        logits, loss = self.classifier(self.dropout(encoded.last_hidden_state)), None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.config, num_items_in_batch=num_items_in_batch)
        return TokenClassifierOutput(loss, logits, encoded.hidden_states)
