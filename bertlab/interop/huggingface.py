"""Directories of Hugging Face transformers: config.json, model.safetensors, a tokenizer. Bodies
that no class of transformers computes exactly get a `modeling_bertlab.py` (`kinds.OWN`)."""

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors.numpy
import tokenizers

from bertlab.config.defaults import base_config
from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.data.tokenizers.fast import JsonTokenizer
from bertlab.data.tokenizers.wordpiece import WordPieceTokenizer
from bertlab.errors import UserError, require_choice
from bertlab.evals.scoring import scoring
from bertlab.files import read_json, write_json
from bertlab.interop.base import TOKENIZER, Model
from bertlab.interop.fast_tokenizer import save_fast_tokenizer
from bertlab.interop.kinds import KINDS, Kind
from bertlab.interop.tensors import Entry, read, write
from bertlab.models.presets import FAMILIES, body_shapes, model_shape
from bertlab.models.transformer import TransformerShape
from bertlab.objectives.diffusion import MaskedDiffusion
from bertlab.train.recipes import add_objectives

MODELING = "modeling_bertlab.py"
CLASSES = {
    "AutoConfig": "BertlabConfig",
    "AutoModel": "BertlabModel",
    "AutoModelForMaskedLM": "BertlabForMaskedLM",
    "AutoModelForCausalLM": "BertlabForCausalLM",
}
NO_MASK = -1e4
"""A bias that gives a token probability 0, in float16 too."""


def load(source: Path, kinds: Mapping[str, Kind] = KINDS) -> Model:
    """Reads a directory of one of these kinds."""
    path = source / "config.json"
    if not path.is_file():
        raise UserError(f"{source} has no config.json; give a directory that transformers wrote")
    settings = read_json(path)
    model_type = settings.get("model_type")
    require_choice(f"{path}: model_type", model_type, kinds)
    own = source / TOKENIZER
    tokenizer = load_tokenizer(own if own.is_dir() else source)
    return assemble(kinds[model_type], settings, read_safetensors(source), tokenizer, source)


def assemble(
    kind: Kind,
    settings: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    tokenizer: Tokenizer,
    source: Path,
) -> Model:
    """A model from the content of config.json and tensors by their published names; the tokenizer's
    pieces may be fewer than the embedding's rows. `source` is for messages."""
    values = kind.read(settings)
    table = kind.table(values["heads"])
    tensors = canonical(tensors, kind, table, values["tied"], source)
    found = {entry.ours[0] for entry in table if entry.names((1,))[0][0] in tensors}
    architecture = (settings.get("architectures") or [""])[0]
    predicts = any(name.startswith("body/output/") for name in found)
    predicts |= architecture.endswith(("LMHeadModel", "ForCausalLM", "ForMaskedLM"))
    pairs, pools = "heads_nsp/kernel" in found, "body/pooler/kernel" in found
    directions = {"left-to-right": "ltr", "right-to-left": "rtl"}
    names = [directions.get(values["direction"], "mlm")] * predicts + ["nsp"] * pairs
    family = settings.get("family", kind.family)
    sizes = FAMILIES[family].sizes
    size = min(sizes, key=lambda name: abs(sizes[name]["width"] - values["width"]))
    config = base_config()
    config.model.update(family=family, size=size, **values)
    config.data.seq_len = min(config.data.seq_len, values["max_positions"])
    config.data.format = "segment_pair" if pairs else "full_sentences"
    # `save` writes the objectives' own settings.
    for name, entry in settings.get("objectives", {key: {} for key in names}).items():
        add_objectives(config, entry.get("implementation", name))
        config.objectives[name].update({k: v for k, v in entry.items() if v is not None})
    shape = model_shape(config.model, settings["vocab_size"])
    shapes = {"body": body_shapes(shape, predicts=predicts, pools=pools)}
    if pairs:
        own = {"kernel": (shape.width, 2), "bias": (2,)}
        shapes["heads_nsp"] = {k: jax.ShapeDtypeStruct(v, np.float32) for k, v in own.items()}
    params = read(table, tensors, shapes, source)
    return Model(config, params, fit_vocabulary(tokenizer, shape.vocab_size, source))


def read_safetensors(source: Path) -> dict[str, np.ndarray]:
    """All tensors of model.safetensors, or of its parts."""
    tensors = {}
    for path in source.glob("model*.safetensors"):
        tensors |= safetensors.numpy.load_file(path)
    if not tensors:
        raise UserError(
            f"{source} has no model.safetensors; a pickle (pytorch_model.bin) can run code:"
            " convert one that you trust with transformers' from_pretrained and save_pretrained"
        )
    return tensors


def canonical(
    tensors: Mapping[str, np.ndarray], kind: Kind, table: Sequence[Entry], tied: bool, source: Path
) -> dict[str, np.ndarray]:
    """Tensors under the table's names: without buffers, copies, and names of older files."""
    heads = {name for entry in table for name in entry.theirs if not name.startswith(kind.prefix)}
    heads.add(kind.tied[1])
    bare = not any(name.startswith(kind.prefix) for name in tensors)
    named = {}
    for name, array in tensors.items():
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        name = name.replace("LayerNorm.beta", "LayerNorm.bias")
        if name.startswith(("cls.", "lm_head.")):
            name = name.replace(".decoder.bias", ".bias")
        name = kind.prefix + name if bare and name not in heads else name
        if not re.fullmatch(kind.buffers, name):
            named[name] = array
    embeddings, output = kind.tied
    if tied and output in named:
        array = named.pop(output)
        if not np.array_equal(named.setdefault(embeddings, array), array):
            raise UserError(f"{source}: {output} differs from {embeddings}; bertlab ties them")
    # ModernBERT's first layer lacks a norm that bertlab has but does not read.
    for name in [name for name in named if name.startswith("model.layers.0.mlp_norm.")]:
        added = name.replace("mlp_norm", "attn_norm")
        named[added] = np.full_like(named[name], name.endswith("weight"))
    return named


