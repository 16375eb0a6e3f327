"""A transformer of bertlab in PyTorch, for transformers. This file goes next to the weights.

    AutoModelForMaskedLM.from_pretrained(directory, trust_remote_code=True)

It needs torch and transformers 5, but not bertlab. Config keys have the names of bertlab's
`config.model`. Letters: B batch, L length, D model width, H heads, K head width.
"""

import torch
from torch import nn
from torch.nn import functional as F
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling, MaskedLMOutput
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.utils.generic import can_return_tuple

BUCKETS, FARTHEST = 32, 128  # relative positions
ACTIVATIONS = {
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_erf": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
}


class BertlabConfig(PreTrainedConfig):
    """Keys of `config.model`, all of which config.json has; `tie_word_embeddings` is its `tied`,
    and `pooler` says whether the weights have a pooler."""

    model_type = "bertlab"
    attribute_map = {  # noqa: RUF012
        "hidden_size": "width",
        "num_hidden_layers": "layers",
        "num_attention_heads": "heads",
        "intermediate_size": "hidden",
        "max_position_embeddings": "max_positions",
        "initializer_range": "init_stddev",
    }


def norm_layer(config):
    """A norm of the config's kind."""
    if config.norm == "rms_norm":
        return nn.RMSNorm(config.width, config.epsilon)
    return nn.LayerNorm(config.width, config.epsilon, bias=config.use_bias)


def angles(positions, width, base):
    """The angle of each pair of coordinates, position * base^(-2i/width): [B, L, width/2]."""
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    return positions[:, :, None].float() * base**-exponents


def rotate(x, cos, sin):
    """Rotates coordinates i and i + K/2 of x [B, H, L, K] by angles [B, 1, L, K/2]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Attention(nn.Module):
    """Multi-head self-attention over the visible positions."""

    def __init__(self, config):
        super().__init__()
        self.heads, self.rate = config.heads, config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.use_bias)
        self.out = nn.Linear(config.width, config.width, bias=config.use_bias)

    def forward(self, x, mask, rotation):
        """Projected means [B, L, D] of the visible values; `mask` is bool [B, 1, L, L] or a bias of
        the scores [B, H, L, L], `rotation` (cos, sin) or None."""
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if rotation is not None:
            query, key = rotate(query, *rotation), rotate(key, *rotation)
        rate = self.rate if self.training else 0.0
        means = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=rate)
        return self.out(means.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and feed-forward, each added to its input; norms before (pre) or after (post)."""

    def __init__(self, config, is_first):
        super().__init__()
        self.skips_norm = is_first and not config.first_norm
        self.pre, self.activation = config.norm_placement == "pre", ACTIVATIONS[config.activation]
        self.attention = Attention(config)
        self.attention_norm, self.feed_forward_norm = norm_layer(config), norm_layer(config)
        sizes = config.width, config.hidden
        self.up = nn.Linear(*sizes, bias=config.use_bias)
        self.gate = nn.Linear(*sizes, bias=config.use_bias) if config.gated else None
        self.down = nn.Linear(*sizes[::-1], bias=config.use_bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x, mask, rotation):
        """The next residual stream [B, L, D]; arguments as for `Attention`."""
        if self.pre:
            normed = x if self.skips_norm else self.attention_norm(x)
            x = x + self.dropout(self.attention(normed, mask, rotation))
            return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))
        x = self.attention_norm(x + self.dropout(self.attention(x, mask, rotation)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))

    def feed_forward(self, x):
        """Two dense layers with an activation between them, gated or not."""
        hidden = self.activation(self.up(x))
        return self.down(hidden if self.gate is None else hidden * self.gate(x))


