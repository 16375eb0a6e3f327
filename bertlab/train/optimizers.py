"""Optimisers with the rules of the compared systems as switches.

A step always has this order: scale and clip the gradient, add coupled decay; make an update u by Adam, Adagrad, SGD or (for
layers' matrices) Muon; add decoupled decay; give u the weights' norm (LAMB); multiply by the learning rate.

    BERT (google-research/bert optimization.py): adam, bias_correction="none", clip_norm=1.
    GPT (openai/finetune-transformer-lm opt.py): adam, bias_correction="rate".
    ELMo (allenai/bilm-tf training.py): adagrad, gradient_scale=20, clip_norm=10.
    AWD-LSTM (salesforce/awd-lstm-lm main.py): sgd, clip_norm=0.25, coupled_decay, average_after=5.
    ALBERT (google-research/albert lamb_optimizer.py): lamb, bias_correction="none", clip_norm=1.
    Muon (KellerJordan/Muon muon.py): muon, muon_scale="spectral" and muon_rate, its rate divided by Adam's.

`layer_groups` sets which parameters a step trains and at which rates. A step skips a frozen parameter: no gradient, no decay,
and its moments do not change. When it thaws, it has fresh moments, and its bias correction counts only its own updates.
"""

import math
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int
from optax.contrib import MuonDimensionNumbers

from bertlab import keys
from bertlab.errors import UserError
from bertlab.train import layer_groups
from bertlab.train.layer_groups import freezes, has_factors, layer_plan, parameter_name
from bertlab.train.schedules import learning_rate


def scale_by_adam(b1: float, b2: float, epsilon: float, correct_moments: bool) -> optax.GradientTransformationExtraArgs:
    """u = m / (√v + ε), with the moments' bias corrected (Kingma and Ba 2015, algorithm 1) or not (BERT)."""

    def init(params):
        zeros = lambda: jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(jnp.zeros([], jnp.int32), zeros(), zeros())

    def update(grads, state, params=None, *, updates_before=None, **_):
        del params
        count = state.count + 1
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, grads)
        correction = lambda b: _each(lambda n: _one_minus_power(b, n) if correct_moments else 1.0, count, updates_before, mu)
        updates = jax.tree.map(
            lambda m, v, c1, c2: (m / c1) / (jnp.sqrt(v / c2) + epsilon), mu, nu, correction(b1), correction(b2)
        )
        return updates, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformationExtraArgs(init, update)


def _each(function, count: Int[Array, ""], updates_before, like):
    """A function of the number of updates (this one included) for each parameter: a shared number, or each parameter's own."""
    if updates_before is None:
        value = function(count)
        return jax.tree.map(lambda _: value, like)
    return jax.tree.map(lambda before: function(before + 1), updates_before)


def _one_minus_power(b: float, count: Int[Array, ""]) -> Float[Array, ""]:
    """1 − b^count, in a form that keeps float32's digits if b is close to 1."""
    return -jnp.expm1(count * math.log(b)) if b > 0 else jnp.float32(1.0)


class AdagradState(NamedTuple):
    """The sum of squared gradients, shaped like the parameters."""

    accumulator: optax.Updates


def scale_by_adagrad(initial_accumulator: float) -> optax.GradientTransformation:
    """u = g / √a, where a is the initial value plus all g² so far, this one included; no ε (TensorFlow's AdagradOptimizer)."""

    def init(params):
        return AdagradState(jax.tree.map(lambda p: jnp.full_like(p, initial_accumulator), params))

    def update(grads, state, params=None):
        del params
        accumulator = jax.tree.map(lambda a, g: a + g * g, state.accumulator, grads)
        return jax.tree.map(lambda g, a: g / jnp.sqrt(a), grads, accumulator), AdagradState(accumulator)

    return optax.GradientTransformation(init, update)


