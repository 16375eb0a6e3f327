"""AWD-LSTM's masks, ELMo's residuals and dropout, its character encoder, and the published initial
values of both."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from bertlab.models.characters import Characters
from bertlab.models.presets import build_body
from bertlab.objectives import Vocabulary
from tests.recurrent_references import (
    AWD_LSTM,
    ELMO,
    body_params,
    encode,
    encode_characters,
    one_document,
)
from tests.references import initial, packed_batch, quick_jit, tiny_program


def pass_through(params, layers, width):
    """Makes each LSTM's output tanh(tanh(input)): gates 1, 0 and 1, and the candidate its input."""
    for n in range(layers):
        p = params[f"layer_{n}"]
        for array in p.values():
            array[:] = 0
        p["input_bias"][[0, 1, 3]] = np.array([100, -100, 100], np.float32)[:, None]
        p["input_kernel"][:, 2] = np.eye(width)
    return params


def inverse(x):
    return np.arctanh(np.arctanh(np.float64(x)))


def test_hidden_dropout_is_one_mask_for_all_positions_of_a_row():
    shape = dataclasses.replace(AWD_LSTM, width=64, hidden=64, layers=2, hidden_dropout=0.25)
    params = pass_through(body_params(shape), 2, 64)
    view = one_document(np.random.default_rng(0).integers(0, 30, (3, 6)))
    _, before, after = encode(shape, params, view, key=4)[0].forward
    mask = inverse(after) / np.asarray(before)
    np.testing.assert_allclose(mask, np.where(mask > 0.5, 1 / 0.75, 0), rtol=1e-3, atol=1e-4)
    assert (mask > 0.5).mean() == pytest.approx(0.75, abs=0.1)
    np.testing.assert_allclose(mask, np.broadcast_to(mask[:, :1], mask.shape), rtol=1e-3, atol=1e-4)
    assert (np.abs(mask[0] - mask[1]) > 0.5).any(), "each row has its own"


def test_weight_dropout_is_one_mask_of_the_recurrent_kernel():
    """The kernel that all rows and positions agree with has entries 0 or twice the original."""
    shape = dataclasses.replace(AWD_LSTM, width=4, hidden=4, layers=1, weight_dropout=0.5)
    params = pass_through(body_params(shape), 1, 4)
    kernel = np.random.default_rng(2).uniform(0.1, 0.4, (4, 4)).astype(np.float32)
    params["layer_0"]["recurrent_kernel"][:, 2] = kernel
    view = one_document(np.random.default_rng(0).integers(0, 30, (4, 9)))
    x, state = map(np.float64, encode(shape, params, view, key=6)[0].forward)
    added, before = inverse(state)[:, 1:] - x[:, 1:], state[:, :-1].reshape(-1, 4)
    solved, residuals, rank, _ = np.linalg.lstsq(before, added.reshape(-1, 4), rcond=None)
    assert rank == 4 and np.abs(residuals).max() < 1e-6
    ratio = solved / kernel
    np.testing.assert_allclose(ratio, np.where(ratio > 1, 2, 0), atol=5e-3)
    dropped = ratio < 1
    assert (dropped != dropped[:1]).any() and (dropped != dropped[:, :1]).any(), "by entry"


def assert_uniform(values, bound):
    assert np.abs(values).max() <= bound
    error = (0.2 / values.size) ** 0.5  # of a uniform sample's deviation, relative
    assert values.std() == pytest.approx(bound / 3**0.5, rel=4.2 * error)


def test_initial_values_of_awd_lstm():
    """Embeddings U(±0.1); an LSTM's weights and both biases U(±1/√F) with its own width F."""
    vocabulary = Vocabulary(300, 0, 1, 2, 3, 4)
    program = tiny_program("awd_lstm", "ltr", vocabulary, width=64, hidden=100, layers=2)
    body = initial(program, packed_batch())["body"]
    assert_uniform(body["token_embedding"], 0.1)
    for name, bound in (("layer_0", 0.1), ("layer_1", 1 / 8)):
        for value in body[name].values():
            assert_uniform(value, bound)


def test_a_residual_adds_the_dropped_input_from_the_second_layer_on():
    """With projections of zero an LSTM's output is 0, so a layer's output is its residual."""
    shape = dataclasses.replace(ELMO, dropout=0.25, layers=3, width=40, direction="left-to-right")
    view, params = one_document(np.arange(24).reshape(2, 12)), body_params(shape)
    params["forward"]["projection"][1:] = 0
    _, first, second, third = map(np.asarray, encode(shape, params, view, key=5)[0].forward)
    once, twice = second != 0, third != 0
    assert once.mean() == pytest.approx(0.75, abs=0.05)
    np.testing.assert_allclose(second[once], first[once] / 0.75, rtol=1e-6)
    assert len({tuple(row) for row in once[0]}) > 1, "each position has its own mask"
    np.testing.assert_allclose(third[twice], first[twice] / 0.75**2, rtol=1e-6)
    params["forward"]["projection"][0] = 0
    assert not np.any(encode(shape, params, view, key=5)[0].forward[1]), "the first has no residual"
    without = dataclasses.replace(shape, skip_connections=False)
    assert not np.any(encode(without, params, view, key=5)[0].forward[2])


