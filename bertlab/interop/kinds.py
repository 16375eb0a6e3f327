"""The kinds of transformers that bertlab reads and writes, by their model_type."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from bertlab.errors import UserError, require_choice
from bertlab.interop.layers import bert_table, dense, gpt_table, modernbert_table, own_table
from bertlab.interop.tensors import Entry, flatten
from bertlab.models.transformer import TransformerShape

ACTIVATIONS = {
    "gelu": "gelu_erf",
    "gelu_python": "gelu_erf",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}
"""transformers' names, and config.model.activation."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """One model_type of transformers: how its config.json is read and written."""

    family: str  # bertlab's name
    table: Callable[[int], list[Entry]]  # (attention heads) -> the table of its parameters
    prefix: str  # of the body's tensors; the plain model's file lacks it
    tied: tuple[str, str]  # names of the embeddings and of the output matrix, which is the same
    keys: Mapping[str, str]  # of config.model, and their names in config.json
    # Its classes, by whether they have an output layer and the next-sentence head.
    architectures: Mapping[tuple[bool, bool], str]
    dropouts: tuple[str, ...]  # keys of config.json; the first is read, all are written
    # What config.model has in every such model, and also if the model predicts tokens.
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    head: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # Keys of config.json: their defaults; the one value that bertlab supports; the key whose value
    # they must share.
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    only: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    equal: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Names in config.json, and config.model.activation.
    activations: Mapping[str, str] = dataclasses.field(default_factory=lambda: ACTIVATIONS)
    buffers: str = r"(?!)"  # pattern of tensors that are not weights
    # config.json -> more keys of config.model; shape -> more keys of config.json.
    read_more: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda settings: {}
    write_more: Callable[[TransformerShape], dict[str, Any]] = lambda shape: {}

    def read(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Keys of config.model from a config.json."""
        settings = {**self.defaults, **{k: v for k, v in settings.items() if v is not None}}
        equal = {key: settings.get(other) for key, other in self.equal.items()}
        for key, value in {**self.only, **equal}.items():
            require_choice(f"config.json: {key}", settings.get(key, value), [value])
        values = {ours: settings[theirs] for ours, theirs in self.keys.items()}
        key = f"config.json: {self.keys['activation']}"
        require_choice(key, values["activation"], self.activations)
        return {
            **self.fixed,
            **self.head,
            **values,
            "activation": self.activations[values["activation"]],
            "dropout": settings.get(self.dropouts[0], 0.1),
            **self.read_more(settings),
        }

    def write(self, shape: TransformerShape) -> dict[str, Any]:
        """Keys of config.json for a shape."""
        written = {theirs: getattr(shape, ours) for ours, theirs in self.keys.items()}
        names = {ours: theirs for theirs, ours in reversed(self.activations.items())}
        written[self.keys["activation"]] = names[shape.activation]
        return {
            **self.only,
            **written,
            **{key: written[other] for key, other in self.equal.items()},
            **dict.fromkeys(self.dropouts, shape.dropout),
            **self.write_more(shape),
        }

    def fits(self, shape: TransformerShape, params, pad_id: int, predicts: bool) -> bool:
        """Whether it computes exactly what a model does: its config says all there is of the shape,
        and its table has all parameters of the body."""
        names = {path for entry in self.table(shape.heads) for path in entry.ours}
        if not set(flatten({"body": params["body"]})) <= names or shape.times_base != 1:
            return False
        if shape.activation not in self.activations.values():
            return False
        if "segments" in self.keys and not shape.segments:  # such a model always has some
            return False
        values = self.read({**self.write(shape), "pad_token_id": pad_id})
        without = {} if predicts else self.head
        return all(getattr(shape, k) == v for k, v in values.items() if k not in without)


FIXED = dict(norm="layer_norm", first_norm=True, gated=False, use_bias=True, local_window=0)
FIXED |= dict(position_encoding="learned", position_offset=0)
BERT_KEYS = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "hidden": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "init_stddev": "initializer_range",
}


def _bert_table(heads: int) -> list[Entry]:
    names = ("bert", "cls.predictions", "transform.dense", "transform.LayerNorm")
    return [*bert_table(*names, heads), *dense("cls.seq_relationship", "heads_nsp")]


BERT = Kind(
    family="bert",
    table=_bert_table,
    prefix="bert.",
    tied=("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
    keys=BERT_KEYS
    | dict(segments="type_vocab_size", epsilon="layer_norm_eps", activation="hidden_act"),
    fixed=FIXED
    | dict(embedding_norm=True, norm_placement="post", final_norm=False, direction="bidirectional"),
    head=dict(output_transform=True, tied=True, output_bias=True),
    dropouts=("hidden_dropout_prob", "attention_probs_dropout_prob"),
    defaults=dict(
        hidden_act="gelu", initializer_range=0.02, layer_norm_eps=1e-12, type_vocab_size=2
    ),
    only=dict(is_decoder=False, add_cross_attention=False, tie_word_embeddings=True)
    | dict(position_embedding_type="absolute"),
    architectures={
        (True, True): "BertForPreTraining",
        (True, False): "BertForMaskedLM",
        (False, True): "BertForNextSentencePrediction",
        (False, False): "BertModel",
    },
    buffers=r"bert\.embeddings\.(position_ids|token_type_ids)",
)


def _read_modernbert(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary bases and local layers as transformers 4 or 5 writes them."""
    ropes = settings.get("rope_parameters") or {
        "full_attention": {"rope_theta": settings["global_rope_theta"]},
        "sliding_attention": {"rope_theta": settings["local_rope_theta"]},
    }
    if any(rope.get("rope_type", "default") != "default" for rope in ropes.values()):
        raise UserError(f"config.json: rope_parameters={ropes}; bertlab has rope_type 'default'")
    layers, every = settings["num_hidden_layers"], settings["global_attn_every_n_layers"]
    if types := settings.get("layer_types"):
        full = [layer for layer in range(layers) if types[layer] == "full_attention"]
        every = full[1] if len(full) > 1 else layers
        if full != list(range(0, layers, every)):
            raise UserError(
                f"config.json: layer_types={types}; full attention is in each n-th layer"
            )
    values = {"rotary_base": float(ropes["full_attention"]["rope_theta"])}
    if every == 1:
        return {**values, "local_window": 0}
    values["rotary_base_local"] = float(ropes["sliding_attention"]["rope_theta"])
    return {**values, "local_window": settings["local_attention"], "global_every": every}


def _write_modernbert(shape: TransformerShape) -> dict[str, Any]:
    """With the names of transformers 4, which transformers 5 reads too."""
    return {
        "global_attn_every_n_layers": shape.global_every if shape.local_window else 1,
        "local_attention": shape.local_window or 128,
        "global_rope_theta": shape.rotary_base,
        "local_rope_theta": shape.rotary_base_local,
    }


MODERNBERT = Kind(
    family="modern",
    table=modernbert_table,
    prefix="model.",
    tied=("model.embeddings.tok_embeddings.weight", "decoder.weight"),
    keys=BERT_KEYS
    | dict(epsilon="norm_eps", output_bias="decoder_bias", use_bias="norm_bias")
    | dict(activation="hidden_activation"),
    fixed=dict(norm="layer_norm", norm_placement="pre", first_norm=False, final_norm=True)
    | dict(embedding_norm=True, gated=True, position_encoding="rotary", segments=0)
    | dict(direction="bidirectional"),
    head=dict(output_transform=True, tied=True),
    dropouts=("mlp_dropout", "embedding_dropout", "attention_dropout"),
    defaults=dict(
        hidden_activation="gelu",
        initializer_range=0.02,
        norm_eps=1e-5,
        norm_bias=False,
        decoder_bias=True,
        max_position_embeddings=8192,
        global_attn_every_n_layers=3,
        local_attention=128,
        global_rope_theta=160_000.0,
        local_rope_theta=10_000.0,
        mlp_dropout=0.0,
    ),
    only=dict(tie_word_embeddings=True),
    equal=dict.fromkeys(("attention_bias", "mlp_bias", "classifier_bias"), "norm_bias")
    | dict(classifier_activation="hidden_activation"),
    architectures={(True, False): "ModernBertForMaskedLM", (False, False): "ModernBertModel"},
    read_more=_read_modernbert,
    write_more=_write_modernbert,
)


def _gpt2_table(heads: int) -> list[Entry]:
    return gpt_table("wte", "wpe", heads)


GPT2 = Kind(
    family="gpt",
    table=_gpt2_table,
    prefix="transformer.",
    tied=("transformer.wte.weight", "lm_head.weight"),
    keys={
        "layers": "n_layer",
        "width": "n_embd",
        "heads": "n_head",
        "max_positions": "n_positions",
        "epsilon": "layer_norm_epsilon",
        "init_stddev": "initializer_range",
        "activation": "activation_function",
    },
    fixed=FIXED
    | dict(embedding_norm=False, segments=0, norm_placement="pre", final_norm=True)
    | dict(direction="left-to-right"),
    head=dict(output_transform=False, tied=True, output_bias=False),
    dropouts=("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    defaults=dict(activation_function="gelu_new", layer_norm_epsilon=1e-5, initializer_range=0.02),
    only=dict(add_cross_attention=False, tie_word_embeddings=True)
    | dict(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False),
    architectures={(True, False): "GPT2LMHeadModel", (False, False): "GPT2Model"},
    buffers=r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",
    read_more=lambda settings: {"hidden": settings.get("n_inner") or 4 * settings["n_embd"]},
    write_more=lambda shape: {"n_inner": shape.hidden},
)

# How a model is computed, or keys that are read elsewhere.
NO_KEYS = ("dtype", "remat", "scan_layers", "attention", "vocab_size", "position_buckets")
NO_KEYS += ("dropout",)
OWN_KEYS = [field.name for field in dataclasses.fields(TransformerShape)]
OWN = Kind(
    family="bert",
    table=own_table,
    prefix="model.",
    tied=("model.token_embedding.weight", "output.decoder.weight"),
    keys={name: name for name in OWN_KEYS if name not in NO_KEYS} | {"tied": "tie_word_embeddings"},
    dropouts=("dropout",),
    architectures={(True, False): "BertlabForMaskedLM", (False, False): "BertlabModel"},
    activations={name: name for name in ACTIVATIONS.values()},
)

KINDS = {"bert": BERT, "modernbert": MODERNBERT, "gpt2": GPT2, "bertlab": OWN}
"""A model is written as the first that fits, otherwise as `OWN`, which any transformer can be."""
