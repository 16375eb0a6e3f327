"""The contract every model family keeps, and how parameters name their axes.

Letters in einsums and shapes, here and in every model: B batch, L length, N = B·L rows, D model width, H heads,
K head width, F feed-forward or cell width, V vocabulary.

A body is a Linen module (`Body`) with four methods:
    encode(view, deterministic, carry) -> (Encoded, carry)      hidden states, by the side that they have seen
    predict_tokens(hidden, side, among=None) -> [.., V] logits in float32, or only those of candidates
    output_factors(hidden, side) -> (states, [V, D], [V] or None)  the factors of these logits
    pool(encoded, view, documents=None) -> [B, D] or [B, n, D]  one vector per row, or one for each of its n documents

`carry` is {} unless a recurrent body reads a stream. Then it holds, by side, the states at the start of the rows
({"forward": ..., "backward": ...}, each array [B, ...]), and only its sides are encoded.
"""

import dataclasses
import functools
import itertools
import math
import string
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from flax.linen import fp8_ops
from jaxtyping import Array, Bool, Float, Int

from bertlab.errors import UserError

SIDES = ("forward", "backward", "both")

View = Mapping[str, Array]
"""What the model is shown: `tokens`, `segments`, `documents`, `positions`, each int32 [B, L], and an objective's own fields.

A document's positions are neighbours in the row and count up by one, which fused and local attention rely on; not in a view
with an order. A view may also hold `order` and `shown_at`, int32 [B, L] (default: the same as `order`): in a bidirectional
transformer position i then sees of its own document only itself and each j with shown_at[j] ≤ order[i]. Its states are still
called `both`, and a view may be longer than the batch's rows.
"""

Carry = Mapping[str, Any]
"""Recurrent states by side, arrays [B, ...]; {} without."""


@struct.dataclass
class Encoded:
    """Hidden states by the side that they have seen; a side that the body does not have is None.

    Attributes:
        forward: [B, L, D] per layer (embeddings first): position t has seen tokens ≤ t.
        backward: the same for tokens ≥ t.
        both: the same for every token of the document, or those that the view's `order` shows; for a biLSTM the two
            directions joined, [B, L, 2D].
        dropped: by side, the last layer after dropout, if the body has dropout before the output layer (LSTMs).
    """

    forward: tuple[Float[Array, "B L D"], ...] | None = None
    backward: tuple[Float[Array, "B L D"], ...] | None = None
    both: tuple[Float[Array, "B L D"], ...] | None = None
    dropped: Mapping[str, Float[Array, "B L D"]] | None = None

    def output(self, side: str) -> Float[Array, "B L D"]:
        """The input of the output layer: the last layer, with dropout if the body applies it."""
        return getattr(self, side)[-1] if self.dropped is None else self.dropped[side]

    def widest(self) -> tuple[str, tuple[Float[Array, "B L D"], ...]]:
        """The side that has seen most, with its name: both, otherwise the only one."""
        side = next(s for s in ("both", "forward", "backward") if getattr(self, s) is not None)
        return side, getattr(self, side)


def summary(hidden: Float[Array, "B L D"], side: str, view: View, documents: int | None = None) -> Float[Array, "B ... D"]:
    """The hidden state that has seen a whole text: for "forward" that of its last token, otherwise that of its first.

    Args:
        hidden: states of one layer.
        side: the side that they have seen.
        view: `documents`, from 1 up.
        documents: None if a row is one text: [B, D]. n: one for each of the row's documents 1 to n: [B, n, D].
    """
    if not documents and side != "forward":
        return hidden[:, 0]
    inside = inside_documents(view, documents)
    if side == "forward":
        place = inside.shape[1] - 1 - jnp.argmax(inside[:, ::-1], axis=1)
    else:
        place = jnp.argmax(inside, axis=1)
    found = jnp.take_along_axis(hidden, place[..., None], axis=1)
    return found if documents else found[:, 0]


def inside_documents(view: View, documents: int | None) -> Bool[Array, "B L n"]:
    """Which positions belong to each of a row's documents 1 to n; None: the row's only document (n = 1)."""
    if documents is None:
        return (view["documents"] > 0)[..., None]
    return view["documents"][..., None] == jnp.arange(1, documents + 1)


