"""Batches rows of texts in few shapes, and compiles each function of a program once."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from bertlab.data.rows import pad_batch
from bertlab.data.text_rows import TextRow
from bertlab.models.base import View
from bertlab.objectives.program import Program

ROWS = 32  # worked through at a time


class Inference:
    """Pure functions of a program and its parameters on a view (or any tree of arrays); each is compiled at its first call."""

    def __init__(self, program: Program, params: Any):
        """Args: program: the functions' first argument; params: its parameters; they are moved to the device."""
        self.program = program
        self._params = jax.device_put(params)
        self._functions: dict[tuple, Callable] = {}

    def __call__(self, function: Callable, view: View, *settings):
        """Calls `function(program, *settings, params, view)`; settings are hashable and fixed at compilation."""
        if (key := (function, *settings)) not in self._functions:
            self._functions[key] = jax.jit(functools.partial(function, self.program, *settings))
        return self._functions[key](self._params, view)


def padded_length(tokens: int, longest: int) -> int:
    """The padded length of a row of so many tokens: a power of two, or the model's `longest`."""
    return min(max(8, power_of_two(tokens)), max(longest, tokens))


def power_of_two(number: int) -> int:
    """The next one, from 1 up."""
    return 1 << (number - 1).bit_length()


def stacked(rows: Sequence[TextRow], length: int, pad_id: int, size: int) -> View:
    """A view [size, length] of rows; missing ones are padding."""
    batch = pad_batch([row.padded(length, pad_id) for row in rows], size)
    return {name: value for name, value in batch.items() if value.ndim > 1 and name != "example_id"}


def batches(rows: Sequence[TextRow], longest: int, pad_id: int, in_order: bool = False) -> Iterator[tuple[list[int], View]]:
    """Yields (indices, view) of at most `ROWS` rows of about the same length, or `in_order` of one row each.

    Args:
        rows: in any order.
        longest: positions of the model.
        pad_id: of the tokenizer.
    """
    order = list(range(len(rows))) if in_order else sorted(range(len(rows)), key=lambda i: len(rows[i].tokens))
    size = 1 if in_order else ROWS
    for start in range(0, len(order), size):
        indices = order[start : start + size]
        length = padded_length(len(rows[indices[-1]].tokens), longest)
        yield indices, stacked([rows[i] for i in indices], length, pad_id, power_of_two(len(indices)))
