"""What `bench.py` measures: configs, by name, and two lists of them, the most wanted first."""

import json
from collections.abc import Mapping
from typing import Any

RIVAL = ", PyTorch"
"""Ends the name of transformers' model on a workload's rows, which runs after it."""

RECIPE = "experiments/pretrain/{}.py:size={},objectives={}"
# The text is random words, so every vocabulary is one of words.
COMMON = {"train.phases": "", "train.steps": 100_000, "data.tokenizer.kind": "words"}
BERT = {**COMMON, "data.format": "full_sentences", "data.tokenizer.vocab_size": 30_522}
ACROSS = {"data.full_sentences.attend_across_documents": True}  # as transformers' GPT-2
GPU = {"model.dtype": "bfloat16", "model.dropout": 0.0}


def rows(number: int, length: int) -> dict[str, int]:
    """The size of a batch."""
    return {"data.batch_size": number, "data.seq_len": length}


WORKLOADS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bert-tiny": (RECIPE.format("bert", "tiny", "mlm"), {**BERT, **rows(32, 128)}),
    "bert-mini": (RECIPE.format("bert", "mini", "mlm"), {**BERT, **rows(32, 128)}),
    "gpt-mini": (
        RECIPE.format("gpt", "mini", "ltr"),
        {**COMMON, **rows(32, 128), "data.tokenizer.vocab_size": 8192},
    ),
    "elmo-small": (
        RECIPE.format("elmo", "small", "bilm,tokens=characters"),
        {**COMMON, **rows(128, 20), "data.tokenizer.vocab_size": 30_522},
    ),
    "gpu bert-mini 128": (
        RECIPE.format("bert", "mini", "mlm"),
        {**BERT, **GPU, **rows(256, 128)},
    ),
    "gpu bert-base 512": (RECIPE.format("bert", "base", "mlm"), {**BERT, **GPU, **rows(32, 512)}),
    "gpu bert-base 512, dropout": (
        RECIPE.format("bert", "base", "mlm"),
        {**BERT, **GPU, **rows(32, 512), "model.dropout": 0.1},
    ),
    "gpu bert-base 512, unrolled": (
        RECIPE.format("bert", "base", "mlm"),
        {**BERT, **GPU, **rows(32, 512), "model.scan_layers": False},
    ),
    "gpu bert-base 128": (RECIPE.format("bert", "base", "mlm"), {**BERT, **GPU, **rows(128, 128)}),
    "gpu bert-large 512": (
        RECIPE.format("bert", "large", "mlm"),
        {**BERT, **GPU, **rows(32, 512)},
    ),
    "gpu gpt2 1024": (
        RECIPE.format("gpt", "gpt2", "ltr"),
        {**COMMON, **GPU, **rows(16, 1024), "data.tokenizer.vocab_size": 50_257, **ACROSS},
    ),
    "gpu elmo": (
        RECIPE.format("elmo", "original", "bilm,tokens=characters"),
        {
            **COMMON,
            **rows(384, 20),
            "model.dtype": "bfloat16",
            "data.tokenizer.vocab_size": 50_257,
        },
    ),
    "gpu 16 x bert-tiny 128": (
        RECIPE.format("bert", "tiny", "mlm"),
        # JAX cannot vectorise cuDNN's attention with a mask.
        {**BERT, **GPU, **rows(32, 128), "model.attention": "xla"},
    ),
}
"""Name to (config file with its arguments, overrides); "N x": N models in one program."""

SUITES = {
    "cpu": [
        "bert-tiny",
        "bert-tiny" + RIVAL,
        "bert-mini",
        "bert-mini" + RIVAL,
        "gpt-mini",
        "elmo-small",
    ],
    "gpu": [
        "gpu bert-mini 128",
        "gpu bert-base 512",
        "gpu bert-base 512" + RIVAL,
        "gpu bert-base 512, unrolled",
        "gpu gpt2 1024",
        "gpu bert-large 512",
        "gpu bert-large 512" + RIVAL,
        "gpu bert-base 128",
        "gpu elmo",
        "gpu 16 x bert-tiny 128",
        "gpu bert-base 512, dropout",
        "gpu bert-base 128" + RIVAL,
        "gpu gpt2 1024" + RIVAL,
    ],
}


def tell(**news):
    """Tells `bench.py`."""
    print(json.dumps(news), flush=True)


def replicas(name: str) -> int:
    """How many models a workload trains in one program."""
    number, times, _ = name.removeprefix("gpu ").partition(" x ")
    return int(number) if times else 1
