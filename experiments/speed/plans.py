"""Compiles training steps for TPU slices that we do not have: the rows of "Plans for TPU slices" in README.md in this folder.

    python experiments/speed/plans.py [WORD ...]

compiles the rows that results/plans.json lacks: all of them, or those whose names contain every WORD (bert v5e 16x16). It adds
each row when it is done and prints the table, with missing rows marked. It needs the extra `tpu`; a row takes minutes on one
core.
"""

import math
import os
import sys
from pathlib import Path

from ml_collections import ConfigDict

from bertlab.config import load_config
from bertlab.errors import UserError
from bertlab.files import read_json, write_json
from bertlab.train.chips import split_topology

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "plans.json"
# From 4 to 256 chips; for two kinds only the smallest and largest.
SLICES = {
    "v5e": ("2x2", "4x4", "8x8", "16x16"),
    "v6e": ("2x2", "16x16"),
    "v5p": ("2x2x1", "4x8x8"),
}
WRITTEN_OUT = {"model.attention": "xla"}
# Model -> recipe, settings, and rows per chip.
MODELS = {
    "BERT-Large": ("bert.py:size=large", {"train.phases": ""} | WRITTEN_OUT, 16),
    "GPT-2 124M": ("gpt.py:size=gpt2", WRITTEN_OUT, 8),
    "ModernBERT-base": ("modern.py:size=base", {"data.seq_len": 8192, "data.tokenizer.vocab_size": 50_368}, 1),
    "ELMo": ("elmo.py:size=original", {"data.seq_len": 128, "data.tokenizer.vocab_size": 30_522}, 32),
}
MESHES = {"data": 1, "fsdp": 16}  # the most chips that share a parameter
WITHOUT_DROPOUT = {"model.dropout": 0.0}
IN_A_KERNEL = {"model.attention": "pallas", "model.remat": "dots"}
# Weights and gradients then pass through memory once a step.
AT_ONCE = IN_A_KERNEL | {"train.micro_batches": 1}
# Rows on one slice only: (model, slice, mesh or variant) -> settings that override those of the mesh before the comma.
VARIANTS = {
    ("BERT-Large", "v5e:2x2", "data, in a kernel"): IN_A_KERNEL,
    ("BERT-Large", "v5e:16x16", "data, in a kernel"): IN_A_KERNEL,
    ("BERT-Large", "v6e:2x2", "data, in a kernel"): IN_A_KERNEL,
    ("BERT-Large", "v5p:2x2x1", "data, in a kernel"): IN_A_KERNEL,
    ("BERT-Large", "v5e:16x16", "data, in a kernel, at once"): AT_ONCE,
    ("BERT-Large", "v5e:16x16", "data, without dropout"): WITHOUT_DROPOUT,
    ("BERT-Large", "v5e:16x16", "fsdp, over 256 chips"): {"mesh.fsdp": 256, "train.micro_batches": 2},
    ("GPT-2 124M", "v5e:2x2", "data, in a kernel, at once"): AT_ONCE,
    ("GPT-2 124M", "v5e:16x16", "data, in a kernel, at once"): AT_ONCE,
    ("GPT-2 124M", "v6e:2x2", "data, in a kernel, at once"): AT_ONCE,
    ("GPT-2 124M", "v5p:2x2x1", "data, in a kernel, at once"): AT_ONCE,
    ("ModernBERT-base", "v5e:2x2", "data"): WRITTEN_OUT,
    ("ModernBERT-base", "v6e:2x2", "data"): WRITTEN_OUT,
    ("ModernBERT-base", "v5p:2x2x1", "data"): WRITTEN_OUT,
    ("ModernBERT-base", "v5e:16x16", "data, in a kernel"): IN_A_KERNEL,
    ("ModernBERT-base", "v6e:2x2", "data, in a kernel"): IN_A_KERNEL,
    ("ModernBERT-base", "v5p:2x2x1", "data, in a kernel"): IN_A_KERNEL,
}
MICRO_BATCHES = {"BERT-Large": 4, "GPT-2 124M": 4, "ELMo": 1, "ModernBERT-base": 1}


def rows() -> dict[str, tuple[str, str, str]]:
    """Name -> (model, topology, mesh or variant)."""
    found = {}
    for model in (model for model in MODELS if model != "ModernBERT-base"):
        for kind, shapes in SLICES.items():
            for shape in shapes:
                for mesh in MESHES:
                    found[f"{model} {kind}:{shape} {mesh}"] = (model, f"{kind}:{shape}", mesh)
    for row in VARIANTS:
        found[" ".join(row)] = row
    return found


def config_of(model: str, topology: str, mesh: str) -> ConfigDict:
    """The config of one row."""
    recipe, settings, rows_of_chip = MODELS[model]
    chips = math.prod(map(int, split_topology(topology)[1].split("x")))
    settings = settings | {"mesh.data": -1, "mesh.fsdp": min(MESHES[mesh.partition(",")[0]], chips)}
    settings |= {"data.batch_size": rows_of_chip * chips, "train.micro_batches": MICRO_BATCHES[model]}
    settings |= {"model.dtype": "bfloat16", **VARIANTS.get((model, topology, mesh), {})}
    return load_config(str(HERE.parent / "pretrain" / recipe), settings)


def compiled(model: str, topology: str, mesh: str) -> dict:
    """The record of one row; {"refused": why} if it does not fit."""
    from bertlab.train.plan import TooLarge, plan

    try:
        return plan(config_of(model, topology, mesh), topology).record()
    except TooLarge as error:
        return {"refused": str(error)}


def table(records: dict[str, dict]) -> str:
    """All rows as Markdown; per chip, but for the rows. Records from before they had versions have no libtpu."""
    lines = [
        "| Model | Slice | Mesh | Rows | Memory | TFLOP | Memory traffic | Sent | Step at least | Bound by | libtpu |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    for name, (model, topology, mesh) in rows().items():
        record = records.get(name)
        if record is None:
            lines.append(f"| {model} | {topology} | {mesh} | | not compiled | | | | | | |")
            continue
        if "refused" in record:
            lines.append(f"| {model} | {topology} | {mesh} | | does not fit | | | | | | |")
            continue
        work, seconds = record["work"], record["seconds"]
        sent = sum(of["sent"] for of in work["collectives"].values())
        lines.append(
            f"| {model} | {topology} | {mesh} | {record['rows']:,} | {record['memory'] / 2**30:.1f} GiB"
            f" | {work['flops'] / 1e12:.2f} | {work['bytes'] / 1e9:.0f} GB | {sent / 1e9:.2f} GB"
            f" | {1000 * seconds[record['bound']]:.0f} ms | {record['bound']}"
            f" | {record.get('versions', {}).get('libtpu', '')} |"
        )
    return "\n".join(lines)


def main(words: list[str]) -> None:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    records = read_json(RESULTS) if RESULTS.exists() else {}
    for name, row in rows().items():
        if name in records or not all(word.lower() in name.lower() for word in words):
            continue
        try:
            records[name] = compiled(*row)
        except UserError as error:
            raise SystemExit(f"{name}: {error}") from None
        RESULTS.parent.mkdir(exist_ok=True)
        write_json(RESULTS, records)
        print(f"{name}: done", file=sys.stderr, flush=True)
    print(table(records))


if __name__ == "__main__":
    main(sys.argv[1:])