def test_states_are_dropped_once_and_candidates_are_the_softmaxs_entries():
    shape = dataclasses.replace(ELMO, dropout=0.5)
    view, params = one_document(np.arange(24).reshape(2, 12)), body_params(shape)
    among = jnp.array([3, 29])

    def run(body):
        encoded, _ = body.encode(view)
        hidden = encoded.output("forward")
        return encoded, *(body.predict_tokens(hidden, "forward", ids) for ids in (None, among))

    apply = quick_jit(nn.apply(run, build_body(shape)))
    encoded, logits, some = apply({"params": params}, rngs={"dropout": jax.random.key(1)})
    np.testing.assert_allclose(some, logits[..., np.array(among)], rtol=1e-5, atol=1e-6)
    for side in ("forward", "backward", "both"):
        plain, dropped = getattr(encoded, side)[-1], encoded.output(side)
        kept = np.asarray(dropped != 0)
        np.testing.assert_allclose(dropped[kept], 2 * plain[kept], rtol=1e-6)
        assert 0.3 < kept.mean() < 0.7
    joined = jnp.concatenate([encoded.output("forward"), encoded.output("backward")], -1)
    np.testing.assert_array_equal(encoded.output("both"), joined)


def test_initial_values_of_elmo():
    """TensorFlow's default, with inputs and states in one matrix."""
    vocabulary = Vocabulary(1000, 0, 1, 2, 3, 4)
    program = tiny_program("elmo", "ltr+rtl", vocabulary, layers=2, width=64, hidden=96)
    body = initial(program, packed_batch())["body"]
    assert_uniform(body["token_embedding"], (6 / (1000 + 64)) ** 0.5)
    for side in ("forward", "backward"):
        for name in ("input_kernel", "recurrent_kernel"):
            assert_uniform(body[side][name], (6 / (2 * 64 + 4 * 96)) ** 0.5)
        assert_uniform(body[side]["projection"], (6 / (96 + 64)) ** 0.5)
    assert body["output"]["kernel"].std() == pytest.approx(64**-0.5, rel=0.02)
    assert not np.any(body["forward"]["bias"]), "the forget gate's 1 is added at run time"
    kernels = [body[side]["input_kernel"][n] for side in ("forward", "backward") for n in (0, 1)]
    assert len(np.unique(kernels, axis=0)) == 4


def characters_of(activation, highway_layers, filters, character_width):
    return Characters(
        dataclasses.replace(
            ELMO,
            character_activation=activation,
            highway_layers=highway_layers,
            filters=filters,
            character_width=character_width,
        )
    )


@pytest.mark.parametrize("activation, highway_layers", [("relu", 1), ("tanh", 2)])
def test_word_vectors_from_characters_equal_numpy(activation, highway_layers):
    encoder = characters_of(activation, highway_layers, ((1, 3), (2, 4), (7, 5)), 6)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 261, (2, 3, 50))
    shapes = nn.meta.unbox(jax.eval_shape(encoder.init, jax.random.key(0), ids))["params"]
    params = jax.tree.map(lambda s: rng.normal(scale=0.7, size=s.shape).astype(np.float32), shapes)
    for i in range(3):  # so that some maxima are below zero
        params[f"filter_{i}"]["bias"] -= 8
    apply = quick_jit(encoder.apply)
    for _ in range(2):
        found, expected = apply({"params": params}, ids), encode_characters(params, ids, activation)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        ids[0, 0, 49] = (ids[0, 0, 49] + 1) % 261  # the last character that a filter reaches


def test_initial_values_of_the_character_encoder():
    """bilm-tf's: uniform characters and filters for relu, normal elsewhere, open highways."""

    def drawn(activation):
        encoder = characters_of(activation, 2, ((2, 100), (5, 156)), 64)
        params = quick_jit(encoder.init)(jax.random.key(0), np.zeros((1, 50), int))["params"]
        return jax.tree.map(np.asarray, nn.meta.unbox(params))

    params = drawn("relu")
    assert_uniform(params["embedding"], 1.0)
    assert_uniform(params["filter_1"]["kernel"], 0.05)
    for gate in ("carry", "transform"):
        kernel = params["highway_0"][f"{gate}_kernel"]
        assert kernel.std() == pytest.approx(256**-0.5, rel=0.02)
        assert np.abs(kernel).max() > 3 * 256**-0.5, "normal"
    assert (params["highway_1"]["carry_bias"] == -2).all()
    assert not params["highway_1"]["transform_bias"].any()
    kernel = drawn("tanh")["filter_1"]["kernel"]
    assert kernel.std() == pytest.approx((5 * 64) ** -0.5, rel=0.03)
