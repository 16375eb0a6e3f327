"""ELMo's weight files (bilm-tf, AllenNLP): a directory with options.json and weights.hdf5, import and export.

Names that end so are accepted too (the published `elmo_2x4096_512_2048cnn_2xhighway_options.json`). Token vectors come from
characters, or from a dataset `embedding` [V, D] in the same file or in one whose name ends in `embedding.hdf5` or
`embeddings.hdf5`; its words are in `vocabulary.txt` or `vocab.txt`, one per line. If an embedding file exists, the weight
file's character encoder is skipped, as in bilm-tf, whose `dump_token_embeddings` computes one from the other.

The format has no softmax, pooler or heads: an import has no objectives, and an export leaves them out. It has no rules for
splitting text either: an export adds the run's `tokenizer/`, and an import prefers that to the words.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertlab.config import base_config
from bertlab.data.tokenizers import Tokenizer, WordsTokenizer, load_tokenizer
from bertlab.data.vocabularies import SPECIALS
from bertlab.errors import UserError, reason_of, require
from bertlab.files import write_json
from bertlab.interop.base import Entry, Imported, only, read, write
from bertlab.interop.transformer import read_count, read_object
from bertlab.interop.words import TOKENIZER, find_vocabulary, read_words, require_words, tokenizer_of_rows
from bertlab.models.bilstm import BilstmConfig
from bertlab.models.characters import ACTIVATIONS, ALPHABET, PUBLISHED_FILTERS
from bertlab.models.presets import body_shapes, model_shape

_WORD_LENGTH = 50
# HDF5 compresses by at most about so much.
_MOST_TIMES = 2000
_DIRECTIONS = {"forward": "RNN_0", "backward": "RNN_1"}
_VOCABULARIES = ("vocabulary.txt", "vocab.txt")
_CELL = "/RNN/MultiRNNCell/Cell{i}/LSTMCell/"
# The file has one matrix for inputs and states; bertlab has two. The table names its halves so.
_INPUT_PART, _STATE_PART = "W_0 (rows of inputs)", "W_0 (rows of states)"


def _gates(theirs: str, ours: str) -> Entry:
    """[..., 4·F] there, [..., 4, F] here, in the same order: input, candidate, forget, output."""
    split = lambda arrays: arrays[0].reshape(*arrays[0].shape[:-1], 4, -1)
    return Entry((theirs,), ours, split, lambda array: [array.reshape(*array.shape[:-2], -1)])


def table(filters: int, highway_layers: int) -> list[Entry]:
    """The format's names.

    Args:
        filters: how many filter widths the character encoder has.
        highway_layers: of the character encoder.
    """
    entries = [Entry(("embedding",), "body/token_embedding"), Entry(("char_embed",), "body/characters/embedding")]
    for i in range(filters):
        ours = f"body/characters/filter_{i}"
        kernel = (lambda arrays: arrays[0][0], lambda array: [array[None]])  # there, a convolution over an image of one row
        entries += [Entry((f"CNN/W_cnn_{i}",), f"{ours}/kernel", *kernel), Entry((f"CNN/b_cnn_{i}",), f"{ours}/bias")]
    for i in range(highway_layers):
        for gate in ("carry", "transform"):
            ours = f"body/characters/highway_{i}/{gate}"
            entries += [
                Entry((f"CNN_high_{i}/W_{gate}",), f"{ours}_kernel"),
                Entry((f"CNN_high_{i}/b_{gate}",), f"{ours}_bias"),
            ]
    for theirs, ours in (("W_proj", "kernel"), ("b_proj", "bias")):
        entries.append(Entry((f"CNN_proj/{theirs}",), f"body/characters/projection/{ours}"))
    for ours, theirs in _DIRECTIONS.items():
        entries += [
            _gates(theirs + _CELL + _INPUT_PART, f"body/{ours}/input_kernel"),
            _gates(theirs + _CELL + _STATE_PART, f"body/{ours}/recurrent_kernel"),
            _gates(theirs + _CELL + "B", f"body/{ours}/bias"),
            Entry((theirs + _CELL + "W_P_0",), f"body/{ours}/projection"),
        ]
    return entries


def params_of(tensors: Mapping[str, np.ndarray], config, vocab_size: int, source: str | Path) -> dict:
    """Our parameters from the file's datasets.

    Args:
        tensors: datasets by path.
        config: the whole config.
        vocab_size: V.
        source: for messages.

    Raises:
        UserError: names a dataset that is missing, left over or of the wrong shape.
    """
    shape = model_shape(config.model, vocab_size)
    parts = {}
    same = shape.token_encoder == "characters" and sum(number for _, number in shape.filters) == shape.width
    if same and shape.width**2 < sum(map(np.size, tensors.values())):  # else the options are of another model
        # As many filters as the width: bilm-tf has no projection, and ours changes nothing.
        parts = {"CNN_proj/W_proj": np.eye(shape.width, dtype=np.float32), "CNN_proj/b_proj": np.zeros(shape.width, np.float32)}
    for name, array in tensors.items():
        if not name.endswith("/LSTMCell/W_0"):
            parts[name] = array
            continue
        expected = (2 * shape.width, 4 * shape.hidden)
        if np.shape(array) != expected:
            raise UserError(f"{source}: {name} is {np.shape(array)}, expected {expected}; nothing was written")
        root = name.removesuffix("W_0")
        parts |= {root + _INPUT_PART: array[: shape.width], root + _STATE_PART: array[shape.width :]}
    entries = table(len(shape.filters), shape.highway_layers)
    return read(entries, parts, body_shapes(config, vocab_size, predicts=False), source)


def tensors_of(params, shape: BilstmConfig) -> dict[str, np.ndarray]:
    """The file's datasets from our parameters; the inverse of `params_of`, without parameters that the format lacks."""
    kept = {name: params["body"][name] for name in ("characters", "token_embedding", *_DIRECTIONS) if name in params["body"]}
    tensors = write(table(len(shape.filters), shape.highway_layers), {"body": kept})
    for name in [name for name in tensors if name.endswith(_INPUT_PART)]:
        root = name.removesuffix(_INPUT_PART)
        tensors[root + "W_0"] = np.concatenate([tensors.pop(name), tensors.pop(root + _STATE_PART)])
    return tensors


