"""What the published transformers share: how their attention kernels lie, and bertlab's config for one.

Letters: D model width, H heads, K head width; a matrix is in × out, or out × in where it comes from torch's Linear.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bertlab.config import add_objectives, base_config
from bertlab.errors import UserError
from bertlab.interop.base import Entry
from bertlab.models.presets import FAMILIES

_QKV = ("query", "key", "value")


def three_kernels(theirs: str, ours: str, heads: int, out_first: bool) -> Entry:
    """Query, key and value kernels [D, H·K] (or [H·K, D]) and ours, [D, 3, H, K]; `theirs` has "{part}"."""
    turn = (lambda array: array.T) if out_first else (lambda array: array)

    def to_ours(arrays):
        joined = np.stack([turn(array) for array in arrays], axis=1)
        return joined.reshape(joined.shape[0], 3, heads, -1)

    def to_theirs(array):
        return [turn(array[:, part].reshape(array.shape[0], -1)) for part in range(3)]

    return Entry(_parts(theirs), ours, to_ours, to_theirs)


def three_biases(theirs: str, ours: str, heads: int) -> Entry:
    """Query, key and value biases [H·K] and ours, [3, H, K]; `theirs` has "{part}"."""
    to_ours = lambda arrays: np.stack(arrays).reshape(3, heads, -1)
    return Entry(_parts(theirs), ours, to_ours, lambda array: list(array.reshape(3, -1)))


def joint_kernel(theirs: str, ours: str, heads: int, axes_before: int = 0) -> Entry:
    """Query, key and value in one kernel [D, 3·H·K] (after `axes_before` axes of length 1) and ours, [D, 3, H, K]."""
    before = (1,) * axes_before
    to_ours = lambda arrays: arrays[0].reshape(arrays[0].shape[axes_before], 3, heads, -1)
    return Entry((theirs,), ours, to_ours, lambda array: [array.reshape(*before, array.shape[0], -1)])


def joint_bias(theirs: str, ours: str, heads: int) -> Entry:
    """Query, key and value in one bias [3·H·K] and ours, [3, H, K]."""
    return Entry((theirs,), ours, lambda arrays: arrays[0].reshape(3, heads, -1), lambda array: [array.reshape(-1)])


def out_kernel(theirs: str, ours: str, heads: int, *, out_first: bool = False, axes_before: int = 0) -> Entry:
    """The kernel after attention, [H·K, D] (or [D, H·K]; after `axes_before` axes of length 1), and ours, [H, K, D]."""
    turn = (lambda array: array.T) if out_first else (lambda array: array)
    before = (1,) * axes_before
    to_ours = lambda arrays: turn(arrays[0]).reshape(heads, -1, turn(arrays[0]).shape[-1])
    return Entry((theirs,), ours, to_ours, lambda array: [turn(array.reshape(*before, -1, array.shape[-1]))])


def _parts(name: str) -> tuple[str, ...]:
    return tuple(name.replace("{part}", part) for part in _QKV)


def transformer_config(family: str, model: Mapping[str, Any], objectives: str) -> ConfigDict:
    """A whole config for an imported transformer.

    Args:
        family: "bert" or "gpt".
        model: keys of `config.model`, with all of the shape's numbers.
        objectives: names joined by "+", or "".
    """
    config = base_config()
    config.model.family = family
    config.model.size = _nearest_size(family, model)
    config.model.update(model)
    config.data.seq_len = min(config.data.seq_len, model["max_positions"])
    if family == "gpt" or model.get("segments") == 1:
        config.data.format = "full_sentences"
    if objectives:
        add_objectives(config, objectives)
    return config


def _nearest_size(family: str, model: Mapping[str, Any]) -> str:
    """The named size that is nearest in layers and width among those with the norms in the same place."""
    sizes = {name: {**FAMILIES[family].values, **values} for name, values in FAMILIES[family].sizes.items()}
    placed = {name: size for name, size in sizes.items() if size["norm_placement"] == model.get("norm_placement", "post")}
    distance = lambda size: sum(abs(math.log(size[key] / model[key])) for key in ("layers", "width"))
    return min(placed, key=lambda name: distance(placed[name]))


def check_vocabulary(tokenizer, vocab_size: int, source) -> None:
    """Refuses a tokenizer whose ids are not the rows of the embedding."""
    if tokenizer is not None and tokenizer.vocab_size != vocab_size:
        raise UserError(
            f"{source}: the tokenizer has {tokenizer.vocab_size} pieces and the model {vocab_size};"
            " they must be those of one model, so check that the files belong together"
        )


def nsp_shapes(width: int) -> dict:
    """Shapes of the next-sentence head's parameters, with width D."""
    shape = lambda *axes: jax.ShapeDtypeStruct(axes, np.float32)
    return {"heads_nsp": {"kernel": shape(width, 2), "bias": shape(2)}}
