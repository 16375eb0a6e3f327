"""AWD-LSTM language models as PyTorch state dicts: salesforce/awd-lstm-lm's and fastai's (ULMFiT).

The source is a .pth or .pt file, or a directory with one; only tensors are read, never pickled
objects. Its words are beside it in the order of rows, a list in itos.json. A name with "bwd" in it
means a right-to-left model. An export is lm_fwd.pth or lm_bwd.pth as fastai 2 names tensors, and
itos.json.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from bertlab.config.defaults import base_config
from bertlab.config.recipes import add_objectives
from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.data.tokenizers.base import SPECIALS, find_specials
from bertlab.data.tokenizers.fast import JsonTokenizer
from bertlab.data.tokenizers.words import WordsTokenizer
from bertlab.errors import UserError
from bertlab.files import read_json, write_json
from bertlab.interop.base import TOKENIZER, Model
from bertlab.interop.tensors import Entry, mapped, read, same, write
from bertlab.models.awd_lstm import AwdLstmShape
from bertlab.models.presets import body_shapes, model_shape

LSTM = re.compile(r"(?:0\.)?rnns\.(\d+)\.(?:module\.)?((?:weight|bias)_(?:ih|hh)_l0)(_raw)?")
EMBEDDINGS = re.compile(
    r"(0\.)?encoder\.weight|(0\.)?encoder_(with_dropout\.embed|dp\.emb)\.weight"
    r"|(1\.)?decoder\.weight"
)
ROLES = dict(pad="xxpad", unk="xxunk", cls="xxbos", sep="xxeos")
"""What fastai calls its special pieces; awd-lstm-lm has <unk> and <eos>."""


def load(source: Path) -> Model:
    """Reads a state dict and its words."""
    path = source
    if source.is_dir():
        found = [path for path in source.iterdir() if path.suffix in (".pth", ".pt")]
        if len(found) != 1:
            raise UserError(f"{source} must have one .pth or .pt file; it has {len(found)}")
        path = found[0]
    tensors = plain_names(read_torch(path), path)
    layers = len([name for name in tensors if name.endswith("weight_ih_l0")])
    if "encoder.weight" not in tensors or not layers:
        raise UserError(f"{path} is no state dict of an AWD-LSTM: it lacks encoder or rnns")
    rows, width = tensors["encoder.weight"].shape
    backward = "bwd" in path.stem.lower()
    config = base_config()
    config.data.format = "stream"
    config.model.update(
        family="awd_lstm",
        size="original",
        direction="right-to-left" if backward else "left-to-right",
        layers=layers,
        width=width,
        hidden=tensors["rnns.0.weight_hh_l0"].shape[1],
        output_bias="decoder.bias" in tensors,
    )
    add_objectives(config, "rtl" if backward else "ltr")
    tokenizer = read_words(path.parent)
    if tokenizer.vocab_size != rows:
        raise UserError(f"{path.parent}: {tokenizer.vocab_size} words, but {rows} embeddings")
    shapes = {"body": body_shapes(model_shape(config.model, rows))}
    return Model(config, read(table(layers), tensors, shapes, path), tokenizer)


def save(model: Model, directory: Path) -> None:
    """Writes a state dict as fastai's `Learner.save(with_opt=False)` does, and itos.json."""
    torch = require_torch()
    shape = model_shape(model.config.model, model.tokenizer.vocab_size)
    if not isinstance(shape, AwdLstmShape):
        raise UserError(f"config.model.family={model.config.model.family!r} is no AWD-LSTM")
    body = {name: tree for name, tree in model.params["body"].items() if name != "pooler"}
    tensors = fastai_names(write(table(shape.layers), {"body": body}))
    state = {name: torch.from_numpy(array.copy()) for name, array in tensors.items()}
    directory.mkdir(parents=True, exist_ok=True)
    torch.save(state, directory / ("lm_bwd.pth" if shape.side == "backward" else "lm_fwd.pth"))
    write_json(directory / "itos.json", model.tokenizer.pieces())


