"""Compiles training steps for devices that we do not have; see "Plans" in README.md in this folder.

    python experiments/speed/plans.py [WORD ...]

compiles the rows that plans.json lacks, all or those whose names contain each WORD, adds each
when it is done, and prints the table. TPU slices need `jax[tpu]`, the H100 `jax[cuda13]`; each
row takes minutes on one core. A row that does not fit its device has the compiler's reason.
"""

import os
import sys
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"

from bertlab.config import load_config
from bertlab.contrib.plan import TooLarge, plans
from bertlab.files import read_json, write_json
from bertlab.models.attention import attention_rule
from bertlab.models.presets import model_shape
from workloads import WORKLOADS

FILE = Path(__file__).parent / "plans.json"
RECIPES = "experiments/pretrain/"
SLICES = ("v5e:16x16", "v6e:16x16", "v5p:4x8x8")  # of 256 chips
COMMON = {"train.phases": "", "model.dtype": "bfloat16", "mesh.data": -1, "mesh.fsdp": 16}
IN_KERNEL = {**COMMON, "model.attention": "bertlab.contrib.attention_kernel:attend"}
IN_KERNEL["model.remat"] = "dots"
LSTM = {**COMMON, "data.tokenizer.vocab_size": 30_522}
MODELS = {
    "BERT-Large 512": ("bert.py:size=large,objectives=mlm+nsp", IN_KERNEL, 512, 16),
    "GPT-2 1024": ("gpt.py:size=gpt2", IN_KERNEL, 1024, 8),
    "ModernBERT-base 8192": ("modern.py:size=base", IN_KERNEL, 8192, 1),
    "ELMo 128": ("elmo.py:size=original", LSTM, 128, 32),
}
"""Recipe, overrides, length of rows, and rows a chip."""


def rows() -> dict[str, tuple[str, dict, str]]:
    """Name -> (recipe, overrides, topology)."""
    gpu = [name for name in WORKLOADS if name.startswith("gpu ")]
    found = {f"{name.removeprefix('gpu ')}, h100": (*WORKLOADS[name], "h100") for name in gpu}
    for model, (recipe, overrides, length, rows_of_chip) in MODELS.items():
        for topology in SLICES:
            size = {"data.batch_size": 256 * rows_of_chip, "data.seq_len": length}
            found[f"{model}, {topology}"] = (RECIPES + recipe, {**overrides, **size}, topology)
    return found


def attention(recipe: str, overrides: dict) -> str:
    """The implementation that a step was compiled with."""
    config = load_config(recipe, overrides)
    if config.model.family == "elmo":
        return ""
    shape = model_shape(config.model, config.data.tokenizer.vocab_size)
    rule, _ = attention_rule(shape, config.data.seq_len, "gpu")
    return "contrib's kernel" if ":" in rule else rule


def table(records: dict[str, dict]) -> str:
    """The records as Markdown; per chip, but for rows and tokens."""
    lines = [
        "| Step | Attention | Rows | Memory | of which state | At least | Bound by | Compiled in |",
        "|---|---|--:|--:|--:|--:|---|--:|",
    ]
    for name, (recipe, overrides, _) in rows().items():
        one = records.get(name, {})
        if reason := one.get("refused"):
            lines.append(f"| {name} | does not fit: {reason.partition(':')[2].strip()} |")
        elif one:
            cells = [name, attention(recipe, overrides), f"{one['rows']:,}"]
            cells += [f"{one[key] / 2**30:.1f} GiB" for key in ("memory", "arguments")]
            cells += [f"{1000 * one['seconds'][one['bound']]:.1f} ms", one["bound"]]
            lines.append(f"| {' | '.join(cells)} | {one['compile_seconds']:.0f} s |")
    return "\n".join(lines)


def main(words: list[str]) -> None:
    """Compiles and prints."""
    for name, (recipe, overrides, topology) in rows().items():
        if name in read_json(FILE) or not all(word.lower() in name.lower() for word in words):
            continue
        try:  # takes minutes, in which another process may add others
            record = next(plans(load_config(recipe, overrides), topology)).record()
        except TooLarge as error:
            record = {"refused": str(error)}
        write_json(FILE, {**read_json(FILE), name: record})
        print(f"{name}: done", file=sys.stderr, flush=True)
    print(table(read_json(FILE)))


if __name__ == "__main__":
    main(sys.argv[1:])
