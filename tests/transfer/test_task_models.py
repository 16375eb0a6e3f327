"""Task models equal NumPy versions (float64) of what is published; padding has no influence, and gradients stay finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertlab.data.characters import PADDING, character_ids
from bertlab.errors import UserError
from bertlab.models.base import unbox
from bertlab.transfer.task_models import (
    CELLS,
    BatchNorm,
    Gru,
    LayerMix,
    Lstm,
    Mlp,
    RecurrentEncoder,
    WordFeatures,
    chosen_layers,
    split_layers,
)
from tests.recurrent_references import walk
from tests.references import dense, layer_norm, quick_jit, sigmoid

DOCUMENTS = np.array([[1, 1, 1, 2, 2, 0], [1, 1, 0, 0, 0, 0], [0] * 6, [1] * 6], np.int32)
FILLED = DOCUMENTS > 0
ROWS, LENGTH = DOCUMENTS.shape


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def random_variables(module, *arguments, seed=1, **settings):
    """Variables of the right shapes, none of them 0 or 1."""
    shapes = unbox(jax.eval_shape(lambda: module.init(jax.random.key(0), *arguments, **settings)))
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda s: rng.normal(scale=0.5, size=s.shape).astype(s.dtype), shapes)


def applied(module, variables, *arguments, **settings):
    return jax.tree.map(np.asarray, quick_jit(lambda v: module.apply(v, *arguments, **settings))(variables))


def assert_finite_gradients(module, variables, *arguments):
    total = lambda v: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(module.apply(v, *arguments)))
    gradients = jax.tree.leaves(quick_jit(jax.grad(total))(variables))
    assert all(np.isfinite(g).all() for g in gradients) and all(np.any(g) for g in gradients)


# --- mixes of layers


def softmax(w):
    return np.exp(w) / np.exp(w).sum()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("last", lambda h, w, g: h[-1]),
        ("layer:0", lambda h, w, g: h[0]),
        ("layer:-2", lambda h, w, g: h[-2]),
        ("sum_last_4", lambda h, w, g: h[1] + h[2] + h[3] + h[4]),
        ("concat_last_4", lambda h, w, g: np.concatenate(h[1:], -1)),
        ("concat_last_2", lambda h, w, g: np.concatenate(h[3:], -1)),
        ("weighted_sum", lambda h, w, g: np.einsum("n,nbld->bld", softmax(w), h)),
        ("weighted_sum_last_3", lambda h, w, g: np.einsum("n,nbld->bld", softmax(w), h[2:])),
        ("scalar_mix", lambda h, w, g: g * np.einsum("n,nbld->bld", softmax(w), h)),
        ("hypercolumns", lambda h, w, g: np.concatenate(h, -1)),
        ("concat_first_last", lambda h, w, g: np.concatenate([h[0], h[-1]], -1)),
    ],
)
def test_a_mix_is_what_its_name_says(kind, expected):
    layers = normal(5, ROWS, LENGTH, 3)
    module = LayerMix(kind, regulariser=0.25)
    arguments = (tuple(layers.astype(np.float16)), FILLED, True)
    variables = random_variables(module, *arguments)
    mixed, penalty = applied(module, variables, *arguments)
    params = variables.get("params", {})
    weights = np.float64(params.get("weights", []))
    assert bool(params) == ("weighted" in kind or "scalar" in kind) and ("gamma" in params) == (kind == "scalar_mix")
    layers = layers.astype(np.float16).astype(np.float64)
    expected = expected(list(layers) if "concat" in kind else layers, weights, params.get("gamma"))
    assert mixed.dtype == np.float32
    np.testing.assert_allclose(mixed, expected, atol=1e-6)
    np.testing.assert_allclose(penalty, 0.25 * np.sum(weights**2), rtol=1e-6)


def test_a_fresh_scalar_mix_is_the_mean_without_a_penalty():
    layers = normal(3, ROWS, LENGTH, 4)
    module = LayerMix("scalar_mix", regulariser=1.0, dropout=0.5)
    variables = {"params": {"weights": np.zeros(3, np.float32), "gamma": np.float32(1)}}
    fresh = quick_jit(lambda key: module.init(key, tuple(layers), FILLED, True))(jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, unbox(fresh), variables)
    mixed, penalty = applied(module, variables, tuple(layers), FILLED, True)
    np.testing.assert_allclose(mixed, layers.mean(0), atol=1e-6)
    assert penalty == 0
    dropped, _ = applied(module, variables, tuple(layers), FILLED, False, rngs={"dropout": jax.random.key(1)})
    assert 0.3 < np.mean(dropped == 0) < 0.7
    np.testing.assert_allclose(dropped[dropped != 0], 2 * mixed[dropped != 0], rtol=1e-5)


def test_a_mix_normalises_each_layer_over_all_filled_elements_together():
    layers = normal(2, ROWS, LENGTH, 4) * np.float32(3) + np.array([5, -2], np.float32)[:, None, None, None]
    layers[:, ~FILLED] = 1e4
    module = LayerMix("scalar_mix", layer_norm=True)
    variables = random_variables(module, tuple(layers), FILLED, True)
    mixed, _ = applied(module, variables, tuple(layers), FILLED, True)
    inside = np.float64(layers[:, FILLED])
    normed = (inside - inside.mean((1, 2), keepdims=True)) / inside.std((1, 2), keepdims=True)
    p = variables["params"]
    expected = p["gamma"] * np.einsum("n,nkd->kd", softmax(np.float64(p["weights"])), normed)
    np.testing.assert_allclose(mixed[FILLED], expected, atol=1e-5)
    assert_finite_gradients(module, variables, tuple(layers), FILLED, True)
    nothing, _ = applied(module, variables, tuple(layers), np.zeros_like(FILLED), True)
    assert np.isfinite(nothing).all()


def test_layers_of_several_widths_are_joined():
    widths = [4, 6, 6, 4]
    features = normal(ROWS, LENGTH, 4, 6)
    layers = split_layers(features, widths)
    mixed, _ = applied(LayerMix("hypercolumns"), {}, layers, FILLED, True)
    expected = np.concatenate([features[:, :, i, :width] for i, width in enumerate(widths)], -1)
    np.testing.assert_array_equal(mixed, expected)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("layer:4", r"layers=layer:4: .*0 \(embeddings\) to 3"),
        ("layer:-5", "layers=layer:-5: .*to 3"),
        ("concat_last_5", "layers=concat_last_5: .*1 to 4"),
        ("sum_last_0", "1 to 4"),
        ("mean", "layers=mean: expected one of last, layer:K, sum_last_N"),
        ("scalar_mix", "4, 6, 6, 4 wide and cannot be summed"),
        ("sum_last_2", "layers 2 to 3 are 6, 4 wide"),
    ],
)
def test_mixes_that_do_not_exist_are_refused(kind, message):
    with pytest.raises(UserError, match=message):
        chosen_layers(kind, [4, 6, 6, 4])


# --- the biLSTM or biGRU


def lstm(x, p, documents, reverse):
    """Torch's LSTM of one row: [L, F]."""
    p = {name: np.float64(value) for name, value in p.items()}

    def step(t, before):
        gate = lambda g: x[t] @ p["input_kernel"][:, g] + before["state"] @ p["recurrent_kernel"][:, g] + p["bias"][g]
        enter, forget, candidate, leave = map(gate, range(4))
        cell = sigmoid(forget) * before["cell"] + sigmoid(enter) * np.tanh(candidate)
        return {"cell": cell, "state": sigmoid(leave) * np.tanh(cell)}

    width = p["bias"].shape[-1]
    states, _ = walk(documents, reverse, None, {"cell": np.zeros(width), "state": np.zeros(width)}, step)
    return np.stack([s["state"] if s else np.zeros(width) for s in states])


