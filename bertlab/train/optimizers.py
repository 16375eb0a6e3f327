"""AdamW with BERT's rules as switches (google-research/bert optimization.py)."""

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from bertlab.train.schedules import learning_rate


class AdamState(NamedTuple):
    """First and second moments, shaped like the parameters, and the number of updates."""

    count: jax.Array
    mu: optax.Updates
    nu: optax.Updates


def scale_by_adam(b1: float, b2: float, epsilon: float, bias_correction: bool) -> optax.GradientTransformation:
    """u = m / (√v + ε), with the moments' bias corrected (Kingma and Ba 2015, algorithm 1) or not (BERT)."""

    def init(params):
        zeros = lambda: jax.tree.map(jnp.zeros_like, params)
        return AdamState(jnp.zeros([], jnp.int32), zeros(), zeros())

    def update(grads, state, params=None):
        del params
        count = state.count + 1
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, grads)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, grads)
        c1 = 1 - b1**count if bias_correction else 1.0
        c2 = 1 - b2**count if bias_correction else 1.0
        updates = jax.tree.map(lambda m, v: (m / c1) / (jnp.sqrt(v / c2) + epsilon), mu, nu)
        return updates, AdamState(count, mu, nu)

    return optax.GradientTransformation(init, update)


def parameter_names(params) -> list[str]:
    """ "body/block_0/up/kernel" for each parameter, in tree order."""
    return ["/".join(str(k.key) for k in path) for path, _ in jax.tree.leaves_with_path(params)]


def decay_mask(params, exclude: str):
    """True for the parameters that are decayed: those whose path the pattern does not match."""
    names = parameter_names(params)
    return jax.tree.unflatten(jax.tree.structure(params), [not re.search(exclude, n) for n in names])


def build_optimizer(optimizer, steps: int) -> optax.GradientTransformation:
    """Global-norm clipping, Adam, decoupled weight decay, learning rate: in BERT's order.

    Args:
        optimizer: `config.optimizer`.
        steps: of the whole run, for the schedule.
    """
    rate = learning_rate(optimizer, steps)
    clip = [optax.clip_by_global_norm(optimizer.clip_norm)] if optimizer.clip_norm else []
    return optax.chain(
        *clip,
        scale_by_adam(optimizer.b1, optimizer.b2, optimizer.epsilon, optimizer.bias_correction),
        optax.add_decayed_weights(optimizer.weight_decay, mask=lambda p: decay_mask(p, optimizer.decay_exclude)),
        optax.scale_by_learning_rate(rate),
    )
