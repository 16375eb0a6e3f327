"""A budget of tokens, supervised positions or FLOPs as a number of steps.

The schedule needs the steps in advance, so they follow from the mean cost of the first batches;
result.json has the true costs.
"""

import jax
import jax.numpy as jnp
import numpy as np

from bertlab.spine.errors import UserError
from bertlab.spine.train.flops import step_costs
from bertlab.spine.train.sharding import put_batch

BATCHES = 32
"""To average over."""


def parse_budget(text: str) -> tuple[str, float]:
    """Unit and amount of `config.train.budget`, such as tokens=2e6.

    Raises:
        UserError: It has another form.
    """
    unit, _, amount = text.partition("=")
    try:
        number = float(amount)
    except ValueError:
        number = 0.0
    if unit not in ("tokens", "supervised", "flops") or not 0 < number < float("inf"):
        raise UserError(
            f"config.train.budget={text!r} must be an amount of tokens, supervised or flops, as in"
            " tokens=2e6"
        )
    return unit, number


def steps_within(experiment, mesh) -> int:
    """The number of steps that an experiment's budget pays for, at least one; 0 if `train.steps`
    is 0.

    Args:
        experiment: From a config with `train.budget`; of its steps only the phases' shares count.
        mesh: On which it counts, so that all processes find the same number.

    Raises:
        UserError: A step costs nothing in this unit.
    """
    config = experiment.config
    unit, amount = parse_budget(config.train.budget)
    if not config.train.steps:
        return 0
    cost = sum(
        (phase.end - phase.begin) / config.train.steps * mean_cost(experiment, phase, unit, mesh)
        for phase in experiment.phases
    )
    if not cost:
        raise UserError(
            f"config.train.budget={config.train.budget!r}: a step of these objectives costs nothing"
            " in this unit; choose another"
        )
    return max(1, round(amount / cost))


def mean_cost(experiment, phase, unit: str, mesh) -> float:
    """Mean cost of a phase's first batches, as if they were spread over all of it (masking rates
    have schedules)."""
    program, steps = phase.program, experiment.config.train.steps

    @jax.jit
    def count(batch, key, progress):
        sums = {"tokens": (jnp.sum(batch["documents"] > 0), float(batch["documents"].size))}
        if unit == "tokens":
            return sums
        # A loss's weight depends on the view alone: the compiler drops the forward pass.
        shapes = jax.eval_shape(program.init, key, batch)
        params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        metrics, *_ = program.metrics(params, program.views(batch, key, progress))
        return sums | {name: (0.0, weight) for name, (_, weight) in metrics.items()}

    costs = []
    for index in range(BATCHES):
        progress = phase.begin + (phase.end - phase.begin) * (index + 0.5) / BATCHES
        key = jax.random.fold_in(jax.random.key(experiment.config.seed), index)
        batch = put_batch(mesh, phase.batches(phase.begin + index))
        sums = jax.device_get(count(batch, key, np.float32(progress / steps)))
        supervised, flops = (0, 0) if unit == "tokens" else step_costs(phase, sums)
        costs.append({"tokens": sums["tokens"][0], "supervised": supervised, "flops": flops}[unit])
    return float(np.mean(costs))
