"""Shared by the recurrent bodies and task models: state resets, and the LSTM and the GRU over time.

Letters: B batch, L length, D width of the states, F cell width. Time is the first axis of a loop's arrays, as in
`jax.lax.scan`.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bertlab.models.base import BATCH_AXES, Carry, View, between_products, for_cpu, product

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
        stateful: the row continues an earlier row, and its states continue into the next.

    Returns:
        reset: bool [L, B]. Stateless: the first position of every stretch of one document, or of padding. Stateful: the first
            position of each document except the row's first, with or without padding between them; `begin_with` sets the
            state at the start of a row.
        hold: bool [L, B], padding that a stateful row skips; None if stateless.
    """
    if not stateful:
        border = documents[1:] != documents[:-1]
        edge = jnp.ones_like(border[:1])
        return jnp.concatenate([border, edge] if reverse else [edge, border]), None
    latest = jax.lax.associative_scan(lambda a, b: jnp.where(b > 0, b, a), documents, reverse=reverse)
    none = jnp.zeros_like(latest[:1])
    before = jnp.concatenate([latest[1:], none] if reverse else [none, latest[:-1]])
    return (documents > 0) & (before > 0) & (documents != before), documents == 0


def of_rows(view: View, reverse: bool, stateful: bool) -> tuple[Array, Array | None, Array | None]:
    """`reset`, `hold` and `cut` of `lstm` for a view; arguments as for `borders`.

    A view may have `cut` [B, L], true where no gradient passes to the states of positions that are read before.
    """
    cut = view["cut"].T if "cut" in view else None
    return *borders(view["documents"].T, reverse, stateful), cut


def begin_with(config, carry: Carry, side: str, view: View) -> Carry:
    """A side's states for position 0: the carried ones if the row continues, otherwise the zeros of `config.initial_carry`."""
    between = between_products(config.dtype)
    wide = lambda x: x.astype(jnp.promote_types(x.dtype, between))
    if not carry:
        return jax.tree.map(wide, config.initial_carry(len(view["documents"]), (side,))[side])
    continues = view["continues"] > 0
    return jax.tree.map(lambda x: jnp.where(continues.reshape(-1, *[1] * (x.ndim - 1)), wide(x), 0), carry[side])


def to_carry(end: Carry, carry: Carry) -> Carry:
    """The states after a row, in the dtypes of those before it; no gradient passes through them."""
    return jax.tree.map(lambda new, old: jax.lax.stop_gradient(new.astype(old.dtype)), end, carry)


def of_inputs(x: Float[Array, "L B D"], kernel: Float[Array, "D F"], dtype: jnp.dtype) -> Float[Array, "L B F"]:
    """The inputs' contribution to the gates, one product in `dtype` for all positions; the result has that between products.

    What follows in the loop over time is in the dtype between products too: a CPU takes ten times as long for bfloat16 there.
    """
    if between_products(dtype) != dtype:
        return product(x.swapaxes(0, 1), kernel, dtype).swapaxes(0, 1)  # rows first: they may be on several devices
    return _in_one_product(x.astype(dtype), kernel.astype(dtype))


@jax.custom_vjp
def _in_one_product(x: Float[Array, "L B D"], kernel: Float[Array, "D F"]) -> Float[Array, "L B F"]:
    """x @ kernel, whose kernel's gradient is one product too."""
    return jnp.einsum("lbd,df->lbf", x, kernel)


def _in_one_product_backward(factors, of_result):
    x, kernel = factors
    of_x = jnp.einsum("lbf,df->lbd", of_result, kernel)
    return of_x.astype(x.dtype), _of_weights(x, of_result).astype(kernel.dtype)


_in_one_product.defvjp(lambda x, kernel: (_in_one_product(x, kernel), (x, kernel)), _in_one_product_backward)


