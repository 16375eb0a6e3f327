"""Hugging Face transformers' directories: BERT, RoBERTa, ModernBERT, OpenAI GPT, GPT-2 and our own kind, import and export.

A directory has config.json, model.safetensors (or shards with model.safetensors.index.json) and tokenizer files. Names and
shapes follow transformers' modeling_bert.py, modeling_roberta.py, modeling_modernbert.py, modeling_openai.py and
modeling_gpt2.py. Weights in float16 or bfloat16 become float32 without loss. A pickle (pytorch_model.bin) is never opened.

Every transformer of bertlab can be exported. One that none of these kinds computes exactly gets the kind "bertlab": its
config.json has the keys of config.model, and modeling_bertlab.py, a copy of which lies beside the weights, computes it. So does
a bidirectional body that was trained to predict the next token: transformers' own classes would show it that token.

Pooler, masked-LM head and next-sentence head are each complete or absent. An encoder without a pooler is written as the plain
model, and transformers then initialises a new pooler. A pooler beside only a masked-LM head stays in the file; transformers
reports it as unexpected.
"""

import dataclasses
import re
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy
import tokenizers

from bertlab.config import is_finetuning
from bertlab.data.tokenizers import Gpt1Tokenizer, Tokenizer, load_tokenizer, pieces_by_id
from bertlab.errors import UserError
from bertlab.files import ordinary_mode, write_json
from bertlab.interop.base import Entry, Imported, flatten_tree, write
from bertlab.interop.fast_tokenizers import save_fast_tokenizer
from bertlab.interop.transformer import (
    BERT_SIZES,
    Style,
    assembled,
    bert_table,
    gpt_table,
    read_count,
    read_dropout,
    read_float,
    read_object,
    require_directory,
)
from bertlab.keys import KEYS, Key
from bertlab.models.presets import FAMILIES, model_shape
from bertlab.models.transformer import TransformerConfig
from bertlab.objectives.base import WAYS

_ACTIVATIONS = {
    **{"gelu": "gelu_erf", "gelu_python": "gelu_erf"},
    **{"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu"},
}
# modeling_openai.py's "gelu" is the tanh approximation.
_GPT1_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu"}

# Config keys that change what a model computes, with the only value that bertlab supports.
_ONLY = {
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "position_embedding_type": "absolute",
    "pruned_heads": {},
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
}


# torch's Linear is out × in; GPT's Conv1D is in × out.
_LINEAR = Style(".", "weight", "bias", "weight", "bias", "weight", np.transpose, np.transpose)
_CONV1D = dataclasses.replace(_LINEAR, to_matrix=lambda array: array, from_matrix=lambda array: array)


@dataclasses.dataclass(frozen=True)
class Kind:
    """One model_type.

    Attributes:
        table: its parameters, by the number of attention heads.
        prefix: of the encoder; files of the bare model leave it out.
        ties: second names of tensors, with the first.
        buffers: pattern of names that hold no weights.
        split, join: from a file's tensors to the table's, where they differ in more than names, and back.
    """

    table: Callable[[int], list[Entry]]
    prefix: str
    ties: Mapping[str, str]
    buffers: str
    split: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] = dict
    join: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] = dict


def _bert(encoder: str, head: str, transform: str, norm: str, more: Sequence[Entry] = ()) -> Kind:
    names = (encoder, f"{encoder}.encoder.layer.{{i}}", f"{head}.{transform}", f"{head}.{norm}")
    bias = Entry((f"{head}.bias",), "body/output/bias")
    return Kind(
        lambda heads: [*bert_table(_LINEAR, heads, *names), bias, *more],
        f"{encoder}.",
        {f"{head}.decoder.weight": f"{encoder}.embeddings.word_embeddings.weight", f"{head}.decoder.bias": f"{head}.bias"},
        rf"{encoder}\.embeddings\.(position_ids|token_type_ids)",
    )


def _gpt(tokens: str, positions: str, more: Sequence[Entry] = ()) -> Kind:
    names = ("transformer.h.{i}", f"transformer.{tokens}", f"transformer.{positions}")
    return Kind(
        lambda heads: [*gpt_table(_CONV1D, heads, *names), *more],
        "transformer.",
        {"lm_head.weight": f"transformer.{tokens}.weight"},
        r"transformer\.(h\.\d+\.attn\.(bias|masked_bias)|position_ids)",
    )


