"""Low-rank updates added to kernels (Hu et al. 2021, section 4.1): W + alpha / r A B.

Parameters with updates are {"body": ..., "lora": ...}: "lora" holds the kernels' paths, each with
`a` [..., inputs, r] and `b` [..., r, outputs]. A program computes with the merged kernels, so
models need not know about updates. Axes stay (n layers, D width, H heads, K head width, F hidden):

    blocks/attention/qkv_kernel [n, D, 3, H, K] is three kernels, qkv_kernel/query, /key and /value:
        a [n, D, r], b [n, r, H, K]
    blocks/attention/out_kernel [n, H, K, D]: a [n, H, K, r], b [n, r, D]
    an LSTM's input_kernel [D, 4, F]: a [D, r], b [r, 4, F]; the four gates share A
    any dense kernel [D, F], an ELMo layer's projection: a [D, r], b [r, F]

Embeddings, the output layer's matrix and convolutions have no updates.
"""

import dataclasses
import functools
import math
import re
import zlib
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import traverse_util
from jax.sharding import PartitionSpec
from jaxtyping import Array

from bertlab.errors import UserError

QKV = ("query", "key", "value")
ONE_INPUT = re.compile(r"/((input|recurrent|carry|transform)_kernel|projection)$")
STACKED = re.compile(r"body/(blocks|forward|backward)/")
"""Parameters whose first axis is the layers."""


@dataclasses.dataclass(frozen=True)
class Lora:
    """Which kernels are updated, and how (`config.lora`)."""

    rank: int  # r
    alpha: float  # updates are multiplied by alpha / r
    targets: str  # pattern of the kernels' paths (the paper's: "qkv_kernel/(query|value)$")

    def add(self, params, key: Array) -> dict:
        """The parameters with updates of zero: A is N(0, 1 / sqrt(inputs)), B zeros."""
        shapes = {name: leaf.shape for name, leaf in _flat(params).items()}
        updates = {}
        for name, (layers, inputs, outputs) in self._kernels(shapes).items():
            size = math.prod(inputs)
            if self.rank > min(size, math.prod(outputs)):
                raise UserError(
                    f"config.lora.rank={self.rank} is more than kernel {name} has"
                    f" ({size} inputs, {math.prod(outputs)} outputs); lower it"
                )
            own_key = jax.random.fold_in(key, zlib.crc32(name.encode()))
            a = jax.random.normal(own_key, (*layers, *inputs, self.rank)) * size**-0.5
            updates[f"{name}/a"] = a
            updates[f"{name}/b"] = jnp.zeros((*layers, self.rank, *outputs))
        return {**params, "lora": traverse_util.unflatten_dict(updates, sep="/")}

    def logical_axes(self, axes) -> dict:
        """Axis names (PartitionSpecs) of `add`'s parameters: the kernel's own, and None for r."""
        updates = {}
        for name, (layers, inputs, outputs) in self._kernels(_flat(axes)).items():
            updates[f"{name}/a"] = PartitionSpec(*layers, *inputs, None)
            updates[f"{name}/b"] = PartitionSpec(*layers, None, *outputs)
        return {**axes, "lora": traverse_util.unflatten_dict(updates, sep="/")}

    def merge(self, params) -> dict:
        """The parameters with W + alpha / r A B instead of W, and without "lora"."""
        plain = _flat({name: tree for name, tree in params.items() if name != "lora"})
        updates = _flat(params.get("lora", {}))
        for name in updates:
            if not name.endswith("/a"):
                continue
            kernel = name.removesuffix("/a")
            product = functools.partial(jnp.tensordot, axes=1, precision=jax.lax.Precision.HIGHEST)
            product = jax.vmap(product) if STACKED.match(kernel) else product
            update = self.alpha / self.rank * product(updates[name], updates[f"{kernel}/b"])
            parent, _, last = kernel.rpartition("/")
            if parent.endswith("/qkv_kernel"):
                axis = (slice(None),) * (2 if STACKED.match(kernel) else 1)
                update = jnp.zeros_like(plain[parent]).at[(*axis, QKV.index(last))].set(update)
                kernel = parent
            plain[kernel] = plain[kernel] + update
        return traverse_util.unflatten_dict(plain, sep="/")

    def _kernels(self, axes: Mapping[str, tuple]) -> dict[str, tuple[tuple, tuple, tuple]]:
        """(layers, inputs, outputs) of each targeted kernel, from shapes or axis names by path."""
        kernels = {}
        for name, all_axes in axes.items():
            split = 1 if STACKED.match(name) else 0
            layers, own = tuple(all_axes[:split]), tuple(all_axes[split:])
            if name.endswith("/qkv_kernel"):
                kernels |= {f"{name}/{letter}": (layers, own[:1], own[2:]) for letter in QKV}
            elif name.endswith("/out_kernel"):
                kernels[name] = layers, own[:2], own[2:]
            else:
                is_dense = name.endswith("/kernel") and len(own) == 2
                if ONE_INPUT.search(name) or (is_dense and name != "body/output/kernel"):
                    kernels[name] = layers, own[:1], own[1:]
        targeted = {name: split for name, split in kernels.items() if re.search(self.targets, name)}
        if not targeted:
            names = ", ".join(kernels) or "none"
            raise UserError(
                f"config.lora.targets={self.targets!r} matches no kernel; the kernels are: {names}"
            )
        return targeted


def _flat(tree) -> dict:
    """Leaves by "body/blocks/up/kernel"."""
    return traverse_util.flatten_dict(tree, sep="/")
