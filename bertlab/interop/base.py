"""Imports and exports of all formats, to and from run directories."""

import dataclasses
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
from ml_collections import ConfigDict

from bertlab import objectives
from bertlab.data.tokenizers import Tokenizer
from bertlab.errors import UserError, require_choice
from bertlab.train.checkpoint import save_params
from bertlab.train.run_directory import RunDirectory
from bertlab.transfer.load import load

IMPORTERS = {
    "huggingface": "bertlab.interop.huggingface:load",
    "elmo": "bertlab.interop.elmo:load",
    "fastai": "bertlab.interop.fastai:load",
    "word2vec": "bertlab.interop.word2vec:load",
    "glove": "bertlab.interop.word2vec:load_glove",
}
"""Format to module:function, (source: Path) -> Model."""

EXPORTERS = {
    "huggingface": "bertlab.interop.huggingface:save",
    "fastai": "bertlab.interop.fastai:save",
    "word2vec": "bertlab.interop.word2vec:save",
    "glove": "bertlab.interop.word2vec:save_glove",
}
"""Format to module:function, (model: Model, target: Path) -> None."""

TOKENIZER = "tokenizer"
"""The folder of an exported directory with bertlab's own tokenizer, which an import prefers."""


@dataclasses.dataclass(frozen=True)
class Model:
    """A model to import; for an export, `bertlab.load` gives the same members."""

    config: ConfigDict  # whole; its `objectives` are those that trained the model, if any did
    params: dict  # {"body": ..., "heads_nsp": ...}, float32 NumPy arrays
    tokenizer: Tokenizer

    @property
    def objectives(self) -> Mapping[str, objectives.Objective]:
        """The objectives of `config.objectives`, by name."""
        return objectives.build(self.config.objectives) if len(self.config.objectives) else {}


def import_weights(kind: str, source: str | Path, workdir: str | Path) -> None:
    """Turns a published model (a directory or a file) into a new run directory, with its weights as
    the checkpoint of step 0. `kind` is a key of `IMPORTERS`, or module:function."""
    convert, source, workdir = find(kind, IMPORTERS), Path(source).expanduser(), Path(workdir)
    if not source.exists():
        raise UserError(f"{source} does not exist; give the file or directory of the model")
    refuse_occupied(workdir)
    save_model(convert(source), workdir, {"from": kind, "source": str(source)})


def save_model(model: Model, workdir: Path, description: Mapping[str, str]) -> None:
    """Writes config.json, tokenizer/, the checkpoint of step 0, and imported.json."""
    run = RunDirectory(workdir)
    run.write("config", model.config.to_dict())
    model.tokenizer.save(run.tokenizer)
    save_params(run, model.params)
    count = sum(array.size for array in jax.tree.leaves(model.params))
    run.write("imported", {**description, "parameters": count})


def export_weights(kind: str, run: str | Path, target: str | Path, step: int | None = None) -> None:
    """Writes a run's model, at a step or the last, to a new directory; word vectors to a new file.
    `kind` is a key of `EXPORTERS`, or module:function."""
    convert, target = find(kind, EXPORTERS), Path(target)
    refuse_occupied(target)
    model = load(run, step)
    target.parent.mkdir(parents=True, exist_ok=True)
    convert(model, target)
    if target.is_dir():
        model.tokenizer.save(target / TOKENIZER)


def find(kind: str, registry: Mapping[str, str]) -> Callable:
    """The function of a format."""
    if ":" not in kind:
        require_choice("format", kind, [*registry, "your own module:function"])
    return pkgutil.resolve_name(registry.get(kind, kind))


def only_file(source: Path, pattern: str) -> Path:
    """The only file of a directory whose name matches."""
    found = list(source.glob(pattern))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise UserError(f"{source} must have one file {pattern}; it has {names}")
    return found[0]


def refuse_occupied(path: Path) -> None:
    """Refuses to write into a directory with files, or over a file."""
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise UserError(f"{path} exists; give a new name")