def _own(heads: int) -> list[Entry]:
    """modeling_bertlab.py's names: our paths, but for the output layer's and torch's names of kernels and scales."""
    theirs, ours = "model.blocks.{i}", "body/blocks"
    entries = _LINEAR.attention([f"{theirs}.attention.qkv"], f"{theirs}.attention.out", f"{ours}/attention", heads)
    for name in ("token_embedding", "position_embedding", "segment_embedding", "relative_bias", "relative_embedding"):
        entries += _LINEAR.table(f"model.{name}", f"body/{name}")
    for name in ("embedding_norm", "relative_norm", "final_norm"):
        entries += _LINEAR.norm(f"model.{name}", f"body/{name}")
    for name in ("attention_norm", "feed_forward_norm"):
        entries += _LINEAR.norm(f"{theirs}.{name}", f"{ours}/{name}")
    for name in ("up", "gate", "down"):
        entries += _LINEAR.dense(f"{theirs}.{name}", f"{ours}/{name}")
    return [
        *entries,
        *_LINEAR.dense("model.pooler", "body/pooler"),
        *_LINEAR.dense("output.transform", "body/output/transform"),
        *_LINEAR.norm("output.transform_norm", "body/output/transform_norm"),
        Entry(("output.decoder.weight",), "body/output/kernel"),
        Entry(("output.decoder.bias",), "body/output/bias"),
    ]


def _modern(heads: int) -> list[Entry]:
    layer, blocks = "model.layers.{i}", "body/blocks"
    return [
        *_LINEAR.table("model.embeddings.tok_embeddings", "body/token_embedding"),
        *_LINEAR.norm("model.embeddings.norm", "body/embedding_norm"),
        *_LINEAR.norm(f"{layer}.attn_norm", f"{blocks}/attention_norm"),
        *_LINEAR.attention([f"{layer}.attn.Wqkv"], f"{layer}.attn.Wo", f"{blocks}/attention", heads),
        *_LINEAR.norm(f"{layer}.mlp_norm", f"{blocks}/feed_forward_norm"),
        *_LINEAR.dense(f"{layer}.mlp.Wi.up", f"{blocks}/up"),
        *_LINEAR.dense(f"{layer}.mlp.Wi.gate", f"{blocks}/gate"),
        *_LINEAR.dense(f"{layer}.mlp.Wo", f"{blocks}/down"),
        *_LINEAR.norm("model.final_norm", "body/final_norm"),
        *_LINEAR.dense("head.dense", "body/output/transform"),
        *_LINEAR.norm("head.norm", "body/output/transform_norm"),
        Entry(("decoder.bias",), "body/output/bias"),
    ]


