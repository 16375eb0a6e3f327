"""Optimisers: NumPy from the papers, torch's and the authors' rules, and what stages freeze."""

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bertlab.config.defaults import base_config
from bertlab.errors import UserError
from bertlab.train.checkpoint import load_params, open_checkpoints, save
from bertlab.train.optimizers import build_optimizer, evaluation_params, matrix_axes, observe
from bertlab.train.run_directory import RunDirectory
from bertlab.train.schedules import layer_plan
from bertlab.train.state import TrainState, parameter_name

STEPS = 20
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
quick_jit = functools.partial(jax.jit, compiler_options=QUICK)
RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype(np.float32)


# Four groups: embeddings, two layers, head.
PARAMS = {
    "body": {
        "token_embedding": normal(9, 4),
        "blocks": {
            "attention": {"qkv_kernel": normal(2, 4, 3, 2, 3)},
            "up": {"bias": normal(2, 7)},
        },
    },
    "heads_nsp": {"kernel": normal(4, 2)},
}
PROGRAM = SimpleNamespace(init=lambda key, batch: PARAMS, body=SimpleNamespace(shape=None))
# Norms from a tenth to ten times, so that only some are clipped.
SIZES = np.float32(10 ** np.sin(range(STEPS)))
GRADS = [jax.tree.map(lambda p, size=size: normal(*p.shape) * size, PARAMS) for size in SIZES]
SCALES = np.float32(RNG.uniform(0.5, 1.5, STEPS))
LOSSES = np.float32([4, 3, 5, 2.9, 3.5, 9, *range(14)])  # averaging begins after the fifth update


def settings(**changes):
    optimizer = base_config().optimizer
    optimizer.update({"warmup_steps": 2, "learning_rate": 0.01, "weight_decay": 0.1, **changes})
    return optimizer


def built(**changes):
    return build_optimizer(settings(**changes), STEPS, PROGRAM, {})


def trajectory(optimizer, observe, evaluation_params, compiled=False):
    """(parameters, those to evaluate) after each update; a held-out loss is observed after it."""
    params, state, history = jax.tree.map(jnp.asarray, PARAMS), optimizer.init(PARAMS), []
    update = quick_jit(optimizer.update) if compiled else optimizer.update
    for grads, scale, loss in zip(GRADS, SCALES, LOSSES, strict=True):
        updates, state = update(grads, state, params, rate_scale=scale)
        params = optax.apply_updates(params, updates)
        state = observe(state, loss)
        history.append((params, evaluation_params(state, params)))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *history)


SGD = dict(name="sgd", clip_norm=0.25, coupled_decay=True, decay="constant", warmup_steps=0)
MOMENTS = dict(bias_correction="moments", epsilon=1e-8)


def numpy_update(optimizer, g, memory, step):
    """u of the papers' rules, and the new memory: (m, v) of Adam, the sum of squares of Adagrad."""
    if optimizer.name == "sgd":
        return g, memory
    if optimizer.name == "adagrad":  # Duchi et al. 2011, from an accumulator of 1 (bilm-tf)
        total = (1.0 if memory is None else memory) + g**2
        return g / np.sqrt(total), total
    m, v = (0.0, 0.0) if memory is None else memory  # Kingma and Ba 2015, algorithm 1
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    first, second = 1 - 0.9 ** (step + 1), 1 - 0.999 ** (step + 1)
    if optimizer.bias_correction == "moments":
        return m / first / (np.sqrt(v / second) + optimizer.epsilon), (m, v)
    u = m / (np.sqrt(v) + optimizer.epsilon)
    return u * (np.sqrt(second) / first if optimizer.bias_correction == "rate" else 1.0), (m, v)


PAPERS = {
    "BERT": dict(clip_norm=1.0),
    "Adam, L2": dict(**MOMENTS, clip_norm=0.0, coupled_decay=True),
    "GPT": dict(bias_correction="rate", epsilon=1e-8, weight_decay=0.0),
    "ELMo": dict(name="adagrad", gradient_scale=20.0, clip_norm=10.0, weight_decay=0.0),
    "AWD-LSTM": dict(name="sgd", clip_norm=0.25, coupled_decay=True),
}


