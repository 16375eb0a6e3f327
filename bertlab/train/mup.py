"""μP for a whole program: `bertlab.models.width` on the parameters of body, heads and adapter."""

import dataclasses
from typing import Any

import jax

from bertlab.models.width import doubled, width_factors
from bertlab.objectives.program import Program


def program_factors(program: Program, batch) -> tuple[Any, Any] | None:
    """Factors of initial values and of updates, two trees like the parameters; None at the base
    width. The batch is an example, for its shapes."""
    shape = program.body.shape
    times = getattr(shape, "times_base", 1)
    if times == 1:
        return None
    wider = dataclasses.replace(program, body=program.body.clone(shape=doubled(shape)))
    shapes, wider_shapes = (
        jax.eval_shape(each.init, jax.random.key(0), batch) for each in (program, wider)
    )
    pairs = width_factors(times, program.logical_axes(batch), shapes, wider_shapes)
    return jax.tree.transpose(jax.tree.structure(shapes), jax.tree.structure((0, 0)), pairs)
