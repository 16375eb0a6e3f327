"""Low-rank updates added to kernels (Hu et al. 2021, section 4.1): W + alpha/r · A B.

A program with an `adapter` has parameters {"body": ..., "heads_x": ..., "lora": ...}: "lora" holds the kernels' paths, each
with `a` [..., inputs, r] and `b` [..., r, outputs]. The program computes with the merged kernels, so models need no change.
`config.optimizer.frozen="^body/"` trains only updates and heads.

Letters of kernels: n layers, D width, H heads, K head width, F hidden width, r rank. No axes are flattened:

    blocks/attention/qkv_kernel [n, D, 3, H, K] is three kernels, qkv_kernel/query, /key and /value: a [n, D, r], b [n, r, H, K]
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
from jax.sharding import PartitionSpec
from jaxtyping import Array

from bertlab import keys
from bertlab.errors import UserError
from bertlab.train.layer_groups import STACKED, parameter_name

_PARTS = ("query", "key", "value")
_ONE_INPUT = re.compile(r"/((input|recurrent|carry|transform)_kernel|projection)$")


@dataclasses.dataclass(frozen=True)
class Lora:
    """An adapter for `Program`: which kernels are updated, and how.

    Attributes:
        rank: r.
        alpha: updates are multiplied by alpha / r.
        targets: pattern for the paths of updated kernels (the paper's: "qkv_kernel/(query|value)$").
    """

    rank: int
    alpha: float
    targets: str

    def add(self, params, key: Array):
        """The parameters with zero updates: A is N(0, 1/√inputs), B zeros (the paper gives no deviation for A).

        Args:
            params: plain parameters of a model.
            key: each A depends on it and on its own path.

        Raises:
            UserError: no kernel is targeted, or the rank exceeds a kernel's inputs or outputs.
        """
        named = {parameter_name(path): leaf.shape for path, leaf in jax.tree.leaves_with_path(params)}
        updates = {}
        for name, (lead, inputs, outputs) in self._targeted(named).items():
            size = math.prod(inputs)
            if self.rank > min(size, math.prod(outputs)):
                raise UserError(
                    f"config.lora.rank={self.rank} exceeds the rank of kernel {name}, {size} to {math.prod(outputs)}; lower it"
                )
            own_key = jax.random.fold_in(key, zlib.crc32(name.encode()))
            a = jax.random.normal(own_key, (*lead, *inputs, self.rank)) * size**-0.5
            updates[name] = {"a": a, "b": jnp.zeros((*lead, self.rank, *outputs))}
        return {**params, "lora": _nest(updates)}

    def logical_axes(self, axes):
        """The axis names of `add`'s parameters: the kernel's own, and none for r."""
        leaves = jax.tree.leaves_with_path(axes, is_leaf=lambda node: isinstance(node, PartitionSpec))
        named = {parameter_name(path): tuple(spec) for path, spec in leaves}
        updates = {
            name: {"a": PartitionSpec(*lead, *inputs, None), "b": PartitionSpec(*lead, None, *outputs)}
            for name, (lead, inputs, outputs) in self._targeted(named).items()
        }
        return {**axes, "lora": _nest(updates)}

    def merge(self, params):
        """Plain parameters with W + alpha/r · A B in place of W; parameters without updates do not change."""
        if "lora" not in params:
            return params
        plain = {key: value for key, value in params.items() if key != "lora"}

        def merged(path, kernel):
            update = params["lora"]
            for key in path:
                update = update.get(key.key) if isinstance(update, Mapping) else None
            if update is None:
                return kernel
            stacked = bool(STACKED.match(parameter_name(path)))
            if "a" in update:
                return kernel + self._product(update, stacked)
            for part, of_part in update.items():
                where = (slice(None),) * (1 + stacked) + (_PARTS.index(part),)
                kernel = jnp.asarray(kernel).at[where].add(self._product(of_part, stacked))
            return kernel

        return jax.tree_util.tree_map_with_path(merged, plain)

    def _product(self, update, stacked: bool) -> Array:
        """alpha/r · A B of one kernel, or of each layer's kernel."""
        product = lambda a, b: jnp.tensordot(a, b, 1, precision=jax.lax.Precision.HIGHEST)
        return self.alpha / self.rank * (jax.vmap(product) if stacked else product)(update["a"], update["b"])

    def _targeted(self, named: Mapping[str, tuple]) -> dict[str, tuple[tuple, tuple, tuple]]:
        """(layer axis, input axes, output axes) of each targeted kernel, from shapes or axis names by path."""
        kernels = {}
        for name, axes in named.items():
            lead, own = (axes[:1], axes[1:]) if STACKED.match(name) else ((), axes)
            if name.endswith("/qkv_kernel"):
                kernels |= {f"{name}/{part}": (lead, own[:1], own[2:]) for part in _PARTS}
            elif name.endswith("/out_kernel"):
                kernels[name] = lead, own[:2], own[2:]
            elif _ONE_INPUT.search(name) or (name.endswith("/kernel") and len(own) == 2 and name != "body/output/kernel"):
                kernels[name] = lead, own[:1], own[1:]
        targeted = {name: axes for name, axes in kernels.items() if re.search(self.targets, name)}
        if not targeted:
            raise UserError(
                f"config.lora.targets={self.targets!r} matches none of the model's kernels:"
                f" {', '.join(kernels) or 'it has none'}"
            )
        return targeted


def _nest(flat: Mapping[str, dict]) -> dict:
    """Nested dicts from "body/blocks/up/kernel": leaf."""
    tree = {}
    for name, leaf in flat.items():
        *parents, last = name.split("/")
        functools.reduce(lambda node, key: node.setdefault(key, {}), parents, tree)[last] = leaf
    return tree


def build_adapter(settings) -> Lora | None:
    """The adapter of `config.lora`; None for rank 0.

    Raises:
        UserError: names the key and its allowed values.
    """
    keys.check(settings, "lora")
    try:
        re.compile(settings.targets)
    except re.error as error:
        raise UserError(f"config.lora.targets={settings.targets!r} is not a valid pattern: {error}") from None
    return Lora(settings.rank, settings.alpha, settings.targets) if settings.rank else None
