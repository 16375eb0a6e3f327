"""The cost of a training step: model FLOPs and supervised positions, from shapes and from the weights of the losses."""

from collections.abc import Mapping

from bertlab.data.formats import row_length
from bertlab.objectives.blame import blamed
from bertlab.objectives.judging import prediction_flops


def body_flops(phase, length: int | None = None) -> float:
    """Forward and backward model FLOPs of the body's passes over one batch, full attention, without logits.

    Args:
        phase: a `bertlab.train.build.Phase`.
        length: positions of the batch's rows; None: the maximum.
    """
    length, shape, asked = length or row_length(phase.data), phase.program.body.config, phase.program.objectives
    sides = [{asked[name].reads for name in names} for names in phase.program.groups.values()]
    passes = length * sum(shape.flops_per_token(length, of_pass) for of_pass in sides)
    extra = 0.0
    for name, objective in asked.items():
        with blamed(name, objective, "extra_flops"):
            extra += objective.extra_flops(shape, length)
    return phase.data.batch_size * (passes + extra)


def flops_outside_windows(phase) -> float:
    """Of `body_flops`, the scores that windows of local layers hide, in rows of the maximum length."""
    length, shape = row_length(phase.data), phase.program.body.config
    hidden = len(phase.program.groups) * length * shape.flops_outside_windows(length)
    for name, objective in phase.program.objectives.items():
        with blamed(name, objective, "extra_flops_outside_windows"):
            hidden += objective.extra_flops_outside_windows(shape, length)
    return phase.data.batch_size * hidden


def step_flops(phase, metrics: Mapping[str, tuple], length: int) -> float:
    """Forward and backward model FLOPs of one step with its predictions, over rows of `length` positions."""
    shape, asked = phase.program.body.config, phase.program.objectives.items()
    predicted = sum(float(metrics[f"{name}/loss"][1]) * prediction_flops(name, o, shape) for name, o in asked)
    return body_flops(phase, length) + predicted


def supervised_positions(phase, metrics: Mapping[str, tuple]) -> float:
    """Positions that the trained objectives supervise in one step."""
    trained = [(name, o) for name, o in phase.program.objectives.items() if any(phase.weights[name])]
    return sum(float(metrics[f"{name}/loss"][1]) for name, o in trained if o.asks in ("tokens", "positions"))
