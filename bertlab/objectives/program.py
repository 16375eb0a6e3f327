"""A model and its objectives composed into pure functions of (params, batch, key).

Objectives that can share a view share one forward pass: those that see the batch as it is, and each one with a view of its
own apart, with those that see it too. What else is trained beside an objective never changes what it is shown. Over a stream
there is one view, and one carried state, a direction: left-to-right and right-to-left models read independent streams, as
ELMo's did.
"""

import dataclasses
import functools
import zlib
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array

from bertlab.models.base import Carry, Encoded, View, logical_axes, unbox
from bertlab.objectives.base import Bound, Metrics, Objective, Vocabulary
from bertlab.objectives.blame import blamed


def group_by_view(objectives: Mapping[str, Objective], stream: bool = False) -> dict[str, tuple[str, ...]]:
    """Which objectives share a forward pass: view name to objective names.

    A view is "clean", an objective's own by its name, or, over a stream, the direction that its objectives read.
    """
    groups = {}
    for name, objective in objectives.items():
        if objective.sees in ("clean", "own"):
            shared = objective.reads if stream and objective.reads in ("forward", "backward") else "clean"
            groups.setdefault(shared if objective.sees == "clean" else name, []).append(name)
    for name, objective in objectives.items():
        if objective.sees in objectives:
            groups[objective.sees].append(name)
    riders = [name for name, objective in objectives.items() if objective.sees == "any"]
    if riders:
        directions = [view for view in groups if stream and view in ("forward", "backward")]
        # Not whichever comes first: a third objective must not change what these see.
        groups.setdefault("mlm" if "mlm" in groups else (*directions, "clean")[0], []).extend(riders)
    return {view: tuple(names) for view, names in groups.items()}


class _Composite(nn.Module):
    """The body with the objectives' heads; internal, since Linen needs one module to own all parameters."""

    body: nn.Module
    objectives: tuple[tuple[str, Objective], ...]
    vocabulary: Vocabulary
    stream: bool

    def setup(self):
        heads = {}
        for name, objective in self.objectives:
            with blamed(name, objective, "head"):
                heads[name] = objective.head(self.body)
        self.heads = {name: head for name, head in heads.items() if head is not None}

    def __call__(
        self, views: Mapping[str, View], deterministic: bool, carry: Mapping[str, Carry], key: Array | None
    ) -> tuple[Metrics, Mapping[str, Carry]]:
        objectives = dict(self.objectives)
        metrics, carried = {}, {}
        for view_name, names in group_by_view(objectives, self.stream).items():
            before = carry.get(view_name, {})
            asked, after = self._ask(views[view_name], names, deterministic, before, key)
            carried |= {view_name: after} if before else {}
            for name, values in asked.items():
                metrics |= {f"{name}/{metric}": value for metric, value in values.items()}
        return metrics, carried

    def _ask(self, view: View, names: tuple[str, ...], deterministic: bool, carry: Carry, key: Array | None):
        """One forward pass, and the losses of all that share it."""
        encode = lambda view: self.body.encode(view, deterministic, {})[0]
        # Not before it is asked for: an objective may read other views alone.
        shown = functools.cache(lambda: self.body.encode(view, deterministic, carry))
        states, pool = lambda: shown()[0], lambda: self.body.pool(shown()[0], view)
        objectives, losses = dict(self.objectives), {}
        for name in names:
            own_key = None if key is None else jax.random.fold_in(key, zlib.crc32(name.encode()))
            head = self.heads.get(name)
            model = Bound(states, encode, self.body.predict_tokens, pool, head, self.vocabulary, deterministic, own_key)
            with blamed(name, objectives[name], "loss"):
                losses[name] = _checked(objectives[name].loss(model, view))
        return losses, shown()[1] if carry else {}

    def encode(self, view: View, deterministic: bool, carry: Carry) -> tuple[Encoded, Carry]:
        return self.body.encode(view, deterministic, carry)

    def predict_tokens(self, hidden, side: str):
        return self.body.predict_tokens(hidden, side)


def _checked(metrics) -> Metrics:
    """An objective's metrics, refused where they are not {name: (sum, weight)} with a "loss"."""
    if not isinstance(metrics, Mapping) or "loss" not in metrics:
        raise TypeError(f"loss() must return a dict with the key 'loss', got {_in_short(metrics)}")
    for name, value in metrics.items():
        if not isinstance(value, tuple) or len(value) != 2 or any(jnp.shape(part) != () for part in value):
            raise TypeError(f"loss()['{name}'] must be (weighted sum, weight), two scalars, got {_in_short(value)}")
    return {name: tuple(jnp.asarray(part, jnp.float32) for part in value) for name, value in metrics.items()}


def _checked_view(batch: View, view) -> View:
    """An objective's view, refused where a field has not one entry for each row, or the body could not read it."""
    if not isinstance(view, Mapping):
        raise TypeError(f"view() must return a dict of arrays, got {_in_short(view)}")
    rows = batch["tokens"].shape[0]
    for name, value in view.items():
        if jnp.shape(value)[:1] != (rows,):
            raise TypeError(f"view()['{name}'] must have the batch's {rows} rows as its first axis, got {_in_short(value)}")
    for name in ("tokens", "segments", "documents", "positions"):
        if name not in batch:
            continue
        if name not in view or "tokens" not in view:
            lost = name if name not in view else "tokens"
            raise TypeError(f"view() must keep the batch's field '{lost}', which the model reads: return {{**batch, ...}}")
        shape, expected = jnp.shape(view[name]), jnp.shape(view["tokens"])
        if shape != expected or not jnp.issubdtype(jnp.asarray(view[name]).dtype, jnp.integer):
            kind = jnp.asarray(view[name]).dtype
            raise TypeError(f"view()['{name}'] must be integers of the shape of 'tokens', {expected}, got {kind} {shape}")
    return view