def table(layers: int) -> list[Entry]:
    """The parameters, under the names of `plain_names`."""
    entries = [
        same("encoder.weight", "body/token_embedding"),
        same("decoder.bias", "body/output/bias"),
    ]
    for layer in range(layers):
        for theirs, ours in (("ih", "input"), ("hh", "recurrent")):
            # torch has out x in, and the four gates one after another.
            entries.append(
                mapped(
                    f"rnns.{layer}.weight_{theirs}_l0",
                    f"body/layer_{layer}/{ours}_kernel",
                    lambda array: array.T.reshape(array.shape[1], 4, -1),
                    lambda array: array.reshape(len(array), -1).T,
                )
            )
            entries.append(
                mapped(
                    f"rnns.{layer}.bias_{theirs}_l0",
                    f"body/layer_{layer}/{ours}_bias",
                    lambda array: array.reshape(4, -1),
                    lambda array: array.reshape(-1),
                )
            )
    return entries


def plain_names(tensors: Mapping[str, np.ndarray], source: Path) -> dict[str, np.ndarray]:
    """The tensors under the names of `table`."""
    plain = {}
    raw = {match[1] for name in tensors if (match := LSTM.fullmatch(name)) and match[3]}
    for name, array in tensors.items():
        match = LSTM.fullmatch(name)
        if match and match[2] == "weight_hh_l0" and match[1] in raw and not match[3]:
            continue  # what dropout left of weight_hh_l0_raw in the last batch
        if match:
            name = f"rnns.{match[1]}.{match[2]}"
        elif EMBEDDINGS.fullmatch(name):
            name = "encoder.weight"
        name = name.removeprefix("1.")
        if not np.array_equal(plain.setdefault(name, array), array):
            raise UserError(f"{source}: two tensors differ that must be the same, {name}")
    return plain


def fastai_names(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inverse, under fastai 2's names."""
    named = {}
    for name, array in tensors.items():
        copies = [f"1.{name}"]
        if name == "encoder.weight":
            copies = ["0.encoder.weight", "0.encoder_dp.emb.weight", "1.decoder.weight"]
        elif match := LSTM.fullmatch(name):
            raw = match[2] == "weight_hh_l0"
            copies = [f"0.rnns.{match[1]}." + ("weight_hh_l0_raw" if raw else f"module.{match[2]}")]
        named |= dict.fromkeys(copies, array)
    return named


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a state dict, or of fastai's {"model": state dict, "opt": ...}."""
    torch = require_torch()
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a pickled model, or no file of torch's
        raise UserError(f"{path} does not hold only tensors; save its state_dict()") from error
    loaded = loaded.get("model", loaded) if isinstance(loaded, dict) else {}
    if not loaded or not all(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise UserError(f"{path} is no state dict, tensors by name")
    return {name: value.float().numpy() for name, value in loaded.items()}


def require_torch():
    """torch, which bertlab does not need otherwise."""
    try:
        import torch
    except ImportError as error:
        raise UserError("fastai's files need torch: pip install 'bertlab[pytorch]'") from error
    return torch


def read_words(directory: Path) -> Tokenizer:
    """bertlab's own tokenizer of an export, otherwise one of the words in itos.json."""
    if (directory / TOKENIZER).is_dir():
        return load_tokenizer(directory / TOKENIZER)
    path = directory / "itos.json"
    if not path.is_file():
        raise UserError(f"{directory} has no itos.json, a list of the words in order of rows")
    return word_tokenizer(read_json(path), path)


def word_tokenizer(pieces: Sequence[str], source: Path) -> Tokenizer:
    """A tokenizer of words that are rows of an embedding.

    A vocabulary made elsewhere is of text with spaces between tokens, and is split there.
    """
    ids = {piece: index for index, piece in enumerate(pieces)}
    if len(ids) < len(pieces):
        raise UserError(f"{source} has a word twice")
    if all(special in ids for special in SPECIALS):
        return WordsTokenizer(pieces, lowercase=False)
    special_ids = find_specials(ids, ROLES, source)
    unknown = pieces[special_ids["unk"]]
    backend = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=unknown))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([pieces[i] for i in {*special_ids.values()} - {None}])
    begin = [name for name in ("xxbos", "<s>") if name in ids]
    end = [name for name in ("xxeos", "<eos>", "</s>") if name in ids]
    backend.post_processor = processors.TemplateProcessing(
        single=[*begin[:1], "$A", *end[:1]],
        special_tokens=[(name, ids[name]) for name in begin[:1] + end[:1]],
    )
    return JsonTokenizer(backend.to_str(), special_ids)
