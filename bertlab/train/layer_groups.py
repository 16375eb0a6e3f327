"""Sets which layers are trained when, and at what rate: groups of parameters from the bottom, and stages of a run.

Group 0 holds the embeddings (and a tied output layer), groups 1 to n the layers from the bottom. The last group is the head, if
the model has one: heads of tasks and objectives, pooler, output layer and final norm.

    layer_decay, group_rates: a factor of the rate for each group ("discriminative": Howard and Ruder 2018, section 3.2).
    thaw="gradual": the head first, then one more group each stage, from the top (ibid., section 3.3).
    thaw="chain": the head, then each other group by itself from the bottom, then all (Felbo et al. 2017, section 3.2).
    thaw="head", "last": only the head, or the head and the top layer, for the whole run.
    frozen: parameters that no stage trains.

Everything follows from the names of parameters and the number of updates; no state is needed.
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
from bertlab.train.schedules import learning_rate

_EMBEDDINGS = re.compile(
    r"body/((token|position|segment|relative)_embedding$|relative_bias$|(embedding|relative)_norm/|characters/)"
)
STACKED = re.compile(r"body/(blocks|forward|backward)/")
LAYER = re.compile(r"body/layer_(\d+)/")
_HEAD = re.compile(r"(heads_[^/]+|body/(pooler|output|final_norm))/")


def parameter_name(path) -> str:
    """ "body/blocks/up/kernel" of a path in a tree of parameters."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def parameter_at(params, path):
    """The parameter at a path of another tree; None if there is none."""
    for key in path:
        params = params.get(key.key) if isinstance(params, dict) else None
    return params


def layer_groups(params) -> tuple[Any, tuple[str, ...]]:
    """Each parameter's group.

    Args:
        params: of any family, with the objectives' heads; arrays or their shapes.

    Returns:
        A tree like `params` of int arrays: scalars, or [n, 1, ...] for stacked layers; and the names of the groups from the
        bottom, with "head" only if the model has one.

    Raises:
        UserError: names a parameter whose layer is unknown.
    """
    head = -1  # until the layers are counted

    def group(path, leaf):
        # A low-rank update is trained with its kernel.
        name = parameter_name(path).removeprefix("lora/")
        if _EMBEDDINGS.match(name):
            return np.int32(0)
        if _HEAD.match(name):
            return np.int32(head)
        if STACKED.match(name):
            return np.arange(1, leaf.shape[0] + 1, dtype=np.int32).reshape(-1, *[1] * (leaf.ndim - 1))
        if layer := LAYER.match(name):
            return np.int32(int(layer[1]) + 1)
        raise UserError(
            f"parameter {name} belongs to no known layer; give it a name of bertlab.train.layer_groups, or leave"
            " config.optimizer.layer_decay, group_rates and thaw at their defaults"
        )

    groups = jax.tree_util.tree_map_with_path(group, params)
    leaves = jax.tree.leaves(groups)
    layers = max((int(leaf.max()) for leaf in leaves), default=0)
    names = ("embeddings", *(f"layer {i}" for i in range(1, layers + 1)))
    if any((leaf == head).any() for leaf in leaves):
        names += ("head",)
        groups = jax.tree.map(lambda leaf: np.where(leaf == head, np.int32(layers + 1), leaf), groups)
    return groups, names


def has_factors(optimizer) -> bool:
    """Whether `config.optimizer` sets different rates for groups."""
    return optimizer.layer_decay != 1 or bool(optimizer.group_rates)


def freezes(optimizer) -> bool:
    """Whether `config.optimizer` leaves any parameter untrained, temporarily or permanently."""
    return optimizer.thaw != "all" or bool(optimizer.frozen)


def rate_factors(optimizer, names: tuple[str, ...]) -> Float[np.ndarray, "groups"]:
    """The factor of each group's rate.

    Raises:
        UserError: `group_rates` does not have one positive number per group.
    """
    if not optimizer.group_rates:
        return np.float32([optimizer.layer_decay ** (len(names) - 1 - i) for i in range(len(names))])
    factors = parse_group_rates(optimizer.group_rates)
    if len(factors) != len(names):
        raise UserError(
            f"config.optimizer.group_rates={optimizer.group_rates!r} has {len(factors)} factors, and this model"
            f" {len(names)} groups: {', '.join(names)}; give one for each, from the bottom"
        )
    return np.float32(factors)


