"""Compiles a training step ahead of time for other hardware and analyses what it needs there, without running it.

`v5e:16x16` and the like are TPU slices. Their compiler (libtpu, extra `tpu`) runs on any x86 Linux machine. `cpu:8` is eight
virtual devices of this machine. Tokens are made up, so no text is read. `model.attention=auto`, which a run measures, is
planned for a TPU as the fused kernel, where that applies.
"""

import contextlib
import dataclasses
import importlib.metadata
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from rich.table import Table

from bertlab.console import Console
from bertlab.data.formats import row_length
from bertlab.errors import UserError, how_to_install
from bertlab.files import write_json
from bertlab.models.transformer import TransformerConfig
from bertlab.progress import doing
from bertlab.train.budget import mean_cost
from bertlab.train.build import Phase, build_phases
from bertlab.train.checks import check_sequence
from bertlab.train.chips import CHIPS, Chip, split_topology
from bertlab.train.choice import check_device, with_backend
from bertlab.train.cost import flops_outside_windows
from bertlab.train.hlo import Work, read_work
from bertlab.train.made_up import MadeUpRows, made_up_program
from bertlab.train.optimizers import build_optimizer
from bertlab.train.sharding import BATCH, build_mesh, check_batch
from bertlab.train.state import fresh_state, lower_train_step, state_shardings
from bertlab.train.width import update_factors

ROWS = 8  # made up: shapes and FLOPs of a batch follow from few rows
NOT_COUNTED = (
    "The shortest times do not count element-wise work, such as dropout's draws, and take every product at the full rate, also"
    " one narrower than the matrix unit, such as attention's with heads of 64: so the utilisation is an upper bound."
)
"""What a plan for a TPU leaves out, for people."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """One training step of a phase on one topology; values are per device except `rows`, `tokens`, `parameters` and `steps`.

    Attributes:
        topology: the topology as given.
        mesh: sizes of its axes.
        rows, tokens: of the whole batch, padding included.
        micro_batches: number of micro-batches.
        parameters: number of parameters in the whole model.
        model_flops: forward and backward FLOPs by formula, without recomputation.
        work: of the compiled program.
        arguments: bytes of state and batch.
        memory: peak bytes, these included.
        chip: the device's figures; None for a CPU.
        phase: its words in `train.phases`; "" without phases.
        steps: of the run that are such steps.
        outside_windows: of `model_flops`, scores that the windows of local layers hide, which a program need not compute.
    """

    topology: str
    mesh: Mapping[str, int]
    rows: int
    tokens: int
    micro_batches: int
    parameters: int
    model_flops: float
    work: Work
    arguments: int
    memory: int
    chip: Chip | None
    phase: str = ""
    steps: int = 0
    outside_windows: float = 0.0

    def seconds(self) -> dict[str, float]:
        """The shortest time for products, memory and exchanges, each by itself; nothing for a CPU."""
        return {} if self.chip is None else shortest(self.work, self.chip)

    def bound(self) -> tuple[str, float] | None:
        """The longest of these times, with its name: no step is faster (the roofline); None for a CPU."""
        return max(self.seconds().items(), key=lambda item: item[1], default=None)

    def utilisation(self) -> float | None:
        """At most this share of what the chip can do are the model's FLOPs (by formula), in the shortest step; None for a CPU.

        It is an upper bound, of a step without what `NOT_COUNTED` names.
        As usual in a utilisation (MFU; Chowdhery et al. 2022, appendix B), scores that a direction hides count: for long rows
        in one direction it can be above 1 with a kernel that skips them. Scores outside of local windows do not count.
        """
        bound = self.bound()
        return bound and (self.model_flops - self.outside_windows) / self.chip.flops / bound[1]

    def record(self) -> dict[str, Any]:
        """Everything as a JSON-able dict, with the compiler's versions; of the source lines, those that move most."""
        bound, seconds, whole = self.bound(), self.seconds(), dataclasses.asdict(self)
        whole["work"]["sources"] = self.largest_sources()
        return whole | {
            "mesh": dict(self.mesh),
            "seconds": seconds,
            "bound": bound and bound[0],
            "model_flops_share": self.utilisation(),
            "versions": _versions(("jax", "jaxlib", *(("libtpu",) if self.chip else ()))),
        }

    def largest_sources(self, number: int = 10) -> dict[str, float]:
        """The source lines that move most, and their bytes."""
        return dict(list(self.work.sources.items())[:number])


