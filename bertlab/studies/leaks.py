"""The rule for a loss that is too good to be true, shared by `bertlab doctor` and `bertlab report`."""

from collections.abc import Mapping

STANDARD_ERRORS = 3
ROUNDING = 1e-4  # nats; rounding of an exact floor is no leak
NO_LOSS = 0.01  # nats a token; real text costs more, and so does a language with any noise in it


def below_floor(above: Mapping[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Objective (or run) -> (nats below the floor, standard error), where a test loss is that by more than chance.

    Args:
        above: Objective (or run) -> (nats above the floor, standard error).
    """
    return {name: (-nats, error) for name, (nats, error) in above.items() if -nats > max(STANDARD_ERRORS * error, ROUNDING)}


def next_to_nothing(losses: Mapping[str, float]) -> dict[str, float]:
    """Those of the held-out losses, in nats a token, that are next to nothing; only of objectives that predict tokens."""
    return {name: loss for name, loss in losses.items() if loss < NO_LOSS}
