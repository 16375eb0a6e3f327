"""Tiny models in the form in which they are published, with seeded weights; and rows to read."""

import functools
import json
from pathlib import Path

import jax
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file

from bertlab.config.defaults import base_config
from bertlab.contrib import roberta_gpt1
from bertlab.data.tokenizers import SPECIALS, load_tokenizer
from bertlab.interop import huggingface
from bertlab.interop.base import Model
from bertlab.models.presets import body_shapes, build_body, model_direction, model_shape
from bertlab.train.recipes import add_objectives

LAYERS, WIDTH, HEADS, HIDDEN, POSITIONS, VOCAB = 2, 16, 2, 64, 20, 40
CORE, RARE = ("bert", "gpt2", "modernbert"), ("roberta", "openai-gpt")
PUBLISHED = (*CORE, *(pytest.param(kind, marks=pytest.mark.nightly) for kind in RARE))

_BERT = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": HIDDEN,
    "hidden_act": "gelu",
    "initializer_range": 0.02,
}
_GPT = dict(vocab_size=VOCAB, n_positions=POSITIONS, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS)
CONFIGS = {
    "bert": _BERT
    | {"architectures": ["BertForPreTraining"], "max_position_embeddings": POSITIONS}
    | {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0},
    "roberta": _BERT
    | {"architectures": ["RobertaForMaskedLM"], "max_position_embeddings": POSITIONS + 2}
    | {"type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1},
    "openai-gpt": _GPT | {"architectures": ["OpenAIGPTLMHeadModel"], "afn": "gelu"},
    "gpt2": _GPT | {"architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new"},
    "modernbert": {name: value for name, value in _BERT.items() if name != "hidden_act"}
    | {"architectures": ["ModernBertForMaskedLM"], "max_position_embeddings": POSITIONS}
    | {"local_attention": 4, "global_attn_every_n_layers": 2, "pad_token_id": 0}
    | {"num_hidden_layers": 3, "local_rope_theta": 5.0},
}


def _pair(name: str, *size: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": size, f"{name}.bias": size[:1]}


def _conv(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (inputs, outputs), f"{name}.bias": (outputs,)}


def _bert(body: str, positions: int, segments: int) -> dict[str, tuple[int, ...]]:
    embeddings = f"{body}.embeddings"
    shapes = {
        f"{embeddings}.word_embeddings.weight": (VOCAB, WIDTH),
        f"{embeddings}.position_embeddings.weight": (positions, WIDTH),
        f"{embeddings}.token_type_embeddings.weight": (segments, WIDTH),
        **_pair(f"{embeddings}.LayerNorm", WIDTH),
    }
    for i in range(LAYERS):
        layer = f"{body}.encoder.layer.{i}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= _pair(f"{layer}.attention.{name}", WIDTH, WIDTH)
        shapes |= _pair(f"{layer}.attention.output.LayerNorm", WIDTH)
        shapes |= _pair(f"{layer}.intermediate.dense", HIDDEN, WIDTH)
        shapes |= _pair(f"{layer}.output.dense", WIDTH, HIDDEN)
        shapes |= _pair(f"{layer}.output.LayerNorm", WIDTH)
    return shapes


def _gpt(tokens: str, positions: str) -> dict[str, tuple[int, ...]]:
    shapes = {
        f"transformer.{tokens}.weight": (VOCAB, WIDTH),
        f"transformer.{positions}.weight": (POSITIONS, WIDTH),
    }
    for i in range(LAYERS):
        layer = f"transformer.h.{i}"
        shapes |= _conv(f"{layer}.attn.c_attn", WIDTH, 3 * WIDTH)
        shapes |= _conv(f"{layer}.attn.c_proj", WIDTH, WIDTH)
        shapes |= _conv(f"{layer}.mlp.c_fc", WIDTH, HIDDEN) | _conv(
            f"{layer}.mlp.c_proj", HIDDEN, WIDTH
        )
        shapes |= _pair(f"{layer}.ln_1", WIDTH) | _pair(f"{layer}.ln_2", WIDTH)
    return shapes


def _modernbert() -> dict[str, tuple[int, ...]]:
    shapes = {
        "model.embeddings.tok_embeddings.weight": (VOCAB, WIDTH),
        "model.embeddings.norm.weight": (WIDTH,),
        "model.final_norm.weight": (WIDTH,),
        "head.dense.weight": (WIDTH, WIDTH),
        "head.norm.weight": (WIDTH,),
        "decoder.bias": (VOCAB,),
    }
    for i in range(3):
        layer = f"model.layers.{i}"
        shapes |= {f"{layer}.attn_norm.weight": (WIDTH,)} if i else {}
        shapes |= {
            f"{layer}.attn.Wqkv.weight": (3 * WIDTH, WIDTH),
            f"{layer}.attn.Wo.weight": (WIDTH, WIDTH),
            f"{layer}.mlp_norm.weight": (WIDTH,),
            f"{layer}.mlp.Wi.weight": (2 * HIDDEN, WIDTH),
            f"{layer}.mlp.Wo.weight": (WIDTH, HIDDEN),
        }
    return shapes


SHAPES = {
    "bert": {
        **_bert("bert", POSITIONS, 2),
        **_pair("bert.pooler.dense", WIDTH, WIDTH),
        **_pair("cls.predictions.transform.dense", WIDTH, WIDTH),
        **_pair("cls.predictions.transform.LayerNorm", WIDTH),
        "cls.predictions.bias": (VOCAB,),
        **_pair("cls.seq_relationship", 2, WIDTH),
    },
    "roberta": {
        **_bert("roberta", POSITIONS + 2, 1),
        **_pair("lm_head.dense", WIDTH, WIDTH),
        **_pair("lm_head.layer_norm", WIDTH),
        "lm_head.bias": (VOCAB,),
    },
    "openai-gpt": _gpt("tokens_embed", "positions_embed"),
    "gpt2": {**_gpt("wte", "wpe"), **_pair("transformer.ln_f", WIDTH)},
    "modernbert": _modernbert(),
}


def draw(shapes, seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays of these shapes in the order of names: scales of norms about 1, all else about 0."""
    rng = np.random.default_rng(seed)
    drawn = {name: 0.3 * rng.standard_normal(shapes[name]) for name in sorted(shapes)}
    return {
        name: np.float32(array + (array.ndim == 1 and name.endswith("weight")))
        for name, array in drawn.items()
    }


def weights(kind: str, vocab: int = VOCAB) -> dict[str, np.ndarray]:
    """The tensors of a kind under their published names, with so many rows for tokens."""
    sizes = {
        name: tuple(vocab if size == VOCAB else size for size in shape)
        for name, shape in SHAPES[kind].items()
    }
    return draw(sizes)


def write_tokenizer(kind: str, directory: Path, size: int = VOCAB) -> None:
    """The files of a tokenizer of so many pieces; BERT's is a vocab.txt."""
    names = {
        "bert": [*SPECIALS],
        "roberta": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        "modernbert": [*SPECIALS],
    }.get(kind, ["<|endoftext|>"])
    letters = [chr(ord("a") + i) for i in range(26)]
    pieces = [*names, *letters, *(f"word{i}" for i in range(size))][:size]
    if kind == "bert":
        (directory / "vocab.txt").write_text("\n".join(pieces) + "\n")
        return
    ids = {piece: index for index, piece in enumerate(pieces)}
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(ids, unk_token=names[-2 % len(names)])
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.add_special_tokens(names)
    backend.save(str(directory / "tokenizer.json"))


def write_directory(kind: str, directory: Path, tensors=None, **config) -> Path:
    """A directory as transformers writes it; `config` replaces keys of config.json."""
    directory.mkdir(parents=True)
    settings = {"model_type": kind, **CONFIGS[kind], **config}
    (directory / "config.json").write_text(json.dumps(settings))
    path = directory / "model.safetensors"
    save_file(weights(kind) if tensors is None else tensors, path, metadata={"format": "pt"})
    write_tokenizer(kind, directory)
    return directory


def rows(seed: int = 1) -> dict[str, np.ndarray]:
    """Two rows of one document, with segments and padding, and two of two documents; [4, 12]."""
    rng = np.random.default_rng(seed)
    names = ("tokens", "segments", "documents", "positions")
    fields = {name: np.zeros((4, 12), np.int32) for name in names}
    for row, lengths in enumerate([(12,), (7,), (5, 4), (3, 9)]):
        start = 0
        for document, length in enumerate(lengths, 1):
            span = slice(start, start + length)
            fields["tokens"][row, span] = rng.integers(5, VOCAB, length)
            fields["documents"][row, span] = document
            fields["positions"][row, span] = np.arange(length)
            fields["segments"][row, span] = np.arange(length) >= length // 2
            start += length
    return fields


def random_model(directory: Path, pools=False, objectives="", settings=None, **model) -> Model:
    """A model with random parameters and a tokenizer of BERT's.

    Args:
        directory: new; for the vocabulary.
        pools: with a pooler.
        objectives: names; "": the language model of the direction.
        settings: keys of `config.objectives`.
        **model: keys of `config.model`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_tokenizer("bert", directory)
    config = base_config()
    config.model.update({"width": 16, "heads": 2, "hidden": 24, "epsilon": 1e-5} | model)
    directions = {"left-to-right": "ltr", "right-to-left": "rtl"}
    for name in (objectives or directions.get(model_direction(config.model), "mlm")).split("+"):
        add_objectives(config, name)
    config.objectives.update_from_flattened_dict(settings or {})
    shapes = body_shapes(model_shape(config.model, VOCAB), pools=pools)
    rng = np.random.default_rng(0)

    def value(path, leaf):
        scale = path[-1].key == "scale"
        return np.float32(0.2 * rng.standard_normal(leaf.shape) + scale)

    params = {"body": jax.tree.map_with_path(value, shapes)}
    return Model(config, params, load_tokenizer(directory))


def compute(model: Model, view) -> dict[str, np.ndarray]:
    """`layers` [n + 1, B, L, D], and what the parameters are there for: `logits`, `pooled`,
    `nsp`."""
    shape = model_shape(model.config.model, model.tokenizer.vocab_size)
    params = model.params

    def outputs(body):
        encoded, _ = body.encode(view)
        side, layers = encoded.widest()
        found = {"layers": layers}
        if "output" in params["body"] or not (shape.output_transform or shape.output_bias):
            found["logits"] = body.predict_tokens(layers[-1], side)
        if "pooler" in params["body"]:
            found["pooled"] = body.pool(encoded, view)
        return found

    apply = jax.jit(functools.partial(build_body(shape).apply, method=outputs))
    found = jax.tree.map(np.asarray, apply({"params": params["body"]}))
    found["layers"] = np.stack(found["layers"])
    if "heads_nsp" in params:
        head = params["heads_nsp"]
        found["nsp"] = found["pooled"] @ head["kernel"] + head["bias"]
    return found


def assert_close(ours, theirs, view) -> None:
    """Equal within 1e-5 where there is a token."""
    assert set(ours) == set(theirs)
    real = view["documents"] > 0
    for name, expected in theirs.items():
        found = ours[name]
        if name in ("layers", "logits"):
            found, expected = found[..., real, :], expected[..., real, :]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5, err_msg=name)


def module_of(kind: str):
    """The module that reads and writes a kind."""
    return roberta_gpt1 if kind in RARE else huggingface


def type_of(model: Model, kinds=huggingface.KINDS) -> str:
    """The first kind that computes what a model does."""
    shape = model_shape(model.config.model, VOCAB)
    names = [name for name, kind in kinds.items() if kind.fits(shape, model.params, 0, True)]
    return [*names, "bertlab"][0]
