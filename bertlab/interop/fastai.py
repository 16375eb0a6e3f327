"""AWD-LSTM language models as PyTorch state dicts: those of salesforce/awd-lstm-lm and of fastai (ULMFiT), import and export.

The source is a .pth, .pt, .bin or .h5 file (fastai's oldest files are torch's, whatever their name), or a directory with one.
Only tensors are read, never pickled objects. The words are in a file beside it, one per line or as a JSON list: `itos.txt`,
`itos.json`, `vocab.txt` or `vocab.json`. A file with "bwd" in its name (not in its directory's) is a right-to-left model.

An export is a file lm_fwd.pth or lm_bwd.pth under the names of fastai 2, `itos.json`, and the run's `tokenizer/`, which an
import prefers to the words.

Files may hold `weight_hh_l0` beside `weight_hh_l0_raw`: the copy that dropout left in the last batch. It is skipped.
"""

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from bertlab.config import add_objectives, base_config
from bertlab.errors import UserError, require
from bertlab.files import write_json
from bertlab.interop.base import Entry, Imported, only, read, write
from bertlab.interop.words import TOKENIZER, require_words, tokenizer_of_rows
from bertlab.models.awd_lstm import AwdLstmConfig
from bertlab.models.presets import body_shapes, model_shape

_ENDINGS = (".pth", ".pt", ".bin", ".h5")
_VOCABULARIES = ("itos.txt", "itos.json", "vocab.txt", "vocab.json")
_LSTM = re.compile(r"(?:0\.)?rnns\.(\d+)\.(?:module\.)?((?:weight|bias)_(?:ih|hh)_l0)(_raw)?")
_NAMES = {
    re.compile(
        r"(0\.)?(encoder\.weight|encoder_with_dropout\.embed\.weight|encoder_dp\.emb\.weight)|(1\.)?decoder\.weight"
    ): "encoder.weight",
    re.compile(r"(1\.)?decoder\.bias"): "decoder.bias",
    _LSTM: r"rnns.\1.\2",
}
"""Patterns of the files' names, and the names of `table`."""


def table(layers: int) -> list[Entry]:
    """The parameters, under the names that `plain_names` gives."""
    gates = lambda arrays: arrays[0].reshape(4, -1)
    kernel = lambda arrays: arrays[0].reshape(4, -1, arrays[0].shape[1]).transpose(2, 0, 1)  # torch has out × in
    flat = lambda array: [array.reshape(-1)]
    flat_kernel = lambda array: [array.transpose(1, 2, 0).reshape(-1, array.shape[0])]
    entries = [Entry(("encoder.weight",), "body/token_embedding"), Entry(("decoder.bias",), "body/output/bias")]
    for i in range(layers):
        theirs, ours = f"rnns.{i}", f"body/layer_{i}"
        entries += [
            Entry((f"{theirs}.weight_ih_l0",), f"{ours}/input_kernel", kernel, flat_kernel),
            Entry((f"{theirs}.weight_hh_l0",), f"{ours}/recurrent_kernel", kernel, flat_kernel),
            Entry((f"{theirs}.bias_ih_l0",), f"{ours}/input_bias", gates, flat),
            Entry((f"{theirs}.bias_hh_l0",), f"{ours}/recurrent_bias", gates, flat),
        ]
    return entries


def plain_names(tensors: Mapping[str, np.ndarray], source: str | Path) -> dict[str, np.ndarray]:
    """The tensors under the names of `table`.

    Raises:
        UserError: two copies of a tensor differ: the output layer is not tied to the embedding, for example.
    """
    plain, origin = {}, {}
    raw_layers = {match[1] for name in tensors if (match := _LSTM.fullmatch(name)) and match[3]}
    for name, array in tensors.items():
        if (match := _LSTM.fullmatch(name)) and match[2] == "weight_hh_l0" and match[1] in raw_layers and not match[3]:
            continue
        short = next((pattern.sub(new, name) for pattern, new in _NAMES.items() if pattern.fullmatch(name)), name)
        if short in plain and not np.array_equal(plain[short], array):
            raise UserError(f"{source}: {name} differs from {origin[short]}, but must be the same; nothing was written")
        plain.setdefault(short, array)
        origin.setdefault(short, name)
    return plain


def config_of(tensors: Mapping[str, np.ndarray], right_to_left: bool, source: str | Path) -> ConfigDict:
    """The config of these tensors, with the objective of their direction.

    Raises:
        UserError: the embeddings or a layer's recurrent weights are missing.
    """
    layers = 1 + max((int(match[1]) for name in tensors if (match := _LSTM.fullmatch(name))), default=-1)
    for name in ("encoder.weight", *(f"rnns.{i}.weight_hh_l0" for i in range(max(layers, 1)))):
        if np.ndim(tensors.get(name)) != 2:
            raise UserError(f"{source} has no matrix {name}; give the state dict of an AWD-LSTM language model")
    config = base_config()
    config.model.update(
        family="awd_lstm",
        size="original",
        direction="right-to-left" if right_to_left else "left-to-right",
        layers=layers,
        width=tensors["encoder.weight"].shape[1],
        hidden=tensors["rnns.0.weight_hh_l0"].shape[1],
        output_bias="decoder.bias" in tensors,
    )
    add_objectives(config, "rtl" if right_to_left else "ltr")
    return config


