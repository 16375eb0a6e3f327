"""What `bench.py` measures: configs, by name, and two lists of them, the most wanted first."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

RIVAL = ", PyTorch"
"""Ends the name of transformers' model on a workload's rows, which runs after it."""

Workload = tuple[str, dict[str, Any]]
"""Config file with its arguments, and overrides."""

GPU = {"model.dtype": "bfloat16", "model.dropout": 0.0}
DROPOUT, UNROLLED = GPU | {"model.dropout": 0.1}, GPU | {"model.scan_layers": False}
BERT = "bert.py:objectives=mlm,size="
ELMO = "elmo.py:objectives=bilm,tokens=characters,size="
ACROSS = {"data.full_sentences.attend_across_documents": True}  # as transformers' GPT-2


def workload(
    recipe: str, rows: int, length: int, vocab_size: int = 30_522, more: dict[str, Any] = GPU
) -> Workload:
    """A recipe on rows of words, for the text is random ones."""
    overrides = {"data.batch_size": rows, "data.seq_len": length, "train.steps": 100_000}
    overrides |= {"data.tokenizer.kind": "words", "data.tokenizer.vocab_size": vocab_size}
    if recipe.startswith(BERT):
        overrides |= {"data.format": "full_sentences", "train.phases": ""}
    return f"experiments/pretrain/{recipe}", overrides | more


WORKLOADS: dict[str, Workload] = {
    "bert-tiny": workload(BERT + "tiny", 32, 128, more={}),
    "bert-mini": workload(BERT + "mini", 32, 128, more={}),
    "gpt-mini": workload("gpt.py:size=mini", 32, 128, 8192, {}),
    "elmo-small": workload(ELMO + "small", 128, 20, more={}),
    "gpu bert-mini 128": workload(BERT + "mini", 256, 128),
    "gpu bert-base 512": workload(BERT + "base", 32, 512),
    "gpu bert-base 512, dropout": workload(BERT + "base", 32, 512, more=DROPOUT),
    "gpu bert-base 512, unrolled": workload(BERT + "base", 32, 512, more=UNROLLED),
    "gpu bert-base 128": workload(BERT + "base", 128, 128),
    "gpu bert-large 512": workload(BERT + "large", 32, 512),
    "gpu gpt2 1024": workload("gpt.py:size=gpt2", 16, 1024, 50_257, GPU | ACROSS),
    "gpu elmo": workload(ELMO + "original", 384, 20, 50_257, {"model.dtype": "bfloat16"}),
}
SUITES = {
    "cpu": "bert-tiny; bert-tiny, PyTorch; bert-mini; bert-mini, PyTorch; gpt-mini; elmo-small",
    "gpu": "gpu bert-mini 128; gpu bert-base 512; gpu bert-base 512, PyTorch;"
    " gpu bert-base 512, unrolled; gpu gpt2 1024; gpu bert-large 512; gpu bert-large 512, PyTorch;"
    " gpu bert-base 128; gpu elmo; gpu bert-base 512, dropout; gpu bert-base 128, PyTorch;"
    " gpu gpt2 1024, PyTorch",
}
"""As `bench.py --only` takes them."""


def tell(**news):
    """Tells `bench.py`."""
    print(json.dumps(news), flush=True)


def tell_rates(
    turns: Mapping[str, Callable[[int], Any]], tokens: int, seconds: float
) -> dict[str, int]:
    """Tells the best of three turns, which alternate, in tokens a second. A turn takes a number of
    steps, about as many as fill `seconds`, each of so many tokens."""

    def rate(turn, steps: int) -> float:
        begin = time.perf_counter()
        turn(steps)
        return steps * tokens / (time.perf_counter() - begin)

    steps = max(2, round(seconds * rate(next(iter(turns.values())), 2) / tokens))
    best = dict.fromkeys(turns, 0)
    for _ in range(3):
        for name, turn in turns.items():
            best[name] = max(best[name], round(rate(turn, steps)))
        tell(**best)
    return best