def _in_short(value) -> str:
    """A value as a message shows it: a dict by its keys, arrays by their shapes."""
    if isinstance(value, Mapping):
        return f"a dict with the keys {', '.join(map(repr, value))}" if value else "an empty dict"
    if isinstance(value, tuple):
        return f"({', '.join(map(_in_short, value))})"
    return f"shape {jnp.shape(value)}" if hasattr(value, "shape") else type(value).__name__


@dataclasses.dataclass(frozen=True)
class Program:
    """Body and objectives as pure functions. Nothing here holds arrays.

    Attributes:
        body: a Linen body (`bertlab.models`).
        objectives: by name, in the order of their names (a config's); there may be none in a program that only encodes.
        vocabulary: special ids for the views.
        stream: rows go on where the batch before ended.
        stateful: recurrent states go on with them.
    """

    body: nn.Module
    objectives: Mapping[str, Objective]
    vocabulary: Vocabulary
    stream: bool = False
    stateful: bool = False

    @property
    def _module(self) -> _Composite:
        return _Composite(self.body, tuple(self.objectives.items()), self.vocabulary, self.stream)

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """View name to the objectives that share its forward pass."""
        return group_by_view(self.objectives, self.stream)

    def views(self, batch: View, key: Array, progress: Array | float = 1.0) -> dict[str, View]:
        """What is shown, by view name. MLM masks the same positions whatever else is trained beside it.

        Args:
            batch: of the data, NumPy or JAX arrays.
            key: of this step.
            progress: share of the training's steps that are done; 1 in evaluation.
        """
        batch, progress = jax.tree.map(jnp.asarray, batch), jnp.asarray(progress, jnp.float32)
        shown = {}
        for name in self.groups:
            own_key = jax.random.fold_in(key, zlib.crc32(name.encode()))
            if name in self.objectives:
                objective = self.objectives[name]
                with blamed(name, objective, "view"):
                    shown[name] = _checked_view(batch, objective.view(batch, own_key, self.vocabulary, progress))
            else:
                shown[name] = _one_stream(batch, name)
        return shown

    def initial_carry(self, rows: int) -> dict[str, Carry]:
        """States before the first batch: zeros, by view and side; {} where nothing is carried."""
        if not self.stateful:
            return {}
        sides = [view for view in self.groups if view in ("forward", "backward")]
        return {side: self.body.config.initial_carry(rows, (side,)) for side in sides}

    def init(self, key: Array, batch: View):
        """Fresh parameters, a tree of float32 arrays. Values depend on the key and each parameter's path alone."""
        return unbox(self._init(key, batch))

    def logical_axes(self, batch: View):
        """The logical axis names of every parameter, a tree like `init`'s."""
        return logical_axes(jax.eval_shape(self._init, jax.random.key(0), batch))

    def _init(self, key, batch):
        if not self.objectives:
            return self._module.init(key, batch, True, {}, method="encode")["params"]
        return self._module.init(key, self.views(batch, key), True, {}, key)["params"]

    def metrics(self, params, views: Mapping[str, View], key: Array | None = None) -> Metrics:
        """Every objective's losses and metrics, {"mlm/loss": (weighted sum, weight), ...}; recurrent states begin at zero.

        Args:
            params: from `init`.
            views: from `views`.
            key: for dropout and negative samples; None for neither.
        """
        return self.metrics_and_carry(params, views, {}, key)[0]

    def metrics_and_carry(self, params, views: Mapping[str, View], carry: Mapping[str, Carry], key: Array | None = None):
        """`metrics` with the states that the rows begin with, and those that they end with."""
        dropout_key = None if key is None else jax.random.fold_in(key, 0)
        sample_key = None if key is None else jax.random.fold_in(key, 1)
        rngs = {} if key is None else {"dropout": dropout_key}
        return self._module.apply({"params": params}, views, key is None, carry, sample_key, rngs=rngs)

    def encode(self, params, view: View) -> Encoded:
        """Hidden states without dropout; recurrent states begin at zero."""
        return self.encode_and_carry(params, view, {})[0]

    def encode_and_carry(self, params, view: View, carry: Carry) -> tuple[Encoded, Carry]:
        """`encode` with the states that the rows begin with, and those that they end with."""
        return self._module.apply({"params": params}, view, True, carry, method="encode")

    def predict_tokens(self, params, hidden: Array, side: str) -> Array:
        """Logits over the vocabulary of states of one side, without dropout."""
        return self._module.apply({"params": params}, hidden, side, method="predict_tokens")


def _one_stream(batch: View, view_name: str) -> View:
    """The fields of one direction: a stream's second one goes by prefixed names, and labels go with their direction."""
    prefix = "backward_"
    first = {k: v for k, v in batch.items() if not k.startswith(prefix)}
    second = {k.removeprefix(prefix): v for k, v in batch.items() if k.startswith(prefix)}
    if view_name != "backward":
        return first
    return {**{k: v for k, v in first.items() if k != "next_tokens"}, **second}