def _split_modern(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The two matrices in each Wi apart, and a norm before the first attention, which is not used."""
    out = {}
    for name, array in tensors.items():
        if ".mlp.Wi." in name and len(array) % 2 == 0:
            parts = (name.replace(".Wi.", f".Wi.{part}.") for part in ("up", "gate"))
            out |= dict(zip(parts, np.split(array, 2), strict=True))
        else:
            out[name] = array
        if "layers.0.mlp_norm." in name:
            out[name.replace("mlp_norm", "attn_norm")] = np.full_like(array, name.endswith("weight"))
    return out


def _join_modern(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    out = {}
    for name, array in tensors.items():
        if ".Wi.up." in name:
            out[name.replace(".up.", ".")] = np.concatenate([array, tensors[name.replace(".up.", ".gate.")]])
        elif ".Wi.gate." not in name and "layers.0.attn_norm." not in name:
            out[name] = array
    return out


KINDS = {
    "bert": _bert(
        "bert", "cls.predictions", "transform.dense", "transform.LayerNorm", _LINEAR.dense("cls.seq_relationship", "heads_nsp")
    ),
    "roberta": _bert("roberta", "lm_head", "dense", "layer_norm"),
    "modernbert": Kind(
        _modern,
        "model.",
        {"decoder.weight": "model.embeddings.tok_embeddings.weight"},
        r"(?!)",
        _split_modern,
        _join_modern,
    ),
    "openai-gpt": _gpt("tokens_embed", "positions_embed"),
    "gpt2": _gpt("wte", "wpe", _CONV1D.norm("transformer.ln_f", "body/final_norm")),
    "bertlab": Kind(_own, "model.", {"output.decoder.weight": "model.token_embedding.weight"}, r"(?!)"),
}


def load(source: Path) -> Imported:
    """Reads a directory of transformers.

    Args:
        source: holds config.json, the weights as safetensors, and a tokenizer.

    Raises:
        UserError: the model is of another kind, bertlab does not support a config key, or the tensors do not fit the config.
    """
    require_directory(source, "config.json, model.safetensors and the tokenizer's files")
    path = source / "config.json"
    settings = read_object(path)
    model_type = settings.get("model_type")
    if not isinstance(model_type, str) or model_type not in KINDS:
        raise UserError(f"{path}: model_type={model_type!r} is not one of {', '.join(KINDS)}")
    kind = KINDS[model_type]
    tensors, files = read_safetensors(source)
    # The table uses the file's own names, for messages: the bare model has no prefix, and old files name norms otherwise.
    prefix = kind.prefix if any(name.startswith(kind.prefix) for name in tensors) else ""
    endings = {name.rpartition("LayerNorm.")[2] for name in tensors}
    old = "gamma" in endings and "weight" not in endings
    heads = ("cls.predictions.", "lm_head.", "head.", "decoder.")
    predicts = any(name.startswith(heads) and name not in kind.ties for name in tensors)
    pools = any(name.startswith(f"{prefix}pooler.") for name in tensors)
    next_sentence = any(name.startswith("cls.seq_relationship.") for name in tensors)
    gpt = model_type in ("openai-gpt", "gpt2")
    if model_type == "bertlab":
        family, model = _own_settings(settings, path)
        predicts = settings.get("architectures") != ["BertlabModel"]
    elif model_type == "modernbert":
        family, model = "modern", _modern_settings(settings, path)
    else:
        family, model = "gpt" if gpt else "bert", _model_settings(settings, predicts, path)
    if pools and model_type == "bert" and "direction" in model:
        raise UserError(f"{path}: is_decoder=True is not supported beside a pooler, which reads the first token")
    if not model.get("tied", True):
        kind = dataclasses.replace(kind, ties={})
    imported = assembled(
        family,
        model,
        [_as_in_file(entry, "" if prefix else kind.prefix, old) for entry in kind.table(model["heads"])],
        kind.split(_canonical(tensors, kind, prefix, old, source)),
        source,
        _read_tokenizer(source, model_type),
        read_count(settings, "vocab_size", path),
        predicts=predicts or gpt,
        pools=pools,
        next_sentence=next_sentence,
        ways=_own_ways(settings, path),
    )
    return dataclasses.replace(imported, files=("config.json", *files), tensors=len(tensors))


_OLD_NAMES = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}


def _as_in_file(entry: Entry, cut: str, old: bool) -> Entry:
    """The entry without the prefix `cut`, and with the old names of norms, gamma and beta, if `old`."""
    names = [name.removeprefix(cut) for name in entry.theirs]
    for new, before in _OLD_NAMES.items() if old else ():
        names = [name.replace(new, before) for name in names]
    return dataclasses.replace(entry, theirs=tuple(names))


def _read_tokenizer(source: Path, model_type: str) -> Tokenizer:
    file = source / "tokenizer.json"
    if model_type == "openai-gpt" and file.is_file():
        backend = _read_backend(file)
        model, words = backend.get("model") or {}, backend.get("pre_tokenizer") or {}
        # GPT-1 was trained with words from ftfy and spaCy; transformers uses BERT's words instead.
        kinds = (model.get("type", "BPE"), model.get("end_of_word_suffix"), words.get("type"))
        if kinds == ("BPE", "</w>", "BertPreTokenizer"):
            return _gpt1_tokenizer(model, backend.get("added_tokens") or [], file)
    return load_tokenizer(source)


def _read_backend(file: Path) -> dict[str, Any]:
    """A tokenizer.json that the tokenizers library can read: its parts have the types that the library writes."""
    backend = read_object(file)
    try:
        tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower class
        raise UserError(f"{file} is not a tokenizer.json that the tokenizers library can read: {error}") from error
    return backend


def _gpt1_tokenizer(model: Mapping[str, Any], added: list[dict], file: Path) -> Tokenizer:
    """GPT-1's tokenizer from the vocabulary and merges of a tokenizer.json."""
    ids = model["vocab"] | {token["content"]: token["id"] for token in added}
    if matched := [token["content"] for token in added if not token["special"]]:
        raise UserError(
            f"{file}: the added token {matched[0]!r} matches ordinary text, and GPT-1's tokenizer does not support that"
        )
    pieces = pieces_by_id(ids)
    # Older files write a merge as one string.
    return Gpt1Tokenizer(pieces, [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]])


