"""What makes models equal: parameters, tokens or FLOPs of pretraining, from their configs."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from bertlab import objectives
from bertlab.config.load import load_config
from bertlab.data.formats import row_length
from bertlab.models.characters import WORD_LENGTH
from bertlab.objectives.flops import step_costs
from bertlab.objectives.next_sentence import NextSentence
from bertlab.objectives.program import Program
from bertlab.train.build import build_program
from bertlab.train.phases import phase_configs, weights_of


def parameters(recipe: str, overrides: Mapping[str, Any]) -> int:
    """The parameters of a pretraining, including its objectives' output layers and heads."""
    config = load_config(recipe, overrides)
    shapes = jax.eval_shape(made_up_program(config).init, jax.random.key(0), made_up_batch(config))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def cost(recipe: str, overrides: Mapping[str, Any]) -> tuple[float, float]:
    """`pretraining_cost` of a recipe with overrides."""
    return pretraining_cost(load_config(recipe, overrides))


def sized(
    recipe: str,
    overrides: Mapping[str, Any],
    size: Callable[[int], Mapping[str, Any]],
    target: int,
    start: int,
) -> dict[str, Any]:
    """The keys of the size whose number of parameters, at most quadratic in a width, is nearest to
    a target. `size`: a width -> the keys that set it; `start`, its double and its triple are widths
    that the model can have."""
    widths = np.array([start, 2 * start, 3 * start])
    excess = [parameters(recipe, {**overrides, **size(int(w))}) - target for w in widths]
    square, linear, constant = np.polyfit(widths, excess, 2)
    curve = [square, linear, constant] if abs(square) > 1e-6 else [linear, constant]
    width = max(root.real for root in np.roots(curve))
    return dict(size(max(1, round(width))))


def pretraining_cost(config: ConfigDict) -> tuple[float, float]:
    """(tokens, model FLOPs, forward and backward) of a config's steps; rows count as full."""
    program, total_tokens, total_flops, first = made_up_program(config), 0.0, 0.0, 0
    for end, phase in phase_configs(config):
        rows, length = phase.data.batch_size, row_length(phase.data)
        weights = {name: weights_of(entry) for name, entry in phase.objectives.items()}
        trained = {k: v for k, v in program.objectives.items() if any(weights[k])}
        asked = {name: predictions(program.objectives, name, length) for name in trained}
        sums = {f"{name}/loss": (0.0, rows * count) for name, count in asked.items()}
        part = Program(program.body, trained, program.vocabulary, program.stream)
        _, step_flops = step_costs(part, weights, sums, rows, length)
        total_tokens += (end - first) * rows * length
        total_flops += (end - first) * step_flops
        first = end
    return total_tokens, total_flops


def predictions(built: Mapping[str, objectives.Objective], name: str, length: int) -> float:
    """The weight of an objective's loss in a full row of `length` positions."""
    if isinstance(built[name], NextSentence):
        return 1.0
    chooses = built.get(built[name].shares, built[name])  # the objective whose view it reads
    return float(chooses.slots(length) if hasattr(chooses, "slots") else length)


def made_up_program(config: ConfigDict) -> Program:
    """The program of a config, without its text: the ids of special pieces are made up."""
    size = config.data.tokenizer.vocab_size
    counts = {"counts": (1,) * size, "continues": (False,) * size}
    return build_program(config, objectives.Vocabulary(size, *range(5), **counts))


def made_up_batch(config: ConfigDict) -> dict[str, jax.Array]:
    """A batch of zeros with the fields of every format."""
    length = 1 if config.data.format == "cooccurrence" else row_length(config.data)
    rows, names = 2, ("tokens", "segments", "positions", "next_tokens", "contexts")
    zeros, ones = jnp.zeros((rows, length), jnp.int32), jnp.ones((rows, length), jnp.int32)
    batch = {"documents": ones, "continues": ones > 0} | dict.fromkeys(names, zeros)
    if config.data.format == "stream":
        batch |= {f"backward_{name}": value for name, value in batch.items()}
    row = jnp.zeros(rows, jnp.int32)
    batch |= dict.fromkeys(("pair_label", "order_label", "visit"), row)
    batch |= {"example_id": jnp.zeros((rows, 2), jnp.int32), "counts": ones.astype(float)}
    if config.data.characters:
        batch["characters"] = jnp.zeros((rows, length, WORD_LENGTH), jnp.int32)
    return batch
