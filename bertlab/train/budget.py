"""A budget of tokens, supervised positions or FLOPs as a number of steps.

The schedule needs the steps in advance, so they follow from the mean cost of the first batches;
result.json has the true costs.
"""

import jax
import jax.numpy as jnp
import numpy as np

from bertlab.errors import UserError
from bertlab.objectives.flops import step_costs
from bertlab.train.sharding import put_batch

BATCHES = 32
"""To average over."""


def steps_within(experiment, mesh) -> int:
    """The steps that `config.train.budget` pays for, such as tokens=2e6; 0 if `train.steps` is 0.

    Args:
        experiment: Of its steps only the phases' shares count.
        mesh: On which the costs are counted: all processes find the same.

    Raises:
        UserError: The budget has another form, or a step costs nothing in its unit.
    """
    text, steps = experiment.config.train.budget, experiment.config.train.steps
    unit, _, amount = text.partition("=")
    if unit not in ("tokens", "supervised", "flops"):
        raise UserError(
            f"config.train.budget={text}: give an amount of tokens, supervised or flops: tokens=2e6"
        )
    if not steps:
        return 0
    cost = sum(
        (phase.end - phase.begin) / steps * mean_cost(experiment, phase, unit, mesh)
        for phase in experiment.phases
    )
    if not cost:
        raise UserError(f"config.train.budget={text}: a step has no {unit}; choose another unit")
    return max(1, round(float(amount) / cost))


def mean_cost(experiment, phase, unit: str, mesh) -> float:
    """Mean cost of a phase's first batches, as if they were spread over all of it (masking rates
    have schedules)."""
    program, config = phase.program, experiment.config

    @jax.jit
    def count(batch, key, progress):
        tokens = jnp.sum(batch["documents"] > 0)
        if unit == "tokens":
            return tokens, {}
        # A loss's weight depends on the view alone: the compiler drops the forward pass.
        shapes = jax.eval_shape(program.init, key, batch)
        params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        metrics, *_ = program.metrics(params, program.views(batch, key, progress))
        return tokens, {name: (0.0, weight) for name, (_, weight) in metrics.items()}

    costs = []
    for index in range(BATCHES):
        progress = phase.begin + (phase.end - phase.begin) * (index + 0.5) / BATCHES
        key = jax.random.fold_in(jax.random.key(config.seed), index)
        batch = put_batch(mesh, phase.batches(phase.begin + index))
        tokens, sums = count(batch, key, np.float32(progress / config.train.steps))
        if unit == "tokens":
            costs.append(int(tokens))
            continue
        length = batch["documents"].shape[1]
        supervised, flops = step_costs(program, phase.weights, sums, phase.rows, length)
        costs.append(supervised if unit == "supervised" else flops)
    return float(np.mean(costs))