class Output(nn.Module):
    """Hidden states to logits."""

    def __init__(self, config):
        super().__init__()
        c = config
        self.activation, self.transform = ACTIVATIONS[c.activation], None
        if c.output_transform:
            self.transform = nn.Linear(c.width, c.width, bias=c.use_bias)
            self.transform_norm = norm_layer(c)
        self.decoder = nn.Linear(c.width, c.vocab_size, bias=c.output_bias)
        self.divisor = c.width / c.base_width if c.base_width else 1.0

    def forward(self, x):
        """Logits [B, L, V]."""
        if self.transform is not None:
            x = self.transform_norm(self.activation(self.transform(x)))
        return self.decoder(x / self.divisor)


class BertlabPreTrainedModel(PreTrainedModel):
    """The base of all classes here."""

    config_class = BertlabConfig
    base_model_prefix = "model"
    _input_embed_layer = "token_embedding"
    _supports_sdpa = True
    _no_split_modules = ["Block"]  # noqa: RUF012


class BertlabModel(BertlabPreTrainedModel):
    """The body: hidden states, embeddings first, and the pooler's output if it has one."""

    def __init__(self, config):
        super().__init__(config)
        c = config
        learned, relative = (c.position_encoding == name for name in ("learned", "relative"))
        rows = c.max_positions + c.position_offset
        self.token_embedding = nn.Embedding(c.vocab_size, c.width)
        self.position_embedding = nn.Embedding(rows, c.width) if learned else None
        self.segment_embedding = nn.Embedding(c.segments, c.width) if c.segments else None
        self.relative_bias = nn.Embedding(BUCKETS, c.heads) if relative else None
        self.embedding_norm = norm_layer(c) if c.embedding_norm else None
        self.blocks = nn.ModuleList(Block(c, number == 0) for number in range(c.layers))
        self.final_norm = norm_layer(c) if c.final_norm else None
        self.pooler = nn.Linear(c.width, c.width, bias=c.use_bias) if c.pooler else None
        self.dropout = nn.Dropout(c.dropout)
        self.post_init()

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
        """Encodes rows: `input_ids` [B, L], or `inputs_embeds` [B, L, D].

        `attention_mask` is [B, L], 0 for padding, or [B, L, L], the keys (last axis) that each
        query sees, for packed rows. Without `token_type_ids` [B, L] they are zeros, without
        `position_ids` from 0. `causal`: a bidirectional body is read from left to right.
        """
        c = self.config
        x = self.token_embedding(input_ids) if inputs_embeds is None else inputs_embeds
        zeros = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        segments = zeros if token_type_ids is None or c.segments == 1 else token_type_ids
        positions = position_ids
        if positions is None:
            positions = zeros + torch.arange(x.shape[1], device=x.device)
        mask = zeros + 1 if attention_mask is None else attention_mask
        if self.position_embedding is not None:
            x = x + self.position_embedding(positions + c.position_offset)
        if c.position_encoding == "sinusoidal":
            waves = angles(positions, c.width, 10_000.0)
            waves = torch.stack([waves.sin(), waves.cos()], dim=-1).flatten(-2)
            x = x + waves[..., : c.width].to(x.dtype)
        if self.segment_embedding is not None:
            x = x + self.segment_embedding(segments)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        states = [self.dropout(x)]
        everything, window = self.visibility(mask, positions, x.dtype, causal)
        for number, block in enumerate(self.blocks):
            is_global = number % c.global_every == 0 or not c.local_window
            states.append(block(states[-1], *(everything if is_global else window)))
        if self.final_norm is not None:
            states[-1] = self.final_norm(states[-1])
        pooled = None
        if self.pooler is not None:
            pooled = torch.tanh(self.pooler(self.summary(states[-1], mask)))
        every = c.output_hidden_states if output_hidden_states is None else output_hidden_states
        return BaseModelOutputWithPooling(states[-1], pooled, tuple(states) if every else None)

    def visibility(self, mask, positions, dtype, causal):
        """(mask, rotation) of layers that see everything, and of those that see a window."""
        c, index = self.config, torch.arange(positions.shape[1], device=positions.device)
        visible = mask if mask.dim() == 3 else mask[:, None, :].expand(-1, len(index), -1)
        visible = visible.bool()
        if c.direction == "left-to-right" or causal:
            visible = visible & (index[None, :] <= index[:, None])
        elif c.direction == "right-to-left":
            visible = visible & (index[None, :] >= index[:, None])
        # Padding sees itself, so that its states are finite.
        itself = index[None, :] == index[:, None]
        near = (positions[:, :, None] - positions[:, None, :]).abs() <= c.local_window // 2
        found = []
        for seen, base in ((visible, c.rotary_base), (visible & near, c.rotary_base_local)):
            seen, rotation = (seen | itself)[:, None], None
            if self.relative_bias is not None:
                bias = self.distance_bias(index).to(dtype)
                seen = bias.masked_fill(~seen, torch.finfo(dtype).min)
            if c.position_encoding == "rotary":
                turns = angles(positions, c.width // c.heads, base)[:, None]
                rotation = turns.cos().to(dtype), turns.sin().to(dtype)
            found.append((seen, rotation))
        return found

    def distance_bias(self, index):
        """The bias [1, H, L, L] of each head's scores, by the bucket of the distance (T5's)."""
        both_sides = self.config.direction == "bidirectional"
        bucket = T5Attention._relative_position_bucket(
            index[None, :] - index[:, None], both_sides, BUCKETS, FARTHEST
        )
        return self.relative_bias(bucket).permute(2, 0, 1)[None]

    def summary(self, x, mask):
        """The state [B, D] that has seen a whole row: left to right its last, else its first."""
        if self.config.direction != "left-to-right":
            return x[:, 0]
        filled = (mask if mask.dim() == 2 else mask.diagonal(dim1=1, dim2=2)) != 0
        last = x.shape[1] - 1 - filled.flip(1).int().argmax(1)
        return x[torch.arange(len(x), device=x.device), last]


class BertlabForMaskedLM(BertlabPreTrainedModel):
    """Logits at each position for the token at this position."""

    _tied_weights_keys = {"output.decoder.weight": "model.token_embedding.weight"}  # noqa: RUF012
    causal = False

    def __init__(self, config):
        super().__init__(config)
        self.model, self.output = BertlabModel(config), Output(config)
        self.post_init()

    def get_output_embeddings(self):
        """The layer whose weights may be the token embeddings."""
        return self.output.decoder

    def set_output_embeddings(self, value):
        """Replaces that layer."""
        self.output.decoder = value

    @can_return_tuple
    def forward(self, input_ids=None, attention_mask=None, labels=None, **arguments):
        """As `BertlabModel`; labels [B, L] are the tokens asked for, -100: not counted."""
        count = arguments.pop("num_items_in_batch", None)
        backward = self.config.direction == "right-to-left"
        causal = self.causal and not backward
        encoded, loss = self.model(input_ids, attention_mask, causal=causal, **arguments), None
        logits = self.output(encoded.last_hidden_state)
        if labels is not None:
            turned = self.causal and backward
            pair = (logits.flip(1), labels.flip(1)) if turned else (logits, labels)
            loss = self.loss_function(*pair, self.config.vocab_size, count)
        return MaskedLMOutput(loss, logits, encoded.hidden_states)


class BertlabForCausalLM(BertlabForMaskedLM, GenerationMixin):
    """Logits for the next token, from those before it; right to left for the previous one. A
    bidirectional body is read from left to right (`prefix`, `masked_next_token`)."""

    causal = True

    def prepare_inputs_for_generation(
        self, input_ids, attention_mask=None, token_type_ids=None, **_
    ):
        """The whole text at each step: nothing is cached. Positions start after padding."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return {
            "input_ids": input_ids,
            "attention_mask": mask,
            "token_type_ids": token_type_ids,
            "position_ids": (mask.cumsum(-1) - 1).clamp(min=0),
        }
