"""Which parameters are trained when, and at which rate.

A learning rate is a function of the step; groups of parameters have factors of it, and stages of a
run train some of them. Group 0 holds the embeddings (and a tied output layer), groups 1 to n the
layers from the bottom; the last one is the head, if there is one: heads of objectives and tasks,
pooler, output layer and final norm.

    layer_decay, group_rates: A factor of each group's rate (Howard and Ruder 2018, section 3.2).
    thaw=gradual: The head first, then one more group each stage, from the top (ibid., 3.3).
    thaw=chain: The head, then each other group by itself from the bottom, then all (Felbo et al.
        2017, section 3.2).
    thaw=head, last: Only the head, or the head and the top layer, during the whole run.
    frozen: What the pattern matches is never trained.
"""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from bertlab.errors import UserError
from bertlab.models.lora import STACKED
from bertlab.train.state import parameter_name

EMBEDDINGS = re.compile(
    r"body/((token|position|segment|relative)_embedding$|relative_bias$"
    r"|(embedding|relative)_norm/|characters/)"
)
LAYER = re.compile(r"body/layer_(\d+)/")
HEAD = re.compile(r"(heads_[^/]+|body/(pooler|output|final_norm))/")
FROZEN = np.int32(-1)


def warmup_steps(optimizer, steps: int) -> int:
    """`config.optimizer.warmup_steps`; unset: a tenth of the steps, or of a stage's own if each has
    its own schedule. A slanted triangle has its own rise instead."""
    if optimizer.decay == "slanted_triangular":
        return 0
    if optimizer.warmup_steps is not None:
        return optimizer.warmup_steps
    return (min(steps, optimizer.thaw_steps) if optimizer.thaw_restarts else steps) // 10


