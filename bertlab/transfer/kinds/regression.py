"""Regression: a number for a text or a pair."""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bertlab.data.rows import Row
from bertlab.errors import UserError
from bertlab.models.base import View
from bertlab.objectives.base import Bound, Metrics
from bertlab.transfer.examples import Example
from bertlab.transfer.heads import TextHead, penalised
from bertlab.transfer.kinds.base import Kind, Line


@dataclasses.dataclass(frozen=True)
class RegressionHead(TextHead):
    """(value − target)², for rows with a finite `target` [B]."""

    def loss(self, model: Bound, view: View) -> Metrics:
        """Squared error."""
        value, penalty = self._value(model, view)
        known = jnp.isfinite(view["target"]) & self.asked(view)
        error = jnp.where(known, value - jnp.where(known, view["target"], 0), 0)
        return penalised({"loss": ((error**2).sum(), known.sum().astype(jnp.float32))}, penalty)

    def _value(self, model, view):
        vectors, penalty = self.vectors(model, view)
        return model.head.scores(vectors.sum(axis=1), model.deterministic, self.asked(view))[:, 0], penalty

    def outputs(self, model: Bound, view: View) -> Mapping[str, Array]:
        """`value` [B]."""
        return {"value": self._value(model, view)[0]}


class Regression(Kind):
    """A number for a text or a pair."""

    name = "regression"
    head = RegressionHead
    metrics = default_metrics = ("pearson", "spearman")
    unknown: ClassVar = {"target": np.nan}
    is_plain = True
    recipes: ClassVar = {
        "electra_paper": {"transfer.epochs": 10.0}
    }  # google-research/electra configure_finetuning.py, of STS-B

    @classmethod
    def read_label(cls, field: str, where: str, words: tuple[str, ...] = ()) -> float:
        """A finite number."""
        try:
            number = float(field)
        except ValueError as error:
            raise UserError(f"{where}: '{field}' is not a number; the label of a regression task must be one") from error
        if not math.isfinite(number):
            raise UserError(f"{where}: '{field}' is not finite; the label of a regression task must be finite")
        return number

    def label_fields(self, example: Example) -> Row:
        """`target`."""
        return {"target": np.float32(np.nan if example.label is None else example.label)}

    def predict(self, examples, labels, outputs, about, settings) -> list[Line]:
        """The outputs themselves."""
        pairs = zip(examples, outputs["value"], strict=True)
        return [{"id": example.id, "gold": example.label, "predicted": float(value)} for example, value in pairs]

    def average(self, lines, labels) -> Line:
        """The mean."""
        return {**lines[0], "predicted": float(np.mean([line["predicted"] for line in lines]))}
