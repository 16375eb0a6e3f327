"""Shared by all imports and exports: tables of names, checks, and run directories.

Each entry of a table maps one parameter of bertlab's tree ("body/blocks/up/kernel") to the tensors that hold it elsewhere.
Imports and exports read the same table, so an export returns exactly what was imported.
"""

import dataclasses
import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from bertlab import objectives
from bertlab.checksums import digest_of
from bertlab.config import is_finetuning
from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.errors import UserError, did_you_mean
from bertlab.files import refuse_occupied, whole_directory
from bertlab.interop.card import write_card
from bertlab.locks import alone
from bertlab.objectives.base import Scoring
from bertlab.objectives.judging import scoring_of
from bertlab.run import Run
from bertlab.train.checkpoint import load_params, require_fitting, save_params
from bertlab.train.layer_groups import parameter_name
from bertlab.train.phases import trained_objectives

IMPORTERS = {
    "huggingface": "bertlab.interop.huggingface:load",
    "google": "bertlab.interop.google:load",
    "openai": "bertlab.interop.openai:load",
    "elmo": "bertlab.interop.elmo:load",
    "fastai": "bertlab.interop.fastai:load",
    "word2vec": "bertlab.interop.word2vec:load",
    "glove": "bertlab.interop.glove:load",
}
"""Kind to "module:function": (source: Path) -> Imported."""

EXPORTERS = {
    "huggingface": "bertlab.interop.huggingface:save",
    "elmo": "bertlab.interop.elmo:save",
    "fastai": "bertlab.interop.fastai:save",
    "word2vec": "bertlab.interop.word2vec:save",
    "glove": "bertlab.interop.glove:save",
}
"""Kind to "module:function": (run: Imported, directory: Path) -> None; the directory exists and is empty."""

# A config that describes so many times the numbers of its file is damaged.
_MOST_TIMES = 1000
_EXACT = (np.float32, np.float16, jnp.bfloat16)


def _one(arrays: Sequence[np.ndarray]) -> np.ndarray:
    (array,) = arrays
    return array


@dataclasses.dataclass(frozen=True)
class Entry:
    """One parameter of bertlab, and the other system's tensors that hold it.

    Attributes:
        theirs: tensor names; if they contain "{i}", each layer has its own set.
        ours: path in bertlab's tree; if `theirs` contains "{i}", the first axis is the layers.
        to_ours: converts their arrays (of one layer) to ours.
        to_theirs: the inverse.
    """

    theirs: tuple[str, ...]
    ours: str
    to_ours: Callable[[Sequence[np.ndarray]], np.ndarray] = _one
    to_theirs: Callable[[np.ndarray], Sequence[np.ndarray]] = lambda array: [array]

    @property
    def stacked(self) -> bool:
        """Whether each layer has its own set of tensors."""
        return "{i}" in self.theirs[0]

    def names(self, layer: int) -> tuple[str, ...]:
        """The tensor names of one layer."""
        return tuple(name.replace("{i}", str(layer)) for name in self.theirs)


def transposed(theirs: str, ours: str) -> Entry:
    """An entry for a matrix that the other system stores transposed (torch's Linear: out × in)."""
    return Entry((theirs,), ours, lambda arrays: arrays[0].T, lambda array: [array.T])


def read(table: Sequence[Entry], tensors: Mapping[str, np.ndarray], shapes, source: str | Path) -> dict:
    """Converts another system's tensors to parameters.

    Args:
        table: has an entry for every parameter in `shapes`; further entries are ignored.
        tensors: by their names; float32, or float16 and bfloat16, converted to float32 without loss.
        shapes: tree of the expected parameters; leaves have `shape`.
        source: the file, for messages.

    Returns:
        A tree like `shapes` of float32 arrays.

    Raises:
        UserError: names every tensor that is missing, left over, not finite, or of the wrong shape or type.
    """
    entries, expected = {entry.ours: entry for entry in table}, {}
    # A config may describe any size; the shapes below are found by converting arrays of it.
    described, held = (sum(math.prod(np.shape(leaf)) for leaf in of) for of in (jax.tree.leaves(shapes), tensors.values()))
    if described > _MOST_TIMES * (held + _MOST_TIMES):
        raise UserError(
            f"{source} holds {held:,} numbers, but its config describes a model of {described:,}; nothing was written"
        )
    for path, leaf in flatten_tree(shapes).items():
        expected |= _their_shapes(entries[path], leaf.shape)
    _refuse(source, "lacks", [f"{name} {expected[name]}" for name in expected if name not in tensors])
    unknown = [f"{name} {tuple(np.shape(tensors[name]))}" for name in tensors if name not in expected]
    _refuse(source, "has tensors that are not part of this model:", unknown)
    misshapen = {name: shape for name, shape in expected.items() if np.shape(tensors[name]) != shape}
    described = [f"{name}: expected {shape}, found {np.shape(tensors[name])}" for name, shape in misshapen.items()]
    _refuse(source, "has tensors whose shapes do not match its config:", described)
    wrong = [f"{name} is {tensors[name].dtype}" for name in expected if tensors[name].dtype not in _EXACT]
    _refuse(source, "has tensors that are not float32, float16 or bfloat16:", wrong)
    damaged = [name for name in expected if not np.isfinite(np.asarray(tensors[name], np.float32)).all()]
    _refuse(source, "has NaN or infinite numbers in", damaged)

    def parameter(path, leaf) -> np.ndarray:
        entry, out = entries[parameter_name(path)], np.empty(leaf.shape, np.float32)
        for layer, part in enumerate(out if entry.stacked else [out]):
            part[...] = entry.to_ours([tensors[name] for name in entry.names(layer)])
        return out

    return jax.tree.map_with_path(parameter, shapes)


