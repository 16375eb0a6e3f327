"""What a training step needs on a machine that is not here: compiled ahead of time for its devices, and read, not run.

`v5e:16x16` and the like are TPU slices, whose compiler (libtpu, extra `tpu`) runs on any x86 Linux machine; `cpu:8` is eight
virtual devices of this one. Tokens are made up, so no text is read.
"""

import dataclasses
import math
import os
import re
from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import NamedSharding
from rich.console import Console
from rich.table import Table

from bertlab.errors import UserError
from bertlab.train.budget import mean_cost
from bertlab.train.build import build_phases
from bertlab.train.made_up import MadeUpRows, made_up_program
from bertlab.train.optimizers import build_optimizer
from bertlab.train.sharding import BATCH, build_mesh
from bertlab.train.state import fresh_state, lower_train_step, state_shardings


@dataclasses.dataclass(frozen=True)
class Chip:
    """What a TPU's maker says of one chip.

    Attributes:
        flops: bfloat16 products a second.
        memory: bytes.
        bandwidth: bytes a second between it and the chip.
        links: bytes a second to the neighbours, all links together, one way.
    """

    flops: float
    memory: float
    bandwidth: float
    links: float


# Google Cloud's pages "TPU v4", "TPU v5e", "TPU v5p" and "TPU v6e" (interconnect there in Gbit/s a chip).
CHIPS = {
    "v4": Chip(275e12, 32 * 2**30, 1.228e12, 2400e9 / 8),
    "v5e": Chip(197e12, 16 * 2**30, 0.819e12, 1600e9 / 8),
    "v5p": Chip(459e12, 95 * 2**30, 2.765e12, 4800e9 / 8),
    "v6e": Chip(918e12, 32 * 2**30, 1.638e12, 3584e9 / 8),
}
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_BYTES = {
    "pred": 1,
    "s8": 1,
    "u8": 1,
    "s16": 2,
    "u16": 2,
    "bf16": 2,
    "f16": 2,
    "s32": 4,
    "u32": 4,
    "f32": 4,
    "s64": 8,
    "u64": 8,
}
_BYTES |= {"f64": 8, "s4": 0.5, "u4": 0.5, "f8e4m3fn": 1, "f8e5m2": 1}


@dataclasses.dataclass(frozen=True)
class Collectives:
    """Exchanges of one kind in one step.

    Attributes:
        count: how many, those in loops as often as they run.
        bytes: that come out of them on one device, together.
    """

    count: int
    bytes: float


@dataclasses.dataclass(frozen=True)
class Plan:
    """One training step on one topology; everything is of one device but `rows` and `tokens`.

    Attributes:
        mesh: sizes of its axes.
        rows, tokens: of the whole batch, padding counted.
        flops: forward and backward model FLOPs, without recomputation.
        arguments: bytes of state and batch.
        temporaries: bytes beside them at the fullest moment.
        collectives: by kind.
        chip: what is known of the device; None for a CPU.
    """

    mesh: Mapping[str, int]
    rows: int
    tokens: int
    flops: float
    arguments: int
    temporaries: int
    collectives: Mapping[str, Collectives]
    chip: Chip | None

    @property
    def memory(self) -> int:
        """Bytes at the fullest moment."""
        return self.arguments + self.temporaries

    @property
    def fits(self) -> bool:
        """Whether the chip has that much; a CPU always."""
        return self.chip is None or self.memory <= self.chip.memory

    def seconds(self) -> dict[str, float]:
        """The shortest time that products and that exchanges can take, each by itself; nothing for a CPU."""
        if self.chip is None:
            return {}
        exchanged = sum(found.bytes for found in self.collectives.values())
        return {"products": self.flops / self.chip.flops, "exchanges": exchanged / self.chip.links}


class TooLarge(UserError):
    """The step needs more memory than a device has."""


