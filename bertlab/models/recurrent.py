"""What the recurrent bodies share: where states begin again, and the loop over time.

Letters: B batch, L length, D width, F cell width. Time comes first in a loop's arrays, as `jax.lax.scan` wants it.
"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertlab.models.base import Carry, View

State = Mapping[str, Array]
"""`cell` [B, F] in float32, so that small changes are not rounded away over time, and `state` [B, D]."""


def uniform(bound: float):
    """U(−bound, bound)."""
    return lambda key, shape, dtype=jnp.float32: jax.random.uniform(key, shape, dtype, -bound, bound)


def borders(documents: Int[Array, "L B"], reverse: bool, stateful: bool) -> tuple[Array, Array | None]:
    """Where states start from zero, and where they are held.

    Args:
        documents: each position's document, 0 for padding.
        reverse: read from the last position to the first.
        stateful: the row continues one that was read before, and its states go on into the next.

    Returns:
        reset: bool [L, B]. Stateless: the first position of every run of one document, or of padding. Stateful: the first
            of each document but the row's first, padding between them or not; a row's begin is for `begin_with` to say.
        hold: bool [L, B], padding, which a stateful row passes over; None if stateless.
    """
    if not stateful:
        border = documents[1:] != documents[:-1]
        edge = jnp.ones_like(border[:1])
        return jnp.concatenate([border, edge] if reverse else [edge, border]), None
    latest = jax.lax.associative_scan(lambda a, b: jnp.where(b > 0, b, a), documents, reverse=reverse)
    none = jnp.zeros_like(latest[:1])
    before = jnp.concatenate([latest[1:], none] if reverse else [none, latest[:-1]])
    return (documents > 0) & (before > 0) & (documents != before), documents == 0


def begin_with(carry: Carry, side: str, view: View) -> Carry:
    """A side's states for position 0: those carried where the row continues, else zeros."""
    continues = view["continues"] > 0
    return jax.tree.map(lambda x: jnp.where(continues.reshape(-1, *[1] * (x.ndim - 1)), x, 0), carry[side])


def through_time(
    step: Callable[[State, Array], State],
    begin: State,
    gates: Float[Array, "L B 4F"],
    reset: Bool[Array, "L B"],
    hold: Bool[Array, "L B"] | None,
    reverse: bool,
) -> tuple[State, Float[Array, "L B D"]]:
    """The state after the last position in reading order, and `state` after every position.

    Args:
        step: (state, a position's gate inputs) -> next state.
        begin: the state before the first position.
        gates: what each position adds to the gates; computed for all at once, so that only what depends on the state is here.
        reset: true where the state is zero before the step.
        hold: true where the state stays as it is.
        reverse: read from the last position to the first.
    """

    def at(state, inputs):
        gate, reset_now, hold_now = inputs
        new = step(jax.tree.map(lambda x: jnp.where(reset_now[:, None], 0, x), state), gate)
        if hold is not None:
            new = jax.tree.map(lambda old, x: jnp.where(hold_now[:, None], old, x), state, new)
        return new, new["state"]

    return jax.lax.scan(at, begin, (gates, reset, hold), reverse=reverse)
