"""ELMo from its published file layout equals a NumPy reference over batches."""

import functools
import itertools
import json

import h5py
import jax
import numpy as np
import pytest

import bertlab
from bertlab.data.tokenizers import SPECIALS
from bertlab.errors import UserError
from bertlab.interop import elmo
from bertlab.interop.base import import_weights
from bertlab.models.presets import build_body, model_shape
from bertlab.transfer.load import load
from tests.recurrent_references import bilm_side, encode_characters

WIDTH, CELL = 6, 10
GATES = ("carry", "transform")
LSTM = dict(dim=CELL, projection_dim=WIDTH, n_layers=2, cell_clip=3, proj_clip=3)
LSTM |= dict(use_skip_connections=True)
CHAR_CNN = dict(
    embedding=dict(dim=16),
    filters=[[1, 4], [2, 5], [7, 8]],
    n_highway=2,
    n_characters=262,
    max_characters_per_token=50,
    activation="relu",
)
# bilm-tf's own fixture; one highway layer; as many filters as the width, so no projection.
FIXTURE = dict(embedding=dict(dim=4), filters=[[1, 4], [2, 8], [3, 16], [4, 32], [5, 64]])
ONE_HIGHWAY = dict(embedding=dict(dim=7), filters=[[3, 9]], n_highway=1, activation="tanh")
UNPROJECTED = dict(filters=[[1, 2], [2, WIDTH - 2]], n_highway=0)


def draw_tensors(char_cnn):
    """The datasets as bilm-tf's `dump_weights` names them."""
    rng = np.random.default_rng(0)

    def draw(*shape, scale=0.5):
        return np.float32(scale * rng.standard_normal(shape))

    width, filtered = char_cnn["embedding"]["dim"], sum(n for _, n in char_cnn["filters"])
    tensors = {"char_embed": draw(261, width)}
    for i, (size, number) in enumerate(char_cnn["filters"]):
        tensors |= {f"CNN/W_cnn_{i}": draw(1, size, width, number), f"CNN/b_cnn_{i}": draw(number)}
    for i, gate in itertools.product(range(char_cnn["n_highway"]), GATES):
        tensors[f"CNN_high_{i}/W_{gate}"] = draw(filtered, filtered, scale=filtered**-0.5)
        tensors[f"CNN_high_{i}/b_{gate}"] = draw(filtered)
    if filtered > WIDTH:
        tensors["CNN_proj/W_proj"] = draw(filtered, WIDTH, scale=filtered**-0.5)
        tensors["CNN_proj/b_proj"] = draw(WIDTH)
    for direction, layer in np.ndindex(2, 2):
        cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
        tensors[f"{cell}/W_0"] = draw(2 * WIDTH, 4 * CELL)
        tensors[f"{cell}/B"] = draw(4 * CELL, scale=2)
        tensors[f"{cell}/W_P_0"] = draw(CELL, WIDTH)
    return tensors


def write_source(directory, lstm=(), **char_cnn):
    """A directory; returns its datasets."""
    directory.mkdir()
    options = {"lstm": LSTM | dict(lstm), "char_cnn": CHAR_CNN | char_cnn}
    (directory / "tiny_options.json").write_text(json.dumps(options))
    tensors = draw_tensors(CHAR_CNN | char_cnn)
    with h5py.File(directory / "tiny_weights.hdf5", "w") as file:
        for name, array in tensors.items():
            file[name] = array
    return tensors