def learning_rate(optimizer, steps: int) -> Callable:
    """(updates done, int or array) -> float32 rate of the next of `steps` updates.

    It warms up linearly from 0, then decays to 0. Written out because BERT's and OpenAI's decays
    count from step 0, while parts that `optax.join_schedules` joins count from where they begin.
    `config.optimizer.decay` is one of

        linear, cosine: From the end of warm-up; with `decay_from_start` from step 0, as in
            google-research/bert optimization.py: the rate drops a little where warm-up ends.
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
        if decay == "slanted_triangular":
            # Rounded first: 0.29 of 100 steps is 28.999999999999996 in binary.
            cut = max(1, math.floor(round(steps * optimizer.cut_fraction, 6)))
            fall = cut * (1 / optimizer.cut_fraction - 1)
            height = jnp.where(step < cut, step / cut, jnp.maximum(0.0, 1.0 - (step - cut) / fall))
            return peak * (1.0 + height * (optimizer.ratio - 1.0)) / optimizer.ratio
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


@dataclasses.dataclass(frozen=True)
class LayerPlan:
    """`config.optimizer` applied to one tree of parameters."""

    groups: Any  # like the parameters, int32: scalars, or [n, 1, ...] for n stacked layers
    # Of each group's rate in each stage, 0 if not trained there; the last column is the frozen
    # parameters'. The last stage lasts to the end.
    factors: Float[np.ndarray, "stages groups+1"]
    stage_steps: int  # updates in each of the others
    rate: Callable  # from `learning_rate`, before factors

    def rate_factors(self, step: Int[Array, ""]):
        """A tree that broadcasts against the parameters: their factors after `step` updates."""
        stage = jnp.minimum(step // self.stage_steps, len(self.factors) - 1)
        of_stage = jnp.asarray(self.factors)[stage]
        return jax.tree.map(lambda group: of_stage[group], self.groups)

    def updates_done(self, step: Int[Array, ""]):
        """A tree of int32: how many of the first `step` updates trained each parameter."""
        begins = self.stage_steps * np.arange(len(self.factors), dtype=np.int32)
        lengths = np.append(np.diff(begins), np.iinfo(np.int32).max).astype(np.int32)
        done = (jnp.clip(step - begins, 0, lengths)[:, None] * (self.factors > 0)).sum(0)
        return jax.tree.map(lambda group: done[group], self.groups)


def layer_plan(optimizer, steps: int, params) -> LayerPlan:
    """Applies `config.optimizer` to parameters (or their shapes)."""
    if optimizer.layer_decay != 1 or optimizer.group_rates or optimizer.thaw != "all":
        groups, names = layer_groups(params)
    else:  # works for any model
        groups, names = jax.tree.map(lambda _: np.int32(0), params), ("all",)
    if optimizer.frozen:

        def frozen_or(path, group):
            return FROZEN if re.search(optimizer.frozen, parameter_name(path)) else group

        groups = jax.tree.map_with_path(frozen_or, groups)
        if not any(group is FROZEN for group in jax.tree.leaves(groups)):
            raise UserError(f"config.optimizer.frozen={optimizer.frozen!r} matches no parameter")
    stages = thaw_stages(optimizer, steps, names)
    rate = learning_rate(optimizer, steps)
    early = (len(stages) - 1) * optimizer.thaw_steps  # updates before everything is trained
    if optimizer.thaw_restarts and early:
        in_stage = learning_rate(optimizer, optimizer.thaw_steps)
        at_last = learning_rate(optimizer, steps and steps - early)

        def rate(step):
            restarted = in_stage(step % optimizer.thaw_steps)
            return jnp.where(step < early, restarted, at_last(step - early))

    factors = np.pad(stages * group_factors(optimizer, names), ((0, 0), (0, 1)))
    return LayerPlan(groups, factors, max(1, optimizer.thaw_steps), rate)


def layer_groups(params) -> tuple[Any, tuple[str, ...]]:
    """Each parameter's group, as in `LayerPlan.groups`, and the groups' names from the bottom."""
    head = -1  # until the layers are counted

    def group(path, leaf):
        name = parameter_name(path).removeprefix("lora/")  # trained with its kernel
        if EMBEDDINGS.match(name):
            return np.int32(0)
        if HEAD.match(name):
            return np.int32(head)
        if STACKED.match(name):
            layers = np.arange(1, leaf.shape[0] + 1, dtype=np.int32)
            return layers.reshape(-1, *[1] * (leaf.ndim - 1))
        if layer := LAYER.match(name):
            return np.int32(int(layer[1]) + 1)
        raise UserError(
            f"config.optimizer.layer_decay, group_rates and thaw do not know the layer of {name};"
            " give the parameter a name of bertlab/train/schedules.py, or leave them out"
        )

    groups = jax.tree.map_with_path(group, params)
    layers = max(0, *(int(leaf.max()) for leaf in jax.tree.leaves(groups)))  # 0: a head alone
    names = ("embeddings", *(f"layer {i}" for i in range(1, layers + 1)))
    if any((leaf == head).any() for leaf in jax.tree.leaves(groups)):
        names += ("head",)
        groups = jax.tree.map(lambda g: np.where(g == head, np.int32(layers + 1), g), groups)
    return groups, names


def group_factors(optimizer, names: tuple[str, ...]) -> Float[np.ndarray, "groups"]:
    """The factor of each group's rate once it is trained."""
    if not optimizer.group_rates:
        return np.float32([optimizer.layer_decay**above for above in range(len(names))][::-1])
    factors = np.array(optimizer.group_rates.split(","), np.float32)
    if len(factors) != len(names) or not (factors > 0).all() or optimizer.layer_decay != 1:
        raise UserError(
            f"config.optimizer.group_rates={optimizer.group_rates!r} must be {len(names)} positive"
            f" numbers separated by commas, for {', '.join(names)}, and layer_decay=1"
        )
    return factors


def thaw_stages(optimizer, steps: int, names: tuple[str, ...]) -> Bool[np.ndarray, "stages groups"]:
    """Which groups each stage trains."""
    has_head, single = names[-1] == "head", np.eye(len(names), dtype=bool)
    upwards = np.triu(np.ones_like(single))  # row i: group i and all above it
    if optimizer.thaw == "last":
        return upwards[[-1 - has_head]]
    if optimizer.thaw == "head" and has_head:
        return upwards[-1:]
    early = {
        "all": single[:0],
        "gradual": upwards[:0:-1],
        "chain": np.roll(single, 1, axis=0) if has_head else single,
    }.get(optimizer.thaw)
    if early is not None and optimizer.thaw_stages <= len(early):
        early = early[: optimizer.thaw_stages or None]
        if not len(early) or 0 < len(early) * optimizer.thaw_steps < (steps or np.inf):
            return np.concatenate([early, upwards[:1]])
    raise UserError(
        f"config.optimizer.thaw={optimizer.thaw} with thaw_stages={optimizer.thaw_stages} of"
        f" thaw_steps={optimizer.thaw_steps}: the model's groups are {', '.join(names)}, and all"
        f" stages but the last must take more than 0 and fewer updates than the run's {steps}"
    )
