"""ELMo's datasets become our parameters and back bit for bit, and a file that does not fit is refused by name."""

import builtins
import json

import numpy as np
import pytest

from bertlab.errors import UserError
from bertlab.interop import elmo
from bertlab.interop.base import body_shapes, flatten_tree
from bertlab.models.characters import PUBLISHED_FILTERS
from bertlab.models.presets import model_shape

LSTM = dict(dim=6, projection_dim=4, n_layers=2, cell_clip=3, proj_clip=3, use_skip_connections=True)
CHARACTERS = dict(
    embedding=dict(dim=16),
    filters=[list(pair) for pair in PUBLISHED_FILTERS],
    n_highway=1,
    n_characters=262,
    max_characters_per_token=50,
    activation="relu",
)


def datasets(rng, vocab_size=None):
    """A weight file's datasets as the format's readers expect them; with a vocabulary, of a model on token ids."""
    draw = lambda *shape: rng.standard_normal(shape, np.float32)
    tensors = {} if vocab_size is None else {"embedding": draw(vocab_size, 4)}
    if vocab_size is None:
        tensors["char_embed"] = draw(261, 16)
        for i, (width, number) in enumerate(PUBLISHED_FILTERS):
            tensors |= {f"CNN/W_cnn_{i}": draw(1, width, 16, number), f"CNN/b_cnn_{i}": draw(number)}
        for gate in ("carry", "transform"):
            tensors |= {f"CNN_high_0/W_{gate}": draw(2048, 2048), f"CNN_high_0/b_{gate}": draw(2048)}
        tensors |= {"CNN_proj/W_proj": draw(2048, 4), "CNN_proj/b_proj": draw(4)}
    for direction in (0, 1):
        for layer in (0, 1):
            root = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            tensors |= {f"{root}/W_0": draw(8, 24), f"{root}/B": draw(24), f"{root}/W_P_0": draw(6, 4)}
    return tensors


def tiny_config(characters=True):
    options = {"lstm": LSTM} | ({"char_cnn": CHARACTERS} if characters else {})
    return elmo.config_of(options, "options.json")


@pytest.mark.parametrize("characters", [True, False])
def test_datasets_come_back_bit_for_bit(characters):
    tensors = datasets(np.random.default_rng(0), None if characters else 9)
    config = tiny_config(characters)
    params = elmo.params_of(tensors, config, 9, "weights.hdf5")
    body = params["body"]
    assert {path: a.shape for path, a in flatten_tree(params).items()} == {
        path: leaf.shape for path, leaf in flatten_tree(body_shapes(config, 9, predicts=False)).items()
    }
    w = tensors["RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_0"]
    # Rows of inputs before those of states; columns of gate 0, then 1, ...
    assert body["backward"]["input_kernel"][1, 3, 2, 5] == w[3, 2 * 6 + 5]
    assert body["backward"]["recurrent_kernel"][1, 3, 2, 5] == w[4 + 3, 2 * 6 + 5]
    if characters:
        assert body["characters"]["filter_6"]["kernel"][6, 15, 1000] == tensors["CNN/W_cnn_6"][0, 6, 15, 1000]
    # What the format cannot hold is left out.
    extra = {"body": {**body, "output": {"kernel": np.ones((9, 4), np.float32)}}, "heads_x": {"kernel": np.ones(1)}}
    back = elmo.tensors_of(extra, model_shape(config.model, 9))
    assert back.keys() == tensors.keys()
    for name, array in tensors.items():
        assert back[name].dtype == np.float32
        np.testing.assert_array_equal(back[name], array)


def test_what_does_not_fit_is_refused_by_name():
    config = tiny_config(characters=False)
    tensors = datasets(np.random.default_rng(0), 9)
    root = "RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell"
    read = lambda changed: elmo.params_of(changed, config, 9, "weights.hdf5")
    for name in (f"{root}/W_0", f"{root}/B", "embedding"):
        with pytest.raises(UserError, match=f"lacks.*{name}"):
            read({k: v for k, v in tensors.items() if k != name})
        with pytest.raises(UserError, match=name):
            read({**tensors, name: tensors[name][1:]})
    for name in ("char_embed", "RNN_0/RNN/MultiRNNCell/Cell2/LSTMCell/B", "softmax/W"):
        with pytest.raises(UserError, match=f"{name}"):
            read({**tensors, name: np.zeros(3, np.float32)})


@pytest.mark.parametrize(
    ("group", "key", "value"),
    [
        ("lstm", "proj_clip", 5),
        ("lstm", "cell_clip", None),
        ("lstm", "projection_dim", 6),
        ("char_cnn", "filters", [[1, 32, 3]]),
        ("char_cnn", "filters", [[51, 32]]),
        ("char_cnn", "filters", None),
        ("char_cnn", "activation", "tanh"),
        ("char_cnn", "n_characters", 60),
        ("char_cnn", "max_characters_per_token", 17),
    ],
)
def test_options_that_the_model_does_not_have_are_refused(group, key, value):
    options = {"lstm": dict(LSTM), "char_cnn": dict(CHARACTERS)}
    options[group][key] = value
    with pytest.raises(UserError, match=f"options.json has {group}.{key}|{group}.proj_clip"):
        elmo.config_of(options, "options.json")


def test_options_become_the_config():
    model = elmo.config_of({"lstm": LSTM | {"use_skip_connections": False}, "char_cnn": CHARACTERS}, "options.json").model
    shape = model_shape(model, 9)
    assert (shape.layers, shape.width, shape.hidden, shape.clip, shape.highway_layers) == (2, 4, 6, 3.0, 1)
    assert shape.skip_connections is False and shape.direction == "bidirectional" and shape.token_encoder == "characters"
    assert model_shape(elmo.config_of({"lstm": LSTM}, "options.json").model, 9).token_encoder == "ids"


def test_a_missing_package_names_its_extra(tmp_path, monkeypatch):
    (tmp_path / "options.json").write_text(json.dumps({"lstm": LSTM}))
    (tmp_path / "weights.hdf5").write_bytes(b"")
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == "h5py":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr("importlib.import_module", lambda name, package=None: without(name))
    with pytest.raises(UserError, match=r"bertlab\[elmo\]"):
        elmo.load(tmp_path)


def test_directories_without_their_files_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"\*options.json, found none"):
        elmo.load(tmp_path)
    for name in ("a_options.json", "b_options.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match=r"a_options\.json and b_options"):
        elmo.load(tmp_path)
