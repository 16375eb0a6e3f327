"""μP: initial values and rates that suit a transformer of one width suit wider ones too (Yang et al. 2022, table 8).

With `config.model.base_width` = W, a transformer m W wide differs from the usual one as follows. An axis is wide if it grows with
the model; nothing differs at m = 1.

| Parameter | Initial values | Adam's rate |
|---|---|---|
| inputs and outputs are wide (a layer's kernels) | divided by sqrt(m) | divided by m |
| inputs are wide, outputs are not (a classifier; LoRA's first factor) | divided by m | divided by m |
| others: embeddings, kernels with inputs of a fixed width, biases, norms | the same | the same |

Logits of the output layer are divided by m (`OutputLayer.divisor`), because its matrix [V, D] may be tied to the embeddings.
Weight decay is not divided. Heads must be equally wide at all widths, and F / D the same.
"""

import dataclasses
from typing import Any

import jax
from jax.sharding import PartitionSpec

from bertlab.spine.models.transformer import TransformerShape


def doubled(shape: TransformerShape) -> TransformerShape:
    """A shape twice as wide; axes of parameters that differ there are wide."""
    return dataclasses.replace(
        shape, width=2 * shape.width, heads=2 * shape.heads, hidden=2 * shape.hidden
    )


def width_factors(times: float, axes, shapes, doubled_shapes) -> tuple[Any, Any]:
    """Factors of initial values and of rates, two trees like the parameters.

    Args:
        times: m, `TransformerShape.times_base`.
        axes: tree of PartitionSpecs, the logical axis names.
        shapes: of the parameters.
        doubled_shapes: of those of the same model with the body `doubled`.
    """

    def is_wide_inside(spec: PartitionSpec, shape, doubled_shape) -> tuple[bool, bool]:
        """Whether inputs are wide, and whether an output is too."""
        wide = [a != b for a, b in zip(shape.shape, doubled_shape.shape, strict=True)]
        wide = wide[1:] if spec and spec[0] == "layers" else wide
        return len(wide) > 1 and wide[0], any(wide[1:])

    def initial(*leaves) -> float:
        inputs, outputs = is_wide_inside(*leaves)
        return (times**-0.5 if outputs else 1 / times) if inputs else 1.0

    def rate(*leaves) -> float:
        return 1 / times if is_wide_inside(*leaves)[0] else 1.0

    return tuple(
        jax.tree.map(factor, axes, shapes, doubled_shapes, is_leaf=_is_spec)
        for factor in (initial, rate)
    )


def _is_spec(node) -> bool:
    return isinstance(node, PartitionSpec)