def load(source: Path) -> Imported:
    """Reads a directory with options and weights.

    Raises:
        UserError: a file is missing or ambiguous, bertlab does not have an option's value, a dataset is missing, left over or
            of the wrong shape, or h5py is not installed.
    """
    options_file, weights_file = (
        only(source, [*source.glob(f"*{ending}")], f"a directory with one file *{ending}")
        for ending in ("options.json", "weights.hdf5")
    )
    if len(apart := [path for path in sorted(source.glob("*.hdf5")) if path.stem.endswith(("embedding", "embeddings"))]) > 1:
        raise UserError(f"{source} has {' and '.join(path.name for path in apart)}; keep one of them")
    options = read_object(options_file)
    tensors = _read_hdf5(weights_file)
    held = len(tensors) + len(apart)
    on_ids = bool(apart) or "embedding" in tensors
    if not on_ids and "char_cnn" not in options:
        raise UserError(f"{options_file} needs char_cnn, or {weights_file.name} a dataset embedding; both are missing")
    char_cnn = _object(options, "char_cnn", options_file)
    if on_ids:
        options.pop("char_cnn", None)
    config = config_of(options, options_file)
    if apart and char_cnn:
        entries = table(len(_filters_of(char_cnn, options_file)), _highway_layers_of(char_cnn, options_file))
        skipped = {name for entry in entries if entry.ours.startswith("body/characters/") for name in entry.theirs}
        tensors = {name: array for name, array in tensors.items() if name not in skipped}
    for path in apart:
        found = _read_hdf5(path)
        if list(found) != ["embedding"] or "embedding" in tensors:
            raise UserError(
                f"{path} has {list(found)}; expected one dataset, embedding, that {weights_file.name} does not have"
            )
        tensors |= found
    if on_ids:
        rows = f"{(apart or [weights_file])[0].name}'s dataset embedding"
        words_file = require_words(source, _VOCABULARIES)
        tokenizer = tokenizer_of_rows(words_file, (*np.shape(tensors["embedding"]), 0)[0], rows)
    else:
        tokenizer, words_file = _tokenizer_of_characters(source)
    params = params_of(tensors, config, tokenizer.vocab_size, weights_file)
    files = (options_file, weights_file, *apart, *filter(None, [words_file]))
    return Imported(config, params, tokenizer, tuple(path.name for path in files), held)


