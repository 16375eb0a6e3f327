"""Optimisers; the rules of the compared systems are switches.

An update always has this order: scale and clip the gradient, add coupled decay; make an update u by
Adam, Adagrad, SGD or (for layers' matrices) Muon; add decoupled decay; give u the weights' norm
(LAMB); multiply by the rate.

    BERT (google-research/bert optimization.py): adam, bias_correction=none, clip_norm=1
    GPT (openai/finetune-transformer-lm opt.py): adam, bias_correction=rate
    ELMo (allenai/bilm-tf training.py): adagrad, gradient_scale=20, clip_norm=10
    AWD-LSTM (salesforce/awd-lstm-lm main.py): sgd, clip_norm=0.25, coupled_decay, average_after=5
    ALBERT (google-research/albert lamb_optimizer.py): lamb, bias_correction=none, clip_norm=1
    Muon (KellerJordan/Muon muon.py; the size of an update as in Liu et al. 2025): muon
"""

import functools
import math
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int
from optax import GradientTransformationExtraArgs as Transformation
from optax.contrib import MuonDimensionNumbers

from bertlab.errors import UserError, require_choice
from bertlab.models.lora import STACKED
from bertlab.objectives.program import Program
from bertlab.train.schedules import LAYER, LayerPlan, layer_plan
from bertlab.train.state import parameter_name, program_factors

CHOICES = {
    "name": "adam adagrad sgd lamb muon",
    "bias_correction": "none moments rate",
    "decay": "linear cosine constant slanted_triangular warmup_linear reverse_cosine",
    "thaw": "all head last gradual chain",
}


def build_optimizer(optimizer, steps: int, program: Program, example) -> Transformation:
    """The optimiser of a run by `config.optimizer`; the example is a batch, for its shapes. Its
    `update` takes `rate_scale` (default 1), a factor of the rate."""
    for key, choices in CHOICES.items():
        require_choice(f"config.optimizer.{key}", optimizer[key], choices.split())
    params = jax.eval_shape(program.init, jax.random.key(0), example)
    plan, width_factors = layer_plan(optimizer, steps, params), program_factors(program, example)
    rate_corrects = optimizer.name in ("lamb", "muon") and optimizer.bias_correction == "rate"
    if rate_corrects or (optimizer.name != "adam" and width_factors is not None):
        raise UserError(
            f"config.optimizer.name={optimizer.name}: bias_correction=rate (GPT's) and"
            " config.model.base_width are for adam"
        )

    def has_decay(path, _) -> bool:
        # Without a head's own name, which is a task's or an objective's and may contain "norm".
        name = re.sub(r"^heads_[^/]*/", "", parameter_name(path))
        return not (optimizer.decay_exclude and re.search(optimizer.decay_exclude, name))

    decayed = jax.tree.map_with_path(has_decay, params)
    rule = scale_by_adam(optimizer)
    if optimizer.name == "adagrad":
        rule = optax.scale_by_rss(optimizer.initial_accumulator, eps=0.0)
    elif optimizer.name == "sgd":
        rule = optax.identity()
    elif optimizer.name == "muon":
        muon = optax.chain(optax.trace(optimizer.muon_momentum, nesterov=True), orthogonalise())
        labels = jax.tree.map_with_path(lambda path, _: matrix_axes(path) is not None, params)
        rule = optax.partition({True: muon, False: rule}, labels, mask_compatible_extra_args=True)

    parts = [optax.scale(optimizer.gradient_scale)]
    if optimizer.clip_norm:
        parts.append(optax.clip_by_global_norm(optimizer.clip_norm))
    decay = optax.add_decayed_weights(optimizer.weight_decay, mask=decayed)
    parts += [decay, rule] if optimizer.coupled_decay else [rule]
    if width_factors is not None:
        parts.append(optax.stateless(lambda u, _: jax.tree.map(jnp.multiply, u, width_factors[1])))
    parts += [] if optimizer.coupled_decay else [decay]
    if optimizer.name == "lamb":
        parts.append(scale_by_trust_ratio(decayed))
    parts = [scale_by_plan(optax.chain(*parts), optimizer, plan)]
    if optimizer.average_after:  # outermost: frozen parameters have an average too
        parts.append(average_parameters(optimizer.average_after, optimizer.average_again))
    return optax.chain(*parts)


class PlanState(NamedTuple):
    """The number of updates, and the state of the rule."""

    count: Int[Array, ""]
    inner: optax.OptState


