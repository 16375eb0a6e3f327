"""Shared by the transformer formats: the tables of BERT and GPT, their configs, and the checks of their files.

Letters: D model width, H heads, K head width; a matrix is in × out, or out × in if it comes from torch's Linear.
"""

import dataclasses
import json
import math
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tokenizers

from bertlab.config import add_objectives, base_config
from bertlab.data.tokenizers import Gpt1Tokenizer, JsonTokenizer, Tokenizer, WordPieceTokenizer
from bertlab.errors import UserError
from bertlab.files import read_json
from bertlab.interop.base import Entry, Imported, read
from bertlab.models.presets import FAMILIES, body_shapes, model_direction

BERT_SIZES = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "hidden": "intermediate_size",
}
"""Keys of config.model, and what Google's and transformers' BERT call them."""


@dataclasses.dataclass(frozen=True)
class Style:
    """How a system names and lays out parameters. A name is written with "." between its parts.

    Attributes:
        separator: the text between the parts.
        kernel, bias: last part of a dense layer's names.
        scale, shift: last part of a norm's names.
        embedding: last part of an embedding's name; "" for none.
        to_matrix, from_matrix: convert the system's kernel to in × out, and back.
    """

    separator: str
    kernel: str
    bias: str
    scale: str
    shift: str
    embedding: str = ""
    to_matrix: Callable[[np.ndarray], np.ndarray] = lambda array: array
    from_matrix: Callable[[np.ndarray], np.ndarray] = lambda array: array

    def name(self, *parts: str) -> str:
        """Joins the parts that are not empty."""
        return ".".join(part for part in parts if part).replace(".", self.separator)

    def table(self, theirs: str, ours: str) -> list[Entry]:
        """An embedding table."""
        return [Entry((self.name(theirs, self.embedding),), ours)]

    def norm(self, theirs: str, ours: str) -> list[Entry]:
        """A layer norm."""
        names = {self.scale: "scale", self.shift: "bias"}
        return [Entry((self.name(theirs, end),), f"{ours}/{name}") for end, name in names.items()]

    def dense(self, theirs: str, ours: str) -> list[Entry]:
        """A dense layer [D, F]."""
        to_ours, to_theirs = lambda arrays: self.to_matrix(arrays[0]), lambda array: [self.from_matrix(array)]
        kernel = Entry((self.name(theirs, self.kernel),), f"{ours}/kernel", to_ours, to_theirs)
        return [kernel, Entry((self.name(theirs, self.bias),), f"{ours}/bias")]

    def attention(self, theirs: Sequence[str], after: str, ours: str, heads: int) -> list[Entry]:
        """Query, key and value, [D, 3, H, K] here, and the dense layer after them, [H, K, D] here.

        Args:
            theirs: the dense layers of query, key and value, or the one that has them side by side.
            after: the dense layer after attention.
            ours: path of both.
            heads: H.
        """
        kernels, biases = (tuple(self.name(layer, end) for layer in theirs) for end in (self.kernel, self.bias))

        def joined_kernel(arrays):
            matrix = np.concatenate([self.to_matrix(array) for array in arrays], axis=1)
            return matrix.reshape(len(matrix), 3, heads, -1)

        def split_kernel(array):
            return [self.from_matrix(part) for part in np.split(array.reshape(len(array), -1), len(theirs), axis=1)]

        def after_kernel(arrays):
            matrix = self.to_matrix(arrays[0])
            return matrix.reshape(heads, -1, matrix.shape[-1])

        return [
            Entry(kernels, f"{ours}/qkv_kernel", joined_kernel, split_kernel),
            Entry(
                biases,
                f"{ours}/qkv_bias",
                lambda arrays: np.concatenate(arrays).reshape(3, heads, -1),
                lambda array: np.split(array.reshape(-1), len(theirs)),
            ),
            Entry(
                (self.name(after, self.kernel),),
                f"{ours}/out_kernel",
                after_kernel,
                lambda array: [self.from_matrix(array.reshape(-1, array.shape[-1]))],
            ),
            Entry((self.name(after, self.bias),), f"{ours}/out_bias"),
        ]


