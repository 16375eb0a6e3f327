"""Dropout, against what it says of itself: shares, scale, masks that are one for an axis."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from bertlab.models.base import Dropout, for_cpu
from bertlab.train.sharding import build_mesh

X = jnp.ones((64, 33, 101))


@pytest.fixture(params=["on a CPU's mesh", "elsewhere"], autouse=True)
def drawn(request):
    """Two draws of a word on a CPU, one of each elsewhere; which, the mesh says."""
    with jax.set_mesh(build_mesh(ConfigDict(dict(data=1, fsdp=1, tensor=1)))) if "CPU" in request.param else nullcontext():
        assert for_cpu() == ("CPU" in request.param)
        yield


def dropped(rate: float, key: int = 0, x=X, **settings):
    return np.asarray(Dropout(rate, deterministic=False, **settings).apply({}, x, rngs={"dropout": jax.random.key(key)}))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_share_is_the_rate_everywhere_and_the_mean_stays(rate):
    out = dropped(rate)
    assert set(np.unique(out)) == {0.0, np.float32(1 / (1 - round(rate * 2**16) / 2**16))}
    zero = out == 0
    # Five deviations of a mean of independent draws, over all and over each place of the last axis (both halves of a word).
    for axes in ((0, 1, 2), (0, 1)):
        bound = 5 * (rate * (1 - rate) / np.prod([X.shape[a] for a in axes])) ** 0.5
        assert np.abs(zero.mean(axes) - rate).max() < bound
    assert abs(out.mean() - 1) < 0.05


def test_both_halves_of_a_word_are_drawn_apart():
    zero = dropped(0.5) == 0
    for other in (1, 51):  # the next element, and the one that shares its word
        same = (zero[..., :-other] == zero[..., other:]).mean()
        assert abs(same - 0.5) < 0.01


def test_masks_follow_the_key_and_nothing_else():
    np.testing.assert_array_equal(dropped(0.3), dropped(0.3))
    assert (dropped(0.3) != dropped(0.3, key=1)).any()


def test_one_mask_for_an_axis():
    out = dropped(0.5, broadcast_dims=(0,))
    assert (out == out[:1]).all() and 0 < (out == 0).mean() < 1
    last = dropped(0.5, broadcast_dims=(2,))
    assert (last == last[..., :1]).all() and 0 < (last == 0).mean() < 1


def test_ends_of_the_range():
    np.testing.assert_array_equal(dropped(0.0), X)
    np.testing.assert_array_equal(dropped(1.0), 0 * X)
    np.testing.assert_array_equal(Dropout(0.5).apply({}, X, deterministic=True), X)
    assert dropped(0.5, x=X.astype(jnp.bfloat16)).dtype == jnp.bfloat16


def test_the_gradient_goes_where_the_value_went():
    run = lambda x: Dropout(0.4, deterministic=False).apply({}, x, rngs={"dropout": jax.random.key(2)})
    np.testing.assert_array_equal(jax.grad(lambda x: run(x).sum())(X), run(X))
