"""Google's BERT checkpoints (google-research/bert): bert_config.json, vocab.txt, bert_model.ckpt.*, read with TensorFlow.

Variable names are those of modeling.py and run_pretraining.py; kernels are in × out. A checkpoint of a pretraining run also
holds the optimiser's slots (adam_m, adam_v) and global_step; these are skipped.
"""

import dataclasses
import glob
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bertlab.data.tokenizers import load_tokenizer
from bertlab.errors import UserError, reason_of, require
from bertlab.interop.base import Entry, Imported, only, transposed
from bertlab.interop.transformer import (
    BERT_SIZES,
    Style,
    assembled,
    bert_table,
    read_count,
    read_dropout,
    read_float,
    read_object,
    require_directory,
)

# modeling.py's gelu is the tanh approximation.
_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu"}
_NOT_WEIGHTS = re.compile(r"(.*/adam_[mv]|global_step)")


_STYLE = Style("/", "kernel", "bias", "gamma", "beta")


def table(heads: int) -> list[Entry]:
    """Google's variables, by the number of attention heads."""
    predictions, relation = "cls.predictions.transform", "cls/seq_relationship"
    return [
        *bert_table(_STYLE, heads, "bert", "bert.encoder.layer_{i}", f"{predictions}.dense", f"{predictions}.LayerNorm"),
        Entry(("cls/predictions/output_bias",), "body/output/bias"),
        transposed(f"{relation}/output_weights", "heads_nsp/kernel"),
        Entry((f"{relation}/output_bias",), "heads_nsp/bias"),
    ]


def load(source: Path) -> Imported:
    """Reads a directory of Google's; needs the extra `google` (TensorFlow).

    Raises:
        UserError: TensorFlow is missing, the directory has no checkpoint or several, or the variables do not fit
            bert_config.json.
    """
    require_directory(source, "bert_config.json, vocab.txt and the checkpoint")
    expected = "one checkpoint (such as bert_model.ckpt.index and its data)"
    checkpoint = only(source, [*source.glob("*.ckpt*.index")], expected).with_suffix("")
    return from_variables(_read_variables(checkpoint), source, checkpoint.name)


def _read_variables(checkpoint: Path) -> dict[str, np.ndarray]:
    """The variables of a checkpoint, without the optimiser's slots, which are two thirds of such a file.

    Raises:
        UserError: the checkpoint is damaged, or its index has larger variables than its data can hold.
    """
    tensorflow = require("tensorflow", "google", "a TensorFlow checkpoint")
    try:
        reader = tensorflow.train.load_checkpoint(str(checkpoint))
        dtypes = reader.get_variable_to_dtype_map()
        shapes = {name: of for name, of in reader.get_variable_to_shape_map().items() if not _NOT_WEIGHTS.fullmatch(name)}
        needed = sum(math.prod(shape) * dtypes[name].size for name, shape in shapes.items())
        there = sum(path.stat().st_size for path in checkpoint.parent.glob(f"{glob.escape(checkpoint.name)}.data-*"))
        if needed <= there:
            return {name: reader.get_tensor(name) for name in shapes}
    except Exception as error:  # TensorFlow raises many kinds for a damaged file
        raise UserError(
            f"{checkpoint} cannot be read as a TensorFlow checkpoint ({reason_of(error)}); download it again"
        ) from error
    raise UserError(f"{checkpoint} lists variables of {needed:,} bytes, but its data have {there:,}; download it again")


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
        **{ours: number(theirs) for ours, theirs in BERT_SIZES.items()},
        "max_positions": number("max_position_embeddings"),
        "segments": number("type_vocab_size"),
        "position_offset": 0,
        "activation": _ACTIVATIONS[activation],
        "dropout": read_dropout(settings, ("hidden_dropout_prob", "attention_probs_dropout_prob"), path),
        "init_stddev": read_float(settings, "initializer_range", path),
        "epsilon": 1e-12,
    }
    has = lambda head: any(name.startswith(f"cls/{head}/") for name in variables)
    imported = assembled(
        "bert",
        model,
        table(model["heads"]),
        variables,
        source / checkpoint,
        load_tokenizer(source / "vocab.txt"),
        number("vocab_size"),
        predicts=has("predictions"),
        pools=True,
        next_sentence=has("seq_relationship"),
    )
    return dataclasses.replace(imported, files=("bert_config.json", checkpoint, "vocab.txt"), tensors=len(variables))
