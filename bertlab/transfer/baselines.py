"""Baselines for scores: the most frequent answer, and a linear model of the same labels."""

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertlab.files import cache_directory, cached_json
from bertlab.transfer.kinds import find_kind
from bertlab.transfer.kinds.texts import OneClass
from bertlab.transfer.scoring import Tasks, score_lines
from bertlab.transfer.tasks import Task, TaskData

VERSION = 1
"""Version of bertlab.transfer.linear: a change makes it train again."""


def most_frequent(tasks: Tasks, split: str) -> dict[str, float]:
    """The scores of always answering the most frequent class of train, for tasks with one class per
    text or word."""
    found = {}
    for name, (task, data) in tasks.items():
        kind, examples = find_kind(task.kind), data.examples[split]
        labels = [example.label for example in data.examples["train"]]
        if task.kind == "tagging":
            number = Counter(itertools.chain.from_iterable(labels)).most_common(1)[0][0]
            sizes = [len(example.words) for example in examples]
            outputs = [
                {"tags": np.full(size, number), "probabilities": np.ones((size, 1))}
                for size in sizes
            ]
        elif isinstance(kind, OneClass):
            number = Counter(labels).most_common(1)[0][0]
            outputs = [{"logits": np.eye(number + 1)[number]}] * len(examples)
        else:
            continue
        lines = kind.predict(examples, data.names, outputs, None)
        scores = score_lines(task, data, lines)
        found |= {f"{name}/{metric}": value for metric, value in scores.items()}
    return found


def outcome(tasks: Tasks, cut: Mapping[str, Mapping[str, Mapping[str, int]]]) -> dict[str, Any]:
    """What a transfer's result.json has in addition to metrics; `cut`: by split and task."""
    unseen = {
        split: {name: n for name, (_, data) in tasks.items() if (n := data.count_unseen(split))}
        for split in ("valid", "test")
    }
    frequent = {split: most_frequent(tasks, split) for split in ("valid", "test")}
    return {
        "cut": cut,
        "unseen_tags": {split: counts for split, counts in unseen.items() if counts},
        "most_frequent": {split: scores for split, scores in frequent.items() if scores},
        "linear": linear(tasks),
    }


def linear(tasks: Tasks) -> dict[str, dict[str, float]]:
    """Split -> the scores of the tasks' linear models; {} for kinds without one.

    A model is trained once for all runs on the same examples: the cache keeps its scores.
    """
    found: dict[str, dict[str, float]] = {}
    for name, (task, data) in tasks.items():
        for split, scores in linear_of_task(task, data).items():
            of_task = {f"{name}/{metric}": value for metric, value in scores.items()}
            found[split] = found.get(split, {}) | of_task
    return found


def linear_of_task(task: Task, data: TaskData) -> dict[str, dict[str, float]]:
    """Split -> the scores of a task's linear model."""
    text = repr((VERSION, task.kind, task.metrics, data.digest))

    def compute():
        from bertlab.transfer.linear import linear_scores  # scikit-learn takes a second to import

        print(f"training a linear model on the labels of {task.name}", flush=True)
        return linear_scores(task, data)

    return cached_json(cache_directory() / "linear", text, compute)