def plan(config, topology: str) -> Plan:
    """Compiles the training step of a config's first phase for a topology.

    Raises:
        TooLarge: it needs more memory than there is.
        UserError: the config cannot be, or there is no such topology, or no compiler for it.
    """
    devices, chip = topology_devices(topology)
    if config.model.scan_layers is None:  # as on the devices that are planned for
        config = config.copy_and_resolve_references()
        config.model.scan_layers = chip is not None or None
    mesh = build_mesh(config.mesh, devices)
    program, size = made_up_program(config), config.data.tokenizer.vocab_size
    phase = build_phases(config, program, lambda data: MadeUpRows(data, size))[0]
    optimizer = build_optimizer(config.optimizer, config.train.steps)
    example = next(iter(phase.train))
    shapes = jax.eval_shape(lambda: fresh_state(program, optimizer, config.seed, example))
    shardings = state_shardings(program, optimizer, mesh, example, shapes)
    placed = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    state = jax.tree.map(placed, shapes, shardings)
    batch = {name: placed(values, NamedSharding(mesh, BATCH)) for name, values in example.items()}
    lowered = lower_train_step(phase.program, optimizer, config, phase.weights, mesh, state, batch)
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise TooLarge(
            f"one step of {example['tokens'].shape[0]:,} rows does not fit on {topology}: {str(error).splitlines()[0]}; lower"
            " config.data.batch_size, raise config.mesh.fsdp or config.train.micro_batches, or set config.model.remat='full'"
        ) from None
    memory = compiled.memory_analysis()
    return Plan(
        mesh=dict(mesh.shape),
        rows=len(example["tokens"]),
        tokens=example["tokens"].size,
        flops=mean_cost(phase, "flops", config.seed, (0.0, 1.0), batches=1) / mesh.size,
        arguments=memory.argument_size_in_bytes,
        temporaries=memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes,
        collectives=collectives(compiled.as_text()),
        chip=chip,
    )


def largest_batch(config, topology: str) -> Plan:
    """The plan of the largest batch that fits: doubled from the config's while it does, or halved until it does.

    Raises:
        UserError: as `plan`; no batch fits.
    """
    config, best, halved = config.copy_and_resolve_references(), None, False
    while best is None or not halved:
        try:
            best = plan(config, topology)
            config.data.batch_size *= 2
        except TooLarge:
            if best is not None:
                return best
            halved = True
            config.data.batch_size //= 2
    return best