def load(source: Path) -> Imported:
    """Reads a state dict and its words.

    Raises:
        UserError: the directory has no such file or several, or no vocabulary; the file holds more than tensors; a tensor is
            missing, left over or of the wrong shape, or differs from its copy; or torch is not installed.
    """
    path = source
    if source.is_dir():
        found = [path for path in source.iterdir() if path.suffix in _ENDINGS]
        path = only(source, found, f"the name of a file, or a directory with one of {', '.join(_ENDINGS)}")
    pickles = [path.name for path in sorted(path.parent.glob("*.pkl"))]
    refused = f" ({pickles[0]} is a pickle; bertlab reads none because they can run code)" if pickles else ""
    words = require_words(path.parent, _VOCABULARIES, refused)
    loaded = _read_torch(path)
    tensors = plain_names(loaded, path)
    config = config_of(tensors, "bwd" in path.stem.lower(), path)
    tokenizer = tokenizer_of_rows(words, len(tensors["encoder.weight"]), f"{path.name}'s embedding")
    params = read(table(config.model.layers), tensors, body_shapes(config, tokenizer.vocab_size), path)
    return Imported(config, params, tokenizer, (path.name, words.name), len(loaded))


def save(run: Imported, directory: Path) -> None:
    """Writes a state dict as fastai's `Learner.save(with_opt=False)` does, itos.json and tokenizer/.

    Raises:
        UserError: the run is not an AWD-LSTM whose output layer is the embeddings, or torch is not installed.
    """
    torch = require("torch", "pytorch", "fastai's .pth")
    shape = model_shape(run.config.model, run.tokenizer.vocab_size)
    if not isinstance(shape, AwdLstmConfig):
        raise UserError(f"config.model.family={run.config.model.family!r} is not an AWD-LSTM; export it with another --to")
    body = {name: tree for name, tree in run.params["body"].items() if name != "pooler"}
    tensors = fastai_names(write(table(shape.layers), {"body": body}))
    state = {name: torch.from_numpy(array.copy()) for name, array in tensors.items()}
    torch.save(state, directory / ("lm_bwd.pth" if shape.side == "backward" else "lm_fwd.pth"))
    write_json(directory / "itos.json", list(run.tokenizer.pieces()))
    run.tokenizer.save(directory / TOKENIZER)


def fastai_names(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors of `table` under fastai 2's names; the inverse of `plain_names`."""
    named = {}
    for name, array in tensors.items():
        if name == "encoder.weight":
            named |= dict.fromkeys(("0.encoder.weight", "0.encoder_dp.emb.weight", "1.decoder.weight"), array)
        elif match := _LSTM.fullmatch(name):
            named[f"0.rnns.{match[1]}." + ("weight_hh_l0_raw" if match[2] == "weight_hh_l0" else f"module.{match[2]}")] = array
        else:
            named[f"1.{name}"] = array
    return named


def _read_torch(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a state dict, or of fastai's {"model": state dict, "opt": ...}."""
    torch = require("torch", "pytorch", path.name)
    try:
        entries = zipfile.ZipFile(path).infolist() if zipfile.is_zipfile(path) else []
        if sum(entry.file_size for entry in entries) > path.stat().st_size:  # torch.save does not compress
            raise ValueError("it unpacks to more than its own size")
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file can raise anything
        raise UserError(
            f"{path} does not hold only tensors (a pickled model can run code, so it is not read); save its state_dict():"
            f" {type(error).__name__} {str(error).partition(chr(10))[0]}"
        ) from error
    if isinstance(loaded, Mapping) and isinstance(loaded.get("model"), Mapping):
        loaded = loaded["model"]
    is_named_tensor = lambda name, value: isinstance(name, str) and isinstance(value, torch.Tensor)
    if not isinstance(loaded, Mapping) or not all(is_named_tensor(*item) for item in loaded.items()):
        raise UserError(f"{path}: expected a state dict, a dict of tensors by name")
    return {name: _numpy(torch, name, value, path) for name, value in loaded.items()}


def _numpy(torch, name: str, value, path: Path) -> np.ndarray:
    # NumPy has no bfloat16 of its own.
    exact = value.float() if value.dtype == torch.bfloat16 else value
    try:
        return exact.detach().numpy()
    except (TypeError, RuntimeError) as error:  # sparse, quantized, or without data
        raise UserError(f"{path}: {name} is {value.dtype}, {value.layout}; save it as a dense tensor of floats") from error
