"""What one run of a compiled program costs on one device: products, memory traffic and exchanges, read from its text.

XLA's own count (`cost_analysis`) counts a loop's body once, so layers in a scan would count as one layer. Here a loop's body
counts as often as it runs, and each branch of a conditional once, or as often as a scope around it says: `runs_14_of_22`.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


@dataclasses.dataclass(frozen=True)
class Collectives:
    """Exchanges of one kind in one run.

    Attributes:
        count: number of exchanges; one may exchange several arrays.
        bytes: bytes of the whole arrays.
        sent: bytes that a device sends to a neighbour in a ring.
        largest: shape of the largest array, such as "bf16[24,1024,4096]".
    """

    count: int
    bytes: float
    sent: float
    largest: str


@dataclasses.dataclass(frozen=True)
class Kernel:
    """All runs of one Pallas kernel.

    Attributes:
        count: number of runs.
        flops: of its products, by its cost estimate.
        bytes: read from and written to memory.
    """

    count: float
    flops: float
    bytes: float

    def __add__(self, other: "Kernel") -> "Kernel":
        return Kernel(self.count + other.count, self.flops + other.flops, self.bytes + other.bytes)

    def times(self, number: float) -> "Kernel":
        """So many times as often."""
        return Kernel(number * self.count, number * self.flops, number * self.bytes)


@dataclasses.dataclass(frozen=True)
class Work:
    """The cost of one run on one device.

    Attributes:
        flops: two for each multiplication of matrix products and convolutions, including recomputed ones; excluding
            element-wise work; of a Pallas kernel what its cost estimate says.
        bytes: bytes that operations and fusions read from and write to the device's memory: whole arrays, or the part that
            is sliced, gathered or updated in place. Excluded: arrays in on-chip memory (a TPU's VMEM), padding of tiles, and
            second reads by one fusion. A loop with an unknown number of runs counts once; it has no products.
        collectives: by kind, of the kinds that occur.
        sources: the same bytes by the line that asks for them ("models/base.py:301", with " backward" for its gradient),
            largest first; "" for what names no line.
        kernels: Pallas kernels by name; their FLOPs and bytes are in `flops` and `bytes` too.
    """

    flops: float
    bytes: float
    collectives: Mapping[str, Collectives]
    sources: Mapping[str, float]
    kernels: Mapping[str, Kernel]


def read_work(program_text: str) -> Work:
    """The work of a compiled program.

    Args:
        program_text: `jax.stages.Compiled.as_text()`, the program of one device.

    Raises:
        ValueError: a loop with an unknown number of runs has products or exchanges.
    """
    devices = re.search(r"num_partitions=(\d+)", program_text.partition("\n")[0])
    return _Reader(*_parse(program_text), int(devices[1]) if devices else 1, _lines(program_text)).work()


@dataclasses.dataclass(frozen=True)
class _Array:
    kind: str
    dims: tuple[int, ...]
    on_chip: bool

    @property
    def bytes(self) -> float:
        return _bits(self.kind) / 8 * math.prod(self.dims)

    @property
    def traffic(self) -> float:
        return 0.0 if self.on_chip else self.bytes


@dataclasses.dataclass(frozen=True)
class _Instruction:
    name: str
    arrays: tuple[_Array, ...]
    operation: str
    operands: tuple[str, ...]
    inside: str  # keeps the parentheses
    attributes: str
    is_root: bool

    @property
    def bytes(self) -> float:
        return sum(array.bytes for array in self.arrays)

    @property
    def size(self) -> int:
        return sum(math.prod(array.dims) for array in self.arrays)

    @property
    def traffic(self) -> float:
        return sum(array.traffic for array in self.arrays)

    def called(self, *keys: str) -> list[str]:
        """The computations that these attributes name."""
        found = re.findall(rf"\b(?:{'|'.join(keys)})=(\{{[^}}]*\}}|%?[\w.\-]+)", self.attributes)
        return [name for each in found for name in re.findall(r"[\w.\-]+", each)]


@dataclasses.dataclass(frozen=True)
class _Exchange:
    kind: str
    arrays: tuple[_Array, ...]
    group: int
    chain: str  # names an exchange that several fusions continue, one after another
    times: float = 1

    @property
    def bytes(self) -> float:
        return sum(array.bytes for array in self.arrays)

    @property
    def share_sent(self) -> float:
        """The bytes that one device sends in a ring of the group; a sum goes round twice, scattered and gathered."""
        once = (self.group - 1) / self.group
        return {"all-reduce": 2 * once, "collective-permute": 1.0}.get(self.kind, once)


def _bits(kind: str) -> float:
    """Bits of one element: the first number in the type's name, as in bf16 and f8e4m3fn; none for a token."""
    return 8.0 if kind == "pred" else float(number[0]) if (number := re.search(r"\d+", kind)) else 0.0


_PACKAGE = __name__.partition(".")[0]
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?")


def _parse(text: str) -> tuple[dict[str, dict[str, _Instruction]], str]:
    """The instructions of each computation, by name, and the program's entry computation."""
    computations, entry, current = {}, "", {}
    for line in text.splitlines():
        if head := _HEAD.match(line):
            current = computations.setdefault(head[2], {})
            entry = head[2] if head[1] else entry
        elif match := _INSTRUCTION.match(line):
            root, name, shape, operation, rest = match.groups()
            depths = itertools.accumulate((c == "(") - (c == ")") for c in rest)
            end = next((place for place, depth in enumerate(depths) if depth < 0), len(rest))
            operands = tuple(re.findall(r"%([\w.\-]+)", rest[:end]))
            current[name] = _Instruction(name, _arrays(shape), operation, operands, rest[:end], rest[end + 1 :], bool(root))
    return computations, entry


def _lines(text: str) -> dict[str, str]:
    """The innermost line of ours, or of anyone's, of each of the program's stack frames, by their numbers."""
    tables, current = {name: {} for name in ("FileNames", "FileLocations", "StackFrames")}, None
    for line in text.splitlines():
        if not re.match(r"\d", line):
            current = tables.get(line, current if not line or line == "FunctionNames" else None)
            if line == "FunctionNames":
                current = None
            if _HEAD.match(line):
                break
        elif current is not None:
            number, _, rest = line.partition(" ")
            current[number] = rest
    ids = lambda rest: dict(re.findall(r"(\w+)=(\d+)", rest))
    found = {}
    for number in tables["StackFrames"]:
        frame, chain = number, []
        while frame in tables["StackFrames"]:
            here = ids(tables["StackFrames"][frame])
            place = ids(tables["FileLocations"][here["file_location_id"]])
            chain.append((PurePosixPath(tables["FileNames"][place["file_name_id"]].strip('"')).parts, place["line"]))
            frame = str(int(here["parent_frame_id"]) - 1)
        ours = [(parts, line) for parts, line in chain if _PACKAGE in parts] or chain[:1]
        within = lambda parts: parts[-parts[::-1].index(_PACKAGE) :] if _PACKAGE in parts else parts[-1:]
        found[number] = " < ".join(f"{'/'.join(within(parts))}:{line}" for parts, line in ours[:2])
    return found


def _arrays(shape: str) -> tuple[_Array, ...]:
    """Of a shape; S(n) in a layout is a memory other than the device's main one."""
    return tuple(
        _Array(kind, tuple(int(n) for n in dims.split(",") if n), bool(re.search(r"S\([1-9]", layout)))
        for kind, dims, layout in _ARRAY.findall(shape)
    )


def _element(whole: _Instruction, place: int, computation: Mapping[str, _Instruction]) -> _Instruction:
    """What makes an element of a tuple; of something else, that itself."""
    if whole.operation != "tuple":
        return whole
    found = computation[whole.operands[place]]
    while found.operation in ("copy", "bitcast"):
        found = computation[found.operands[0]]
    return found


# Operations that move nothing, or whose parts are counted elsewhere.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id"}
_FREE |= {"while", "conditional", "call", "async-start", "async-update", "async-done", "opt-barrier", "domain"}
_VIEWS = {"bitcast", "copy", "convert", "reshape", "transpose"}
_PARTS = {"dynamic-slice", "slice", "gather", "slice-start", "dynamic-slice-start"}


class _Reader:
    """Adds up a program's computations, each read once."""

    def __init__(
        self, computations: Mapping[str, Mapping[str, _Instruction]], entry: str, devices: int, lines: Mapping[str, str]
    ):
        self.computations, self.entry, self.devices, self.lines = computations, entry, devices, lines
        self.within = functools.cache(self._within)

    def work(self) -> Work:
        flops, traffic, exchanges, kernels = self.within(self.entry, False)
        # A TPU spreads one gather over fusions of products, perhaps in a loop; counting its starts counts the gathers.
        chained = sorted((each for each in exchanges if each.chain), key=lambda each: each.times, reverse=True)
        exchanges = [each for each in exchanges if not each.chain] + list({each.chain: each for each in chained}.values())
        of_kind = lambda kind: [exchange for exchange in exchanges if exchange.kind == kind]
        kinds = sorted({exchange.kind for exchange in exchanges})
        collectives = {kind: _together(of_kind(kind)) for kind in kinds}
        return Work(flops, traffic.total(), collectives, dict(traffic.most_common()), kernels)

    def _within(self, name: str, fused: bool) -> tuple[float, Counter, list[_Exchange], dict[str, Kernel]]:
        """FLOPs, bytes by source line, exchanges and kernels of a computation and of all that it calls."""
        flops, traffic, exchanges, kernels = 0.0, Counter(), [], {}
        add = lambda kernel, found: kernels.update({kernel: kernels.get(kernel, Kernel(0, 0, 0)) + found})
        computation = self.computations[name]
        for instruction in computation.values():
            flops += self._products(instruction, computation)
            moved = 0.0 if fused else self._traffic(instruction, computation)
            if moved:
                traffic[self._source(instruction)] += moved
            if kernel := _kernel_name(instruction):
                add(kernel, Kernel(1, self._products(instruction, computation), moved))
            exchanges += self._exchanges(instruction, computation, name)
            for callee, times, inside in self._calls(instruction, computation):
                of_flops, of_traffic, of_exchanges, of_kernels = self.within(callee, fused or inside)
                if math.isnan(times):
                    if of_flops or of_exchanges:
                        raise ValueError(f"products or exchanges in a loop with an unknown number of iterations: {callee}")
                    times = 1
                flops += times * of_flops
                for source, moved in of_traffic.items():
                    traffic[source] += times * moved
                for kernel, found in of_kernels.items():
                    add(kernel, found.times(times))
                exchanges += [dataclasses.replace(each, times=times * each.times) for each in of_exchanges]
        return flops, traffic, exchanges, kernels

    def _source(self, instruction: _Instruction) -> str:
        """The line that asks for an instruction; for a fusion without one, that of any of its parts."""
        while not (frame := re.search(r"stack_frame_id=(\d+)", instruction.attributes)):
            if instruction.operation != "fusion":
                return ""
            body = self.computations[instruction.called("calls")[0]]
            instruction = next(each for each in body.values() if each.is_root)
        backward = " backward" if "transpose(jvp" in instruction.attributes else ""
        return self.lines.get(frame[1], "") + backward

    def _calls(self, instruction: _Instruction, computation) -> Iterator[tuple[str, float, bool]]:
        """(computation, how often it runs, whether its arrays stay in the device) for all that an instruction runs."""
        operation = instruction.operation
        if operation == "while":
            times = self._trips(instruction, computation)
            yield instruction.called("body")[0], times, False
        elif operation == "fusion":
            yield instruction.called("calls")[0], 1, True
        elif operation in ("call", "async-start"):
            yield from ((callee, 1, False) for callee in instruction.called("to_apply", "calls"))
        elif operation == "conditional":
            keys = ("branch_computations", "true_computation", "false_computation")
            yield from ((callee, self._share(callee), False) for callee in instruction.called(*keys))

    def _share(self, branch: str) -> float:
        """Of a conditional's runs, how many take a branch: what the names of its operations say, or 1."""
        named = (re.search(r"runs_(\d+)_of_(\d+)", each.attributes) for each in self.computations[branch].values())
        found = next(filter(None, named), None)
        return int(found[1]) / int(found[2]) if found else 1.0

    def _trips(self, loop: _Instruction, computation) -> float:
        """How often a loop runs: XLA's number, or that of a counter that steps up to a constant; NaN if neither is known."""
        if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes):
            return float(known[1])
        condition = self.computations[loop.called("condition")[0]]
        root = next(each for each in condition.values() if each.is_root)
        if root.operation != "compare" or "direction=LT" not in root.attributes:
            return math.nan
        counter, bound = (condition[operand] for operand in root.operands)
        if counter.operation != "get-tuple-element":
            return math.nan
        place = int(re.search(r"index=(\d+)", counter.attributes)[1])
        body = self.computations[loop.called("body")[0]]
        after = _element(next(each for each in body.values() if each.is_root), place, body)
        # In a loop that the compiler has unrolled, the counter steps by more than 1.
        step = next((body[name] for name in after.operands if body[name].operation == "constant"), after)
        values = [_element(computation[loop.operands[0]], place, computation), bound, step]
        if after.operation != "add" or any(value.operation != "constant" for value in values):
            return math.nan
        first, end, by = (int(value.inside) for value in values)
        return float(math.ceil((end - first) / by))

    def _products(self, instruction: _Instruction, computation) -> float:
        if instruction.operation == "dot":
            left = computation[instruction.operands[0]].arrays[0].dims
            summed = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", instruction.attributes)[1]
            return 2.0 * math.prod(instruction.arrays[0].dims) * math.prod(left[int(n)] for n in summed.split(",") if n)
        if instruction.operation == "convolution":
            arrays = [computation[operand].arrays[0].dims for operand in instruction.operands[:2]]
            return _convolution_flops(*arrays, instruction.arrays[0].dims, instruction.attributes)
        return float(_cost(instruction, "flops"))

    def _exchanges(self, instruction: _Instruction, computation, name: str) -> list[_Exchange]:
        kind = instruction.operation.removesuffix("-start")
        if kind not in KINDS:
            return []
        inputs = tuple(array for operand in instruction.operands for array in computation[operand].arrays)
        arrays = inputs if kind == "reduce-scatter" else instruction.arrays
        if instruction.operation in ("all-gather-start", "collective-permute-start"):  # (inputs, outputs, contexts)
            arrays = instruction.arrays[len(inputs) : 2 * len(inputs)]
        # A TPU scatters a sum with a fusion that reduces and then selects a part.
        if kind == "all-reduce" and name.startswith("all-reduce-scatter"):
            kind = "reduce-scatter"
        chain = re.search(r"channel_id=(\d+).*chain_id=", instruction.attributes)
        return [_Exchange(kind, arrays, _group_size(instruction.attributes, self.devices), chain[1] if chain else "")]

    def _traffic(self, instruction: _Instruction, computation) -> float:
        operation = instruction.operation
        if operation in _FREE or operation.endswith("-done") or "AllocateBuffer" in instruction.attributes:
            return 0.0
        sources = [computation[operand] for operand in instruction.operands]
        if operation == "fusion":
            body = self.computations[instruction.called("calls")[0]]
            read = sum(source.traffic and self._read(body, place) for place, source in enumerate(sources))
            return read + self._written(instruction, body)
        if operation in _PARTS:
            made = instruction.arrays[1 if operation.endswith("-start") else 0]
            return made.traffic + (made.bytes if sources[0].traffic else 0.0)
        if operation == "dynamic-update-slice":
            return 2 * sources[1].bytes if instruction.traffic else sources[1].traffic
        if operation == "scatter":  # in place: the old value, the added value, the result
            return 3 * sources[-1].bytes if instruction.traffic else sources[-1].traffic
        if operation == "copy-start":  # (output, input, a context)
            return sources[0].traffic + instruction.arrays[0].traffic
        if moved := _cost(instruction, "bytes_accessed"):
            # A kernel reads each array once unless it says that it moves more; it may be given one array several times.
            arrays = [
                *instruction.arrays,
                *(a for name in dict.fromkeys(instruction.operands) for a in computation[name].arrays),
            ]
            return sum(array.traffic for array in arrays) + max(0, moved - sum(array.bytes for array in arrays))
        made = sum(array.traffic for array in instruction.arrays[len(sources) if operation == "all-gather-start" else 0 :])
        return made + sum(source.traffic for source in sources)

    def _read(self, body: Mapping[str, _Instruction], place: int) -> float:
        """Bytes that a fusion reads from its operand `place`."""
        parameter = _parameter(body, place)
        return parameter.bytes * min(1.0, self._used(body, parameter) / max(1, parameter.size))

    def _used(self, body: Mapping[str, _Instruction], array: _Instruction) -> float:
        """Elements of an array that the rest of a fusion reads."""
        total = 0.0
        for user in body.values():
            if array.name not in user.operands:
                continue
            place = user.operands.index(array.name)
            if user.operation == "dynamic-update-slice" and place == 0:
                continue
            if user.operation in _PARTS and place == 0:
                total += user.size
            elif self._is_view(user):
                total += self._used(body, user)
            elif user.operation == "fusion":
                inner = self.computations[user.called("calls")[0]]
                total += self._used(inner, _parameter(inner, place))
            else:
                return array.size
        return total

    def _is_view(self, instruction: _Instruction) -> bool:
        """Whether the instruction is only a view of its operand inside a fusion."""
        return instruction.operation in _VIEWS or (
            instruction.operation == "fusion" and "output_to_operand_aliasing" in instruction.attributes
        )

    def _written(self, fusion: _Instruction, body: Mapping[str, _Instruction]) -> float:
        """Bytes that a fusion writes; for arrays updated in place, only the update."""
        root = next(each for each in body.values() if each.is_root)
        made = [body[operand] for operand in root.operands] if root.operation == "tuple" else [root]
        if len(made) != len(fusion.arrays):
            return fusion.traffic
        return sum(self._update(body, each) if array.traffic else 0.0 for each, array in zip(made, fusion.arrays))

    def _update(self, body: Mapping[str, _Instruction], made: _Instruction) -> float:
        while self._is_view(made):
            made = body[made.operands[0]]
        if made.operation == "fusion":
            inner = self.computations[made.called("calls")[0]]
            return self._update(inner, next(each for each in inner.values() if each.is_root))
        return body[made.operands[1]].bytes if made.operation == "dynamic-update-slice" else made.bytes