@pytest.mark.parametrize("name", PAPERS)
def test_updates_are_the_papers(name):
    """In float64: scale, clip, coupled decay, rule, decoupled decay, rate."""
    optimizer = settings(**PAPERS[name])
    params, _ = trajectory(built(**PAPERS[name]), observe, evaluation_params, compiled=True)
    names = [parameter_name(path) for path, _ in jax.tree.leaves_with_path(PARAMS)]
    weights = [np.float64(leaf) for leaf in jax.tree.leaves(PARAMS)]
    memory = [None] * len(names)
    for step, grads in enumerate(GRADS):
        grads = [optimizer.gradient_scale * np.float64(g) for g in jax.tree.leaves(grads)]
        norm = np.sqrt(sum((g**2).sum() for g in grads))
        clip = min(1, optimizer.clip_norm / norm) if optimizer.clip_norm else 1
        rate = SCALES[step] * 0.01 * (step / 2 if step < 2 else 1 - step / STEPS)
        for i, g in enumerate(grads):
            decay = 0.0 if names[i].endswith(("bias", "scale")) else optimizer.weight_decay
            g = clip * g + decay * weights[i] * optimizer.coupled_decay
            u, memory[i] = numpy_update(optimizer, g, memory[i], step)
            u = u + decay * weights[i] * (not optimizer.coupled_decay)
            weights[i] = weights[i] - rate * u
    for actual, expected in zip(jax.tree.leaves(params), weights, strict=True):
        np.testing.assert_allclose(actual[-1], expected, rtol=2e-5, atol=2e-6)


def test_stages_and_rates_of_the_papers():
    """Howard and Ruder 2018, sections 3.2 and 3.3; Felbo et al. 2017, section 3.2."""

    def plan(**changes):
        return layer_plan(settings(thaw_steps=2, **changes), STEPS, PARAMS)

    def stages(**changes):  # columns: embeddings, layer 1, layer 2, head; what is frozen
        return (plan(**changes).factors > 0).astype(int).tolist()

    assert stages(thaw="gradual") == [
        [0, 0, 0, 1, 0],
        [0, 0, 1, 1, 0],
        [0, 1, 1, 1, 0],
        [1, 1, 1, 1, 0],
    ]
    assert stages(thaw="chain") == [
        [0, 0, 0, 1, 0],
        [1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [1, 1, 1, 1, 0],
    ]
    assert stages(thaw="last") == [[0, 0, 1, 1, 0]]
    assert stages(thaw="head") == [[0, 0, 0, 1, 0]]
    np.testing.assert_allclose(plan(layer_decay=0.5).factors, [[0.125, 0.25, 0.5, 1, 0]])
    frozen = plan(group_rates="0.1,1,2,3", frozen="^body/blocks/up")
    np.testing.assert_allclose(frozen.factors, [[0.1, 1, 2, 3, 0]])
    assert frozen.rate_factors(0)["body"]["blocks"]["up"]["bias"] == 0
    restarts = plan(thaw="gradual", thaw_restarts=True, decay="linear", warmup_steps=0)
    np.testing.assert_allclose(
        [restarts.rate(step) for step in (0, 1, 2, 6)], [0.01, 0.005, 0.01, 0.01]
    )


def orthogonalised(matrix):
    """Five Newton-Schulz iterations act on singular values alone; the vectors stay."""
    left, values, right = np.linalg.svd(np.float64(matrix), full_matrices=False)
    values = values / np.linalg.norm(values)
    for _ in range(5):
        values = 3.4445 * values - 4.775 * values**3 + 2.0315 * values**5
    return left * values @ right


def test_muons_first_update_orthogonalises_each_layers_query_key_and_value():
    optimizer = built(name="muon", weight_decay=0.0, decay="constant", warmup_steps=0)
    updates, _ = quick_jit(optimizer.update)(GRADS[0], optimizer.init(PARAMS), PARAMS)
    gradient = GRADS[0]["body"]["blocks"]["attention"]["qkv_kernel"]
    update = updates["body"]["blocks"]["attention"]["qkv_kernel"]
    for layer, letter in np.ndindex(2, 3):
        expected = -0.01 * 0.2 * 6**0.5 * orthogonalised(gradient[layer, :, letter].reshape(4, 6))
        actual = update[layer, :, letter].reshape(4, 6)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)


