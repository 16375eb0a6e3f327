"""What objectives cost: model FLOPs, forward and backward, and supervised positions.

The FLOPs of a step are those of one pass of the body per view, plus `objective_flops`. An objective
from outside registers its own.
"""

import functools
from collections.abc import Mapping

from bertlab.models.flops import flops_per_prediction, flops_per_token
from bertlab.objectives.autoregressive import ActivationPenalty, PrefixLanguageModel
from bertlab.objectives.base import Objective
from bertlab.objectives.diffusion import MaskedDiffusion
from bertlab.objectives.electra import ReplacedTokenDetection, generator_shape
from bertlab.objectives.masked import SpanBoundary
from bertlab.objectives.masked_next_token import MaskedNextToken
from bertlab.objectives.next_sentence import NextSentence
from bertlab.objectives.permutation import PermutationLanguageModel
from bertlab.objectives.program import Program, group_by_view
from bertlab.objectives.span_corruption import SpanCorruption
from bertlab.objectives.word_vectors import Glove, NegativeSampling


def step_costs(
    program: Program,
    weights: Mapping[str, tuple[float, float]],
    sums: Mapping[str, tuple],
    rows: int,
    length: int,
    trains_body: bool = True,
) -> tuple[float, float]:
    """(supervised positions, model FLOPs) of one training step on rows of `length` positions.

    The backward pass costs twice the forward one; a body that is not trained has none. `weights`
    are by objective, at the first and the last step: one that is only measured does not supervise.
    `sums` are the step's metrics, {"mlm/loss": (sum, weight), ...}.
    """
    shape, objectives = program.body.shape, program.objectives
    flops, supervised_positions = 0.0, 0.0
    for names in group_by_view(objectives, program.stream).values():
        sides = {objectives[name].reads for name in names}
        if not sides <= {"forward", "backward"}:  # some loss reads everything that the body has
            sides = {"both"}
        flops += rows * length * flops_per_token(shape, length, sides)
    flops = flops if trains_body else flops / 3
    for name, objective in objectives.items():
        predictions = float(sums[f"{name}/loss"][1])
        flops += objective_flops(objective, shape, rows, length, predictions)
        if supervised(objective) and any(weights[name]):
            supervised_positions += predictions
    return supervised_positions, flops


@functools.singledispatch
def supervised(objective: Objective) -> bool:
    """Whether the weight of its loss counts supervised token positions, not coordinates, pairs or
    centres."""
    others = (ActivationPenalty, NextSentence, NegativeSampling, Glove)
    return not isinstance(objective, others)


@functools.singledispatch
def objective_flops(
    objective: Objective, shape, rows: int, length: int, predictions: float
) -> float:
    """FLOPs of a step on `rows` rows, beyond one pass of the body; `predictions` is the weight of
    the loss. By default, one row of logits for each."""
    return predictions * flops_per_prediction(shape)


@objective_flops.register(ActivationPenalty)
@objective_flops.register(NextSentence)
def _(objective, shape, rows, length, predictions):
    return 0.0  # next to nothing


@objective_flops.register(PrefixLanguageModel)
@objective_flops.register(MaskedNextToken)
@objective_flops.register(MaskedDiffusion)
def _(objective, shape, rows, length, predictions):
    return rows * length * flops_per_prediction(shape)


@objective_flops.register
def _(objective: SpanBoundary, shape, rows, length, predictions):
    # A biLSTM's states are those of both directions, side by side.
    width = shape.width * len(getattr(shape, "sides", ("both",)))
    layers = 6 * width * (3 * width + objective.place_width)
    return predictions * (flops_per_prediction(shape) + layers)


@objective_flops.register(NegativeSampling)
@objective_flops.register(Glove)
def _(objective, shape, rows, length, predictions):
    return predictions * 6 * (1 + getattr(objective, "negatives", 0)) * shape.width


@objective_flops.register(SpanCorruption)
@objective_flops.register(PermutationLanguageModel)
def _(objective, shape, rows, length, predictions):
    longer = length + objective.slots(length)  # positions of the pass
    if isinstance(objective, SpanCorruption):
        longer += objective.slots(length)
        predictions = rows * longer
    more = longer * flops_per_token(shape, longer) - length * flops_per_token(shape, length)
    return rows * more + predictions * flops_per_prediction(shape)


@objective_flops.register
def _(objective: ReplacedTokenDetection, shape, rows, length, predictions):
    chosen = objective.masking().slots(length)
    asked = length if objective.covers_all else chosen
    flops = 0.0
    if objective.trains_generator:
        small = generator_shape(shape, objective.generator_size)
        projection = 6 * shape.width * small.width
        flops += length * (flops_per_token(small, length) + projection)
        flops += chosen * (projection + 6 * shape.width * shape.vocab_size)
    if objective.discriminates:
        return rows * (flops + asked * 6 * shape.width * (shape.width + 1))
    copying = 6 * shape.width if objective.task == "all_tokens" else 0
    return rows * (flops + asked * (flops_per_prediction(shape) + copying))
