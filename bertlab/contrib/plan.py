"""The memory of a training step on devices that you do not have, and the least time it takes.

    python -m bertlab.contrib.plan --config=experiments/pretrain/bert.py:size=large \
      --topology=v5e:16x16 [--out=FILE.json] [--config.data.batch_size=1024 ...]

compiles the step of each phase ahead of time, from a laptop, without running it. `v5e:16x16` and
the like are TPU slices, whose compiler (libtpu, extra `tpu`) runs on any x86 Linux machine; `h100`
is one such GPU (extra `cuda`); `cpu:8` is eight virtual devices of this machine
(JAX_NUM_CPU_DEVICES=8). Rows are made up, so no text is read.

Memory is the compiler's. The times are lower bounds by formula: the model's FLOPs at the chip's
full rate, and gradients and parameters over all of a chip's links. What passes through memory,
element-wise work such as dropout's draws, and what a rematerialised step computes again are not
counted, so the utilisation is an upper bound. XLA's own count of FLOPs is of no use here, because
it counts the body of a loop over layers once.

Checked on virtual devices: the state's bytes against its arrays, and a mesh that divides it
(tests/contrib/test_plan.py).

Letters: B rows, L length.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import importlib.metadata
import importlib.util
import io
import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from bertlab.config import load_config
from bertlab.data.batches import Batches
from bertlab.data.formats import row_length
from bertlab.data.prepare import prepare
from bertlab.errors import UserError
from bertlab.files import write_json
from bertlab.studies.equal import made_up_program, predictions
from bertlab.train.optimizers import build_optimizer
from bertlab.train.phases import Phase, build_phases, phase_configs
from bertlab.train.sharding import batch_sharding, build_mesh
from bertlab.train.state import abstract_state, build_step

ROWS = 8
"""Rows of the batch that is made up for its fields."""


class Chip(NamedTuple):
    """The manufacturer's figures of a chip: bfloat16 operations a second, and bytes a second to all
    neighbours, one way."""

    flops: float
    links: float


# Google Cloud's pages "TPU v5e", "TPU v5p" and "TPU v6e" (interconnect there in Gbit/s per chip).
CHIPS = {
    "v5e": Chip(197e12, 1600e9 / 8),
    "v5p": Chip(459e12, 4800e9 / 8),
    "v6e": Chip(918e12, 3584e9 / 8),
    "h100": Chip(989e12, 450e9),  # NVIDIA's data sheet of the SXM board, without sparsity
}

H100 = """
gpu_device_info {
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
  shared_memory_per_core: 233472 shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  l2_cache_size: 52428800 device_memory_size: 84942979072 memory_bandwidth: 3352320000000
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""What XLA must know of a GPU to compile for it: a GpuTargetConfigProto."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """A training step of a phase; values per device, except rows, tokens, steps and parameters.

    Attributes:
        topology: As asked for.
        mesh: Sizes of its axes.
        phase: Its number, from 0.
        steps: How many of the run's steps are such steps.
        rows, tokens: Those of the whole batch, padding included.
        parameters: Those of the whole model.
        model_flops: Forward and backward, by formula.
        arguments: Bytes of state and batch.
        memory: Peak bytes, these included.
        seconds: The least time of products and of exchanges; {} for CPUs.
        compile_seconds: CPU time to trace and compile the step.
    """

    topology: str
    mesh: Mapping[str, int]
    phase: int
    steps: int
    rows: int
    tokens: int
    parameters: int
    model_flops: float
    arguments: int
    memory: int
    seconds: Mapping[str, float]
    compile_seconds: float

    def record(self) -> dict[str, Any]:
        """As JSON, with what bounds the step and the compiler's versions."""
        bound = max(self.seconds, key=self.seconds.get, default=None)
        versions = {}
        for name in ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin"):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[name] = importlib.metadata.version(name)
        return {**dataclasses.asdict(self), "bound": bound, "versions": versions}


class TooLarge(UserError):
    """The step needs more memory than a device has."""


def topology_devices(topology: str) -> tuple[np.ndarray, Chip | None]:
    """The devices of "v5e:16x16" or "cpu:8", to compile for, and the figures of one.

    Raises:
        UserError: The topology is unknown, or there are fewer CPU devices.
    """
    kind, _, shape = topology.partition(":")
    if kind == "cpu" and shape.isdecimal():
        found = jax.devices("cpu")
        if len(found) < int(shape):
            raise UserError(f"--topology={topology}: set JAX_NUM_CPU_DEVICES={shape}")
        return np.asarray(found[: int(shape)]), None
    if kind == "h100":
        return h100_devices(), CHIPS[kind]
    if kind not in CHIPS:
        known = "h100, cpu:8, or v5e:4x4 (v5litepod-16), v5p:2x2x2, v6e:16x16 and the like"
        raise UserError(f"--topology={topology} is not one of {known}")
    # libtpu searches for a TPU and serves one process at a time; here it only compiles.
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    os.environ |= {"TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "localhost"}
    os.environ["TPU_WORKER_ID"] = "0"
    from jax.experimental import topologies  # needs the settings above

    try:
        found = topologies.get_topology_desc(topology, platform="tpu")
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        hint = "" if importlib.util.find_spec("libtpu") else "; pip install 'jax[tpu]'"
        raise UserError(f"--topology={topology}: {reason}{hint}") from None
    return np.asarray(found.devices), CHIPS[kind]


def h100_devices() -> np.ndarray:
    """One H100 to compile for; this machine needs no GPU, but the packages of the extra `cuda`."""
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    # JAX's plugin does not find this library by itself if there is no driver.
    for folder in importlib.util.find_spec("nvidia").submodule_search_locations:
        for library in Path(folder).glob("*/lib/libcupti.so*"):
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    from jax.experimental import topologies

    found = topologies.get_topology_desc(platform="cuda", target_config=H100, topology="1x1x1")
    return np.asarray(found.devices)


class MadeUp:
    """Batches of a config whose corpus is a synthetic language: only their fields and shapes."""

    def __init__(self, data: ConfigDict):
        self.hash = data.to_json()
        few = data.copy_and_resolve_references()
        few.batch_size, few.buckets, few.unique_tokens = ROWS, (), 0
        few.corpus = "synthetic"
        few.tokenizer.update(kind="words", path="", vocab_size=few.synthetic.vocab_size + 5)
        few.synthetic.documents = 200
        with (
            tempfile.TemporaryDirectory() as directory,
            contextlib.redirect_stdout(io.StringIO()),
        ):
            few.directory = directory
            example = Batches(prepare(few), few, "train")(0)
        self.shapes = {
            name: jax.ShapeDtypeStruct((data.batch_size, *x.shape[1:]), x.dtype)
            for name, x in example.items()
        }
        self.example = example

    def __call__(self, step: int) -> Mapping[str, np.ndarray]:
        return self.example


def plans(config: ConfigDict, topology: str) -> Iterator[Plan]:
    """Compiles the step of one phase after the other.

    Args:
        config: A whole config of a pretraining.
        topology: As for `topology_devices`.

    Raises:
        TooLarge: A step needs more memory than a device has.
        UserError: As for `topology_devices` and `build_mesh`.
    """
    devices, chip = topology_devices(topology)
    mesh, made = build_mesh(config.mesh, devices), {}
    program = dataclasses.replace(made_up_program(config), stateful=config.model.stateful)

    def batches(data: ConfigDict) -> MadeUp:
        if data.to_json() not in made:
            made[data.to_json()] = MadeUp(data)
        return made[data.to_json()]

    configs = [phase_config for _, phase_config in phase_configs(config)]
    for number, phase in enumerate(build_phases(config, program, batches)):
        made_up = batches(configs[number].data)
        yield plan(configs[number], phase, made_up, mesh, topology, chip, number)


def plan(
    config: ConfigDict, phase: Phase, made_up: MadeUp, mesh, topology: str, chip, number: int
) -> Plan:
    """Compiles the step of one phase."""
    program, rows, length = phase.program, phase.rows, row_length(config.data)
    steps = config.train.steps
    optimizer = build_optimizer(config.optimizer, steps, program, made_up.example)

    def by_rows(x):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=batch_sharding(mesh))

    carry = jax.tree.map(by_rows, jax.eval_shape(lambda: program.initial_carry(rows)))
    state = abstract_state(program, optimizer, mesh, made_up.example, carry)
    batch = jax.tree.map(by_rows, made_up.shapes)
    step = build_step(config, phase, optimizer, mesh, state)
    begin, platforms = time.process_time(), ("cuda",) if topology == "h100" else None
    with jax.set_mesh(mesh), kept_out_of_the_cache():
        try:
            traced = step.func.trace(state, batch, **step.keywords)
            compiled = traced.lower(lowering_platforms=platforms).compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            reason = str(error).splitlines()[0]
            raise TooLarge(
                f"one step of {rows:,} rows does not fit on {topology}: {reason}; lower"
                " config.data.batch_size, or raise config.mesh.fsdp or config.train.micro_batches"
            ) from None
    compile_seconds = time.process_time() - begin
    memory = compiled.memory_analysis()
    peak = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    sums = {
        f"{name}/loss": (0.0, rows * predictions(program.objectives, name, length))
        for name in program.objectives
    }
    flops = phase.costs(sums, length)[1] / mesh.size
    seconds = {}
    if chip is not None:
        sent = exchanged_bytes(mesh.shape, parameters)
        seconds = {"products": flops / chip.flops, "exchanges": sent / chip.links}
    return Plan(
        topology=topology,
        mesh=dict(mesh.shape),
        phase=number,
        steps=phase.end - phase.begin,
        rows=rows,
        tokens=rows * length,
        parameters=parameters,
        model_flops=flops,
        arguments=memory.argument_size_in_bytes,
        # A CPU's compiler reports only what is beyond the arguments.
        memory=memory.peak_memory_in_bytes if chip else peak,
        seconds=seconds,
        compile_seconds=round(compile_seconds, 1),
    )


def exchanged_bytes(mesh: Mapping[str, int], parameters: int) -> float:
    """The bytes that a device sends per step, at least, in rings: float32 gradients reduced over
    `data`, and over `fsdp` parameters gathered twice, in 16 bits, and gradients scattered."""
    data, fsdp, tensor = (mesh[axis] for axis in ("data", "fsdp", "tensor"))
    own = parameters / tensor
    reduced = 2 * (data - 1) / data * 4 * own / fsdp
    return reduced + (fsdp - 1) / fsdp * own * (2 * 2 + 4)


@contextlib.contextmanager
def kept_out_of_the_cache():
    """JAX's compilation cache cannot read back programs of absent devices."""
    name = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, name)
    jax.config.update(name, math.inf)
    try:
        yield
    finally:
        jax.config.update(name, before)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="FILE.py or FILE.py:key=value,key=value")
    parser.add_argument("--topology", required=True, help="h100, v5e:16x16, v6e:4x4, cpu:8")
    parser.add_argument("--out", type=Path, help="a JSON file of the plans, one per phase")
    given, overrides = parser.parse_known_args(arguments)
    print(HEADER, flush=True)
    found = []
    try:
        for one in plans(load_config(given.config, argv=overrides), given.topology):
            print(line(one), flush=True)
            found.append(one)
    except UserError as error:
        parser.error(str(error))
    if given.out:
        write_json(given.out, [one.record() for one in found])


HEADER = "phase     steps    rows   memory  state and batch  TFLOP each  step at least"


def line(one: Plan) -> str:
    """A plan as a line of the command's table."""
    bound, gib = one.record()["bound"], [x / 2**30 for x in (one.memory, one.arguments)]
    least = f"{1000 * one.seconds[bound]:.1f} ms, {bound}" if bound else "–"
    counts = f"{one.phase:5}{one.steps:10,}{one.rows:8,}"
    return f"{counts}{gib[0]:6.2f} GiB{gib[1]:13.2f} GiB{one.model_flops / 1e12:12.3f}  {least}"


if __name__ == "__main__":
    main()
