"""Training state and the two pure functions over it: a training step and an evaluation step."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array

from bertlab.objectives.program import Program
from bertlab.train.layer_groups import parameter_name
from bertlab.train.optimizers import map_beside_params
from bertlab.train.sharding import BATCH, check_memory, parameter_shardings, replicated
from bertlab.train.width import initial_values


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything that changes in training, arrays only.

    Attributes:
        step: int32 scalar, number of updates done.
        params: float32 tree.
        opt_state: the optimiser's state.
        carry: recurrent states at the start of the next batch's rows, [B, ...] by view and side; empty without a stream.
    """

    step: Array
    params: Any
    opt_state: Any
    carry: Any


def init_state(program: Program, optimizer: optax.GradientTransformation, mesh: Mesh, seed: int, batch) -> TrainState:
    """A fresh state; each array is created on its own devices."""
    make, seed = lambda seed: fresh_state(program, optimizer, seed, batch), np.int32(seed)
    shapes = jax.eval_shape(make, seed)
    shardings = state_shardings(program, optimizer, mesh, batch, shapes)
    check_memory(shapes, shardings, mesh)
    return compile_lowered(jax.jit(make, out_shardings=shardings).lower(seed), level=0)(seed)


def fresh_state(program: Program, optimizer, seed: int | Array, batch) -> TrainState:
    """A fresh state without a placement."""
    params = initial_values(program, batch, program.init(jax.random.key(seed), batch))
    return TrainState(jnp.zeros([], jnp.int32), params, optimizer.init(params), program.initial_carry(len(batch["tokens"])))


def state_shardings(program: Program, optimizer, mesh: Mesh, batch, shapes: TrainState) -> TrainState:
    """The sharding of every array of a state: optimiser moments like their parameters, scalars on all devices."""
    whole = replicated(mesh)
    params = parameter_shardings(mesh, program.logical_axes(batch), shapes.params)
    opt_state = map_beside_params(optimizer, lambda _, sharding: sharding, shapes.opt_state, params, elsewhere=lambda _: whole)
    return TrainState(whole, params, opt_state, jax.tree.map(lambda _: NamedSharding(mesh, BATCH), shapes.carry))


def weighted_total(metrics, weights: Mapping[str, Array | float], denominators=None) -> Array:
    """Σ over objectives of weight · (Σ loss / Σ loss weight).

    Args:
        metrics: {"mlm/loss": (sum, weight), ...}, perhaps of one micro-batch.
        weights: objective name to weight.
        denominators: loss weights of the whole batch, if `metrics` are of a part of it.
    """
    total = 0.0
    for name, weight in weights.items():
        loss_sum, loss_weight = metrics[f"{name}/loss"]
        denominator = loss_weight if denominators is None else denominators[f"{name}/loss"][1]
        total = total + weight * loss_sum / jnp.where(denominator > 0, denominator, 1.0)
    return total


def weights_at(weights: Mapping[str, tuple[float, float]], progress: Array | float) -> dict[str, Array | float]:
    """Each objective's weight after a share `progress` of the training: changes linearly from its first to its last weight."""
    return {name: first + (last - first) * progress for name, (first, last) in weights.items()}


def build_train_step(
    program: Program,
    optimizer: optax.GradientTransformationExtraArgs,
    weights: Mapping[str, tuple[float, float]],
    micro_batches: int,
    steps: int,
    frozen: str = "",
) -> Callable:
    """The pure function (state, batch, seed) -> (state, metrics); all randomness of a step is a function of seed and step.

    Args:
        program: model and objectives.
        optimizer: from `build_optimizer`.
        weights: objective name to its weight in the loss at the first and at the last step; it changes linearly.
        micro_batches: number of parts of the batch; their gradients add up to the whole batch's.
        steps: of the whole run.
        frozen: pattern of parameter names without gradients ("": none); the optimiser must freeze them too.

    Returns:
        The step. Its metrics are (weighted sum, weight): those of the objectives, two norms, and the share of `padding`; and
        the number of `tokens` without padding.
    """

    def train_step(state: TrainState, batch, seed: int | Array):
        view_key, dropout_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), state.step))
        progress = state.step.astype(jnp.float32) / max(1, steps)
        now = weights_at(weights, progress)
        # Rows j, j + k, j + 2k, ... form micro-batch j, so each has its share of every device's rows.
        divided = lambda tree: jax.tree.map(lambda x: x.reshape(-1, micro_batches, *x.shape[1:]).swapaxes(0, 1), tree)
        joined = lambda tree: jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), tree)
        parts, carries = divided(program.views(batch, view_key, progress)), divided(state.carry)
        keys = jax.random.split(dropout_key, micro_batches)

        def loss_weights(part):
            # Only the weights are used. They depend only on the views, so the compiler drops the forward pass.
            return {k: (0.0, w) for k, (_, w) in program.metrics(state.params, part).items() if k.endswith("/loss")}

        def loss(params, part, carry, key, denominators):
            params = without_gradient(params, frozen)
            metrics, carry, statistics = program.metrics_carry_and_statistics(params, part, carry, key)
            return weighted_total(metrics, now, denominators), (metrics, carry, statistics)

        gradient = jax.grad(loss, has_aux=True)
        first = lambda tree: jax.tree.map(lambda x: x[0], tree)
        if micro_batches == 1:
            grads, (metrics, carry, statistics) = gradient(state.params, first(parts), first(carries), keys[0], None)
        else:
            denominators = jax.tree.map(lambda x: x.sum(0), jax.lax.map(loss_weights, parts))

            def accumulate(total, inputs):
                grads, (metrics, *rest) = gradient(state.params, *inputs, denominators)
                return jax.tree.map(jnp.add, total, (grads, metrics)), rest

            shapes = jax.eval_shape(gradient, state.params, first(parts), first(carries), keys[0], denominators)
            zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (shapes[0], shapes[1][0]))
            (grads, metrics), (carry, statistics) = jax.lax.scan(accumulate, zeros, (parts, carries, keys))
            # New statistics are linear in a micro-batch's, so this is one update with the mean of these.
            carry, statistics = joined(carry), jax.tree.map(lambda x: x.mean(0), statistics)
        metrics = {**metrics, "gradient_norm": (optax.tree.norm(grads), jnp.float32(1.0))}
        # A stream of varying lengths scales this batch's rate; the scale is the same in all rows.
        rate_scale = batch["rate_scale"].max() if "rate_scale" in batch else 1.0
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params, rate_scale=rate_scale)
        params = with_statistics(optax.apply_updates(state.params, updates), statistics)
        # Checked after the update: a state is good only if its own parameters are finite.
        metrics |= {"parameter_norm": (optax.tree.norm(params), jnp.float32(1.0))}
        tokens, positions = jnp.sum(batch["documents"] > 0), batch["documents"].size
        metrics |= {"padding": ((positions - tokens).astype(jnp.float32), jnp.float32(positions))}
        return TrainState(state.step + 1, params, opt_state, carry), {**metrics, "tokens": tokens}

    return train_step