def parse_group_rates(text: str) -> list[float]:
    """The factors of "0.1667,0.3333,1,0.5".

    Raises:
        UserError: an entry is not a positive number.
    """
    try:
        factors = [float(part) for part in text.split(",")]
    except ValueError:
        factors = [0.0]
    if not all(0 < factor < math.inf for factor in factors):
        raise UserError(
            f"config.optimizer.group_rates={text!r} must be positive numbers with commas between them, for example"
            " '0.1667,0.3333,1,0.5'"
        )
    return factors


def thaw_stages(optimizer, names: tuple[str, ...]) -> Bool[np.ndarray, "stages groups"]:
    """Which groups each stage trains; the last stage lasts to the end of the run.

    Raises:
        UserError: the setting needs a head and the model has none, or `thaw_stages` is more than the number of stages.
    """
    groups, has_head, kind = len(names), names[-1:] == ("head",), optimizer.thaw
    only = lambda *members: np.isin(np.arange(groups), members)
    everything = np.ones([1, groups], bool)
    if kind == "all":
        return everything
    if kind == "head" and not has_head:
        raise UserError(f"config.optimizer.thaw='head': this model has no head, only {', '.join(names)}; choose another")
    if kind in ("head", "last"):
        return only(*range(groups - (1 + (kind == "last" and has_head)), groups))[None]
    if kind == "gradual":
        early = [only(*range(first, groups)) for first in reversed(range(1, groups))]
    else:
        below = [only(group) for group in range(groups - has_head)]
        early = [only(groups - 1), *below] if has_head else below
    if optimizer.thaw_stages > len(early):
        raise UserError(
            f"config.optimizer.thaw_stages={optimizer.thaw_stages}, and thaw={kind!r} has {len(early)} stages before all of"
            f" {', '.join(names)} are trained; give at most {len(early)}, or 0 for all of them"
        )
    return np.concatenate([np.stack(early)[: optimizer.thaw_stages or None], everything]) if early else everything


