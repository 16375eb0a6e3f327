"""Tiny models in the form in which they are published, with weights drawn by a seeded generator; and what to show them."""

import functools
import json
from pathlib import Path

import jax
import numpy as np
import tokenizers
from safetensors.numpy import save_file

from bertlab.config import add_objectives, base_config
from bertlab.data.tokenizers import load_tokenizer
from bertlab.interop.base import Imported
from bertlab.models.presets import body_shapes, build_body, model_direction, model_shape
from tests.references import quick_jit
from tests.tokenizer_files import write_byte_level, write_gpt1

LAYERS, WIDTH, HEADS, HIDDEN, POSITIONS, VOCAB = 2, 16, 2, 64, 20, 40
LETTERS = [chr(ord("a") + i) for i in range(26)]
KINDS = ("bert", "roberta", "openai-gpt", "gpt2")

_BERT = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": HIDDEN,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}
_GPT = {"vocab_size": VOCAB, "n_positions": POSITIONS, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
CONFIGS = {
    "bert": _BERT
    | {"model_type": "bert", "architectures": ["BertForPreTraining"], "max_position_embeddings": POSITIONS}
    | {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0},
    "roberta": _BERT
    | {"model_type": "roberta", "architectures": ["RobertaForMaskedLM"], "max_position_embeddings": POSITIONS + 2}
    | {"type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2},
    "openai-gpt": _GPT | {"model_type": "openai-gpt", "architectures": ["OpenAIGPTLMHeadModel"], "afn": "gelu"},
    "gpt2": _GPT
    | {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new"}
    | {"bos_token_id": 0, "eos_token_id": 0},
}


def _pair(name: str, out: int, into: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def _norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (WIDTH,), f"{name}.bias": (WIDTH,)}


def _encoder(prefix: str, positions: int, segments: int) -> dict[str, tuple[int, ...]]:
    shapes = {
        f"{prefix}.embeddings.word_embeddings.weight": (VOCAB, WIDTH),
        f"{prefix}.embeddings.position_embeddings.weight": (positions, WIDTH),
        f"{prefix}.embeddings.token_type_embeddings.weight": (segments, WIDTH),
        **_norm(f"{prefix}.embeddings.LayerNorm"),
    }
    for i in range(LAYERS):
        layer = f"{prefix}.encoder.layer.{i}"
        for part in ("query", "key", "value"):
            shapes |= _pair(f"{layer}.attention.self.{part}", WIDTH, WIDTH)
        shapes |= _pair(f"{layer}.attention.output.dense", WIDTH, WIDTH) | _norm(f"{layer}.attention.output.LayerNorm")
        shapes |= _pair(f"{layer}.intermediate.dense", HIDDEN, WIDTH) | _pair(f"{layer}.output.dense", WIDTH, HIDDEN)
        shapes |= _norm(f"{layer}.output.LayerNorm")
    return shapes


def _decoder(tokens: str, positions: str) -> dict[str, tuple[int, ...]]:
    shapes = {f"transformer.{tokens}.weight": (VOCAB, WIDTH), f"transformer.{positions}.weight": (POSITIONS, WIDTH)}
    for i in range(LAYERS):
        layer = f"transformer.h.{i}"
        shapes |= {f"{layer}.attn.c_attn.weight": (WIDTH, 3 * WIDTH), f"{layer}.attn.c_attn.bias": (3 * WIDTH,)}
        shapes |= {f"{layer}.attn.c_proj.weight": (WIDTH, WIDTH), f"{layer}.attn.c_proj.bias": (WIDTH,)}
        shapes |= {f"{layer}.mlp.c_fc.weight": (WIDTH, HIDDEN), f"{layer}.mlp.c_fc.bias": (HIDDEN,)}
        shapes |= {f"{layer}.mlp.c_proj.weight": (HIDDEN, WIDTH), f"{layer}.mlp.c_proj.bias": (WIDTH,)}
        shapes |= _norm(f"{layer}.ln_1") | _norm(f"{layer}.ln_2")
    return shapes


SHAPES = {
    "bert": {
        **_encoder("bert", POSITIONS, 2),
        **_pair("bert.pooler.dense", WIDTH, WIDTH),
        **_pair("cls.predictions.transform.dense", WIDTH, WIDTH),
        **_norm("cls.predictions.transform.LayerNorm"),
        "cls.predictions.bias": (VOCAB,),
        **_pair("cls.seq_relationship", 2, WIDTH),
    },
    "roberta": {
        **_encoder("roberta", POSITIONS + 2, 1),
        **_pair("lm_head.dense", WIDTH, WIDTH),
        **_norm("lm_head.layer_norm"),
        "lm_head.bias": (VOCAB,),
    },
    "openai-gpt": _decoder("tokens_embed", "positions_embed"),
    "gpt2": {**_decoder("wte", "wpe"), **_norm("transformer.ln_f")},
}


def draw(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays of these shapes, in the order of names: norms' scales about 1, all else about 0."""
    rng = np.random.default_rng(seed)
    drawn = {name: 0.3 * rng.standard_normal(shapes[name]) for name in sorted(shapes)}
    # A norm's scale goes by .weight, .gamma or /g, and is the only vector that does.
    is_scale = lambda name, array: array.ndim == 1 and not name.endswith(("bias", "beta", "/b"))
    return {name: np.float32(array + is_scale(name, array)) for name, array in drawn.items()}


def weights(kind: str, vocab: int = VOCAB) -> dict[str, np.ndarray]:
    """The tensors of one kind under their published names, with this many rows for tokens."""
    return draw({name: tuple(vocab if size == VOCAB else size for size in shape) for name, shape in SHAPES[kind].items()})


def write_tokenizer(kind: str, directory: Path) -> None:
    """The files of a tokenizer of `VOCAB` pieces."""
    if kind == "bert":
        specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        (directory / "vocab.txt").write_text("\n".join(_filled(specials, LETTERS)) + "\n")
    elif kind == "openai-gpt":
        write_gpt1_vocabulary(directory / "vocab.json", directory / "merges.txt")
    else:
        names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if kind == "roberta" else ["<|endoftext|>"]
        pieces = _filled(names, LETTERS)
        model = tokenizers.models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token=names[-2 % len(names)])
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        tokenizer.add_special_tokens(names)
        tokenizer.save(str(directory / "tokenizer.json"))


def write_gpt1_vocabulary(vocabulary: Path, merges: Path, size: int = VOCAB) -> None:
    """GPT-1's two files: letters with and without the end of the word, and one merge."""
    letters = [*LETTERS, *(f"{letter}</w>" for letter in LETTERS)]
    pieces = ["<unk>", "ab", *letters][:size]
    vocabulary.write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    merges.write_text("#version: 0.2\na b\n")


def _filled(specials: list[str], letters: list[str]) -> list[str]:
    return [*specials, *letters, *(f"word{i}" for i in range(VOCAB))][:VOCAB]


def write_directory(kind: str, directory: Path, tensors=None, **config) -> Path:
    """A directory as transformers writes it; `config` replaces keys of config.json."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(CONFIGS[kind] | config))
    save_file(weights(kind) if tensors is None else tensors, directory / "model.safetensors", metadata={"format": "pt"})
    write_tokenizer(kind, directory)
    return directory


def write_directory_with_text(kind: str, directory: Path, rows: int | None = None) -> Path:
    """Like `write_directory`, with a tokenizer that finds pieces in any text; `rows` of the embedding, or as many as pieces."""
    directory.mkdir(parents=True)
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"] if kind == "roberta" else ["<|endoftext|>"]
    if kind == "bert":
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij.,'-[]<>", *(f"##{letter}" for letter in LETTERS)]
        (directory / "vocab.txt").write_text(
            "\n".join([*pieces, "ab", "##cd", "漢", "か", "é", "α", "σ"]) + "\n", encoding="utf-8"
        )
    elif kind == "openai-gpt":
        write_gpt1(directory, ("vocab.json", "merges.txt"))
    else:
        write_byte_level(directory, ["low lower lowest", "a b c 漢 é", "aaa aaaaa"], specials, vocab_size=len(specials) + 270)
    rows = load_tokenizer(directory).vocab_size if rows is None else rows
    (directory / "config.json").write_text(json.dumps(CONFIGS[kind] | {"vocab_size": rows}))
    save_file(weights(kind, rows), directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def batch(seed: int = 1) -> dict[str, np.ndarray]:
    """Two rows of one document with two segments and padding, and two rows of two documents each; [4, 12]."""
    rng = np.random.default_rng(seed)
    lengths = [(12,), (7,), (5, 4), (3, 9)]
    fields = {name: np.zeros((4, 12), np.int32) for name in ("tokens", "segments", "documents", "positions")}
    for row, row_lengths in enumerate(lengths):
        start = 0
        for document, length in enumerate(row_lengths, 1):
            span = slice(start, start + length)
            fields["tokens"][row, span] = rng.integers(5, VOCAB, length)
            fields["documents"][row, span] = document
            fields["positions"][row, span] = np.arange(length)
            fields["segments"][row, span] = np.arange(length) >= length // 2
            start += length
    return fields


def random_run(directory: Path, pools: bool = False, objectives: str = "", **model) -> Imported:
    """A run with random parameters and BERT's tokenizer, which is written to the directory.

    Args:
        directory: of the tokenizer.
        pools: with a pooler.
        objectives: names; "" for that of the direction.
        model: keys of `config.model`.
    """
    tokenizer = load_tokenizer(write_directory("bert", directory))
    config = base_config()
    config.model.update({"width": 16, "heads": 2, "hidden": 24, "epsilon": 1e-5} | model)
    usual = {"left-to-right": "ltr", "right-to-left": "rtl"}.get(model_direction(config.model), "mlm")
    add_objectives(config, objectives or usual)
    shapes, rng = body_shapes(config, VOCAB, pools=pools), np.random.default_rng(0)
    draw = lambda path, leaf: np.float32(0.2 * rng.standard_normal(leaf.shape) + (path[-1].key == "scale"))
    return Imported(config, jax.tree.map_with_path(draw, shapes), tokenizer)


def run(imported: Imported, view) -> dict[str, np.ndarray]:
    """What an imported model computes: `layers` [n + 1, B, L, D], and with their heads `pooled`, `nsp` and `logits`."""
    body = build_body(model_shape(imported.config.model, imported.tokenizer.vocab_size))
    params = imported.params

    def compute(body):
        encoded, _ = body.encode(view, True, {})
        side, layers = encoded.widest()
        out, output = {"layers": layers}, body.config.output
        if "output" in params["body"] or (output.tied and not output.transform and not output.bias):
            out["logits"] = body.predict_tokens(layers[-1], side)
        if "pooler" in params["body"]:
            out["pooled"] = body.pool(encoded, view)
        return out

    apply = quick_jit(functools.partial(body.apply, method=compute))
    out = jax.tree.map(np.asarray, apply({"params": params["body"]}))
    out["layers"] = np.stack(out["layers"])
    if "heads_nsp" in params:
        out["nsp"] = out["pooled"] @ params["heads_nsp"]["kernel"] + params["heads_nsp"]["bias"]
    return out


def assert_close(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray], view) -> None:
    """Equal within 1e-5 where there is a token; float32 rounding, summed over two layers, is about 2e-6."""
    assert set(ours) == set(theirs)
    real = view["documents"] > 0
    for name, expected in theirs.items():
        found = ours[name]
        if name == "layers":
            found, expected = found[:, real], expected[:, real]
        elif name == "logits":
            found, expected = found[real], expected[real]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5, err_msg=name)