def mean_state(hidden: Float[Array, "B L D"], view: View, documents: int | None = None) -> Float[Array, "B ... D"]:
    """The mean over a text's states, with the arguments of `summary`; zeros for an empty text."""
    inside = inside_documents(view, documents).astype(hidden.dtype)
    found = jnp.einsum("bln,bld->bnd", inside, hidden) / jnp.maximum(inside.sum(axis=1), 1)[..., None]
    return found if documents else found[:, 0]


def sides_of(family: str, direction: str) -> tuple[str, ...]:
    """The sides of `Encoded` that a body of this family and direction gives."""
    if direction == "left-to-right":
        return ("forward",)
    if direction == "right-to-left":
        return ("backward",)
    return SIDES if family in ("elmo", "static") else ("both",)


BATCH_AXES = ("data", "fsdp")
"""The mesh's axes that divide a batch's rows."""


def sequence_parts() -> int:
    """Among how many devices a row's positions are divided, the mesh's sequence axis; 1 without a mesh."""
    return jax.sharding.get_abstract_mesh().shape.get("sequence", 1)


def rows_apart(x: Float[Array, "..."], axis: int = 0) -> Float[Array, "..."]:
    """Divides an activation's batch axis over the mesh's data and fsdp axes, like the batch; does nothing without a mesh.

    Otherwise the compiler may divide activations like the parameters that multiply them, and move them back and forth. States
    [B, L, ...] are divided along L too, over the sequence axis, if it divides L.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return x
    spec = [None] * x.ndim
    spec[axis] = BATCH_AXES
    if axis == 0 and x.ndim > 2 and sequence_parts() > 1 and x.shape[1] % sequence_parts() == 0:
        spec[1] = "sequence"
    return jax.lax.with_sharding_constraint(x, jax.sharding.PartitionSpec(*spec))


def positions_apart(field: Int[Array, "B L"]) -> Int[Array, "B L"]:
    """A view's field divided along its positions over the mesh's sequence axis; what it is computed from stays whole.

    Raises:
        UserError: the axis does not divide L.
    """
    parts, length = sequence_parts(), field.shape[1]
    if length % parts:
        raise UserError(
            f"config.mesh.sequence={parts} does not divide the {length} positions of a row, with those that an objective adds;"
            " change it or config.data.seq_len"
        )
    if parts == 1:
        return field
    divided = jax.sharding.PartitionSpec(BATCH_AXES, "sequence")
    return jax.lax.with_sharding_constraint(rows_apart(field), divided)


def flattened(x: Float[Array, "B L D"]) -> Float[Array, "B*L D"] | Float[Array, "B L D"]:
    """The states of all positions below each other; as they are if positions are divided, for then no axis could be both."""
    return x if sequence_parts() > 1 else x.reshape(-1, x.shape[-1])


def whole(weights: Float[Array, "..."], axis: int) -> Float[Array, "..."]:
    """Weights that are not divided along this axis, in a program for several devices: they are gathered here, once.

    Their gradient is summed and divided here again. Without it the compiler may gather them where they are used, in a loop over
    time at each position, and sum whole gradients.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return weights
    by = None if weights.shape[axis] % mesh.shape["fsdp"] else "fsdp"
    gather = jax.custom_vjp(lambda x: _along(axis, None, x))
    gather.defvjp(lambda x: (_along(axis, None, x), None), lambda _, gradient: (_along(axis, by, gradient),))
    return gather(weights)


def lookup(table: Float[Array, "V D"], ids: Int[Array, "..."]) -> Float[Array, "... D"]:
    """Rows of an embedding table. It gathers the table along its width first, so the rows have the sharding of their ids."""
    if not jax.sharding.get_abstract_mesh().empty:
        table = _along(1, None, table)  # its gradient stays free: to divide it, all devices' rows would be exchanged
    return table[ids]


