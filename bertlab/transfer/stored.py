"""Feature-based transfer from stored states: the body runs once, then heads train on its states.

The states of all layers at all positions of the rows are stored next to the prepared corpora, in
float16; runs that read the same rows with the same body (seeds, rates, mixes of layers) share them.
A head is trained as on a frozen body, except for the rounding.

Letters: B rows, L positions, W the widths of all layers together.
"""

import dataclasses
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from ml_collections import ConfigDict

from bertlab.files import cache_directory
from bertlab.models.base import Body, Carry, Encoded, View
from bertlab.models.presets import model_direction
from bertlab.models.static import StaticShape
from bertlab.transfer.batches import Batch, Batches
from bertlab.transfer.load import Pretrained, load


@dataclasses.dataclass(frozen=True)
class StoredShape(StaticShape):
    """Layers of these widths, which have seen this side; like a lookup, they cost no FLOPs."""

    widths: tuple[int, ...] = ()
    side: str = "both"


class StoredBody(Body):
    """A body without parameters, whose layers are the view's `features` [B, L, W]."""

    shape: StoredShape

    def encode(self, view: View, carry: Carry | None = None) -> tuple[Encoded, Carry]:
        ends = np.cumsum(self.shape.widths)[:-1].tolist()
        layers = tuple(jnp.split(view["features"], ends, axis=-1))
        return Encoded(**{self.shape.side: layers}), {}


@dataclasses.dataclass(frozen=True)
class StoredBatches(Sequence):
    """Batches with `features` [B, L, W], which are read when a batch is used: a sequence of
    evaluation batches, and a function from a step to its training batch."""

    batches: Batches
    evaluation: Sequence[Batch]
    states: Float[np.ndarray, "T W"]  # of all positions of the rows
    bounds: Int[np.ndarray, "R+1"]  # where each row's begin and end

    def __len__(self) -> int:
        return len(self.evaluation)

    def __getitem__(self, index: int) -> Batch:
        return self._with_features(self.evaluation[index])

    def __call__(self, step: int) -> Batch:
        return self._with_features(self.batches(step))

    def _with_features(self, batch: Batch) -> Batch:
        features = np.zeros((*batch["tokens"].shape, self.states.shape[1]), np.float32)
        for index, first, last in positions_of(batch, self.bounds):
            features[index, : last - first] = self.states[first:last]
        return {**batch, "features": features}


def positions_of(batch: Batch, bounds: Int[np.ndarray, "R+1"]) -> Iterator[tuple[int, int, int]]:
    """(Index in the batch, first position, end) of each of a batch's rows."""
    for index, number in enumerate(batch["row_number"]):
        if number >= 0:
            yield index, bounds[number], bounds[number + 1]


def with_stored_states(
    config: ConfigDict, batches: Mapping[str, Batches], rows
) -> tuple[StoredBody, dict[str, StoredBatches]]:
    """The body that reads stored states, and each split's batches that have them."""
    model, found = load(config.init_from, config.init_step), {}
    digest = hashlib.blake2b(digest_size=16)
    for leaf in jax.tree.leaves(model.params["body"]):
        digest.update(np.ascontiguousarray(leaf))
    directory = cache_directory(config.task_data.pretraining.directory) / "states"
    for split, made in batches.items():
        path = directory / f"{digest.hexdigest()}-{made.hash}.npy"
        bounds = np.cumsum([0, *(len(row["tokens"]) for row in rows[split])])
        evaluation = made.evaluation()
        if not path.exists():
            store(model, evaluation, bounds, path)
        found[split] = StoredBatches(made, evaluation, np.load(path, mmap_mode="r"), bounds)
    side, layers = model.encode(found["valid"].evaluation[0]).widest()
    shape = StoredShape(
        width=layers[-1].shape[-1],
        vocab_size=model.program.vocabulary.size,
        direction=model_direction(model.config.model),
        dtype=jnp.dtype("float32"),
        widths=tuple(layer.shape[-1] for layer in layers),
        side=side,
    )
    return StoredBody(shape), found


def store(model: Pretrained, batches: Sequence[Batch], bounds, path: Path) -> None:
    """Writes the states of the batches' rows, [T, W] in float16."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary, states = path.with_name(f"{path.name}.{os.getpid()}.tmp"), None
    for batch in batches:
        _, layers = model.encode(batch).widest()
        found = np.concatenate([np.asarray(layer, np.float32) for layer in layers], axis=-1)
        if states is None:
            shape = (int(bounds[-1]), found.shape[-1])
            states = np.lib.format.open_memmap(temporary, "w+", np.float16, shape)
        for index, first, last in positions_of(batch, bounds):
            states[first:last] = found[index, : last - first]
    states.flush()
    os.replace(temporary, path)
