"""Training state, and the pure function on it: a training step."""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.sharding import Mesh
from jaxtyping import Array, Int
from ml_collections import ConfigDict

from bertlab.models.width import doubled, width_factors
from bertlab.objectives.program import Program
from bertlab.train.phases import Phase
from bertlab.train.sharding import batch_sharding, parameter_shardings, replicated


@struct.dataclass
class TrainState:
    """Everything that changes in training, arrays only."""

    step: Int[Array, ""]  # updates done
    params: Any  # float32
    opt_state: Any
    carry: Any  # recurrent states before the next batch's rows, [B, ...] by view and side, or {}


def init_state(program: Program, optimizer, mesh: Mesh, seed: int, batch, start=None) -> TrainState:
    """A fresh state without a carry, created on its devices, with the shapes of an example batch.
    `start` is (fresh parameters as NumPy arrays) -> those to start from."""

    def fresh(seed):
        params = program.init(jax.random.key(seed), batch)
        if (factors := program_factors(program, batch)) is not None:
            params = jax.tree.map(jnp.multiply, params, factors[0])
        return TrainState(jnp.zeros([], jnp.int32), params, optimizer.init(params), {})

    shardings = jax.tree.map(lambda x: x.sharding, abstract_state(program, optimizer, mesh, batch))
    state = jax.jit(fresh, out_shardings=shardings)(np.int32(seed))
    if start is None:
        return state
    params = start(jax.device_get(state.params))
    return state.replace(params=jax.device_put(params, shardings.params))


def abstract_state(program: Program, optimizer, mesh: Mesh, batch, carry=None) -> TrainState:
    """Shapes and shardings of a state: moments like their parameters, scalars on all devices."""

    def place(shape, sharding):
        # A part of an optimiser that does not train a parameter has a node without arrays for it.
        if isinstance(shape, optax.MaskedNode):
            return shape
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    params = jax.eval_shape(program.init, jax.random.key(0), batch)
    shardings = parameter_shardings(mesh, program.logical_axes(batch), params)
    opt_state = optax.tree.map_params(
        optimizer,
        place,
        jax.eval_shape(optimizer.init, params),
        shardings,
        transform_non_params=lambda shape: place(shape, replicated(mesh)),
        is_leaf=lambda node: isinstance(node, optax.MaskedNode),
    )
    step = place(jax.ShapeDtypeStruct((), jnp.int32), replicated(mesh))
    carry = jax.tree.map(lambda x: place(x, x.sharding), carry or {})
    return TrainState(step, jax.tree.map(place, params, shardings), opt_state, carry)


def program_factors(program: Program, batch) -> tuple[Any, Any] | None:
    """μP's factors of initial values and of updates (None at the base width)."""
    shape = program.body.shape
    times = getattr(shape, "times_base", 1)
    if times == 1:
        return None
    wider = dataclasses.replace(program, body=program.body.clone(shape=doubled(shape)))
    shapes = [jax.eval_shape(each.init, jax.random.key(0), batch) for each in (program, wider)]
    pairs = width_factors(times, program.logical_axes(batch), *shapes)
    return jax.tree.transpose(jax.tree.structure(shapes[0]), jax.tree.structure((0, 0)), pairs)


def zero_carry(program: Program, mesh: Mesh, rows: int):
    """Recurrent states before the first of all processes' rows; {} if nothing is carried."""
    return jax.jit(lambda: program.initial_carry(rows), out_shardings=batch_sharding(mesh))()