def _versions(packages: Sequence[str]) -> dict[str, str]:
    """Those of the packages that are installed."""
    found = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def shortest(work: Work, chip: Chip) -> dict[str, float]:
    """The least seconds that a chip takes for a program's products, memory and exchanges, each by itself.

    Exchanges go in rings that use all of a chip's links at once.
    """
    sent = sum(found.sent for found in work.collectives.values())
    return {"products": work.flops / chip.flops, "memory": work.bytes / chip.bandwidth, "exchanges": sent / chip.links}


class TooLarge(UserError):
    """The step needs more memory than a device has."""


def distinct_phases(config) -> list[tuple[Phase, str, int]]:
    """(phase, its words in `train.phases`, steps) for each training step that a run compiles; like phases count as one.

    Raises:
        UserError: the config is invalid.
    """
    batches = lambda data: MadeUpRows(data, config.data.tokenizer.vocab_size)
    found: dict[Any, tuple[Phase, str, int]] = {}
    begin = 0
    for phase, said in zip(build_phases(config, made_up_program(config), batches), config.train.phases.split(";"), strict=True):
        first = phase, said.strip(), 0
        *alike, steps = found.get(like := (phase.data.to_json(), *phase.program.objectives), first)
        found[like] = (*alike, steps + phase.end - begin)
        begin = phase.end
    return list(found.values())


def plan_phases(config, topology: str) -> list[Plan]:
    """The plan of each of `distinct_phases`; raises as `plan`."""
    return [plan(config, topology, number) for number in range(len(distinct_phases(config)))]


def plan(config, topology: str, number: int = 0) -> Plan:
    """Compiles the training step of one phase of a config for a topology.

    Args:
        config: a whole experiment config.
        topology: "v5e:16x16" or "cpu:8".
        number: of the phase among `distinct_phases`, from 0.

    Raises:
        TooLarge: it needs more memory than a device has.
        UserError: the config is invalid, the topology is unknown, its compiler is missing, or its program cannot be read.
    """
    devices, chip = topology_devices(topology)
    batches = lambda data: MadeUpRows(data, config.data.tokenizer.vocab_size)
    mesh, (phase, said, steps) = build_mesh(config.mesh, devices), distinct_phases(config)[number]
    rows, few = phase.data.batch_size, phase.data.copy_and_resolve_references()
    check_batch(mesh.shape["data"] * mesh.shape["fsdp"], rows, config.train.micro_batches)
    check_sequence(config, phase.program.body.config, mesh.shape)
    if isinstance(shape := phase.program.body.config, TransformerConfig):
        check_device(shape, mesh, row_length(phase.data))
        if chip and config.model.attention == "auto":  # the shape says "xla"
            phase = dataclasses.replace(phase, program=with_backend(phase.program, "pallas"))
    few.batch_size = ROWS
    of_few = dataclasses.replace(phase, data=few, train=batches(few))
    batch = next(iter(of_few.train))
    optimizer = build_optimizer(config.optimizer, config.train.steps, update_factors(phase.program, batch))
    example = jax.tree.map(lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), batch)
    shapes = jax.eval_shape(lambda batch: fresh_state(phase.program, optimizer, config.seed, batch), example)
    shardings = state_shardings(phase.program, optimizer, mesh, example, shapes)
    placed = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    state = jax.tree.map(placed, shapes, shardings)
    batch = {name: placed(values, NamedSharding(mesh, BATCH)) for name, values in example.items()}
    lowered = lower_train_step(phase.program, optimizer, config, phase.weights, mesh, state, batch)
    try:
        with _kept_out_of_the_cache(), doing(f"compiling for {topology}{f', phase {said!r}' if said else ''}"):
            compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise TooLarge(
            f"one step of {rows:,} rows{f' in the phase {said!r}' if said else ''} does not fit on {topology}:"
            f" {str(error).splitlines()[0]}; lower"
            " config.data.batch_size, raise config.mesh.fsdp or config.train.micro_batches, or set config.model.remat='full'"
        ) from None
    try:
        text = compiled.as_text()
    except jax.errors.JaxRuntimeError as error:  # libtpu may be ahead of jaxlib
        raise UserError(
            f"the step compiles for {topology}, but this jaxlib cannot read the program ({str(error).splitlines()[0][:120]});"
            f" install the libtpu that it was made for: pip install 'jax[tpu]=={jax.__version__}'"
        ) from None
    memory = compiled.memory_analysis()
    return Plan(
        topology=topology,
        mesh=dict(mesh.shape),
        rows=rows,
        tokens=rows * example["tokens"].shape[1],
        micro_batches=config.train.micro_batches,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(shapes.params)),
        model_flops=mean_cost(of_few, "flops", config.seed, (0.0, 1.0), batches=1) * rows / ROWS / mesh.size,
        work=read_work(text),
        arguments=memory.argument_size_in_bytes,
        # A TPU's compiler reports peak memory; a CPU's reports only memory beyond the arguments.
        memory=memory.peak_memory_in_bytes if chip else memory.argument_size_in_bytes + memory.temp_size_in_bytes,
        chip=chip,
        phase=said,
        steps=steps,
        outside_windows=flops_outside_windows(phase) / mesh.size,
    )


