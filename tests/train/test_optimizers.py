"""Every optimiser equals its definition, step for step."""

import functools

import jax
import numpy as np
import optax
import pytest

from bertlab.config import base_config
from bertlab.errors import UserError
from bertlab.train.optimizers import build_optimizer, decay_mask, evaluation_params, observe, parameter_names
from bertlab.train.schedules import learning_rate

STEPS = 25
RNG = np.random.default_rng(0)
PARAMS = {
    "dense": {"kernel": RNG.normal(size=(2, 3)).astype(np.float32), "bias": np.float32([0.3, -0.2, 0.1])},
    "norm": {"scale": np.float32([1.0, 2.0])},
    "token_embedding": RNG.normal(size=(5, 2)).astype(np.float32),
}


def settings(**changes):
    optimizer = base_config().optimizer
    optimizer.update({"warmup_steps": 2, "learning_rate": 0.01, "weight_decay": 0.1, **changes})
    return optimizer


def gradients(seed=0, scale=1.0, steps=STEPS):
    rng = np.random.default_rng(seed)
    # Norms from a tenth to ten times, so that only some are clipped.
    draw = lambda leaf: (scale * 10 ** rng.uniform(-1, 1) * rng.normal(size=leaf.shape)).astype(np.float32)
    return [jax.tree.map(draw, PARAMS) for _ in range(steps)]


def trained(optimizer, grads, **extra):
    state, params = optimizer.init(PARAMS), PARAMS
    update = jax.jit(optimizer.update)
    for grad in grads:
        updates, state = update(grad, state, params, **extra)
        params = jax.tree.map(np.add, params, updates)
    return params


def flat(tree):
    return {name: np.float64(leaf) for name, leaf in zip(parameter_names(tree), jax.tree.leaves(tree), strict=True)}


def reference(o, grads, rate, rate_scale=1.0):
    """The same in float64, from the formulas of the references; `rate` is the schedule's value by step."""
    weights = flat(PARAMS)
    start = o.initial_accumulator if o.name == "adagrad" else 0.0
    m, v = ({name: np.full_like(w, start) for name, w in weights.items()} for _ in range(2))
    for step, grad in enumerate(map(flat, grads)):
        grad = {name: o.gradient_scale * g for name, g in grad.items()}
        norm = np.sqrt(sum((g**2).sum() for g in grad.values()))
        t = step + 1
        for name, g in grad.items():
            decayed = o.weight_decay * weights[name] if name in ("dense/kernel", "token_embedding") else 0.0
            if o.clip_norm and norm > o.clip_norm:
                g = g * o.clip_norm / norm
            if o.coupled_decay:
                g = g + decayed
            if o.name in ("adam", "lamb"):
                m[name] = o.b1 * m[name] + (1 - o.b1) * g
                v[name] = o.b2 * v[name] + (1 - o.b2) * g**2
                c1, c2 = (1 - o.b1**t, 1 - o.b2**t) if o.bias_correction == "moments" else (1, 1)
                update = m[name] / c1 / (np.sqrt(v[name] / c2) + o.epsilon)
            elif o.name == "adagrad":
                v[name] = v[name] + g**2
                update = g / np.sqrt(v[name])
            else:
                update = g
            if not o.coupled_decay:
                update = update + decayed
            if o.name == "lamb" and name in ("dense/kernel", "token_embedding"):
                update = update * np.linalg.norm(weights[name]) / np.linalg.norm(update)
            corrected = np.sqrt(1 - o.b2**t) / (1 - o.b1**t) if (o.name, o.bias_correction) == ("adam", "rate") else 1.0
            weights[name] = weights[name] - rate(step) * corrected * rate_scale * update
    return weights


def linear(step):
    return 0.01 * (step / 2 if step < 2 else 1 - step / 40)


