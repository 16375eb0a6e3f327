"""What every import and export shares: the table of names, the checks, and the directory that comes of it.

A mapping is a table of entries, each between one parameter of bertlab's tree ("body/blocks/up/kernel") and the tensors that
hold it elsewhere. It is read in both directions, so what goes out is what came in. A file is taken whole or refused: a
tensor that is missing, left over, of another shape or not of floats is named, and nothing is written.
"""

import contextlib
import dataclasses
import importlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.errors import UserError
from bertlab.models.base import unbox
from bertlab.models.presets import build_body, model_shape
from bertlab.run import Run
from bertlab.train.checkpoint import load_params, save_params

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
    "word2vec": "bertlab.interop.word2vec:save",
    "glove": "bertlab.interop.glove:save",
}
"""Kind to "module:function": (run: Imported, directory: Path) -> None; the directory exists and is empty."""

_EXACT = (np.float32, np.float16, jnp.bfloat16)


def _one(arrays: Sequence[np.ndarray]) -> np.ndarray:
    (array,) = arrays
    return array


@dataclasses.dataclass(frozen=True)
class Entry:
    """One parameter here and the tensors that hold it there.

    Attributes:
        theirs: tensor names; with "{i}" in them, one set for each layer.
        ours: path in bertlab's tree; with "{i}" in `theirs`, its first axis is the layers.
        to_ours: their arrays (of one layer) to ours.
        to_theirs: the inverse.
    """

    theirs: tuple[str, ...]
    ours: str
    to_ours: Callable[[Sequence[np.ndarray]], np.ndarray] = _one
    to_theirs: Callable[[np.ndarray], Sequence[np.ndarray]] = lambda array: [array]

    @property
    def stacked(self) -> bool:
        """Whether there is one set of tensors for each layer."""
        return "{i}" in self.theirs[0]

    def names(self, layer: int) -> tuple[str, ...]:
        """Their names in one layer."""
        return tuple(name.replace("{i}", str(layer)) for name in self.theirs)


def transposed(theirs: str, ours: str) -> Entry:
    """An entry for a matrix that lies the other way round there (torch's Linear: out × in)."""
    return Entry((theirs,), ours, lambda arrays: arrays[0].T, lambda array: [array.T])


def read(table: Sequence[Entry], tensors: Mapping[str, np.ndarray], shapes, source: str | Path) -> dict:
    """Parameters from tensors of another system.

    Args:
        table: has an entry for every parameter in `shapes`; entries of other parameters are not asked for.
        tensors: by their names there; float32, or float16 and bfloat16, which float32 holds exactly.
        shapes: tree of the parameters to be had; leaves have `shape`.
        source: the file, for messages.

    Returns:
        A tree like `shapes` of float32 arrays.

    Raises:
        UserError: names every tensor that is missing, left over, misshapen, of another type or not finite.
    """
    entries = {entry.ours: entry for entry in table}
    wanted = {path: leaf.shape for path, leaf in flatten_tree(shapes).items()}
    expected = {}
    for path, shape in wanted.items():
        expected |= _their_shapes(entries[path], shape)
    _refuse(source, "lacks", [f"{name} {expected[name]}" for name in expected if name not in tensors])
    unknown = [f"{name} {tuple(np.shape(tensors[name]))}" for name in tensors if name not in expected]
    _refuse(source, "has tensors that this model has no place for:", unknown)
    misshapen = {name: shape for name, shape in expected.items() if np.shape(tensors[name]) != shape}
    described = [f"{name}: expected {shape}, found {np.shape(tensors[name])}" for name, shape in misshapen.items()]
    _refuse(source, "has tensors of another shape than its config says:", described)
    wrong = [f"{name} is {tensors[name].dtype}" for name in expected if tensors[name].dtype not in _EXACT]
    _refuse(source, "has tensors that are not float32, float16 or bfloat16:", wrong)
    damaged = [name for name in expected if not np.isfinite(np.asarray(tensors[name], np.float32)).all()]
    _refuse(source, "has NaN or infinite numbers in", damaged)

    def parameter(path: str, shape: tuple[int, ...]) -> np.ndarray:
        entry = entries[path]
        if not entry.stacked:
            return np.array(entry.to_ours([tensors[name] for name in entry.theirs]), np.float32)
        out = np.empty(shape, np.float32)
        for layer in range(shape[0]):
            out[layer] = entry.to_ours([tensors[name] for name in entry.names(layer)])
        return out

    return nest({path: parameter(path, shape) for path, shape in wanted.items()})