@contextlib.contextmanager
def _kept_out_of_the_cache():
    """Keeps programs for absent devices out of JAX's compilation cache, because JAX cannot read them back."""
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_persistent_cache_min_compile_time_secs", math.inf)
    try:
        yield
    finally:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", before)


def largest_batch(config, topology: str) -> list[Plan]:
    """The plans of the largest batch that fits in every phase: doubles the config's while it fits, or halves it until it fits.

    A phase with a batch of its own keeps it.

    Raises:
        UserError: as `plan`; no batch that the mesh divides fits, each phase has its own, or the device's memory is unknown.
    """
    if topology_devices(topology)[1] is None:
        raise UserError(f"--largest --topology={topology}: virtual devices have no memory limit; name a TPU slice")
    config = config.copy_and_resolve_references()
    fixed = {number for number, (_, said, _) in enumerate(distinct_phases(config)) if "data.batch_size=" in said}
    count = len(distinct_phases(config))
    if len(fixed) == count:
        raise UserError("--largest: each phase of config.train.phases sets its own data.batch_size; leave it out there")
    plans: dict[int, Plan] = {number: plan(config, topology, number) for number in fixed}
    best, halved = None, False
    while best is None or not halved:
        try:
            best = {number: plan(config, topology, number) for number in range(count) if number not in fixed}
            config.data.batch_size *= 2
        except TooLarge:
            if best is not None:
                break
            if config.data.batch_size == 1:
                raise
            halved = True
            config.data.batch_size //= 2
    return [of for _, of in sorted((plans | best).items())]


