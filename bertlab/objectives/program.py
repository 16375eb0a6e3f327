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
from typing import Protocol

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array

from bertlab.errors import UserError
from bertlab.models.base import Carry, Encoded, View, logical_axes, unbox
from bertlab.objectives.base import Bound, Metrics, Objective, Vocabulary
from bertlab.objectives.blame import blamed
from bertlab.objectives.linear_cross_entropy import linear_cross_entropy


def group_by_view(objectives: Mapping[str, Objective], stream: bool = False) -> dict[str, tuple[str, ...]]:
    """Which objectives share a forward pass: view name to objective names.

    A view is "clean", an objective's own by its name, or, over a stream, the direction that its objectives read.
    """
    groups = {}
    for name, objective in objectives.items():
        if objective.has_view or objective.sees == "clean":
            clean = objective.reads if stream and objective.reads in ("forward", "backward") else "clean"
            groups.setdefault(name if objective.has_view else clean, []).append(name)
    for name, objective in objectives.items():
        if objective.sees in objectives:
            groups[objective.sees].append(name)
    riders = [name for name, objective in objectives.items() if objective.sees == "any"]
    if riders:
        shared = [name for name, objective in objectives.items() if objective.sees == "shared"]
        if len(shared) > 1:
            raise UserError(f"{' and '.join(shared)} both offer a view to {', '.join(riders)}; drop one of them")
        directions = [view for view in groups if stream and view in ("forward", "backward")]
        groups.setdefault((*shared, *directions, "clean")[0], []).extend(riders)
    return {view: tuple(names) for view, names in groups.items()}


class _Composite(nn.Module):
    """The body with the objectives' heads; internal, since Linen needs one module to own all parameters."""

    body: nn.Module
    objectives: tuple[tuple[str, Objective], ...]
    vocabulary: Vocabulary
    stream: bool
    fixed_body: bool = False

    def setup(self):
        heads = {}
        for name, objective in self.objectives:
            with blamed(name, objective, "head"):
                heads[name] = objective.head(self.body)
        self.heads = {name: head for name, head in heads.items() if head is not None}

    def __call__(
        self,
        views: Mapping[str, View],
        deterministic: bool,
        carry: Mapping[str, Carry],
        key: Array | None,
        keep_outputs: bool = False,
    ) -> tuple[Metrics, Mapping[str, Carry], Mapping[str, Mapping[str, Array]]]:
        objectives = dict(self.objectives)
        metrics, carried, outputs = {}, {}, {}
        for view_name, names in group_by_view(objectives, self.stream).items():
            before = carry.get(view_name, {})
            asked, after, kept = self._ask(views[view_name], names, deterministic, before, key, keep_outputs)
            carried |= {view_name: after} if before else {}
            outputs |= kept
            for name, values in asked.items():
                metrics |= {f"{name}/{metric}": value for metric, value in values.items()}
        return metrics, carried, outputs

    def _ask(self, view, names: tuple[str, ...], deterministic: bool, carry: Carry, key: Array | None, keep_outputs: bool):
        """One forward pass, and the losses (and outputs) of all that share it."""
        still = deterministic or self.fixed_body
        encode = lambda view: self.body.encode(view, still, {})[0]
        # Not before it is asked for: an objective may read other views alone.
        shown = functools.cache(lambda: self.body.encode(view, still, carry))
        states, pool = lambda: shown()[0], lambda documents=None: self.body.pool(shown()[0], view, documents)
        objectives, losses, outputs = dict(self.objectives), {}, {}
        for name in names:
            own_key = None if key is None else jax.random.fold_in(key, zlib.crc32(name.encode()))
            head = self.heads.get(name)
            model = Bound(
                shown=states,
                encode=encode,
                encode_chunks=lambda view, length: _in_chunks(self.body, view, length, still),
                predict_tokens=self.body.predict_tokens,
                token_loss=self._token_loss,
                pool=pool,
                head=head,
                body_config=getattr(self.body, "config", None),
                vocabulary=self.vocabulary,
                deterministic=deterministic,
                key=own_key,
            )
            with blamed(name, objectives[name], "loss"):
                losses[name] = _checked(objectives[name].loss(model, view))
            if keep_outputs and (kept := objectives[name].outputs(model, view)):
                outputs[name] = kept
        return losses, shown()[1] if carry else {}, outputs

    def _token_loss(self, hidden: Array, side: str, labels: Array, weights: Array) -> Metrics:
        rows = self.body.config.output.rows
        return linear_cross_entropy(*self.body.output_factors(hidden, side), labels, weights, rows)

    def encode(self, view: View, deterministic: bool, carry: Carry) -> tuple[Encoded, Carry]:
        return self.body.encode(view, deterministic, carry)

    def predict_tokens(self, hidden, side: str):
        return self.body.predict_tokens(hidden, side)


