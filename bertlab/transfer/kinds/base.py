"""A kind of task defines its rows, head and metrics, and turns outputs into predictions and scores."""

import abc
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Int
from scipy.special import softmax

from bertlab.data.rows import Row
from bertlab.errors import UserError
from bertlab.transfer.cut import Lost, counted
from bertlab.transfer.examples import Example
from bertlab.transfer.heads import DERIVED, NO_LABEL, TaskHead
from bertlab.transfer.inputs import Inputs, Layout

Line = dict[str, Any]
"""A prediction: `id`, `gold` (None if unknown), `predicted`, and the numbers that decided it."""


@dataclasses.dataclass(frozen=True)
class Kind(abc.ABC):
    """A kind of task. By default an example is one text or a pair, with one label.

    Class attributes:
        name: in task files, results and error messages.
        head: the objective to train.
        metrics: names of `bertlab.transfer.scorers.METRICS` that can score its predictions.
        default_metrics: the metrics of a task that names none; the first selects and is reported.
        unknown: the row fields of its labels, each with the value for "unknown".
        has_classes: labels are named classes.
        of_words: an example is a list of words with one label each, not a text with one label.
        is_plain: an example has only texts or words and a label, so tables can hold it and its states can be stored.
        one_row: each example is one row.
        is_trained: its head has something to learn; if no task of a fine-tuning has, there are no steps.
        recipes: by recipe, the settings that differ for this kind.

    Attributes:
        symmetric: the order of a pair does not matter (similarity, paraphrase).
    """

    symmetric: bool = False

    name: ClassVar[str]
    head: ClassVar[type[TaskHead]]
    metrics: ClassVar[tuple[str, ...]]
    default_metrics: ClassVar[tuple[str, ...]]
    unknown: ClassVar[Mapping[str, float]]
    has_classes: ClassVar[bool] = False
    of_words: ClassVar[bool] = False
    is_plain: ClassVar[bool] = False
    one_row: ClassVar[bool] = True
    is_trained: ClassVar[bool] = True
    recipes: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def recipe(self, name: str) -> dict[str, Any]:
        """The settings of a recipe that differ for this kind."""
        return dict(self.recipes.get(name, {}))

    @classmethod
    def is_among(cls, names: Sequence[str]) -> bool:
        """Whether a statement about kinds of these names is about this one; about every kind if there are none."""
        return not names or cls.name in names

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """The head's settings with their defaults, as `config.objectives.TASK` has them."""
        return {field.name: field.default for field in dataclasses.fields(cls.head) if field.name not in DERIVED}

    @classmethod
    def read_label(cls, field: str, where: str, words: tuple[str, ...]) -> Any:
        """The label in a table's field. Only plain kinds have this method.

        Args:
            field: the text of the label's column.
            where: "FILE:LINE".
            words: the example's words, if it has any.

        Raises:
            UserError: the field holds no label.
        """
        raise NotImplementedError(f"{cls.name} tasks cannot be read from tables")

    def texts(self, examples: Sequence[Example], layout: Layout) -> int:
        """Number of texts in a row: 2 for pairs shown in both orders, otherwise 1."""
        both = self.symmetric and layout.name == "delimited" and examples and len(examples[0].texts) == 2
        return 2 if both else 1

    def encode(self, inputs: Inputs, examples: Sequence[Example]) -> tuple[list[Row], Any, dict[str, int]]:
        """The rows of a split, in order, the facts about them that `predict` needs, and how much was cut.

        Every row has `tokens`, `segments`, `documents`, `positions` [L], `example_id` (example, row of the example) and the
        fields of `unknown`.
        """
        texts = self.texts(examples, inputs.layout)
        made = [self.row(inputs, number, example, texts) for number, example in enumerate(examples)]
        return [row for row, _ in made], None, counted(lost for _, lost in made)

    def row(self, inputs: Inputs, number: int, example: Example, texts: int) -> tuple[Row, Lost]:
        """An example's row, and what of the example is not in it."""
        orders = (example.texts, example.texts[::-1])[:texts]
        documents = [inputs.document(order) for order in orders]
        return inputs.packed(documents, texts, number) | self.label_fields(example), {"pieces": documents[0].lost}

    def label_fields(self, example: Example) -> Row:
        """The row's fields that hold the label."""
        raise NotImplementedError

    def stored_fields(self, example: Example, size: int, layout: Layout) -> Row:
        """The fields that go with an example's `size` stored states."""
        return self.label_fields(example)

    @abc.abstractmethod
    def predict(
        self, examples: Sequence[Example], labels: Sequence[str], outputs: Mapping[str, np.ndarray], about: Any, settings
    ) -> list[Line]:
        """Predictions from the head's outputs, one line per example.

        Args:
            examples: the split's examples.
            labels: names of the classes, by number.
            outputs: the head's outputs, one item per row.
            about: from `encode`.
            settings: `config.transfer`.
        """

    def finish(self, lines: list[Line], valid: list[Line] | None, settings) -> tuple[list[Line], dict[str, float]]:
        """Predictions with the settings chosen on `valid`, and these settings.

        Args:
            lines: from `predict`.
            valid: the lines of the validation split, if known.
            settings: `config.transfer`.
        """
        return lines, {}

    def most_frequent(self, train: Sequence[Example], labels: Sequence[str], lines: Sequence[Line]) -> list[Line]:
        """The lines of a model that always answers with the most frequent label of `train`; [] if labels are not classes."""
        return []

    def average(self, lines: Sequence[Line], labels: Sequence[str]) -> Line:
        """Averages several runs' predictions of one example.

        Raises:
            UserError: predictions of this kind have no average.
        """
        raise UserError(
            f"predictions of a {self.name} task have no probabilities to average; choose a task of classes or numbers"
        )


