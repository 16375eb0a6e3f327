"""The LSTM along time, and where its states are reset, held and cut.

Letters: B batch, L length, D width of the states, F cell width. Time is the first axis of arrays.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bertlab.models.base import Carry, View
from bertlab.models.layers import platform

State = Mapping[str, Array]
"""`cell` [B, F] in float32, so that small changes are not rounded away, and `state` [B, D]."""


class Borders(NamedTuple):
    """What happens at each position; None: nowhere."""

    reset: Bool[Array, "L B"]  # the state is zero before the step
    hold: Bool[Array, "L B"] | None = None  # it does not change (padding of carried states)
    cut: Bool[Array, "L B"] | None = None  # no gradient flows to the state before the step


def borders(view: View, reverse: bool, stateful: bool) -> Borders:
    """The borders of a view's rows (`documents` and perhaps `cut`, [B, L]).

    Stateless: every stretch of one document, or of padding, starts from zero. Stateful: so does
    every document but a row's first, for which `begin_with` decides, and padding holds the state.
    """
    documents = view["documents"].T
    cut = view["cut"].T if "cut" in view else None
    if not stateful:
        change, edge = documents[1:] != documents[:-1], jnp.ones_like(documents[:1], bool)
        return Borders(jnp.concatenate([change, edge] if reverse else [edge, change]), None, cut)
    latest = jax.lax.associative_scan(
        lambda a, b: jnp.where(b > 0, b, a), documents, reverse=reverse
    )
    none = jnp.zeros_like(latest[:1])
    before = jnp.concatenate([latest[1:], none] if reverse else [none, latest[:-1]])
    reset = (documents > 0) & (before > 0) & (documents != before)
    return Borders(reset, documents == 0, cut)


def begin_with(shape, carry: Carry, side: str, view: View) -> Carry:
    """A side's states before the rows: the carried ones where they continue, otherwise zeros."""
    if not carry:
        return shape.initial_carry(len(view["documents"]), (side,))[side]
    continues = view["continues"] > 0
    return jax.tree.map(
        lambda x: jnp.where(continues.reshape(-1, *[1] * (x.ndim - 1)), x, 0), carry[side]
    )


def matmul(x: Float[Array, "L B D"], kernel: Float[Array, "D F"]) -> Float[Array, "L B F"]:
    """x @ kernel; on a CPU as matrices, since a sum along two axes takes twice as long there."""
    if platform() != "cpu":
        return x @ kernel
    return (x.reshape(-1, x.shape[-1]) @ kernel).reshape(*x.shape[:-1], -1)


def weight_gradient(
    x: Float[Array, "L B D"], gradient: Float[Array, "L B F"]
) -> Float[Array, "D F"]:
    """The gradient of the weights of `matmul`."""
    if platform() != "cpu":
        return jnp.einsum("lbd,lbf->df", x, gradient)
    return x.reshape(-1, x.shape[-1]).T @ gradient.reshape(-1, gradient.shape[-1])


@dataclasses.dataclass(frozen=True)
class Cell:
    """Settings in which LSTMs differ."""

    order: tuple[int, int, int, int]  # of input, forget, candidate, output in the gates' axis
    clip: float | None  # bound of the cell states, and of the states after a projection
    reverse: bool  # read from the last position to the first


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def lstm(
    cell: Cell,
    gates: Float[Array, "L B 4F"],
    kernel: Float[Array, "D 4F"],
    projection: Float[Array, "F D"] | None,
    begin: State,
    borders: Borders,
) -> tuple[Float[Array, "L B D"], State]:
    """An LSTM along time (Hochreiter and Schmidhuber 1997; Gers et al. 2000).

    i, f, o = sigmoid(.), g = tanh(.) of x + h W; c = clip(f c + i g); h = o tanh(c), or
    clip((o tanh(c)) P).

    The derivative is written by hand: each weight's gradient is one product after the loop, where
    automatic differentiation would add it up by position, and only states and gates are kept.

    `gates` is x, biases included; `kernel` W; `projection` P (None: D = F). Returns h of all
    positions, and the state after the last one in reading order.
    """
    return _lstm_forward(cell, gates, kernel, projection, begin, borders)[0]