def bert_table(style: Style, heads: int, encoder: str, layer: str, transform: str, transform_norm: str) -> list[Entry]:
    """BERT's parameters, without the output layer's bias and the next-sentence head.

    Args:
        style: of the names.
        heads: H.
        encoder: name of all but the heads.
        layer: name of one layer, with "{i}".
        transform, transform_norm: names of the dense layer and norm before the output layer.
    """
    embeddings, blocks = f"{encoder}.embeddings", "body/blocks"
    three = [f"{layer}.attention.self.{part}" for part in ("query", "key", "value")]
    return [
        *style.table(f"{embeddings}.word_embeddings", "body/token_embedding"),
        *style.table(f"{embeddings}.position_embeddings", "body/position_embedding"),
        *style.table(f"{embeddings}.token_type_embeddings", "body/segment_embedding"),
        *style.norm(f"{embeddings}.LayerNorm", "body/embedding_norm"),
        *style.attention(three, f"{layer}.attention.output.dense", f"{blocks}/attention", heads),
        *style.norm(f"{layer}.attention.output.LayerNorm", f"{blocks}/attention_norm"),
        *style.dense(f"{layer}.intermediate.dense", f"{blocks}/up"),
        *style.dense(f"{layer}.output.dense", f"{blocks}/down"),
        *style.norm(f"{layer}.output.LayerNorm", f"{blocks}/feed_forward_norm"),
        *style.dense(f"{encoder}.pooler.dense", "body/pooler"),
        *style.dense(transform, "body/output/transform"),
        *style.norm(transform_norm, "body/output/transform_norm"),
    ]


def gpt_table(style: Style, heads: int, layer: str, tokens: str, positions: str) -> list[Entry]:
    """GPT's parameters, without GPT-2's last norm.

    Args:
        style: of the names.
        heads: H.
        layer: name of one layer, with "{i}".
        tokens, positions: names of the embeddings.
    """
    blocks = "body/blocks"
    return [
        *style.table(tokens, "body/token_embedding"),
        *style.table(positions, "body/position_embedding"),
        *style.attention([f"{layer}.attn.c_attn"], f"{layer}.attn.c_proj", f"{blocks}/attention", heads),
        *style.norm(f"{layer}.ln_1", f"{blocks}/attention_norm"),
        *style.dense(f"{layer}.mlp.c_fc", f"{blocks}/up"),
        *style.dense(f"{layer}.mlp.c_proj", f"{blocks}/down"),
        *style.norm(f"{layer}.ln_2", f"{blocks}/feed_forward_norm"),
    ]


def assembled(
    family: str,
    model: Mapping[str, Any],
    table: Sequence[Entry],
    tensors: Mapping[str, np.ndarray],
    weights: Path,
    tokenizer: Tokenizer,
    vocab_size: int,
    *,
    predicts: bool = True,
    pools: bool = False,
    next_sentence: bool = False,
    ways: Collection[str] | None = None,
) -> Imported:
    """A transformer from its tensors.

    Args:
        family: of transformers.
        model: keys of `config.model`, with all numbers; without `size` it is the nearest.
        table: of its parameters.
        tensors: by their names in the table.
        weights: where they were read from, for messages.
        tokenizer: as it was read; `fit_vocabulary` completes it.
        vocab_size: V.
        predicts, pools, next_sentence: whether the tensors have the output layer, the pooler and the next-sentence head.
        ways: in which a bidirectional body was trained to predict tokens (`bertlab.objectives.base.WAYS`); None for
            "at the mask".
    """
    config = base_config()
    config.model.update(family=family, **{"size": model.get("size") or _nearest_size(family, model)} | model)
    config.data.seq_len = min(config.data.seq_len, model.get("max_positions", config.data.seq_len))
    if model.get("segments", 0) < 2:
        config.data.format = "full_sentences"
    direction = model_direction(config.model)
    learned = _standing_for(direction, ways) if predicts else {}
    if objectives := [*learned] + ["nsp"] * next_sentence:
        add_objectives(config, "+".join(objectives))
    for name, settings in learned.items():
        config.objectives[name].update(settings)
    try:
        shapes = body_shapes(config, vocab_size, predicts=predicts, pools=pools)
    except UserError as error:
        raise UserError(f"{weights}: its config makes no model ({error})") from error
    if next_sentence:
        shape = lambda *axes: jax.ShapeDtypeStruct(axes, np.float32)
        shapes |= {"heads_nsp": {"kernel": shape(model["width"], 2), "bias": shape(2)}}
    params = read(table, tensors, shapes, weights)
    return Imported(config, params, fit_vocabulary(tokenizer, vocab_size, weights))


def _standing_for(direction: str, ways: Collection[str] | None) -> dict[str, dict[str, Any]]:
    """Objectives, with their settings, by which a body is scored, a bidirectional one in these ways; {} if in none of them."""
    if direction != "bidirectional":
        return {"rtl" if direction == "right-to-left" else "ltr": {}}
    if ways is None:
        return {"mlm": {}}
    found = {"mlm": {}} if "at the mask" in ways else {}
    if "before the mask" in ways:  # masked_next_token predicts in order too, if some of its rows do
        found["masked_next_token"] = {} if "in order" in ways else {"causal_share": 0.0}
    elif "in order" in ways:
        found["prefix"] = {}
    return found