def _tokenizer_of_characters(source: Path) -> tuple[Tokenizer, Path | None]:
    """The tokenizer of a model that reads characters (any words will do), and the path it was read from."""
    if (own := source / TOKENIZER).is_dir():
        tokenizer = load_tokenizer(own)
        if not tokenizer.has_whole_words:
            raise UserError(f"{own} has kind {tokenizer.kind!r}, but a model that reads characters needs 'words'; remove it")
        return tokenizer, own
    vocabulary = find_vocabulary(source, _VOCABULARIES)
    words = () if vocabulary is None else read_words(vocabulary)
    return WordsTokenizer(_with_specials(words), lowercase=False), vocabulary


def save(run: Imported, directory: Path) -> None:
    """Writes options.json, weights.hdf5, tokenizer/ and, for a model on token ids, vocabulary.txt.

    Raises:
        UserError: the run is not a bidirectional ELMo that is narrower than its cells and filters, or h5py is not installed.
    """
    h5py = require("h5py", "elmo", "ELMo's weights.hdf5")
    shape = model_shape(run.config.model, run.tokenizer.vocab_size)
    if not isinstance(shape, BilstmConfig) or shape.direction != "bidirectional":
        raise UserError(
            f"config.model.family={run.config.model.family!r} with direction={run.config.model.direction!r} does not fit ELMo's"
            " weight file, because the file holds a forward and a backward LSTM; export a bidirectional elmo"
        )
    projected = {"config.model.hidden": (shape.hidden, "config.model.hidden larger than config.model.width")}
    if shape.token_encoder == "characters":
        filters = sum(number for _, number in shape.characters.filters)
        projected["the number of character filters"] = (filters, "config.model.width smaller than that")
    for what, (size, choice) in projected.items():
        if size <= shape.width:
            raise UserError(
                f"{what} is {size}, but readers of ELMo's weight file project only layers wider than config.model.width="
                f"{shape.width}; train with {choice}, for example config.model.size=small"
            )
    with h5py.File(directory / "weights.hdf5", "w") as file:
        for name, array in tensors_of(run.params, shape).items():
            file.create_dataset(name, data=array)
    write_json(directory / "options.json", _options(shape))
    run.tokenizer.save(directory / TOKENIZER)
    if shape.token_encoder == "ids":
        text = "".join(f"{piece}\n" for piece in run.tokenizer.pieces())
        (directory / "vocabulary.txt").write_text(text, encoding="utf-8")


def _options(shape: BilstmConfig) -> dict[str, Any]:
    lstm = dict(
        dim=shape.hidden,
        projection_dim=shape.width,
        n_layers=shape.layers,
        cell_clip=shape.clip,
        proj_clip=shape.clip,
        use_skip_connections=shape.skip_connections,
    )
    options = dict(bidirectional=True, lstm=lstm)
    if shape.token_encoder == "ids":
        return options | dict(n_tokens_vocab=shape.vocab_size)
    characters = shape.characters
    char_cnn = dict(
        embedding=dict(dim=characters.character_width),
        filters=[list(pair) for pair in characters.filters],
        n_highway=characters.highway_layers,
        n_characters=ALPHABET + 1,  # the readers' count, with their padding 0
        max_characters_per_token=_WORD_LENGTH,
        activation=characters.activation,
    )
    return options | dict(char_cnn=char_cnn)


def config_of(options: Mapping[str, Any], path: Path):
    """The config of these options: on characters if they have char_cnn, otherwise on token ids.

    Raises:
        UserError: an option is missing, or bertlab's model does not have its value.
    """
    config = base_config()
    lstm = _object(options, "lstm", path)
    missing = [key for key in ("dim", "projection_dim", "n_layers", "cell_clip", "proj_clip") if key not in lstm]
    if missing:
        raise UserError(f"{path} has no lstm.{missing[0]}")
    layers, width, hidden = (read_count(lstm, key, path) for key in ("n_layers", "projection_dim", "dim"))
    is_bound = type(lstm["cell_clip"]) in (int, float) and 0 < lstm["cell_clip"] < math.inf
    if lstm["cell_clip"] != lstm["proj_clip"] or not is_bound:
        raise UserError(
            f"{path} has lstm.cell_clip={lstm['cell_clip']} and lstm.proj_clip={lstm['proj_clip']}; bertlab needs one bound"
            " for both"
        )
    if width >= hidden:
        raise UserError(
            f"{path} has lstm.projection_dim={lstm['projection_dim']} and lstm.dim={lstm['dim']}; bertlab needs a projection"
            " narrower than the cells"
        )
    config.model.update(
        family="elmo",
        size="original",
        layers=layers,
        width=width,
        hidden=hidden,
        clip=float(lstm["cell_clip"]),
        skip_connections=bool(lstm.get("use_skip_connections", False)),
        token_encoder="characters" if "char_cnn" in options else "ids",
    )
    if "char_cnn" in options:
        config.data.characters, config.data.tokenizer.kind = True, "words"
        config.model.update(_characters_of(_object(options, "char_cnn", path), path))
    return config


