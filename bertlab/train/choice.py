"""Chooses a run's attention implementation: the fastest for its shape and device, measured once and stored in a file.

It never picks one that fails, or whose results differ from "xla" on packed rows: kernels have let documents see each other
before (JAX #28974, MaxText #4476).

Letters: B batch on one device, L length, H heads on one device, K head width.
"""

import dataclasses
import functools
import math
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from bertlab.data.formats import row_length
from bertlab.errors import UserError
from bertlab.files import cache_directory, misfit, read_json, write_json
from bertlab.models import attention_kernel
from bertlab.models.attention import BACKENDS, HEAD_AXES, Sight, Window, attend, kernel_of, tiles
from bertlab.models.transformer import TransformerConfig, attention_mask, window_mask
from bertlab.objectives.program import Program
from bertlab.train.processes import gather, is_first
from bertlab.train.sharding import build_mesh

# Relative to the largest value: each implementation rounds differently, and bfloat16 keeps 8 bits.
_TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}
# Positions that add to the scores what an implementation does not take: cudnn none that depends on the row.
_NOT_WITH = {"xla": (), "cudnn": ("disentangled",), "pallas": ("relative", "disentangled")}


@dataclasses.dataclass(frozen=True)
class Shape:
    """What determines the speed.

    Attributes:
        batch, length, heads, head_width: sizes on one device.
        dtype: of queries, keys and values.
        direction: the body's.
        dropout: of the weights.
        layers, local_layers: how many the body has, and how many of them see a window.
        reach: the greatest distance of a key that local layers see.
    """

    batch: int
    length: int
    heads: int
    head_width: int
    dtype: str
    direction: str
    dropout: float = 0.0
    layers: int = 1
    local_layers: int = 0
    reach: int = 0

    def __str__(self) -> str:
        sizes = "x".join(map(str, (self.batch, self.length, self.heads, self.head_width)))
        dropout = f" dropout {self.dropout:g}" if self.dropout else ""
        window = f" reach {self.reach} in {self.local_layers} of {self.layers} layers" if self.local_layers else ""
        return f"{sizes} {self.dtype} {self.direction}{dropout}{window}"

    @property
    def kinds(self) -> dict[bool, int]:
        """Whether layers see a window -> how many do."""
        return {local: n for local, n in ((False, self.layers - self.local_layers), (True, self.local_layers)) if n}


def with_attention(experiment):
    """The experiment with a concrete implementation if `config.model.attention` is "auto".

    Raises:
        UserError: a named implementation cannot run here.
    """
    config, shape = experiment.config, experiment.program.body.config
    if not isinstance(shape, TransformerConfig):
        return experiment
    mesh = build_mesh(config.mesh)
    platform = mesh.devices.flat[0].platform
    for phase in experiment.phases:
        check_device(shape, mesh, row_length(phase.data))
    if config.model.attention == "pallas" and platform == "cpu":
        print("attention: config.model.attention='pallas' runs interpreted on a CPU, and is slow", flush=True)
    if config.model.attention != "auto" or platform == "cpu":
        return experiment
    backend_at = functools.cache(lambda batch, length: _fastest(config, shape, mesh, batch, length))
    chosen_for = lambda data: backend_at(data.batch_size, row_length(data))
    phases = tuple(
        dataclasses.replace(phase, program=with_backend(phase.program, chosen_for(phase.data))) for phase in experiment.phases
    )
    return dataclasses.replace(experiment, program=with_backend(experiment.program, chosen_for(config.data)), phases=phases)


def _fastest(config: ConfigDict, shape: TransformerConfig, mesh, batch: int, length: int) -> str:
    """The fastest implementation for batches of so many rows and positions."""
    measured = Shape(
        batch=batch // config.train.micro_batches // (mesh.shape["data"] * mesh.shape["fsdp"]),
        length=length,
        heads=_heads(shape, mesh),
        head_width=shape.width // shape.heads,
        dtype=jnp.dtype(shape.dtype).name,
        direction=shape.direction,
        dropout=shape.dropout,
        layers=shape.layers,
        local_layers=shape.local_layers,
        reach=shape.local_window // 2,
    )
    backends = candidates(mesh.devices.flat[0].platform, measured, shape.position_encoding)
    [chosen, *_] = gather(choose(measured, backends, cache_directory() / "attention.json") if is_first() else None)
    return chosen


def _heads(shape: TransformerConfig, mesh) -> int:
    """Heads of one device."""
    return shape.heads // math.prod(mesh.shape[axis] for axis in HEAD_AXES)


def with_backend(program: Program, backend: str) -> Program:
    """A transformer's program with this implementation of attention."""
    shape = dataclasses.replace(program.body.config, attention=backend)
    return dataclasses.replace(program, body=program.body.clone(config=shape))


