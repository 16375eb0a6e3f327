"""μP for a whole program: `bertlab.models.width` on the parameters of body, heads and adapter."""

import dataclasses
from typing import Any

import jax

from bertlab.models.width import doubled, width_factors
from bertlab.objectives.program import Program


def program_factors(program: Program, batch) -> tuple[Any, Any] | None:
    """Factors of initial values and of updates, two trees like the parameters; None at the base
    width.

    Args:
        program: Model and all objectives of the run.
        batch: An example of the rows, for their shapes.
    """
    shape = program.body.shape
    times = getattr(shape, "times_base", 1)
    if times == 1:
        return None
    wider = dataclasses.replace(program, body=program.body.clone(shape=doubled(shape)))
    shapes, wider_shapes = (
        jax.eval_shape(each.init, jax.random.key(0), batch) for each in (program, wider)
    )
    pairs = width_factors(times, program.logical_axes(batch), shapes, wider_shapes)
    trees = [jax.tree.map(lambda pair, i=i: pair[i], pairs, is_leaf=is_pair) for i in range(2)]
    return trees[0], trees[1]


def is_pair(node) -> bool:
    """Whether a node of a tree is a pair of factors."""
    return isinstance(node, tuple)
