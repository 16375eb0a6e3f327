"""The mesh, and the table from logical axis names to mesh axes: the same for every model.

The mesh has four axes. `data` and `fsdp` divide the batch; `fsdp` also divides parameters and optimiser state along their
`embed` axis; `tensor` divides heads, hidden units and the vocabulary. `sequence` divides a row's states along its positions,
inside attention along the heads instead; a batch of tokens, which is small beside its states, is whole along it.
"""

import math

import jax
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from bertlab import keys
from bertlab.data.parallel import memory_of_machine
from bertlab.errors import UserError
from bertlab.models.base import BATCH_AXES
from bertlab.train.layer_groups import parameter_name

MESH_AXES = ("data", "fsdp", "tensor", "sequence")
BATCH = PartitionSpec(BATCH_AXES)

RULES = {
    "vocab": "tensor",
    "heads": "tensor",
    "hidden": "tensor",
    "embed": "fsdp",
    "norm": None,
    "layers": None,
    "classes": None,
}


def build_mesh(mesh, devices=None) -> Mesh:
    """The device mesh of `config.mesh`.

    Args:
        mesh: sizes of the axes, 1 for those that it lacks; one may be −1: all remaining devices.
        devices: by default all; a single process may use only the first ones.

    Raises:
        UserError: the sizes do not fit the number of devices.
    """
    devices = np.asarray(jax.devices() if devices is None else devices).ravel()
    sizes = [int(mesh.get(axis, 1)) for axis in MESH_AXES]
    shown = ", ".join(f"{a}={s}" for a, s in zip(MESH_AXES, sizes))
    keys.check(mesh, "mesh")
    if sizes.count(-1) > 1:
        raise UserError(f"config.mesh ({shown}): only one size may be -1, for the remaining devices")
    fixed = math.prod(s for s in sizes if s != -1)
    if -1 in sizes and devices.size % fixed:
        raise UserError(f"config.mesh ({shown}) does not divide {devices.size} devices; change the sizes that are not -1")
    sizes = [devices.size // fixed if s == -1 else s for s in sizes]
    used = math.prod(sizes)
    if used > devices.size or (used < devices.size and jax.process_count() > 1):
        raise UserError(f"config.mesh ({shown}) asks for {used} devices, but JAX has {devices.size}; change its sizes")
    # As `jax.make_mesh`, but a mesh axis may take part of an axis of a TPU slice: 16 of 4 x 8 x 8.
    laid_out = mesh_utils.create_device_mesh(sizes, devices[:used], allow_split_physical_axes=True)
    return Mesh(laid_out, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))


def check_memory(shapes, shardings, mesh: Mesh) -> None:
    """Refuses a state (shapes and shardings of its arrays) that is larger than a device's memory, before it is made."""
    parts = lambda shape, sharding: math.prod(sharding.shard_shape(shape.shape)) * shape.dtype.itemsize
    needed = sum(jax.tree.leaves(jax.tree.map(parts, shapes, shardings)))
    memory = (mesh.local_devices[0].memory_stats() or {}).get("bytes_limit")
    if memory is None:  # a CPU's devices share the machine's
        memory, needed = memory_of_machine(), needed * len(mesh.local_devices)
    if needed > memory:
        raise UserError(
            f"the model and its optimizer's state take {needed / 2**30:,.0f} GiB, but there are {memory / 2**30:,.0f} GiB;"
            " lower config.model.width, config.model.layers or config.data.tokenizer.vocab_size, or divide them"
            " among devices with config.mesh.fsdp"
        )


def check_batch(shards: int, batch_size: int, micro_batches: int) -> None:
    """Refuses a batch that the mesh (data · fsdp = `shards`) or the micro-batches do not divide."""
    if batch_size % (shards * micro_batches):
        raise UserError(
            f"config.data.batch_size={batch_size} is not a multiple of config.mesh data·fsdp ({shards}) times"
            f" config.train.micro_batches ({micro_batches}); change one of them"
        )


def check_rows_have_one_process(mesh: Mesh) -> None:
    """Refuses a mesh in which devices of several processes share rows: each process reads its own."""
    sharing = {axis: mesh.shape[axis] for axis in ("tensor", "sequence") if mesh.shape[axis] > 1}
    devices = mesh.devices.reshape(-1, math.prod(sharing.values()))
    if any(len({device.process_index for device in group}) > 1 for group in devices):
        shown = " times ".join(f"config.mesh.{axis}={size}" for axis, size in sharing.items())
        raise UserError(
            f"{shown} spans processes, but each process reads its own rows; choose a divisor of the"
            f" {len(mesh.local_devices)} devices of a process"
        )


def parameter_shardings(mesh: Mesh, logical_axes, shapes):
    """A NamedSharding per parameter; a dimension stays whole if its mesh axis does not divide it.

    Args:
        mesh: from `build_mesh`.
        logical_axes: tree of tuples of axis names, from `Program.logical_axes`.
        shapes: tree of arrays or ShapeDtypeStructs.

    Raises:
        UserError: a parameter has no axis names, or one that RULES lacks.
    """

    def place(path, axes, leaf):
        name = parameter_name(path)
        if len(axes) != leaf.ndim:
            raise UserError(
                f"parameter {name} {leaf.shape} names {len(axes)} logical axes; name one (or None) per dimension, with"
                " bertlab.models.Dense or by wrapping its initialiser in bertlab.models.param"
            )
        unknown = [a for a in axes if a is not None and a not in RULES]
        if unknown:
            raise UserError(f"parameter {name}: no sharding rule for logical axis '{unknown[0]}'; known: {', '.join(RULES)}")
        wanted = [RULES.get(a) for a in axes]
        return NamedSharding(
            mesh, PartitionSpec(*(w if w and n % mesh.shape[w] == 0 else None for w, n in zip(wanted, leaf.shape)))
        )

    return jax.tree_util.tree_map_with_path(place, logical_axes, shapes, is_leaf=lambda x: isinstance(x, PartitionSpec))


def put_batch(mesh: Mesh, batch: dict[str, np.ndarray], whole: bool = False) -> dict[str, jax.Array]:
    """A batch as global arrays, rows divided over `data` and `fsdp`.

    Args:
        mesh: from `build_mesh`.
        batch: this process's rows.
        whole: `batch` has all rows, the same in every process, and each process takes its own.
    """
    sharding = NamedSharding(mesh, BATCH)
    shape = lambda v: v.shape if whole else None
    return {k: jax.make_array_from_process_local_data(sharding, v, shape(v)) for k, v in batch.items()}


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of arrays that every device holds in full."""
    return NamedSharding(mesh, PartitionSpec())


def on_host(tree):
    """A tree of arrays as NumPy arrays, gathered whole in every process."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)
