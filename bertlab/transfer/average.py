"""Averages the predictions of several fine-tunings: ULMFiT's two directions (Howard and Ruder 2018,
section 3.3), or ensembles.

The average is, for each example, the mean probability of each class or choice, or the mean of
numbers (`Kind.average`).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertlab.errors import UserError
from bertlab.train.run_directory import RunDirectory
from bertlab.transfer.baselines import outcome
from bertlab.transfer.kinds import find_kind
from bertlab.transfer.kinds.base import Line
from bertlab.transfer.scoring import PredictionWriter
from bertlab.transfer.tasks import find_task, load_task


def average(runs: Sequence[str | Path], workdir: str | Path) -> dict[str, Any]:
    """Writes the average of runs as a run without a model: predictions/ and result.json.

    Returns:
        The content of result.json.
    """
    runs, directory = [RunDirectory(run) for run in runs], RunDirectory(workdir)
    config = runs[0].config()
    task = find_task(config["task"])
    data, kind = load_task(task, config["task_data"]), find_kind(task.kind)
    classes = [run.read("classes", {}).get(task.name) for run in runs]
    if any(theirs != list(data.labels) for theirs in classes):
        raise UserError(
            f"{workdir}: an average needs finished fine-tunings on one task with the same classes,"
            " in the same order"
        )
    tasks, metrics = {task.name: (task, data)}, {}
    write = PredictionWriter(tasks, directory.path).write
    for split in ("valid", "test"):
        by_run = [predictions(run, split) for run in runs]
        lines = []
        for same_example in zip(*by_run, strict=True):
            if any(line["id"] != same_example[0]["id"] for line in same_example):
                raise UserError(f"{runs[0]} and others predict different examples of {split}")
            lines.append(kind.average(same_example, data.labels))
        metrics[split] = write(split, {task.name: lines})
    results = [run.read("result") for run in runs]
    costs = ("tokens", "supervised", "flops", "seconds", "parameters")
    result = {
        "step": max(result["step"] for result in results),
        **{name: sum(result.get(name, 0) for result in results) for name in costs},
        "metrics": metrics,
        "data_hash": results[0]["data_hash"],
        **outcome(tasks, results[0]["cut"]),
    }
    directory.write("config", config | {"init_from": "", "averages": [str(run) for run in runs]})
    directory.write("result", result)
    return result


def predictions(run: RunDirectory, split: str) -> list[Line]:
    """A run's predictions."""
    path = run.path / "predictions" / f"{split}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