def read_safetensors(source: Path) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """All tensors of a directory's model.safetensors, or of the shards in its index, and the files' names.

    Raises:
        UserError: the directory has no such file (only a pickle, for instance), a shard is missing, or a file is damaged.
    """
    index = source / "model.safetensors.index.json"
    if (source / "model.safetensors").is_file():
        places = None
        files = ("model.safetensors",)
    elif index.is_file():
        places = read_object(index).get("weight_map")
        if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
            raise UserError(f"{index}: expected a weight_map, an object of tensor names and the files that hold them")
        files = tuple(sorted(set(places.values())))
    elif any(source.glob("pytorch_model*.bin")):
        raise UserError(
            f"{source} has only pickled weights (pytorch_model.bin), and opening a pickle can run any code; if you trust"
            " it, convert it: python -c 'from transformers import AutoModelForPreTraining as M;"
            f' M.from_pretrained("{source}").save_pretrained("converted")\''
        )
    else:
        raise UserError(f"{source} has no model.safetensors and no model.safetensors.index.json")
    tensors = {}
    for name in files:
        if Path(name).name != name or not (source / name).is_file():
            raise UserError(f"{index} names {name}, but that file is not in the same directory")
        try:
            tensors |= safetensors.numpy.load_file(source / name)
        except (safetensors.SafetensorError, KeyError) as error:
            raise UserError(f"{source / name} cannot be read as safetensors: {error}") from None
    if places is not None and (lost := sorted(set(places) - set(tensors))):
        raise UserError(f"{index} places {lost[0]} in {places[lost[0]]}, but that file lacks it")
    return tensors, files


def _canonical(tensors: Mapping[str, np.ndarray], kind: Kind, prefix: str, old: bool, source: Path) -> dict[str, np.ndarray]:
    """Tensors under the names of `_as_in_file`, without buffers, second names and tied copies."""
    named, cut = {}, "" if prefix else kind.prefix
    for name, array in tensors.items():
        if re.fullmatch(kind.buffers, cut + name):
            continue
        for new, before in _OLD_NAMES.items() if not old else ():
            name = name.replace(before, new)
        if name in named:
            raise UserError(f"{source} has {name} twice, under its old and new name")
        named[name] = array
    for copy, original in kind.ties.items():
        original = original.removeprefix(cut)
        if copy in named:
            array = named.pop(copy)
            # `read` reports numbers that are not finite.
            if not np.array_equal(named.setdefault(original, array), array, equal_nan=True):
                raise UserError(f"{source}: {copy} differs from {original}; bertlab ties them, as the published models do")
    return named


def _model_settings(settings: Mapping[str, Any], predicts: bool, path: Path) -> dict[str, Any]:
    """Keys of config.model from a config.json."""
    kind = settings["model_type"]
    decoder = kind == "bert" and settings.get("is_decoder") is True
    for key, value in _ONLY.items():
        if settings.get(key, value) not in (value, None) and not (decoder and key == "is_decoder"):
            raise UserError(f"{path}: {key}={settings[key]!r} is not supported; bertlab computes {key}={value!r}")
    number = lambda key: read_count(settings, key, path)
    gpt = kind in ("openai-gpt", "gpt2")
    activation = settings.get({"openai-gpt": "afn", "gpt2": "activation_function"}.get(kind, "hidden_act"))
    if activation is None:
        activation = "gelu_new" if kind == "gpt2" else "gelu"
    known = _GPT1_ACTIVATIONS if kind == "openai-gpt" else _ACTIVATIONS
    if not isinstance(activation, str) or activation not in known:
        raise UserError(f"{path}: the activation {activation!r} is not one of {', '.join(known)}")
    shared = {
        "activation": known[activation],
        "dropout": read_dropout(settings, _GPT_DROPOUTS if gpt else _BERT_DROPOUTS, path, 0.1),
        "init_stddev": read_float(settings, "initializer_range", path, 0.02),
    }
    pre, roberta = kind == "gpt2", kind == "roberta"
    if gpt:
        inner = settings.get("n_inner") if pre else None
        return shared | {
            "layers": number("n_layer"),
            "width": number("n_embd"),
            "heads": number("n_head"),
            "hidden": 4 * number("n_embd") if inner is None else number("n_inner"),
            "max_positions": number("n_positions"),
            "epsilon": read_float(settings, "layer_norm_epsilon", path, 1e-5),
            "norm_placement": "pre" if pre else "post",
            "final_norm": pre,
        }
    if roberta and predicts and shared["activation"] != "gelu_erf":
        raise UserError(f"{path}: hidden_act={activation!r}, but RoBERTa's head always uses 'gelu'; bertlab has one activation")
    # RoBERTa counts positions from the padding id + 1.
    offset = _padding_id(settings, path) + 1 if roberta else 0
    return shared | {
        **{ours: number(theirs) for ours, theirs in BERT_SIZES.items()},
        "max_positions": number("max_position_embeddings") - offset,
        "epsilon": read_float(settings, "layer_norm_eps", path, 1e-12),
        "position_offset": offset,
        "segments": read_count(settings, "type_vocab_size", path, 2),
        **({"direction": "left-to-right"} if decoder else {}),
    }