def _of_weights(x: Float[Array, "L B D"], gradient: Float[Array, "L B F"]) -> Float[Array, "D F"]:
    """The gradient of weights that turn x into [L, B, F]: a sum over positions and rows."""
    if not for_cpu():
        return jnp.einsum("lbd,lbf->df", x, gradient)
    # To sum over two axes XLA rewrites a factor in another order, and this takes several times as long as the product. Here
    # they are one, but for each part of the rows that lies on a device of its own.
    parts = math.prod(jax.sharding.get_abstract_mesh().shape[axis] for axis in BATCH_AXES)
    length, rows, _ = x.shape
    apart = lambda y: jnp.moveaxis(y.reshape(length, parts, rows // parts, -1), 1, 0).reshape(parts, -1, y.shape[-1])
    return jnp.einsum("pnd,pnf->pdf", apart(x), apart(gradient)).sum(axis=0)


@dataclasses.dataclass(frozen=True)
class Cell:
    """The settings in which the families' LSTM cells differ.

    Attributes:
        order: positions of the input, forget, candidate and output gate along the gates' axis.
        clip: bound on the cell states, and on the states after a projection; None for no bound.
        reverse: read from the last position to the first.
    """

    order: tuple[int, int, int, int]
    clip: float | None
    reverse: bool


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def lstm(
    cell: Cell,
    gates: Float[Array, "L B 4F"],
    kernel: Float[Array, "D 4F"],
    projection: Float[Array, "F D"] | None,
    begin: State,
    reset: Bool[Array, "L B"],
    hold: Bool[Array, "L B"] | None,
    cut: Bool[Array, "L B"] | None = None,
) -> tuple[Float[Array, "L B D"], State]:
    """An LSTM over time (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000).

    i, f, o = σ(.), g = tanh(.) of x + h W; c = clip(f c + i g); h = o tanh(c), or clip((o tanh(c)) P) with a projection.

    Its derivative is written by hand: automatic differentiation adds up the weights' gradients position by position. Here each
    gradient is one product over all positions after the loop.

    Args:
        cell: its settings.
        gates: the inputs' contribution to the gates, biases included, computed for all positions at once.
        kernel: W, from states to gates.
        projection: P; None for no projection (D = F).
        begin: the state before the first position.
        reset: true where the state is zero before the step.
        hold: true where the state does not change; None for nowhere.
        cut: true where no gradient passes to the state before the step; None for nowhere.

    Returns:
        The states h of all positions, and the state after the last one in reading order.
    """
    return _forward(cell, gates, kernel, projection, begin, reset, hold, cut)[0]


def _forward(cell: Cell, gates, kernel, projection, begin, reset, hold, cut):
    def step(state, inputs):
        gate, reset_now, hold_now = inputs
        before = jax.tree.map(lambda x: jnp.where(reset_now[:, None], 0, x), state)
        i, f, g, o = _activations(cell, gate + before["state"] @ kernel)
        new = _clip(before["cell"] * f + i * g, cell.clip)
        shown = o * jnp.tanh(new)
        out = shown.astype(gates.dtype) if projection is None else _clip(shown.astype(gates.dtype) @ projection, cell.clip)
        after = {"cell": new, "state": out}
        if hold is not None:
            after = jax.tree.map(lambda old, x: jnp.where(hold_now[:, None], old, x), state, after)
        return after, (after["state"], before, jnp.concatenate([i, f, g, o], axis=-1))

    end, (states, before, activations) = jax.lax.scan(step, begin, (gates, reset, hold), reverse=cell.reverse)
    return (states, end), (states, before, activations, kernel, projection, reset, hold, cut)


def _backward(cell: Cell, saved, cotangents):
    states, before, activations, kernel, projection, reset, hold, cut = saved
    of_states, of_end = cotangents
    back = {"kernel": kernel.T, "projection": None if projection is None else projection.T}

    def step(of_state, inputs):
        of_out, out, before_now, activations_now, reset_now, hold_now, cut_now = inputs
        of_after = {"cell": of_state["cell"], "state": of_state["state"] + of_out}
        passed = of_after
        if hold is not None:
            passed = jax.tree.map(lambda d: jnp.where(hold_now[:, None], 0, d), of_after)
        i, f, g, o = jnp.split(activations_now.astype(jnp.float32), 4, axis=-1)
        new = before_now["cell"] * f + i * g
        shown = jnp.tanh(_clip(new, cell.clip))
        of_product = of_shown = passed["state"]
        if projection is not None:
            of_product = _inside(out, passed["state"], cell.clip)
            of_shown = of_product @ back["projection"]
        of_new = _inside(new, passed["cell"] + of_shown * o * (1 - shown * shown), cell.clip)
        of_gates = [of_new * g * i * (1 - i), of_new * before_now["cell"] * f * (1 - f)]
        of_gates += [of_new * i * (1 - g * g), of_shown * shown * o * (1 - o)]
        placed = [of_gates[cell.order.index(place)] for place in range(4)]
        of_gate = jnp.concatenate(placed, axis=-1).astype(activations.dtype)
        of_before = {"cell": of_new * f, "state": of_gate @ back["kernel"]}
        of_before = jax.tree.map(lambda d: jnp.where(reset_now[:, None], 0, d), of_before)
        if hold is not None:
            of_before = jax.tree.map(lambda d, held: jnp.where(hold_now[:, None], held, d), of_before, of_after)
        if cut is not None:
            of_before = jax.tree.map(lambda d: jnp.where(cut_now[:, None], 0, d), of_before)
        projected = None if projection is None else ((o * shown).astype(projection.dtype), of_product)
        return of_before, (of_gate, projected)

    inputs = (of_states, states, before, activations, reset, hold, cut)
    of_begin, (of_gates, projected) = jax.lax.scan(step, of_end, inputs, reverse=not cell.reverse)
    of_kernel = _of_weights(before["state"], of_gates).astype(kernel.dtype)
    of_projection = None if projection is None else _of_weights(*projected).astype(projection.dtype)
    return of_gates, of_kernel, of_projection, of_begin, None, None, None


lstm.defvjp(_forward, _backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def gru(
    reverse: bool,
    gates: Float[Array, "L B 3F"],
    kernel: Float[Array, "F 3F"],
    bias: Float[Array, "F"],
    reset: Bool[Array, "L B"],
) -> Float[Array, "L B F"]:
    """A GRU over time (Cho et al. 2014), from a state of zeros.

    r, z = σ(.) of x + h W; n = tanh(x + r (h W + b)); h = (1 − z) n + z h.

    This form, "reset after", is that of torch, of cuDNN and of the paper's first version. The final version resets before the
    product, n = tanh(x + (r h) W), and needs no b. The two have different values on the same weights.

    Its derivative is written by hand, as `lstm`'s.

    Args:
        reverse: read from the last position to the first.
        gates: the inputs' contribution to r, z and n, in this order, biases included.
        kernel: W, from states to gates.
        bias: b.
        reset: true where the state is zero before the step.

    Returns:
        The states h of all positions.
    """
    return _gru_forward(reverse, gates, kernel, bias, reset)[0]


def _gru_forward(reverse: bool, gates, kernel, bias, reset):
    def step(state, inputs):
        gate, reset_now = inputs
        before = jnp.where(reset_now[:, None], 0, state)
        (r, z, n), (of_r, of_z, of_n) = jnp.split(gate, 3, axis=-1), jnp.split(before @ kernel, 3, axis=-1)
        r, z, product = jax.nn.sigmoid(r + of_r), jax.nn.sigmoid(z + of_z), of_n + bias
        n = jnp.tanh(n + r * product)
        after = (1 - z) * n + z * before
        return after, (after, before, jnp.concatenate([r, z, n, product], axis=-1))

    begin = jnp.zeros((gates.shape[1], len(kernel)), gates.dtype)
    _, (states, before, activations) = jax.lax.scan(step, begin, (gates, reset), reverse=reverse)
    return states, (before, activations, kernel, reset)


def _gru_backward(reverse: bool, saved, of_states):
    before, activations, kernel, reset = saved
    back = kernel.T

    def step(of_state, inputs):
        of_out, before_now, activations_now, reset_now = inputs
        r, z, n, product = jnp.split(activations_now, 4, axis=-1)
        of_after = of_state + of_out
        of_n = of_after * (1 - z) * (1 - n * n)
        of_both = [of_n * product * r * (1 - r), of_after * (before_now - n) * z * (1 - z)]
        of_gate, of_product = (jnp.concatenate([*of_both, last], axis=-1) for last in (of_n, of_n * r))
        of_before = jnp.where(reset_now[:, None], 0, of_after * z + of_product @ back)
        return of_before, (of_gate, of_product)

    inputs = (of_states, before, activations, reset)
    _, (of_gates, of_products) = jax.lax.scan(step, jnp.zeros_like(before[0]), inputs, reverse=not reverse)
    of_bias = of_products[..., -len(kernel) :].sum(axis=(0, 1))
    return of_gates, _of_weights(before, of_products).astype(kernel.dtype), of_bias, None


gru.defvjp(_gru_forward, _gru_backward)


def _activations(cell: Cell, gates: Float[Array, "B 4F"]) -> list[Float[Array, "B F"]]:
    """Input, forget, candidate and output gate after their activations."""
    parts = jnp.split(gates, 4, axis=-1)
    functions = (jax.nn.sigmoid, jax.nn.sigmoid, jnp.tanh, jax.nn.sigmoid)
    return [function(parts[place]) for function, place in zip(functions, cell.order)]


def _clip(x: Array, bound: float | None) -> Array:
    return x if bound is None else jnp.clip(x, -bound, bound)


def _inside(x: Array, gradient: Array, bound: float | None) -> Array:
    """The gradient through clipping: zero where the value was clipped."""
    return gradient if bound is None else jnp.where(jnp.abs(x) < bound, gradient, 0)
