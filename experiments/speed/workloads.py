"""What `bench.py` measures: configs, by name, and two lists of them, the most wanted first."""

import json
from typing import Any

RIVAL = ", PyTorch"
"""Ends the name of transformers' model on a workload's rows, which runs after it."""

Workload = tuple[str, dict[str, Any]]
"""Config file with its arguments, and overrides."""

GPU = {"model.dtype": "bfloat16", "model.dropout": 0.0}
ACROSS = {"data.full_sentences.attend_across_documents": True}  # as transformers' GPT-2
CHARACTERS = "bilm,tokens=characters"


def workload(
    recipe: str, rows: int, length: int, vocab_size: int, *overrides: dict[str, Any]
) -> Workload:
    """A recipe "family size objectives" on rows of words, for the text is random ones."""
    family, size, objectives = recipe.split(" ")
    common = {"train.phases": "", "train.steps": 100_000, "data.tokenizer.kind": "words"}
    common |= {"data.format": "full_sentences"} if family == "bert" else {}
    common |= {"data.batch_size": rows, "data.seq_len": length}
    common["data.tokenizer.vocab_size"] = vocab_size
    for more in overrides:
        common |= more
    return f"experiments/pretrain/{family}.py:size={size},objectives={objectives}", common


def bert(size: str, rows: int, length: int, *overrides: dict[str, Any]) -> Workload:
    return workload(f"bert {size} mlm", rows, length, 30_522, *overrides)


WORKLOADS: dict[str, Workload] = {
    "bert-tiny": bert("tiny", 32, 128),
    "bert-mini": bert("mini", 32, 128),
    "gpt-mini": workload("gpt mini ltr", 32, 128, 8192),
    "elmo-small": workload(f"elmo small {CHARACTERS}", 128, 20, 30_522),
    "gpu bert-mini 128": bert("mini", 256, 128, GPU),
    "gpu bert-base 512": bert("base", 32, 512, GPU),
    "gpu bert-base 512, dropout": bert("base", 32, 512, GPU, {"model.dropout": 0.1}),
    "gpu bert-base 512, unrolled": bert("base", 32, 512, GPU, {"model.scan_layers": False}),
    "gpu bert-base 128": bert("base", 128, 128, GPU),
    "gpu bert-large 512": bert("large", 32, 512, GPU),
    "gpu gpt2 1024": workload("gpt gpt2 ltr", 16, 1024, 50_257, GPU, ACROSS),
    "gpu elmo": workload(
        f"elmo original {CHARACTERS}", 384, 20, 50_257, {"model.dtype": "bfloat16"}
    ),
    # JAX cannot vectorise cuDNN's attention with a mask.
    "gpu 16 x bert-tiny 128": bert("tiny", 32, 128, GPU, {"model.attention": "xla"}),
}
"""By name; "N x": N models in one program."""

SUITES = {
    "cpu": "bert-tiny; bert-tiny, PyTorch; bert-mini; bert-mini, PyTorch; gpt-mini; elmo-small",
    "gpu": "gpu bert-mini 128; gpu bert-base 512; gpu bert-base 512, PyTorch;"
    " gpu bert-base 512, unrolled; gpu gpt2 1024; gpu bert-large 512; gpu bert-large 512, PyTorch;"
    " gpu bert-base 128; gpu elmo; gpu 16 x bert-tiny 128; gpu bert-base 512, dropout;"
    " gpu bert-base 128, PyTorch; gpu gpt2 1024, PyTorch",
}
"""As `bench.py --only` takes them."""


def tell(**news):
    """Tells `bench.py`."""
    print(json.dumps(news), flush=True)


def replicas(name: str) -> int:
    """How many models a workload trains in one program."""
    number, times, _ = name.removeprefix("gpu ").partition(" x ")
    return int(number) if times else 1