def candidates(platform: str, shape: Shape, position_encoding: str = "learned") -> list[str]:
    """The implementations to try on a platform; always includes "xla"."""
    able = {
        "xla": True,
        "cudnn": platform == "gpu" and shape.dtype == "bfloat16" and not shape.dropout,
        "pallas": platform != "cpu" and bool(kernel_of(platform, shape.length, shape.heads, shape.head_width)),
    }
    return [backend for backend in BACKENDS if able[backend] and position_encoding not in _NOT_WITH[backend]]


def check_attention(config: ConfigDict, shape) -> None:
    """Refuses an implementation that does not support the config in any layer: `attend` would always use "xla"."""
    backend = config.model.attention
    if backend not in ("cudnn", "pallas"):
        return
    if backend == "cudnn" and shape.dropout:
        raise UserError(
            "config.model.attention='cudnn' cannot drop weights of the attention; set config.model.dropout=0.0, or"
            " attention='auto'"
        )
    if shape.position_encoding in _NOT_WITH[backend]:
        raise UserError(
            f"config.model.attention={backend!r} cannot add position_encoding={shape.position_encoding!r} to the scores; set"
            " attention='auto'"
        )
    if backend == "pallas" and not tiles(row_length(config.data)):
        raise UserError(
            f"config.model.attention='pallas' needs rows of a multiple of 128 positions, not {row_length(config.data)}; set"
            " attention='auto'"
        )


def check_device(shape: TransformerConfig, mesh, length: int) -> None:
    """Refuses what a mesh's devices cannot compute: products in float8, "cudnn", and "pallas" where its kernel has no tiles.

    Args:
        shape: of the model.
        mesh: of the devices, which need not be here.
        length: positions of a row.

    Raises:
        UserError: names the key to change.
    """
    device = mesh.devices.flat[0]
    _check_products(shape, device)
    if shape.attention == "cudnn" and (device.platform != "gpu" or shape.dtype != jnp.bfloat16):
        raise UserError("config.model.attention='cudnn' needs a GPU and config.model.dtype='bfloat16'; set 'auto'")
    if shape.attention == "pallas":
        _check_tiles(shape, mesh, length, device.platform)


def _check_products(shape: TransformerConfig, device) -> None:
    """Refuses float8 on a device that has no such products; a CPU computes them slowly, for tests."""
    if shape.products != "float8" or device.platform == "cpu":
        return
    capability = getattr(device, "compute_capability", "")  # "9.0"; of AMD "gfx942", with other float8 formats
    if not re.fullmatch(r"\d+\.\d+", capability) or tuple(map(int, capability.split("."))) < (8, 9):
        raise UserError(
            f"config.model.products='float8' needs an NVIDIA GPU of compute capability 8.9 or higher, not {device.device_kind};"
            " set 'as_dtype'"
        )


def _check_tiles(shape: TransformerConfig, mesh, length: int, platform: str) -> None:
    """Refuses "pallas" where a platform's kernel has no tiles for a device's rows or heads: `attend` would use "xla"."""
    heads, head_width = _heads(shape, mesh), shape.width // shape.heads
    if kernel_of(platform, length, heads, head_width):
        return
    what, longest = f"{heads} heads of {head_width} numbers a device", attention_kernel.LONGEST
    if platform != "gpu" and length > longest:
        what = f"rows of {length:,} positions, more than {longest:,}"
    elif platform != "gpu" and 128 % head_width == 0:
        what += f", which is no multiple of {128 // head_width}"
    raise UserError(f"config.model.attention='pallas' has no tiles on a {platform.upper()} for {what}; set 'auto'")


def choose(shape: Shape, backends: Sequence[str], file: Path, seconds: Callable[[str, Shape], float] | None = None) -> str:
    """The fastest of several implementations at a shape, read from the file, or measured and written to it.

    Args:
        shape: on one device.
        backends: at least "xla".
        file: JSON; maps device and shape to the seconds of each implementation, or to why it was refused.
        seconds: a function to measure with instead of `seconds_of`; raises ValueError if results are wrong.
    """
    if len(backends) == 1:
        return backends[0]
    known = read_json(file) if file.exists() else {}
    if wrong := misfit(known, {str: dict}):
        raise UserError(f"{file} is damaged: {wrong}; delete it, and it is measured anew")
    device = jax.devices()[0]
    key = f"{device.device_kind}, jax {jax.__version__}: {shape}"
    found = known.get(key, {})
    for backend in backends:
        if backend in found:
            continue
        try:
            found[backend] = (seconds or seconds_of)(backend, shape)
        except (ValueError, NotImplementedError, RuntimeError) as error:  # the errors of kernels that refuse a shape
            found[backend] = f"refused: {(str(error) or repr(error)).splitlines()[0][:200]}"
        file.parent.mkdir(parents=True, exist_ok=True)
        # Next time, memory may suffice.
        lasting = {name: value for name, value in found.items() if "RESOURCE_EXHAUSTED" not in str(value)}
        write_json(file, (read_json(file) if file.exists() else {}) | {key: lasting})
    timed = {backend: found[backend] for backend in backends if not isinstance(found[backend], str)}
    chosen = min(timed, key=timed.get, default="xla")
    shown = ", ".join(f"{b} {found[b]}" if isinstance(found[b], str) else f"{b} {1e3 * found[b]:.3g} ms" for b in backends)
    print(f"attention: {chosen} ({shown}; forward and backward of a layer, {shape}; kept in {file})", flush=True)
    return chosen