def write(table: Sequence[Entry], params) -> dict[str, np.ndarray]:
    """Converts parameters to the other system's tensors; the inverse of `read`.

    Args:
        table: as for `read`.
        params: tree of float32 arrays (or anything shaped like them, such as gradients).

    Returns:
        Contiguous float32 arrays by name.

    Raises:
        UserError: a parameter has no entry.
    """
    entries = {entry.ours: entry for entry in table}
    flat = flatten_tree(params)
    if homeless := [path for path in flat if path not in entries]:
        raise UserError(f"this format has no tensor for {_listed(homeless)}")
    tensors = {}
    for path, array in flat.items():
        entry, array = entries[path], np.asarray(array)
        for layer, part in enumerate(array if entry.stacked else [array]):
            tensors |= dict(zip(entry.names(layer), entry.to_theirs(part), strict=True))
    # safetensors ignores strides, so arrays must be contiguous.
    return {name: np.ascontiguousarray(array, np.float32) for name, array in tensors.items()}


def _their_shapes(entry: Entry, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The tensor shapes that give our parameter this shape."""
    layers, shape = (shape[0], shape[1:]) if entry.stacked else (1, shape)
    parts = [np.shape(part) for part in entry.to_theirs(np.broadcast_to(np.float32(0), shape))]
    return {name: part for layer in range(layers) for name, part in zip(entry.names(layer), parts, strict=True)}


def _refuse(source: str | Path, complaint: str, items: Sequence[str]) -> None:
    if items:
        raise UserError(f"{source} {complaint} {_listed(items)}; nothing was written")


def _listed(items: Sequence[str], most: int = 8) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def flatten_tree(tree) -> dict[str, Any]:
    """Leaves by path, with keys joined by "/"."""
    return {parameter_name(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


@dataclasses.dataclass(frozen=True)
class Imported:
    """An imported model, or a run to export.

    Attributes:
        config: a whole config; `config.objectives` lists the objectives whose heads are in `params`.
        params: {"body": ..., "heads_nsp": ...}, float32 NumPy arrays.
        tokenizer: the run's.
        files: names of the files that were read.
        tensors: how many tensors the files held.
        step: of the checkpoint that `params` are from; None: the last one.
    """

    config: ConfigDict
    params: dict
    tokenizer: Tokenizer
    files: tuple[str, ...] = ()
    tensors: int = 0
    step: int | None = None

    def scorings(self) -> dict[str, Scoring]:
        """How each trained objective predicts tokens, by name; {} for a fine-tuning.

        Raises:
            UserError: an objective is from outside the package, and its module is not found.
        """
        if is_finetuning(self.config):
            return {}
        trained = trained_objectives(self.config, self.step)
        built = objectives.build({name: self.config.objectives[name] for name in trained}) if trained else {}
        return {name: scoring_of(name, objective) for name, objective in built.items()}

    def ways(self) -> set[str]:
        """Those of `bertlab.objectives.base.WAYS` in which the model was trained to predict tokens."""
        return {way for scoring in self.scorings().values() for way in scoring.ways}

    def never_mask(self) -> bool:
        """Whether every objective that predicts at the mask gives [MASK] itself probability 0."""
        at_mask = [scoring for scoring in self.scorings().values() if "at the mask" in scoring.ways]
        return bool(at_mask) and all(scoring.never_mask for scoring in at_mask)


def only(source: Path, found: Sequence[Path], expected: str) -> Path:
    """The single file found in a source. Raises: UserError: none or several were found; names the expected file."""
    if len(found) != 1:
        names = " and ".join(path.name for path in sorted(found))
        raise UserError(f"{source}: expected {expected}, found {names or 'none'}")
    return found[0]


def save_imported(imported: Imported, workdir: Path, source_kind: str, source: str | Path) -> dict:
    """Writes an imported model as a run directory with config, tokenizer, checkpoint 0 and imported.json.

    Args:
        imported: what to write.
        workdir: a new or empty directory.
        source_kind: a key of `IMPORTERS`.
        source: the path of the imported model.

    Returns:
        The contents of imported.json.

    Raises:
        UserError: the workdir is not empty, or the vocabulary has a word with a line break.
    """
    description = {
        "from": source_kind,
        "source": str(source),
        "files": list(imported.files),
        "tensors": imported.tensors,
        "parameters": sum(array.size for array in jax.tree.leaves(imported.params)),
        "blake2b": _digest(imported.params),
    }
    with whole_directory(Path(workdir)) as directory:
        run = Run(directory)
        run.config.write(imported.config.to_dict())
        imported.tokenizer.save(run.tokenizer)
        if load_tokenizer(run.tokenizer).pieces() != imported.tokenizer.pieces():
            raise UserError(f"{source}: the vocabulary changes when saved and loaded; remove line breaks from its words")
        save_params(directory, imported.params)
        run.imported.write(description)
        run.list_files()
    return description


def _digest(params: Any) -> str:
    """Of all arrays, with their names: what the weights are, wherever they came from."""
    leaves = [(jax.tree_util.keystr(path), np.asarray(array)) for path, array in jax.tree.leaves_with_path(params)]
    return digest_of(*(part for name, array in leaves for part in (f"{name} {array.dtype} {array.shape}".encode(), array)))


def load_run(run: Path, step: int | None = None) -> Imported:
    """Loads a run or imported directory for export; `step` is that of its checkpoint, None the last one.

    Raises:
        UserError: the directory has no config or no such checkpoint.
    """
    config, params = ConfigDict(Run(run).model_config()), load_params(run, step)
    tokenizer = load_tokenizer(Run(run).tokenizer)
    table = params["body"].get("token_embedding")
    require_fitting(Run(run), params, config, tokenizer.vocab_size if table is None else len(table))
    return Imported(config, params, tokenizer, step=step)


def import_weights(kind: str, source: str | Path, workdir: str | Path) -> dict:
    """Imports a published model as a run directory for `finetune`, `init_from` and `export`.

    Args:
        kind: a key of `IMPORTERS`.
        source: its directory or file.
        workdir: a new or empty directory.

    Returns:
        The contents of imported.json.

    Raises:
        UserError: the kind is unknown, the source does not exist or is incomplete, or the workdir is in use.
    """
    load = _find(kind, IMPORTERS)
    source, workdir = Path(source).expanduser(), Path(workdir)
    if not source.exists():
        raise UserError(f"{source} does not exist; give the directory or file of the model, in the format {kind}")
    with alone(workdir):
        refuse_occupied(workdir)
        return save_imported(load(source), workdir, kind, source)


def export_weights(kind: str, run: str | Path, directory: str | Path, step: int | None = None) -> None:
    """Exports a run's model in another system's format, with a README.md that describes it (`bertlab.interop.card`).

    Args:
        kind: a key of `EXPORTERS`.
        run: a run or imported directory.
        directory: a new or empty directory.
        step: of the run's checkpoint; None: the last one.

    Raises:
        UserError: an unknown kind, no such checkpoint, or a model that the other system cannot express.
    """
    save = _find(kind, EXPORTERS)
    with alone(directory):
        refuse_occupied(Path(directory))
        loaded = load_run(Path(run), step)
        with whole_directory(Path(directory)) as part:
            save(loaded, part)
            count = sum(leaf.size for leaf in jax.tree.leaves(loaded.params))
            write_card(Run(run), loaded.config, loaded.tokenizer, count, loaded.scorings(), part, step)


def _find(kind: str, registry: Mapping[str, str]) -> Callable:
    if kind not in registry:
        raise UserError(f"format {kind!r} is not known; {did_you_mean(kind, registry)}")
    module, _, function = registry[kind].partition(":")
    return getattr(importlib.import_module(module), function)