def test_lambs_update_is_as_long_as_the_weights_of_each_layers_query_key_and_value():
    optimizer = built(name="lamb", weight_decay=0.0, decay="constant", warmup_steps=0)
    updates, _ = quick_jit(optimizer.update)(GRADS[0], optimizer.init(PARAMS), PARAMS)

    def norms(tree):
        kernel = np.float64(tree["body"]["blocks"]["attention"]["qkv_kernel"])
        return np.sqrt((kernel**2).sum((1, 3, 4)))

    np.testing.assert_allclose(norms(updates), 0.01 * norms(PARAMS), rtol=1e-5)


def test_what_thaws_begins_like_new_and_what_is_frozen_is_not_seen():
    """After its first update Adam's corrected step is the gradient's sign; other gradients are
    infinite here until they thaw."""
    optimizer = built(**MOMENTS, thaw="gradual", thaw_steps=2, decay="constant", warmup_steps=0)
    state, params, update = optimizer.init(PARAMS), PARAMS, quick_jit(optimizer.update)
    for step, first in enumerate(("heads_nsp", None, "layer 2", None, "layer 1", None, "body")):
        grads = jax.tree.map(np.copy, GRADS[step])
        if step < 6:
            grads["body"]["token_embedding"] += np.inf
        updates, state = update(grads, state, params)
        assert np.isfinite(updates["body"]["token_embedding"]).all()
        moved = updates["body"]["blocks"]["up"]["bias"]  # without decay
        sign = -0.01 * np.sign(grads["body"]["blocks"]["up"]["bias"])
        if first in ("layer 2", "layer 1"):
            layer = int(first[-1]) - 1
            np.testing.assert_allclose(moved[layer], sign[layer], rtol=1e-4)
        frozen = np.array([step < 4, step < 2])
        np.testing.assert_array_equal((np.asarray(moved) == 0).all(1), frozen)
    assert (np.asarray(updates["body"]["token_embedding"]) != 0).all()


def test_averaging_begins_and_averages_as_the_original():
    """salesforce/awd-lstm-lm main.py's trigger, and torch.optim.ASGD's mean of later parameters."""
    optimizer = built(**SGD, average_after=5)
    fresh, rng, seen = optimizer.init(PARAMS), np.random.default_rng(0), set()
    for _ in range(12):
        state, best_val_loss, begun, expected = fresh, [], None, None
        for index, loss in enumerate(rng.normal(size=10) - np.arange(10) / 3):
            loss = float(np.float32(loss))
            state = observe(state, loss)
            if begun is None and bool(state[-1].averaging):
                begun = index
            if expected is None and len(best_val_loss) > 5 and loss > min(best_val_loss[:-5]):
                expected = index
            best_val_loss.append(loss)
        assert begun == expected
        seen.add(begun)
    assert len(seen) > 2
    params, averages = trajectory(built(**SGD, average_after=2), observe, evaluation_params)
    params, averages = (tree["heads_nsp"]["kernel"] for tree in (params, averages))
    np.testing.assert_array_equal(averages[:5], params[:5])
    mean = params[6]  # the first two updates of ASGD both copy
    for step in range(7, STEPS):
        mean = mean + (params[step] - mean) / (step - 5)
        np.testing.assert_allclose(averages[step], mean, rtol=1e-5, atol=1e-6)
    assert np.abs(averages[-1] - params[-1]).max() > 1e-3


def test_fine_tuning_of_awd_lstm_starts_again_from_the_average():
    """Merity et al. 2017, section 5: from there ASGD averages anew, from its first step."""
    _, once = trajectory(built(**SGD, average_after=2), observe, evaluation_params)
    optimizer = built(**SGD, average_after=2, average_again=12)
    params, averages = trajectory(optimizer, observe, evaluation_params)
    once, params, averages = (tree["heads_nsp"]["kernel"] for tree in (once, params, averages))
    np.testing.assert_array_equal(averages[:11], once[:11])
    np.testing.assert_allclose(params[11], once[11], rtol=1e-6)
    np.testing.assert_array_equal(averages[11:14], params[11:14])
    mean = params[13]
    for step in range(14, STEPS):
        mean = mean + (params[step] - mean) / (step - 12)
        np.testing.assert_allclose(averages[step], mean, rtol=1e-5, atol=1e-6)