def _along(axis: int, by: str | None, x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Divides one axis of an array by a mesh axis, or not at all; the compiler decides on the others."""
    spec = [jax.sharding.PartitionSpec.UNCONSTRAINED] * x.ndim
    spec[axis] = by
    return jax.lax.with_sharding_constraint(x, jax.sharding.PartitionSpec(*spec))


def between_products(dtype: jnp.dtype) -> jnp.dtype:
    """The dtype between products in `dtype`: without conversions, a CPU computes only products in bfloat16."""
    return jnp.float32 if for_cpu() else dtype


def einsum(letters: str, x: Array, y: Array, dtype: jnp.dtype, result: jnp.dtype | None = None) -> Array:
    """The einsum of two factors in `dtype`; each letter of a factor is also in the other factor or in the result.

    Returns:
        The result in the dtype between products, or in `result`; summed in float32 if that is its dtype.
    """
    if between_products(dtype) != dtype:
        return _bfloat16_einsum(letters, x.astype(jnp.float32), y.astype(jnp.float32))
    return jnp.einsum(letters, x.astype(dtype), y.astype(dtype), preferred_element_type=result)


def product(x: Float[Array, "..."], kernel: Float[Array, "..."], dtype: jnp.dtype, axes: int = 1) -> Float[Array, "..."]:
    """Sums over x's last axes and as many first axes of the kernel, in `dtype`; the result has the dtype between products."""
    if not for_cpu():
        return jnp.tensordot(x.astype(dtype), kernel.astype(dtype), axes)
    if sequence_parts() > 1:
        letters = iter(string.ascii_lowercase)
        kept, summed, new = ("".join(itertools.islice(letters, n)) for n in (x.ndim - axes, axes, kernel.ndim - axes))
        return einsum(f"{kept}{summed},{summed}{new}->{kept}{new}", x, kernel, dtype)
    inner = math.prod(kernel.shape[:axes])  # matrices, because gradients over more axes take a CPU twice as long
    x_matrix, kernel_matrix = x.reshape(-1, inner), kernel.reshape(inner, -1)
    if between_products(dtype) != dtype:
        y = einsum(_PLAIN, x_matrix, kernel_matrix, dtype)
    else:
        y = _float32_product(x_matrix.astype(dtype), kernel_matrix.astype(dtype))
    return y.reshape(*x.shape[:-axes], *kernel.shape[axes:])


@jax.custom_vjp
def _float32_product(x: Float[Array, "n d"], kernel: Float[Array, "d f"]) -> Float[Array, "n f"]:
    """x @ kernel. XLA on a CPU takes twice as long for the kernel's gradient if it transposes the wider factor."""
    return x @ kernel


def _float32_gradients(factors, of_y):
    x, kernel = factors
    wider = x.shape[1] > of_y.shape[1]
    of_kernel = jax.lax.optimization_barrier(of_y.T @ x).T if wider else x.T @ of_y
    return of_y @ kernel.T, of_kernel


_float32_product.defvjp(lambda x, kernel: (x @ kernel, (x, kernel)), _float32_gradients)

_PLAIN = "nd,df->nf"
_summed_in_float32 = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _bfloat16_einsum(letters: str, x: Float[Array, "..."], y: Float[Array, "..."]) -> Float[Array, "..."]:
    """XLA's fast bfloat16 products on a CPU sum in float32; JAX's derivatives are not fast, so we define our own."""
    return _forward_einsum(letters, x, y)[0]


def _forward_einsum(letters, x, y):
    factors = x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)
    return _summed_in_float32(letters, *factors), factors


def _backward_einsum(letters, factors, of_result):
    (x, y), of_result = factors, of_result.astype(jnp.bfloat16)
    of_x, of_y, result = letters.replace("->", ",").split(",")
    gradient_of_x = _summed_in_order(f"{result},{of_y}->{of_x}", of_result, y)
    if letters == _PLAIN and x.shape[1] % 2 == 0:  # stacking the two halves takes half the time
        halves = _summed_in_float32("npd,nf->pdf", x.reshape(len(x), 2, -1), of_result)
        return gradient_of_x, halves.reshape(y.shape)
    return gradient_of_x, _summed_in_order(f"{of_x},{result}->{of_y}", x, of_result)


def _summed_in_order(letters, x, y):
    """The einsum; the factor with the result's first letter comes first, because XLA cannot compute some in the other order."""
    of_x, of_y, result = letters.replace("->", ",").split(",")
    first_own = next(letter for letter in result if (letter in of_x) != (letter in of_y))
    return _summed_in_float32(letters, x, y) if first_own in of_x else _summed_in_float32(f"{of_y},{of_x}->{result}", y, x)


_bfloat16_einsum.defvjp(_forward_einsum, _backward_einsum)


