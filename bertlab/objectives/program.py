"""A model and its objectives composed into pure functions of (params, batch, key).

Objectives that share a view share one forward pass; no objective changes what another is shown. A
stream has one view and one carried state per direction: left-to-right and right-to-left models
read their own streams, as in ELMo.
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array

from bertlab.errors import UserError
from bertlab.models.base import Carry, Encoded, View
from bertlab.models.transformer import Transformer
from bertlab.objectives.base import Metrics, Model, Objective, Vocabulary


def group_by_view(
    objectives: Mapping[str, Objective], stream: bool = False
) -> dict[str, tuple[str, ...]]:
    """View name to the objectives that share its forward pass; a view is named after the objective
    that makes it, "batch", or the direction of a stream."""
    own = [name for name, item in objectives.items() if type(item).view is not Objective.view]
    groups = {}
    for name, objective in objectives.items():
        if objective.shares in own:
            view = objective.shares
        elif objective.shares == "any" and own:
            view = own[0]
        elif name in own:
            view = name
        elif stream and objective.reads in ("forward", "backward"):
            view = objective.reads
        else:
            view = "batch"
        groups.setdefault(view, []).append(name)
    # Over a stream, losses of states alone, such as `ar`, follow the direction.
    if stream and "batch" in groups and len(groups) > 1:
        groups[next(view for view in groups if view != "batch")] += groups.pop("batch")
    return {view: tuple(names) for view, names in groups.items()}


class _Composite(nn.Module):
    """The body with the objectives' heads: Linen needs one module that owns all parameters."""

    body: nn.Module
    objectives: tuple[tuple[str, Objective], ...]
    vocabulary: Vocabulary
    stream: bool

    def setup(self):
        heads = {name: objective.head(self.body) for name, objective in self.objectives}
        self.heads = {name: head for name, head in heads.items() if head is not None}

    def __call__(
        self, views: Mapping[str, View], carry: Mapping[str, Carry]
    ) -> tuple[Metrics, Mapping[str, Carry]]:
        """The losses of all objectives, and the states at the ends of the rows."""
        objectives, metrics, carried = dict(self.objectives), {}, {}
        for view_name, names in group_by_view(objectives, self.stream).items():
            view, before = views[view_name], carry.get(view_name, {})
            # Encoded when a loss asks for it: some only read other views.
            encode = functools.cache(functools.partial(self.body.encode, view, before))
            for name in names:
                losses = objectives[name].loss(self._model(name, view, encode), view)
                metrics |= {f"{name}/{metric}": value for metric, value in losses.items()}
            if before:
                carried[view_name] = encode()[1]
        return metrics, carried

    def _model(self, name: str, view: View, encode_own: Callable) -> Model:
        def encode(other: View | None = None) -> Encoded:
            return encode_own()[0] if other is None else self.encode(other)

        return Model(
            encode=encode,
            pool=lambda documents=None: self.body.pool(encode(), view, documents),
            predict_tokens=self.body.predict_tokens,
            head=self.heads.get(name),
            vocabulary=self.vocabulary,
        )

    def encode(self, view: View) -> Encoded:
        return self.body.encode(view, {})[0]

    def call(self, name: str, view: View, function: Callable[[Model, View], Any]) -> Any:
        encode = functools.cache(functools.partial(self.body.encode, view, {}))
        return function(self._model(name, view, encode), view)


@dataclasses.dataclass(frozen=True)
class Program:
    """Body and objectives as pure functions. Nothing here holds arrays."""

    body: nn.Module  # of `bertlab.models`
    objectives: Mapping[str, Objective]  # in the order of the config; empty for a fine-tuned run
    vocabulary: Vocabulary
    stream: bool = False  # rows continue where the last batch ended
    stateful: bool = False  # recurrent states continue with them
    adapter: Any = None  # parameters added to the model's (`bertlab.models.lora.Lora`)

    @property
    def module(self) -> _Composite:
        """The Linen module that owns all parameters."""
        return _Composite(self.body, tuple(self.objectives.items()), self.vocabulary, self.stream)

    def views(self, batch: View, key: Array, progress: Array | float = 1.0) -> dict[str, View]:
        """The views by name. An objective's draws do not depend on the others."""
        batch, progress = jax.tree.map(jnp.asarray, batch), jnp.asarray(progress, jnp.float32)
        views = {}
        for name in group_by_view(self.objectives, self.stream):
            if name not in self.objectives:
                views[name] = one_direction(batch, name)
                continue
            own_key = named_key(key, name)
            views[name] = self.objectives[name].view(batch, own_key, self.vocabulary, progress)
            if "order" in views[name] and not isinstance(self.body, Transformer):
                raise UserError(
                    f"objective {name} hides tokens by an order, which only transformers read;"
                    " choose another config.model.family"
                )
        return views

    def initial_carry(self, rows: int) -> dict[str, Carry]:
        """Recurrent states before the first batch, zeros by side; {} if none is carried."""
        if not self.stateful:
            return {}
        sides = {"forward", "backward"} & group_by_view(self.objectives, self.stream).keys()
        return {side: self.body.shape.initial_carry(rows, (side,)) for side in sorted(sides)}

    def init(self, key: Array, batch: View):
        """Fresh float32 parameters. Values depend only on the key and each parameter's path."""
        params, adapter = nn.meta.unbox(self._init(key, batch)), self.adapter
        return params if adapter is None else adapter.add(params, named_key(key, "adapter"))

    def logical_axes(self, batch: View):
        """The logical axis names of every parameter, a tree like `init`'s."""
        axes = nn.get_partition_spec(jax.eval_shape(self._init, jax.random.key(0), batch))
        return axes if self.adapter is None else self.adapter.logical_axes(axes)

    def _init(self, key, batch):
        if not self.objectives:
            return self.module.init(key, batch, method="encode")["params"]
        return self.module.init(key, self.views(batch, key), {})["params"]

    def plain(self, params):
        """The parameters that the model computes with: an adapter's updates are added."""
        if self.adapter is not None:
            return self.adapter.merge(params)
        if "lora" in params:
            raise UserError("the parameters have low-rank updates: set config.lora as in their run")
        return params

    def metrics(
        self, params, views: Mapping[str, View], carry: Mapping[str, Carry] | None = None, key=None
    ):
        """The sums of all losses and metrics by "mlm/loss", ..., and the recurrent states at the
        ends of the rows, which begin with `carry` (None: zeros). `key` is for dropout and negative
        samples; None for neither."""
        rngs = {} if key is None else {"dropout": key}
        return self.module.apply({"params": self.plain(params)}, views, carry or {}, rngs=rngs)

    def encode(self, params, view: View) -> Encoded:
        """Hidden states without dropout; recurrent states begin at zero."""
        return self.module.apply({"params": self.plain(params)}, view, method="encode")

    def call(self, params, name: str, view: View, function: Callable[[Model, View], Any]) -> Any:
        """`function(model, view)` with the `Model` of one objective on a view, without dropout."""
        variables = {"params": self.plain(params)}
        return self.module.apply(variables, name, view, function, method="call")


def named_key(key: Array, name: str) -> Array:
    """A key that depends only on a name, not on which others there are."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def one_direction(batch: View, view_name: str) -> View:
    """The fields of one direction of a stream; those of the backward one have a prefix."""
    prefix = "backward_"
    forward = {name: value for name, value in batch.items() if not name.startswith(prefix)}
    if view_name != "backward":
        return forward
    forward.pop("next_tokens", None)
    cut = {name.removeprefix(prefix): x for name, x in batch.items() if name.startswith(prefix)}
    return {**forward, **cut}
