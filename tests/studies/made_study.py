"""A study's directory with numbers known beforehand, without any training."""

import json
from pathlib import Path

from bertlab.files import json_line, write_json

SEEDS = ("1", "2", "3")
# Variant -> rate of fine-tuning -> (valid, test) accuracy of each seed.
ACCURACY = {
    "MLM": {"0.001": ((0.70, 0.60), (0.72, 0.62), (0.74, 0.64)), "0.1": ((0.5, 0.9),) * 3},
    "LTR": {"0.001": ((0.60, 0.50), (0.62, 0.53), (0.64, 0.53)), "0.1": ((0.9, 0.58),) * 3},
}
LOSSES = {"MLM": 3.0, "LTR": 4.0}


def write_study(folder: Path) -> Path:
    """Two objectives, two rates of fine-tuning that share a pretraining, three seeds."""
    runs = []
    for variant, by_rate in ACCURACY.items():
        for rate in by_rate:
            for seed, (valid, test) in zip(SEEDS, by_rate[rate]):
                name = f"{variant.lower()}-{rate}-seed={seed}"
                owner = f"{variant.lower()}-0.001-seed={seed}"
                runs.append(make_run(name, variant, rate, seed, owner))
                if name == owner:
                    write_pretraining(folder / name, variant, seed)
                write_finetuning(folder / name / "finetune" / "colours", rate, valid, test)
    axes = {"objective": list(ACCURACY), "finetune.rate": ["0.001", "0.1"], "seed": list(SEEDS)}
    claim = {"higher": "MLM", "lower": "LTR", "published": "84 and 82", "source": "A paper"}
    study = {
        "name": "made",
        "title": "A made-up study",
        "question": "Which objective names colours?",
        "axes": axes,
        "seed_axes": ["seed"],
        "select": ["finetune.rate"],
        "tasks": ["colours"],
        "searches": [],
        "published": {"source": "A paper", "columns": ["F1"], "rows": {"MLM": [84.0]}, "note": ""},
        "claims": [claim | {"kinds": []}],
        "contrasts": [],
        "runs": runs,
    }
    write_json(folder / "study.json", study)
    return folder


def make_run(name: str, variant: str, rate: str, seed: str, owner: str) -> dict:
    labels = {"objective": variant, "finetune.rate": rate, "seed": seed}
    run = {"name": name, "variant": variant, "labels": labels, "config": "bert.py"}
    run |= {"overrides": {}, "adapt": {}, "averages": []}
    run["downstream"] = {"colours": {"task": "colours.py"}}
    run["shares"] = {} if name == owner else {"pretrain": owner}
    return run


def write_pretraining(folder: Path, variant: str, seed: str) -> None:
    """100 steps of 10 tokens, 1,000 FLOPs and a tenth of a second each."""
    objective, final = variant.lower(), LOSSES[variant] + int(seed) / 10
    config = {"data": {"seq_len": 8, "seed": int(seed)}, "objectives": {objective: {"weight": 1.0}}}
    write_json(folder / "config.json", config)
    write_json(folder / "environment.json", {"packages": {"bertlab": "0.3.0"}, "python": "3.12"})
    lines = [
        {"step": step, "split": "valid", "loss": loss, f"{objective}/loss": loss, **costs(step)}
        for step, loss in ((0, 7.0), (50, 5.0), (100, final))
    ]
    (folder / "metrics.jsonl").write_text("".join(map(json_line, lines)))
    metrics = {split: {"loss": final, f"{objective}/loss": final} for split in ("valid", "test")}
    result = {"step": 100, "parameters": 1000, **costs(100), "metrics": metrics}
    write_json(folder / "result.json", result | {"data_hash": [f"data-{seed}"]})
    bits = {"bits_per_byte/left-to-right": final / 2, f"{objective}/guessing": 6.0}
    write_json(folder / "evaluation.json", {"test": bits})


def write_finetuning(folder: Path, rate: str, valid: float, test: float) -> None:
    config = {"metrics": {"colours": "accuracy"}, "optimizer": {"learning_rate": float(rate)}}
    config["init_from"] = "nowhere"
    write_json(folder / "config.json", config)
    (folder / "metrics.jsonl").write_text("")
    metrics = {"valid": {"colours/accuracy": valid}, "test": {"colours/accuracy": test, "loss": 1}}
    result = {"step": 5, "parameters": 1100, **costs(5), "metrics": metrics, "data_hash": ["t"]}
    cut = {"test": {"colours": {"examples": 0, "of_examples": 50}}}
    frequent = {"test": {"colours/accuracy": 0.4}}
    linear = {"test": {"colours/accuracy": 0.5}}
    result |= {"cut": cut, "most_frequent": frequent, "linear": linear}
    write_json(folder / "result.json", result)
    right = round(50 * test)
    lines = [
        {
            "task": "colours",
            "id": str(i),
            "gold": "red",
            "predicted": "red" if i < right else "blue",
        }
        for i in range(50)
    ]
    (folder / "predictions").mkdir()
    (folder / "predictions" / "test.jsonl").write_text("".join(map(json_line, lines)))


def costs(step: int) -> dict[str, float]:
    return {"tokens": 10 * step, "supervised": step, "flops": 1e3 * step, "seconds": step / 10}


def edit(path: Path, change) -> None:
    """Replaces a JSON file by what `change` makes of its value."""
    value = json.loads(path.read_text())
    change(value)
    write_json(path, value)
