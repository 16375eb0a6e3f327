"""From a head's outputs to predictions, and from predictions to the task's metrics."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from bertlab.files import json_line
from bertlab.objectives.program import Program
from bertlab.train.run_directory import RunDirectory
from bertlab.train.sharding import build_mesh, put_batch, replicated
from bertlab.transfer.batches import Batch, by_row
from bertlab.transfer.kinds import find_kind
from bertlab.transfer.kinds.base import Line, Outputs, TaskRows
from bertlab.transfer.scorers import METRICS
from bertlab.transfer.tasks import Task, TaskData

Tasks = Mapping[str, tuple[Task, TaskData]]
"""Keyed by the name of each task's objective."""


class Scores:
    """(split, parameters) -> the tasks' metrics, as `Experiment.score`.

    Process 0 writes classes.json and predictions/SPLIT.jsonl. `batches` have the rows of all tasks,
    one task after the other.
    """

    def __init__(
        self,
        config: ConfigDict,
        program: Program,
        tasks: Tasks,
        rows: Mapping[str, Mapping[str, TaskRows]],
        batches: Mapping[str, Sequence[Batch]],
        workdir: Path,
    ):
        self._rows, self._batches = rows, batches
        self._writer = PredictionWriter(tasks, workdir)
        self._mesh = build_mesh(config.mesh)

        def outputs(params, batch):
            found = {}
            for name in tasks:
                made = program.call(params, name, batch, program.objectives[name].outputs)
                found[name] = {**made, "row_number": batch["row_number"]}
            return found

        # Every process gets the outputs of all rows.
        self._outputs = jax.jit(outputs, out_shardings=replicated(self._mesh))

    def __call__(self, split: str, params: Any) -> dict[str, float]:
        with jax.set_mesh(self._mesh):
            found = [
                jax.device_get(self._outputs(params, put_batch(self._mesh, batch)))
                for batch in self._batches[split]
            ]
        outputs, begin = {}, 0
        for name, made in self._rows[split].items():
            every = by_row([batch[name] for batch in found])
            outputs[name] = every[begin : begin + len(made.rows)], made.about
            begin += len(made.rows)
        return self._writer(split, outputs)


class PredictionWriter:
    """Scores and writes the predictions of a split; "valid" comes before "test", whose threshold it
    chooses. Metrics are "TASK/METRIC"; a split without labels has none."""

    def __init__(self, tasks: Tasks, workdir: Path):
        self._tasks, self._run = tasks, RunDirectory(workdir)
        self._valid: Mapping[str, list[Line]] = {}

    def __call__(self, split: str, outputs: Mapping[str, tuple[Outputs, Any]]) -> dict[str, float]:
        """Metrics of each task's outputs by row and `TaskRows.about`."""
        lines = {}
        for name, (task, data) in self._tasks.items():
            predict = find_kind(task.kind).predict
            lines[name] = predict(data.examples[split], data.names, *outputs[name])
        return self.write(split, lines)

    def write(self, split: str, predictions: Mapping[str, list[Line]]) -> dict[str, float]:
        """Metrics of each task's predictions."""
        if split == "valid":
            self._valid = predictions
        metrics, written = {}, []
        for name, (task, data) in self._tasks.items():
            finish = find_kind(task.kind).finish
            lines, chosen = finish(predictions[name], self._valid.get(name))
            scores = chosen | score_lines(task, data, lines)
            metrics |= {f"{name}/{metric}": value for metric, value in scores.items()}
            written += [{"task": name, **line} for line in lines]
        if jax.process_index() == 0:
            classes = {name: list(data.labels) for name, (_, data) in self._tasks.items()}
            self._run.write("classes", classes)
            path = self._run.path / "predictions" / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(map(json_line, written)), encoding="utf-8")
        return metrics


def score_lines(task: Task, data: TaskData, lines: Sequence[Line]) -> dict[str, float]:
    """The task's metrics over the predictions whose answer is not hidden; {} if all are.

    Tasks on words also have the accuracy over all words.
    """
    lines = [line for line in lines if line["gold"] is not None]
    if not lines:
        return {}
    sides = [[line[side] for line in lines] for side in ("gold", "predicted")]
    more = {
        "f1": data.names[1:2],
        "entity_f1": [data.scheme],
        "group_exact_match": [[line.get("group", number) for number, line in enumerate(lines)]],
    }
    metrics = [*task.metrics, *(["accuracy"] if task.kind == "tagging" else [])]
    return {name: float(METRICS[name](*sides, *more.get(name, ()))) for name in metrics}