def topology_devices(topology: str) -> tuple[np.ndarray, Chip | None]:
    """The devices of "v5e:16x16" or "cpu:8", to compile for, and the figures of one.

    Raises:
        UserError: the topology is unknown, JAX has started with fewer CPU devices, or libtpu is not installed.
    """
    kind, shape = split_topology(topology)
    if kind == "cpu":
        if len(found := jax.devices("cpu")) < int(shape):
            raise UserError(
                f"JAX runs with {len(found)} CPU devices, but --topology asks for {shape}; set JAX_NUM_CPU_DEVICES={shape}"
            )
        return np.asarray(found[: int(shape)]), None
    # libtpu searches for a TPU and serves one process at a time; here it only compiles.
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_STDERR_LOG_LEVEL": "3"}
    os.environ |= {"TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}
    try:
        import libtpu  # noqa: F401
    except ModuleNotFoundError:
        raise UserError(f"--topology={topology} needs the TPU compiler: {how_to_install('tpu')}") from None
    from jax.experimental import topologies

    try:
        found = topologies.get_topology_desc(topology, platform="tpu")
    except (jax.errors.JaxRuntimeError, RuntimeError) as error:
        raise UserError(f"--topology={topology} is not known to libtpu: {str(error).splitlines()[0]}") from None
    return np.asarray(found.devices), CHIPS[kind]


def print_plan(config, topology: str, largest: bool = False, out: Path | None = None) -> dict[str, Any]:
    """The plans of all phases as tables on standard output, and as JSON.

    Args:
        config: a whole experiment config.
        topology: as for `plan`.
        largest: plan the largest batch that fits instead of the config's.
        out: a JSON file; None: write none.

    Returns:
        What the file has: the record of the phase that needs most memory, and under "phases" those of all, in order.

    Raises:
        UserError: as `plan`.
    """
    plans = (largest_batch if largest else plan_phases)(config, topology)
    record = max(plans, key=lambda of: of.memory).record() | {"phases": [of.record() for of in plans]}
    if out is not None:
        write_json(out, record)
    console = Console()
    console = console if console.is_terminal else Console(width=120)
    for found in plans:
        of_phase = f", in the phase {found.phase!r}" if found.phase else ""
        console.print(_table(f"One training step on {topology}, for each device{of_phase}", _rows(found)))
        if found.chip:
            console.print(NOT_COUNTED)
        moved = {source or "(no line)": _gib(size) for source, size in found.largest_sources().items()}
        console.print(_table("Lines that move most; a line, < and its caller", moved))
    if len(plans) > 1:
        console.print(_summary(plans))
    return record


def _gib(size: float) -> str:
    return f"{size / 2**30:,.2f} GiB"


def _rows(found: Plan) -> dict[str, str]:
    """Names and values of one plan, for people."""
    chip = found.chip
    times = lambda of: "once" if of.count == 1 else f"{of.count:,} times"
    exchanged = lambda of: f"{of.bytes / 2**20:,.1f} MiB, largest {of.largest}"
    rows = {
        "mesh": ", ".join(f"{axis} {size}" for axis, size in found.mesh.items()),
        "parameters": f"{found.parameters:,}",
        "rows and tokens of the batch": f"{found.rows:,} and {found.tokens:,}",
        "micro-batches": str(found.micro_batches) if found.micro_batches > 1 else "",
        "state and batch": _gib(found.arguments),
        "peak, with temporary buffers": _gib(found.memory),
        "memory of the chip (a program can use slightly less)": f"{chip.memory / 2**30:.0f} GiB" if chip else "",
        "FLOPs of products": f"{found.work.flops:.4g}",
        "FLOPs of the model, by formula": f"{found.model_flops:.4g}",
        "of these, scores outside local windows": f"{found.outside_windows:.4g}" if found.outside_windows else "",
        "memory read and written": _gib(found.work.bytes),
        **{f"{kind}, {times(of)}": exchanged(of) for kind, of in found.work.collectives.items()},
        **{f"shortest time for {what}": f"{1000 * seconds:.2f} ms" for what, seconds in found.seconds().items()},
    }
    if bound := found.bound():
        rows["no step is faster than"] = f"{1000 * bound[1]:.2f} ms, for {bound[0]}"
        rows["attainable utilisation, at most"] = f"{found.utilisation():.3f}"
    for name, kernel in found.work.kernels.items() if chip else ():
        products, memory = kernel.flops / chip.flops, kernel.bytes / chip.bandwidth
        bound_by = f"at least {1000 * max(products, memory):.2f} ms, for {'products' if products > memory else 'memory'}"
        what = f"{kernel.flops:.4g} FLOPs, {_gib(kernel.bytes)}"
        rows[f"kernel {name}, {kernel.count:,.0f} times"] = f"{what}, {bound_by}"
    return rows


def _summary(plans: Sequence[Plan]) -> Table:
    """The phases below each other; what needs most memory decides whether the run fits."""
    table = Table(title="Phases", title_justify="left")
    for name in ("Phase", "Steps", "Rows", "Tokens", "Peak", "Step at least", "All at least"):
        table.add_column(name, justify="left" if name == "Phase" else "right")
    for found in plans:
        bound = found.bound()
        times = (f"{1000 * bound[1]:.2f} ms", f"{found.steps * bound[1] / 3600:,.2f} h") if bound else ("", "")
        table.add_row(found.phase, f"{found.steps:,}", f"{found.rows:,}", f"{found.tokens:,}", _gib(found.memory), *times)
    largest, bounds = max(plans, key=lambda of: of.memory), [found.bound() for found in plans]
    hours = sum(found.steps * bound[1] for found, bound in zip(plans, bounds) if bound) / 3600
    steps = sum(found.steps for found in plans)
    table.add_section()
    table.add_row("the run", f"{steps:,}", "", "", _gib(largest.memory), "", f"{hours:,.2f} h" if all(bounds) else "")
    return table


def _table(title: str, rows: Mapping[str, str]) -> Table:
    """Names and values; rows without a value are left out."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for row in rows.items():
        if row[1]:
            table.add_row(*row)
    return table
