"""What objectives cost: model FLOPs, forward and backward, and supervised positions.

The FLOPs of a step are those of one pass of the body a view, `extra_flops` a row, and
`prediction_flops` a unit of each loss's weight. An objective from outside registers its own.
"""

import functools
from collections.abc import Mapping

from bertlab.models.flops import flops_per_prediction, flops_per_token
from bertlab.objectives.activation import ActivationPenalty
from bertlab.objectives.base import Objective
from bertlab.objectives.diffusion import MaskedDiffusion
from bertlab.objectives.electra import ReplacedTokenDetection, generator_shape
from bertlab.objectives.masked_next_token import MaskedNextToken
from bertlab.objectives.next_sentence import NextSentence
from bertlab.objectives.permutation import PermutationLanguageModel
from bertlab.objectives.prefix import PrefixLanguageModel
from bertlab.objectives.program import Program, group_by_view
from bertlab.objectives.span_boundary import SpanBoundary
from bertlab.objectives.span_corruption import SpanCorruption
from bertlab.objectives.word_vectors import Glove, NegativeSampling

# Their losses' weights count coordinates, pairs or centres.
UNSUPERVISED = (ActivationPenalty, NextSentence, NegativeSampling, Glove)


def step_costs(
    program: Program,
    weights: Mapping[str, tuple[float, float]],
    sums: Mapping[str, tuple],
    rows: int,
    length: int,
) -> tuple[float, float]:
    """(supervised positions, model FLOPs) of one training step.

    Args:
        program: The model and the objectives of the step.
        weights: Objective name to weight in the loss at the first and the last step; what is only
            measured does not supervise.
        sums: The step's metrics, {"mlm/loss": (sum, weight), ...}.
        rows: Of the batch.
        length: Positions of its rows.
    """
    shape, objectives = program.body.shape, program.objectives
    flops = 0.0
    for names in group_by_view(objectives, program.stream).values():
        sides = {objectives[name].reads for name in names}
        if not sides <= {"forward", "backward"}:  # some loss reads all that the body has
            sides = {"both"}
        flops += rows * length * flops_per_token(shape, length, sides)
    supervised_positions = 0.0
    for name, objective in objectives.items():
        predictions = float(sums[f"{name}/loss"][1])
        flops += rows * extra_flops(objective, shape, length)
        flops += predictions * prediction_flops(objective, shape)
        if supervised(objective) and any(weights[name]):
            supervised_positions += predictions
    return supervised_positions, flops


@functools.singledispatch
def supervised(objective: Objective) -> bool:
    """Whether the weight of its loss counts supervised token positions."""
    return not isinstance(objective, UNSUPERVISED)


@functools.singledispatch
def prediction_flops(objective: Objective, shape) -> float:
    """Per unit of the loss's weight, for a body's shape; by default a row of logits."""
    return flops_per_prediction(shape)


@functools.singledispatch
def extra_flops(objective: Objective, shape, length: int) -> float:
    """Per row of so many positions, beyond one pass of the body and `prediction_flops`."""
    return 0.0


@prediction_flops.register(ActivationPenalty)
@prediction_flops.register(NextSentence)
@prediction_flops.register(PrefixLanguageModel)
@prediction_flops.register(MaskedNextToken)
@prediction_flops.register(MaskedDiffusion)
@prediction_flops.register(SpanCorruption)
@prediction_flops.register(ReplacedTokenDetection)
def _(objective, shape):
    return 0.0  # they have no logits, or `extra_flops` counts them by row


@prediction_flops.register
def _(objective: SpanBoundary, shape):
    # A biLSTM's states are those of both directions, side by side.
    width = shape.width * len(getattr(shape, "sides", ("both",)))
    return flops_per_prediction(shape) + 6 * width * (3 * width + objective.place_width)


@prediction_flops.register
def _(objective: NegativeSampling, shape):
    return 6 * (1 + objective.negatives) * shape.width


@prediction_flops.register
def _(objective: Glove, shape):
    return 6 * shape.width


@extra_flops.register(PrefixLanguageModel)
@extra_flops.register(MaskedNextToken)
@extra_flops.register(MaskedDiffusion)
def _(objective, shape, length):
    return length * flops_per_prediction(shape)


@extra_flops.register
def _(objective: SpanCorruption, shape, length):
    longer = length + 2 * objective.slots(length)
    return longer * flops_per_prediction(shape) + lengthening_flops(shape, length, longer)


@extra_flops.register
def _(objective: PermutationLanguageModel, shape, length):
    return lengthening_flops(shape, length, length + objective.slots(length))


@extra_flops.register
def _(objective: ReplacedTokenDetection, shape, length):
    chosen = objective.masking().slots(length)
    asked = length if objective.covers_all else chosen
    flops = 0.0
    if objective.trains_generator:
        small = generator_shape(shape, objective.generator_size)
        projection = 6 * shape.width * small.width
        flops += length * (flops_per_token(small, length) + projection)
        flops += chosen * (projection + 6 * shape.width * shape.vocab_size)
    if objective.discriminates:
        return flops + asked * 6 * shape.width * (shape.width + 1)
    copying = 6 * shape.width if objective.task == "all_tokens" else 0
    return flops + asked * (flops_per_prediction(shape) + copying)


def lengthening_flops(shape, length: int, longer: int) -> float:
    """Of the body, for rows of `longer` positions in place of `length`."""
    return longer * flops_per_token(shape, longer) - length * flops_per_token(shape, length)
