"""What differs between the runs of a study: axes, and four functions that combine grids of points.

A point places a run on the axes: axis -> `Choice`. A grid is a list of points.

    product(axis("rate", {"15 %": {...}, "40 %": {...}}), axis("seed", [1, 2]))
    zipped(axis("model.width", [128, 256]), axis("model.heads", [2, 4]))  # first with first, ...
    chain(grid, axis("variant", {"no pretraining": {"train.steps": 0}}))  # one after the other
    where(grid, lambda settings: settings["model.width"] % settings["model.heads"] == 0)
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertlab.errors import UserError


@dataclass(frozen=True)
class Choice:
    """One label of an axis.

    Attributes:
        label: As tables print it.
        name: In a run's name: the label, or "seed=1" for a bare value.
        overrides: Dotted config name -> value.
    """

    label: str
    name: str
    overrides: Mapping[str, Any]


Point = Mapping[str, Choice]


def axis(name: str, values: Mapping[str, Mapping[str, Any]] | Sequence[Any]) -> list[Point]:
    """A grid along one axis.

    Args:
        name: A column of the results; with plain values, the dotted config name that they set.
        values: Label -> overrides, or plain values of the config name.

    Raises:
        UserError: There are no values, or a label has no overrides.
    """
    if isinstance(values, str) or not isinstance(values, Mapping | Sequence) or not values:
        raise UserError(
            f'axis "{name}" is {values!r}; give a dict of label -> overrides or a list of values'
        )
    if not isinstance(values, Mapping):
        return [{name: Choice(str(value), f"{name}={value}", {name: value})} for value in values]
    for label, overrides in values.items():
        if not isinstance(overrides, Mapping):
            raise UserError(
                f'label "{label}" of axis "{name}" is {overrides!r}; expected a dict of overrides'
            )
    return [{name: Choice(label, label, overrides)} for label, overrides in values.items()]


def product(*grids: Sequence[Point]) -> list[Point]:
    """Every point of each grid with every point of the others; the last grid varies fastest."""
    return [_joined(points) for points in itertools.product(*grids)]


def zipped(*grids: Sequence[Point]) -> list[Point]:
    """The first points of all grids joined, then the second ones, and so on."""
    return [_joined(points) for points in zip(*grids, strict=True)]


def chain(*grids: Sequence[Point]) -> list[Point]:
    """The points of the grids one after another; the axes may differ."""
    return list(itertools.chain(*grids))


def where(grid: Sequence[Point], keep: Callable[[Mapping[str, Any]], bool]) -> list[Point]:
    """The points for whose settings (dotted config name -> value) `keep` returns True."""
    return [point for point in grid if keep(settings(point))]


def settings(point: Point) -> dict[str, Any]:
    """Dotted config name -> value, of all axes of a point."""
    return {name: value for choice in point.values() for name, value in choice.overrides.items()}


def _joined(points: Sequence[Point]) -> Point:
    joined: dict[str, Choice] = {}
    for point in points:
        if repeated := joined.keys() & point.keys():
            raise UserError(f'axis "{min(repeated)}" is in two of the combined grids')
        joined |= point
    return joined