def _lstm_forward(cell: Cell, gates, kernel, projection, begin, borders):
    def step(state, now):
        gate, (reset, hold, _) = now
        before = jax.tree.map(lambda x: jnp.where(reset[:, None], 0, x), state)
        i, f, g, o = _activations(cell, gate + before["state"] @ kernel)
        new = _clip(before["cell"] * f + i * g, cell.clip)
        out = (o * jnp.tanh(new)).astype(gates.dtype)
        if projection is not None:
            out = _clip(out @ projection, cell.clip)
        after = {"cell": new, "state": out}
        if hold is not None:
            after = jax.tree.map(lambda old, x: jnp.where(hold[:, None], old, x), state, after)
        return after, (after["state"], before, jnp.concatenate([i, f, g, o], axis=-1))

    end, (states, before, activations) = jax.lax.scan(
        step, begin, (gates, borders), reverse=cell.reverse
    )
    return (states, end), (states, before, activations, kernel, projection, borders)


def _lstm_backward(cell: Cell, saved, gradients):
    """Names with d_ are derivatives of the loss."""
    states, before, activations, kernel, projection, borders = saved
    d_states, d_end = gradients

    def step(d_state, now):
        d_out, out, old, activation, (reset, hold, cut) = now
        d_after = {"cell": d_state["cell"], "state": d_state["state"] + d_out}
        d_new_state = d_after
        if hold is not None:
            d_new_state = jax.tree.map(lambda d: jnp.where(hold[:, None], 0, d), d_after)
        i, f, g, o = jnp.split(activation.astype(jnp.float32), 4, axis=-1)
        new = old["cell"] * f + i * g
        tanh_cell = jnp.tanh(_clip(new, cell.clip))
        d_projected = d_hidden = d_new_state["state"]
        if projection is not None:
            d_projected = _clip_gradient(out, d_projected, cell.clip)
            d_hidden = d_projected @ projection.T
        d_cell = d_new_state["cell"] + d_hidden * o * (1 - tanh_cell**2)
        d_cell = _clip_gradient(new, d_cell, cell.clip)
        d_parts = (
            d_cell * g * i * (1 - i),
            d_cell * old["cell"] * f * (1 - f),
            d_cell * i * (1 - g**2),
            d_hidden * tanh_cell * o * (1 - o),
        )
        d_gate = jnp.concatenate([d_parts[cell.order.index(n)] for n in range(4)], axis=-1)
        d_gate = d_gate.astype(activation.dtype)
        d_old = {"cell": d_cell * f, "state": d_gate @ kernel.T}
        d_old = jax.tree.map(lambda d: jnp.where(reset[:, None], 0, d), d_old)
        if hold is not None:
            d_old = jax.tree.map(lambda d, held: jnp.where(hold[:, None], held, d), d_old, d_after)
        if cut is not None:
            d_old = jax.tree.map(lambda d: jnp.where(cut[:, None], 0, d), d_old)
        hidden = (o * tanh_cell).astype(activation.dtype)
        return d_old, (d_gate, None if projection is None else (hidden, d_projected))

    inputs = (d_states, states, before, activations, borders)
    d_begin, (d_gates, projected) = jax.lax.scan(step, d_end, inputs, reverse=not cell.reverse)
    d_kernel = weight_gradient(before["state"], d_gates).astype(kernel.dtype)
    d_projection = None
    if projection is not None:
        d_projection = weight_gradient(*projected).astype(projection.dtype)
    return d_gates, d_kernel, d_projection, d_begin, None


lstm.defvjp(_lstm_forward, _lstm_backward)


def _activations(cell: Cell, gates: Float[Array, "B 4F"]) -> list[Float[Array, "B F"]]:
    """Input, forget, candidate and output gate."""
    parts = jnp.split(gates, 4, axis=-1)
    functions = (jax.nn.sigmoid, jax.nn.sigmoid, jnp.tanh, jax.nn.sigmoid)
    return [function(parts[n]) for function, n in zip(functions, cell.order)]


def _clip(x: Array, bound: float | None) -> Array:
    return x if bound is None else jnp.clip(x, -bound, bound)


def _clip_gradient(x: Array, gradient: Array, bound: float | None) -> Array:
    """The gradient through `_clip`: zero where x reaches the bound."""
    return gradient if bound is None else jnp.where(jnp.abs(x) < bound, gradient, 0)
