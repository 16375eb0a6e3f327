"""μP: initial values and rates that suit a transformer of one width also suit wider ones (Yang et al. 2022, table 8).

With `config.model.base_width` = W, a transformer of width m·W differs from the usual one as follows. An axis is wide if it
grows with the model. Nothing differs at m = 1.

| Parameter | Initial values | Adam's rate |
|---|---|---|
| inputs and outputs are wide (a layer's kernels) | divided by √m | divided by m |
| inputs are wide, outputs are not (a classifier; LoRA's first factor) | divided by m | divided by m |
| others: embeddings, kernels with inputs of a fixed width, biases, norms | the same | the same |

The output layer over the vocabulary is [V, D], like the embeddings that may be tied to it; its logits are divided by m instead
(`TokenPrediction.divisor`). Weight decay is not divided. Adam's ε is not either, so let it be small beside the gradients.
"""

import dataclasses
from typing import Any

import jax

from bertlab.models.presets import family_of, model_shape
from bertlab.objectives.program import Program

_KEPT = (1.0, 1.0)


def heads_note(model) -> str:
    """A warning if heads are not as wide as in the size that `config.model` names: then μP carries no rate over. "" otherwise.

    The base model itself is not known; the size stands for it, because a wider model keeps its `heads` unless you set them.
    """
    shape, named = model_shape(model, 1), family_of(model).sizes[model.size]
    if getattr(shape, "times_base", 1) == 1 or shape.width * named["heads"] == shape.heads * named["width"]:
        return ""
    ours, its = (sizes["width"] / sizes["heads"] for sizes in (vars(shape), named))
    return (
        f"warning: config.model.base_width={shape.base_width} carries rates over only between heads of one width, but these are"
        f" {ours:g} wide and those of config.model.size={model.size!r} {its:g}; set config.model.heads"
        f" (here {shape.width / its:g}), unless you found the rates with such heads"
    )


def initial_values(program: Program, batch, params) -> Any:
    """Fresh parameters, scaled to the model's width."""
    factors = _factors(program, batch)
    return params if factors is None else jax.tree.map(lambda x, of: x * of[0], params, factors)


def update_factors(program: Program, batch) -> Any:
    """A factor of each parameter's update, a tree like the parameters; None if all are 1."""
    factors = _factors(program, batch)
    return None if factors is None else jax.tree.map(lambda of: of[1], factors, is_leaf=lambda x: isinstance(x, tuple))


def _factors(program: Program, batch) -> Any:
    """(factor of the initial values, factor of the rate) of each parameter; None at the base width."""
    shape = program.body.config
    if (times := shape.times_base) == 1:
        return None
    doubled = {name: 2 * getattr(shape, name) for name in ("width", "heads", "hidden")}
    wider = dataclasses.replace(program, body=program.body.clone(config=dataclasses.replace(shape, **doubled)))
    shapes, wider_shapes = (jax.eval_shape(of.init, jax.random.key(0), batch) for of in (program, wider))

    def factors(axes, here, there):
        grows = [a != b for a, b in zip(here.shape, there.shape, strict=True)]
        grows = grows[1:] if axes and axes[0] == "layers" else grows
        if len(grows) < 2 or not grows[0]:
            return _KEPT
        return (times**-0.5 if any(grows[1:]) else 1 / times), 1 / times

    axes = program.logical_axes(batch)
    return jax.tree.map(factors, axes, shapes, wider_shapes, is_leaf=lambda x: isinstance(x, jax.sharding.PartitionSpec))
