"""The rule for a loss that is too good to be true, shared by `bertlab doctor` and `bertlab report`."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

STANDARD_ERRORS = 3
ROUNDING = 1e-4  # nats; rounding of an exact floor is no leak
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


def token_objectives(data: Mapping[str, Any]) -> list[str]:
    """The objectives that predict tokens, by data.json; only of these is a loss of almost nothing a leak."""
    if "objectives" not in data:  # an older version listed them by themselves
        return data.get("token_objectives", [])
    return [name for name, objective in data["objectives"].items() if objective["asks"] == "tokens"]


def token_losses(metrics: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    """The losses of `token_objectives` among a split's metrics, in nats a token."""
    return {name: metrics[f"{name}/loss"] for name in names if f"{name}/loss" in metrics}


def next_to_nothing(losses: Mapping[str, float]) -> dict[str, float]:
    """Those of `token_losses` on held-out text that are next to nothing, whether or not the objective was trained."""
    return {name: loss for name, loss in losses.items() if loss < NO_LOSS}