def scale_by_trust_ratio(exclude: str) -> optax.GradientTransformation:
    """u · ‖w‖/‖u‖ for each parameter w that is decayed; u includes the decay, and the ratio is 1 if either norm is 0.

    Each stacked layer has its own norm, and so do query, key and value.

    Source: You et al. 2020, algorithm 2 (LAMB), φ the identity; excluded as in google-research/albert lamb_optimizer.py.
    """

    def update(updates, params):
        def scaled(path, u, w, decayed):
            if not decayed:
                return u
            name = parameter_name(path)
            apart = {0} if layer_groups.STACKED.match(name) else set()
            apart |= {u.ndim - 3} if name.endswith("qkv_kernel") else set()  # [..., 3, H, d]
            axes = tuple(axis for axis in range(u.ndim) if axis not in apart)
            of_weights, of_update = (jnp.sqrt(jnp.sum(x * x, axes, keepdims=True)) for x in (w, u))
            nonzero = (of_weights > 0) & (of_update > 0)
            return u * jnp.where(nonzero, of_weights / jnp.where(nonzero, of_update, 1.0), 1.0)

        return jax.tree_util.tree_map_with_path(scaled, updates, params, decay_mask(params, exclude))

    return optax.stateless(update)


def matrix_axes(name: str) -> MuonDimensionNumbers | None:
    """The axes of a parameter that are rows (inputs) and columns (outputs) of a layer's matrix.

    Other axes number matrices: stacked layers; query, key and value, each with all its heads; an LSTM's four gates. None for
    parameters that are not matrices in a layer: embeddings, output layer, pooler, heads, biases, norms, low-rank updates.
    """
    if not (layer_groups.STACKED.match(name) or layer_groups.LAYER.match(name)) or not name.endswith(("kernel", "/projection")):
        return None
    if name.endswith("/qkv_kernel"):  # [..., D, 3, H, K]
        return MuonDimensionNumbers((-4,), (-2, -1))
    if name.endswith("/out_kernel"):  # [..., H, K, D]
        return MuonDimensionNumbers((-3, -2), (-1,))
    if name.endswith(("/input_kernel", "/recurrent_kernel")):  # [..., D, 4, F]
        return MuonDimensionNumbers((-3,), (-1,))
    return MuonDimensionNumbers((-2,), (-1,))


def muon_labels(params):
    """ "muon" for each parameter that Muon trains, "adam" for the others; a UserError if Muon would train none."""
    labels = jax.tree_util.tree_map_with_path(lambda path, _: "muon" if matrix_axes(parameter_name(path)) else "adam", params)
    if {*jax.tree.leaves(labels)} == {"adam"}:
        raise UserError(
            "config.optimizer.name='muon' trains the matrices of layers, but this model has no layers; set name='adam'"
        )
    return labels


class MuonState(NamedTuple):
    """The running mean of gradients, shaped like the parameters."""

    momentum: optax.Updates


def scale_by_muon(momentum: float, scale: str) -> optax.GradientTransformation:
    """u = s · O(μ m + (1 − μ) g) with m ← μ m + (1 − μ) g; O(U S Vᵀ) is near U Vᵀ, for each matrix.

    Five Newton-Schulz iterations leave singular values between about 0.7 and 1.2 (less if they started near 0). m needs no bias
    correction, because O does not depend on the size of its argument.

    Args:
        momentum: μ.
        scale: "rms": s = 0.2 √max(rows, columns); it gives u the root mean square of Adam's updates (Liu et al. 2025, section
            2.2). "spectral": s = √max(1, columns / rows), where rows are the inputs (Jordan et al. 2024).
    """

    def init(params):
        return MuonState(jax.tree.map(jnp.zeros_like, params))

    def update(grads, state, params=None):
        del params
        mean = lambda m, g: momentum * m + (1 - momentum) * g
        after = jax.tree.map(mean, state.momentum, grads)

        def orthogonalised(path, looked_ahead):
            axes = matrix_axes(parameter_name(path))
            newton_schulz = optax.contrib.scale_by_muon(beta=0.0, nesterov=False, weight_dimension_numbers=axes)
            u, _ = newton_schulz.update(looked_ahead, newton_schulz.init(looked_ahead))
            rows, columns = (math.prod(u.shape[axis] for axis in of) for of in axes)
            return u * (0.2 * math.sqrt(max(rows, columns)) if scale == "rms" else math.sqrt(max(1, columns / rows)))

        return jax.tree_util.tree_map_with_path(orthogonalised, jax.tree.map(mean, after, grads)), MuonState(after)

    return optax.GradientTransformation(init, update)


