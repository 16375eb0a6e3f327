"""Tables that map parameters to another library's tensors, read in both directions.

So an export writes exactly what an import has read.
"""

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
    """Parameters of bertlab, and the tensors elsewhere that hold the same numbers.

    Attributes:
        theirs: names of tensors; with "{i}" in them, each layer has its own.
        ours: paths of parameters, whose first axis is then the layers.
        to_ours: converts their arrays (of one layer) to ours.
        to_theirs: the inverse.
    """

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    to_ours: Convert = list
    to_theirs: Convert = list

    def names(self, layers: int) -> list[list[str]]:
        """The tensors' names by layer."""
        return [[name.replace("{i}", str(i)) for name in self.theirs] for i in range(layers)]

    def layers(self, shape: Sequence[int]) -> int:
        """How many layers a parameter of this shape has; 1 if it has no axis of layers."""
        return shape[0] if self.is_stacked else 1

    @property
    def is_stacked(self) -> bool:
        """Whether each layer has its own tensors."""
        return "{i}" in self.theirs[0]


def same(theirs: str, ours: str) -> Entry:
    """A tensor that is stored as here."""
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
    """Converts another library's tensors to parameters.

    Args:
        table: has an entry for every parameter in `shapes`; other entries are ignored.
        tensors: by name; of any float type.
        shapes: tree of the expected parameters; leaves have `shape`.
        source: the file, for messages.

    Returns:
        A tree like `shapes` of float32 arrays.
    """
    flat = flatten(shapes)
    entries = [entry for entry in table if entry.ours[0] in flat]
    expected = {}
    for entry in entries:
        expected |= _their_shapes(entry, [flat[path].shape for path in entry.ours])
    for name, shape in expected.items():
        if name not in tensors:
            raise UserError(f"{source} lacks {name} {shape}")
        if np.shape(tensors[name]) != shape:
            found = np.shape(tensors[name])
            raise UserError(f"{source}: {name} has the shape {found}; its config has {shape}")
    if unknown := [name for name in tensors if name not in expected]:
        raise UserError(f"{source} has {', '.join(unknown[:5])}, which this model does not have")
    params = {}
    for entry in entries:
        layers = [
            entry.to_ours([np.asarray(tensors[name], np.float32) for name in names])
            for names in entry.names(entry.layers(flat[entry.ours[0]].shape))
        ]
        for path, arrays in zip(entry.ours, zip(*layers)):
            params[path] = np.stack(arrays) if entry.is_stacked else np.array(arrays[0])
    return traverse_util.unflatten_dict(params, sep="/")


def write(table: Sequence[Entry], params) -> dict[str, np.ndarray]:
    """Converts parameters (or gradients) to the other library's tensors; the inverse of `read`.

    Returns:
        Contiguous float32 arrays by name.
    """
    flat = flatten(params)
    entries = [entry for entry in table if entry.ours[0] in flat]
    if homeless := set(flat).difference(*(entry.ours for entry in entries)):
        raise UserError(f"this format has no tensor for {min(homeless)}")
    tensors = {}
    for entry in entries:
        arrays = [np.asarray(flat[path], np.float32) for path in entry.ours]
        for i, names in enumerate(entry.names(entry.layers(arrays[0].shape))):
            layer = [array[i] for array in arrays] if entry.is_stacked else arrays
            tensors |= dict(zip(names, entry.to_theirs(layer), strict=True))
    # safetensors ignores strides.
    return {name: np.ascontiguousarray(array) for name, array in tensors.items()}


def _their_shapes(entry: Entry, shapes: Sequence[tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that hold parameters of these shapes."""
    layer = [shape[1:] if entry.is_stacked else shape for shape in shapes]
    zeros = [np.broadcast_to(np.float32(0), shape) for shape in layer]
    theirs = [np.shape(array) for array in entry.to_theirs(zeros)]
    names = entry.names(entry.layers(shapes[0]))
    return {name: shape for of_layer in names for name, shape in zip(of_layer, theirs, strict=True)}
