"""A model and its objectives composed into pure functions of (params, batch, key).

Objectives that share a view share one forward pass. The other objectives never change what an objective is shown. A stream has
one view and one carried state per direction: left-to-right and right-to-left models read independent streams, as in ELMo.
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool

from bertlab import papers
from bertlab.errors import UserError
from bertlab.models.base import Carry, Encoded, View, logical_axes, rows_apart, sequence_parts, unbox
from bertlab.objectives.base import Bound, Metrics, Objective, Vocabulary, without
from bertlab.objectives.blame import blamed
from bertlab.objectives.choosing import at_positions
from bertlab.objectives.judging import check_token_logits
from bertlab.objectives.linear_cross_entropy import linear_cross_entropy

STATISTICS = "statistics"
"""The collection of new values of running statistics. A module keeps its statistics among its parameters, so a checkpoint has
them; in training it sows their new values, and the training step puts these in the parameters' places after the update."""


def group_by_view(objectives: Mapping[str, Objective], stream: bool = False) -> dict[str, tuple[str, ...]]:
    """View name to the objectives that share its forward pass.

    A view is "clean", named after the objective that shows it, or, over a stream, the direction that its objectives read.
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
            raise UserError(f"{' and '.join(shared)} both provide a view for {', '.join(riders)}; drop one of them")
        directions = [view for view in groups if stream and view in ("forward", "backward")]
        groups.setdefault((*shared, *directions, "clean")[0], []).extend(riders)
    return {view: tuple(names) for view, names in groups.items()}


class _Composite(nn.Module):
    """The body with the objectives' heads: Linen needs one module that owns all parameters."""

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
        """One forward pass, and the losses (and outputs) of all objectives that share it."""
        still = deterministic or self.fixed_body
        # Only when asked for: an objective may read other views.
        shown = functools.cache(lambda: self.body.encode(view, still, carry))
        objectives, losses, outputs = dict(self.objectives), {}, {}
        for name in names:
            model = self._bound(name, view, lambda: shown()[0], deterministic, key)
            called = []  # the functions of the model's output layer, each time the loss uses one
            noting = {of: _noting(getattr(model, of), called) for of in ("predict_tokens", "token_loss")}
            with blamed(name, objectives[name], "loss"):
                losses[name] = _checked(objectives[name].loss(dataclasses.replace(model, **noting), view))
                if not called:
                    check_token_logits(name, objectives[name])
            with blamed(name, objectives[name], "outputs"):
                if keep_outputs and (kept := objectives[name].outputs(model, view)):
                    outputs[name] = kept
        return losses, shown()[1] if carry else {}, outputs

    def _bound(self, name: str, view: View, shown: Callable[[], Encoded], deterministic: bool, key: Array | None) -> Bound:
        still = deterministic or self.fixed_body
        return Bound(
            shown=shown,
            encode=lambda view: self.body.encode(view, still, {})[0],
            encode_chunks=lambda view, length, varied=False: _in_chunks(
                self.body, view, length, still, _own_key(key, f"{name}/chunks") if varied and key is not None else None
            ),
            predict_tokens=self.body.predict_tokens,
            token_loss=self._token_loss,
            pool=lambda documents=None: self.body.pool(shown(), view, documents),
            head=self.heads.get(name),
            view=view,
            body_config=getattr(self.body, "config", None),
            vocabulary=self.vocabulary,
            deterministic=deterministic,
            key=None if key is None else _own_key(key, name),
        )

    def _token_loss(self, hidden: Array, side: str, labels: Array, weights: Array, never: int | None = None) -> Metrics:
        hidden, table, bias = self.body.output_factors(hidden, side)
        if never is not None:
            bias = without(jnp.zeros(len(table)) if bias is None else bias, never)
        return linear_cross_entropy(hidden, table, bias, labels, weights, self.body.config.output.rows)

    def encode(self, view: View) -> Encoded:
        return self.body.encode(view, True, {})[0]

    def token_logits(self, view: View, name: str, side: str, places: Array | None = None) -> Array:
        encoded, objective = self.encode(view), dict(self.objectives)[name]
        hidden = encoded.output(side) if places is None else at_positions(encoded.output(side), places[:, None])[:, 0]
        with blamed(name, objective, "token_logits"):
            logits = objective.token_logits(self._bound(name, view, lambda: encoded, True, None), hidden, side)
            return self._of_tokens("token_logits", logits, hidden.shape[:-1])

    def hidden_logits(self, view: View, name: str, ranks: Array) -> Array:
        objective = dict(self.objectives)[name]
        with blamed(name, objective, "hidden_logits"):
            model = self._bound(name, view, lambda: self.encode(view), True, None)
            return self._of_tokens("hidden_logits", objective.hidden_logits(model, view, ranks), ranks.shape)

    def _of_tokens(self, method: str, logits: Array, shape: tuple[int, ...]) -> Array:
        if jnp.shape(logits) != (expected := (*shape, self.body.config.vocab_size)):
            raise TypeError(f"{method}() must return logits of shape {expected}, got {_in_short(logits)}")
        return logits