def seconds_of(backend: str, shape: Shape, rounds: int = 10) -> float:
    """Seconds of one forward and backward pass on packed rows, the best of several; the mean of a body's layers.

    Raises:
        ValueError: output or gradients, without dropout, are not those of "xla".
    """
    if not (worst := error_of(backend, shape)) <= _TOLERANCE[shape.dtype]:
        raise ValueError(f"its results differ from xla's by {worst:.2g} of the largest")
    step, _ = compiled(backend, shape)
    return min(step() for _ in range(rounds + 1))


def error_of(backend: str, shape: Shape, exact: bool = False) -> float:
    """The largest difference of output and gradients from those of "xla", as a share of their largest value.

    Of local layers, from those of all scores with a mask: "xla" may compute a window's alone.

    Args:
        backend: one of BACKENDS.
        shape: on one device.
        exact: compare with float32 products that the device does not shorten, instead of with the shape's dtype.
    """
    # Only a few rows, because xla may not have enough memory for all.
    few, worst = _packed(dataclasses.replace(shape, batch=min(2, shape.batch))), []
    *arrays, documents = few
    exactly = [x.astype(jnp.float32 if exact else x.dtype) for x in arrays]
    compute, masked = (
        jax.jit(functools.partial(_output_and_gradients, name, shape, by_mask=by_mask))
        for name, by_mask in ((backend, False), ("xla", shape.local_layers > 0))
    )
    for local in shape.kinds:
        found = compute(*few, jnp.bool_(local))
        with jax.default_matmul_precision("highest" if exact else None):
            right = masked(*exactly, documents, jnp.bool_(local))
        for mine, expected in zip(found, right):
            mine, expected = (np.asarray(x, np.float32) for x in (mine, expected))
            worst.append(np.abs(mine - expected).max() / max(np.abs(expected).max(), 1e-6))
    return float(np.max(worst))  # NaN if one of them is


def compiled(backend: str, shape: Shape) -> tuple[Callable[[], float], float]:
    """A function that runs one forward and backward pass on packed rows and returns its seconds; and those of compiling it.

    The seconds are the mean of a body's layers: each kind of them runs once and counts as often as the body has it.
    """
    given, began = _packed(shape), time.perf_counter()
    drop = Drawn(shape.dropout) if shape.dropout else None
    step = functools.partial(_output_and_gradients, backend, shape, drop=drop)
    step = jax.jit(step).lower(*given, jnp.bool_(False)).compile()
    compiling = time.perf_counter() - began

    def of_kind(local: bool) -> float:
        here = jax.block_until_ready(jnp.bool_(local))
        began = time.perf_counter()
        jax.block_until_ready(step(*given, here))
        return time.perf_counter() - began

    return lambda: sum(number * of_kind(local) for local, number in shape.kinds.items()) / shape.layers, compiling


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Dropout by one key, for attention outside of a model."""

    rate: float

    def key(self) -> jax.Array:
        return jax.random.key(0)


def _packed(shape: Shape) -> tuple:
    """Random queries, keys, values and weights of the output, and rows of several documents with padding at their ends."""
    random = np.random.default_rng(0)
    sizes = (shape.batch, shape.length, shape.heads, shape.head_width)
    arrays = [jnp.asarray(random.normal(size=sizes), shape.dtype) for _ in range(4)]
    ends = np.sort(random.integers(1, shape.length, size=(shape.batch, 3)), axis=1)
    documents = 1 + (np.arange(shape.length) >= ends[..., None]).sum(axis=1)
    return (*arrays, jnp.asarray(np.where(documents == 4, 0, documents), jnp.int32))


def _output_and_gradients(backend, shape: Shape, query, key, value, weights, documents, local=False, drop=None, by_mask=False):
    """Of a layer that sees a window if `local`, a value of the program as in a body; `by_mask`: the mask alone says so."""
    mask, window = attention_mask(documents, shape.direction), None
    if shape.local_layers:
        mask &= window_mask(jnp.arange(shape.length)[None], 2 * shape.reach) | ~jnp.asarray(local)
        window = Window(shape.reach, jnp.asarray(local), shape.local_layers, shape.layers)
    sight = Sight(mask, None, shape.direction) if by_mask else Sight(mask, documents, shape.direction, window=window)
    output, pull = jax.vjp(lambda *given: attend(backend, jnp.stack(given, axis=2), sight, drop), query, key, value)
    return (output, *pull(weights))