def write(table: Sequence[Entry], params) -> dict[str, np.ndarray]:
    """Tensors under the other system's names; the inverse of `read`.

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
        raise UserError(f"there is no tensor for {_listed(homeless)} in that format")
    tensors = {}
    for path, array in flat.items():
        entry, array = entries[path], np.asarray(array)
        for layer, part in enumerate(array if entry.stacked else [array]):
            tensors |= dict(zip(entry.names(layer), entry.to_theirs(part), strict=True))
    # safetensors writes memory as it lies, whatever the strides say.
    return {name: np.ascontiguousarray(array, np.float32) for name, array in tensors.items()}


def _their_shapes(entry: Entry, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The shapes that an entry's tensors must have for ours to have this one."""
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
    """Leaves by their path, keys joined by "/"."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def nest(flat: Mapping[str, Any]) -> dict:
    """The tree of which `flatten_tree` gives `flat`."""
    tree = {}
    for path, leaf in flat.items():
        *parents, last = path.split("/")
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = leaf
    return tree


def body_shapes(config: ConfigDict, vocab_size: int, *, predicts: bool = True, pools: bool = False) -> dict:
    """Shapes of a body's parameters, without making any.

    Args:
        config: a whole config, of which `config.model` is read.
        vocab_size: V.
        predicts: with the output layer (for the forward side where there are several).
        pools: with the pooler.

    Returns:
        {"body": tree of ShapeDtypeStruct}.

    Raises:
        UserError: `config.model` cannot be.
    """
    body = build_body(model_shape(config.model, vocab_size))
    row = jnp.zeros((1, 2), jnp.int32)
    view = dict.fromkeys(("tokens", "segments", "documents", "positions"), row)
    view["characters"] = jnp.zeros((1, 2, 50), jnp.int32)

    def use(body):
        encoded, _ = body.encode(view, True, {})
        side = next(side for side in ("forward", "backward", "both") if getattr(encoded, side) is not None)
        if predicts:
            body.predict_tokens(getattr(encoded, side)[-1], side)
        if pools:
            body.pool(encoded, view)

    boxed = jax.eval_shape(lambda: body.init(jax.random.key(0), method=use))["params"]
    return {"body": unbox(boxed)}


@dataclasses.dataclass(frozen=True)
class Imported:
    """A model as it was read, or a run as it is to be exported.

    Attributes:
        config: a whole config; `config.objectives` are those whose heads there are.
        params: {"body": ..., "heads_nsp": ...}, float32 NumPy arrays.
        tokenizer: None where the source has none (`save_imported` refuses that).
        files: names of the files that were read.
        tensors: how many tensors they held.
    """

    config: ConfigDict
    params: dict
    tokenizer: Tokenizer | None
    files: tuple[str, ...] = ()
    tensors: int = 0


@contextlib.contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """A new directory that appears under its name when the block ends, or not at all.

    Raises:
        UserError: there is something under that name already.
    """
    refuse_occupied(directory)
    directory = directory.absolute()
    part = directory.with_name(f".{directory.name}.part-{os.getpid()}")
    part.mkdir(parents=True)
    try:
        yield part
        os.replace(part, directory)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def refuse_occupied(directory: Path) -> None:
    """Refuses a path that is anything but free or an empty directory."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory} is not empty; name a new directory")


def save_imported(imported: Imported, workdir: Path, source_kind: str, source: str | Path) -> dict:
    """Writes a run directory that holds an imported model: config, tokenizer, checkpoint 0 and imported.json.

    Args:
        imported: what to write.
        workdir: a new or empty directory.
        source_kind: a key of `IMPORTERS`.
        source: what it was read from.

    Returns:
        What imported.json says.

    Raises:
        UserError: the workdir is not empty, or there is no tokenizer.
    """
    if imported.tokenizer is None:
        raise UserError(f"{source} has no tokenizer, without which a run means nothing; put its files beside the weights")
    description = {
        "from": source_kind,
        "source": str(source),
        "files": list(imported.files),
        "tensors": imported.tensors,
        "parameters": sum(array.size for array in jax.tree.leaves(imported.params)),
    }
    with whole_directory(Path(workdir)) as directory:
        run = Run(directory)
        run.config.write(imported.config.to_dict())
        imported.tokenizer.save(run.tokenizer)
        if load_tokenizer(run.tokenizer).pieces() != imported.tokenizer.pieces():
            raise UserError(
                f"{source} has a vocabulary that does not come back as it was saved; look for line ends within words"
            )
        save_params(directory, imported.params)
        run.imported.write(description)
    return description


def load_run(run: Path) -> Imported:
    """A run or imported directory as it is to be exported.

    Raises:
        UserError: it has no config or no checkpoint.
    """
    config = ConfigDict(Run(run).config.read())
    return Imported(config, load_params(run), load_tokenizer(Run(run).tokenizer))


def import_weights(kind: str, source: str | Path, workdir: str | Path) -> dict:
    """Reads a published model into a run directory, with which `finetune`, `init_from` and `export` work.

    Args:
        kind: a key of `IMPORTERS`.
        source: its directory or file.
        workdir: a new or empty directory.

    Returns:
        What imported.json says.

    Raises:
        UserError: an unknown kind, no such source, a workdir in use, or a file that is not taken whole.
    """
    load = _find(kind, IMPORTERS)
    source, workdir = Path(source).expanduser(), Path(workdir)
    if not source.exists():
        raise UserError(f"{source} does not exist; give the directory or file of a {kind} model")
    refuse_occupied(workdir)
    return save_imported(load(source), workdir, kind, source)


def export_weights(kind: str, run: str | Path, directory: str | Path) -> None:
    """Writes a run's model as another system reads it.

    Args:
        kind: a key of `EXPORTERS`.
        run: a run or imported directory.
        directory: a new or empty directory.

    Raises:
        UserError: an unknown kind, or a model that the other system cannot express.
    """
    save = _find(kind, EXPORTERS)
    refuse_occupied(Path(directory))
    loaded = load_run(Path(run))
    with whole_directory(Path(directory)) as part:
        save(loaded, part)


def _find(kind: str, registry: Mapping[str, str]) -> Callable:
    if kind not in registry:
        raise UserError(f"format {kind!r} is not known; choose one of {', '.join(registry)}")
    module, _, function = registry[kind].partition(":")
    return getattr(importlib.import_module(module), function)