_MODERN_DROPOUTS = ("embedding_dropout", "attention_dropout", "mlp_dropout")
_MODERN_BIASES = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")


def _modern_settings(settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Keys of config.model from a ModernBERT's config.json, of transformers 4 or 5."""
    biases = {key: settings.get(key, False) for key in _MODERN_BIASES}
    if len(set(biases.values())) > 1:
        raise UserError(f"{path}: {', '.join(f'{key}={value}' for key, value in biases.items())}; bertlab has one use_bias")
    activations = {key: settings.get(key, "gelu") for key in ("hidden_activation", "classifier_activation")}
    activation = activations["hidden_activation"]
    if activation not in _ACTIVATIONS or len(set(activations.values())) > 1:
        described = ", ".join(f"{key}={value!r}" for key, value in activations.items())
        raise UserError(f"{path}: {described}; bertlab has one activation, of {', '.join(_ACTIVATIONS)}")
    if settings.get("tie_word_embeddings", True) is not True:
        raise UserError(f"{path}: tie_word_embeddings=False is not supported")
    layers = read_count(settings, "num_hidden_layers", path)
    pattern = lambda every: ["sliding_attention" if i % every else "full_attention" for i in range(layers)]
    types = settings.get("layer_types") or pattern(read_count(settings, "global_attn_every_n_layers", path, 3))
    every = next((every for every in range(1, layers + 1) if pattern(every) == types), None)
    if every is None:
        raise UserError(f"{path}: layer_types={types}; bertlab has full attention in every n-th layer from the first on")
    ropes = settings.get("rope_parameters") or {}
    if wrong := [rope for rope in ropes.values() if rope.get("rope_type", "default") != "default"]:
        raise UserError(f"{path}: rope_type={wrong[0]['rope_type']!r} is not supported")
    base = lambda kind, old, usual: float(ropes.get(kind, {}).get("rope_theta", settings.get(old) or usual))
    window = {
        "local_window": read_count(settings, "local_attention", path, 128),
        "global_every": every,
        "rotary_base_local": base("sliding_attention", "local_rope_theta", 10_000.0),
    }
    return {
        **{ours: read_count(settings, theirs, path) for ours, theirs in BERT_SIZES.items()},
        "activation": _ACTIVATIONS[activation],
        "dropout": read_dropout(settings, _MODERN_DROPOUTS, path, 0.0),
        "init_stddev": read_float(settings, "initializer_range", path, 0.02),
        "epsilon": read_float(settings, "norm_eps", path, 1e-5),
        "use_bias": biases["norm_bias"],
        "output_bias": settings.get("decoder_bias", True),
        "norm": "layer_norm",
        "norm_placement": "pre",
        "first_norm": False,
        "rotary_base": base("full_attention", "global_rope_theta", 160_000.0),
        **(window if every > 1 else {"local_window": 0}),
    }


# config.json has config.model's own names but for this one, which transformers reads itself.
_OWN_NAMES = {"tied": "tie_word_embeddings"}
# Keys that earlier exports lack, and what they meant.
_ADDED = {"base_width": 0, "position_buckets": 256}


def _own_keys() -> list[Key]:
    """Keys of config.model that decide what a transformer computes, or how it is initialised."""
    known = {"direction", "output_transform", "output_bias", "tied", *(f.name for f in dataclasses.fields(TransformerConfig))}
    return [
        key
        for key in KEYS
        if key.group == "model" and key.leaf in known and not key.on_resume and key.leaf not in ("dtype", "products")
    ]


def _own_settings(settings: Mapping[str, Any], path: Path) -> tuple[str, dict[str, Any]]:
    """The family, and keys of config.model, from a config.json of `_describe_own`."""
    values = {}
    for key in _own_keys():
        name = _OWN_NAMES.get(key.leaf, key.leaf)
        value, kind = settings.get(name, _ADDED.get(name)), key.default
        if not isinstance(value, (int, float) if kind is float else kind) or isinstance(value, bool) != (kind is bool):
            raise UserError(f"{path}: {name}={value!r} must be {'one of ' if key.choices else 'a '}{key.values()}")
        values[key.name] = kind(value)
    family, size = settings.get("family"), settings.get("size")
    if family not in FAMILIES or FAMILIES[family].shape is not TransformerConfig or size not in FAMILIES[family].sizes:
        raise UserError(f"{path}: family={family!r} with size={size!r} is not a transformer of bertlab")
    used = {key.leaf: values[key.name] for key in _own_keys() if not key.without_effect(values[key.name], values)}
    return family, used | {"size": size}


def _own_ways(settings: Mapping[str, Any], path: Path) -> list[str] | None:
    """The ways in which it was trained to predict tokens; None: as usual, or of an earlier export, which does not say."""
    if (ways := settings.get("ways")) is None:
        return None
    if not isinstance(ways, list) or not set(map(str, ways)) <= set(WAYS):
        raise UserError(f"{path}: ways={ways!r} must be a list of some of {', '.join(WAYS)}")
    return ways


_BERT_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
_GPT_DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")


def _padding_id(settings: Mapping[str, Any], path: Path) -> int:
    value = settings.get("pad_token_id", 1)
    if not isinstance(value, int) or value < 0:
        raise UserError(f"{path}: pad_token_id={value!r} must be a token id, because RoBERTa counts positions from it")
    return value


def save(run: Imported, directory: Path) -> None:
    """Writes a run as a directory of transformers: config.json, model.safetensors and a fast tokenizer.

    sentence-transformers opens it too, with the mean of the last layer's states (`Pretrained.sentence_vectors`).

    Args:
        run: any transformer: of the first kind that computes it exactly, BERT (from left to right too), RoBERTa, ModernBERT,
            OpenAI GPT or GPT-2, otherwise of the kind "bertlab", with modeling_bertlab.py (`kind_of`).
        directory: exists and is empty.

    Raises:
        UserError: the run is not a transformer. Heads that the kind does not have are left out, and a printed line names them.
    """
    shape = model_shape(run.config.model, run.tokenizer.vocab_size)
    if not isinstance(shape, TransformerConfig):
        other = {"awd_lstm": "fastai", "elmo": "elmo"}.get(run.config.model.family, "word2vec")
        raise UserError(f"config.model.family={run.config.model.family!r} is not a transformer; export it with --to={other}")
    ways = run.ways()
    kind = kind_of(shape, run.params, run.tokenizer, ways)
    settings = describe(kind, run, shape)
    sees_both = shape.direction == "bidirectional" and _predicts(shape, run.params)
    if sees_both and not is_finetuning(run.config) and ways != {"at the mask"}:
        settings["ways"] = sorted(ways)  # so that an import is not scored as if it had learned to fill masks alone
    table = KINDS[kind].table(shape.heads)
    # Heads of tasks and of other objectives have no name there.
    places = {entry.ours.split("/")[0] for entry in table}
    left = [name for name in run.params if name.startswith("heads_") and name not in places]
    if left:
        count = len(flatten_tree({name: run.params[name] for name in left}))
        print(f"not exported, because transformers' {kind} has no such head: {', '.join(left)} ({count} tensors)", flush=True)
    params = jax.tree.map(np.asarray, {name: tree for name, tree in run.params.items() if name not in left})
    if run.never_mask() and "bias" in params["body"].get("output", {}):
        params = _without_mask(params, run.tokenizer.mask_id)
    tensors = KINDS[kind].join(write(table, params))
    if settings["architectures"][0] in ("BertModel", "RobertaModel", "ModernBertModel", "BertlabModel"):
        tensors = {name.removeprefix(KINDS[kind].prefix): array for name, array in tensors.items()}
    with ordinary_mode(directory / "model.safetensors") as path:
        safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})
    write_json(directory / "config.json", settings)
    if kind == "bertlab":
        shutil.copyfile(Path(__file__).with_name("modeling_bertlab.py"), directory / "modeling_bertlab.py")
    save_fast_tokenizer(run.tokenizer, directory, shape.max_positions, segments=shape.segments > 1)
    _save_sentence_transformer(directory, shape)


