"""Kinds of texts and pairs: a class, a choice, a number."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import softmax

from bertlab.models.base import View, inside_documents
from bertlab.objectives.base import Metrics, Model
from bertlab.transfer.batches import NO_LABEL, Row
from bertlab.transfer.examples import Cut, Example
from bertlab.transfer.heads import TextHead, derived
from bertlab.transfer.inputs import Inputs
from bertlab.transfer.kinds.base import Kind, Line

# Devlin et al. 2018, section 4.4
CHOICE_SETTINGS = {"data.batch_size": 16, "optimizer.learning_rate": 2e-5}


class OneLabel(Kind):
    """A kind whose examples are a text or a pair with one label."""

    def row(self, inputs: Inputs, example: Example, symmetric: bool) -> tuple[Row, Cut]:
        """The text or pair; in the delimited layout an unordered pair is there in both orders."""
        both = symmetric and inputs.layout == "delimited" and len(example.texts) == 2
        orders = (example.texts, example.texts[::-1]) if both else (example.texts,)
        documents = [inputs.document(order) for order in orders]
        row = inputs.row(documents) | self.label_fields(example)
        return row, {"pieces": documents[0].cut}

    def label_fields(self, example: Example) -> Row:
        """The fields of a row that hold its label."""
        return {"label": np.int32(NO_LABEL if example.label is None else example.label)}


class OneClass(OneLabel):
    """A kind whose label is one class or choice, predicted from the head's `logits` [C]."""

    def line(self, example, labels, output) -> Line:
        """The most likely class by name, or choice by number, and all probabilities."""
        line = {
            "gold": None if example.label is None else named(example.label, labels),
            "probabilities": softmax(output["logits"].astype(np.float64)).tolist(),
        }
        line |= {"group": example.group} if example.group else {}
        return decided(line, labels)

    def average(self, lines, labels) -> Line:
        """The class with the highest mean probability."""
        runs = [line["probabilities"] for line in lines]
        return decided(lines[0] | {"probabilities": np.mean(runs, axis=0).tolist()}, labels)


def decided(line: Line, labels: Sequence[str]) -> Line:
    """The line with the most likely answer by its probabilities."""
    return line | {"predicted": named(np.argmax(line["probabilities"]), labels)}


def named(number: int, labels: Sequence[str]) -> str | int:
    """A class by its name, or by its number if classes have no names."""
    return labels[number] if labels else int(number)


@dataclasses.dataclass(frozen=True)
class ClassificationHead(TextHead):
    """−log p(class | text or pair)."""

    classes: int = derived(2)


class Classification(OneClass):
    """A class for a text or a pair."""

    name = "classification"
    head = ClassificationHead


@dataclasses.dataclass(frozen=True)
class ChoiceHead(TextHead):
    """−log p(right choice): a softmax of one score per text (Devlin et al. 2018, section 4.4)."""

    texts: int = derived(4)

    def logits(self, model: Model, view: View) -> Float[Array, "B n"]:
        """One logit per text; the lowest float where a row lacks it."""
        scores = model.head.scores(self.vectors(model, view))[..., 0]
        there = inside_documents(view, self.texts).any(axis=1)
        return jnp.where(there, scores, jnp.finfo(jnp.float32).min)


class Choice(OneClass):
    """The right one of several continuations of a text."""

    name = "choice"
    head = ChoiceHead
    recipes: ClassVar = {"bert": CHOICE_SETTINGS, "bert_paper": CHOICE_SETTINGS}

    def row(self, inputs: Inputs, example: Example, symmetric: bool) -> tuple[Row, Cut]:
        """The text with each choice, as the row's documents."""
        documents = [inputs.document((*example.texts, choice)) for choice in example.choices]
        lost, total = map(sum, zip(*(document.cut for document in documents)))
        return inputs.row(documents) | self.label_fields(example), {"pieces": (lost, total)}


class RegressionHead(TextHead):
    """(value − target)², for rows with a finite `target` [B]; `logits` [B, 1] are the values."""

    def loss(self, model: Model, view: View) -> Metrics:
        values = self.logits(model, view)[:, 0]
        weights = jnp.isfinite(view["target"]) & self.is_own(view)
        error = jnp.where(weights, values - jnp.where(weights, view["target"], 0), 0)
        loss = (error**2).sum(), weights.sum().astype(jnp.float32)
        return model.head.penalised({"loss": loss})


class Regression(OneLabel):
    """A number for a text or a pair."""

    name = "regression"
    head = RegressionHead
    # google-research/electra, configure_finetuning.py, for STS-B
    recipes: ClassVar = {"electra_paper": {"transfer.epochs": 10.0}}

    def label_fields(self, example: Example) -> Row:
        return {"target": np.float32(np.nan if example.label is None else example.label)}

    def line(self, example, labels, output) -> Line:
        return {"gold": example.label, "predicted": float(output["logits"][0])}

    def average(self, lines, labels) -> Line:
        return {**lines[0], "predicted": float(np.mean([line["predicted"] for line in lines]))}
