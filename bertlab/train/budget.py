"""A budget of tokens, supervised positions or FLOPs as a number of steps.

The schedule needs the steps in advance, so they follow from the mean cost of the first batches;
result.json has the true costs.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from bertlab.errors import UserError
from bertlab.train.phases import Phase
from bertlab.train.sharding import build_mesh, put_batch
from bertlab.train.state import only_weights

BATCHES = 32
"""To average over."""


def steps_within(config: ConfigDict, phases: Sequence[Phase]) -> int:
    """The steps that `config.train.budget` pays for, by the phases' shares of `train.steps`."""
    unit, _, amount = config.train.budget.partition("=")
    steps, cost = config.train.steps, 0.0
    for phase in phases:
        cost += (phase.end - phase.begin) / steps * mean_costs(config, phase).get(unit, 0.0)
    if not cost:
        raise UserError(
            f"config.train.budget={config.train.budget}: give an amount of tokens, supervised or"
            " flops that a step has: tokens=2e6"
        )
    return max(1, round(float(amount) / cost))


def mean_costs(config: ConfigDict, phase: Phase) -> dict[str, float]:
    """Mean costs by unit of a phase's first batches, as if they were spread over all of it (masking
    rates have schedules)."""
    program, mesh, costs = phase.program, build_mesh(config.mesh), []

    @jax.jit
    def count(batch, key, progress):
        # A loss's weight depends on the view alone: the compiler drops the forward pass.
        metrics, *_ = program.metrics(program.init(key, batch), program.views(batch, key, progress))
        return jnp.sum(batch["documents"] > 0), only_weights(metrics)

    for index in range(BATCHES):
        progress = phase.begin + (phase.end - phase.begin) * (index + 0.5) / BATCHES
        key = jax.random.fold_in(jax.random.key(config.seed), index)
        batch = put_batch(mesh, phase.batches(phase.begin + index))
        tokens, sums = count(batch, key, np.float32(progress / config.train.steps))
        length = batch["documents"].shape[1]
        costs.append((tokens, *phase.costs(sums, length)))
    return dict(zip(("tokens", "supervised", "flops"), np.mean(costs, axis=0, dtype=float)))
