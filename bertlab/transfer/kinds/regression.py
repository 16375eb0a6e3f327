"""Regression: a number for a text or a pair."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bertlab.models.base import View
from bertlab.objectives.base import Metrics, Model
from bertlab.transfer.batches import Row
from bertlab.transfer.examples import Example
from bertlab.transfer.heads import TextHead, penalised
from bertlab.transfer.kinds.base import Kind, Line


@dataclasses.dataclass(frozen=True)
class RegressionHead(TextHead):
    """(value − target)², for rows with a finite `target` [B]."""

    def value(self, model: Model, view: View) -> tuple[Float[Array, "B"], Float[Array, ""]]:
        """The number of each row, and the penalty on the mix."""
        vectors, penalty = self.vectors(model, view)
        return model.head.scores(vectors.sum(axis=1), self.is_own(view))[:, 0], penalty

    def loss(self, model: Model, view: View) -> Metrics:
        value, penalty = self.value(model, view)
        weights = jnp.isfinite(view["target"]) & self.is_own(view)
        error = jnp.where(weights, value - jnp.where(weights, view["target"], 0), 0)
        loss = (error**2).sum(), weights.sum().astype(jnp.float32)
        return penalised({"loss": loss}, penalty)

    def outputs(self, model: Model, view: View) -> Mapping[str, Array]:
        """`value` [B]."""
        return {"value": self.value(model, view)[0]}


class Regression(Kind):
    """A number for a text or a pair."""

    name = "regression"
    head = RegressionHead
    # google-research/electra, configure_finetuning.py, of STS-B
    recipes: ClassVar = {"electra_paper": {"transfer.epochs": 10.0}}

    def label_fields(self, example: Example) -> Row:
        return {"target": np.float32(np.nan if example.label is None else example.label)}

    def predict(self, examples, labels, outputs, about, settings) -> list[Line]:
        return [
            {"id": example.id, "gold": example.label, "predicted": float(output["value"])}
            for example, output in zip(examples, outputs, strict=True)
        ]

    def average(self, lines, labels) -> Line:
        """The mean."""
        return {**lines[0], "predicted": float(np.mean([line["predicted"] for line in lines]))}
