"""Cross-entropy over the vocabulary from hidden states, with the logits of only a few rows at a time.

Letters: B batch, n positions a row at which something is predicted, D width, V vocabulary, N rows of one chunk.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from bertlab.models.base import BATCH_AXES, for_cpu, rows_apart, sequence_parts
from bertlab.objectives.base import Metrics

# Rows of logits at a time: few enough for a CPU's caches; elsewhere as many as fill 256 MiB.
_CPU_ROWS = 128
_ELEMENTS = 2**26


def linear_cross_entropy(
    hidden: Float[Array, "B ... D"],
    table: Float[Array, "V D"],
    bias: Float[Array, "V"] | None,
    labels: Int[Array, "B ..."],
    weights: Float[Array, "B ..."],
    rows: int | None = None,
) -> Metrics:
    """`cross_entropy(hidden @ table.T + bias, labels, weights)` that never holds [B, n, V].

    The gradient of each chunk is computed together with its loss, so nothing is computed twice and nothing of size V is kept
    except the gradient of the table.

    Args:
        hidden: states; products are computed in their dtype and summed in float32.
        table, bias: of the output layer, in float32.
        labels: the right token; anything in range if the weight is zero.
        weights: non-negative weight of each position.
        rows: rows of logits at a time; 0: all; None: chosen for the device.
    """
    batch, width = hidden.shape[0], hidden.shape[-1]
    hidden, labels = hidden.reshape(batch, -1, width), labels.reshape(batch, -1)
    weights = weights.astype(jnp.float32).reshape(batch, -1)
    loss, right = _summed(rows, hidden, table, bias, labels, weights)
    total = weights.sum()
    return {"loss": (loss, total), "accuracy": (right, total)}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _summed(rows, hidden, table, bias, labels, weights):
    """Weighted sums of −log p(label) and of right guesses."""
    return _on_all_devices(rows, hidden, table, bias, labels, weights)[0]


def _backward(_, gradients, cotangents):
    scaled = jax.tree.map(lambda x: x * cotangents[0].astype(x.dtype), gradients)
    return *scaled, None, None  # labels and weights


def _on_all_devices(rows, hidden, table, bias, labels, weights, with_gradient: bool = False):
    """Each device works on its part of the batch; one sum over devices follows, not one per chunk."""
    compute = functools.partial(_chunks, rows, with_gradient)
    mesh, parts, positions = jax.sharding.get_abstract_mesh(), sequence_parts(), hidden.shape[1]
    axes = (*BATCH_AXES, "sequence") if parts > 1 else BATCH_AXES
    if mesh.empty or math.prod(mesh.shape[axis] for axis in axes) == 1:
        return compute(hidden, table, bias, labels, weights)
    # So many more without weight that the sequence axis divides them.
    filled = lambda x: jnp.pad(x, [(0, 0), (0, -positions % parts), *[(0, 0)] * (x.ndim - 2)])

    def of_one_device(*given):
        sums, gradients = compute(*given)
        sums = jax.lax.psum(sums, axes)
        if not with_gradient:
            return sums, None
        of_hidden, *of_layer = gradients
        return sums, (of_hidden, *jax.lax.psum(tuple(of_layer), axes))

    divided, whole = PartitionSpec(BATCH_AXES, "sequence" if parts > 1 else None), PartitionSpec()
    sums, gradients = jax.shard_map(
        of_one_device,
        in_specs=(divided, whole, whole, divided, divided),
        out_specs=((whole, whole), (divided, whole, whole) if with_gradient else None),
        axis_names=set(axes),
        check_vma=False,
    )(filled(hidden), table, bias, *(filled(rows_apart(x)) for x in (labels, weights)))
    return sums, gradients and (gradients[0][:, :positions], *gradients[1:])


_summed.defvjp(functools.partial(_on_all_devices, with_gradient=True), _backward)


def _chunks(rows, with_gradient: bool, hidden, table, bias, labels, weights):
    """((loss, right), gradients of hidden, table and bias, or None), chunk by chunk."""
    batch, positions, width = hidden.shape
    if rows is None:
        rows = _CPU_ROWS if for_cpu() else max(1, _ELEMENTS // len(table))
    chunks = math.ceil(positions / max(1, rows // batch)) if rows else 1
    each = math.ceil(positions / chunks)
    table_now = table.astype(hidden.dtype)

    def split(x):
        """Equally many positions of every row in each chunk; the last ones have no weight."""
        filled = jnp.pad(x, [(0, 0), (0, chunks * each - positions), *[(0, 0)] * (x.ndim - 2)])
        apart = filled.reshape(batch, chunks, each, *x.shape[2:]).swapaxes(0, 1)
        return apart.reshape(chunks, batch * each, *x.shape[2:])

    given = split(hidden), split(labels), split(weights)
    of_chunk = functools.partial(_chunk, table_now, bias, with_gradient)
    if chunks == 1:
        (sums, of_layer), of_hidden = of_chunk(*(x[0] for x in given))
    else:
        empty = jax.tree.map(jnp.zeros_like, jax.eval_shape(of_chunk, *(x[0] for x in given))[0])

        def add(totals, chunk):
            found, of_hidden = of_chunk(*chunk)
            return jax.tree.map(jnp.add, totals, found), of_hidden

        (sums, of_layer), of_hidden = jax.lax.scan(add, empty, given)
    if not with_gradient:
        return sums, None
    of_hidden = of_hidden.reshape(chunks, batch, each, width).swapaxes(0, 1).reshape(batch, chunks * each, width)
    return sums, (of_hidden[:, :positions].astype(hidden.dtype), *of_layer)


def _chunk(table, bias, with_gradient: bool, hidden: Float[Array, "N D"], labels: Int[Array, "N"], weights: Float[Array, "N"]):
    """(((loss, right), gradients of the layer), gradient of hidden) of one chunk; without a gradient these are None.

    Logits are [V, N], so no product needs a transposition.
    """
    product = functools.partial(jax.lax.dot_general, preferred_element_type=jnp.float32)
    logits = product(table, hidden, (((1,), (1,)), ((), ())))
    logits = logits if bias is None else logits + bias[:, None]
    top = logits.max(axis=0)
    powers = jnp.exp(logits - top)
    normaliser = powers.sum(axis=0)
    label_logit = jnp.take_along_axis(logits, labels[None], axis=0)[0]
    right = (label_logit == top) / (logits == top).astype(jnp.float32).sum(axis=0)
    sums = (((top + jnp.log(normaliser) - label_logit) * weights).sum(), (right * weights).sum())
    if not with_gradient:
        return (sums, None), None
    # ∂loss/∂logits = weight · (softmax − one-hot); the one-hot part is added at the labels only.
    share = (powers * (weights / normaliser)).astype(hidden.dtype)
    of_hidden = product(share, table, (((0,), (0,)), ((), ()))) - weights[:, None] * table[labels]
    asked = weights[:, None] * hidden.astype(jnp.float32)
    of_table = product(share, hidden, (((1,), (0,)), ((), ()))).at[labels].add(-asked)
    of_bias = None if bias is None else share.sum(axis=1, dtype=jnp.float32).at[labels].add(-weights)
    return (sums, (of_table, of_bias)), of_hidden
