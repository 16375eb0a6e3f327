"""Google's BERT checkpoints (google-research/bert): bert_config.json, vocab.txt, bert_model.ckpt.*, read with TensorFlow.

Variable names are those of modeling.py and run_pretraining.py; kernels are in × out. The optimiser's slots (adam_m, adam_v)
and global_step, which a checkpoint of a pretraining run holds besides, are passed over.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bertlab.errors import UserError, require
from bertlab.interop.base import Entry, Imported, body_shapes, read, transposed
from bertlab.interop.transformer import (
    fit_vocabulary,
    nsp_shapes,
    out_kernel,
    read_count,
    read_dropout,
    read_float,
    read_object,
    read_tokenizer,
    require_directory,
    three_biases,
    three_kernels,
    transformer_config,
)

# modeling.py's gelu is the tanh approximation.
_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu"}
_NOT_WEIGHTS = re.compile(r"(.*/adam_[mv]|global_step)")


def _norm(theirs: str, ours: str) -> list[Entry]:
    return [Entry((f"{theirs}/gamma",), f"{ours}/scale"), Entry((f"{theirs}/beta",), f"{ours}/bias")]


def _dense(theirs: str, ours: str) -> list[Entry]:
    return [Entry((f"{theirs}/kernel",), f"{ours}/kernel"), Entry((f"{theirs}/bias",), f"{ours}/bias")]


def table(heads: int) -> list[Entry]:
    """Google's variables, by the number of attention heads."""
    embeddings, layer, blocks = "bert/embeddings", "bert/encoder/layer_{i}", "body/blocks"
    return [
        Entry((f"{embeddings}/word_embeddings",), "body/token_embedding"),
        Entry((f"{embeddings}/position_embeddings",), "body/position_embedding"),
        Entry((f"{embeddings}/token_type_embeddings",), "body/segment_embedding"),
        *_norm(f"{embeddings}/LayerNorm", "body/embedding_norm"),
        three_kernels(f"{layer}/attention/self/{{part}}/kernel", f"{blocks}/attention/qkv_kernel", heads, out_first=False),
        three_biases(f"{layer}/attention/self/{{part}}/bias", f"{blocks}/attention/qkv_bias", heads),
        out_kernel(f"{layer}/attention/output/dense/kernel", f"{blocks}/attention/out_kernel", heads),
        Entry((f"{layer}/attention/output/dense/bias",), f"{blocks}/attention/out_bias"),
        *_norm(f"{layer}/attention/output/LayerNorm", f"{blocks}/attention_norm"),
        *_dense(f"{layer}/intermediate/dense", f"{blocks}/up"),
        *_dense(f"{layer}/output/dense", f"{blocks}/down"),
        *_norm(f"{layer}/output/LayerNorm", f"{blocks}/feed_forward_norm"),
        *_dense("bert/pooler/dense", "body/pooler"),
        *_dense("cls/predictions/transform/dense", "body/output/transform"),
        *_norm("cls/predictions/transform/LayerNorm", "body/output/transform_norm"),
        Entry(("cls/predictions/output_bias",), "body/output/bias"),
        transposed("cls/seq_relationship/output_weights", "heads_nsp/kernel"),
        Entry(("cls/seq_relationship/output_bias",), "heads_nsp/bias"),
    ]


def load(source: Path) -> Imported:
    """Reads a directory of Google's; needs the extra `google` (TensorFlow).

    Raises:
        UserError: TensorFlow is missing, there is not one checkpoint, or its variables are not those of bert_config.json.
    """
    require_directory(source, "bert_config.json, vocab.txt and the checkpoint")
    index = sorted(source.glob("*.ckpt*.index"))
    if len(index) != 1:
        found = ", ".join(path.name for path in index) or "none"
        raise UserError(f"{source} must have one checkpoint (such as bert_model.ckpt.index and its data); found: {found}")
    checkpoint = index[0].with_suffix("")
    reader = require("tensorflow", "google", "a TensorFlow checkpoint").train.load_checkpoint(str(checkpoint))
    # The optimiser's slots are two thirds of such a file; they are not read.
    names = [name for name in reader.get_variable_to_shape_map() if not _NOT_WEIGHTS.fullmatch(name)]
    return from_variables({name: reader.get_tensor(name) for name in names}, source, checkpoint.name)


def from_variables(variables: Mapping[str, np.ndarray], source: Path, checkpoint: str) -> Imported:
    """A model from its variables by name and the files beside them.

    Args:
        variables: arrays by their names in the checkpoint.
        source: directory with bert_config.json and vocab.txt.
        checkpoint: name of the checkpoint, for messages.
    """
    variables = {name: array for name, array in variables.items() if not _NOT_WEIGHTS.fullmatch(name)}
    path = source / "bert_config.json"
    settings = read_object(path)
    number = lambda key: read_count(settings, key, path)
    activation = settings.get("hidden_act")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise UserError(f"{path}: hidden_act={activation!r} is not one of {', '.join(_ACTIVATIONS)}")
    model = {
        "layers": number("num_hidden_layers"),
        "width": number("hidden_size"),
        "heads": number("num_attention_heads"),
        "hidden": number("intermediate_size"),
        "max_positions": number("max_position_embeddings"),
        "segments": number("type_vocab_size"),
        "position_offset": 0,
        "activation": _ACTIVATIONS[activation],
        "dropout": read_dropout(settings, ("hidden_dropout_prob", "attention_probs_dropout_prob"), path),
        "init_stddev": read_float(settings, "initializer_range", path),
        "epsilon": 1e-12,
    }
    vocab_size = number("vocab_size")
    predicts, next_sentence = (
        any(name.startswith(head) for name in variables) for head in ("cls/predictions/", "cls/seq_relationship/")
    )
    config = transformer_config("bert", model, "+".join(["mlm"] * predicts + ["nsp"] * next_sentence))
    shapes = body_shapes(config, vocab_size, predicts=predicts, pools=True)
    if next_sentence:
        shapes |= nsp_shapes(model["width"])
    params = read(table(model["heads"]), variables, shapes, source / checkpoint)
    tokenizer = fit_vocabulary(read_tokenizer(source / "vocab.txt"), vocab_size, source)
    return Imported(config, params, tokenizer, ("bert_config.json", checkpoint, "vocab.txt"), len(variables))
