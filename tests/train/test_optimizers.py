"""AdamW and the schedules equal their definitions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bertlab.config import base_config
from bertlab.errors import UserError
from bertlab.train.optimizers import build_optimizer, decay_mask, parameter_names
from bertlab.train.schedules import learning_rate
from tests.references import tiny_program

PARAMS = {
    "dense": {"kernel": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), "bias": np.float32([0.3, -0.2, 0.1])},
    "norm": {"scale": np.float32([1.0, 2.0])},
}


def settings(**changes):
    optimizer = base_config().optimizer
    optimizer.update({"warmup_steps": 2, "learning_rate": 0.01, "weight_decay": 0.1, **changes})
    return optimizer


def gradients(seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    draw = lambda leaf: (scale * rng.normal(size=leaf.shape)).astype(np.float32)
    return [jax.tree.map(draw, PARAMS) for _ in range(5)]


def trained(optimizer, grads):
    state, params = optimizer.init(PARAMS), PARAMS
    update = jax.jit(optimizer.update)
    for grad in grads:
        updates, state = update(grad, state, params)
        params = jax.tree.map(np.add, params, updates)
    return params


@pytest.mark.parametrize("bias_correction", [False, True])
@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
def test_adamw_equals_numpy_for_five_steps(bias_correction, clip_norm):
    grads, optimizer = gradients(), settings(bias_correction=bias_correction, clip_norm=clip_norm, epsilon=1e-3)
    result = trained(build_optimizer(optimizer, 10), grads)

    weights = {name: np.float64(w) for name, w in zip(parameter_names(PARAMS), jax.tree.leaves(PARAMS), strict=True)}
    m = {name: np.zeros_like(w) for name, w in weights.items()}
    v = {name: np.zeros_like(w) for name, w in weights.items()}
    for step, grad in enumerate(grads):
        grad = dict(zip(weights, map(np.float64, jax.tree.leaves(grad)), strict=True))
        norm = np.sqrt(sum((g**2).sum() for g in grad.values()))
        rate = 0.01 * (step / 2 if step < 2 else 1 - step / 10)
        for name, g in grad.items():
            g = g * min(1.0, clip_norm / norm) if clip_norm else g
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.999 * v[name] + 0.001 * g**2
            c1, c2 = (1 - 0.9 ** (step + 1), 1 - 0.999 ** (step + 1)) if bias_correction else (1, 1)
            update = m[name] / c1 / (np.sqrt(v[name] / c2) + 1e-3)
            if name == "dense/kernel":
                update += 0.1 * weights[name]
            weights[name] = weights[name] - rate * update
    for name, ours in zip(weights, jax.tree.leaves(result), strict=True):
        np.testing.assert_allclose(ours, weights[name], rtol=2e-5, err_msg=name)


def test_clipping_comes_before_adam():
    """Gradients of norm 300 and of norm 3000 are the same after clipping, so the moments must be too."""
    optimizer = build_optimizer(settings(), 10)
    large, larger = (trained(optimizer, gradients(scale=scale)) for scale in (1e2, 1e3))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4), large, larger)
    # After Adam, whose updates do not know the gradient's scale, clipping would change even small gradients' updates.
    small = gradients(scale=1e-2)
    unclipped = trained(build_optimizer(settings(clip_norm=0.0), 10), small)
    jax.tree.map(np.testing.assert_array_equal, trained(optimizer, small), unclipped)


def test_equals_optax_where_rules_agree():
    optimizer = settings(bias_correction=True, epsilon=1e-8, clip_norm=0.0)
    rate = learning_rate(optimizer, 10)
    theirs = optax.adamw(rate, 0.9, 0.999, eps=1e-8, weight_decay=0.1, mask=lambda p: decay_mask(p, optimizer.decay_exclude))
    ours = trained(build_optimizer(optimizer, 10), gradients())
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), ours, trained(theirs, gradients()))


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


def test_what_is_decayed_of_bert(packed_batch):
    shapes = jax.eval_shape(tiny_program("bert", "mlm+nsp").init, jax.random.key(0), packed_batch())
    mask = decay_mask(shapes, base_config().optimizer.decay_exclude)
    decayed = dict(zip(parameter_names(shapes), jax.tree.leaves(mask), strict=True))
    attention = {"qkv_kernel", "out_kernel"}
    assert {name for name, flag in decayed.items() if flag} == {
        *(f"body/{kind}_embedding" for kind in ("token", "position", "segment")),
        *(f"body/block_0/attention/{name}" for name in attention),
        "body/block_0/up/kernel",
        "body/block_0/down/kernel",
        "body/pooler/kernel",
        "body/output/transform/kernel",
        "heads_nsp/kernel",
    }
    assert {"body/output/bias", "body/embedding_norm/scale", "body/pooler/bias", "heads_nsp/bias"} <= decayed.keys()


@pytest.mark.parametrize(
    ("family", "kept"), [("gpt", {"token_embedding", "position_embedding"}), ("elmo", {"token_embedding"})]
)
def test_matrices_of_the_other_families_are_decayed_and_vectors_are_not(family, kept, packed_batch):
    shapes = jax.eval_shape(tiny_program(family, "ltr").init, jax.random.key(0), packed_batch())
    mask = decay_mask(shapes, base_config().optimizer.decay_exclude)
    decayed = {n.removeprefix("body/") for n, flag in zip(parameter_names(shapes), jax.tree.leaves(mask)) if flag}
    assert kept <= decayed
    for name in map(lambda n: n.removeprefix("body/"), parameter_names(shapes)):
        vector = name.endswith("bias") or "norm" in name
        assert (name in decayed) != vector, name


def test_berts_schedule():
    rate = learning_rate(settings(learning_rate=1e-4, warmup_steps=10_000), 1_000_000)
    values = {0: 0.0, 5_000: 5e-5, 9_999: 9.999e-5, 10_000: 9.9e-5, 500_000: 5e-5, 1_000_000: 0.0, 1_500_000: 0.0}
    np.testing.assert_allclose([rate(step) for step in values], list(values.values()), rtol=1e-5, atol=1e-12)


def test_gpts_schedule():
    cosine = settings(learning_rate=2.5e-4, warmup_steps=2000, decay="cosine", decay_from_start=False)
    rate = learning_rate(cosine, 102_000)
    values = {0: 0.0, 1000: 1.25e-4, 2000: 2.5e-4, 27_000: 2.5e-4 * (0.5 + 0.5**1.5), 52_000: 1.25e-4, 102_000: 0.0}
    np.testing.assert_allclose([rate(step) for step in values], list(values.values()), rtol=1e-5, atol=1e-11)


def test_constant_rate_and_no_warmup():
    rate = learning_rate(settings(decay="constant", warmup_steps=0), 10)
    np.testing.assert_allclose([rate(step) for step in (0, 5, 10, 99)], 0.01)


def test_unknown_decay_is_refused():
    with pytest.raises(UserError, match=r"config.optimizer.decay='square' is not known; choose linear"):
        learning_rate(settings(decay="square"), 10)