def scale_by_plan(rule: Transformation, optimizer, plan: LayerPlan) -> Transformation:
    """−rate · factor · u for each parameter; GPT corrects Adam's bias in the rate. The rule sees
    gradients of 0 for what is not `trained`, and gets each parameter's number of earlier updates as
    `updates_done`, so that a thawed parameter starts like a new one."""
    corrects = optimizer.name == "adam" and optimizer.bias_correction == "rate"

    def init(params):
        return PlanState(jnp.zeros([], jnp.int32), rule.init(params))

    def update(grads, state, params=None, *, rate_scale=1.0, **_):
        factors, done = plan.rate_factors(state.count), plan.updates_done(state.count)
        trained = jax.tree.map(lambda factor: factor > 0, factors)
        grads = jax.tree.map(lambda g, is_trained: jnp.where(is_trained, g, 0.0), grads, trained)
        updates, inner = rule.update(grads, state.inner, params, updates_done=done, trained=trained)
        rate = plan.rate(state.count) * rate_scale

        def scaled(u, factor, done):
            correction = 1.0
            if corrects:
                correction = jnp.sqrt(one_minus_power(optimizer.b2, done + 1))
                correction /= one_minus_power(optimizer.b1, done + 1)
            return -rate * correction * factor * u

        return jax.tree.map(scaled, updates, factors, done), PlanState(state.count + 1, inner)

    return Transformation(init, update)


class MomentsState(NamedTuple):
    """Running means of the gradients and of their squares."""

    mu: optax.Updates
    nu: optax.Updates


def scale_by_adam(optimizer) -> Transformation:
    """u = m / (√v + ε), with the moments' bias corrected (Kingma and Ba 2015, algorithm 1) or not
    (BERT). The moments of what is not trained do not change."""
    b1, b2 = optimizer.b1, optimizer.b2

    def init(params):
        return MomentsState(*(jax.tree.map(jnp.zeros_like, params) for _ in range(2)))

    def update(grads, state, params=None, *, updates_done, trained, **_):
        def mean(b, before, new, is_trained):
            return jnp.where(is_trained, b * before + (1 - b) * new, before)

        def direction(m, v, done):
            if optimizer.bias_correction == "moments":
                m, v = m / one_minus_power(b1, done + 1), v / one_minus_power(b2, done + 1)
            return m / (jnp.sqrt(v) + optimizer.epsilon)

        squares = jax.tree.map(jnp.square, grads)
        mu = jax.tree.map(functools.partial(mean, b1), state.mu, grads, trained)
        nu = jax.tree.map(functools.partial(mean, b2), state.nu, squares, trained)
        return jax.tree.map(direction, mu, nu, updates_done), MomentsState(mu, nu)

    return Transformation(init, update)


def one_minus_power(b: float, count: Int[Array, "..."]) -> Float[Array, "..."]:
    """1 − b^count, in a form that keeps float32's precision if b is close to 1."""
    return -jnp.expm1(count * math.log(b)) if b > 0 else jnp.float32(1.0)


def scale_by_trust_ratio(decayed) -> optax.GradientTransformation:
    """u · ‖w‖/‖u‖ for each decayed parameter w, where u includes the decay; 1 if either norm is 0.
    Each stacked layer has its own norm, and so do query, key and value (You et al. 2020, algorithm
    2, φ the identity; excluded as in google-research/albert lamb_optimizer.py)."""

    def scaled(path, u, w, is_decayed):
        if not is_decayed:
            return u
        name = parameter_name(path)
        apart = {0} if STACKED.match(name) else set()
        apart |= {u.ndim - 3} if name.endswith("qkv_kernel") else set()  # [..., 3, H, K]
        axes = tuple(axis for axis in range(u.ndim) if axis not in apart)
        norm_w, norm_u = (jnp.sqrt(jnp.sum(x * x, axes, keepdims=True)) for x in (w, u))
        nonzero = (norm_w > 0) & (norm_u > 0)
        return u * jnp.where(nonzero, norm_w / jnp.where(nonzero, norm_u, 1.0), 1.0)

    return optax.stateless(lambda u, w: jax.tree.map_with_path(scaled, u, w, decayed))


def matrix_axes(path, _=None) -> MuonDimensionNumbers | None:
    """The axes of a layer's matrix that are its rows (inputs) and columns (outputs); others number
    matrices: stacked layers; query, key and value, each with all its heads; an LSTM's four gates.
    None for embeddings, output layer, pooler, heads, biases, norms, low-rank updates."""
    name = parameter_name(path)
    if not (STACKED.match(name) or LAYER.match(name)):
        return None
    if name.endswith("/qkv_kernel"):  # [..., D, 3, H, K]
        return MuonDimensionNumbers((-4,), (-2, -1))
    if name.endswith("/out_kernel"):  # [..., H, K, D]
        return MuonDimensionNumbers((-3, -2), (-1,))
    if name.endswith(("/input_kernel", "/recurrent_kernel")):  # [..., D, 4, F]
        return MuonDimensionNumbers((-3,), (-1,))
    return MuonDimensionNumbers((-2,), (-1,)) if name.endswith(("kernel", "/projection")) else None


