"""ELMo's published files (bilm-tf, AllenNLP): a directory with options.json and weights.hdf5.

The model reads characters, so any words will do; a vocabulary.txt next to them, one word per line,
becomes the vocabulary of a language model that continues from it. There is no output layer.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from bertlab.config.defaults import base_config
from bertlab.data.tokenizers.base import SPECIALS
from bertlab.data.tokenizers.words import WordsTokenizer
from bertlab.errors import require_choice
from bertlab.files import read_json
from bertlab.interop.base import Model, only_file
from bertlab.interop.tensors import Entry, mapped, read, same
from bertlab.models.characters import WORD_LENGTH
from bertlab.models.presets import body_shapes, model_shape

DIRECTIONS = {"forward": "RNN_0", "backward": "RNN_1"}


def load(source: Path) -> Model:
    """Reads a directory."""
    options_path, weights_path = (
        only_file(source, f"*{ending}") for ending in ("options.json", "weights.hdf5")
    )
    config = read_options(read_json(options_path), options_path)
    vocabulary = source / "vocabulary.txt"
    words = vocabulary.read_text(encoding="utf-8").splitlines() if vocabulary.is_file() else []
    pieces = dict.fromkeys(SPECIALS) | dict.fromkeys(words)
    pieces = [piece for piece in pieces if piece not in ("<S>", "</S>", "<UNK>")]
    tokenizer = WordsTokenizer(pieces, lowercase=False)
    shape = model_shape(config.model, tokenizer.vocab_size)
    tensors = read_hdf5(weights_path)
    if sum(count for _, count in shape.filters) == shape.width:
        # Such a model has no projection; bertlab's then changes nothing.
        tensors["CNN_proj/W_proj"] = np.eye(shape.width, dtype=np.float32)
        tensors["CNN_proj/b_proj"] = np.zeros(shape.width, np.float32)
    shapes = {"body": body_shapes(shape, predicts=False)}
    return Model(config, read(table(shape), tensors, shapes, weights_path), tokenizer)


def read_hdf5(path: Path) -> dict[str, np.ndarray]:
    """All datasets by path."""
    import h5py

    names = []
    with h5py.File(path) as file:
        file.visit(names.append)
        return {name: file[name][()] for name in names if isinstance(file[name], h5py.Dataset)}


def read_options(options: Mapping[str, Any], path: Path) -> ConfigDict:
    """The config of options.json; what bertlab would compute differently is refused."""
    lstm, characters = options["lstm"], options["char_cnn"]
    for settings, key, computed in (
        (lstm, "proj_clip", [lstm["cell_clip"]]),
        (characters, "max_characters_per_token", [WORD_LENGTH]),
        (characters, "activation", ["relu", "tanh"]),
    ):
        require_choice(f"{path}: {key}", settings[key], computed)
    config = base_config()
    config.data.characters, config.data.tokenizer.kind = True, "words"
    config.model.update(
        family="elmo",
        size="original",
        direction="bidirectional",
        token_encoder="characters",
        layers=lstm["n_layers"],
        width=lstm["projection_dim"],
        hidden=lstm["dim"],
        clip=float(lstm["cell_clip"]),
        skip_connections=bool(lstm.get("use_skip_connections", False)),
        highway_layers=characters.get("n_highway") or 0,
        filters=tuple(map(tuple, characters["filters"])),
        character_width=characters["embedding"]["dim"],
        character_activation=characters["activation"],
    )
    return config


def table(shape) -> list[Entry]:
    """The parameters by their names in the files."""
    entries = [same("char_embed", "body/characters/embedding")]
    for n in range(len(shape.filters)):
        ours = f"body/characters/filter_{n}"
        # There it is a convolution over an image of one row.
        kernel = (f"{ours}/kernel", lambda array: array[0], lambda array: array[None])
        entries += [mapped(f"CNN/W_cnn_{n}", *kernel), same(f"CNN/b_cnn_{n}", f"{ours}/bias")]
    for n in range(shape.highway_layers):
        for gate in ("carry", "transform"):
            ours = f"body/characters/highway_{n}/{gate}"
            entries.append(same(f"CNN_high_{n}/W_{gate}", f"{ours}_kernel"))
            entries.append(same(f"CNN_high_{n}/b_{gate}", f"{ours}_bias"))
    entries.append(same("CNN_proj/W_proj", "body/characters/projection/kernel"))
    entries.append(same("CNN_proj/b_proj", "body/characters/projection/bias"))
    for side, theirs in DIRECTIONS.items():
        cell, ours = f"{theirs}/RNN/MultiRNNCell/Cell{{i}}/LSTMCell", f"body/{side}"
        kernels = (f"{ours}/input_kernel", f"{ours}/recurrent_kernel")
        entries += [
            # One matrix for inputs and states; gates in the order input, candidate, forget, output.
            Entry(
                (f"{cell}/W_0",),
                kernels,
                lambda arrays: np.split(split_gates(arrays[0]), 2),
                lambda arrays: [
                    np.concatenate([array.reshape(len(array), -1) for array in arrays])
                ],
            ),
            mapped(f"{cell}/B", f"{ours}/bias", split_gates, np.ravel),
            same(f"{cell}/W_P_0", f"{ours}/projection"),
        ]
    return entries


def split_gates(array):
    """[..., 4F] -> [..., 4, F]."""
    return array.reshape(*array.shape[:-1], 4, -1)
