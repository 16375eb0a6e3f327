"""ELMo's character encoder equals a NumPy reference, and starts with the published initial values."""

import jax
import numpy as np
import pytest

from bertlab.models.base import unbox
from bertlab.models.characters import Characters, CharactersConfig
from tests.recurrent_references import encode_characters
from tests.references import quick_jit

FILTERS = ((1, 3), (2, 4), (7, 5))


@pytest.mark.parametrize(("activation", "highway_layers"), [("relu", 1), ("tanh", 2)])
def test_word_vectors_equal_numpy(activation, highway_layers):
    config = CharactersConfig(6, highway_layers, FILTERS, activation=activation)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 261, (2, 3, 50))
    shapes = unbox(jax.eval_shape(Characters(config).init, jax.random.key(0), ids))["params"]
    params = jax.tree.map(lambda s: rng.normal(scale=0.7, size=s.shape).astype(np.float32), shapes)
    for i in range(len(FILTERS)):  # so that some maxima are below zero, where relu, tanh and the highway's gates differ
        params[f"filter_{i}"]["bias"] -= 8
    found = quick_jit(Characters(config).apply)({"params": params}, ids)
    np.testing.assert_allclose(found, encode_characters(params, ids, activation), rtol=1e-5, atol=1e-5)
    # A filter as wide as seven characters sees the last ones of the fifty, and no character is seen past the end.
    changed = ids.copy()
    changed[0, 0, 49] = (ids[0, 0, 49] + 1) % 261
    again = quick_jit(Characters(config).apply)({"params": params}, changed)
    np.testing.assert_allclose(again, encode_characters(params, changed, activation), rtol=1e-5, atol=1e-5)


def test_initial_values():
    """bilm-tf's: uniform characters and filters (for relu), normal elsewhere, and highway layers that let pass."""

    def draw(activation):
        encoder = Characters(CharactersConfig(64, 2, ((2, 100), (5, 156)), activation=activation))
        return unbox(quick_jit(encoder.init)(jax.random.key(0), np.zeros((1, 50), int)))["params"]

    params = jax.tree.map(np.asarray, draw("relu"))
    for value, bound in ((params["embedding"], 1.0), (params["filter_1"]["kernel"], 0.05)):
        assert np.abs(value).max() <= bound and value.std() == pytest.approx(bound / 3**0.5, rel=0.03)
    for gate in ("carry", "transform"):
        kernel = params["highway_0"][f"{gate}_kernel"]
        assert kernel.std() == pytest.approx(256**-0.5, rel=0.02) and np.abs(kernel).max() > 3 * 256**-0.5, "normal"
    assert (params["highway_1"]["carry_bias"] == -2).all() and not params["highway_1"]["transform_bias"].any()
    assert params["projection"]["kernel"].std() == pytest.approx(256**-0.5, rel=0.03)
    assert float(draw("tanh")["filter_1"]["kernel"].std()) == pytest.approx((5 * 16) ** -0.5, rel=0.03)