def scale_by_rate(optimizer, steps: int) -> optax.GradientTransformationExtraArgs:
    """−rate · u, decay included; the rate is multiplied by its group's factor.

    A batch may scale its own rate, and GPT corrects Adam's bias here, after the decay.
    """
    schedule = learning_rate(optimizer, steps)
    planned = has_factors(optimizer) or freezes(optimizer)
    corrected = optimizer.name == "adam" and optimizer.bias_correction == "rate"
    correction = lambda n: jnp.sqrt(_one_minus_power(optimizer.b2, n)) / _one_minus_power(optimizer.b1, n)

    def init(params):
        if planned and jax.tree.leaves(params):
            layer_plan(optimizer, steps, params)  # refuses impossible settings before anything is computed
        return optax.ScaleByScheduleState(jnp.zeros([], jnp.int32))

    def update(updates, state, params=None, *, rate_scale=1.0, updates_before=None, **_):
        del params
        plan = layer_plan(optimizer, steps, updates) if planned else None
        rate, count = (plan.rate if plan else schedule)(state.count) * rate_scale, state.count + 1
        rates = _each(lambda n: rate * correction(n) if corrected else rate, count, updates_before, updates)
        if has_factors(optimizer):
            rates = jax.tree.map(jnp.multiply, rates, plan.rate_factors())
        if optimizer.name == "muon":
            of_rule = {"muon": optimizer.muon_rate, "adam": 1.0}
            rates = jax.tree.map(lambda r, label: r * of_rule[label], rates, muon_labels(updates))
        return jax.tree.map(lambda u, r: -r * u, updates, rates), optax.ScaleByScheduleState(count)

    return optax.GradientTransformationExtraArgs(init, update)


class ThawState(NamedTuple):
    """The number of updates, and the state of the optimiser that sees only trained parameters."""

    count: Int[Array, ""]
    inner: optax.OptState


def train_thawed(inner: optax.GradientTransformationExtraArgs, optimizer, steps: int) -> optax.GradientTransformationExtraArgs:
    """Applies `inner` to the parameters that this update trains; the others, and `inner`'s state for them, do not change.

    `inner` receives each parameter's number of earlier updates as `updates_before`.
    """

    def init(params):
        return ThawState(jnp.zeros([], jnp.int32), inner.init(params))

    def update(grads, state, params, **extra):
        plan = layer_plan(optimizer, steps, grads)
        trained, zeros = plan.trained(state.count), jax.tree.map(jnp.zeros_like, grads)
        before = plan.updates_before(state.count)
        updates, after = inner.update(
            jax.tree.map(_choose, trained, grads, zeros), state.inner, params, updates_before=before, **extra
        )
        # A mask for state with a leaf per parameter; the rest of `inner`'s state always advances.
        masks = map_beside_params(inner, lambda _, t: t, after, trained, elsewhere=lambda _: np.ones([], bool))
        kept = jax.tree.map(_choose, masks, after, state.inner)
        return jax.tree.map(_choose, trained, updates, zeros), ThawState(state.count + 1, kept)

    return optax.GradientTransformationExtraArgs(init, update)


def map_beside_params(optimizer, function, state, *trees, elsewhere):
    """Applies a function to the leaves of an optimiser's state that belong to parameters.

    Args:
        optimizer: the transformation that owns the state.
        function: (array of the state, that parameter's leaf of each of `trees`) -> a new leaf.
        state: arrays, or objects with their shapes.
        trees: like the parameters.
        elsewhere: (array of the state) -> a new leaf, for all others.
    """
    # If a part of the optimiser does not train a parameter, its state has a node without leaves for this parameter.
    is_masked = lambda node: isinstance(node, optax.MaskedNode)
    of_node = lambda node, *leaves: node if is_masked(node) else function(node, *leaves)
    return optax.tree.map_params(optimizer, of_node, state, *trees, transform_non_params=elsewhere, is_leaf=is_masked)


def _choose(mask: Bool[Array, "..."], new: Array, old: Array) -> Array:
    """`new` where the mask is true; a constant mask needs no operation."""
    if isinstance(mask, (np.ndarray, np.generic)) and mask.all() == mask.any():
        return new if mask.all() else old
    return jnp.where(mask, new, old)


