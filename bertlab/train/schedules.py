"""Learning rates as functions of the step."""

import math
from collections.abc import Callable

import jax.numpy as jnp

from bertlab.errors import UserError


def warmup_steps(optimizer, steps: int) -> int:
    """The steps of warm-up: `config.optimizer.warmup_steps`, or a tenth of the steps if it is unset.

    With `thaw_restarts` it is a tenth of a stage. A slanted triangle rises by itself, so it has no warm-up.

    Args:
        optimizer: `config.optimizer`.
        steps: of the whole run.
    """
    if optimizer.warmup_steps is not None:
        return optimizer.warmup_steps
    if optimizer.decay == "slanted_triangular":
        return 0
    return (min(steps, optimizer.thaw_steps) if optimizer.thaw_restarts else steps) // 10


def learning_rate(optimizer, steps: int) -> Callable:
    """Linear warm-up from 0, then decay to 0 at `steps`; or ULMFiT's slanted triangle.

    Args:
        optimizer: `config.optimizer`. Its `decay` is one of
            linear, cosine: with `decay_from_start` it counts from step 0, as in google-research/bert optimization.py, so
                the rate drops a little where warm-up ends; otherwise from the end of warm-up.
            constant: the full rate to the end, or until the last `cooldown_steps`, in which it falls linearly to 0 (warm-up,
                stable, decay: Hu et al. 2024, arXiv 2404.06395, section 4).
            warmup_linear, warmup_cosine: those of openai/finetune-transformer-lm opt.py. They count from step 0 and
                reach the full rate at the last step of warm-up; the linear one falls during warm-up too.
            slanted_triangular: a linear rise over `cut_fraction` of the steps from 1/`ratio` of the rate, and a linear fall
                back to it (Howard and Ruder 2018, equation 3, whose t counts updates from 0); `warmup_steps` must be 0.
                fastai's use_clr=(32, 10) is `ratio` 32 and `cut_fraction` .1.
            reverse_cosine: half a cosine up to the end of warm-up and half a cosine down. A reading of the name "warm-up
                reverse annealing" in FitLaM, ULMFiT's first version, not verified against its text.
        steps: of the whole run.

    Returns:
        step (int or array, from 0) -> float32 rate. The first step's rate is 0 with a warm-up.

    Raises:
        UserError: its settings and the steps do not fit together.
    """
    peak, warmup, decay = optimizer.learning_rate, warmup_steps(optimizer, steps), optimizer.decay
    if decay == "slanted_triangular":
        return _slanted_triangular(optimizer, steps)
    if decay != "constant" and steps and warmup >= steps:
        raise UserError(
            f"config.optimizer.warmup_steps={warmup} leaves no steps of config.train.steps={steps}; make it smaller"
        )
    cooldown = optimizer.cooldown_steps
    if steps and warmup + cooldown > steps:
        raise UserError(
            f"config.optimizer.cooldown_steps={cooldown} and warmup_steps={warmup} exceed config.train.steps={steps}; make"
            " their sum at most the steps"
        )
    openai, reverse = decay.startswith("warmup_"), decay == "reverse_cosine"
    start = warmup if reverse or not (optimizer.decay_from_start or openai) else 0

    def rate(step):
        step = jnp.asarray(step, jnp.float32)
        progress = jnp.clip((step - start) / max(1, steps - start), 0.0, 1.0)
        left = jnp.clip((steps - step) / cooldown, 0.0, 1.0) if cooldown else 1.0
        falling = {"linear": 1.0 - progress, "cosine": 0.5 * (1.0 + jnp.cos(jnp.pi * progress)), "constant": left}
        falling = falling[decay.removeprefix("warmup_").removeprefix("reverse_")]
        rising = step / max(1, warmup)
        if decay == "warmup_linear":
            rising = rising * falling
        if reverse:
            rising = 0.5 * (1.0 - jnp.cos(jnp.pi * rising))
        is_warmup = (step <= warmup) & (warmup > 0) if openai else step < warmup
        return peak * jnp.where(is_warmup, rising, falling)

    return rate


def _slanted_triangular(optimizer, steps: int) -> Callable:
    peak, fraction, ratio = optimizer.learning_rate, optimizer.cut_fraction, optimizer.ratio
    if optimizer.warmup_steps:
        raise UserError(
            f"config.optimizer.warmup_steps={optimizer.warmup_steps}: decay='slanted_triangular' rises for cut_fraction, then"
            " falls to the end; set warmup_steps=0"
        )
    # Rounded first: 0.29 of 100 steps is 28.999999999999996 in binary.
    cut = math.floor(round(steps * fraction, 6))
    if steps and not cut:
        raise UserError(
            f"config.optimizer.cut_fraction={fraction} of config.train.steps={steps} is less than one step; raise either"
        )
    rise, fall = max(1, cut), max(1, cut) * (1 / fraction - 1)

    def rate(step):
        step = jnp.asarray(step, jnp.float32)
        height = jnp.where(step < cut, step / rise, jnp.maximum(0.0, 1.0 - (step - cut) / fall))
        return peak * (1.0 + height * (ratio - 1.0)) / ratio

    return rate
