"""What a held-out loss says by itself, for `bertlab doctor` and `bertlab report`: too good to be true, or nothing learned."""

import math
from collections.abc import Mapping
from typing import Any

from bertlab.objectives import guessing_in_place

STANDARD_ERRORS = 3
ROUNDING = 1e-4  # nats; rounding of an exact floor is no leak
NEAR_GUESSING = 0.97  # of the most that guessing by frequency costs
NO_LOSS = 0.01  # nats a token; real text costs more, and so does a language with any noise in it


def standard_error(*errors: float | None) -> float:
    """The first that is known, neither None nor NaN: of the nats above a floor, then of the floor itself; 0 without any."""
    return next((error for error in errors if error is not None and not math.isnan(error)), 0.0)


def below_floor(above: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Objective (or run) -> (nats below the floor, standard error), where a test loss is that by more than chance.

    Args:
        above: Objective (or run) -> (nats above the floor, `standard_error`); NaN where no loss was measured.
    """
    return {name: (-nats, error) for name, (nats, error) in above.items() if -nats > max(STANDARD_ERRORS * error, ROUNDING)}


def token_objectives(data: Mapping[str, Any]) -> dict[str, float | None]:
    """The objectives that predict tokens, by data.json -> the loss at guessing by frequency, None if unknown.

    Only of these is a loss of almost nothing a leak.
    """
    if "objectives" not in data:  # an older version listed them by themselves
        return dict.fromkeys(data.get("token_objectives", []))
    return {name: of.get("guessing") for name, of in data["objectives"].items() if of["asks"] == "tokens"}


def token_losses(metrics: Mapping[str, float], of: Mapping[str, float | None]) -> dict[str, float]:
    """The losses of `token_objectives` among a split's metrics, in nats a token."""
    return {name: metrics[f"{name}/loss"] for name in of if f"{name}/loss" in metrics}


def near_guessing(
    losses: Mapping[str, float],
    guessing: Mapping[str, float | None],
    best: Mapping[str, float],
    entries: Mapping[str, Mapping[str, Any]],
) -> dict[str, tuple[float, float]]:
    """Those of `token_losses` that are no better than guessing by frequency, unless nothing better can be learned.

    Args:
        losses: From `token_losses`.
        guessing: From `token_objectives`.
        best: Objective -> the floor of its loss, of those that have one.
        entries: `objectives` of config.json.

    Returns:
        Objective -> the least and the most that guessing costs if shown tokens are copied, in nats.
    """
    costs = {name: guessing_in_place(entries, name, guessing[name]) for name in losses if guessing.get(name)}
    near = {name: min(least, NEAR_GUESSING * most) for name, (least, most) in costs.items()}
    return {name: costs[name] for name in near if losses[name] >= near[name] > best.get(name, 0.0)}


def next_to_nothing(losses: Mapping[str, float]) -> dict[str, float]:
    """Those of `token_losses` on held-out text that are next to nothing, whether or not the objective was trained."""
    return {name: loss for name, loss in losses.items() if loss < NO_LOSS}