@dataclasses.dataclass(frozen=True)
class LayerPlan:
    """`config.optimizer` applied to one tree of parameters (`layer_plan`).

    Attributes:
        groups: tree of int arrays, from `layer_groups`.
        names: names of the groups.
        factors: factor of each group's rate.
        stages: which groups each stage trains.
        stage_steps: updates per stage, except the last.
        never: tree of booleans: the parameters that `frozen` matches.
        rate: (updates done) -> the rate before factors.
    """

    groups: Any
    names: tuple[str, ...]
    factors: Float[np.ndarray, "groups"]
    stages: Bool[np.ndarray, "stages groups"]
    stage_steps: int
    never: Any
    rate: Callable[[Int[Array, ""]], Float[Array, ""]]

    def groups_trained(self, step: Int[Array, ""] | int) -> Bool[Array, "groups"]:
        """Which groups the update after `step` others trains."""
        if len(self.stages) == 1:
            return self.stages[0]
        return jnp.asarray(self.stages)[jnp.minimum(step // self.stage_steps, len(self.stages) - 1)]

    def trained(self, step: Int[Array, ""]):
        """The same as a tree of masks that match the parameters; NumPy arrays if they never change."""
        groups = self.groups_trained(step)
        return jax.tree.map(lambda group, never: np.zeros([], bool) if never else groups[group], self.groups, self.never)

    def updates_before(self, step: Int[Array, ""]):
        """How many of the first `step` updates trained each parameter, as a tree of int32 arrays that match the parameters."""
        begin = np.arange(len(self.stages)) * self.stage_steps
        longest = np.full(len(self.stages), self.stage_steps)
        longest[-1] = np.iinfo(np.int32).max
        in_stage = jnp.clip(step - begin, 0, longest)
        counts = (in_stage[:, None] * self.stages).sum(0).astype(jnp.int32)
        return jax.tree.map(lambda group: counts[group], self.groups)

    def rate_factors(self):
        """The factors as a tree of float32 arrays that match the parameters."""
        return jax.tree.map(lambda group: self.factors[group], self.groups)


def layer_plan(optimizer, steps: int, params) -> LayerPlan:
    """Applies `config.optimizer` to these parameters.

    Args:
        optimizer: `config.optimizer`, checked by `check_optimizer`.
        steps: of the whole run.
        params: arrays or their shapes, or gradients.

    Raises:
        UserError: groups, factors, stages and steps do not fit together, or `frozen` matches no parameter or all of them.
    """
    paths = jax.tree.leaves_with_path(params)
    if has_factors(optimizer) or optimizer.thaw != "all":
        groups, names = layer_groups(params)
    else:  # any model will do
        groups, names = jax.tree.map(lambda _: np.int32(0), params), ("all",)
    never = jax.tree_util.tree_map_with_path(
        lambda path, _: bool(optimizer.frozen and re.search(optimizer.frozen, parameter_name(path))), params
    )
    found = set(jax.tree.leaves(never))
    if optimizer.frozen and paths and len(found) == 1:
        matched = "every" if found == {True} else "no"
        raise UserError(
            f"config.optimizer.frozen={optimizer.frozen!r} matches {matched} parameter; the model has"
            f" {', '.join(sorted({'/'.join(parameter_name(path).split('/')[:2]) for path, _ in paths}))}"
        )
    stages = thaw_stages(optimizer, names)
    early = (len(stages) - 1) * optimizer.thaw_steps
    if len(stages) > 1 and optimizer.thaw_steps < 1:
        raise UserError(
            f"config.optimizer.thaw={optimizer.thaw!r} needs config.optimizer.thaw_steps, the number of updates per stage"
        )
    if early and 0 < steps <= early:
        raise UserError(
            f"config.optimizer.thaw={optimizer.thaw!r} with {len(stages) - 1} stages of thaw_steps={optimizer.thaw_steps}"
            f" before all are trained use up config.train.steps={steps}; give more steps or fewer thaw_stages"
        )
    if optimizer.thaw_restarts and early:
        stage_rate, last_rate = (_stage_rate(optimizer, n) for n in (optimizer.thaw_steps, steps - early if steps else 0))
        rate = lambda step: jnp.where(step < early, stage_rate(step % optimizer.thaw_steps), last_rate(step - early))
    else:
        rate = learning_rate(optimizer, steps)
    return LayerPlan(groups, names, rate_factors(optimizer, names), stages, optimizer.thaw_steps, never, rate)


def _stage_rate(optimizer, steps: int) -> Callable:
    try:
        return learning_rate(optimizer, steps)
    except UserError as error:
        raise UserError(
            f"config.optimizer.thaw_restarts=True, in a stage of {steps} steps (smaller batches make more): {error}"
        ) from None


def applied_rates(optimizer, steps: int, params, step: int) -> dict[str, float]:
    """The rate of each group after `step` updates of `steps`, by name from the bottom; 0 for a group that is not trained.

    Without groups, {"all": rate}. A batch's `rate_scale` and GPT's bias correction multiply these rates.
    """
    plan = layer_plan(optimizer, steps, params)
    pairs = zip(jax.tree.leaves(plan.groups), jax.tree.leaves(plan.never), strict=True)
    reached = {int(group) for groups, never in pairs if not never for group in groups.ravel()}
    rates = float(plan.rate(step)) * plan.factors * np.asarray(plan.groups_trained(step))
    return {name: float(rate) if i in reached else 0.0 for i, (name, rate) in enumerate(zip(plan.names, rates, strict=True))}


def stage_table(optimizer, steps: int, params) -> list[str]:
    """One line per stage with its groups and their highest rates: "steps 0 to 99: head 0.01, layer 2 0.00385".

    The list is empty if everything is trained at one rate.
    """
    if not (freezes(optimizer) or has_factors(optimizer)):
        return []
    plan, lines = layer_plan(optimizer, steps, params), []
    for stage in range(len(plan.stages)):
        first = stage * plan.stage_steps
        end = steps if stage == len(plan.stages) - 1 else first + plan.stage_steps
        peak = first + int(np.argmax(plan.rate(np.arange(first, end)))) if end > first else first
        rates = applied_rates(optimizer, steps, params, peak)
        shown = ", ".join(f"{name} {rate:.3g}" for name, rate in reversed(rates.items()) if rate)
        lines.append(f"steps {first} to {max(end - 1, first)}: {shown}")
    return lines