def float8_product(x: Float[Array, "..."], kernel: Float[Array, "..."], dtype: jnp.dtype, axes: int = 1) -> Float[Array, "..."]:
    """`product` of factors rounded to float8 (Micikevicius et al. 2022, "FP8 formats for deep learning"), summed in `dtype`.

    The factors are e4m3, the gradients of the result e5m2; each array is first scaled so that its largest value is the format's
    (`flax.linen.fp8_ops`, which also has scales from earlier steps). The backward pass keeps the rounded factors.
    """
    inner = math.prod(kernel.shape[:axes])
    between = between_products(dtype)
    y = _float8_product(x.astype(between).reshape(*x.shape[:-axes], inner), kernel.reshape(inner, -1))
    return y.reshape(*x.shape[:-axes], *kernel.shape[axes:])


def _to_float8(x, dtype):
    """x in float8, and the scale that it was divided by."""
    most = jnp.max(jnp.abs(x)).astype(jnp.float32)
    scale = fp8_ops.compute_scale(most, jnp.float32(1.0), jnp.finfo(dtype).max.astype(jnp.float32))
    return fp8_ops.quantize(x.astype(jnp.float32), dtype, scale, jnp.float32), scale


def _scaled_dot(x, y, axes, result):
    """Sum over these axes of each, (float8, scale); products of float8 are what the device is asked for."""
    summed = jax.lax.dot_general(x[0], y[0], (axes, ((), ())), preferred_element_type=result)
    return summed * (x[1] * y[1]).astype(result)


@jax.custom_vjp
def _float8_product(x: Float[Array, "... d"], kernel: Float[Array, "d f"]) -> Float[Array, "... f"]:
    return _float8_forward(x, kernel)[0]


def _float8_forward(x, kernel):
    factors = _to_float8(x, jnp.float8_e4m3fn), _to_float8(kernel, jnp.float8_e4m3fn)
    # An empty array says the dtype of the kernel's gradient.
    return _scaled_dot(*factors, ((x.ndim - 1,), (0,)), x.dtype), (*factors, jnp.zeros(0, kernel.dtype))


def _float8_backward(kept, of_y):
    x, kernel, like = kept
    scaled, rows = _to_float8(of_y, jnp.float8_e5m2), tuple(range(of_y.ndim - 1))
    of_x = _scaled_dot(scaled, kernel, ((of_y.ndim - 1,), (1,)), of_y.dtype)
    return of_x, _scaled_dot(x, scaled, (rows, rows), like.dtype)


_float8_product.defvjp(_float8_forward, _float8_backward)


def param(init, *axes: str | None):
    """An initialiser whose parameter carries one logical axis name (or None) per dimension."""
    return nn.with_logical_partitioning(init, axes)


def unbox(tree):
    """Plain arrays, without the axis names."""
    return nn.meta.unbox(tree)


def logical_axes(boxed):
    """The tree of logical axis names of boxed parameters: a tuple (as a PartitionSpec) per parameter."""
    return nn.get_partition_spec(boxed)


def normal(stddev: float):
    """N(0, stddev), untruncated (GPT)."""
    return jax.nn.initializers.normal(stddev)


def truncated_normal(stddev: float):
    """A normal distribution cut at two standard deviations and not rescaled; its deviation is 0.88 of `stddev` (BERT)."""
    return jax.nn.initializers.truncated_normal(stddev)


class Dense(nn.Module):
    """`x @ kernel + bias` in `dtype`, with named axes for the weights. The first axis of x is the batch's.

    Activations and their gradients are divided only along the batch axis: see `rows_apart`.
    """

    features: int
    axes: tuple[str | None, str | None]
    initializer: nn.initializers.Initializer = truncated_normal(0.02)
    use_bias: bool = True
    dtype: jnp.dtype = jnp.float32
    multiply: Callable[..., Array] = product

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... F"]:
        kernel = self.param("kernel", param(self.initializer, *self.axes), (x.shape[-1], self.features))
        x = rows_apart(x) if self.axes[0] == "embed" else x
        y = self.multiply(x, kernel, self.dtype)
        if self.use_bias:
            y = y + self.param("bias", param(nn.initializers.zeros, self.axes[1]), (self.features,)).astype(y.dtype)
        return rows_apart(y) if self.axes[1] in (None, "classes") else y


class Norm(nn.Module):
    """Layer normalisation (biased variance) or, without the mean, RMS normalisation (Zhang and Sennrich 2019); in float32."""

    epsilon: float
    kind: str = "layer_norm"
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        scale = self.param("scale", param(nn.initializers.ones, "norm"), (x.shape[-1],))
        y = x.astype(jnp.float32)
        if self.kind == "layer_norm":
            y = y - y.mean(-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + self.epsilon) * scale
        if self.use_bias and self.kind == "layer_norm":
            y = y + self.param("bias", param(nn.initializers.zeros, "norm"), (x.shape[-1],))
        return y.astype(x.dtype)


