"""What differs between the runs of a study: axes, and two functions that combine grids of points.

A point places a run on the axes: axis -> `Choice`. A grid is a list of points.

    product(axis("rate", {"15 %": {...}, "40 %": {...}}), axis("seed", [1, 2]))
    chain(grid, axis("variant", {"no pretraining": {"train.steps": 0}}))  # one after the other
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


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
    """
    if not isinstance(values, Mapping):
        return [{name: Choice(str(value), f"{name}={value}", {name: value})} for value in values]
    return [{name: Choice(label, label, overrides)} for label, overrides in values.items()]


def product(*grids: Sequence[Point]) -> list[Point]:
    """Every point of each grid with every point of the others; the last grid varies fastest."""
    return [
        {name: choice for point in points for name, choice in point.items()}
        for points in itertools.product(*grids)
    ]


def chain(*grids: Sequence[Point]) -> list[Point]:
    """The points of the grids one after another; the axes may differ."""
    return list(itertools.chain(*grids))