def _characters_of(char_cnn: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Keys of config.model from char_cnn; filters only if they are not the usual ones."""
    found = {
        "embedding.dim": (_object(char_cnn, "embedding", path).get("dim"), range(1, 1 << 20), "a positive whole number"),
        "activation": (char_cnn.get("activation"), tuple(ACTIVATIONS), " or ".join(ACTIVATIONS)),
        "max_characters_per_token": (char_cnn.get("max_characters_per_token"), (_WORD_LENGTH,), _WORD_LENGTH),
        # 261 in training; readers add one for padding; the weights do not include it.
        "n_characters": (char_cnn.get("n_characters"), (ALPHABET, ALPHABET + 1), f"{ALPHABET} or {ALPHABET + 1}"),
    }
    for key, (value, allowed, described) in found.items():
        if isinstance(value, float) or value not in allowed:
            raise UserError(f"{path} has char_cnn.{key}={value}; bertlab supports {described}")
    filters = _filters_of(char_cnn, path)
    return {
        "highway_layers": _highway_layers_of(char_cnn, path),
        "character_width": found["embedding.dim"][0],
        "character_activation": found["activation"][0],
        **({} if filters == PUBLISHED_FILTERS else {"filters": filters}),
    }


def _filters_of(char_cnn: Mapping[str, Any], path: Path) -> tuple[tuple[int, int], ...]:
    """(width, number) of each convolution."""
    filters = char_cnn.get("filters")
    try:
        pairs = tuple((int(width), int(number)) for width, number in filters)
    except (TypeError, ValueError, OverflowError):
        pairs = ()
    if not pairs or not all(1 <= width <= _WORD_LENGTH and number >= 1 for width, number in pairs):
        raise UserError(
            f"{path} has char_cnn.filters={filters}; expected pairs [width, number] with widths up to {_WORD_LENGTH}"
        )
    return pairs


def _highway_layers_of(char_cnn: Mapping[str, Any], path: Path) -> int:
    number = char_cnn.get("n_highway") or 0
    if type(number) is not int or not 0 <= number <= 100:
        raise UserError(f"{path} has char_cnn.n_highway={number!r}; expected a whole number from 0 to 100")
    return number


def _object(settings: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    """An object in the options, {} if it is missing. Raises: UserError: it is another value."""
    value = settings.get(key, {})
    if not isinstance(value, dict):
        raise UserError(f"{path} has {key}={value!r}; expected a JSON object, {{...}}")
    return value


def _with_specials(words: Sequence[str]) -> list[str]:
    """A vocabulary for a model that reads characters: its weights have no rows for words."""
    theirs = ("<S>", "</S>", "<UNK>")
    return [*SPECIALS, *(word for word in dict.fromkeys(words) if word not in (*SPECIALS, *theirs))]


def _read_hdf5(path: Path) -> dict[str, np.ndarray]:
    """All datasets by path; `visit` follows no link to another place or file."""
    h5py = require("h5py", "elmo", "ELMo's weights.hdf5")
    names = []
    try:
        with h5py.File(path, "r") as file:
            file.visit(names.append)
            found = {name: file[name] for name in names if isinstance(file[name], h5py.Dataset)}
            for name, dataset in found.items():
                if dataset.external or dataset.is_virtual:  # of any file of this machine
                    raise UserError(f"{path}: the numbers of {name} lie in another file; give a file that holds its own")
                # A header may name any shape; zeros that are not stored, or compressed, would be made up to fill it.
                if dataset.nbytes > _MOST_TIMES * dataset.id.get_storage_size():
                    raise UserError(f"{path}: {name} has the shape {dataset.shape}, but few of its numbers are in the file")
            return {name: dataset[()] for name, dataset in found.items()}
    except UserError:
        raise
    except Exception as error:  # h5py raises many kinds for a damaged file
        raise UserError(f"{path} cannot be read as HDF5 ({reason_of(error)}); download it again") from error