def _kernel_name(instruction: _Instruction) -> str:
    """That of a Pallas kernel for TPUs, forward or backward; "" for anything else."""
    if instruction.operation != "custom-call" or 'custom_call_target="tpu_custom_call"' not in instruction.attributes:
        return ""
    named = re.search(r'(\w+)\)*/pallas_call"', instruction.attributes)
    return named[1] if named else "unnamed"


def _cost(instruction: _Instruction, what: str) -> int:
    """What a Pallas kernel says of its cost; 0 if it says nothing."""
    if not _kernel_name(instruction):
        return 0
    found = re.search(rf'"cost_estimate":\{{[^}}]*"{what}":"(\d+)"', instruction.attributes)
    return int(found[1]) if found else 0


def _parameter(body: Mapping[str, _Instruction], place: int) -> _Instruction:
    return next(each for each in body.values() if each.operation == "parameter" and each.inside == str(place))


def _group_size(attributes: str, devices: int) -> int:
    """How many devices exchange with each other, from any of XLA's notations for groups."""
    if axes := re.search(r"replica_groups=mesh\[([^\]]*)\].*? \{('[^}]*)\}", attributes):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", axes[1]))
        parts = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", axes[2])
        return math.prod(int(part or sizes[axis]) for axis, part in parts)
    if shape := re.search(r"replica_groups=\[\d+,(\d+)\]<=", attributes):
        return int(shape[1])
    first = re.search(r"replica_groups=\{\{([\d,]*)\}", attributes)
    return len(first[1].split(",")) if first else devices