class AverageState(NamedTuple):
    """NT-ASGD's memory of held-out values, and the averaged parameters.

    Attributes:
        recent: the last n values, oldest first; +inf for missing ones.
        least: the minimum of all values before those; +inf without any.
        averaging: whether averaging has begun.
        count: number of updates since then.
        rate_scale: of the last update.
        average: shaped like the parameters.
        updates: number of all updates; () without a second beginning.
    """

    recent: Float[Array, "n"]
    least: Float[Array, ""]
    averaging: Bool[Array, ""]
    count: Int[Array, ""]
    rate_scale: Float[Array, ""]
    average: optax.Params
    updates: Int[Array, ""] | tuple[()] = ()


def average_parameters(average_after: int, again: int = 0) -> optax.GradientTransformationExtraArgs:
    """Averages the parameters once `observe` has triggered it.

    After `again` updates it begins anew, from the average: the fine-tuning of AWD-LSTM, which loads the averaged model and runs
    ASGD from its first step (Merity et al. 2017, section 5; salesforce/awd-lstm-lm finetune.py). 0: never.

    Non-monotonically triggered averaged SGD (Merity et al. 2017, algorithm 1, as in salesforce/awd-lstm-lm). The average is the
    same as in torch.optim.ASGD(t0=0, lambd=0): its first two steps both copy the parameters, and if `rate_scale` varies, every
    step after the first uses the rate of the previous batch.
    """

    def init(params):
        return AverageState(
            recent=jnp.full([average_after], jnp.inf, jnp.float32),
            least=jnp.full([], jnp.inf, jnp.float32),
            averaging=jnp.zeros([], bool),
            count=jnp.zeros([], jnp.int32),
            rate_scale=jnp.ones([], jnp.float32),
            average=jax.tree.map(jnp.zeros_like, params),
            updates=jnp.zeros([], jnp.int32) if again else (),
        )

    def update(updates, state, params, *, rate_scale=1.0, **_):
        lag = jnp.where(state.count > 0, state.rate_scale / rate_scale, 1.0)
        updates = jax.tree.map(lambda u: u * lag, updates)
        count = state.count + state.averaging
        share = 1.0 / jnp.maximum(count - 1, 1)

        def averaged(average, param, change):
            param = param + change
            moved = jnp.where(count <= 2, param, average + (param - average) * share)
            return jnp.where(state.averaging, moved, average)

        rate_scale = jnp.asarray(rate_scale, jnp.float32)
        after = state._replace(
            count=count, rate_scale=rate_scale, average=jax.tree.map(averaged, state.average, params, updates)
        )
        return begun_again(updates, after, params) if again else (updates, after)

    def begun_again(updates, state, params):
        now = state.updates + 1 == again
        to_average = lambda u, average, param: jnp.where(now & (state.count > 0), average - param, u)
        after = state._replace(updates=state.updates + 1, averaging=state.averaging | now, count=jnp.where(now, 0, state.count))
        return jax.tree.map(to_average, updates, state.average, params), after

    return optax.GradientTransformationExtraArgs(init, update)


def observe(opt_state, value: float):
    """The optimiser's state after an evaluation on the `valid` split; only NT-ASGD's changes.

    Averaging begins when the value is worse than the best of all earlier values but the last n (`average_after`).

    Args:
        opt_state: the state of `build_optimizer`'s transformation.
        value: the held-out loss.
    """

    def observed(state):
        if not isinstance(state, AverageState):
            return state
        new = jnp.float32(value)
        return state._replace(
            averaging=state.averaging | (new > state.least),
            least=jnp.minimum(state.least, state.recent[0]),
            recent=jnp.append(state.recent[1:], new),
        )

    return jax.tree.map(observed, opt_state, is_leaf=_is_average)


def evaluation_params(opt_state, params):
    """The parameters to evaluate: the averaged ones once averaging has begun (NT-ASGD), otherwise the trained ones."""
    state = next(filter(_is_average, jax.tree.leaves(opt_state, is_leaf=_is_average)), None)
    if state is None:
        return params
    return jax.tree.map(lambda average, param: jnp.where(state.count > 0, average, param), state.average, params)