def test_a_saved_average_is_what_a_run_is_loaded_with(tmp_path):
    run, optimizer = RunDirectory(tmp_path), built(**SGD, average_after=1)
    state, params, update = optimizer.init(PARAMS), PARAMS, quick_jit(optimizer.update)
    for step, losses in enumerate(([1.0, 3.0, 2.0], [], [], [])):
        updates, state = update(GRADS[step], state, params)
        params = optax.apply_updates(params, updates)
        for loss in losses:
            state = observe(state, loss)
    with open_checkpoints(run.checkpoints, keep=0) as checkpoints:
        save(checkpoints, TrainState(jnp.int32(3), params, state, {}), {})
    saved = load_params(run)
    assert (saved["heads_nsp"]["kernel"] != params["heads_nsp"]["kernel"]).any()
    jax.tree.map(np.testing.assert_array_equal, saved, evaluation_params(state, params))


def test_on_a_mesh_moments_lie_beside_their_parameters_and_nothing_moves():
    """An update of divided arrays is the undivided one's; no evaluation makes it compile again."""
    mesh = jax.make_mesh((2,), ("fsdp",), devices=jax.devices()[:2], axis_types=(AxisType.Auto,))
    whole, halves = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in ((), ("fsdp",)))
    places = jax.tree.map(lambda p: whole if len(p) % 2 else halves, PARAMS)
    optimizer = built(name="muon", **MOMENTS, thaw="chain", thaw_steps=1, average_after=2)
    placed = optax.tree.map_params(
        optimizer,
        lambda leaf, place: leaf if isinstance(leaf, optax.MaskedNode) else place,
        jax.eval_shape(optimizer.init, PARAMS),
        places,
        transform_non_params=lambda _: whole,
        is_leaf=lambda node: isinstance(node, optax.MaskedNode),
    )
    state, params = jax.device_put(optimizer.init(PARAMS), placed), jax.device_put(PARAMS, places)
    update = quick_jit(optimizer.update, out_shardings=(places, placed))
    for grads, scale, loss in zip(GRADS[:8], SCALES, LOSSES):
        grads = jax.device_put(grads, places)
        updates, state = update(grads, state, params, rate_scale=scale)
        params = jax.device_put(optax.apply_updates(params, updates), places)
        state = observe(state, float(loss))
    assert update._cache_size() == 1
    alone, _ = trajectory(optimizer, observe, evaluation_params, compiled=True)
    for divided, whole in zip(jax.tree.leaves(params), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(divided, whole[7], rtol=1e-4, atol=2e-5)


def test_muon_trains_the_matrices_of_layers():
    def axes(name):
        return matrix_axes([jax.tree_util.DictKey(key) for key in name.split("/")])

    assert axes("body/blocks/attention/qkv_kernel") == ((-4,), (-2, -1))
    assert axes("body/blocks/attention/out_kernel") == ((-3, -2), (-1,))
    assert axes("body/blocks/up/kernel") == axes("body/forward/projection") == ((-2,), (-1,))
    assert axes("body/layer_1/recurrent_kernel") == ((-3,), (-1,))
    for name in ("token_embedding", "output/kernel", "pooler/kernel", "blocks/up/bias"):
        assert axes(f"body/{name}") is None
    assert axes("heads_x/kernel") is axes("lora/body/blocks/up/kernel/a") is None


REFUSED = {
    "name='adamw' is not one of adam": dict(name="adamw"),
    "decay='line' is not one of": dict(decay="line"),
    "bias_correction=rate": dict(name="lamb", bias_correction="rate"),
    "group_rates='1,1,1' must be 4 positive": dict(group_rates="1,1,1"),
    "layer_decay=1": dict(group_rates="1,1,1,2", layer_decay=0.3),
    "thaw_steps=0": dict(thaw="gradual"),
    "thaw_steps=7": dict(thaw="gradual", thaw_steps=7),
    "thaw_stages=4": dict(thaw="gradual", thaw_steps=2, thaw_stages=4),
    "frozen='.tail/' matches no parameter": dict(frozen="^tail/"),
    "warmup_steps=20": dict(warmup_steps=20),
}


@pytest.mark.parametrize("message", REFUSED)
def test_settings_that_would_be_ignored_are_refused(message):
    with pytest.raises(UserError, match=message):
        built(**REFUSED[message])