def _convolution_flops(left: Sequence[int], right: Sequence[int], out: Sequence[int], attributes: str) -> float:
    """Two for each multiplied pair of input and weight: a TPU's batched products are convolutions with dilation and padding.

    Args:
        left, right, out: dimensions of input, kernel and output.
        attributes: with `window` and `dim_labels`.
    """
    left_names, right_names, out_names = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", attributes).groups()
    flops = 2.0 * out[out_names.index("b")] * out[out_names.index("f")] * right[right_names.index("i")]
    window = re.search(r"window=\{([^}]*)\}", attributes)
    settings = dict(re.findall(r"(\w+)=(\S+)", window[1])) if window else {}
    spatial = sorted(set(out_names) - {"b", "f"})
    for place, name in enumerate(spatial):
        here = {key: values.split("x")[place] for key, values in settings.items()}
        low, high = (int(n) for n in here.get("pad", "0_0").split("_"))
        stride, hole, step = (int(here.get(key, 1)) for key in ("stride", "lhs_dilate", "rhs_dilate"))
        extent = (left[left_names.index(name)] - 1) * hole + 1
        size = right[right_names.index(name)]
        starts = range(-low, extent + high - (size - 1) * step, stride)
        met = (start + k * step for start in starts for k in range(size))
        flops *= sum(0 <= at < extent and at % hole == 0 for at in met)
    return flops


def _together(exchanges: Sequence[_Exchange]) -> Collectives:
    largest = max((array for exchange in exchanges for array in exchange.arrays), key=lambda array: array.bytes)
    return Collectives(
        count=round(sum(exchange.times for exchange in exchanges)),
        bytes=sum(exchange.times * exchange.bytes for exchange in exchanges),
        sent=sum(exchange.times * exchange.bytes * exchange.share_sent for exchange in exchanges),
        largest=f"{largest.kind}[{','.join(map(str, largest.dims))}]",
    )
