"""Batches rows of texts in few shapes, and compiles each function of a program once."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import jax

from bertlab.data.rows import pad_batch
from bertlab.data.text_rows import TextRow
from bertlab.models.base import View
from bertlab.objectives.program import Program
from bertlab.progress import over
from bertlab.train.processes import gather

Batch = TypeVar("Batch", bound=tuple)

ROWS = 32  # worked through at a time


class Inference:
    """Pure functions of a program and its parameters on a view (or any tree of arrays); each is compiled at its first call.

    Several processes may share the batches. Each batch is computed by one of them, on one device and in the shape in which a
    single process computes it, so the results are the same bit for bit.
    """

    def __init__(self, program: Program, params: Any, process: tuple[int, int] = (0, 1)):
        """Prepares them.

        Args:
            program: the functions' first argument.
            params: its parameters; they are moved to the device.
            process: (index, count) of this process among those that share the batches.
        """
        self.program, self.process = program, process
        self._params = jax.device_put(params)
        self._functions: dict[tuple, Callable] = {}

    def __call__(self, function: Callable, view: View, *settings):
        """Calls `function(program, *settings, params, view)`; settings are hashable and fixed at compilation."""
        if (key := (function, *settings)) not in self._functions:
            self._functions[key] = jax.jit(functools.partial(function, self.program, *settings))
        return self._functions[key](self._params, view)

    def own(self, batches: Iterable[Batch], label: str, total: int) -> Iterator[Batch]:
        """This process's share of the batches (`own`)."""
        return own(batches, self.process, label, total)

    def of_all(self, found: dict[int, Any]) -> dict[int, Any]:
        """JSON values by number: those of all processes, in the place of this one's."""
        if self.process[1] == 1:
            return found
        return {number: value for of_process in gather([*found.items()]) for number, value in of_process}


def own(batches: Iterable[Batch], process: tuple[int, int], label: str, total: int) -> Iterator[Batch]:
    """Yields a process's share of batches, which is every `count`-th from its first; tells how far all are.

    Args:
        batches: in the same order in all processes; each begins with the numbers of what it has.
        process: (index, count) of this process among those that share them.
        label: what is done, for `bertlab.progress`.
        total: how much all batches have.
    """
    index, count = process
    for number, batch in enumerate(over(batches, label, total, lambda batch: len(batch[0]))):
        if number % count == index:
            yield batch


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
