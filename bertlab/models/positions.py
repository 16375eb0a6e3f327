"""Encodings of positions: rotary, sinusoidal, and T5's relative buckets.

An encoding from outside (`position_encoding="module:Class"`) is a Linen module with field `shape`:

    __call__(length) -> arrays for all layers; its parameters are the body's, below "positions"
    score(shape, arrays, query, key, project) -> (query, key, bias), static, called by every layer
        with its queries and keys [B, L, H, K]; `project(x)` makes such [n, 2, H, K] from states
        [n, D]; `bias` [1 or B, H, L, L] is added to the scores
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

BUCKETS, FARTHEST = 32, 128
"""T5's number of buckets for distances, and the distance from which on they share the last."""

ENCODINGS = ("learned", "sinusoidal", "rotary", "relative", "none")


def rotary_angles(
    positions: Int[Array, "B L"], head_width: int, base: float
) -> Float[Array, "B L 1 K/2"]:
    """The angle of each pair of coordinates, position * base^(-2i/K) (Su et al. 2021)."""
    rates = base ** (-jnp.arange(0, head_width, 2, dtype=jnp.float32) / head_width)
    return positions[:, :, None, None].astype(jnp.float32) * rates


def rotate(
    x: Float[Array, "B L ... K"], angles: Float[Array, "B L ... K/2"]
) -> Float[Array, "B L ... K"]:
    """Rotates coordinates i and i + K/2 by the pair's angle."""
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def sinusoids(positions: Int[Array, "B L"], width: int) -> Float[Array, "B L D"]:
    """sin(position / 10000^(2i/D)) in coordinate 2i, the cosine in 2i + 1 (Vaswani et al. 2017)."""
    angles = rotary_angles(positions, width, 10_000.0)
    waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], -1)
    return waves.reshape(*positions.shape, -1)[..., :width]


def distance_buckets(length: int, both_sides: bool) -> Int[np.ndarray, "L L"]:
    """The bucket of each key (last axis) seen from each query (Raffel et al. 2020, section 2.1).

    Distances below half of a side's buckets have their own; longer ones share, in steps that grow
    up to FARTHEST. With both sides, keys after the query have the upper half of the buckets.
    """
    ahead = np.arange(length)[None] - np.arange(length)[:, None]
    distance = np.abs(ahead)
    buckets = BUCKETS // 2 if both_sides else BUCKETS
    exact = buckets // 2
    share = np.log(np.maximum(distance, 1) / exact) / np.log(FARTHEST / exact)
    far = np.minimum(exact + (share * (buckets - exact)).astype(np.int64), buckets - 1)
    return np.where(distance < exact, distance, far) + np.where(
        both_sides & (ahead > 0), buckets, 0
    )