def reference(tensors):
    """The datasets in the shapes of the NumPy reference, without the code under test."""

    def gates(array):
        return np.stack(np.split(array, 4, axis=-1), axis=-2)  # i, j, f, o: a block of columns each

    p = {"characters": {"embedding": tensors["char_embed"]}}
    for side, direction in (("forward", 0), ("backward", 1)):
        cells = [f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/" for layer in (0, 1)]
        p[side] = {
            "input_kernel": np.stack([gates(tensors[c + "W_0"][:WIDTH]) for c in cells]),
            "recurrent_kernel": np.stack([gates(tensors[c + "W_0"][WIDTH:]) for c in cells]),
            "bias": np.stack([gates(tensors[c + "B"]) for c in cells]),
            "projection": np.stack([tensors[c + "W_P_0"] for c in cells]),
        }
    for i in range(sum(name.startswith("CNN/W_cnn_") for name in tensors)):
        kernel, bias = tensors[f"CNN/W_cnn_{i}"][0], tensors[f"CNN/b_cnn_{i}"]
        p["characters"][f"filter_{i}"] = {"kernel": kernel, "bias": bias}
    for i in range(sum(name.endswith("/W_carry") for name in tensors)):
        names = itertools.product(GATES, (("kernel", "W"), ("bias", "b")))
        p["characters"][f"highway_{i}"] = {
            f"{gate}_{ours}": tensors[f"CNN_high_{i}/{theirs}_{gate}"]
            for gate, (ours, theirs) in names
        }
    if "CNN_proj/W_proj" in tensors:
        kernel, bias = tensors["CNN_proj/W_proj"], tensors["CNN_proj/b_proj"]
        p["characters"]["projection"] = {"kernel": kernel, "bias": bias}
    return p


@pytest.mark.parametrize("char_cnn", [{}, FIXTURE, ONE_HIGHWAY, UNPROJECTED])
def test_imported_weights_give_the_reference_states_over_batches(char_cnn, tmp_path):
    p = reference(write_source(tmp_path / "source", **char_cnn))
    import_weights("elmo", tmp_path / "source", tmp_path / "run")
    run, rng = load(tmp_path / "run"), np.random.default_rng(1)
    shape = model_shape(run.config.model, run.tokenizer.vocab_size)
    encode = jax.jit(functools.partial(build_body(shape).apply, method="encode"))
    activation = char_cnn.get("activation", "relu")
    for side in ("forward", "backward"):
        carry = shape.initial_carry(2, (side,))
        begin = [{"cell": np.zeros(CELL), "state": np.zeros(WIDTH)}] * 2
        begins = {row: begin for row in range(2)}
        for _ in range(2):
            view = {
                "tokens": np.zeros((2, 4), np.int32),
                "characters": rng.integers(0, 261, (2, 4, 50)).astype(np.int32),
                "documents": np.ones((2, 4), np.int32),
                "continues": np.ones(2, np.int32),
            }
            encoded, carry = encode({"params": run.params["body"]}, view, carry)
            x = encode_characters(p["characters"], view["characters"], activation)
            for row in range(2):
                settings = (view["documents"][row], side == "backward", begins[row])
                expected, begins[row] = bilm_side(x[row], p[side], *settings)
                for ours, theirs in zip(getattr(encoded, side), expected, strict=True):
                    np.testing.assert_allclose(ours[row], theirs, rtol=1e-5, atol=1e-5)


def test_words_and_use(tmp_path):
    """Any word has states; a vocabulary beside the weights is only for language models."""
    write_source(tmp_path / "source")
    assert elmo.load(tmp_path / "source").tokenizer.pieces() == list(SPECIALS)
    (tmp_path / "source/vocabulary.txt").write_text("<S>\n</S>\n<UNK>\nthe\n")
    import_weights("elmo", tmp_path / "source", tmp_path / "run")
    model = bertlab.load(tmp_path / "run")
    assert model.tokenizer.pieces() == [*SPECIALS, "the"] and not len(model.config.objectives)
    one, two = model.embed(["the cat", "the dog"])
    assert one.tokens == ("the", "[UNK]") and one.states.shape == (3, 2, 2 * WIDTH)
    assert np.abs(one.states[0, 1] - two.states[0, 1]).max() > 1e-3


@pytest.mark.parametrize(
    ("lstm", "char_cnn", "message"),
    [
        ({"proj_clip": 5}, {}, "proj_clip"),
        ({}, {"activation": "gelu"}, "activation"),
        ({}, {"max_characters_per_token": 40}, "max_characters_per_token"),
    ],
)
def test_options_that_bertlab_does_not_compute(lstm, char_cnn, message, tmp_path):
    write_source(tmp_path / "source", lstm, **char_cnn)
    with pytest.raises(UserError, match=rf"tiny_options\.json.*{message}"):
        elmo.load(tmp_path / "source")


def test_what_is_not_whole(tmp_path):
    write_source(tmp_path / "source")
    path = tmp_path / "source/tiny_weights.hdf5"
    with h5py.File(path, "a") as file:
        del file["RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell/B"]
    with pytest.raises(UserError, match=r"weights\.hdf5: RNN_0.*Cell1/LSTMCell/B is missing"):
        elmo.load(tmp_path / "source")
    path.unlink()
    with pytest.raises(UserError, match=r"\*weights\.hdf5; it has none"):
        elmo.load(tmp_path / "source")
