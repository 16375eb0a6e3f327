"""Learning rates as functions of the step."""

from collections.abc import Callable

import jax.numpy as jnp

from bertlab.errors import UserError


def learning_rate(optimizer, steps: int) -> Callable:
    """Linear warm-up from 0, then linear or cosine decay to 0 at `steps`, or a constant.

    Args:
        optimizer: `config.optimizer`. With `decay_from_start` the decay counts from step 0, as in google-research/bert
            optimization.py, so that the rate drops a little where warm-up ends; otherwise from the end of warm-up.
        steps: of the whole run.

    Returns:
        step (int or array) -> float32 rate. The first step's is 0 where there is a warm-up.
    """
    peak, warmup, decay = optimizer.learning_rate, optimizer.warmup_steps, optimizer.decay
    if decay not in ("linear", "cosine", "constant"):
        raise UserError(f"config.optimizer.decay={decay!r} is not known; choose linear, cosine or constant")
    if warmup < 0 or (decay != "constant" and steps and warmup >= steps):
        raise UserError(
            f"config.optimizer.warmup_steps={warmup} leaves nothing of config.train.steps={steps};"
            " make it smaller than the steps"
        )
    start = 0 if optimizer.decay_from_start else warmup

    def rate(step):
        step = jnp.asarray(step, jnp.float32)
        progress = jnp.clip((step - start) / max(1, steps - start), 0.0, 1.0)
        falling = {"linear": 1.0 - progress, "cosine": 0.5 * (1.0 + jnp.cos(jnp.pi * progress)), "constant": 1.0}[decay]
        return peak * jnp.where(step < warmup, step / max(1, warmup), falling)

    return rate
