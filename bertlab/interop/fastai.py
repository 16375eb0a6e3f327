"""fastai's AWD-LSTM language models (ULMFiT) as PyTorch state dicts, lm_fwd.pth or lm_bwd.pth as
fastai 2 names tensors, and their words in itos.json, a list in row order. A name with "bwd" in it
means a right-to-left model; pickled objects are never read."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from bertlab.config.defaults import base_config
from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.data.tokenizers.base import find_specials
from bertlab.data.tokenizers.fast import JsonTokenizer
from bertlab.errors import UserError
from bertlab.files import read_json, write_json
from bertlab.interop.base import TOKENIZER, Model, only_file
from bertlab.interop.tensors import Entry, mapped, read, same, write
from bertlab.models.awd_lstm import AwdLstmShape
from bertlab.models.presets import body_shapes, model_shape
from bertlab.train.recipes import add_objectives

EMBEDDING = "0.encoder.weight"
COPIES = ("0.encoder_dp.emb.weight", "1.decoder.weight")  # the embedding in what fastai 2 saves
OLD_COPY = "0.encoder_with_dropout.embed.weight"  # in what fastai 1 saves
ROLES = dict(pad="xxpad", unk="xxunk", cls="xxbos", sep="xxeos")  # fastai's special pieces


def load(source: Path) -> Model:
    """Reads a state dict and its words."""
    path = only_file(source, "*.pth") if source.is_dir() else source
    tensors = plain_names(read_torch(path), path)
    layers = len([name for name in tensors if name.endswith("weight_ih_l0")])
    if EMBEDDING not in tensors or not layers:
        raise UserError(f"{path} is not a state dict of fastai's AWD-LSTM: no encoder or rnns")
    rows, width = tensors[EMBEDDING].shape
    backward = "bwd" in path.stem.lower()
    config = base_config()
    config.data.format = "stream"
    config.model.update(
        family="awd_lstm",
        size="original",
        direction="right-to-left" if backward else "left-to-right",
        layers=layers,
        width=width,
        hidden=len(tensors["0.rnns.0.module.bias_hh_l0"]) // 4,
        output_bias="1.decoder.bias" in tensors,
    )
    add_objectives(config, "rtl" if backward else "ltr")
    tokenizer = read_words(path.parent)
    if tokenizer.vocab_size != rows:
        raise UserError(f"{path.parent}: {tokenizer.vocab_size} words, but {rows} embeddings")
    shapes = {"body": body_shapes(model_shape(config.model, rows))}
    return Model(config, read(table(layers), tensors, shapes, path), tokenizer)


def save(model: Model, directory: Path) -> None:
    """Writes a state dict as fastai's `Learner.save(with_opt=False)` does, and itos.json."""
    shape = model_shape(model.config.model, model.tokenizer.vocab_size)
    if not isinstance(shape, AwdLstmShape):
        raise UserError(f"config.model.family={model.config.model.family!r} is not an AWD-LSTM")
    import torch

    body = {name: tree for name, tree in model.params["body"].items() if name != "pooler"}
    tensors = write(table(shape.layers), {"body": body})
    tensors |= dict.fromkeys(COPIES, tensors[EMBEDDING])
    state = {name: torch.from_numpy(array.copy()) for name, array in tensors.items()}
    directory.mkdir(parents=True, exist_ok=True)
    torch.save(state, directory / ("lm_bwd.pth" if shape.side == "backward" else "lm_fwd.pth"))
    write_json(directory / "itos.json", model.tokenizer.pieces())


def table(layers: int) -> list[Entry]:
    """The parameters by their names in fastai 2."""
    entries = [same(EMBEDDING, "body/token_embedding"), same("1.decoder.bias", "body/output/bias")]
    names = {
        "module.weight_ih_l0": "input_kernel",
        "weight_hh_l0_raw": "recurrent_kernel",
        "module.bias_ih_l0": "input_bias",
        "module.bias_hh_l0": "recurrent_bias",
    }
    for layer in range(layers):
        for theirs, ours in names.items():
            pair = f"0.rnns.{layer}.{theirs}", f"body/layer_{layer}/{ours}"
            entries.append(mapped(*pair, split, join))
    return entries


def split(array):
    """torch's [4F, D] or [4F], the four gates one after another, -> [D, 4, F] or [4, F]."""
    return array.T.reshape(*array.shape[1:], 4, -1)


def join(array):
    """The inverse."""
    return array.reshape(*array.shape[:-2], -1).T


def plain_names(tensors: Mapping[str, np.ndarray], source: Path) -> dict[str, np.ndarray]:
    """The tensors under the names of `table`; an encoder saved by itself lacks the "0."."""
    prefix = "" if EMBEDDING in tensors else "0."
    named = {f"{prefix}{name}": array for name, array in tensors.items()}
    for name in (*COPIES, OLD_COPY):
        if not np.array_equal(named.pop(name, named.get(EMBEDDING)), named.get(EMBEDDING)):
            raise UserError(f"{source}: {name} differs from {EMBEDDING}; bertlab ties them")
    # weight_hh_l0_raw after dropout in the last batch.
    return {name: array for name, array in named.items() if not name.endswith("weight_hh_l0")}


def read_torch(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a state dict, or of fastai's {"model": state dict, "opt": ...}."""
    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
        state = loaded.get("model", loaded)
        return {name: value.float().numpy() for name, value in state.items()}
    except Exception as error:  # a pickled model, other objects, or not a torch file
        raise UserError(f"{path} does not hold tensors by name; save its state_dict()") from error


def read_words(directory: Path) -> Tokenizer:
    """bertlab's own tokenizer of an export, otherwise one of the words in itos.json."""
    if (directory / TOKENIZER).is_dir():
        return load_tokenizer(directory / TOKENIZER)
    path = directory / "itos.json"
    if not path.is_file():
        raise UserError(f"{directory} has no itos.json, a list of the words in row order")
    return word_tokenizer(read_json(path), path)


def word_tokenizer(pieces: Sequence[str], source: Path) -> Tokenizer:
    """A tokenizer of words that are rows of an embedding: texts are split at spaces, and xxbos
    precedes them, as in fastai."""
    ids = {piece: index for index, piece in enumerate(pieces)}
    if len(ids) < len(pieces):
        raise UserError(f"{source} lists a word twice")
    special_ids = find_specials(ids, ROLES, source)
    backend = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=pieces[special_ids["unk"]]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens([pieces[i] for i in {*special_ids.values()} - {None}])
    if "xxbos" in ids:
        backend.post_processor = processors.TemplateProcessing(
            single="xxbos $A", special_tokens=[("xxbos", ids["xxbos"])]
        )
    return JsonTokenizer(backend.to_str(), special_ids)
