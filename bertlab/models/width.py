"""μP: initial values and rates of one width suit wider transformers (Yang et al. 2022, table 8).

With `config.model.base_width` = W, a transformer of width m W differs from the usual one thus. An
axis is wide if it grows with the model; nothing differs at m = 1.

| Parameter | Initial values | Adam's rate |
|---|---|---|
| inputs and outputs are wide (a layer's kernels) | divided by sqrt(m) | divided by m |
| inputs are wide, outputs are not (a classifier; LoRA's A) | divided by m | divided by m |
| others: embeddings, kernels with inputs of a fixed width, biases, norms | the same | the same |

Logits are divided by m (`OutputLayer`), because the output matrix may be the embeddings'.
Weight decay is not divided. The head width and F / D must be the same at all widths.
"""

import dataclasses
from typing import Any

import jax
from jax.sharding import PartitionSpec

from bertlab.models.transformer import TransformerShape


def doubled(shape: TransformerShape) -> TransformerShape:
    """A shape twice as wide; axes of parameters that differ are wide."""
    return dataclasses.replace(
        shape, width=2 * shape.width, heads=2 * shape.heads, hidden=2 * shape.hidden
    )


def width_factors(times: float, axes, shapes, doubled_shapes) -> Any:
    """A tree like the parameters of (factor of its initial values, factor of its rate).

    `times` is m; `axes` are PartitionSpecs of the logical axis names; the shapes are the
    parameters', and those of the same model with its body `doubled`.
    """

    def factors(spec: PartitionSpec, shape, doubled_shape) -> tuple[float, float]:
        wide = [a != b for a, b in zip(shape.shape, doubled_shape.shape, strict=True)]
        inputs, *outputs = wide[1:] if spec and spec[0] == "layers" else wide or [False]
        if not inputs or not outputs:
            return 1.0, 1.0
        return times**-0.5 if any(outputs) else 1 / times, 1 / times

    def is_spec(node) -> bool:
        return isinstance(node, PartitionSpec)

    return jax.tree.map(factors, axes, shapes, doubled_shapes, is_leaf=is_spec)