class OneClass(Kind):
    """A kind whose label is the number of one class or choice, predicted from the head's `logits` [B, C]."""

    unknown: ClassVar = {"label": NO_LABEL}

    def label_fields(self, example: Example) -> Row:
        """`label`."""
        return {"label": np.int32(NO_LABEL if example.label is None else example.label)}

    def predict(self, examples, labels, outputs, about, settings) -> list[Line]:
        """The most likely class by name, or choice by number, with all probabilities."""
        lines = []
        for example, logits in zip(examples, outputs["logits"], strict=True):
            gold = None if example.label is None else named(example.label, labels)
            shares = softmax(logits.astype(np.float64)).tolist()
            line = {"id": example.id, "gold": gold, "predicted": named(np.argmax(logits), labels), "probabilities": shares}
            lines.append(line | ({"group": example.group} if example.group else {}))
        return lines

    def most_frequent(self, train, labels, lines) -> list[Line]:
        """The most frequent class of `train` for every example."""
        answer = named(Counter(example.label for example in train).most_common(1)[0][0], labels)
        return [line | {"predicted": answer} for line in lines]

    def average(self, lines, labels) -> Line:
        """The class with the highest mean probability."""
        best = np.argmax(np.mean(of_each(lines, "probabilities"), axis=0))
        return {**lines[0], "predicted": named(best, labels)}


def of_each(lines: Sequence[Line], name: str) -> list[Any]:
    """A field of several runs' predictions of one example.

    Raises:
        UserError: a prediction lacks it.
    """
    if any(name not in line for line in lines):
        raise UserError(
            f"a run's prediction of example {lines[0]['id']} has no '{name}' to average: an older version of bertlab wrote it;"
            " fine-tune that run again"
        )
    return [line[name] for line in lines]


def named(number: int, labels: Sequence[str]) -> str | int:
    """A class by its name, or by its number if classes have no names."""
    return labels[number] if labels else int(number)


def filled(values: Sequence[int], length: int) -> Int[np.ndarray, "W"]:
    """The values, followed by −1."""
    padded = np.full(length, NO_LABEL, np.int32)
    padded[: len(values)] = values
    return padded