def _without_mask(params: dict, mask_id: int) -> dict:
    """The parameters with a bias by which [MASK] has probability 0, in float16 too."""
    bias = params["body"]["output"]["bias"].copy()
    bias[mask_id] = -1e4
    return {**params, "body": {**params["body"], "output": {**params["body"]["output"], "bias": bias}}}


def _save_sentence_transformer(directory: Path, shape: TransformerConfig) -> None:
    """What makes the directory one of sentence-transformers: this model, and then the mean of its states."""
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    described = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{name}"}
        for number, (path, name) in enumerate(modules)
    ]
    write_json(directory / "modules.json", described)
    write_json(directory / "sentence_bert_config.json", {"max_seq_length": shape.max_positions, "do_lower_case": False})
    (directory / "1_Pooling").mkdir()
    poolings = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    modes = {f"pooling_mode_{name}": name == "mean_tokens" for name in poolings}
    write_json(directory / "1_Pooling" / "config.json", {"word_embedding_dimension": shape.width, **modes})


def kind_of(shape: TransformerConfig, params: Mapping[str, Any], tokenizer: Tokenizer, ways: Collection[str] = ()) -> str:
    """The model_type that computes exactly what a shape with these parameters does.

    A body that sees both sides and was trained to predict in order, or before the mask, is ours: transformers' classes for
    causal models would show it the tokens that it is to predict, unless someone sets `is_decoder`.

    Args:
        shape, params, tokenizer: the run's.
        ways: in which it was trained to predict tokens (`bertlab.objectives.base.WAYS`).
    """
    has = lambda **values: all(getattr(shape, key) == value for key, value in values.items())
    predicts, pools = _predicts(shape, params), "pooler" in params["body"]
    head = (shape.output.transform, shape.output.tied, shape.output.bias)
    left_to_right, activation = shape.direction == "left-to-right", shape.activation
    modern = has(norm="layer_norm", norm_placement="pre", first_norm=False, embedding_norm=True, final_norm=True, gated=True)
    modern = modern and has(position_encoding="rotary", segments=0, direction="bidirectional") and not pools
    if shape.times_base != 1 or (predicts and {"in order", "before the mask"} & set(ways)):
        return "bertlab"
    if modern and (head[:2] == (True, True) or not predicts):
        return "modernbert"
    if not has(norm="layer_norm", first_norm=True, gated=False, use_bias=True, position_encoding="learned", local_window=0):
        return "bertlab"
    bert = has(embedding_norm=True, norm_placement="post", final_norm=False) and shape.segments > 0
    if bert and (head == (True, True, True) or not predicts):
        # The pooler of transformers reads the first token, from left to right too.
        if has(position_offset=0) and (has(direction="bidirectional") or (left_to_right and not pools)):
            return "bert"
        # RoBERTa counts positions from the padding id + 1, and its head has one activation.
        counted = shape.position_offset == tokenizer.pad_id + 1 and has(direction="bidirectional")
        if counted and (activation == "gelu_erf" or not predicts):
            return "roberta"
    gpt = has(embedding_norm=False, segments=0, position_offset=0) and left_to_right and not pools
    if gpt and head == (False, True, False):
        if has(norm_placement="pre", final_norm=True):
            return "gpt2"
        plain = has(norm_placement="post", final_norm=False, hidden=4 * shape.width)
        if plain and activation in _GPT1_ACTIVATIONS.values():
            return "openai-gpt"
    return "bertlab"


