"""When a loss is too good to be true: the one rule of `bertlab doctor` and `bertlab report`."""

from collections.abc import Mapping
from dataclasses import dataclass

STANDARD_ERRORS = 3
ROUNDING = 1e-4  # nats; rounding of an exact floor is no leak
NO_LOSS = 0.01  # nats a token; real text costs more, and so does a language with any noise in it


@dataclass(frozen=True)
class Leak:
    """An objective that does better than any model can.

    Attributes:
        objective: Its name.
        below: Nats below its floor; None if the loss is next to nothing.
        standard_error: Of `below`.
        loss: The loss next to nothing in nats; None if the loss is below its floor.
    """

    objective: str
    below: float | None = None
    standard_error: float = 0.0
    loss: float | None = None


def below_floor(above: Mapping[str, tuple[float, float]]) -> list[Leak]:
    """The objectives whose test loss is below their floor by more than chance.

    Args:
        above: Objective -> (nats above its floor, standard error).
    """
    leaks = [Leak(name, -nats, error) for name, (nats, error) in above.items()]
    return [leak for leak in leaks if leak.below > max(STANDARD_ERRORS * leak.standard_error, ROUNDING)]


def next_to_nothing(losses: Mapping[str, float]) -> list[Leak]:
    """The objectives whose held-out loss is next to nothing.

    Args:
        losses: Objective that predicts tokens -> loss in nats a token.
    """
    return [Leak(name, loss=loss) for name, loss in losses.items() if loss < NO_LOSS]