class Dropout(nn.Module):
    """Each element is zero with probability `rate`, and divided by 1 − rate otherwise (Srivastava et al. 2014).

    The rate is rounded to 16 bits. Drawing bits is most of dropout's cost on a CPU, so one draw of 32 bits serves two elements
    there. On other devices each element has its own draw, which need not pass through memory. So the noise differs by device.

    Attributes:
        rate: from 0 to 1.
        broadcast_dims: axes along which the mask is the same.
        deterministic: no dropout; set it here or in the call.
    """

    rate: float
    broadcast_dims: tuple[int, ...] = ()
    deterministic: bool | None = None

    @nn.compact
    def __call__(self, x: Float[Array, "..."], deterministic: bool | None = None) -> Float[Array, "..."]:
        if nn.merge_param("deterministic", self.deterministic, deterministic) or not self.rate:
            return x
        return drop(x, self.rate, self.key(), self.broadcast_dims)

    def key(self) -> Array:
        """A new random key, for code that drops elements by itself."""
        return self.make_rng("dropout")


def drop(x: Float[Array, "..."], rate: float, key: Array, broadcast_dims: tuple[int, ...] = ()) -> Float[Array, "..."]:
    """`Dropout` as a function."""
    dropped = round(rate * 2**16)
    if dropped == 2**16:
        return jnp.zeros_like(x)
    shape = [1 if axis in broadcast_dims else size for axis, size in enumerate(x.shape)]
    if for_cpu():
        words = jax.random.bits(key, (*shape[:-1], (shape[-1] + 1) // 2), jnp.uint32)
        bits = jnp.concatenate([words & 0xFFFF, words >> 16], axis=-1)[..., : shape[-1]]
    else:
        bits = jax.random.bits(key, shape, jnp.uint32) >> 16
    return jnp.where(bits >= dropped, x / (1 - dropped / 2**16), 0).astype(x.dtype)


ACTIVATIONS = {
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
    "gelu_erf": functools.partial(jax.nn.gelu, approximate=False),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


@dataclasses.dataclass(frozen=True)
class OutputConfig:
    """The layer from a hidden state to logits over the vocabulary.

    Attributes:
        transform: dense, activation and norm before the product (BERT's masked-LM head).
        tied: multiply by the token embeddings; otherwise by a separate matrix.
        bias: a bias per vocabulary entry.
        rows: how many rows of logits a loss computes at a time: 0 for all, None for as many as suit the device.
    """

    transform: bool
    tied: bool
    bias: bool
    rows: int | None = None


class Shape:
    """The base of all bodies' shapes; each is a dataclass with `width`, `vocab_size` and `output`."""

    def flops_per_prediction(self) -> float:
        """Forward and backward FLOPs of one row of logits."""
        return 6 * self.width * self.vocab_size

    def flops_outside_windows(self, seq_len: int) -> float:
        """Of the FLOPs per token in rows of this length, scores that local layers do not need."""
        return 0.0

    @property
    def times_base(self) -> float:
        """How many times as wide it is as the width that rates and initial values are meant for."""
        return 1.0


class TokenPrediction(nn.Module):
    """Hidden states to logits. A biLSTM's joined state (2D wide) is always transformed to the embedding's width first."""

    config: OutputConfig
    vocab_size: int
    width: int
    epsilon: float
    initializer: nn.initializers.Initializer
    dtype: jnp.dtype
    norm: str = "layer_norm"
    use_bias: bool = True
    activation: str = "gelu_tanh"
    divisor: float = 1.0  # of the logits, without their bias

    def __call__(
        self,
        hidden: Float[Array, "... D"],
        embedding: Float[Array, "V D"] | None,
        side: str,
        among: Int[Array, "..."] | None = None,
    ) -> Float[Array, "... V"]:
        """Logits in float32.

        Args:
            hidden: states.
            embedding: the token embeddings, for a tied layer only.
            side: the side that the states have seen; each side has its own transform if widths differ.
            among: [n], only these entries: [..., n]; or [..., k], candidates of each state: [..., k].
        """
        hidden, table, bias = self.factors(hidden, embedding, side)
        if among is not None:
            table = lookup(table, among)
            bias = None if bias is None else bias[among]
        letters = "...d,vd->...v" if table.ndim == 2 else "...d,...kd->...k"
        logits = jnp.einsum(letters, hidden, table.astype(self.dtype), preferred_element_type=jnp.float32)
        return logits if bias is None else logits + bias

    @nn.compact
    def factors(
        self, hidden: Float[Array, "... D"], embedding: Float[Array, "V D"] | None, side: str
    ) -> tuple[Float[Array, "... D"], Float[Array, "V D"], Float[Array, "V"] | None]:
        """The factors of the logits, hidden @ table.T + bias: transformed states, table and bias (or None) in float32."""
        width = self.width
        if self.config.transform or hidden.shape[-1] != width:
            name = "transform" if hidden.shape[-1] == width else f"transform_{side}"
            hidden = Dense(width, ("embed", None), self.initializer, self.use_bias, self.dtype, name=name)(hidden)
            hidden = ACTIVATIONS[self.activation](hidden)
            hidden = Norm(self.epsilon, self.norm, self.use_bias, name=f"{name}_norm")(hidden)
        if not self.config.tied:
            embedding = self.param("kernel", param(self.initializer, "vocab", "embed"), (self.vocab_size, width))
        bias = self.param("bias", param(nn.initializers.zeros, "vocab"), (self.vocab_size,)) if self.config.bias else None
        return hidden.astype(self.dtype) / self.divisor, embedding, bias


class Body(nn.Module):
    """Base of all families: an output layer, `self.output`, and a pooler, `self.pooler`, both made in `setup`.

    A body also has `token_embedding`; None if it has no such table.
    """

    def predict_tokens(
        self, hidden: Float[Array, "... D"], side: str, among: Int[Array, "..."] | None = None
    ) -> Float[Array, "... V"]:
        """Logits over the vocabulary, or those of candidates (`among` as in `TokenPrediction`); give it `Encoded.output`."""
        return self.output(hidden, self.token_embedding, side, among)

    def output_factors(self, hidden: Float[Array, "... D"], side: str):
        """The factors of these logits, for a loss that does not hold all logits (`TokenPrediction.factors`)."""
        return self.output.factors(hidden, self.token_embedding, side)

    def pool(self, encoded: Encoded, view: View, documents: int | None = None) -> Float[Array, "B ... D"]:
        """tanh of a dense layer on the state that has seen a whole text (see `summary`; BERT's is its first)."""
        side, layers = encoded.widest()
        return jnp.tanh(self.pooler(summary(layers[-1], side, view, documents)))


def rematerialised(layer: type[nn.Module], remat: str, in_loop: bool) -> type[nn.Module]:
    """A layer class whose backward pass recomputes activations.

    Args:
        layer: the class.
        remat: "none"; "dots": all but the products of matrices without batch axes; "full": everything but the layer's input.
        in_loop: the layer runs inside a scan, so it needs no protection from common-subexpression elimination.
    """
    if remat == "none":
        return layer
    policies = jax.checkpoint_policies
    # A fused kernel names what it returns.
    products = policies.save_from_both_policies(
        policies.dots_with_no_batch_dims_saveable, policies.save_only_these_names("attention")
    )
    policy = products if remat == "dots" else None
    return nn.remat(layer, policy=policy, prevent_cse=not in_loop)


def for_cpu() -> bool:
    """Whether the traced code will run on a mesh of CPUs. It touches no device; without a mesh it is unknown: False."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device is not None and device.device_kind == "cpu"


# A CPU unrolls up to so many layers: a loop copies what it keeps for the backward pass, about a fifth of a step. More layers
# take long to compile.
_UNROLLED = 6


def stacked(layer: type[nn.Module], layers: int, remat: str, scan_layers: bool | None) -> Callable[..., nn.Module]:
    """Layers one after another, with parameters stacked along a first axis `layers`: (config, ...) -> a module.

    Args:
        layer: called with (x, each layer's own values, values that all share); returns the next x and the output to keep.
        layers: number of layers.
        remat: see `rematerialised`.
        scan_layers: run layers in a loop, or unrolled; None: what suits the device.
    """
    if scan_layers is None:
        scan_layers = not for_cpu() or layers > _UNROLLED
    return nn.scan(
        rematerialised(layer, remat, in_loop=scan_layers),
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(0, nn.broadcast),
        length=layers,
        unroll=1 if scan_layers else layers,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )
