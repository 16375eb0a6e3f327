"""What the published transformers share: how their attention kernels lie, bertlab's config for one, and their files' checks.

Letters: D model width, H heads, K head width; a matrix is in × out, or out × in where it comes from torch's Linear.
"""

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tokenizers
from ml_collections import ConfigDict

from bertlab.config import add_objectives, base_config
from bertlab.data.tokenizers import Gpt1Tokenizer, JsonTokenizer, Tokenizer, WordPieceTokenizer, load_tokenizer
from bertlab.errors import UserError
from bertlab.files import read_json
from bertlab.interop.base import Entry
from bertlab.models.presets import FAMILIES

_QKV = ("query", "key", "value")


def three_kernels(theirs: str, ours: str, heads: int, out_first: bool) -> Entry:
    """Query, key and value kernels [D, H·K] (or [H·K, D]) and ours, [D, 3, H, K]; `theirs` has "{part}"."""
    turn = (lambda array: array.T) if out_first else (lambda array: array)

    def to_ours(arrays):
        joined = np.stack([turn(array) for array in arrays], axis=1)
        return joined.reshape(joined.shape[0], 3, heads, -1)

    def to_theirs(array):
        return [turn(array[:, part].reshape(array.shape[0], -1)) for part in range(3)]

    return Entry(_parts(theirs), ours, to_ours, to_theirs)


def three_biases(theirs: str, ours: str, heads: int) -> Entry:
    """Query, key and value biases [H·K] and ours, [3, H, K]; `theirs` has "{part}"."""
    to_ours = lambda arrays: np.stack(arrays).reshape(3, heads, -1)
    return Entry(_parts(theirs), ours, to_ours, lambda array: list(array.reshape(3, -1)))


def joint_kernel(theirs: str, ours: str, heads: int, axes_before: int = 0) -> Entry:
    """Query, key and value in one kernel [D, 3·H·K] (after `axes_before` axes of length 1) and ours, [D, 3, H, K]."""
    before = (1,) * axes_before
    to_ours = lambda arrays: arrays[0].reshape(arrays[0].shape[axes_before], 3, heads, -1)
    return Entry((theirs,), ours, to_ours, lambda array: [array.reshape(*before, array.shape[0], -1)])


def joint_bias(theirs: str, ours: str, heads: int) -> Entry:
    """Query, key and value in one bias [3·H·K] and ours, [3, H, K]."""
    return Entry((theirs,), ours, lambda arrays: arrays[0].reshape(3, heads, -1), lambda array: [array.reshape(-1)])


def out_kernel(theirs: str, ours: str, heads: int, *, out_first: bool = False, axes_before: int = 0) -> Entry:
    """The kernel after attention, [H·K, D] (or [D, H·K]; after `axes_before` axes of length 1), and ours, [H, K, D]."""
    turn = (lambda array: array.T) if out_first else (lambda array: array)
    before = (1,) * axes_before
    to_ours = lambda arrays: turn(arrays[0]).reshape(heads, -1, turn(arrays[0]).shape[-1])
    return Entry((theirs,), ours, to_ours, lambda array: [turn(array.reshape(*before, -1, array.shape[-1]))])


def _parts(name: str) -> tuple[str, ...]:
    return tuple(name.replace("{part}", part) for part in _QKV)


def transformer_config(family: str, model: Mapping[str, Any], objectives: str) -> ConfigDict:
    """A whole config for an imported transformer.

    Args:
        family: "bert" or "gpt".
        model: keys of `config.model`, with all of the shape's numbers.
        objectives: names joined by "+", or "".
    """
    config = base_config()
    config.model.family = family
    config.model.size = _nearest_size(family, model)
    config.model.update(model)
    config.data.seq_len = min(config.data.seq_len, model["max_positions"])
    if family == "gpt" or model.get("segments") == 1:
        config.data.format = "full_sentences"
    if objectives:
        add_objectives(config, objectives)
    return config


def _nearest_size(family: str, model: Mapping[str, Any]) -> str:
    """The named size that is nearest in layers and width among those with the norms in the same place."""
    sizes = {name: {**FAMILIES[family].values, **values} for name, values in FAMILIES[family].sizes.items()}
    placed = {name: size for name, size in sizes.items() if size["norm_placement"] == model.get("norm_placement", "post")}
    distance = lambda size: sum(abs(math.log(size[key] / model[key])) for key in ("layers", "width"))
    return min(placed, key=lambda name: distance(placed[name]))


def require_directory(source: Path, expected: str) -> None:
    """Refuses a source that is a file; `expected` says what the directory holds."""
    if not source.is_dir():
        raise UserError(f"{source} is a file; give the directory with {expected}")


