"""Calls an objective's methods for judging a model. Mistakes in outside objectives are reported as in training."""

from collections.abc import Collection, Sequence

import numpy as np

from bertlab.models.base import SIDES, View
from bertlab.objectives.base import WAYS, Corruption, Objective, Scoring, Vocabulary
from bertlab.objectives.blame import blamed


def scoring_of(name: str, objective: Objective, sides: Collection[str] = SIDES) -> Scoring:
    """`Objective.scoring`; `sides` are those that the model's body gives."""
    with blamed(name, objective, "scoring"):
        scoring = _require("scoring", objective.scoring(), Scoring)
        trained = sides if objective.reads == "any" else (objective.reads,)
        for way in scoring.ways:
            if WAYS[way] not in trained:
                raise ValueError(
                    f"the way {way!r} needs states of {WAYS[way]!r}, but reads={objective.reads!r} trains only"
                    f" {', '.join(map(repr, trained))}; drop the way or change reads"
                )
        if "in any order" in scoring.ways and type(objective).hidden_logits is Objective.hidden_logits:
            raise TypeError("the way 'in any order' needs the objective's own hidden_logits(); define it or drop the way")
        return scoring


def check_token_logits(name: str, objective: Objective) -> None:
    """Refuses an objective that is scored by the model's output layer; its loss does not train that layer.

    Raises:
        TypeError: says what to define.
    """
    asked = set(scoring_of(name, objective).ways) - {"in any order"}
    if asked and type(objective).token_logits is Objective.token_logits:
        raise TypeError(
            "loss() does not use the model's output layer (model.token_loss, model.predict_tokens), which scoring() needs;"
            " define token_logits() with the layer that it trains, or return Scoring() from scoring()"
        )


def corruption_of(name: str, objective: Objective, view: View, vocabulary: Vocabulary) -> Corruption:
    """`Objective.corruption`."""
    with blamed(name, objective, "corruption"):
        return _require("corruption", objective.corruption(view, vocabulary), Corruption)


def guessing_of(name: str, objective: Objective, counts: np.ndarray | None, batches: Sequence[View]) -> float | None:
    """`Objective.guessing`."""
    with blamed(name, objective, "guessing"):
        nats = objective.guessing(counts, batches)
        return None if nats is None else float(nats)


def prediction_flops(name: str, objective: Objective, shape) -> float:
    """`Objective.flops_per_prediction`."""
    with blamed(name, objective, "flops_per_prediction"):
        return float(objective.flops_per_prediction(shape))


def _require(method: str, found, kind: type):
    if not isinstance(found, kind):
        raise TypeError(f"{method}() must return a {kind.__name__}, got {type(found).__name__}")
    return found