def _noting(function: Callable, called: list) -> Callable:
    """The function; it also adds itself to `called` at each call."""
    return lambda *args, **settings: called.append(function) or function(*args, **settings)


def _own_key(key: Array, name: str) -> Array:
    """A key that depends only on a name, not on the other objectives."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def _in_chunks(body: nn.Module, view: View, length: int, deterministic: bool, key: Array | None) -> Encoded:
    """A recurrent body's states; no gradient flows between chunks of about `length` positions in the order of reading."""
    starts = chunk_starts(view["tokens"].shape[1], length, key)
    starts = starts[::-1] if body.config.direction == "right-to-left" else starts
    return body.encode({**view, "cut": jnp.broadcast_to(starts, view["tokens"].shape)}, deterministic, {})[0]


def chunk_starts(size: int, length: int, key: Array | None = None) -> Bool[Array, "L"]:
    """Which of `size` positions begin a chunk of `length`, or with a key of lengths drawn as `papers.VARIED_LENGTHS` says."""
    if key is None:
        return jnp.arange(size) % length == 0
    of, (of_half, of_length) = papers.VARIED_LENGTHS, jax.random.split(key)
    most = (-(-size // of["shortest"]),)
    centre = jnp.where(jax.random.bernoulli(of_half, of["half_probability"], most), length / 2, length)
    lengths = (centre + of["stddev"] * jax.random.normal(of_length, most)).astype(jnp.int32)
    ends = jnp.cumsum(jnp.maximum(lengths, of["shortest"]))
    return jnp.zeros(size, bool).at[0].set(True).at[ends].set(True, mode="drop")


def _checked(metrics) -> Metrics:
    """An objective's metrics; refuses any that are not {name: (sum, weight)} with a "loss"."""
    if not isinstance(metrics, Mapping) or "loss" not in metrics:
        raise TypeError(f"loss() must return a dict with the key 'loss', got {_in_short(metrics)}")
    for name, value in metrics.items():
        if not isinstance(value, tuple) or len(value) != 2 or any(jnp.shape(part) != () for part in value):
            raise TypeError(f"loss()['{name}'] must be (weighted sum, weight), two scalars, got {_in_short(value)}")
    return {name: tuple(jnp.asarray(part, jnp.float32) for part in value) for name, value in metrics.items()}


def _checked_view(batch: View, view) -> View:
    """An objective's view; refuses fields without one entry per row, and those that the body cannot read."""
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
            raise TypeError(f"view() must keep the batch's field '{lost}' because the model reads it: return {{**batch, ...}}")
        shape, expected = jnp.shape(view[name]), jnp.shape(view["tokens"])
        if shape != expected or not jnp.issubdtype(jnp.asarray(view[name]).dtype, jnp.integer):
            kind = jnp.asarray(view[name]).dtype
            raise TypeError(f"view()['{name}'] must be integers with the shape of 'tokens', {expected}, got {kind} {shape}")
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
        objectives: by name, in the order of the config; empty in a program that only encodes.
        vocabulary: special ids for the views.
        stream: rows continue where the last batch ended.
        stateful: recurrent states continue with them.
        adapter: parameters added to the model's (`bertlab.train.lora.Lora`).
        fixed_body: the body is not trained and has no dropout, so its states are fixed features.
    """

    body: nn.Module
    objectives: Mapping[str, Objective]
    vocabulary: Vocabulary
    stream: bool = False
    stateful: bool = False
    adapter: Any = None
    fixed_body: bool = False

    @property
    def _module(self) -> _Composite:
        return _Composite(self.body, tuple(self.objectives.items()), self.vocabulary, self.stream, self.fixed_body)

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """View name to the objectives that share its forward pass."""
        return group_by_view(self.objectives, self.stream)

    def views(self, batch: View, key: Array, progress: Array | float = 1.0) -> dict[str, View]:
        """The views by name. MLM masks the same positions with any other objectives.

        Args:
            batch: of the data, NumPy or JAX arrays.
            key: of this step.
            progress: share of training steps done; 1 in evaluation.
        """
        batch, progress = jax.tree.map(jnp.asarray, batch), jnp.asarray(progress, jnp.float32)
        shown = {}
        for name in self.groups:
            if name in self.objectives:
                objective = self.objectives[name]
                with blamed(name, objective, "view"):
                    view = objective.view(batch, _own_key(key, name), self.vocabulary, progress)
                    shown[name] = _checked_view(batch, view)
            else:
                shown[name] = _one_stream(batch, name)
        # Where the mesh divides positions, only states are divided: what is drawn and sorted by row stays whole.
        return jax.tree.map(rows_apart, shown) if sequence_parts() > 1 else shown

    def initial_carry(self, rows: int) -> dict[str, Carry]:
        """States before the first batch: zeros, by view and side; {} if nothing is carried."""
        if not self.stateful:
            return {}
        sides = [view for view in self.groups if view in ("forward", "backward")]
        return {side: self.body.config.initial_carry(rows, (side,)) for side in sides}

    def init(self, key: Array, batch: View):
        """Fresh parameters, a tree of float32 arrays. Values depend only on the key and each parameter's path."""
        params = unbox(self._init(key, batch))
        return params if self.adapter is None else self.adapter.add(params, _own_key(key, "adapter"))

    def logical_axes(self, batch: View):
        """The logical axis names of every parameter, a tree like `init`'s."""
        axes = logical_axes(jax.eval_shape(self._init, jax.random.key(0), batch))
        return axes if self.adapter is None else self.adapter.logical_axes(axes)

    def _init(self, key, batch):
        if not self.objectives:
            return self._module.init(key, batch, method="encode")["params"]
        return self._module.init(key, self.views(batch, key), True, {}, key)["params"]

    def plain(self, params):
        """The parameters without an adapter, with which the model computes.

        Raises:
            UserError: the parameters have low-rank updates, and the program has no adapter for them.
        """
        if self.adapter is not None:
            return self.adapter.merge(params)
        if "lora" in params:
            raise UserError("these parameters have low-rank updates; set config.lora as in their run")
        return params

    def metrics(self, params, views: Mapping[str, View], key: Array | None = None) -> Metrics:
        """All losses and metrics, {"mlm/loss": (weighted sum, weight), ...}; recurrent states begin at zero.

        Args:
            params: from `init`.
            views: from `views`.
            key: for dropout and negative samples; None for neither.
        """
        return self.metrics_and_carry(params, views, {}, key)[0]

    def metrics_and_carry(self, params, views: Mapping[str, View], carry: Mapping[str, Carry], key: Array | None = None):
        """`metrics` from the states with which the rows begin; also returns those with which they end."""
        return self.metrics_carry_and_statistics(params, views, carry, key)[:2]

    def metrics_carry_and_statistics(
        self, params, views: Mapping[str, View], carry: Mapping[str, Carry], key: Array | None = None
    ):
        """`metrics_and_carry`, and new values of running statistics (`STATISTICS`), a tree like a part of the parameters."""
        dropout_key = None if key is None else jax.random.fold_in(key, 0)
        sample_key = None if key is None else jax.random.fold_in(key, 1)
        rngs = {} if key is None else {"dropout": dropout_key}
        (metrics, carry, _), kept = self._module.apply(
            {"params": self.plain(params)}, views, key is None, carry, sample_key, rngs=rngs, mutable=[STATISTICS]
        )
        return metrics, carry, kept.get(STATISTICS, {})

    def evaluate(self, params, views: Mapping[str, View], carry: Mapping[str, Carry]):
        """`metrics_and_carry` without dropout, and each objective's `outputs`, by name."""
        return self._module.apply({"params": self.plain(params)}, views, True, carry, None, True)

    def encode(self, params, view: View) -> Encoded:
        """Hidden states without dropout; recurrent states begin at zero."""
        return self._module.apply({"params": self.plain(params)}, view, method="encode")

    def token_logits(self, params, view: View, name: str, side: str, places: Array | None = None) -> Array:
        """`Objective.token_logits` of one objective from the states of a view, without dropout.

        Args:
            params: from `init`.
            view: what the body reads.
            name: of the objective.
            side: of the states.
            places: [B] one position of each row; None: all.
        """
        return self._module.apply({"params": self.plain(params)}, view, name, side, places, method="token_logits")

    def hidden_logits(self, params, view: View, name: str, ranks: Array) -> Array:
        """`Objective.hidden_logits` of one objective, without dropout; arguments as there."""
        return self._module.apply({"params": self.plain(params)}, view, name, ranks, method="hidden_logits")


def _one_stream(batch: View, view_name: str) -> View:
    """The fields of one direction; a stream's backward fields have a prefix."""
    prefix = "backward_"
    first = {k: v for k, v in batch.items() if not k.startswith(prefix)}
    second = {k.removeprefix(prefix): v for k, v in batch.items() if k.startswith(prefix)}
    if view_name != "backward":
        return first
    return {**{k: v for k, v in first.items() if k != "next_tokens"}, **second}
