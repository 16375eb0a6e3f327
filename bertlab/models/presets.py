"""Families and sizes, named as in their papers, and the body that a model config describes.

A family is a set of values of its shape, a size adds some, and `config.model` replaces any.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from bertlab.errors import UserError, require_choice
from bertlab.models.awd_lstm import AwdLstm, AwdLstmShape
from bertlab.models.base import Body
from bertlab.models.bilstm import Bilstm, BilstmShape
from bertlab.models.characters import WORD_LENGTH
from bertlab.models.static import Static, StaticShape
from bertlab.models.transformer import Transformer, TransformerShape

BERT_SIZES = {
    # Turc et al. 2019 for tiny to medium; Devlin et al. 2018, section 3, for base and large.
    "tiny": dict(layers=2, width=128, heads=2, hidden=512),
    "mini": dict(layers=4, width=256, heads=4, hidden=1024),
    "small": dict(layers=4, width=512, heads=8, hidden=2048),
    "medium": dict(layers=8, width=512, heads=8, hidden=2048),
    "base": dict(layers=12, width=768, heads=12, hidden=3072),
    "large": dict(layers=24, width=1024, heads=16, hidden=4096),
}

# Radford et al. 2019: norms come first, and one comes last.
GPT2 = dict(max_positions=1024, norm_placement="pre", final_norm=True, scaled_residual_init=True)
GPT_SIZES = {
    **{name: BERT_SIZES[name] for name in ("tiny", "mini", "small", "medium")},
    "gpt1": BERT_SIZES["base"],  # Radford et al. 2018
    "gpt2": dict(layers=12, width=768, heads=12, hidden=3072, **GPT2),
    "gpt2-medium": dict(layers=24, width=1024, heads=16, hidden=4096, **GPT2),
    "gpt2-large": dict(layers=36, width=1280, heads=20, hidden=5120, **GPT2),
    "gpt2-xl": dict(layers=48, width=1600, heads=25, hidden=6400, **GPT2),
}
MODERN_SIZES = {
    # Warner et al. 2024, table 4, for base and large; the others have as many weights as BERT's.
    "tiny": dict(layers=2, width=128, heads=2, hidden=344),
    "mini": dict(layers=4, width=256, heads=4, hidden=688),
    "small": dict(layers=4, width=512, heads=8, hidden=1368),
    "medium": dict(layers=8, width=512, heads=8, hidden=1368),
    "base": dict(layers=22, width=768, heads=12, hidden=1152),
    "large": dict(layers=28, width=1024, heads=16, hidden=2624),
}
TINY_FILTERS = ((1, 8), (2, 16), (3, 32), (4, 72))
MINI_FILTERS = ((1, 16), (2, 32), (3, 64), (4, 144))
ELMO_SIZES = {
    # small, medium and original are AllenNLP's; tiny and mini match BERT's in width and weights.
    "tiny": dict(layers=2, width=128, hidden=128, highway_layers=1, filters=TINY_FILTERS),
    "mini": dict(layers=2, width=256, hidden=256, highway_layers=1, filters=MINI_FILTERS),
    "small": dict(layers=2, width=128, hidden=1024, highway_layers=1),
    "medium": dict(layers=2, width=256, hidden=2048, highway_layers=1),
    "original": dict(layers=2, width=512, hidden=4096, highway_layers=2),
}
AWD_LSTM_SIZES = {
    "tiny": dict(layers=2, width=128, hidden=256),
    "mini": dict(layers=3, width=200, hidden=400),
    "original": dict(layers=3, width=400, hidden=1150),
}
STATIC_SIZES = {"tiny": dict(width=100), "mini": dict(width=200), "original": dict(width=300)}

BERT = dict(
    embedding_norm=True,
    epsilon=1e-12,
    segments=2,
    truncated_init=True,
    output_transform=True,
    output_bias=True,
)
MODERN = BERT | dict(
    max_positions=8192,
    activation="gelu_erf",
    gated=True,
    norm="rms_norm",
    norm_placement="pre",
    final_norm=True,
    epsilon=1e-5,
    use_bias=False,
    position_encoding="rotary",
    rotary_base=160_000.0,
    local_window=128,
    global_every=3,
    segments=0,
    scaled_residual_init=True,
    dropout=0.0,
)


@dataclasses.dataclass(frozen=True)
class Family:
    """A kind of body with published values."""

    body: type[Body]
    shape: type
    values: Mapping[str, Any]  # of all sizes, where they differ from the shape's defaults
    sizes: Mapping[str, Mapping[str, Any]]  # each size's values
    # The first is the default.
    directions: tuple[str, ...] = ("bidirectional", "left-to-right", "right-to-left")

    @property
    def recurrent(self) -> bool:
        """Whether it can carry its states along a stream."""
        return hasattr(self.shape, "initial_carry")


LEFT_TO_RIGHT_FIRST = ("left-to-right", "bidirectional", "right-to-left")
FAMILIES = {
    "bert": Family(Transformer, TransformerShape, BERT, BERT_SIZES),
    "gpt": Family(Transformer, TransformerShape, {}, GPT_SIZES, LEFT_TO_RIGHT_FIRST),
    "modern": Family(Transformer, TransformerShape, MODERN, MODERN_SIZES),
    "elmo": Family(Bilstm, BilstmShape, {}, ELMO_SIZES),
    "awd_lstm": Family(AwdLstm, AwdLstmShape, {}, AWD_LSTM_SIZES, LEFT_TO_RIGHT_FIRST[::2]),
    "static": Family(Static, StaticShape, {}, STATIC_SIZES, ("bidirectional",)),
}

COMPUTATION = ("dtype", "remat", "scan_layers", "attention")
"""Keys of how a body is computed, which some families lack."""


def family_of(model) -> Family:
    """The family that `config.model` names."""
    require_choice("config.model.family", model.family, FAMILIES)
    return FAMILIES[model.family]


def model_direction(model) -> str:
    """The direction of a model config: its own, otherwise its family's first."""
    directions = family_of(model).directions
    direction = model.direction or directions[0]
    require_choice(f"{model.family}: config.model.direction", direction, directions)
    return direction