def _is_average(node) -> bool:
    return isinstance(node, AverageState)


def parameter_names(params) -> list[str]:
    """ "body/blocks/up/kernel" for each parameter, in tree order."""
    return [parameter_name(path) for path, _ in jax.tree.leaves_with_path(params)]


def decay_mask(params, exclude: str):
    """True for the parameters with decay: those whose path does not match the pattern ("" excludes none).

    The path here leaves out a head's name: it is the task's or objective's name and could contain "norm".
    """
    paths = [re.sub(r"^heads_[^/]*/", "", name) for name in parameter_names(params)]
    decayed = [not (exclude and re.search(exclude, path)) for path in paths]
    return jax.tree.unflatten(jax.tree.structure(params), decayed)


def check_optimizer(optimizer) -> None:
    """Refuses settings of `config.optimizer` that are invalid for every model.

    Raises:
        UserError: names the key and its allowed values.
    """
    keys.check(optimizer, "optimizer")
    if optimizer.name in ("lamb", "muon") and optimizer.bias_correction == "rate":
        raise UserError(
            f"config.optimizer.bias_correction='rate' is GPT's, for name='adam'; set 'none' or 'moments' for {optimizer.name!r}"
        )
    if optimizer.group_rates:
        layer_groups.parse_group_rates(optimizer.group_rates)
        if optimizer.layer_decay != 1:
            raise UserError(
                f"config.optimizer.layer_decay={optimizer.layer_decay} and group_rates={optimizer.group_rates!r} both set the"
                " rates of groups; set layer_decay=1 or group_rates=''"
            )
    try:
        re.compile(optimizer.frozen)
    except re.error as error:
        raise UserError(f"config.optimizer.frozen={optimizer.frozen!r} is not a valid pattern: {error}") from None


def build_optimizer(optimizer, steps: int, update_factors: Any = None) -> optax.GradientTransformationExtraArgs:
    """The transformation from gradients to updates; `update` takes `rate_scale` (default 1), a factor of the whole update.

    Args:
        optimizer: `config.optimizer`.
        steps: of the whole run, for the schedule and the stages.
        update_factors: a factor of each parameter's update, without its decay (`bertlab.train.width`); None for none.

    Raises:
        UserError: from `check_optimizer` and the schedule; its `init` raises what `layer_plan` does.
    """
    check_optimizer(optimizer)
    decay = optax.add_decayed_weights(optimizer.weight_decay, mask=lambda p: decay_mask(p, optimizer.decay_exclude))
    rules = {
        "adam": lambda o: scale_by_adam(o.b1, o.b2, o.epsilon, o.bias_correction == "moments"),
        "adagrad": lambda o: scale_by_adagrad(o.initial_accumulator),
        "sgd": lambda o: optax.identity(),
    }
    rules["lamb"] = rules["adam"]
    rules["muon"] = lambda o: optax.partition(
        {"adam": rules["adam"](o), "muon": scale_by_muon(o.muon_momentum, o.muon_scale)},
        muon_labels,
        mask_compatible_extra_args=True,
    )
    parts = [
        *([optax.scale(optimizer.gradient_scale)] if optimizer.gradient_scale != 1 else []),
        *([optax.clip_by_global_norm(optimizer.clip_norm)] if optimizer.clip_norm else []),
        *([decay] if optimizer.coupled_decay else []),
        rules[optimizer.name](optimizer),
        *([optax.stateless(lambda u, _: jax.tree.map(jnp.multiply, u, update_factors))] if update_factors is not None else []),
        *([] if optimizer.coupled_decay else [decay]),
        *([scale_by_trust_ratio(optimizer.decay_exclude)] if optimizer.name == "lamb" else []),
        scale_by_rate(optimizer, steps),
    ]
    if freezes(optimizer):
        parts = [train_thawed(optax.chain(*parts), optimizer, steps)]
    # Outside: parameters that never change have an average too.
    return optax.chain(
        *parts, *([average_parameters(optimizer.average_after, optimizer.average_again)] if optimizer.average_after else [])
    )
