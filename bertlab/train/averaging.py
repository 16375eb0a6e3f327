"""Non-monotonically triggered averaged SGD (Merity et al. 2017, algorithm 1).

As in salesforce/awd-lstm-lm: the average is that of torch.optim.ASGD(t0=0, lambd=0), whose first
two steps both copy the parameters, and whose steps use the rate of the batch before.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int


class AverageState(NamedTuple):
    """Recent held-out losses, and the averaged parameters."""

    recent: Float[Array, "n"]  # the last n losses, oldest first; +inf for missing ones
    least: Float[Array, ""]  # of all losses before those; +inf without any
    averaging: Bool[Array, ""]  # whether averaging has begun
    count: Int[Array, ""]  # updates since then
    updates: Int[Array, ""]  # all updates
    rate_scale: Float[Array, ""]  # the last update's
    average: optax.Params  # like the parameters


def average_parameters(
    average_after: int, average_again: int = 0
) -> optax.GradientTransformationExtraArgs:
    """Averages the parameters once `observe` has triggered it; the last part of an optimiser.

    The latest `average_after` losses do not count as best. After `average_again` updates (0: never)
    it restarts from the average: AWD-LSTM's fine-tuning, which runs ASGD on the averaged model from
    its first step (ibid., section 5; salesforce/awd-lstm-lm finetune.py).
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

    return optax.GradientTransformationExtraArgs(init, update)


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
    return jax.tree.map(
        lambda a, param: jnp.where(state.count > 0, a, param), state.average, params
    )
