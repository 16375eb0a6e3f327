"""Families and sizes by the names of their papers, and the body that a model config describes."""

import jax.numpy as jnp
from flax import linen as nn

from bertlab.errors import UserError
from bertlab.models.base import OutputConfig
from bertlab.models.bilstm import Bilstm, BilstmConfig
from bertlab.models.transformer import Transformer, TransformerConfig

_TRANSFORMER = {
    # Turc et al. 2019 (google-research/bert README) for tiny to medium; Devlin et al. 2018, section 3 for base and large.
    "tiny": dict(layers=2, width=128, heads=2, hidden=512, max_positions=512),
    "mini": dict(layers=4, width=256, heads=4, hidden=1024, max_positions=512),
    "small": dict(layers=4, width=512, heads=8, hidden=2048, max_positions=512),
    "medium": dict(layers=8, width=512, heads=8, hidden=2048, max_positions=512),
    "base": dict(layers=12, width=768, heads=12, hidden=3072, max_positions=512),
    "large": dict(layers=24, width=1024, heads=16, hidden=4096, max_positions=512),
}
_LSTM = {
    # small, medium and original are the published ones; tiny and mini match the transformers in width and about in weights.
    "tiny": dict(layers=2, width=128, hidden=128),
    "mini": dict(layers=2, width=256, hidden=256),
    "small": dict(layers=2, width=128, hidden=1024),
    "medium": dict(layers=2, width=256, hidden=2048),
    "original": dict(layers=2, width=512, hidden=4096),
}
SIZES = {
    "bert": _TRANSFORMER,
    "gpt": {k: _TRANSFORMER[k] for k in ("tiny", "mini", "small", "medium")} | {"gpt1": _TRANSFORMER["base"]},
    "elmo": _LSTM,
}
DIRECTIONS = ("bidirectional", "left-to-right", "right-to-left")
_FAMILY_DIRECTION = {"bert": "bidirectional", "gpt": "left-to-right", "elmo": "bidirectional"}


def model_direction(model) -> str:
    """The direction of a model config: its own, else its family's."""
    _check(model.family, _FAMILY_DIRECTION, "config.model.family")
    return _check(model.direction or _FAMILY_DIRECTION[model.family], DIRECTIONS, "config.model.direction")


def model_shape(model, vocab_size: int) -> TransformerConfig | BilstmConfig:
    """The full shape of `config.model`: the size's numbers, replaced where the config gives its own.

    Raises:
        UserError: an unknown family, size, direction or dtype, or a width that the heads do not divide.
    """
    direction = model_direction(model)
    numbers = dict(_check(model.size, SIZES[model.family], "config.model.size"))
    if model.family == "elmo":
        for key in ("heads", "max_positions"):
            if model[key] is not None:
                raise UserError(f"config.model.{key}={model[key]}: an LSTM has no {key}; leave it unset")
    numbers |= {k: model[k] for k in numbers if model[k] is not None}
    shared = dict(
        vocab_size=vocab_size,
        direction=direction,
        dropout=float(model.dropout),
        dtype=_check(model.dtype, {"float32": jnp.float32, "bfloat16": jnp.bfloat16}, "config.model.dtype"),
    )
    if model.family == "elmo":
        output = OutputConfig(transform=False, tied=False, bias=True)
        return BilstmConfig(**numbers, **shared, clip=3.0, epsilon=1e-12, output=output)
    if numbers["width"] % numbers["heads"]:
        raise UserError(
            f"config.model.width={numbers['width']} is not a multiple of config.model.heads={numbers['heads']}; change either"
        )
    bert = model.family == "bert"
    return TransformerConfig(
        **numbers,
        **shared,
        segments=2 if bert else 0,
        embedding_norm=bert,
        epsilon=1e-12 if bert else 1e-5,
        truncated=bert,
        init_stddev=float(model.init_stddev),
        output=OutputConfig(transform=bert, tied=True, bias=bert),
    )


def build_body(shape: TransformerConfig | BilstmConfig) -> nn.Module:
    """The Linen module of a shape."""
    return (Bilstm if isinstance(shape, BilstmConfig) else Transformer)(shape)


def _check(name, known, key):
    if name not in known:
        raise UserError(f"{key}={name!r} is not known; choose one of {', '.join(known)}")
    return known[name] if isinstance(known, dict) else name
