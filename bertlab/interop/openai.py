"""OpenAI's first GPT (finetune-transformer-lm, its directory model/).

params_0.npy to params_9.npy are ten parts of one flat array; params_shapes.json lists the shapes of what lies in it, in
this order: position embeddings, token embeddings, then twelve arrays a layer. Its train.py builds heads of 64. The
vocabulary is encoder_bpe_40000.json with vocab_40000.bpe. It goes out again as transformers' OpenAI GPT.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertlab.errors import UserError
from bertlab.files import read_json
from bertlab.interop.base import Entry, Imported, body_shapes, read
from bertlab.interop.transformer import (
    fit_vocabulary,
    joint_bias,
    joint_kernel,
    out_kernel,
    read_tokenizer,
    require_directory,
    transformer_config,
)

_HEAD_WIDTH = 64
_LAYER = (
    *("attn/c_attn/w", "attn/c_attn/b", "attn/c_proj/w", "attn/c_proj/b", "ln_1/g", "ln_1/b"),
    *("mlp/c_fc/w", "mlp/c_fc/b", "mlp/c_proj/w", "mlp/c_proj/b", "ln_2/g", "ln_2/b"),
)


def table(heads: int) -> list[Entry]:
    """OpenAI's arrays, whose kernels are convolutions of width 1: [1, in, out]."""
    layer, blocks = "h{i}", "body/blocks"
    kernel = lambda theirs, ours: Entry((theirs,), ours, lambda arrays: arrays[0][0], lambda array: [array[None]])
    return [
        Entry(("positions",), "body/position_embedding"),
        Entry(("tokens",), "body/token_embedding"),
        joint_kernel(f"{layer}/attn/c_attn/w", f"{blocks}/attention/qkv_kernel", heads, axes_before=1),
        joint_bias(f"{layer}/attn/c_attn/b", f"{blocks}/attention/qkv_bias", heads),
        out_kernel(f"{layer}/attn/c_proj/w", f"{blocks}/attention/out_kernel", heads, axes_before=1),
        Entry((f"{layer}/attn/c_proj/b",), f"{blocks}/attention/out_bias"),
        Entry((f"{layer}/ln_1/g",), f"{blocks}/attention_norm/scale"),
        Entry((f"{layer}/ln_1/b",), f"{blocks}/attention_norm/bias"),
        kernel(f"{layer}/mlp/c_fc/w", f"{blocks}/up/kernel"),
        Entry((f"{layer}/mlp/c_fc/b",), f"{blocks}/up/bias"),
        kernel(f"{layer}/mlp/c_proj/w", f"{blocks}/down/kernel"),
        Entry((f"{layer}/mlp/c_proj/b",), f"{blocks}/down/bias"),
        Entry((f"{layer}/ln_2/g",), f"{blocks}/feed_forward_norm/scale"),
        Entry((f"{layer}/ln_2/b",), f"{blocks}/feed_forward_norm/bias"),
    ]


def load(source: Path) -> Imported:
    """Reads the directory model/ of finetune-transformer-lm.

    Raises:
        UserError: a part is missing, or the parts are not as long or of such shapes as they must be.
    """
    require_directory(source, "params_0.npy to params_9.npy, params_shapes.json and the vocabulary")
    parts = tuple(f"params_{part}.npy" for part in range(10))
    shapes_path = source / "params_shapes.json"
    shapes = _shapes(shapes_path)
    names = _names(len(shapes), shapes_path)
    if missing := [name for name in parts if not (source / name).is_file()]:
        raise UserError(f"{source} lacks {', '.join(missing)}; the weights are the ten files params_0.npy to params_9.npy")
    flat = np.concatenate([_array(source / name).reshape(-1) for name in parts])
    sizes = [int(np.prod(shape)) for shape in shapes]
    if sum(sizes) != flat.size:
        raise UserError(f"{source}: params_*.npy hold {flat.size} numbers, and {shapes_path.name} lists {sum(sizes)}")
    arrays = np.split(flat, np.cumsum(sizes)[:-1])
    tensors = {name: array.reshape(shape) for name, array, shape in zip(names, arrays, shapes)}
    if len(shapes[0]) != 2 or len(shapes[1]) != 2 or "h0/mlp/c_fc/w" not in tensors or shapes[0][1] % _HEAD_WIDTH:
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
    config = transformer_config("gpt", model, "ltr")
    params = read(table(model["heads"]), tensors, body_shapes(config, vocab_size), source)
    tokenizer = fit_vocabulary(read_tokenizer(source), vocab_size, source)
    files = (*parts, "params_shapes.json", "encoder_bpe_40000.json", "vocab_40000.bpe")
    return Imported(config, params, tokenizer, files, len(tensors))


def _shapes(path: Path) -> list[tuple[int, ...]]:
    shapes = read_json(path)
    is_shape = lambda shape: isinstance(shape, list) and all(type(size) is int and size > 0 for size in shape)
    if not isinstance(shapes, list) or not all(map(is_shape, shapes)):
        raise UserError(f"{path}: expected a list of shapes, each a list of positive whole numbers")
    return [tuple(shape) for shape in shapes]


def _array(path: Path) -> np.ndarray:
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise UserError(f"{path} cannot be read as a NumPy array ({error}); download it again") from None
    if not isinstance(array, np.ndarray):
        raise UserError(f"{path} is an archive of arrays; expected one array, as numpy.save writes it")
    return array


def _names(count: int, path: Path) -> Sequence[str]:
    """A name for each array, in the order in which they lie."""
    layers, left = divmod(count - 2, len(_LAYER))
    if left or layers < 1:
        raise UserError(f"{path} lists {count} shapes; expected two embeddings and {len(_LAYER)} a layer")
    return ["positions", "tokens", *(f"h{layer}/{name}" for layer in range(layers) for name in _LAYER)]