def fit_vocabulary(tokenizer: Tokenizer, vocab_size: int, source: Path) -> Tokenizer:
    """Extends a tokenizer to one piece per row, with "<unused_ID>", which no text has: embeddings
    often have more rows, to make a multiple of 64."""
    pieces = tokenizer.pieces()
    unused = [f"<unused_{index}>" for index in range(len(pieces), vocab_size)]
    if len(pieces) > vocab_size or (unused and tokenizer.kind not in ("wordpiece", "json")):
        raise UserError(f"{source} has {len(pieces)} pieces, but its embedding {vocab_size} rows")
    if not unused:
        return tokenizer
    if tokenizer.kind == "wordpiece":
        return WordPieceTokenizer(pieces + unused, tokenizer.lowercase)
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend)
    backend.add_special_tokens(
        [tokenizers.AddedToken(name, special=True, normalized=False) for name in unused]
    )
    return JsonTokenizer(backend.to_str(), tokenizer.metadata["special_ids"])


def save(model: Model, directory: Path, kinds: Mapping[str, Kind] = KINDS) -> None:
    """Writes a transformer as the first of these kinds that computes it exactly. Heads that the
    kind lacks are left out, and a printed line names them."""
    model_config, tokenizer = model.config.model, model.tokenizer
    shape = model_shape(model_config, tokenizer.vocab_size)
    if not isinstance(shape, TransformerShape):
        raise UserError(
            f"config.model.family={model_config.family!r} is not a transformer; choose another --to"
        )
    body = model.params["body"]
    predicts = "output" in body or not (shape.output_transform or shape.output_bias)
    next_token, only_in_order = predicts_next(model)
    model_type = "bertlab"
    if not next_token:
        fits = (shape, model.params, tokenizer.pad_id, predicts)
        model_type = next((name for name in kinds if kinds[name].fits(*fits)), model_type)
    is_own = model_type == "bertlab"
    if is_own and shape.outside_positions is not None:
        raise UserError(
            f"config.model.position_encoding={shape.position_encoding!r} is your own code, which"
            f" {MODELING} does not have"
        )
    kind = kinds[model_type]
    table = kind.table(shape.heads)
    roots = {entry.ours[0].split("/")[0] for entry in table}
    if left := [name for name in model.params if name not in roots]:
        print(f"not exported: {model_type} has no {', '.join(left)}", flush=True)
    params = {name: tree for name, tree in model.params.items() if name in roots}
    tensors = write(table, without_mask(params, model))
    architecture = kind.architectures[predicts, "heads_nsp" in params]
    if is_own and (only_in_order or shape.direction != "bidirectional"):
        architecture = architecture.replace("MaskedLM", "CausalLM")
    settings = {
        "model_type": model_type,
        "architectures": [architecture],
        "vocab_size": shape.vocab_size,
        "pad_token_id": tokenizer.pad_id,
        "bos_token_id": tokenizer.cls_id,
        "eos_token_id": tokenizer.sep_id,
        "dtype": "float32",
        **kind.write(shape),
        "objectives": {
            name: model.config.objectives[name].to_dict()
            for name in model.objectives
            if f"heads_{name}" not in left
        },
    }
    directory.mkdir(parents=True, exist_ok=True)
    if model_type == "modernbert":
        settings |= {"cls_token_id": tokenizer.cls_id, "sep_token_id": tokenizer.sep_id}
        tensors = {k: v for k, v in tensors.items() if "layers.0.attn_norm." not in k}
    if is_own:
        settings |= {"family": model_config.family, "pooler": "pooler" in body}
        settings["auto_map"] = {name: f"modeling_bertlab.{own}" for name, own in CLASSES.items()}
        shutil.copyfile(Path(__file__).with_name(MODELING), directory / MODELING)
    path = directory / "model.safetensors"
    safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})
    write_json(directory / "config.json", settings)
    save_fast_tokenizer(tokenizer, directory, shape.max_positions, shape.segments > 1)


def predicts_next(model: Model) -> tuple[bool, bool]:
    """Whether a body that sees both sides has learned to predict from the state before a token, and
    whether only in order. transformers' own classes would show it the token that it predicts."""
    found = [scoring(o) for o in model.objectives.values() if o.reads == "both"]
    in_order = any(one.forward is not None for one in found)
    in_place = any(one.hidden is not None and not one.from_before for one in found)
    return in_order or any(one.from_before for one in found), in_order and not in_place


def without_mask(params: dict, model: Model) -> dict:
    """The parameters with a bias that gives [MASK] probability 0, if only diffusion fills masks,
    which never predicts it."""
    filling = [o for o in model.objectives.values() if scoring(o).hidden is not None]
    diffusion = all(isinstance(objective, MaskedDiffusion) for objective in filling)
    if not filling or not diffusion or "bias" not in params["body"].get("output", {}):
        return params
    bias = np.array(params["body"]["output"]["bias"])
    bias[model.tokenizer.mask_id] = NO_MASK
    output = {**params["body"]["output"], "bias": bias}
    return {**params, "body": {**params["body"], "output": output}}
