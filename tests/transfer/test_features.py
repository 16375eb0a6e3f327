"""Mixes of layers, recurrent encoders and features of words equal NumPy versions (float64)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bertlab.data.characters import character_ids
from bertlab.errors import UserError
from bertlab.transfer.features import (
    LayerMix,
    Recurrent,
    RecurrentEncoder,
    WordFeatures,
    chosen_layers,
)
from tests.references import quick_jit, sigmoid

DOCUMENTS = np.array([[1, 1, 1, 2, 2, 0], [1, 1, 0, 0, 0, 0], [0] * 6, [1] * 6], np.int32)
FILLED = DOCUMENTS > 0
ROWS, LENGTH = DOCUMENTS.shape


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def random_variables(module, *arguments):
    """Variables of the right shapes, none of them 0 or 1."""
    shapes = nn.meta.unbox(jax.eval_shape(module.init, jax.random.key(0), *arguments))
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda s: rng.normal(scale=0.5, size=s.shape).astype(s.dtype), shapes)


def applied(module, variables, *arguments, **settings):
    apply = quick_jit(lambda variables: module.apply(variables, *arguments, **settings))
    return jax.tree.map(np.asarray, apply(variables))


def assert_finite_gradients(module, variables, *arguments):
    def total(variables):
        leaves = jax.tree.leaves(module.apply(variables, *arguments))
        return sum(jnp.sum(jnp.sin(y)) for y in leaves)

    gradients = jax.tree.leaves(quick_jit(jax.grad(total))(variables))
    assert all(np.isfinite(g).all() and np.any(g) for g in gradients)


def softmax(w):
    return np.exp(w) / np.exp(w).sum()


def test_a_mix_is_what_its_name_says():
    h = normal(5, ROWS, LENGTH, 3)
    cases = {
        "last": lambda w, g: h[-1],
        "layer:0": lambda w, g: h[0],
        "layer:-2": lambda w, g: h[-2],
        "concat_last_2": lambda w, g: np.concatenate(h[3:], -1),
        "weighted_sum": lambda w, g: np.einsum("n,nbld->bld", softmax(w), h),
        "weighted_sum_last_3": lambda w, g: np.einsum("n,nbld->bld", softmax(w), h[2:]),
        "scalar_mix": lambda w, g: g * np.einsum("n,nbld->bld", softmax(w), h),
        "concat_first_last": lambda w, g: np.concatenate([h[0], h[-1]], -1),
    }
    for mix, expected in cases.items():
        module = LayerMix(mix)
        variables = random_variables(module, tuple(h))
        params = variables.get("params", {})
        weights = np.float64(params.get("weights", []))
        mixed = applied(module, variables, tuple(h))
        np.testing.assert_allclose(mixed, expected(weights, params.get("gamma")), atol=1e-5)


def test_a_fresh_scalar_mix_is_the_mean_and_its_dropout_is_of_the_result():
    h, module = normal(3, ROWS, LENGTH, 4), LayerMix("scalar_mix", dropout=0.5)
    fresh = nn.meta.unbox(module.init(jax.random.key(0), tuple(h)))
    mixed = applied(module, fresh, tuple(h))
    np.testing.assert_allclose(mixed, h.mean(0), atol=1e-6)
    dropped = applied(module, fresh, tuple(h), rngs={"dropout": jax.random.key(1)})
    assert 0.3 < np.mean(dropped == 0) < 0.7
    np.testing.assert_allclose(dropped[dropped != 0], 2 * mixed[dropped != 0], rtol=1e-5)


@pytest.mark.parametrize(
    ("mix", "message"),
    [
        ("layer:4", "layers 0 to 3"),
        ("concat_last_5", "layers 0 to 3"),
        ("concat_last_0", "layers 0 to 3"),
        ("mean", "layers=mean is not a mix"),
        ("scalar_mix", "adds layers of widths {3, 5}"),
    ],
)
def test_mixes_that_do_not_exist_are_refused(mix, message):
    layers = tuple(normal(1, 2, width) for width in (3, 5, 5, 3))
    with pytest.raises(UserError, match=message):
        LayerMix(mix).init(jax.random.key(0), layers)
    assert chosen_layers("concat_last_4", 4) == [0, 1, 2, 3]


# The encoder.


def recurrent(x, p, documents, reverse):
    """Torch's LSTM of one row: [L, F]."""
    p = {name: np.float64(value) for name, value in p.items()}
    count, size = p["bias"].shape
    state = memory = np.zeros(size)
    states, before = np.zeros((len(x), size)), None
    for t in range(len(x))[:: -1 if reverse else 1]:
        if documents[t] != before:
            state = memory = np.zeros(size)
        before = documents[t]
        inputs = [x[t] @ p["input_kernel"][:, g] + p["bias"][g] for g in range(count)]
        own = [state @ p["recurrent_kernel"][:, g] for g in range(count)]
        i, f, g, o = (a + b for a, b in zip(inputs, own))
        memory = sigmoid(f) * memory + sigmoid(i) * np.tanh(g)
        state = sigmoid(o) * np.tanh(memory)
        states[t] = state
    return states


