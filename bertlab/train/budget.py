"""Equal budgets by choice: how many steps tokens, supervised positions, FLOPs or seconds buy.

The schedule needs to know the steps beforehand, so a budget is turned into steps before a run begins, from the mean cost of its
first batches; what was in fact spent stands in result.json. The same batches cost the same tokens whatever is trained on
them; supervised positions and FLOPs depend on the objectives and the model; seconds on the machine.
"""

import contextlib
import itertools
from collections.abc import Callable

import jax
import numpy as np

from bertlab.errors import UserError

UNITS = ("tokens", "supervised", "flops", "seconds")
BATCHES = 32  # whose mean cost is taken


def parse_budget(text: str) -> tuple[str, float]:
    """Unit and amount of `config.train.budget`.

    Raises:
        UserError: it is not of the form tokens=2e6.
    """
    unit, _, amount = text.partition("=")
    try:
        number = float(amount)
    except ValueError:
        number = 0.0
    if unit not in UNITS or not 0 < number < float("inf"):
        raise UserError(f"config.train.budget={text!r}: expected one of {', '.join(UNITS)} and an amount, as in tokens=2e6")
    return unit, number


def steps_within(experiment, seconds_per_step: Callable[[], float]) -> int:
    """The steps that the budget of an experiment's config buys, at least one.

    Args:
        experiment: composed from a config with `train.budget`.
        seconds_per_step: measures the time of a training step of its first phase, where that is the unit.
    """
    unit, amount = parse_budget(experiment.config.train.budget)
    if unit == "seconds":
        return max(1, int(amount / seconds_per_step()))
    total, begin = 0.0, 0
    steps = max(1, experiment.config.train.steps)
    for phase in experiment.phases:
        total += (phase.end - begin) / steps * _cost(phase, unit, experiment.config.seed)
        begin = phase.end
    return max(1, round(amount / total))


def _cost(phase, unit: str, seed: int) -> float:
    """Mean cost of a phase's first batches."""
    with contextlib.closing(iter(phase.train)) as iterator:
        batches = list(itertools.islice(iterator, BATCHES))
    if unit == "tokens":
        return float(np.mean([np.count_nonzero(batch["documents"]) for batch in batches]))
    shapes = jax.eval_shape(phase.program.init, jax.random.key(0), batches[0])

    @jax.jit
    def weights(params, batch, key):
        # Weights depend on the views alone: the compiler drops the forward pass.
        return {k: (0.0, w) for k, (_, w) in phase.program.metrics(params, phase.program.views(batch, key, 0.0)).items()}

    params = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes)
    keys = jax.random.split(jax.random.key(seed), len(batches))
    cost = phase.supervised if unit == "supervised" else phase.flops
    return float(np.mean([cost(weights(params, batch, key)) for batch, key in zip(batches, keys)]))