def build_gradients(program: Program, micro_batches: int, frozen: str) -> Callable:
    """(params, views, carry, key, weights) -> (gradients, (metrics, carry)); none for parameters
    whose names match `frozen`. Those of `micro_batches` parts add up to the whole batch's."""

    def trained(path, leaf):
        is_frozen = frozen and re.search(frozen, parameter_name(path))
        return jax.lax.stop_gradient(leaf) if is_frozen else leaf

    def loss(params, views, carry, key, weights, batch_metrics=None):
        """The weights of the whole batch's metrics divide each part's losses."""
        params = jax.tree.map_with_path(trained, params)
        metrics, carry = program.metrics(params, views, carry, key)
        total = 0.0
        for name, weight in weights.items():
            loss_sum, denominator = metrics[f"{name}/loss"]
            if batch_metrics is not None:
                denominator = batch_metrics[f"{name}/loss"][1]
            total = total + weight * loss_sum / jnp.where(denominator > 0, denominator, 1.0)
        return total, (metrics, carry)

    once = jax.grad(loss, has_aux=True)
    if micro_batches == 1:
        return once

    def split(x):  # rows in turn
        return x.reshape(-1, micro_batches, *x.shape[1:]).swapaxes(0, 1)

    def join(x):
        return x.swapaxes(0, 1).reshape(-1, *x.shape[2:])

    def accumulated(params, views, carry, key, weights):
        parts, carries = jax.tree.map(split, (views, carry))

        def only_weights(part):
            return {name: (0.0, pair[1]) for name, pair in program.metrics(params, part)[0].items()}

        # The weights of the losses depend on the views alone: the compiler drops the forward pass.
        batch_metrics = jax.tree.map(lambda x: x.sum(0), jax.lax.map(only_weights, parts))

        def add(total, inputs):
            grads, others = once(params, *inputs, weights, batch_metrics)
            return jax.tree.map(jnp.add, total, grads), others

        zeros = jax.tree.map(jnp.zeros_like, params)
        inputs = (parts, carries, jax.random.split(key, micro_batches))
        grads, (metrics, carry) = jax.lax.scan(add, zeros, inputs)
        return grads, (jax.tree.map(lambda x: x.sum(0), metrics), jax.tree.map(join, carry))

    return accumulated


def build_step(config: ConfigDict, phase: Phase, optimizer, mesh: Mesh, state: TrainState):
    """The training step of a phase, compiled: (state, batch) -> (state, sums).

    `sums` are {name: (weighted sum, weight)}: the objectives' metrics, `gradient_norm`,
    `parameter_norm` and `filled` (positions with tokens, of all). It reuses the old state's memory;
    runs that differ only in the seed share a program in JAX's compilation cache.
    """
    gradients = build_gradients(phase.program, config.train.micro_batches, config.optimizer.frozen)

    def train_step(state: TrainState, batch, seed: Int[Array, ""]):
        step_key = jax.random.fold_in(jax.random.key(seed), state.step)
        view_key, dropout_key = jax.random.split(step_key)
        progress = state.step.astype(jnp.float32) / max(1, config.train.steps)
        weights = {
            name: first + (last - first) * progress for name, (first, last) in phase.weights.items()
        }
        views = phase.program.views(batch, view_key, progress)
        grads, (metrics, carry) = gradients(state.params, views, state.carry, dropout_key, weights)

        # A stream of varying lengths scales the batch's rate; the scale is the same in all rows.
        rate_scale = batch["rate_scale"].max() if "rate_scale" in batch else 1.0
        before = state.opt_state, state.params
        updates, opt_state = optimizer.update(grads, *before, rate_scale=rate_scale)
        params = optax.apply_updates(state.params, updates)
        filled = jnp.sum(batch["documents"] > 0, dtype=jnp.float32)
        sums = {
            **metrics,
            "gradient_norm": (optax.tree.norm(grads), jnp.float32(1.0)),
            "parameter_norm": (optax.tree.norm(params), jnp.float32(1.0)),
            "filled": (filled, jnp.float32(batch["documents"].size)),
        }
        return TrainState(state.step + 1, params, opt_state, carry), sums

    # The output is the next input: without a sharding, the partitioner may move it.
    shardings = jax.tree.map(lambda x: x.sharding, state)
    compiled = jax.jit(train_step, donate_argnums=0, out_shardings=(shardings, replicated(mesh)))
    return functools.partial(compiled, seed=np.int32(config.seed))


def parameter_name(path) -> str:
    """ "body/blocks/qkv_kernel" of a path in a tree of parameters."""
    return jax.tree_util.keystr(path, simple=True, separator="/")
