"""Families and sizes by the names of their papers, and the body that a model config describes.

A family is a set of values for its body's config. A size adds or replaces values, and `config.model` can replace any.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from ml_collections import ConfigDict

from bertlab.errors import UserError, did_you_mean
from bertlab.keys import BY_NAME, KEYS
from bertlab.models.awd_lstm import AwdLstm, AwdLstmConfig
from bertlab.models.base import OutputConfig, sides_of, unbox
from bertlab.models.bilstm import Bilstm, BilstmConfig
from bertlab.models.characters import PUBLISHED_FILTERS
from bertlab.models.static import Static, StaticConfig
from bertlab.models.transformer import Transformer, TransformerConfig

_BERT_SIZES = {
    # Turc et al. 2019 (google-research/bert README) for tiny to medium; Devlin et al. 2018, section 3 for base and large.
    "tiny": dict(layers=2, width=128, heads=2, hidden=512),
    "mini": dict(layers=4, width=256, heads=4, hidden=1024),
    "small": dict(layers=4, width=512, heads=8, hidden=2048),
    "medium": dict(layers=8, width=512, heads=8, hidden=2048),
    "base": dict(layers=12, width=768, heads=12, hidden=3072),
    "large": dict(layers=24, width=1024, heads=16, hidden=4096),
}
_SMALL = {name: _BERT_SIZES[name] for name in ("tiny", "mini", "small", "medium")}


def _gpt2(layers: int, width: int, heads: int) -> dict[str, Any]:
    """A size of Radford et al. 2019: pre-LN with a final norm."""
    numbers = dict(layers=layers, width=width, heads=heads, hidden=4 * width, max_positions=1024)
    return numbers | dict(norm_placement="pre", final_norm=True, scaled_residual_init=True)


_GPT_SIZES = _SMALL | {
    "gpt1": _BERT_SIZES["base"],
    "gpt2": _gpt2(12, 768, 12),
    "gpt2-medium": _gpt2(24, 1024, 16),
    "gpt2-large": _gpt2(36, 1280, 20),
    "gpt2-xl": _gpt2(48, 1600, 25),
}
_MODERN_SIZES = {
    # base and large are ModernBERT's (Warner et al. 2024, table 4); the others BERT's, with as many feed-forward weights.
    "tiny": dict(layers=2, width=128, heads=2, hidden=344),
    "mini": dict(layers=4, width=256, heads=4, hidden=688),
    "small": dict(layers=4, width=512, heads=8, hidden=1368),
    "medium": dict(layers=8, width=512, heads=8, hidden=1368),
    "base": dict(layers=22, width=768, heads=12, hidden=1152),
    "large": dict(layers=28, width=1024, heads=16, hidden=2624),
}
_ELMO_SIZES = {
    # small, medium and original are the published ones; tiny and mini match the transformers in width and about in weights.
    "tiny": dict(layers=2, width=128, hidden=128, highway_layers=1, filters=((1, 8), (2, 16), (3, 32), (4, 72))),
    "mini": dict(layers=2, width=256, hidden=256, highway_layers=1, filters=((1, 16), (2, 32), (3, 64), (4, 144))),
    "small": dict(layers=2, width=128, hidden=1024, highway_layers=1),
    "medium": dict(layers=2, width=256, hidden=2048, highway_layers=1),
    "original": dict(layers=2, width=512, hidden=4096, highway_layers=2),
}
_AWD_SIZES = {
    "tiny": dict(layers=2, width=128, hidden=256),
    "mini": dict(layers=3, width=200, hidden=400),
    "original": dict(layers=3, width=400, hidden=1150),
}
_STATIC_SIZES = {
    "tiny": dict(width=100),
    "mini": dict(width=200),
    "original": dict(width=300),
}

_TRANSFORMER = dict(
    max_positions=512,
    activation="gelu_tanh",
    gated=False,
    norm="layer_norm",
    norm_placement="post",
    first_norm=True,
    final_norm=False,
    use_bias=True,
    position_encoding="learned",
    position_buckets=256,
    position_offset=0,
    rotary_base=10_000.0,
    rotary_base_local=10_000.0,
    local_window=0,
    global_every=1,
    init_stddev=0.02,
    base_width=0,
    scaled_residual_init=False,
    tied=True,
    dropout=0.1,
    products="as_dtype",
)
_BERT = _TRANSFORMER | dict(
    embedding_norm=True, epsilon=1e-12, segments=2, truncated_init=True, output_transform=True, output_bias=True
)
_GPT = _TRANSFORMER | dict(
    embedding_norm=False, epsilon=1e-5, segments=0, truncated_init=False, output_transform=False, output_bias=False
)
_MODERN = _BERT | dict(
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
    """A kind of body with published values.

    Attributes:
        body: the Linen class.
        shape: its config class.
        values: values that all sizes share.
        sizes: by name, each size's numbers and replaced values.
        directions: the first is the default.
    """

    body: Callable[[Any], nn.Module]
    shape: Callable[..., Any]
    values: Mapping[str, Any]
    sizes: Mapping[str, Mapping[str, Any]]
    directions: tuple[str, ...] = ("bidirectional", "left-to-right", "right-to-left")

    @property
    def recurrent(self) -> bool:
        """Whether it can carry its state along a stream."""
        return hasattr(self.shape, "initial_carry")


_LEFT_TO_RIGHT_FIRST = ("left-to-right", "bidirectional", "right-to-left")
FAMILIES = {
    "bert": Family(Transformer, TransformerConfig, _BERT, _BERT_SIZES),
    "gpt": Family(Transformer, TransformerConfig, _GPT, _GPT_SIZES, _LEFT_TO_RIGHT_FIRST),
    "modern": Family(Transformer, TransformerConfig, _MODERN, _MODERN_SIZES),
    "elmo": Family(
        Bilstm,
        BilstmConfig,
        dict(
            clip=3.0,
            epsilon=1e-12,
            token_encoder="ids",
            filters=PUBLISHED_FILTERS,
            character_width=16,
            character_activation="relu",
            skip_connections=True,
            output_transform=False,
            tied=False,
            output_bias=True,
            dropout=0.1,
        ),
        _ELMO_SIZES,
    ),
    "awd_lstm": Family(
        AwdLstm,
        AwdLstmConfig,
        dict(
            embedding_dropout=0.1,
            input_dropout=0.65,
            hidden_dropout=0.3,
            weight_dropout=0.5,
            dropout=0.4,
            output_transform=False,
            tied=True,
            output_bias=True,
        ),
        _AWD_SIZES,
        ("left-to-right", "right-to-left"),
    ),
    "static": Family(
        Static,
        StaticConfig,
        dict(output_transform=False, tied=False, output_bias=False, output_init="zeros"),
        _STATIC_SIZES,
        ("bidirectional",),
    ),
}
DIRECTIONS = _LEFT_TO_RIGHT_FIRST


def family_of(model) -> Family:
    """The family that `config.model` names."""
    return FAMILIES[model.family]


def model_direction(model) -> str:
    """The direction of a model config: its own, otherwise its family's."""
    family = family_of(model)
    if model.direction and model.direction not in family.directions:
        raise UserError(
            f"config.model.direction={model.direction!r}: {model.family} reads {' or '.join(family.directions)}; choose that"
        )
    return model.direction or family.directions[0]


