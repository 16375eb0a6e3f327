"""Turns a budget of tokens, supervised positions, FLOPs or seconds into a number of steps.

The schedule needs the number of steps in advance, so it is computed before a run begins, from the mean cost of its first
batches. result.json has the actual costs. Equal batches cost equal tokens; supervised positions and FLOPs depend on objectives
and model; seconds depend on the machine.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable

import jax
import numpy as np

from bertlab.errors import UserError
from bertlab.train.cost import step_flops, supervised_positions
from bertlab.train.processes import gather

UNITS = ("tokens", "supervised", "flops", "seconds")
BATCHES = 32  # average the cost over these


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
    """The number of steps that fit an experiment's budget, at least one; 0 if `train.steps` is 0 (no pretraining).

    Args:
        experiment: composed from a config with `train.budget`.
        seconds_per_step: measures the time of a training step of the first phase, for budgets in seconds.

    Raises:
        UserError: a step costs nothing in this unit.
    """
    unit, amount = parse_budget(experiment.config.train.budget)
    if not experiment.config.train.steps:
        return 0
    if unit == "seconds":
        if jax.process_count() > 1:
            raise UserError(
                f"config.train.budget={experiment.config.train.budget!r}: each of {jax.process_count()} processes would measure"
                " a different time; give a budget in tokens, supervised or flops, or config.train.steps"
            )
        return max(1, int(amount / seconds_per_step()))
    total, begin = 0.0, 0
    steps = experiment.config.train.steps
    for phase in experiment.phases:
        share = (begin / steps, phase.end / steps)
        # With several processes, each counts its own rows of the batch, and all get the same sum.
        total += (share[1] - share[0]) * sum(gather(mean_cost(phase, unit, experiment.config.seed, share)))
        begin = phase.end
    if not total:
        asked = ", ".join(experiment.program.objectives)
        raise UserError(
            f"config.train.budget={experiment.config.train.budget!r}: {asked} has nothing to count in this unit;"
            " choose another unit, or set asks='positions' in your own objective"
        )
    return max(1, round(amount / total))


def mean_cost(phase, unit: str, seed: int, share: tuple[float, float], batches: int = BATCHES) -> float:
    """Mean cost of a phase's first batches, as if they were spread over its share of the training (rates are scheduled)."""
    with contextlib.closing(iter(phase.train)) as iterator:
        batches = list(itertools.islice(iterator, batches))
    if unit == "tokens":
        return float(np.mean([np.count_nonzero(batch["documents"]) for batch in batches]))
    shapes = jax.eval_shape(phase.program.init, jax.random.key(0), batches[0])

    # It runs only a few times: LLVM's optimisation would take longer than that.
    options = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None

    @functools.partial(jax.jit, compiler_options=options)
    def weights(params, batch, key, progress):
        # Weights depend only on the views: the compiler drops the forward pass.
        return {k: (0.0, w) for k, (_, w) in phase.program.metrics(params, phase.program.views(batch, key, progress)).items()}

    params = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes)
    keys = jax.random.split(jax.random.key(seed), len(batches))
    progress = np.interp((np.arange(len(batches)) + 0.5) / len(batches), (0, 1), share).astype(np.float32)
    costs = []
    for batch, key, share_done in zip(batches, keys, progress):
        asked = weights(params, batch, key, share_done)
        length = batch["documents"].shape[1]
        costs.append(supervised_positions(phase, asked) if unit == "supervised" else step_flops(phase, asked, length))
    return float(np.mean(costs))