def _nearest_size(family: str, model: Mapping[str, Any]) -> str:
    """The named size that is nearest in layers and width, with the norms in the same place."""
    sizes = {name: {**FAMILIES[family].values, **values} for name, values in FAMILIES[family].sizes.items()}
    placed = {name: size for name, size in sizes.items() if size["norm_placement"] == model.get("norm_placement", "post")}
    distance = lambda size: sum(abs(math.log(size[key] / model[key])) for key in ("layers", "width"))
    return min(placed, key=lambda name: distance(placed[name]))


def require_directory(source: Path, expected: str) -> None:
    """Refuses a source that is a file; `expected` describes the directory."""
    if not source.is_dir():
        raise UserError(f"{source} is a file; give the directory with {expected}")


def read_object(path: Path) -> dict[str, Any]:
    """Reads a JSON object. Raises: UserError: the file is missing or damaged, or holds another value."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path} holds {json.dumps(value)[:40]}; expected a JSON object, {{...}}")
    return value


def read_count(settings: Mapping[str, Any], key: str, path: Path, default: int | None = None) -> int:
    """A positive int32 of a config. Raises: UserError: it is something else, or missing without a default."""
    value = settings.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
        raise UserError(f"{path}: {key}={value!r} must be a positive whole number, below 2^31")
    return value


def read_float(settings: Mapping[str, Any], key: str, path: Path, default: float | None = None) -> float:
    """A number of a config, 0 or more. Raises: UserError: it is something else, or missing without a default."""
    value = settings.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise UserError(f"{path}: {key}={value!r} must be a number, 0 or more")
    return float(value)


def read_dropout(settings: Mapping[str, Any], keys: Sequence[str], path: Path, default: float | None = None) -> float:
    """The first of a config's dropout rates: bertlab uses that of hidden states everywhere. Prints a line if they differ.

    Raises:
        UserError: a rate is not a number, or the first is not below 1.
    """
    rates = {key: read_float(settings, key, path, default) for key in keys}
    if rates[keys[0]] >= 1:
        raise UserError(f"{path}: {keys[0]}={rates[keys[0]]} must be below 1")
    if len(set(rates.values())) > 1:
        described = ", ".join(f"{key}={rate}" for key, rate in rates.items())
        print(f"{path}: {described}; bertlab has one dropout rate, and uses {keys[0]}'s (only in training)", flush=True)
    return rates[keys[0]]


def fit_vocabulary(tokenizer: Tokenizer, vocab_size: int, source: Path) -> Tokenizer:
    """Extends a tokenizer to one piece for each row of the embedding.

    Embeddings often have a few more rows than pieces, to be a multiple of 64, say. Those rows get pieces "<unused_ID>" that no
    text contains, so an export keeps them; a printed line reports this.

    Args:
        tokenizer: of kind "wordpiece", "gpt1" or "json".
        vocab_size: V, rows of the embedding.
        source: for messages.

    Raises:
        UserError: the tokenizer has more pieces than the embedding has rows, or cannot be extended.
    """
    pieces = tokenizer.pieces()
    if len(pieces) == vocab_size:
        return tokenizer
    if len(pieces) > vocab_size:
        raise UserError(
            f"{source}: the tokenizer has {len(pieces)} pieces and the model {vocab_size}; check that the files belong to one"
            " model"
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
            f"{source}: the tokenizer has {len(pieces)} pieces and the model {vocab_size}, and no pieces can be added; add them"
            " to tokenizer.json, or cut the embedding to the tokenizer's size with resize_token_embeddings"
        )
    print(
        f"{source}: the tokenizer has {len(pieces)} pieces and the model {vocab_size}; rows {len(pieces)} to {vocab_size - 1}"
        " get names that no text contains",
        flush=True,
    )
    return fitted


def _extended(tokenizer: Tokenizer, names: list[str]) -> JsonTokenizer:
    """Adds special pieces that are never recognised in text."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(folder)
        file = Path(folder) / "tokenizer.json"
        backend = tokenizers.Tokenizer.from_file(str(file))
        backend.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in names])
        backend.save(str(file))
        special_ids = {role: getattr(tokenizer, f"{role}_id") for role in ("pad", "unk", "cls", "sep", "mask")}
        return JsonTokenizer.load(Path(folder), {"special_ids": special_ids})
