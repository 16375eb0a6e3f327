"""What differs between the runs of a study, as pure data: axes, and four functions that combine grids of points.

A point places a run on the axes: axis -> `Choice`. A grid is a list of points.

    product(axis("rate", {"15 %": {...}, "40 %": {...}}), axis("seed", [1, 2]))   every rate with every seed
    zipped(axis("model.width", [128, 256]), axis("model.heads", [2, 4]))          the first with the first, and so on
    chain(grid, axis("variant", {"no pretraining": {"train.steps": 0}}))         one after the other
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
        label: The text shown.
        part: Its part of a run's name: the label, or "seed=1" for a bare value.
        overrides: Dotted config name -> value.
    """

    label: str
    part: str
    overrides: Mapping[str, Any]

    @property
    def is_value(self) -> bool:
        """Whether the label is a bare value of the config name that names the axis."""
        return self.part != self.label


Point = Mapping[str, Choice]


def axis(name: str, values: Mapping[str, Mapping[str, Any]] | Sequence[Any]) -> list[Point]:
    """A grid along one axis.

    Args:
        name: The axis's name, a column of the results; with plain values, the dotted config name they set.
        values: label -> overrides, or plain values of the config name.

    Raises:
        UserError: The axis has no values, or a label has no dict of overrides.
    """
    if isinstance(values, str) or not isinstance(values, Mapping | Sequence) or not values:
        raise UserError(f'axis "{name}" is {values!r}; give it a dict of label -> overrides or a list of values')
    if not isinstance(values, Mapping):
        return [{name: Choice(str(value), f"{name}={value}", {name: value})} for value in values]
    for label, overrides in values.items():
        if not isinstance(overrides, Mapping):
            raise UserError(
                f'label "{label}" of axis "{name}" is {overrides!r}; expected a dict of dotted config names and values'
            )
    return [{name: Choice(str(label), str(label), overrides)} for label, overrides in values.items()]


def product(*grids: Sequence[Point]) -> list[Point]:
    """Every point of each grid with every point of the others; the last grid varies fastest.

    Raises:
        UserError: Two grids share an axis.
    """
    return [_joined(points) for points in itertools.product(*grids)]


def zipped(*grids: Sequence[Point]) -> list[Point]:
    """Combines the first points of all grids, then the second points, and so on.

    Raises:
        UserError: The grids differ in length, or share an axis.
    """
    if len({len(grid) for grid in grids}) > 1:
        raise UserError(
            f"zipped grids have {', '.join(str(len(grid)) for grid in grids)} points; give all of them the same number"
        )
    return [_joined(points) for points in zip(*grids, strict=True)]


def chain(*grids: Sequence[Point]) -> list[Point]:
    """The points of the grids one after another; the axes may differ."""
    return list(itertools.chain(*grids))


def where(grid: Sequence[Point], keep: Callable[[Mapping[str, Any]], bool]) -> list[Point]:
    """The points of a grid for whose settings (dotted config name -> value, over all axes) `keep` returns True."""
    return [point for point in grid if keep(settings(point))]


def settings(point: Point) -> dict[str, Any]:
    """Dotted config name -> value, over all axes of a point."""
    return {name: value for choice in point.values() for name, value in choice.overrides.items()}


def _joined(points: Sequence[Point]) -> Point:
    joined: dict[str, Choice] = {}
    for point in points:
        if twice := [name for name in point if name in joined]:
            raise UserError(f'axis "{twice[0]}" is in two of the combined grids; keep it in one')
        joined |= point
    return joined