def gru(x, p, documents, reverse):
    """The same of torch's GRU."""
    p = {name: np.float64(value) for name, value in p.items()}

    def step(t, before):
        of_inputs = [x[t] @ p["input_kernel"][:, g] + p["bias"][g] for g in range(3)]
        of_state = [before @ p["recurrent_kernel"][:, g] for g in range(3)]
        reset, update = (sigmoid(a + b) for a, b in zip(of_inputs[:2], of_state))
        return (1 - update) * np.tanh(of_inputs[2] + reset * (of_state[2] + p["recurrent_bias"])) + update * before

    states, _ = walk(documents, reverse, None, np.zeros(p["bias"].shape[-1]), step)
    return np.stack(states)


REFERENCES = {"lstm": lstm, "gru": gru}
PLACED = [("input", 1), ("after_first", 1), ("output", 1), ("input_output", 2), ("output", 0)]


@pytest.mark.parametrize(("place", "count", "cell"), [*((*placed, "lstm") for placed in PLACED), ("after_first", 1, "gru")])
def test_an_encoder_equals_numpy_with_states_at_their_place(place, count, cell):
    x, states = normal(ROWS, LENGTH, 3), [normal(ROWS, LENGTH, 2, seed=i + 1) for i in range(count)]
    module = RecurrentEncoder(2, 4, place=place, cell=cell)
    variables = random_variables(module, x, states, DOCUMENTS, True)
    found = applied(module, variables, x, states, DOCUMENTS, True)
    for row, documents in enumerate(DOCUMENTS):
        h = x[row].astype(np.float64)
        extra = [s[row] for s in states]
        if place.startswith("input"):
            h = np.concatenate([h, extra[0]], -1)
        for i in range(2):
            sides = [
                REFERENCES[cell](h, variables["params"][f"{side}_{i}"], documents, side == "backward")
                for side in ("forward", "backward")
            ]
            h = np.concatenate(sides, -1)
            if place == "after_first" and i == 0:
                h = np.concatenate([h, extra[0]], -1)
        if place.endswith("output") and extra:
            h = np.concatenate([h, extra[-1]], -1)
        np.testing.assert_allclose(found[row], np.where(documents[:, None] > 0, h, 0), atol=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_padding_changes_nothing_in_an_encoder_and_an_empty_row_has_finite_gradients(cell):
    x, states = normal(ROWS, LENGTH, 3), normal(ROWS, LENGTH, 2, seed=1)
    module = RecurrentEncoder(2, 4, place="after_first", cell=cell)
    variables = random_variables(module, x, [states], DOCUMENTS, True)
    found = applied(module, variables, x, [states], DOCUMENTS, True)
    wide = lambda array: np.pad(array, ((0, 0), (0, 3)) + ((0, 0),) * (array.ndim - 2), constant_values=0)
    garbage = lambda array: np.where(wide(DOCUMENTS)[:, :, None] > 0, wide(array), np.float32(np.nan))
    other = applied(module, variables, garbage(x), [garbage(states)], wide(DOCUMENTS), True)
    np.testing.assert_allclose(other[:, :LENGTH], found, atol=1e-6)
    assert not other[:, LENGTH:].any() and not found[~FILLED].any()
    assert_finite_gradients(module, variables, garbage(x), [garbage(states)], wide(DOCUMENTS), True)


def test_bilstm_drops_each_element_of_a_layer_input_by_itself():
    """One layer without recurrence on ones: its cells' inputs differ as their inputs' masks do, from position to position."""
    x, documents = np.ones((2, 40, 3), np.float32), np.arange(1, 41, dtype=np.int32)[None].repeat(2, 0)
    module = RecurrentEncoder(1, 8, dropout=0.5)
    variables = random_variables(module, x, [], documents, True)
    run = lambda key: applied(module, variables, x, [], documents, False, rngs={"dropout": jax.random.key(key)})
    first = run(0)
    kinds = len({tuple(row) for row in np.round(first.reshape(80, -1), 4)})
    assert kinds == 8, "each of 3 elements is dropped or kept"
    assert np.any(first[0] != first[1]) and np.any(first != run(1))
    np.testing.assert_array_equal(first, run(0))


def test_bilstm_initial_values_are_small_with_forget_gates_open():
    arguments = np.zeros((2, 1, 5), np.float32), np.ones((2, 1), np.int32)
    p = jax.tree.map(np.asarray, unbox(quick_jit(Lstm(100, False).init)(jax.random.key(0), *arguments))["params"])
    assert p["bias"][1].mean() == pytest.approx(1, abs=0.03) and np.abs(p["bias"][[0, 2, 3]]).max() <= 0.1
    assert 0.09 < np.abs(p["recurrent_kernel"]).max() <= 0.1


def test_bigru_initial_values_are_small():
    arguments = np.zeros((2, 1, 5), np.float32), np.ones((2, 1), np.int32)
    p = jax.tree.map(np.asarray, unbox(quick_jit(Gru(100, False).init)(jax.random.key(0), *arguments))["params"])
    assert all(0.09 < np.abs(values).max() <= 0.1 for values in p.values())


# --- word features


def test_word_features_are_the_highest_of_each_filter_and_the_word_vector():
    spelled = ["a", "Bank", "x" * 60, "naïve"]
    characters, words = character_ids(spelled)[None].astype(np.int32), np.array([[3, 0, 6, 6]], np.int32)
    module, rows = WordFeatures(vocab_size=7, width=5, filters=30, pretrained=(4, 2)), np.array([[3, 0, 1, 3]], np.int32)
    variables = random_variables(module, characters, words, rows)
    together = applied(module, variables, characters, words, rows)
    np.testing.assert_array_equal(together[:, :, 35:], variables["params"]["word_vectors"][rows])
    found = together[:, :, :35]
    p = jax.tree.map(np.float64, variables["params"])
    assert found.shape == (1, 4, 35) and p["filters"]["kernel"].shape == (3, 25, 30)
    for i, word in enumerate(words[0]):
        x = p["character_embedding"][characters[0, i]]
        windows = [np.einsum("we,wen->n", x[at : at + 3], p["filters"]["kernel"]) for at in range(48)]
        expected = np.tanh(np.max(windows, 0) + p["filters"]["bias"])
        np.testing.assert_allclose(found[0, i], np.concatenate([expected, p["word_embedding"][word]]), atol=1e-5)
    only_words = applied(
        WordFeatures(7, 5, spelling=""), {"params": {"word_embedding": variables["params"]["word_embedding"]}}, words=words
    )
    np.testing.assert_array_equal(only_words, found[:, :, 30:])
    assert_finite_gradients(module, variables, characters, words, rows)


@pytest.mark.parametrize("cell", CELLS)
def test_a_speller_reads_a_word_from_both_ends(cell):
    """Its features are the states at the last and the first character; padding has no influence, and an empty word has none."""
    spelled = ["a", "Bank", "x" * 60]
    characters = np.concatenate([character_ids(spelled), np.full((1, 50), PADDING)])[None].astype(np.int32)
    module = WordFeatures(spelling=cell, hidden=4, character_width=3)
    variables = random_variables(module, characters)
    found, p = applied(module, variables, characters), variables["params"]
    assert found.shape == (1, 4, 8) and not found[0, 3].any()
    for i, row in enumerate(characters[0, :3]):
        x = np.float64(p["character_embedding"][row[row != PADDING]])
        read = lambda side: REFERENCES[cell](x, p[side], np.ones(len(x)), side == "backward")  # noqa: B023
        np.testing.assert_allclose(found[0, i], np.concatenate([read("forward")[-1], read("backward")[0]]), atol=1e-5)
    assert_finite_gradients(module, variables, characters)
    dropping = WordFeatures(spelling=cell, hidden=4, character_width=3, dropout=0.5)
    dropped = lambda **settings: applied(dropping, variables, characters, deterministic=False, **settings)
    assert np.any(dropped(rngs={"dropout": jax.random.key(1)}) != found)
    np.testing.assert_array_equal(applied(dropping, variables, characters), found)


# --- ULMFiT's classifier


def batch_norm(x, p, mean, variance):
    return (x - mean) / np.sqrt(variance + 1e-5) * p["scale"] + p["bias"]


def statistics_after(x, p):
    """Running mean and variance after a step on these vectors [n, D]: a tenth of the way to the batch's."""
    return 0.9 * p["running_mean"] + 0.1 * x.mean(0), 0.9 * p["running_variance"] + 0.1 * x.var(0, ddof=1)


COUNTED = np.array([True, True, False, True, False, True])


def vectors_and_variables(module, *arguments):
    """Vectors [6, 4] of which the uncounted are far away, and variables with a positive variance."""
    x = normal(6, 4) * np.float32(2) + np.float32(3)
    x[~COUNTED] = 1e4
    variables = random_variables(module, x, *arguments)
    positive = lambda path, leaf: np.abs(leaf) + np.float32(0.5) if "variance" in jax.tree_util.keystr(path) else leaf
    return x, jax.tree_util.tree_map_with_path(positive, variables)


def test_batch_norm_is_of_counted_vectors_in_training_and_of_running_statistics_otherwise():
    module = BatchNorm()
    x, variables = vectors_and_variables(module, COUNTED, True)
    p, inside = jax.tree.map(np.float64, variables["params"]), np.float64(x[COUNTED])
    found, kept = applied(module, variables, x, COUNTED, False, mutable=["statistics"])
    np.testing.assert_allclose(found[COUNTED], batch_norm(inside, p, inside.mean(0), inside.var(0)), rtol=1e-5, atol=1e-5)
    mean, variance = statistics_after(inside, p)
    np.testing.assert_allclose(kept["statistics"]["running_mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(kept["statistics"]["running_variance"], variance, rtol=1e-5)
    found = applied(module, variables, x, COUNTED, True)
    np.testing.assert_allclose(found, batch_norm(np.float64(x), p, p["running_mean"], p["running_variance"]), rtol=1e-5)


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_vectors_leave_running_statistics_alone(count):
    module, counted = BatchNorm(), np.arange(6) < count
    x, variables = vectors_and_variables(module, counted, True)
    found, kept = applied(module, variables, x, counted, False, mutable=["statistics"])
    assert np.isfinite(found).all()
    for name, value in kept["statistics"].items():
        np.testing.assert_array_equal(value, variables["params"][name])


def test_a_classifiers_blocks_are_norm_and_dense_with_a_relu_between():
    for norm in ("layer_norm", "batch_norm", "none"):
        module = Mlp(3, 5, norm=norm)
        x, variables = vectors_and_variables(module, COUNTED, True)
        p = jax.tree.map(np.float64, variables["params"])
        of_norm = {
            "layer_norm": lambda x, p: layer_norm(x, p, 1e-5),
            "batch_norm": lambda x, p: batch_norm(x, p, p["running_mean"], p["running_variance"]),
            "none": lambda x, p: x,
        }[norm]
        hidden = np.maximum(dense(of_norm(np.float64(x), p.get("norm_0")), p["dense_0"]), 0)
        expected = dense(of_norm(hidden, p.get("norm_1")), p["dense_1"])
        np.testing.assert_allclose(applied(module, variables, x, COUNTED, True), expected, rtol=1e-4, atol=1e-4)
    deep = Mlp(3, 5, norm="none", layers=2)
    x, variables = vectors_and_variables(deep, COUNTED, True)
    p, expected = jax.tree.map(np.float64, variables["params"]), np.float64(x)
    for i in range(3):
        expected = dense(np.maximum(expected, 0) if i else expected, p[f"dense_{i}"])
    assert [p[f"dense_{i}"]["bias"].size for i in range(3)] == [5, 5, 3]
    np.testing.assert_allclose(applied(deep, variables, x, COUNTED, True), expected, rtol=1e-4, atol=1e-2)
