"""The mesh, and the table from logical axis names of parameters to mesh axes.

`data` and `fsdp` divide the batch; `fsdp` also divides parameters and optimiser state along their
`embed` axis; `tensor` divides heads, hidden units and the vocabulary.
"""

import math
from collections.abc import Mapping

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bertlab.errors import UserError

MESH_AXES = ("data", "fsdp", "tensor")

RULES = {
    "vocab": "tensor",
    "heads": "tensor",
    "hidden": "tensor",
    "embed": "fsdp",
    **dict.fromkeys(("classes", "norm", "layers", None)),
}


def build_mesh(mesh: Mapping[str, int], devices=None) -> Mesh:
    """The device mesh of `config.mesh`, whose sizes may have one −1, for all remaining devices;
    a single process may use only the first of JAX's `devices`."""
    devices = np.asarray(jax.devices() if devices is None else devices).ravel()
    sizes = [int(mesh[axis]) for axis in MESH_AXES]
    fixed = math.prod(size for size in sizes if size != -1)
    sizes = [devices.size // fixed if size == -1 else size for size in sizes]
    used, uses_all = math.prod(sizes), -1 in mesh.values() or jax.process_count() > 1
    if used > devices.size or (used < devices.size and uses_all):
        raise UserError(f"config.mesh does not fit JAX's {devices.size} devices; change its sizes")
    # A mesh axis may take up part of an axis of a TPU slice: 16 of 4 x 8 x 8.
    grid = mesh_utils.create_device_mesh(sizes, devices[:used], allow_split_physical_axes=True)
    return Mesh(grid, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def parameter_shardings(mesh: Mesh, logical_axes, shapes):
    """One NamedSharding per parameter, from `Program.logical_axes` and its shape; a dimension stays
    whole if its mesh axis does not divide it."""

    def sharding(axes, leaf):
        names = [RULES[axis] for axis in axes]
        sizes = zip(names, leaf.shape, strict=True)
        divided = [name if name and size % mesh.shape[name] == 0 else None for name, size in sizes]
        return NamedSharding(mesh, PartitionSpec(*divided))

    return jax.tree.map(
        sharding, logical_axes, shapes, is_leaf=lambda x: isinstance(x, PartitionSpec)
    )


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of arrays whose first axis is the batch's."""
    return NamedSharding(mesh, PartitionSpec(("data", "fsdp")))


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of arrays that every device holds in full."""
    return NamedSharding(mesh, PartitionSpec())


def put_batch(mesh: Mesh, batch: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """This process's rows of a batch as global arrays, rows divided over `data` and `fsdp`."""
    return jax.make_array_from_process_local_data(batch_sharding(mesh), dict(batch))
