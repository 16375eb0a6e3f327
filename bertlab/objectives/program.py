"""A model and its objectives composed into pure functions of (params, batch, key).

Objectives that can share a view share one forward pass: those that see the batch as it is, those that see anything,
and each one with a view of its own apart.
"""

import dataclasses
import zlib
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array

from bertlab.errors import UserError
from bertlab.models.base import View, logical_axes, unbox
from bertlab.objectives.base import Bound, Metrics, Objective, Vocabulary


def group_by_view(objectives: Mapping[str, Objective]) -> dict[str, tuple[str, ...]]:
    """Which objectives share a forward pass: view name ("clean" or an objective's) to objective names."""
    groups = {}
    for name, objective in objectives.items():
        if objective.sees != "any":
            groups.setdefault("clean" if objective.sees == "clean" else name, []).append(name)
    riders = [name for name, objective in objectives.items() if objective.sees == "any"]
    if riders:
        groups.setdefault(next(iter(groups), "clean"), []).extend(riders)
    return {view: tuple(names) for view, names in groups.items()}


class _Composite(nn.Module):
    """The body with the objectives' heads; internal, since Linen needs one module to own all parameters."""

    body: nn.Module
    objectives: tuple[tuple[str, Objective], ...]

    def setup(self):
        self.heads = {name: head for name, o in self.objectives if (head := o.head()) is not None}

    def __call__(self, views: Mapping[str, View], deterministic: bool) -> Metrics:
        objectives = dict(self.objectives)
        metrics = {}
        for view_name, names in group_by_view(objectives).items():
            for name, values in self._ask(views[view_name], names, deterministic).items():
                metrics |= {f"{name}/{metric}": value for metric, value in values.items()}
        return metrics

    def _ask(self, view: View, names: tuple[str, ...], deterministic: bool) -> dict[str, Metrics]:
        """One forward pass, and the losses of all that share it."""
        encoded = self.body.encode(view, deterministic)
        predict = lambda hidden, side: self.body.predict_tokens(hidden, side, deterministic)
        pool = lambda: self.body.pool(encoded, view)
        objectives = dict(self.objectives)
        bound = {name: Bound(encoded, predict, pool, self.heads.get(name), deterministic) for name in names}
        return {name: _checked(objectives[name], objectives[name].loss(bound[name], view)) for name in names}

    def encode(self, view: View, deterministic: bool):
        return self.body.encode(view, deterministic)


def _checked(objective: Objective, metrics) -> Metrics:
    """An objective's metrics, refused with its name where they are not {name: (sum, weight)} with a "loss"."""
    kind = type(objective).__name__
    if not isinstance(metrics, Mapping) or "loss" not in metrics:
        raise UserError(f"objective {kind}: loss() must return a dict with the key 'loss', got {type(metrics).__name__}")
    for name, value in metrics.items():
        if not isinstance(value, tuple) or len(value) != 2 or any(jnp.shape(part) != () for part in value):
            raise UserError(f"objective {kind}: loss()['{name}'] must be (weighted sum, weight), two scalars")
    return metrics


@dataclasses.dataclass(frozen=True)
class Program:
    """Body and objectives as pure functions. Nothing here holds arrays.

    Attributes:
        body: a Linen body (`bertlab.models`).
        objectives: by name, in the config's order.
        vocabulary: special ids for the views.
    """

    body: nn.Module
    objectives: Mapping[str, Objective]
    vocabulary: Vocabulary

    @property
    def _module(self) -> _Composite:
        return _Composite(self.body, tuple(self.objectives.items()))

    def views(self, batch: View, key: Array) -> dict[str, View]:
        """What is shown, by view name. MLM masks the same positions whatever else is trained beside it."""
        batch = jax.tree.map(jnp.asarray, batch)
        shown = {}
        for name in group_by_view(self.objectives):
            own_key = jax.random.fold_in(key, zlib.crc32(name.encode()))
            shown[name] = batch if name == "clean" else self.objectives[name].view(batch, own_key, self.vocabulary)
        return shown

    def init(self, key: Array, batch: View):
        """Fresh parameters, a tree of float32 arrays. Values depend on the key and each parameter's path alone."""
        return unbox(self._init(key, batch))

    def logical_axes(self, batch: View):
        """The logical axis names of every parameter, a tree like `init`'s."""
        return logical_axes(jax.eval_shape(self._init, jax.random.key(0), batch))

    def _init(self, key, batch):
        return self._module.init(key, self.views(batch, key), True)["params"]

    def metrics(self, params, views: Mapping[str, View], key: Array | None = None) -> Metrics:
        """Every objective's losses and metrics, {"mlm/loss": (weighted sum, weight), ...}.

        Args:
            params: from `init`.
            views: from `views`.
            key: for dropout; None for none.
        """
        rngs = {} if key is None else {"dropout": key}
        return self._module.apply({"params": params}, views, key is None, rngs=rngs)

    def encode(self, params, view: View):
        """Hidden states (`Encoded`) without dropout."""
        return self._module.apply({"params": params}, view, True, method="encode")
