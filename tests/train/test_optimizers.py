"""Every optimiser equals its definition, step for step."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertlab.config import base_config
from bertlab.errors import UserError
from bertlab.train.optimizers import build_optimizer, check_optimizer, decay_mask, evaluation_params, observe, parameter_names
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


@pytest.mark.parametrize("case", ["BERT", "GPT", "ELMo", "AWD-LSTM"])
def test_a_batch_may_scale_its_rate_and_the_decay_with_it(case):
    optimizer, grads = settings(**CASES[case]), gradients()
    result = flat(trained(build_optimizer(optimizer, 40), grads, rate_scale=np.float32(0.5)))
    expected = reference(optimizer, grads, linear, rate_scale=0.5)
    for name, weights in expected.items():
        np.testing.assert_allclose(result[name], weights, rtol=2e-5, atol=2e-6, err_msg=name)


def test_clipping_comes_before_adam():
    """Gradients of norm 300 and of norm 3000 are the same after clipping, so the moments must be too."""
    optimizer = build_optimizer(settings(), 40)
    large, larger = (trained(optimizer, gradients(scale=scale)) for scale in (1e2, 1e3))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4), large, larger)
    # After Adam, whose updates do not know the gradient's scale, clipping would change even small gradients' updates.
    small = gradients(scale=1e-3)
    unclipped = trained(build_optimizer(settings(clip_norm=0.0), 40), small)
    jax.tree.map(np.testing.assert_array_equal, trained(optimizer, small), unclipped)


def test_equals_optax_where_rules_agree():
    optimizer = settings(bias_correction="moments", epsilon=1e-8, clip_norm=0.0)
    rate = learning_rate(optimizer, 40)
    theirs = optax.adamw(rate, 0.9, 0.999, eps=1e-8, weight_decay=0.1, mask=lambda p: decay_mask(p, optimizer.decay_exclude))
    ours = trained(build_optimizer(optimizer, 40), gradients())
    close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6)
    jax.tree.map(close, ours, trained(theirs, gradients()))


def test_lamb_equals_optax_with_nothing_excluded():
    optimizer = settings(name="lamb", bias_correction="moments", clip_norm=0.0, decay_exclude="")
    theirs = optax.lamb(learning_rate(optimizer, 40), 0.9, 0.999, eps=1e-6, weight_decay=0.1)
    close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-6)
    jax.tree.map(close, trained(build_optimizer(optimizer, 40), gradients()), trained(theirs, gradients()))


def test_lamb_scales_each_of_the_stacked_layers_by_its_own_norms():
    optimizer = build_optimizer(settings(name="lamb", weight_decay=0.0, clip_norm=0.0, warmup_steps=0), 40)
    rng = np.random.default_rng(1)
    layers = [rng.normal(size=(3, 4)).astype(np.float32) * scale for scale in (0.1, 10.0)]
    grads = [rng.normal(size=(3, 4)).astype(np.float32) for _ in layers]

    def updated(params, grad):
        return optimizer.update(grad, optimizer.init(params), params)[0]

    stacked = updated(
        {"body": {"blocks": {"up": {"kernel": np.stack(layers)}}}}, {"body": {"blocks": {"up": {"kernel": np.stack(grads)}}}}
    )
    for number, (layer, grad) in enumerate(zip(layers, grads, strict=True)):
        alone = updated({"dense": {"kernel": layer}}, {"dense": {"kernel": grad}})["dense"]["kernel"]
        np.testing.assert_allclose(stacked["body"]["blocks"]["up"]["kernel"][number], alone, rtol=1e-5)


def test_lamb_scales_query_key_and_value_by_their_own_norms():
    optimizer = build_optimizer(settings(name="lamb", weight_decay=0.0, clip_norm=0.0, warmup_steps=0), 40)
    rng = np.random.default_rng(2)
    kernel = rng.normal(size=(2, 4, 3, 2, 2)).astype(np.float32) * np.float32([0.1, 1, 10])[:, None, None]
    grad = rng.normal(size=kernel.shape).astype(np.float32)
    tree = lambda leaf: {"body": {"blocks": {"attention": {"qkv_kernel": leaf}}}}
    updates, _ = optimizer.update(tree(grad), optimizer.init(tree(kernel)), tree(kernel))
    norm = lambda x: np.sqrt((np.float64(x) ** 2).sum((1, 3, 4)))
    ratio = norm(updates["body"]["blocks"]["attention"]["qkv_kernel"]) / norm(kernel)
    np.testing.assert_allclose(ratio, np.full((2, 3), ratio[0, 0]), rtol=1e-5)


def test_lamb_leaves_parameters_of_zeros_able_to_move():
    optimizer = build_optimizer(settings(name="lamb", clip_norm=0.0, warmup_steps=0), 40)
    params = {"dense": {"kernel": np.zeros((2, 2), np.float32)}}
    moved, _ = optimizer.update({"dense": {"kernel": np.ones((2, 2), np.float32)}}, optimizer.init(params), params)
    still, _ = optimizer.update(params, optimizer.init(params), params)
    assert (moved["dense"]["kernel"] < 0).all() and (still["dense"]["kernel"] == 0).all()


def test_bert_minimises_as_its_own_test_does():
    """google-research/bert optimization_test.py: rate 0.2, 100 steps, mean squared distance, no decay."""
    target = jnp.array([0.4, 0.2, -0.5])
    optimizer = build_optimizer(
        settings(learning_rate=0.2, warmup_steps=0, decay="constant", weight_decay=0.0, clip_norm=0.0), 100
    )
    loss = lambda w: jnp.mean((target - w["w"]) ** 2)

    def step(_, carry):
        w, state = carry
        updates, state = optimizer.update(jax.grad(loss)(w), state, w)
        return optax.apply_updates(w, updates), state

    start = {"w": jnp.array([0.1, -0.2, -0.1])}
    end, _ = jax.jit(lambda: jax.lax.fori_loop(0, 100, step, (start, optimizer.init(start))))()
    np.testing.assert_allclose(end["w"], target, atol=1e-2)


# What is decayed, by the names of parameters (contracts/test_models_and_objectives.py builds the models themselves).


def test_biases_and_norms_are_not_decayed():
    decayed = ["token_embedding", "blocks/attention/qkv_kernel", "blocks/up/kernel", "pooler/kernel", "output/kernel"]
    kept = ["embedding_norm/scale", "blocks/attention/qkv_bias", "final_norm/bias", "output/bias", "layer_0/input_bias"]
    tree = {}
    for path in [*decayed, *kept]:
        *parents, leaf = path.split("/")
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[leaf] = np.zeros(1)
    mask = decay_mask(tree, base_config().optimizer.decay_exclude)
    flags = dict(zip(parameter_names(tree), jax.tree.leaves(mask), strict=True))
    assert {name for name, flag in flags.items() if flag} == set(decayed)


# NT-ASGD.

NT_ASGD = dict(
    name="sgd", decay="constant", warmup_steps=0, coupled_decay=True, clip_norm=0.25, learning_rate=1.0, average_after=2
)


def run_asgd(values_by_step, grads, optimizer, update):
    """Parameters and state after every step; values observed after some."""
    state, params, history = optimizer.init(PARAMS), PARAMS, []
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


def triggers(values, average_after):
    """When averaging begins; as salesforce/awd-lstm-lm main.py writes it."""
    best_val_loss = []
    for index, value in enumerate(values):
        if len(best_val_loss) > average_after and value > min(best_val_loss[:-average_after]):
            return index
        best_val_loss.append(value)
    return None


@pytest.mark.parametrize("average_after", [1, 2, 5])
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


def test_the_state_is_all_there_is():
    """Restored between any two steps, as arrays, it goes on bit for bit; observing needs no host state."""
    optimizer = build_optimizer(settings(**NT_ASGD), 40)
    update = jax.jit(optimizer.update)
    values = {0: 4.0, 3: 3.0, 6: 5.0, 9: 2.9, 12: 3.5}

    def restored(grad, state, params):
        leaves, tree = jax.tree.flatten(state)
        assert {leaf.dtype.name for leaf in leaves} <= {"float32", "int32", "bool"}
        return update(grad, jax.tree.unflatten(tree, [jnp.asarray(np.array(leaf)) for leaf in leaves]), params)

    once, again = (run_asgd(values, gradients(), optimizer, step)[0][-1][1] for step in (update, restored))
    jax.tree.map(np.testing.assert_array_equal, once, again)


def test_other_optimisers_have_nothing_to_observe_or_to_average():
    optimizer = build_optimizer(settings(), 40)
    state = optimizer.init(PARAMS)
    jax.tree.map(np.testing.assert_array_equal, observe(state, 1.0), state)
    assert evaluation_params(state, PARAMS) is PARAMS


def test_observing_and_evaluating_work_under_jit_on_a_mesh():
    """States that were placed stay where a compiled step expects them."""
    mesh = jax.make_mesh((2,), ("fsdp",), devices=jax.devices()[:2], axis_types=(jax.sharding.AxisType.Auto,))
    whole, halves = (jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)) for spec in ((), ("fsdp",)))
    optimizer = build_optimizer(settings(**NT_ASGD), 40)
    params = {"kernel": jax.device_put(np.ones((4, 2), np.float32), halves)}
    state = optimizer.init(params)
    placed = optax.tree.map_params(optimizer, lambda _, p: p.sharding, state, params, transform_non_params=lambda _: whole)
    state = jax.device_put(state, placed)
    update = jax.jit(optimizer.update, out_shardings=(halves, placed)).lower(params, state, params).compile()
    for value in (3.0, 2.0, 1.0, 4.0, 5.0):
        _, state = update(params, state, params)
        state = observe(state, value)
    assert bool(state[-1].averaging) and state[-1].average["kernel"].sharding == halves
    averaged = jax.jit(evaluation_params)(state, params)
    np.testing.assert_array_equal(averaged["kernel"], evaluation_params(state, params)["kernel"])


class Accumulators(NamedTuple):
    """Which parts of an optimiser's state lie beside the parameters."""

    beside: int
    elsewhere: int


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Accumulators(2, 2)),
        ({"name": "adagrad"}, Accumulators(1, 1)),
        ({"name": "sgd"}, Accumulators(0, 1)),
        ({"name": "lamb"}, Accumulators(2, 2)),
        (NT_ASGD, Accumulators(1, 6)),
    ],
)
def test_moments_accumulators_and_averages_lie_beside_their_parameters(changes, expected):
    optimizer = build_optimizer(settings(**changes), 40)
    state = jax.eval_shape(optimizer.init, PARAMS)
    marks = jax.tree.leaves(
        optax.tree.map_params(optimizer, lambda s, p: s.shape == p.shape, state, PARAMS, transform_non_params=lambda _: None),
        is_leaf=lambda x: x is None,
    )
    assert Accumulators(marks.count(True) // len(jax.tree.leaves(PARAMS)), marks.count(None)) == expected
    assert False not in marks


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "lamb", "bias_correction": "rate"}, "config.optimizer.bias_correction='rate' is GPT's, for name='adam'"),
        ({"name": "muon", "bias_correction": "rate"}, "for name='adam'; set 'none' or 'moments' for 'muon'"),
        ({"name": "lion"}, "config.optimizer.name='lion'"),
        ({"muon_scale": "adam"}, "config.optimizer.muon_scale='adam'"),
        ({"muon_momentum": 1.0}, "config.optimizer.muon_momentum=1.0"),
        ({"muon_rate": 0.0}, "config.optimizer.muon_rate=0.0"),
        ({"bias_correction": "both"}, "bias_correction='both'"),
        ({"b1": 1.0}, "config.optimizer.b1=1.0"),
        ({"b2": -0.1}, "config.optimizer.b2=-0.1"),
        ({"epsilon": -1e-8}, "config.optimizer.epsilon=-1e-08"),
        ({"average_after": -1}, "config.optimizer.average_after=-1"),
        ({"initial_accumulator": 0.0}, "config.optimizer.initial_accumulator=0.0"),
        ({"gradient_scale": 0.0}, "config.optimizer.gradient_scale=0.0"),
        ({"average_after": 5}, "set name='sgd' and decay='constant'"),
        ({"name": "sgd", "average_after": 5}, "decay='linear'; set name='sgd' and decay='constant'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        check_optimizer(settings(**changes))
    with pytest.raises(UserError, match=message):
        build_optimizer(settings(**changes), 40)
