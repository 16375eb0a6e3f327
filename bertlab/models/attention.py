"""Attention: masks of who sees whom, and softmax(Q K / sqrt(K)) V by a choice of implementations.

    xla           plain JAX; any device, attention dropout
    cudnn         NVIDIA's fused kernel (`jax.nn.dot_product_attention`): 16-bit, no dropout
    module:name   a function with the arguments of `attend_xla`

Letters: B batch, L length, H heads, K head width.
"""

import pkgutil

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def attention_rule(shape, length: int, platform: str) -> tuple[str, str]:
    """The implementation of attention on "cpu", "gpu" or "tpu", and why it is that one."""
    if shape.attention != "auto":
        return shape.attention, "config.model.attention"
    if platform == "tpu":
        return "xla", "for long rows there is bertlab.contrib.attention_kernel:attend"
    if platform != "gpu":
        return "xla", "cuDNN's kernel needs a GPU"
    if jnp.dtype(shape.dtype).itemsize != 2:
        return "xla", f"cuDNN's kernel does not compute in {jnp.dtype(shape.dtype).name}"
    if reason := refusal(shape, length):
        return "xla", reason
    return "cudnn", "GPU, 16-bit, no attention dropout"


def refusal(shape, length: int) -> str:
    """Why cuDNN's kernel cannot train a shape on rows of this length; "" if it can."""
    if shape.dropout:
        return "cuDNN's kernel has no attention dropout"
    if shape.position_encoding == "relative" or shape.outside_positions is not None:
        # JAX 0.10 gives a bias that is combined with a mask a gradient of 0.
        return "cuDNN's kernel has no gradient for a learned bias combined with a mask"
    if shape.head_width % 8 or shape.head_width > 128:
        return "cuDNN's kernel needs a head width that is a multiple of 8, at most 128"
    return "cuDNN's kernel needs an even row length" if length % 2 else ""


def attend(implementation: str, query, key, value, mask, bias, dropout) -> Float[Array, "B L H K"]:
    """Means of the values, weighted by the softmax of the scores; arguments as for `attend_xla`."""
    if implementation == "cudnn":
        return jax.nn.dot_product_attention(query, key, value, mask=mask, implementation="cudnn")
    function = attend_xla if implementation == "xla" else pkgutil.resolve_name(implementation)
    return function(query, key, value, mask, bias, dropout)


def attend_xla(query, key, value, mask, bias, dropout) -> Float[Array, "B L H K"]:
    """Attention with all weights [B, H, L, L] at once.

    Args:
        query, key, value: [B, L, H, K].
        mask: [B, 1, L, L], the keys (last axis) that each query sees; at least one.
        bias: [1, H, L, L] or [B, H, L, L], added to the scores; or None.
        dropout: a function that is applied to the weights.
    """
    scores = jnp.einsum("blhk,bmhk->bhlm", query, key, preferred_element_type=jnp.float32)
    scores = scores / query.shape[-1] ** 0.5
    scores = scores if bias is None else scores + bias
    weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(jnp.float32).min))
    return jnp.einsum("bhlm,bmhk->blhk", dropout(weights.astype(query.dtype)), value)


def attention_mask(documents: Int[Array, "B L"], direction: str) -> Bool[Array, "B 1 L L"]:
    """A query sees keys of its document, none against the direction; padding sees padding."""
    mask = documents[:, :, None] == documents[:, None, :]
    length = documents.shape[1]
    if direction == "left-to-right":
        mask &= jnp.tril(jnp.ones((length, length), bool))
    elif direction == "right-to-left":
        mask &= jnp.triu(jnp.ones((length, length), bool))
    return mask[:, None]


def order_mask(order: Int[Array, "B L"], shown_at: Int[Array, "B L"]) -> Bool[Array, "B 1 L L"]:
    """Position i sees j if shown_at[j] <= order[i], and itself.

    It can only narrow `attention_mask`, so use it with bidirectional bodies. In the next layer i
    also sees through j what j has seen. Nothing leaks if order[j] <= shown_at[j] everywhere: i then
    sees itself and positions shown at order[i] or before.
    """
    itself = jnp.eye(order.shape[1], dtype=bool)
    return ((shown_at[:, None, :] <= order[:, :, None]) | itself)[:, None]


def window_mask(positions: Int[Array, "B L"], window: int) -> Bool[Array, "B 1 L L"]:
    """Positions at most half a window apart, counted in their document and not in the row."""
    return (jnp.abs(positions[:, :, None] - positions[:, None, :]) <= window // 2)[:, None]