def directions_with(sides: Collection[str], family: str) -> list[str]:
    """The directions in which a family's body gives all these sides of `Encoded`; its default comes first."""
    return [direction for direction in FAMILIES[family].directions if {*sides} <= {*sides_of(family, direction)}]


def model_shape(model, vocab_size: int) -> Any:
    """The full shape of `config.model`: the family's and the size's values, replaced by those that the config sets.

    Raises:
        UserError: an unknown name, a key that the family does not have, or numbers that do not fit together.
    """
    for leaf in model:
        BY_NAME[f"model.{leaf}"].check(model[leaf], {})
    family, direction = family_of(model), model_direction(model)
    if model.size not in family.sizes:
        raise UserError(f"config.model.size={model.size!r} is not known; {did_you_mean(model.size, family.sizes)}")
    values = {**family.values, **family.sizes[model.size]}
    fields = {field.name for field in dataclasses.fields(family.shape)}
    for key in (BY_NAME[f"model.{leaf}"] for leaf in model):
        value, default = model[key.leaf], None if key.unset else key.default
        # Keys for how to compute it are fields of the shape, not values of the family.
        known = key.leaf in (fields if key.on_resume else values)
        if key.of_shape and value != default and not known:
            raise UserError(f"config.model.{key.leaf}={value}: {model.family} has no {key.leaf}; leave it {default or 'unset'}")
        if key.of_shape and known and (value is not None or key.on_resume):
            values[key.leaf] = _filters(value) if key.leaf == "filters" else value
    if values.get("attention") == "auto":
        values["attention"] = "xla"  # until `train.choice` has measured
    output = OutputConfig(
        *(values.pop(key) for key in ("output_transform", "tied", "output_bias")), rows=model.get("output_rows")
    )
    shape = family.shape(**values, vocab_size=vocab_size, direction=direction, output=output, dtype=getattr(jnp, model.dtype))
    if isinstance(shape, TransformerConfig):
        _check_transformer(shape)
    if isinstance(shape, BilstmConfig):
        _check_bilstm(shape)
    resolved = {f"model.{name}": getattr(shape, name) for name in fields}
    for key in KEYS:
        if key.group == "model" and key.leaf in fields:
            key.check(model.get(key.leaf), resolved)
    return shape


# Characters of a word, as in bertlab/data/characters.py.
_WORD_LENGTH = 50


def _filters(value) -> tuple[tuple[int, int], ...]:
    """The value of `config.model.filters`. Raises: UserError: it is no pairs of a width and a number."""
    is_count = lambda number, most: type(number) is int and 1 <= number <= most
    is_pair = lambda one: isinstance(one, (tuple, list)) and len(one) == 2
    if not value or not all(is_pair(one) and is_count(one[0], _WORD_LENGTH) and is_count(one[1], 10**5) for one in value):
        raise UserError(
            f"config.model.filters={value!r} must be pairs (width, number) of whole numbers from 1 on, with widths up"
            f" to {_WORD_LENGTH}, such as ((1, 32), (2, 64))"
        )
    return tuple(map(tuple, value))


def _check_bilstm(shape: BilstmConfig) -> None:
    if shape.output.tied and shape.token_encoder == "characters":
        raise UserError(
            "config.model.tied=True shares the token embeddings, and token_encoder='characters' has none; set tied=False"
        )


def _check_transformer(shape: TransformerConfig) -> None:
    if shape.width % shape.heads:
        raise UserError(
            f"config.model.width={shape.width} is not a multiple of config.model.heads={shape.heads}; change either"
        )
    if shape.position_encoding == "rotary" and (shape.width // shape.heads) % 2:
        raise UserError(
            f"config.model.position_encoding='rotary' turns pairs of coordinates: config.model.width={shape.width} over"
            f" config.model.heads={shape.heads} must be even"
        )


def build_body(shape: Any) -> nn.Module:
    """The Linen module of a shape."""
    return next(family.body for family in FAMILIES.values() if isinstance(shape, family.shape))(shape)


def body_shapes(config: ConfigDict, vocab_size: int, *, predicts: bool = True, pools: bool = False) -> dict:
    """Shapes of a body's parameters, computed without creating them.

    Args:
        config: a whole config; only `config.model` is read.
        vocab_size: V.
        predicts: include the output layer (of the forward side if the body has several).
        pools: include the pooler.

    Returns:
        {"body": tree of ShapeDtypeStruct}.

    Raises:
        UserError: `config.model` is invalid.
    """
    body = build_body(model_shape(config.model, vocab_size))
    row = jnp.zeros((1, 2), jnp.int32)
    view = dict.fromkeys(("tokens", "segments", "documents", "positions"), row)
    view["characters"] = jnp.zeros((1, 2, 50), jnp.int32)

    def use(body):
        encoded, _ = body.encode(view, True, {})
        side = next(side for side in ("forward", "backward", "both") if getattr(encoded, side) is not None)
        if predicts:
            body.predict_tokens(getattr(encoded, side)[-1], side)
        if pools:
            body.pool(encoded, view)

    boxed = jax.eval_shape(lambda: body.init(jax.random.key(0), method=use))["params"]
    return {"body": unbox(boxed)}