CASES = {
    "BERT": dict(epsilon=1e-6),
    "Adam": dict(bias_correction="moments", epsilon=1e-8, clip_norm=0.0),
    "GPT": dict(bias_correction="rate", epsilon=1e-8),
    "ULMFiT": dict(bias_correction="moments", b1=0.7, b2=0.99, clip_norm=2.0),
    "no momentum": dict(bias_correction="rate", b1=0.0),
    "Adam with coupled decay": dict(bias_correction="moments", coupled_decay=True, epsilon=1e-3),
    "ELMo": dict(name="adagrad", gradient_scale=20.0, clip_norm=10.0, weight_decay=0.0),
    "Adagrad with decay": dict(name="adagrad", initial_accumulator=0.1, clip_norm=0.0),
    "AWD-LSTM": dict(name="sgd", clip_norm=0.25, coupled_decay=True),
    "SGD": dict(name="sgd", clip_norm=0.0),
    "ALBERT": dict(name="lamb"),
    "LAMB": dict(name="lamb", bias_correction="moments", clip_norm=0.0),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_numpy_for_25_steps(case):
    optimizer, grads = settings(**CASES[case]), gradients()
    result = flat(trained(build_optimizer(optimizer, 40), grads))
    expected = reference(optimizer, grads, linear)
    for name, weights in expected.items():
        # Float32 rounds each of 25 updates of at most about the weights' size; a wrong term is percents of an update.
        np.testing.assert_allclose(result[name], weights, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("case", ["GPT", "AWD-LSTM"])
def test_a_batch_may_scale_its_rate_and_the_decay_with_it(case):
    optimizer, grads = settings(**CASES[case]), gradients()
    result = flat(trained(build_optimizer(optimizer, 40), grads, rate_scale=np.float32(0.5)))
    expected = reference(optimizer, grads, linear, rate_scale=0.5)
    for name, weights in expected.items():
        np.testing.assert_allclose(result[name], weights, rtol=2e-5, atol=2e-6, err_msg=name)


OPTAX = {
    "AdamW": (
        dict(bias_correction="moments", epsilon=1e-8, clip_norm=0.0),
        lambda rate, mask: optax.adamw(rate, 0.9, 0.999, eps=1e-8, weight_decay=0.1, mask=mask),
    ),
    "LAMB": (
        dict(name="lamb", bias_correction="moments", clip_norm=0.0, decay_exclude=""),
        lambda rate, mask: optax.lamb(rate, 0.9, 0.999, eps=1e-6, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("case", OPTAX)
def test_equals_optax_where_rules_agree(case):
    changes, make = OPTAX[case]
    optimizer = settings(**changes)
    theirs = make(learning_rate(optimizer, 40), lambda params: decay_mask(params, optimizer.decay_exclude))
    close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6)
    jax.tree.map(close, trained(build_optimizer(optimizer, 40), gradients()), trained(theirs, gradients()))


def test_lamb_scales_stacked_layers_and_query_key_and_value_each_by_its_own_norms():
    optimizer = build_optimizer(settings(name="lamb", weight_decay=0.0, clip_norm=0.0, warmup_steps=0), 40)
    sizes, rng = np.float32([0.1, 1, 10]), np.random.default_rng(2)
    kernels = {
        "up": rng.normal(size=(3, 4, 5)).astype(np.float32) * sizes[:, None, None],
        "qkv_kernel": rng.normal(size=(2, 4, 3, 2, 2)).astype(np.float32) * sizes[:, None, None],
    }
    tree = lambda leaves: {"body": {"blocks": {"up": {"kernel": leaves["up"]}, "qkv_kernel": leaves["qkv_kernel"]}}}
    grads = {name: rng.normal(size=kernel.shape).astype(np.float32) for name, kernel in kernels.items()}
    updates = optimizer.update(tree(grads), optimizer.init(tree(kernels)), tree(kernels))[0]["body"]["blocks"]
    for update, name, axes in ((updates["up"]["kernel"], "up", (1, 2)), (updates["qkv_kernel"], "qkv_kernel", (1, 3, 4))):
        norm = lambda x, axes=axes: np.sqrt((np.float64(x) ** 2).sum(axes))
        # Without decay or warm-up the update's norm is the rate times the weights'.
        np.testing.assert_allclose(norm(update) / norm(kernels[name]), np.full_like(norm(update), 0.01), rtol=1e-5)


def test_lamb_leaves_parameters_of_zeros_able_to_move():
    optimizer = build_optimizer(settings(name="lamb", clip_norm=0.0, warmup_steps=0), 40)
    params = {"dense": {"kernel": np.zeros((2, 2), np.float32)}}
    moved, _ = optimizer.update({"dense": {"kernel": np.ones((2, 2), np.float32)}}, optimizer.init(params), params)
    still, _ = optimizer.update(params, optimizer.init(params), params)
    assert (moved["dense"]["kernel"] < 0).all() and (still["dense"]["kernel"] == 0).all()


# NT-ASGD.

NT_ASGD = dict(
    name="sgd", decay="constant", warmup_steps=0, coupled_decay=True, clip_norm=0.25, learning_rate=1.0, average_after=2
)


def run_asgd(values_by_step, grads, optimizer, update, start=PARAMS):
    """Parameters and state after every step; values observed after some."""
    state, params, history = optimizer.init(start), start, []
    for step, grad in enumerate(grads):
        updates, state = update(grad, state, params)
        params = jax.tree.map(np.add, params, updates)
        history.append((flat(params), flat(evaluation_params(state, params))))
        if step in values_by_step:
            state = observe(state, values_by_step[step])
    return history, state


def test_averaging_begins_when_it_should_and_is_torchs():
    optimizer = build_optimizer(settings(**NT_ASGD), 40)
    update = jax.jit(optimizer.update)
    grads = gradients()
    # Worse than all but the last two for the first time at 3.5 > min(4, 3): after step 12.
    values = {0: 4.0, 3: 3.0, 6: 5.0, 9: 2.9, 12: 3.5, 15: 9.0}
    history, _ = run_asgd(values, grads, optimizer, update)
    plain = reference(settings(**NT_ASGD | {"average_after": 0}), grads, lambda step: 1.0)
    for name, weights in plain.items():
        np.testing.assert_allclose(history[-1][0][name], weights, rtol=2e-5, atol=1e-5, err_msg="averaging changes no update")
    mean = None
    for step, (params, averaged) in enumerate(history):
        if step <= 12:
            expected = params
        else:  # torch.optim.ASGD: mu = 1, 1, 1/2, 1/3, ...
            share = 1 / max(1, step - 13)
            expected = mean = params if share == 1 else {n: mean[n] + share * (params[n] - mean[n]) for n in params}
        for name in params:
            np.testing.assert_allclose(averaged[name], expected[name], rtol=1e-5, atol=1e-6, err_msg=f"step {step} {name}")
    assert any(np.abs(averaged[n] - params[n]).max() > 1e-2 for n in params), "else the test could not see an average"


BEGUN = {0: 4.0, 1: 3.0, 2: 5.0, 3: 2.9, 4: 9.0}  # averaging begins after the fifth update


def asgd(grads, values_by_step, start=PARAMS, **changes):
    """(Parameters, averaged ones) after every update."""
    optimizer = build_optimizer(settings(**NT_ASGD | changes), 40)
    return run_asgd(values_by_step, grads, optimizer, jax.jit(optimizer.update), start)


def test_averaging_begins_again_from_the_average_as_in_a_second_run():
    """AWD-LSTM's fine-tuning is averaged SGD from its first step, beginning with the first run's average."""
    grads, again = gradients(), 20
    (first, _), (history, _) = asgd(grads[:again], BEGUN), asgd(grads, BEGUN, average_again=again)
    for ours, theirs in zip(history[: again - 1], first):
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)
    (last, average), close = first[-1], functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    assert any(np.abs(average[n] - last[n]).max() > 1e-2 for n in average), "else the test could not see where it goes on"
    jax.tree.map(close, history[again - 1], (average, average))
    leaves = [np.float32(average[name]) for name in parameter_names(PARAMS)]
    second, _ = asgd(grads[again:], {}, jax.tree.unflatten(jax.tree.structure(PARAMS), leaves), average_after=0)
    mean = None
    for number, (ours, (weights, _)) in enumerate(zip(history[again:], second, strict=True), 1):
        share = 1 / max(1, number - 1)  # torch.optim.ASGD: mu = 1, 1, 1/2, 1/3, ...
        mean = weights if share == 1 else {n: mean[n] + share * (weights[n] - mean[n]) for n in weights}
        jax.tree.map(close, ours, (weights, mean))


def test_averaging_begins_with_the_second_beginning_if_it_has_not_before():
    grads = gradients()
    (history, state), (plain, _) = asgd(grads, {}, average_again=5), asgd(grads, {})
    assert bool(state[-1].averaging) and int(state[-1].count) == len(grads) - 5
    for (ours, _), (theirs, _) in zip(history, plain):
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def triggers(values, average_after):
    """When averaging begins; as salesforce/awd-lstm-lm main.py writes it."""
    best_val_loss = []
    for index, value in enumerate(values):
        if len(best_val_loss) > average_after and value > min(best_val_loss[:-average_after]):
            return index
        best_val_loss.append(value)
    return None


@pytest.mark.parametrize("average_after", [1, 5])
def test_the_trigger_is_that_of_the_original(average_after):
    optimizer = build_optimizer(settings(**NT_ASGD | {"average_after": average_after}), 40)
    fresh, rng, seen = optimizer.init(PARAMS), np.random.default_rng(0), set()
    for _ in range(12):
        values = (rng.normal(size=10) - np.arange(10) / 3).astype(np.float32)
        state, began = fresh, None
        for index, value in enumerate(values):
            state = observe(state, float(value))
            if began is None and bool(state[-1].averaging):
                began = index
        assert began == triggers(values.tolist(), average_after)
        assert bool(state[-1].averaging) == (began is not None), "once begun it goes on"
        seen.add(began)
    assert len(seen) > 2


@pytest.mark.parametrize(
    ("changes", "beside"), [({}, 2), ({"name": "adagrad"}, 1), ({"name": "sgd"}, 0), ({"name": "lamb"}, 2), (NT_ASGD, 1)]
)
def test_moments_accumulators_and_averages_lie_beside_their_parameters(changes, beside):
    optimizer = build_optimizer(settings(**changes), 40)
    state = jax.eval_shape(optimizer.init, PARAMS)
    same = optax.tree.map_params(optimizer, lambda s, p: s.shape == p.shape, state, PARAMS, transform_non_params=lambda _: "")
    found = [mark for mark in jax.tree.leaves(same) if mark != ""]
    assert found == [True] * beside * len(jax.tree.leaves(PARAMS))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "lamb", "bias_correction": "rate"}, "config.optimizer.bias_correction='rate' .*'lamb'"),
        ({"name": "muon", "bias_correction": "rate"}, "config.optimizer.bias_correction='rate' .*'muon'"),
        ({"muon_rate": 0.0}, r"config.optimizer.muon_rate=0.0"),  # as for every key, by its range
        ({"average_after": 5}, "config.optimizer.average_after=5 .*name=sgd"),
        ({"name": "sgd", "average_after": 5}, "config.optimizer.average_after=5 .*decay=constant"),
    ],
)
def test_settings_that_mean_nothing_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        build_optimizer(settings(**changes), 40)
