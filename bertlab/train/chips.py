"""TPU chips, by their manufacturer's figures, and the names of slices of them. Nothing here imports JAX."""

import dataclasses
import re

from bertlab.errors import UserError


@dataclasses.dataclass(frozen=True)
class Chip:
    """The manufacturer's figures for one TPU chip.

    Attributes:
        flops: bfloat16 products per second.
        memory: bytes.
        bandwidth: bytes per second between memory and chip.
        links: bytes per second to the neighbours, all links together, one way.
        kind: JAX's name of it.
    """

    flops: float
    memory: float
    bandwidth: float
    links: float
    kind: str


# Google Cloud's pages "TPU v5e", "TPU v5p" and "TPU v6e" (interconnect there in Gbit/s a chip).
CHIPS = {
    "v5e": Chip(197e12, 16 * 2**30, 0.819e12, 1600e9 / 8, "TPU v5 lite"),
    "v5p": Chip(459e12, 95 * 2**30, 2.765e12, 4800e9 / 8, "TPU v5"),
    "v6e": Chip(918e12, 32 * 2**30, 1.638e12, 3584e9 / 8, "TPU v6 lite"),
}


MOST_VIRTUAL = 1024  # CPU devices; XLA makes threads for each


def chip_of(kind: str) -> Chip | None:
    """The figures of a device that JAX gives this name; None if they are not known here."""
    return next((chip for chip in CHIPS.values() if chip.kind == kind), None)


def split_topology(topology: str) -> tuple[str, str]:
    """("v5e", "16x16") of "v5e:16x16", ("cpu", "8") of "cpu:8".

    Raises:
        UserError: it is of another form, of another chip, or hosts of 2 x 2 chips do not make it.
    """
    kind, _, shape = topology.partition(":")
    if kind == "cpu" and shape.isdecimal() and 0 < int(shape[:9]) <= MOST_VIRTUAL:
        return kind, shape
    if kind not in CHIPS or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", shape):
        raise UserError(
            f"--topology={topology}: give cpu:8 (virtual devices, at most {MOST_VIRTUAL:,}) or one of {', '.join(CHIPS)} with"
            " its two or three sides, like v5e:16x16"
        )
    if kind in CHIPS and any(int(side) % 2 and side != "1" for side in shape.split("x")[:2]):
        raise UserError(
            f"--topology={topology}: a host has 2 x 2 chips, so no slice has such sides; give two even ones, like {kind}:4x4"
        )
    return kind, shape