def orthogonalise() -> optax.GradientTransformation:
    """u = 0.2 √max(rows, columns) · O(g) for each matrix, where O(U S Vᵀ) is near U Vᵀ: u has the
    root mean square of Adam's updates (Liu et al. 2025, section 2.2). Five Newton-Schulz iterations
    leave singular values between about 0.7 and 1.2."""
    # Without momentum of its own, it is only the iteration.
    newton_schulz = optax.contrib.scale_by_muon(
        beta=0.0,
        nesterov=False,
        weight_dimension_numbers=lambda updates: jax.tree.map_with_path(matrix_axes, updates),
    )

    def scaled(path, u):
        sizes = (math.prod(u.shape[axis] for axis in side) for side in matrix_axes(path))
        return u * 0.2 * math.sqrt(max(sizes))

    def update(grads, _):
        updates, _ = newton_schulz.update(grads, newton_schulz.init(grads))
        return jax.tree.map_with_path(scaled, updates)

    return optax.stateless(update)


class AverageState(NamedTuple):
    """Recent held-out losses, and the averaged parameters."""

    recent: Float[Array, "average_after"]  # the last losses, oldest first; +inf for missing ones
    least: Float[Array, ""]  # of all losses before those; +inf without any
    averaging: Bool[Array, ""]  # whether averaging has begun
    count: Int[Array, ""]  # updates since then
    updates: Int[Array, ""]  # all updates
    rate_scale: Float[Array, ""]  # the last update's
    average: optax.Params  # like the parameters


def average_parameters(average_after: int, average_again: int = 0) -> Transformation:
    """Non-monotonically triggered averaged SGD (Merity et al. 2017, algorithm 1): averages the
    parameters once `observe` has triggered it, as the last part of an optimiser.

    As in salesforce/awd-lstm-lm, the average is that of torch.optim.ASGD(t0=0, lambd=0), whose
    first two steps both copy the parameters, and whose steps use the rate of the batch before.
    After `average_again` updates (0: never) it restarts from the average: AWD-LSTM's fine-tuning,
    which runs ASGD on the averaged model from its first step (ibid., section 5; finetune.py).
    """

    def init(params):
        return AverageState(
            recent=jnp.full([average_after], jnp.inf, jnp.float32),
            least=jnp.full([], jnp.inf, jnp.float32),
            averaging=jnp.zeros([], bool),
            count=jnp.zeros([], jnp.int32),
            updates=jnp.zeros([], jnp.int32),
            rate_scale=jnp.ones([], jnp.float32),
            average=jax.tree.map(jnp.zeros_like, params),
        )

    def update(changes, state, params, *, rate_scale=1.0, **_):
        lag = jnp.where(state.count > 0, state.rate_scale / rate_scale, 1.0)
        count, updates = state.count + state.averaging, state.updates + 1
        share = 1.0 / jnp.maximum(count - 1, 1)
        again = (updates == average_again) & (average_again > 0)

        def averaged(average, param, change):
            param = param + change
            moved = jnp.where(count <= 2, param, average + (param - average) * share)
            return jnp.where(state.averaging, moved, average)

        def changed(change, average, param):
            return jnp.where(again & (count > 0), average - param, change)

        changes = jax.tree.map(lambda change: change * lag, changes)
        average = jax.tree.map(averaged, state.average, params, changes)
        return jax.tree.map(changed, changes, average, params), state._replace(
            averaging=state.averaging | again,
            count=jnp.where(again, 0, count),
            updates=updates,
            rate_scale=jnp.asarray(rate_scale, jnp.float32),
            average=average,
        )

    return Transformation(init, update)


def observe(opt_state, loss: float):
    """The optimiser's state after an evaluation: NT-ASGD begins to average if the held-out loss is
    worse than the best of all but the last n; other states do not change."""
    *rules, state = opt_state
    if not isinstance(state, AverageState):
        return opt_state
    observed = state._replace(
        averaging=state.averaging | (loss > state.least),
        least=jnp.minimum(state.least, state.recent[0]),
        recent=jnp.append(state.recent[1:], jnp.float32(loss)),
    )
    return (*rules, observed)


def evaluation_params(opt_state, params):
    """The parameters to evaluate: the averaged ones once averaging has begun."""
    state = opt_state[-1]
    if not isinstance(state, AverageState):
        return params
    return jax.tree.map(functools.partial(jnp.where, state.count > 0), state.average, params)
