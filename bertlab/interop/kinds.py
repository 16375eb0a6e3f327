"""The kinds of transformers that bertlab reads and writes, by their model_type.

A kind is data: the names of config.json's keys, and the values that `config.model` always has. The
same data read a config, write one, and decide whether the kind computes what a model does.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from bertlab.errors import UserError
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
    """One model_type of transformers.

    Attributes:
        family: bertlab's.
        table: of its parameters, by the number of attention heads.
        prefix: of the body's tensors; the plain model's file lacks it.
        tied: names of the embeddings and of the output matrix, which is the same.
        keys: of config.model, and their names in config.json.
        fixed: what config.model has in every such model.
        head: what it also has if the model predicts tokens.
        activation: keys of config.json with the name of the activation.
        dropouts: keys of config.json; the first is read.
        defaults: of config.json's keys.
        only: keys of config.json, and the value that bertlab computes.
        architectures: names of its classes, by whether they have an output layer and the
            next-sentence head.
        activations: names in config.json, and config.model.activation.
        buffers: pattern of tensors that are no weights.
        read_more: config.json -> more keys of config.model.
        write_more: shape -> more keys of config.json.
    """

    family: str
    table: Callable[[int], list[Entry]]
    prefix: str
    tied: tuple[str, str]
    keys: Mapping[str, str]
    fixed: Mapping[str, Any]
    head: Mapping[str, Any]
    activation: tuple[str, ...]
    dropouts: tuple[str, ...]
    defaults: Mapping[str, Any]
    only: Mapping[str, Any]
    architectures: Mapping[tuple[bool, bool], str]
    activations: Mapping[str, str] = dataclasses.field(default_factory=lambda: ACTIVATIONS)
    buffers: str = r"(?!)"
    read_more: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda settings: {}
    write_more: Callable[[TransformerShape], dict[str, Any]] = lambda shape: {}

    def read(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Keys of config.model from a config.json."""
        settings = {**self.defaults, **{k: v for k, v in settings.items() if v is not None}}
        for key, value in self.only.items():
            if settings.get(key, value) != value:
                raise UserError(f"{key}={settings[key]!r}, but bertlab computes {value!r}")
        names = [settings[key] for key in self.activation]
        if len(set(names)) > 1 or names[0] not in self.activations:
            choices = ", ".join(self.activations)
            found = ", ".join(f"{key}={name!r}" for key, name in zip(self.activation, names))
            raise UserError(f"{found} must be one of {choices}")
        rates = {key: settings.get(key, 0.1) for key in self.dropouts}
        if len(set(rates.values())) > 1:
            print(f"of {rates} the first is used everywhere", flush=True)
        return {
            **self.fixed,
            **self.head,
            **{ours: settings[theirs] for ours, theirs in self.keys.items()},
            "activation": self.activations[names[0]],
            "dropout": rates[self.dropouts[0]],
            **self.read_more(settings),
        }

    def write(self, shape: TransformerShape) -> dict[str, Any]:
        """Keys of config.json for a shape."""
        activation = next(k for k, v in self.activations.items() if v == shape.activation)
        return {
            **self.only,
            **{theirs: getattr(shape, ours) for ours, theirs in self.keys.items()},
            **dict.fromkeys(self.activation, activation),
            **dict.fromkeys(self.dropouts, shape.dropout),
            **self.write_more(shape),
        }

    def fits(self, shape: TransformerShape, params, pad_id: int, predicts: bool) -> bool:
        """Whether it computes exactly what a model does: its config says everything of the shape,
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
    | {
        "max_positions": "max_position_embeddings",
        "segments": "type_vocab_size",
        "epsilon": "layer_norm_eps",
    },
    fixed=FIXED
    | dict(embedding_norm=True, norm_placement="post", final_norm=False, direction="bidirectional"),
    head=dict(output_transform=True, tied=True, output_bias=True),
    activation=("hidden_act",),
    dropouts=("hidden_dropout_prob", "attention_probs_dropout_prob"),
    defaults=dict(
        hidden_act="gelu", initializer_range=0.02, layer_norm_eps=1e-12, type_vocab_size=2
    ),
    only=dict(
        is_decoder=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
        position_embedding_type="absolute",
    ),
    architectures={
        (True, True): "BertForPreTraining",
        (True, False): "BertForMaskedLM",
        (False, True): "BertForNextSentencePrediction",
        (False, False): "BertModel",
    },
    buffers=r"bert\.embeddings\.(position_ids|token_type_ids)",
)


def _read_roberta(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Positions count from the id of padding + 1."""
    offset = settings.get("pad_token_id", 1) + 1
    return {
        "position_offset": offset,
        "max_positions": settings["max_position_embeddings"] - offset,
    }