def _in_chunks(body: nn.Module, view: View, length: int, deterministic: bool) -> Encoded:
    """A recurrent body's states, its recurrence cut in chunks of `length` positions between which no gradient flows."""
    _, size = view["tokens"].shape
    names = [name for name in ("tokens", "segments", "documents", "positions", "characters") if name in view]
    starts = list(range(0, size, length))
    side = "backward" if body.config.direction == "right-to-left" else "forward"
    carry, parts = body.config.initial_carry(len(view["tokens"]), (side,)), []
    for start in starts if side == "forward" else starts[::-1]:
        chunk = {name: view[name][:, start : start + length] for name in names}
        chunk["continues"] = jnp.full(len(view["tokens"]), len(parts) > 0, jnp.int32)
        encoded, carry = body.encode(chunk, deterministic, carry)
        parts.append(encoded)
    ordered = parts if side == "forward" else parts[::-1]
    return jax.tree.map(lambda *layers: jnp.concatenate(layers, axis=1), *ordered)


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


class Adapter(Protocol):
    """Functions of parameter trees; see `bertlab.train.lora.Lora`."""

    def add(self, params, key: Array):
        """The model's parameters with the adapter's own."""

    def logical_axes(self, axes):
        """The axis names of what `add` returns, from those of the model's parameters."""

    def merge(self, params):
        """The model's parameters from what `add` returns, and these as they are."""


@dataclasses.dataclass(frozen=True)
class Program:
    """Body and objectives as pure functions. Nothing here holds arrays.

    Attributes:
        body: a Linen body (`bertlab.models`).
        objectives: by name, in the order of their names (a config's); there may be none in a program that only encodes.
        vocabulary: special ids for the views.
        stream: rows go on where the batch before ended.
        stateful: recurrent states go on with them.
        adapter: adds parameters of its own to the model's, and makes of both those that the model computes with (LoRA).
        fixed_body: the body is not trained, and without dropout in training too: its states are fixed features.
    """

    body: nn.Module
    objectives: Mapping[str, Objective]
    vocabulary: Vocabulary
    stream: bool = False
    stateful: bool = False
    adapter: Adapter | None = None
    fixed_body: bool = False

    @property
    def _module(self) -> _Composite:
        return _Composite(self.body, tuple(self.objectives.items()), self.vocabulary, self.stream, self.fixed_body)

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
        params = unbox(self._init(key, batch))
        return params if self.adapter is None else self.adapter.add(params, jax.random.fold_in(key, zlib.crc32(b"adapter")))

    def logical_axes(self, batch: View):
        """The logical axis names of every parameter, a tree like `init`'s."""
        axes = logical_axes(jax.eval_shape(self._init, jax.random.key(0), batch))
        return axes if self.adapter is None else self.adapter.logical_axes(axes)

    def _init(self, key, batch):
        if not self.objectives:
            return self._module.init(key, batch, True, {}, method="encode")["params"]
        return self._module.init(key, self.views(batch, key), True, {}, key)["params"]

    def plain(self, params):
        """What the model computes with: parameters as any program without an adapter has them.

        Raises:
            UserError: the parameters have low-rank updates, and the program has no adapter for them.
        """
        if self.adapter is not None:
            return self.adapter.merge(params)
        if "lora" in params:
            raise UserError("these parameters have low-rank updates; set config.lora as in the run that they come from")
        return params

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
        return self._module.apply({"params": self.plain(params)}, views, key is None, carry, sample_key, rngs=rngs)[:2]

    def evaluate(self, params, views: Mapping[str, View], carry: Mapping[str, Carry]):
        """`metrics_and_carry` without dropout, and what the objectives keep of every row (`Objective.outputs`), by name."""
        return self._module.apply({"params": self.plain(params)}, views, True, carry, None, True)

    def encode(self, params, view: View) -> Encoded:
        """Hidden states without dropout; recurrent states begin at zero."""
        return self.encode_and_carry(params, view, {})[0]

    def encode_and_carry(self, params, view: View, carry: Carry) -> tuple[Encoded, Carry]:
        """`encode` with the states that the rows begin with, and those that they end with."""
        return self._module.apply({"params": self.plain(params)}, view, True, carry, method="encode")

    def predict_tokens(self, params, hidden: Array, side: str) -> Array:
        """Logits over the vocabulary of states of one side, without dropout."""
        return self._module.apply({"params": self.plain(params)}, hidden, side, method="predict_tokens")


def _one_stream(batch: View, view_name: str) -> View:
    """The fields of one direction: a stream's second one goes by prefixed names, and labels go with their direction."""
    prefix = "backward_"
    first = {k: v for k, v in batch.items() if not k.startswith(prefix)}
    second = {k.removeprefix(prefix): v for k, v in batch.items() if k.startswith(prefix)}
    if view_name != "backward":
        return first
    return {**{k: v for k, v in first.items() if k != "next_tokens"}, **second}
