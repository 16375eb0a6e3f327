"""OpenAI's first GPT (finetune-transformer-lm, its directory model/).

params_0.npy to params_9.npy are ten parts of one flat array. params_shapes.json lists the shapes of the arrays in it: position
embeddings, token embeddings, then twelve arrays for each layer. Attention heads are 64 wide, as in train.py. The vocabulary is
encoder_bpe_40000.json with vocab_40000.bpe. Such a model is exported as transformers' OpenAI GPT.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertlab.data.arrays import read_array
from bertlab.data.tokenizers import load_tokenizer
from bertlab.errors import UserError
from bertlab.files import read_json
from bertlab.interop.base import Entry, Imported
from bertlab.interop.transformer import Style, assembled, gpt_table, require_directory

_HEAD_WIDTH = 64
_LAYER = (
    *("attn/c_attn/w", "attn/c_attn/b", "attn/c_proj/w", "attn/c_proj/b", "ln_1/g", "ln_1/b"),
    *("mlp/c_fc/w", "mlp/c_fc/b", "mlp/c_proj/w", "mlp/c_proj/b", "ln_2/g", "ln_2/b"),
)


_STYLE = Style("/", "w", "b", "g", "b", "", lambda array: array[0], lambda array: array[None])


def table(heads: int) -> list[Entry]:
    """OpenAI's arrays. Kernels are convolutions of width 1: [1, in, out]."""
    return gpt_table(_STYLE, heads, "h{i}", "tokens", "positions")


def load(source: Path) -> Imported:
    """Reads the directory model/ of finetune-transformer-lm.

    Raises:
        UserError: a part is missing, or the parts do not have the listed sizes.
    """
    require_directory(source, "params_0.npy to params_9.npy, params_shapes.json and the vocabulary")
    parts = tuple(f"params_{part}.npy" for part in range(10))
    shapes_path = source / "params_shapes.json"
    shapes = _shapes(shapes_path)
    names = _names(len(shapes), shapes_path)
    if missing := [name for name in parts if not (source / name).is_file()]:
        raise UserError(f"{source} lacks {', '.join(missing)}; download all ten files, params_0.npy to params_9.npy")
    flat = np.concatenate([_array(source / name).reshape(-1) for name in parts])
    sizes = [math.prod(shape) for shape in shapes]
    if sum(sizes) != flat.size:
        raise UserError(f"{source}: params_*.npy hold {flat.size} numbers, and {shapes_path.name} lists {sum(sizes)}")
    arrays = np.split(flat, np.cumsum(sizes)[:-1])
    tensors = {name: array.reshape(shape) for name, array, shape in zip(names, arrays, shapes)}
    if len(shapes[0]) != 2 or len(shapes[1]) != 2 or not tensors["h0/mlp/c_fc/w"].ndim or shapes[0][1] % _HEAD_WIDTH:
        raise UserError(
            f"{shapes_path}: expected embeddings [512, D] and [V, D] with D a multiple of {_HEAD_WIDTH}, then layers"
        )
    (positions, width), (vocab_size, _) = shapes[:2]
    model = {
        "layers": (len(shapes) - 2) // len(_LAYER),
        "width": width,
        "heads": width // _HEAD_WIDTH,
        "hidden": tensors["h0/mlp/c_fc/w"].shape[-1],
        "max_positions": positions,
        "activation": "gelu_tanh",
        "dropout": 0.1,
        "init_stddev": 0.02,
        "epsilon": 1e-5,
        "norm_placement": "post",
        "final_norm": False,
    }
    imported = assembled("gpt", model, table(model["heads"]), tensors, source, load_tokenizer(source), vocab_size)
    files = (*parts, "params_shapes.json", "encoder_bpe_40000.json", "vocab_40000.bpe")
    return dataclasses.replace(imported, files=files, tensors=len(tensors))


def _shapes(path: Path) -> list[tuple[int, ...]]:
    shapes = read_json(path)
    is_shape = lambda shape: isinstance(shape, list) and all(type(size) is int and size > 0 for size in shape)
    if not isinstance(shapes, list) or not all(map(is_shape, shapes)):
        raise UserError(f"{path}: expected a list of shapes, each a list of positive whole numbers")
    return [tuple(shape) for shape in shapes]


def _array(path: Path) -> np.ndarray:
    array = read_array(path, "download it again")
    if array.dtype.kind != "f":
        raise UserError(f"{path} holds {array.dtype}; expected floats, so download it again")
    return array


def _names(count: int, path: Path) -> Sequence[str]:
    """A name for each array, in the order of the file."""
    layers, left = divmod(count - 2, len(_LAYER))
    if left or layers < 1:
        raise UserError(f"{path} lists {count} shapes; expected two embeddings and {len(_LAYER)} a layer")
    return ["positions", "tokens", *(f"h{layer}/{name}" for layer in range(layers) for name in _LAYER)]