def lower_train_step(program: Program, optimizer, config, weights, mesh: Mesh, state: TrainState, batch):
    """The compiler's view of the training step on a mesh.

    Args:
        program: model and objectives of the phase.
        optimizer: from `build_optimizer`.
        config: the whole config.
        weights: the phase's.
        mesh: of this machine's devices, or of a topology.
        state, batch: placed arrays, or ShapeDtypeStructs with shardings.

    Returns:
        A `jax.stages.Lowered`. Its executable takes a state (it reuses the memory), a batch, and the seed as an int32. So runs
        that differ only in the seed share one program in JAX's compilation cache.
    """
    train, frozen = config.train, config.optimizer.frozen
    step = build_train_step(program, optimizer, weights, train.micro_batches, train.steps, frozen)
    # The output is the next input: without a sharding the partitioner may place it elsewhere.
    placement = jax.tree.map(lambda x: x.sharding, state)
    options = compiler_options(mesh, config)
    with jax.set_mesh(mesh):
        step = jax.jit(step, donate_argnums=0, out_shardings=(placement, replicated(mesh)), compiler_options=options)
        return step.lower(state, batch, np.int32(config.seed))


def compiler_options(mesh: Mesh, config) -> dict[str, str]:
    """What the TPU's compiler is told where parameters are divided: to gather and sum them rather than pass parts in rings.

    By its own account (`bertlab plan`) a step with rings moves two to three times as much memory: docs/how-to/gpu-and-tpu.md.
    """
    is_divided = mesh.shape["fsdp"] * mesh.shape["tensor"] > 1
    if mesh.devices.flat[0].platform != "tpu" or not is_divided or config.mesh.windowed_einsum:
        return {}
    return {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}


def compile_lowered(lowered, level: int = 1):
    """The executable of a `jax.stages.Lowered`; on a CPU with this level of LLVM's optimisation (0 to 3).

    Training steps at level 1 are as fast as at 2, XLA's default, and compile in two thirds of the time.
    """
    if jax.default_backend() != "cpu" or jax.config.read("jax_disable_most_optimizations"):
        return lowered.compile()
    return lowered.compile(compiler_options={"xla_backend_optimization_level": level})


def without_gradient(params, frozen: str):
    """The parameters without gradients for those that the pattern matches, so these gradients are never computed."""
    if not frozen:
        return params
    is_frozen = lambda path: re.search(frozen, parameter_name(path))
    return jax.tree_util.tree_map_with_path(lambda path, x: jax.lax.stop_gradient(x) if is_frozen(path) else x, params)


def with_statistics(params, statistics):
    """The parameters with these running statistics (`bertlab.objectives.program.STATISTICS`) in the places of their own."""
    if not isinstance(statistics, Mapping):
        return statistics
    return {**params, **{name: with_statistics(params[name], of) for name, of in statistics.items()}} if statistics else params


def build_eval_step(program: Program, seed: int = 0) -> Callable:
    """The pure function (params, batch, index, carry) -> (metrics, carry, outputs).

    Corruption depends only on the batch's index.
    """

    def eval_step(params, batch, index, carry):
        key = jax.random.fold_in(jax.random.key(seed), index)
        return program.evaluate(params, program.views(batch, key), carry)

    return eval_step
