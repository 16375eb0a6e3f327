"""Learning rates as functions of the step."""

import math
from collections.abc import Callable

import jax.numpy as jnp

from bertlab.errors import UserError


def warmup_steps(optimizer, steps: int) -> int:
    """`config.optimizer.warmup_steps`; unset: a tenth of the steps, or of a stage's own if each has
    its own schedule. A slanted triangle has its own rise."""
    if optimizer.warmup_steps is not None:
        return optimizer.warmup_steps
    if optimizer.decay == "slanted_triangular":
        return 0
    return (min(steps, optimizer.thaw_steps) if optimizer.thaw_restarts else steps) // 10


def learning_rate(optimizer, steps: int) -> Callable:
    """(updates done, int or array) -> float32 rate of the next of `steps` updates.

    It warms up linearly from 0, then decays to 0. Written out because BERT's and OpenAI's decays
    count from step 0, while parts that `optax.join_schedules` joins count from where they begin.
    `config.optimizer.decay` is one of

        linear, cosine: With `decay_from_start` they count from step 0, as in google-research/bert
            optimization.py: the rate drops a little where warm-up ends. Otherwise they count from
            the end of warm-up.
        constant: The full rate, until it falls linearly in the last `cooldown_steps` (Hu et al.
            2024, arXiv 2404.06395, section 4).
        warmup_linear: openai/finetune-transformer-lm opt.py: it falls during warm-up too.
        reverse_cosine: Half a cosine up and half a cosine down (FitLaM's "warm-up reverse
            annealing", going by its name; the paper has no formula).
        slanted_triangular: A linear rise from 1/`ratio` of the rate over `cut_fraction` of the
            steps, and a linear fall back to it (Howard and Ruder 2018, equation 3, whose t counts
            updates from 0).
    """
    peak, decay, warmup = optimizer.learning_rate, optimizer.decay, warmup_steps(optimizer, steps)
    if decay == "slanted_triangular":
        return slanted_triangle(optimizer, steps)
    cooldown = optimizer.cooldown_steps if decay == "constant" else 1
    if 0 < steps < warmup + cooldown:
        raise UserError(
            f"config.optimizer.warmup_steps={warmup} leaves no time to decay in {steps} steps, of"
            f" which cooldown_steps={optimizer.cooldown_steps}; lower them"
        )
    from_start = optimizer.decay_from_start and decay != "reverse_cosine"
    start = 0 if from_start or decay == "warmup_linear" else warmup

    def rate(step):
        step = jnp.asarray(step, jnp.float32)
        progress = jnp.clip((step - start) / max(1, steps - start), 0.0, 1.0)
        rising = step / max(1, warmup)
        if decay == "constant":
            falling = jnp.clip((steps - step) / cooldown, 0.0, 1.0) if cooldown else 1.0
        elif decay.endswith("linear"):
            falling = 1.0 - progress
        else:
            falling = 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
        if decay == "warmup_linear":
            rising = rising * falling
        elif decay == "reverse_cosine":
            rising = 0.5 * (1.0 - jnp.cos(jnp.pi * rising))
        return peak * jnp.where(step < warmup, rising, falling)

    return rate


def slanted_triangle(optimizer, steps: int) -> Callable:
    """ULMFiT's rate by updates done."""
    peak, fraction, ratio = optimizer.learning_rate, optimizer.cut_fraction, optimizer.ratio
    # Rounded first: 0.29 of 100 steps is 28.999999999999996 in binary.
    cut = math.floor(round(steps * fraction, 6))
    if optimizer.warmup_steps or (steps and not cut):
        raise UserError(
            f"config.optimizer.decay=slanted_triangular needs a step in cut_fraction={fraction} of"
            f" {steps} steps, and warmup_steps=0"
        )
    rise, fall = max(1, cut), max(1, cut) * (1 / fraction - 1)

    def rate(step):
        step = jnp.asarray(step, jnp.float32)
        height = jnp.where(step < cut, step / rise, jnp.maximum(0.0, 1.0 - (step - cut) / fall))
        return peak * (1.0 + height * (ratio - 1.0)) / ratio

    return rate
