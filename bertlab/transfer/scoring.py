"""From a head's outputs to predictions, and from those to the task's metrics, as its published scorer counts."""

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from bertlab.run import Run
from bertlab.transfer.heads import NO_LABEL
from bertlab.transfer.scorers import best_threshold, score, span_f1_scores
from bertlab.transfer.spans import Window, predict
from bertlab.transfer.tasks import Example, Task, TaskData


@dataclasses.dataclass(frozen=True)
class _Expected:
    """What is known of one task's rows of a split."""

    name: str
    task: Task
    data: TaskData
    examples: list[Example]
    rows: int
    windows: list[Window]


class Scoring:
    """(split, a head's outputs by batch) -> the task's metrics.

    Predictions are kept in predictions/SPLIT.jsonl, and in most_frequent.json what `most_frequent_answers` score.
    """

    def __init__(self, transfer, workdir: Path | None):
        """Args: transfer: `config.transfer`; workdir: the run directory, or None to write nothing."""
        self._transfer, self._workdir = transfer, workdir
        self._expected: dict[str, list[_Expected]] = {}
        self._thresholds: dict[str, float] = {}
        self._most_frequent: dict[str, dict[str, float]] = {}

    def expect(self, split: str, name: str, task: Task, data: TaskData, rows: int, windows: list[Window]) -> None:
        """Says what the next rows of a split are: one an example, or the windows of a span task."""
        expected = _Expected(name, task, data, data.examples[split], rows, windows)
        self._expected.setdefault(split, []).append(expected)

    def __call__(self, split: str, outputs: Sequence[Mapping[str, Mapping[str, np.ndarray]]]) -> dict[str, float]:
        """Metrics as "TASK/METRIC"; none where the split's labels are not known."""
        metrics, lines, begin = {}, [], 0
        new = split not in self._most_frequent  # what is known without reading stays
        without_reading = self._most_frequent.setdefault(split, {})
        for part in self._expected[split]:
            joined = {key: np.concatenate([batch[part.name][key] for batch in outputs]) for key in outputs[0][part.name]}
            found = {key: value[begin : begin + part.rows] for key, value in joined.items()}
            begin += part.rows
            predictions = predictions_of(part.task, part.data, part.examples, found, part.windows, self._transfer)
            values = {}
            if part.task.may_lack_answer:
                predictions, values = self._thresholded(split, part.name, predictions)
            lines += [{"task": part.name, **line} for line in predictions]
            values |= scores_of(part.task, part.data.labels, predictions)
            metrics |= {f"{part.name}/{name}": value for name, value in values.items()}
            if self._workdir is not None and new:
                scores = scores_of(part.task, part.data.labels, most_frequent_answers(part.task, part.data, predictions))
                without_reading |= {f"{part.name}/{name}": value for name, value in scores.items()}
        if self._workdir is not None:
            Run(self._workdir).most_frequent.write(self._most_frequent)
            Run(self._workdir).predictions(split).write("".join(json.dumps(line) + "\n" for line in lines))
        return metrics

    def _thresholded(self, split: str, name: str, lines: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """Questions left without answer; where no threshold is set, `valid`'s best F1 chooses it, for `test` too."""
        threshold = self._transfer.null_threshold
        if threshold is None:
            if split == "valid":
                texts, gold = [line["best_answer"] for line in lines], [line["gold"] for line in lines]
                odds, has_answer = [line["null_odds"] for line in lines], [bool(answers) for answers in gold]
                self._thresholds[name], _ = best_threshold(span_f1_scores(gold, texts), texts, odds, has_answer)
            threshold = self._thresholds.get(name, 0.0)
        left_out = [line | {"predicted": ""} if line["null_odds"] > threshold else line for line in lines]
        return left_out, {"null_threshold": threshold}


def predictions_of(
    task: Task,
    data: TaskData,
    examples: Sequence[Example],
    outputs: Mapping[str, np.ndarray],
    windows: Sequence[Window],
    transfer,
) -> list[dict[str, Any]]:
    """One line an example: `id`, `gold` (None where it is not known), `predicted`, and what that was decided by.

    Classes, choices and tags go by their names (choices by their numbers); `probabilities` are the softmax of the logits, so
    that predictions of several runs can be averaged.
    """
    name = lambda number: data.labels[number] if data.labels else int(number)
    if task.kind == "regression":
        return [
            {"id": e.id, "gold": e.label, "predicted": float(value)}
            for e, value in zip(examples, outputs["value"], strict=True)
        ]
    if task.kind == "span":
        return _span_predictions(task, examples, outputs, windows, transfer)
    if task.kind == "tagging":
        # Words that did not fit into the row have no prediction: they count as outside of any entity, or as wrong.
        beyond = "O" if "O" in data.labels else ""
        lines = []
        for example, tags in zip(examples, outputs["tags"], strict=True):
            shown = [data.labels[tag] if tag != NO_LABEL else beyond for tag in tags[: len(example.words)]]
            shown += [beyond] * (len(example.words) - len(shown))
            gold = None if example.label is None else [data.labels[tag] for tag in example.label]
            lines.append({"id": example.id, "gold": gold, "predicted": shown})
        return lines
    lines = []
    for example, logits in zip(examples, outputs["logits"], strict=True):
        probabilities = softmax(logits.astype(np.float64))
        gold = None if example.label is None else name(example.label)
        predicted = name(int(np.argmax(logits)))
        lines.append({"id": example.id, "gold": gold, "predicted": predicted, "probabilities": probabilities.tolist()})
    return lines


def most_frequent_answers(task: Task, data: TaskData, predictions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The lines of `predictions_of` as of one who knows the most frequent label of `train` and reads nothing.

    Of sentences it is the most frequent tag. Where labels are no classes (numbers, spans) there are no such answers.
    """
    if task.kind not in ("classification", "word_pair", "choice", "tagging"):
        return []
    labels = [example.label for example in data.examples["train"]]
    counted = Counter(itertools.chain.from_iterable(labels) if task.kind == "tagging" else labels)
    number = counted.most_common(1)[0][0]
    answer = data.labels[number] if data.labels else int(number)
    predicted = lambda line: [answer] * len(line["predicted"]) if task.kind == "tagging" else answer
    return [{"id": line["id"], "gold": line["gold"], "predicted": predicted(line)} for line in predictions]


def _span_predictions(task, examples, outputs, windows, transfer) -> list[dict[str, Any]]:
    options = {"n_best": transfer.n_best, "max_answer_length": transfer.max_answer_length}
    found = predict(windows, outputs["start"], outputs["end"], **options)
    lines = []
    for example in examples:
        best = found[example.id]
        line = {"id": example.id, "gold": [answer.text for answer in example.answers], "predicted": best.text}
        lines.append(line | ({"best_answer": best.text, "null_odds": best.null_odds} if task.may_lack_answer else {}))
    return lines


def scores_of(task: Task, labels: Sequence[str], predictions: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The task's metrics of predictions (lines of `predictions_of`), where the right answers are known; else {}."""
    known = [line for line in predictions if line["gold"] is not None]
    if not known:
        return {}
    gold, predicted = [line["gold"] for line in known], [line["predicted"] for line in known]
    numbers = {label: number for number, label in enumerate(labels)}
    by_number = lambda given: [[numbers.get(tag, -1) for tag in x] if isinstance(x, list) else numbers[x] for x in given]
    values = {}
    for metric in task.metrics:
        as_names = not labels or metric.startswith("entity")
        pair = (gold, predicted) if as_names else (by_number(gold), by_number(predicted))
        values |= score([metric], *pair)
    return values