def topology_devices(topology: str) -> tuple[np.ndarray, Chip | None]:
    """The devices of "v5e:16x16" or "cpu:8", which can be compiled for, and what is known of one.

    Raises:
        UserError: there is no such topology, or libtpu is not installed.
    """
    kind, _, shape = topology.partition(":")
    if kind == "cpu" and shape.isdigit():
        return np.asarray(virtual_devices(int(shape))), None
    if kind not in CHIPS or not re.fullmatch(r"\d+(x\d+)+", shape):
        raise UserError(
            f"--topology={topology}: give cpu:8 (virtual devices) or one of {', '.join(CHIPS)} with its chips, as v5e:16x16"
        )
    # libtpu looks for the machine that it is on, and lets one process at a time have it; here it only compiles.
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_STDERR_LOG_LEVEL": "3"}
    os.environ |= {"TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}
    try:
        import libtpu  # noqa: F401
    except ModuleNotFoundError:
        raise UserError(f"--topology={topology} needs the TPU's compiler: pip install 'bertlab[tpu]'") from None
    from jax.experimental import topologies

    try:
        found = topologies.get_topology_desc(topology, platform="tpu")
    except (jax.errors.JaxRuntimeError, RuntimeError) as error:
        raise UserError(f"--topology={topology} is not known to libtpu: {str(error).splitlines()[0]}") from None
    return np.asarray(found.devices), CHIPS[kind]


def virtual_devices(count: int) -> list[jax.Device]:
    """So many devices of this machine's processor.

    Raises:
        UserError: JAX has begun with fewer.
    """
    if len(found := jax.devices("cpu")) < count:
        raise UserError(
            f"JAX runs with {len(found)} processor devices, and {count} are asked for; set JAX_NUM_CPU_DEVICES={count}"
        )
    return found[:count]


def collectives(program_text: str) -> dict[str, Collectives]:
    """What devices exchange in one run of a compiled program.

    Args:
        program_text: of the program of one device, as XLA prints it.

    Returns:
        Kind -> collectives; kinds that do not occur are left out. Bytes are those of the larger side: all that is gathered,
        reduced or scattered.

    Raises:
        ValueError: a collective stands in a loop that does not say how often it runs.
    """
    computations = _computations(program_text)
    found: dict[str, Collectives] = {}

    def add(name: str, times: float) -> None:
        for exchange in computations[name].exchanges:
            if math.isnan(times):
                raise ValueError(f"{exchange[0]} in a loop that does not say how often it runs: {name}")
            before = found.get(exchange[0], Collectives(0, 0.0))
            found[exchange[0]] = Collectives(before.count + int(times), before.bytes + times * exchange[1])
        for callee, of_callee in computations[name].calls:
            add(callee, times * of_callee)

    add(next(name for name, of in computations.items() if of.is_entry), 1)
    return dict(sorted(found.items()))


@dataclasses.dataclass
class _Computation:
    is_entry: bool
    exchanges: list[tuple[str, float]] = dataclasses.field(default_factory=list)
    calls: list[tuple[str, float]] = dataclasses.field(default_factory=list)


_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_CALLED = re.compile(r"\b(?:calls|to_apply)=%?([\w.\-]+)|branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")


def _computations(text: str) -> dict[str, _Computation]:
    """Of every computation its exchanges, (kind, bytes), and its calls, (computation, times)."""
    found: dict[str, _Computation] = {}
    current, sizes = None, {}
    for line in text.splitlines():
        if head := _HEAD.match(line):
            current, sizes = found.setdefault(head[2], _Computation(bool(head[1]))), {}
        elif current is not None and (match := _INSTRUCTION.match(line)):
            name, shape, operation, rest = match.groups()
            sizes[name] = _sizes(shape)
            kind = operation.removesuffix("-start")
            if kind in KINDS:
                operands = re.findall(r"%([\w.\-]+)", rest.partition(")")[0])
                inputs = sum(sum(sizes.get(operand, [])) for operand in operands)
                # An operation that is begun here has its input beside its output in its shape.
                outputs = sum(sizes[name]) - (inputs if operation != kind and kind != "all-reduce" else 0)
                current.exchanges.append((kind, max(inputs, outputs)))
            if operation == "while":
                trips = _TRIPS.search(rest)
                current.calls.append((re.search(r"body=%?([\w.\-]+)", rest)[1], int(trips[1]) if trips else math.nan))
            elif kind not in KINDS and (called := _CALLED.search(rest)):
                current.calls += [(each.lstrip("%"), 1) for each in (called[1] or called[2]).split(", ")]
    return found


def _sizes(shape: str) -> list[float]:
    """Bytes of each array of a shape."""
    return [
        _BYTES[kind] * math.prod(int(n) for n in dimensions.split(",") if n)
        for kind, dimensions in _ARRAY.findall(shape)
        if kind in _BYTES
    ]


def print_plan(config, topology: str, largest: bool = False) -> None:
    """The plan as a table on standard output.

    Args:
        config: a whole experiment config.
        topology: as for `plan`.
        largest: of the largest batch that fits, not of the config's.

    Raises:
        UserError: as `plan`.
    """
    found = (largest_batch if largest else plan)(config, topology)
    table = Table(title=f"One training step on {topology}, for each device", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    shape = ", ".join(f"{axis} {size}" for axis, size in found.mesh.items())
    table.add_row("mesh", shape)
    table.add_row("rows and tokens of the batch", f"{found.rows:,} and {found.tokens:,}")
    table.add_row("state and batch", f"{found.arguments / 2**30:.2f} GiB")
    table.add_row("beside them at most", f"{found.temporaries / 2**30:.2f} GiB")
    if found.chip:
        table.add_row("memory of the chip", f"{found.chip.memory / 2**30:.0f} GiB")
    table.add_row("model FLOPs", f"{found.flops:.3g}")
    for kind, of in found.collectives.items():
        table.add_row(kind, f"{of.count:,}, {of.bytes / 2**20:,.1f} MiB")
    for what, seconds in found.seconds().items():
        table.add_row(f"shortest time of {what}", f"{1000 * seconds:.2f} ms")
    console = Console()
    (console if console.is_terminal else Console(width=120)).print(table)
