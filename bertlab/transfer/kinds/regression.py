"""Regression: a number for a text or a pair."""

from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from bertlab.models.base import View
from bertlab.objectives.base import Metrics, Model
from bertlab.transfer.batches import Row
from bertlab.transfer.examples import Example
from bertlab.transfer.heads import TextHead, penalised
from bertlab.transfer.kinds.base import Kind, Line


class RegressionHead(TextHead):
    """(value − target)², for rows with a finite `target` [B]; `logits` [B, 1] are the values."""

    def loss(self, model: Model, view: View) -> Metrics:
        logits, penalty = self.logits(model, view)
        weights = jnp.isfinite(view["target"]) & self.is_own(view)
        error = jnp.where(weights, logits[:, 0] - jnp.where(weights, view["target"], 0), 0)
        loss = (error**2).sum(), weights.sum().astype(jnp.float32)
        return penalised({"loss": loss}, penalty)


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
            {"id": example.id, "gold": example.label, "predicted": float(output["logits"][0])}
            for example, output in zip(examples, outputs, strict=True)
        ]

    def average(self, lines, labels) -> Line:
        """The mean."""
        return {**lines[0], "predicted": float(np.mean([line["predicted"] for line in lines]))}