def model_shape(model, vocab_size: int):
    """The shape of `config.model`: its family's and size's values, and those that it sets."""
    family = family_of(model)
    require_choice(f"{model.family}: config.model.size", model.size, family.sizes)
    values = {**family.values, **family.sizes[model.size]}
    fields = {field.name for field in dataclasses.fields(family.shape)}
    for key, value in model.items():
        if value is None or key in ("family", "size", "direction", "stateful"):
            continue
        if key in fields:
            values[key] = value
        elif key not in COMPUTATION:
            raise UserError(
                f"config.model.{key}={value}: {model.family} has no {key}; leave it unset"
            )
    values |= {"vocab_size": vocab_size, "direction": model_direction(model)}
    values["dtype"] = jnp.dtype(model.dtype)
    if "filters" in values:
        values["filters"] = tuple(map(tuple, values["filters"]))
    shape = family.shape(**values)
    # Values that would not do what they say.
    if isinstance(shape, TransformerShape):
        require_choice("config.model.norm", shape.norm, ("layer_norm", "rms_norm"))
        require_choice("config.model.norm_placement", shape.norm_placement, ("pre", "post"))
        if ":" not in shape.attention:
            choices = ("auto", "xla", "cudnn", "module:name")
            require_choice("config.model.attention", shape.attention, choices)
        if shape.width % shape.heads:
            values = f"config.model.width={shape.width} and config.model.heads={shape.heads}"
            raise UserError(f"{values}: the width must be a multiple of the heads")
    elif isinstance(shape, BilstmShape) and shape.tied and shape.token_encoder == "characters":
        raise UserError("config.model.tied=True needs token embeddings; characters have none")
    return shape


def build_body(shape) -> Body:
    """The Linen module of a shape."""
    return next(f.body for f in FAMILIES.values() if isinstance(shape, f.shape))(shape)


def body_shapes(shape, *, predicts: bool = True, pools: bool = False) -> dict:
    """ShapeDtypeStructs of a body's parameters, with its first output layer and the pooler."""
    row = jnp.zeros((1, 2), jnp.int32)
    view = dict.fromkeys(("tokens", "segments", "documents", "positions"), row)
    view["characters"] = jnp.zeros((1, 2, WORD_LENGTH), jnp.int32)

    def use(body):
        encoded, _ = body.encode(view)
        sides = [side for side in ("forward", "backward", "both") if getattr(encoded, side)]
        if predicts:
            body.predict_tokens(encoded.output(sides[0]), sides[0])
        if pools:
            body.pool(encoded, view)

    init = jax.eval_shape(lambda: build_body(shape).init(jax.random.key(0), method=use))
    return nn.meta.unbox(init["params"])