def _predicts(shape: TransformerConfig, params: Mapping[str, Any]) -> bool:
    """Whether the run predicts tokens: it has an output layer, or one that is only the token embeddings."""
    return "output" in params["body"] or (shape.output.tied and not shape.output.transform and not shape.output.bias)


def describe(kind: str, run: Imported, shape: TransformerConfig) -> dict[str, Any]:
    """The contents of config.json."""
    tokenizer = run.tokenizer
    shared = {
        "model_type": kind,
        "vocab_size": shape.vocab_size,
        "pad_token_id": tokenizer.pad_id,
        "bos_token_id": tokenizer.cls_id,
        "eos_token_id": tokenizer.sep_id,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }
    if kind == "bertlab":
        return shared | _describe_own(run, shape)
    shared["initializer_range"] = shape.init_stddev
    if kind == "modernbert":
        return shared | _describe_modern(run, shape)
    if kind in ("gpt2", "openai-gpt"):
        return shared | _describe_gpt(kind, shape)
    return shared | _describe_bert(kind, shape, run.params)


_AUTO_CLASSES = {
    "AutoConfig": "Config",
    "AutoModel": "Model",
    "AutoModelForMaskedLM": "ForMaskedLM",
    "AutoModelForCausalLM": "ForCausalLM",
    "AutoModelForSequenceClassification": "ForSequenceClassification",
    "AutoModelForTokenClassification": "ForTokenClassification",
}


