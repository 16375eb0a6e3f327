"""DeBERTa's disentangled positions (He et al. 2021, equation 4), as in its versions 2 and 3.

    --config.model.position_encoding=bertlab.contrib.disentangled:Disentangled

The score of query i and key j is

    (q_i·k_j + q_i·k(δ) + q(δ)·k_j) / √(3K)

where q(δ) and k(δ) are made from row δ = δ(i, j) of a table of distances by the layer's own
projections, with dropout of the row. The switches are those of the released configs:
share_att_key=True (v1 has projections of its own for the table), pos_att_type=c2p|p2c,
position_buckets=k (v1 cuts distances at k), norm_rel_ebd=layer_norm, position_biased_input=False.
As in the released code, the last term has δ(i, j), where the paper has δ(j, i). The enhanced mask
decoder and v2's convolution are not here.

Checked: states and gradients against transformers' DebertaV2Model
(tests/parity/test_disentangled.py).

Letters: B batch, L length, H heads, K head width, D width; the table is [2k, D].
"""

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float, Int

from bertlab.models.layers import Dropout, Norm, param

FARTHEST = 512
"""Distances from this one on share the last bucket."""


class Disentangled(nn.Module):
    """The normed rows of the table, one per distance from 1 − L to L − 1 (query minus key)."""

    shape: object

    @nn.compact
    def __call__(self, length: int) -> Float[Array, "n D"]:
        """The rows that a text of this length uses, each once."""
        shape = self.shape
        size = (2 * shape.position_buckets, shape.width)
        table = self.param("table", param(shape.initializer, None, "embed"), size)
        norm = Norm(shape.epsilon, shape.norm, shape.use_bias, name="norm")
        rows = log_buckets(length, shape.position_buckets)
        return norm(table)[rows[0] : rows[-1] + 1]

    @staticmethod
    def score(shape, table: Float[Array, "n D"], query, key, project):
        """Queries, keys and the bias [B, H, L, L] that together give the scores."""
        rows = log_buckets(query.shape[1], shape.position_buckets)
        table = Dropout(shape.dropout, name="table_dropout")(table)
        both = project(table)[rows - rows[0]]  # [2·L − 1, 2, H, K]
        query, distance_query = query * 3**-0.5, both[:, 0] * 3**-0.5
        to_position = by_distance(jnp.einsum("blhk,dhk->bhld", query, both[::-1, 1]))
        to_content = by_distance(jnp.einsum("blhk,dhk->bhld", key, distance_query))
        bias = (to_position + to_content.swapaxes(2, 3)) / query.shape[-1] ** 0.5
        return query, key, bias.astype(jnp.float32)


def log_buckets(length: int, buckets: int) -> Int[np.ndarray, "2*L-1"]:
    """The row of the table of each distance, query minus key, from 1 − L to L − 1.

    Row k is distance 0. Distances up to k/2 have their own rows; longer ones share, in steps that
    grow up to FARTHEST.
    """
    distance = np.arange(1 - length, length)
    own, far = buckets // 2, np.abs(distance)
    share = np.log(np.maximum(far, own) / own) / np.log((FARTHEST - 1) / own)
    bucket = np.where(far <= own, far, own + np.ceil(share * (own - 1)).astype(np.int64))
    return np.clip(buckets + np.sign(distance) * bucket, 0, 2 * buckets - 1)


def by_distance(x: Float[Array, "... L 2*L-1"]) -> Float[Array, "... L L"]:
    """Column b of row a is x[a, b − a + L − 1]: each row begins one further to the left, which
    needs no gathering."""
    length, before = x.shape[-2], x.shape[:-2]
    rows = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, 1)]).reshape(*before, -1)
    return rows[..., length - 1 : -1].reshape(*before, length, -1)[..., :length]