def both_ways(x, p, names, documents):
    sides = zip(names, (False, True))
    return np.concatenate([recurrent(x, p[name], documents, r) for name, r in sides], -1)


@pytest.mark.parametrize(
    "place",
    ["input", "after_first", pytest.param("output", marks=pytest.mark.slow), "input_output"],
)
def test_an_encoder_equals_numpy_with_states_at_their_place_whatever_padding_is(place):
    x, states = normal(ROWS, LENGTH, 3), [normal(ROWS, LENGTH, 2, seed=i + 1) for i in range(2)]
    states = states[: 2 if place == "input_output" else 1]
    padded = [np.where(FILLED[..., None], array, np.nan) for array in (x, *states)]
    module = RecurrentEncoder(2, 4, place=place)
    arguments = padded[0], padded[1:], DOCUMENTS
    variables = random_variables(module, *arguments)
    found = applied(module, variables, *arguments)
    for row, documents in enumerate(DOCUMENTS):
        h, extra = np.float64(x[row]), [s[row] for s in states]
        if place.startswith("input"):
            h = np.concatenate([h, extra[0]], -1)
        for layer in range(2):
            h = np.where(documents[:, None] > 0, h, 0)
            names = [f"{side}_{layer}" for side in ("forward", "backward")]
            h = both_ways(h, variables["params"], names, documents)
            if place == "after_first" and layer == 0:
                h = np.concatenate([h, extra[0]], -1)
        if place.endswith("output"):
            h = np.concatenate([h, extra[-1]], -1)
        np.testing.assert_allclose(found[row], np.where(documents[:, None] > 0, h, 0), atol=1e-5)
    assert_finite_gradients(module, variables, *arguments)


def test_initial_values_are_torchs_and_forget_gates_open():
    module = Recurrent(100, False)
    arguments = np.zeros((1, 2, 5), np.float32), np.ones((1, 2), np.int32)
    p = nn.meta.unbox(quick_jit(module.init)(jax.random.key(0), *arguments))["params"]
    p = jax.tree.map(np.array, p)
    p["bias"][1] -= 1
    assert all(0.09 < np.abs(values).max() <= 0.1 for values in p.values())


# Words.


def test_words_have_the_highest_of_each_filter_and_their_vectors():
    characters = character_ids(["a", "Bank", "x" * 60, "naïve"])[None].astype(np.int32)
    view = {"spelling": characters, "word_ids": np.int32([[3, 0, 6, 6]])}
    view["vector_ids"] = np.int32([[3, 0, 1, 3]])
    module = WordFeatures(True, 7, 5, (4, 2))
    variables = random_variables(module, view)
    found, p = applied(module, variables, view)[0], variables["params"]
    np.testing.assert_array_equal(found[:, 35:], p["word_vectors"][view["vector_ids"][0]])
    np.testing.assert_array_equal(found[:, 30:35], p["word_embedding"][view["word_ids"][0]])
    for word, ids in enumerate(characters[0]):
        x = np.float64(p["character_embedding"][ids])
        kernel = np.float64(p["filters"]["kernel"])
        windows = [np.einsum("we,wen->n", x[at : at + 3], kernel) for at in range(48)]
        expected = np.tanh(np.max(windows, 0) + p["filters"]["bias"])
        np.testing.assert_allclose(found[word, :30], expected, atol=1e-5)