def read_object(path: Path) -> dict[str, Any]:
    """Reads a JSON object. Raises: UserError: the file is missing, damaged, or holds another value."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path} holds {json.dumps(value)[:40]}; expected a JSON object, {{...}}")
    return value


def read_count(settings: Mapping[str, Any], key: str, path: Path, default: int | None = None) -> int:
    """A positive whole number from a config. Raises: UserError: it is something else, or missing without a default."""
    value = settings.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{path}: {key}={value!r} must be a positive whole number")
    return value


def read_float(settings: Mapping[str, Any], key: str, path: Path, default: float | None = None) -> float:
    """A number from a config, 0 or more. Raises: UserError: it is something else, or missing without a default."""
    value = settings.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise UserError(f"{path}: {key}={value!r} must be a number, 0 or more")
    return float(value)


def read_dropout(settings: Mapping[str, Any], keys: Sequence[str], path: Path, default: float | None = None) -> float:
    """The first of a config's dropout rates, that of hidden states, which bertlab has for all; says so where they differ.

    Raises:
        UserError: one is no number, or the first is not below 1.
    """
    rates = {key: read_float(settings, key, path, default) for key in keys}
    if rates[keys[0]] >= 1:
        raise UserError(f"{path}: {keys[0]}={rates[keys[0]]} must be below 1")
    if len(set(rates.values())) > 1:
        described = ", ".join(f"{key}={rate}" for key, rate in rates.items())
        print(f"{path}: {described}; bertlab has one dropout, here {keys[0]}'s (it matters in training only)", flush=True)
    return rates[keys[0]]


def read_tokenizer(path: Path, *, lowercase: bool | None = None) -> Tokenizer:
    """`load_tokenizer`, which also names a file that is not UTF-8."""
    try:
        return load_tokenizer(path, lowercase=lowercase)
    except UnicodeDecodeError as error:
        files = (
            [path] if path.is_file() else sorted(file for file in path.iterdir() if file.suffix in (".txt", ".json", ".bpe"))
        )
        name = next((file for file in files if file.read_bytes() == error.object), path)
        raise UserError(f"{name}: expected a vocabulary in UTF-8, and byte {error.start} is not; save it as UTF-8") from None


def fit_vocabulary(tokenizer: Tokenizer, vocab_size: int, source: Path) -> Tokenizer:
    """A tokenizer with a piece for each row of the embedding.

    Embeddings often have a few rows more than there are pieces, to be a multiple of 64, say. Those get pieces "<unused_ID>",
    which no text is split into, so that they stay and go out again; says so.

    Args:
        tokenizer: of kind "wordpiece", "gpt1" or "json".
        vocab_size: V, rows of the embedding.
        source: for messages.

    Raises:
        UserError: the tokenizer has more pieces than there are rows, or cannot get more.
    """
    pieces = tokenizer.pieces()
    if len(pieces) == vocab_size:
        return tokenizer
    if len(pieces) > vocab_size:
        raise UserError(
            f"{source}: the tokenizer has {len(pieces)} pieces and the model {vocab_size};"
            " they must be those of one model, so check that the files belong together"
        )
    unused = [f"<unused_{index}>" for index in range(len(pieces), vocab_size)]
    if tokenizer.kind == "wordpiece":
        fitted = WordPieceTokenizer(pieces + unused, tokenizer.lowercase)
    elif tokenizer.kind == "gpt1":
        fitted = Gpt1Tokenizer(pieces + unused, tokenizer.merges())
    else:
        fitted = _extended(tokenizer, unused)
    if fitted.pieces() != pieces + unused or not set(unused).isdisjoint(pieces):
        raise UserError(
            f"{source}: the tokenizer has {len(pieces)} pieces and the model {vocab_size}, and pieces for the other rows cannot"
            " be added; add them to tokenizer.json, or cut the embedding to the tokenizer's size with resize_token_embeddings"
        )
    print(
        f"{source}: the tokenizer has {len(pieces)} pieces and the model {vocab_size}; rows {len(pieces)} to {vocab_size - 1}"
        " are kept under names that no text has",
        flush=True,
    )
    return fitted


def _extended(tokenizer: Tokenizer, names: list[str]) -> JsonTokenizer:
    """With more special pieces, which are never recognised in text."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        file = Path(folder) / "tokenizer.json"
        backend = tokenizers.Tokenizer.from_file(str(file))
        backend.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in names])
        backend.save(str(file))
        return load_tokenizer(folder)


def nsp_shapes(width: int) -> dict:
    """Shapes of the next-sentence head's parameters, with width D."""
    shape = lambda *axes: jax.ShapeDtypeStruct(axes, np.float32)
    return {"heads_nsp": {"kernel": shape(width, 2), "bias": shape(2)}}