def _describe_own(run: Imported, shape: TransformerConfig) -> dict[str, Any]:
    values = vars(shape) | {f"output_{name}": value for name, value in vars(shape.output).items()} | vars(shape.output)
    ways = run.ways()
    causal = shape.direction != "bidirectional" or ("in order" in ways and "at the mask" not in ways)
    head = "ForCausalLM" if causal else "ForMaskedLM"
    return {
        "architectures": ["Bertlab" + (head if _predicts(shape, run.params) else "Model")],
        "auto_map": {auto: f"modeling_bertlab.Bertlab{name}" for auto, name in _AUTO_CLASSES.items()},
        **{name: run.config.model[name] for name in ("family", "size")},
        **{_OWN_NAMES.get(key.leaf, key.leaf): values[key.leaf] for key in _own_keys()},
        "pooler": "pooler" in run.params["body"],
    }


def _describe_modern(run: Imported, shape: TransformerConfig) -> dict[str, Any]:
    """With the names of transformers 4, which transformers 5 reads as well."""
    activation = _their_activation(shape.activation, _ACTIVATIONS)
    return {
        "architectures": ["ModernBertForMaskedLM" if _predicts(shape, run.params) else "ModernBertModel"],
        "cls_token_id": run.tokenizer.cls_id,
        "sep_token_id": run.tokenizer.sep_id,
        **{theirs: getattr(shape, ours) for ours, theirs in BERT_SIZES.items()},
        **dict.fromkeys(("hidden_activation", "classifier_activation"), activation),
        **dict.fromkeys(_MODERN_DROPOUTS, shape.dropout),
        **dict.fromkeys(_MODERN_BIASES, shape.use_bias),
        "decoder_bias": shape.output.bias,
        "max_position_embeddings": shape.max_positions,
        "norm_eps": shape.epsilon,
        "global_attn_every_n_layers": shape.global_every if shape.local_window else 1,
        "local_attention": shape.local_window or 128,
        "global_rope_theta": shape.rotary_base,
        "local_rope_theta": shape.rotary_base_local,
    }


def _describe_gpt(kind: str, shape: TransformerConfig) -> dict[str, Any]:
    gpt2 = kind == "gpt2"
    activation = _their_activation(shape.activation, _ACTIVATIONS if gpt2 else _GPT1_ACTIVATIONS)
    return {
        "architectures": ["GPT2LMHeadModel" if gpt2 else "OpenAIGPTLMHeadModel"],
        "n_positions": shape.max_positions,
        "n_embd": shape.width,
        "n_layer": shape.layers,
        "n_head": shape.heads,
        "layer_norm_epsilon": shape.epsilon,
        **dict.fromkeys(_GPT_DROPOUTS, shape.dropout),
        **({"n_inner": shape.hidden, "activation_function": activation} if gpt2 else {"afn": activation}),
    }


def _describe_bert(kind: str, shape: TransformerConfig, params: Mapping[str, Any]) -> dict[str, Any]:
    predicts, next_sentence = "output" in params["body"], "heads_nsp" in params
    left_to_right = shape.direction == "left-to-right"
    if kind == "roberta":
        architecture = "RobertaForMaskedLM" if predicts else "RobertaModel"
    elif left_to_right:
        architecture = "BertLMHeadModel" if predicts else "BertModel"
    else:
        names = {(True, True): "BertForPreTraining", (True, False): "BertForMaskedLM", (False, False): "BertModel"}
        architecture = names.get((predicts, next_sentence), "BertForNextSentencePrediction")
    return {
        "architectures": [architecture],
        **({"is_decoder": True} if left_to_right else {}),
        **{theirs: getattr(shape, ours) for ours, theirs in BERT_SIZES.items()},
        "hidden_act": _their_activation(shape.activation, _ACTIVATIONS),
        **dict.fromkeys(_BERT_DROPOUTS, shape.dropout),
        "max_position_embeddings": shape.max_positions + shape.position_offset,
        "type_vocab_size": shape.segments,
        "layer_norm_eps": shape.epsilon,
    }


def _their_activation(activation: str, known: Mapping[str, str]) -> str:
    return next(theirs for theirs, ours in known.items() if ours == activation)
