"""Turns a head's outputs into predictions, and predictions into the task's metrics."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertlab.files import json_lines
from bertlab.run import Run
from bertlab.transfer.entities import Scheme
from bertlab.transfer.kinds.base import Line
from bertlab.transfer.scorers import ENTITY_METRICS, GROUP_METRICS, METRICS, NUMBER_METRICS
from bertlab.transfer.tasks import Task, TaskData


@dataclasses.dataclass(frozen=True)
class _Part:
    """One task's rows of a split."""

    name: str
    task: Task
    data: TaskData
    rows: int
    about: Any


class Scoring:
    """(split, a head's outputs by batch) -> the tasks' metrics.

    Writes the predictions of each split, and the score of always answering the most frequent label.
    """

    def __init__(self, transfer, workdir: Path | None):
        """Args: transfer: `config.transfer`; workdir: the run directory, or None to write nothing."""
        self._transfer, self._workdir = transfer, workdir
        self._parts: dict[str, list[_Part]] = {}
        self._valid: dict[str, list[Line]] = {}
        self._most_frequent: dict[str, dict[str, float]] = {}

    def expect(self, split: str, name: str, task: Task, data: TaskData, rows: int, about: Any) -> None:
        """Announces the next rows of a split: one task's rows, with the result of its kind's `encode`."""
        self._parts.setdefault(split, []).append(_Part(name, task, data, rows, about))

    def __call__(self, split: str, outputs: Sequence[Mapping[str, Mapping[str, np.ndarray]]]) -> dict[str, float]:
        """Metrics as "TASK/METRIC"; a split without labels has none."""
        metrics, written, begin = {}, [], 0
        new = split not in self._most_frequent  # it depends on labels only
        most_frequent = self._most_frequent.setdefault(split, {})
        for part in self._parts[split]:
            rows = slice(begin, begin := begin + part.rows)
            found = {key: np.concatenate([batch[part.name][key] for batch in outputs])[rows] for key in outputs[0][part.name]}
            kind, labels, examples = part.task.kind, part.data.names, part.data.examples
            lines = kind.predict(examples[split], labels, found, part.about, self._transfer)
            if split == "valid":
                self._valid[part.name] = lines
            lines, values = kind.finish(lines, self._valid.get(part.name), self._transfer)
            task = part.task
            if kind.of_words and "accuracy" not in task.metrics:  # the head's own is over the words that fit into rows
                task = dataclasses.replace(task, metrics=(*task.metrics, "accuracy"))
            values |= scores_of(task, labels, lines, part.data.scheme)
            metrics |= {f"{part.name}/{name}": value for name, value in values.items()}
            written += [{"task": part.name, **line} for line in lines]
            if self._workdir is not None and new:
                always = kind.most_frequent(examples["train"], labels, lines)
                scores = scores_of(part.task, labels, always, part.data.scheme)
                most_frequent |= {f"{part.name}/{name}": value for name, value in scores.items()}
        if self._workdir is not None:
            Run(self._workdir).most_frequent.write(self._most_frequent)
            Run(self._workdir).predictions(split).write(json_lines(written))
        return metrics


def scores_of(task: Task, labels: Sequence[str], lines: Sequence[Line], scheme: Scheme | None = None) -> dict[str, float]:
    """The task's metrics over the predictions with a known answer; {} if no answer is known.

    Args:
        task: the task.
        labels: names of all labels, by number.
        lines: the predictions.
        scheme: of the tags, for metrics of entities.
    """
    known = [line for line in lines if line["gold"] is not None]
    if not known:
        return {}
    names = [line["gold"] for line in known], [line["predicted"] for line in known]
    number = {label: number for number, label in enumerate(labels)}
    numbered = lambda x: [numbered(part) for part in x] if isinstance(x, list) else number.get(x, -1)
    read = dict.fromkeys(task.metrics, names)
    read |= {name: tuple(map(numbered, names)) for name in task.metrics if name in NUMBER_METRICS}
    read |= {name: _grouped(known, names) for name in task.metrics if name in GROUP_METRICS}
    if asked := ENTITY_METRICS.keys() & {*task.metrics}:
        found = [[scheme.entities(tags) for tags in side] for side in names]
        read |= {name: found for name in asked}
    return {name: float(METRICS[name](*read[name])) for name in task.metrics}


def _grouped(lines: Sequence[Line], names: tuple[list, list]) -> tuple[list[list], list[list]]:
    """Gold and predicted classes, those of a group together; a line without a group is one of its own."""
    groups = {}
    for i, line in enumerate(lines):
        groups.setdefault(line.get("group", i), []).append(i)
    return tuple([[side[i] for i in group] for group in groups.values()] for side in names)
