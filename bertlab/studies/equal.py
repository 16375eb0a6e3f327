"""What makes different models equal: as many parameters, or as many FLOPs of pretraining. Everything comes from the configs."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from bertlab.config import load_config
from bertlab.studies.estimate import pretraining_cost
from bertlab.studies.settings import Setting
from bertlab.train.made_up import MadeUpRows, made_up_program


def _states(family: str) -> Callable[[Setting], tuple[Callable[[int], Mapping[str, Any]], int]]:
    """Width and states of an LSTM in the family's proportion."""

    def widths(setting: Setting) -> tuple[Callable[[int], Mapping[str, Any]], int]:
        ratio = setting.numbers(family)["hidden"] / setting.numbers(family)["width"]
        return lambda width: {"model.width": width, "model.hidden": round(ratio * width)}, 32

    return widths


# For `sized`: family -> the keys that a width sets, and a width to begin with. In GPT the feed-forward layers are widened.
WIDTHS: Mapping[str, Callable[[Setting], tuple[Callable[[int], Mapping[str, Any]], int]]] = {
    "gpt": lambda setting: (lambda width: {"model.hidden": width}, setting.numbers("gpt")["width"]),
    "elmo": _states("elmo"),
    "awd_lstm": _states("awd_lstm"),
    "static": lambda setting: (lambda width: {"model.width": width}, 32),
}


def parameters(recipe: str, overrides: Mapping[str, Any]) -> int:
    """The parameters that a pretraining has, output layers and heads of its objectives included."""
    config = _on_one_device(recipe, overrides)
    config.data.batch_size = 2  # shapes of parameters do not depend on it
    batch = next(iter(MadeUpRows(config.data, config.data.tokenizer.vocab_size)))
    shapes = jax.eval_shape(made_up_program(config).init, jax.random.key(0), batch)
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def flops(recipe: str, overrides: Mapping[str, Any]) -> float:
    """What a pretraining computes in its `train.steps`, forward and backward, on rows of made-up tokens that are full."""
    return pretraining_cost(_on_one_device(recipe, overrides)).flops


def tokens(recipe: str, overrides: Mapping[str, Any]) -> int:
    """What a pretraining reads in its `train.steps`, with rows counted as full."""
    config = load_config(recipe, overrides)
    return config.train.steps * config.data.batch_size * config.data.seq_len


def sized(
    recipe: str, overrides: Mapping[str, Any], size: Callable[[int], Mapping[str, Any]], target: int, begin: int
) -> dict[str, Any]:
    """The keys of the size whose parameters are nearest to a target.

    Args:
        recipe: Config file with its arguments.
        overrides: Dotted config name -> value.
        size: A width -> the keys that set it. Parameters are at most quadratic in it.
        target: Parameters.
        begin: A width that the model can have; so are its double and its triple.
    """
    count = lambda width: parameters(recipe, {**overrides, **size(width)})
    widths = np.array([begin, 2 * begin, 3 * begin])
    square, linear, constant = np.polyfit(widths, [count(int(width)) - target for width in widths], 2)
    found = max(root.real for root in np.roots([square, linear, constant] if abs(square) > 1e-6 else [linear, constant]))
    return dict(size(max(1, round(found))))


def _on_one_device(recipe: str, overrides: Mapping[str, Any]) -> ConfigDict:
    return load_config(recipe, {**overrides, "mesh.data": 1, "train.budget": ""})