ROBERTA = dataclasses.replace(
    BERT,
    table=functools.partial(bert_table, "roberta", "lm_head", "dense", "layer_norm"),
    prefix="roberta.",
    tied=("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
    activations={"gelu": "gelu_erf"},  # the head always has it
    architectures={(True, False): "RobertaForMaskedLM", (False, False): "RobertaModel"},
    buffers=r"roberta\.embeddings\.(position_ids|token_type_ids)",
    read_more=_read_roberta,
    write_more=lambda shape: {
        "max_position_embeddings": shape.max_positions + shape.position_offset
    },
)


def _read_modernbert(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of transformers 4 or 5."""
    ropes = settings.get("rope_parameters") or {}
    if any(rope.get("rope_type", "default") != "default" for rope in ropes.values()):
        raise UserError(f"rope_parameters={ropes}: bertlab computes the rope_type 'default'")
    bases = {
        layer: ropes.get(layer, {}).get("rope_theta", settings.get(old) or usual)
        for layer, old, usual in (
            ("full_attention", "global_rope_theta", 160_000.0),
            ("sliding_attention", "local_rope_theta", 10_000.0),
        )
    }
    layers, types = settings["num_hidden_layers"], settings.get("layer_types")
    every = settings["global_attn_every_n_layers"]
    if types:
        every = next((n for n in range(1, layers + 1) if types == layer_types(layers, n)), None)
        if every is None:
            raise UserError(f"layer_types={types}: bertlab has full attention in each n-th layer")
    biases = {key: settings.get(key, False) for key in BIASES}
    if len(set(biases.values())) > 1:
        raise UserError(f"{biases} must be equal: bertlab has one use_bias")
    values = {"use_bias": biases["norm_bias"], "rotary_base": float(bases["full_attention"])}
    if every == 1:
        return {**values, "local_window": 0}
    return {
        **values,
        "local_window": settings["local_attention"],
        "global_every": every,
        "rotary_base_local": float(bases["sliding_attention"]),
    }


def layer_types(layers: int, every: int) -> list[str]:
    """ModernBERT's, where layers 0, n, 2n, ... see everything."""
    return ["sliding_attention" if i % every else "full_attention" for i in range(layers)]


def _write_modernbert(shape: TransformerShape) -> dict[str, Any]:
    """With the names of transformers 4, which transformers 5 reads too."""
    return {
        **dict.fromkeys(BIASES, shape.use_bias),
        "global_attn_every_n_layers": shape.global_every if shape.local_window else 1,
        "local_attention": shape.local_window or 128,
        "global_rope_theta": shape.rotary_base,
        "local_rope_theta": shape.rotary_base_local,
    }


BIASES = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias")
MODERNBERT = Kind(
    family="modern",
    table=modernbert_table,
    prefix="model.",
    tied=("model.embeddings.tok_embeddings.weight", "decoder.weight"),
    keys=BERT_KEYS
    | {
        "max_positions": "max_position_embeddings",
        "epsilon": "norm_eps",
        "output_bias": "decoder_bias",
    },
    fixed=dict(
        norm="layer_norm",
        norm_placement="pre",
        first_norm=False,
        final_norm=True,
        embedding_norm=True,
        gated=True,
        position_encoding="rotary",
        segments=0,
        direction="bidirectional",
    ),
    head=dict(output_transform=True, tied=True),
    activation=("hidden_activation", "classifier_activation"),
    dropouts=("mlp_dropout", "embedding_dropout", "attention_dropout"),
    defaults=dict(
        hidden_activation="gelu",
        classifier_activation="gelu",
        initializer_range=0.02,
        norm_eps=1e-5,
        decoder_bias=True,
        max_position_embeddings=8192,
        global_attn_every_n_layers=3,
        local_attention=128,
        mlp_dropout=0.0,
        embedding_dropout=0.0,
        attention_dropout=0.0,
    ),
    only=dict(tie_word_embeddings=True),
    architectures={(True, False): "ModernBertForMaskedLM", (False, False): "ModernBertModel"},
    read_more=_read_modernbert,
    write_more=_write_modernbert,
)

GPT2 = Kind(
    family="gpt",
    table=functools.partial(gpt_table, "wte", "wpe"),
    prefix="transformer.",
    tied=("transformer.wte.weight", "lm_head.weight"),
    keys={
        "layers": "n_layer",
        "width": "n_embd",
        "heads": "n_head",
        "max_positions": "n_positions",
        "epsilon": "layer_norm_epsilon",
        "init_stddev": "initializer_range",
    },
    fixed=FIXED
    | dict(embedding_norm=False, segments=0, norm_placement="pre", final_norm=True)
    | dict(direction="left-to-right"),
    head=dict(output_transform=False, tied=True, output_bias=False),
    activation=("activation_function",),
    dropouts=("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    defaults=dict(activation_function="gelu_new", layer_norm_epsilon=1e-5, initializer_range=0.02),
    only=dict(
        add_cross_attention=False,
        tie_word_embeddings=True,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
    ),
    architectures={(True, False): "GPT2LMHeadModel", (False, False): "GPT2Model"},
    buffers=r"transformer\.h\.\d+\.attn\.(bias|masked_bias)",
    read_more=lambda settings: {"hidden": settings.get("n_inner") or 4 * settings["n_embd"]},
    write_more=lambda shape: {"n_inner": shape.hidden},
)

GPT1 = dataclasses.replace(
    GPT2,
    table=functools.partial(gpt_table, "tokens_embed", "positions_embed"),
    tied=("transformer.tokens_embed.weight", "lm_head.weight"),
    fixed=dict(GPT2.fixed) | dict(norm_placement="post", final_norm=False),
    activation=("afn",),
    # modeling_openai.py's "gelu" is the tanh approximation.
    activations={"gelu": "gelu_tanh", "relu": "relu", "silu": "silu"},
    defaults=dict(afn="gelu", layer_norm_epsilon=1e-5, initializer_range=0.02),
    only=dict(tie_word_embeddings=True),
    architectures={(True, False): "OpenAIGPTLMHeadModel", (False, False): "OpenAIGPTModel"},
    buffers=r"transformer\.(h\.\d+\.attn\.bias|position_ids)",
    read_more=lambda settings: {"hidden": 4 * settings["n_embd"]},
    write_more=lambda shape: {},
)

# How a model is computed, or read elsewhere.
NO_KEYS = ("dtype", "remat", "scan_layers", "attention", "vocab_size", "position_buckets")
NO_KEYS += ("activation", "dropout")
OWN_KEYS = [field.name for field in dataclasses.fields(TransformerShape)]
OWN = Kind(
    family="bert",
    table=own_table,
    prefix="model.",
    tied=("model.token_embedding.weight", "output.decoder.weight"),
    keys={name: name for name in OWN_KEYS if name not in NO_KEYS} | {"tied": "tie_word_embeddings"},
    fixed={},
    head={},
    activation=("activation",),
    dropouts=("dropout",),
    defaults={},
    only={},
    architectures={(True, False): "BertlabForMaskedLM", (False, False): "BertlabModel"},
    activations={name: name for name in ACTIVATIONS.values()},
)

KINDS = {
    "bert": BERT,
    "roberta": ROBERTA,
    "modernbert": MODERNBERT,
    "openai-gpt": GPT1,
    "gpt2": GPT2,
    "bertlab": OWN,
}
