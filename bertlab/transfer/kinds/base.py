"""The contract of a kind of task: from examples to rows, from outputs to predictions."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from bertlab.transfer.batches import Row
from bertlab.transfer.examples import Cut, Example, total_cut
from bertlab.transfer.heads import TaskHead
from bertlab.transfer.inputs import Inputs

Line = dict[str, Any]
"""A prediction: `id`, `gold` (None: hidden), `predicted`, and the numbers that decided it."""

Outputs = Sequence[Mapping[str, np.ndarray]]
"""A head's outputs, one mapping per row (`bertlab.transfer.batches.by_row`)."""


class TaskRows(NamedTuple):
    """The rows of a split, how much of its examples is in none, and what `predict` must know."""

    rows: list[Row]
    cut: dict[str, int]
    about: Any = None


class Kind:
    """Base of all kinds; by default an example has one row."""

    name: ClassVar[str]  # in task files and results
    head: ClassVar[type[TaskHead]]  # is trained; its fields are settings, except the derived ones
    is_trained: ClassVar[bool] = True  # whether the head has something to learn
    # Recipe -> those of its settings that differ for this kind.
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def settings(self) -> dict[str, Any]:
        """The head's settings with their defaults: `config.objectives.TASK`."""
        return {f.name: f.default for f in dataclasses.fields(self.head) if not f.metadata}

    def build_head(self, entry: Mapping[str, Any], **derived: Any) -> TaskHead:
        """The head with its settings of `config.objectives.TASK`, and those fields that follow from
        the task: `number`, `classes`, `texts`, `word_types`, `vector_shape`."""
        settings = {name: entry[name] for name in self.settings()}
        fields = {field.name for field in dataclasses.fields(self.head)}
        return self.head(**settings, **{k: derived[k] for k in fields & derived.keys()})

    def rows(self, inputs: Inputs, examples: Sequence[Example], symmetric=False) -> TaskRows:
        """The rows of a split; `symmetric`: the order of a pair does not matter."""
        made = [self.row(inputs, example, symmetric) for example in examples]
        return TaskRows([row for row, _ in made], total_cut(cut for _, cut in made))

    def row(self, inputs: Inputs, example: Example, symmetric: bool) -> tuple[Row, Cut]:
        """An example's row, and what part of the example is not in it."""
        raise NotImplementedError

    def predict(
        self, examples: Sequence[Example], labels: Sequence[str], outputs: Outputs, about: Any
    ) -> list[Line]:
        """Predictions, one line per example; `about` is that of its `TaskRows`."""
        pairs = zip(examples, outputs, strict=True)
        return [{"id": one.id} | self.line(one, labels, output) for one, output in pairs]

    def line(self, example: Example, labels: Sequence[str], output: Mapping) -> Line:
        """The prediction for an example with one row, without its `id`."""
        raise NotImplementedError

    def finish(self, lines: list[Line], valid) -> tuple[list[Line], dict[str, float]]:
        """The predictions with what is chosen on the lines `valid` (or None), and what was."""
        return lines, {}

    def average(self, lines: Sequence[Line], labels: Sequence[str]) -> Line:
        """One prediction from those of several runs for one example."""
        raise NotImplementedError(f"predictions of {self.name} tasks are not averaged")
