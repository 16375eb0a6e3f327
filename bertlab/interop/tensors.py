"""Tables that map parameters to another library's tensors, read in both directions: an export
writes exactly what an import has read."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import traverse_util

from bertlab.errors import UserError

Convert = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Entry:
    """Parameters of bertlab, and the tensors elsewhere that hold the same numbers."""

    theirs: tuple[str, ...]  # names of tensors; with "{i}" in them, each layer has its own
    ours: tuple[str, ...]  # paths of parameters, whose first axis is then the layers
    to_ours: Convert = list  # converts their arrays (of one layer) to ours
    to_theirs: Convert = list  # the inverse

    @property
    def is_stacked(self) -> bool:
        """Whether each layer has its own tensors."""
        return "{i}" in self.theirs[0]

    def names(self, shape: Sequence[int]) -> list[list[str]]:
        """The tensors' names by layer (one layer, if parameters of this shape are not stacked)."""
        layers = shape[0] if self.is_stacked else 1
        return [[name.replace("{i}", str(i)) for name in self.theirs] for i in range(layers)]


def same(theirs: str, ours: str) -> Entry:
    """A tensor that is stored the same way."""
    return Entry((theirs,), (ours,))


def mapped(theirs: str, ours: str, to_ours, to_theirs) -> Entry:
    """A tensor that is another arrangement of one parameter."""
    return Entry(
        (theirs,),
        (ours,),
        lambda arrays: [to_ours(arrays[0])],
        lambda arrays: [to_theirs(arrays[0])],
    )


def flatten(tree) -> dict[str, Any]:
    """Leaves by path, such as "body/blocks/up/kernel"."""
    return traverse_util.flatten_dict(tree, sep="/")


def read(
    table: Sequence[Entry], tensors: Mapping[str, np.ndarray], shapes, source: str | Path
) -> dict:
    """Converts another library's tensors, of any float type, to a tree like `shapes` of float32;
    `source` is for messages. Entries of parameters that `shapes` lacks are ignored."""
    flat = flatten(shapes)
    entries = [entry for entry in table if entry.ours[0] in flat]
    zeros = {path: np.broadcast_to(np.float32(0), leaf.shape) for path, leaf in flat.items()}
    expected = _convert(entries, zeros)
    for name in {**expected, **tensors}:
        theirs, ours = (
            np.shape(by_name[name]) if name in by_name else "missing"
            for by_name in (tensors, expected)
        )
        if theirs != ours:
            raise UserError(f"{source}: {name} is {theirs}, and in a model of its config {ours}")
    params = {}
    for entry in entries:
        layers = [
            entry.to_ours([np.asarray(tensors[name], np.float32) for name in names])
            for names in entry.names(flat[entry.ours[0]].shape)
        ]
        for path, arrays in zip(entry.ours, zip(*layers)):
            params[path] = np.stack(arrays) if entry.is_stacked else np.array(arrays[0])
    return traverse_util.unflatten_dict(params, sep="/")


def write(table: Sequence[Entry], params) -> dict[str, np.ndarray]:
    """Converts parameters (or gradients) to the other library's tensors, contiguous float32 arrays
    by name; the inverse of `read`."""
    flat = flatten(params)
    entries = [entry for entry in table if entry.ours[0] in flat]
    if homeless := set(flat).difference(*(entry.ours for entry in entries)):
        raise UserError(f"this format has no tensor for {min(homeless)}")
    tensors = _convert(entries, {path: np.asarray(leaf, np.float32) for path, leaf in flat.items()})
    # safetensors ignores strides.
    return {name: np.ascontiguousarray(array) for name, array in tensors.items()}


def _convert(entries: Sequence[Entry], params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors of these parameters by path."""
    tensors = {}
    for entry in entries:
        arrays = [params[path] for path in entry.ours]
        for i, names in enumerate(entry.names(arrays[0].shape)):
            layer = [array[i] for array in arrays] if entry.is_stacked else arrays
            tensors |= dict(zip(names, entry.to_theirs(layer), strict=True))
    return tensors
