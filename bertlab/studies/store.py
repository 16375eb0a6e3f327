"""A store of finished pretrainings, so that a study begins with those that another study has made.

    bertlab sweep --study=... --workdir=runs/table5 --store=runs/store

A store is a folder with one run directory for each config and text. A sweep adds every pretraining that it finishes, and takes
those that are there instead of training them. A taken run has the result, the costs and the environment of the one that trained
it. Checkpoints are hard links where the file system has them, so they take no more room.
"""

import functools
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from bertlab.config import flatten
from bertlab.data.prepare import prepare
from bertlab.files import temporary_folder
from bertlab.keys import BY_NAME
from bertlab.run import Run
from bertlab.studies.checks import load_checked
from bertlab.studies.study import RunSpec
from bertlab.studies.worker import Stage
from bertlab.train.keep import kept_steps

# What belongs to a pretraining, in the order in which it is put into a run's directory: a run that is killed in between has a
# config and no result, so it trains.
_FILES = ("config", "environment", "data", "costs", "metrics", "evaluation", "floor", "tokenizer", "checkpoints", "measured")
_FILES += ("result",)


class Store:
    """Finished pretrainings by config and text.

    Args:
        folder: Of the store; it need not exist.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)
        self._fingerprint = functools.cache(lambda data: prepare(json.loads(data)).fingerprint)

    def take(self, run: RunSpec, directory: Path) -> bool:
        """Copies the pretraining of a run to its directory if the store has it and nothing has begun there; whether it did.

        A stored pretraining that did not keep all checkpoints that the run asks for is left.
        """
        config = self._config(run)
        if config is None or Run(directory).begun():
            return False
        stored, wanted = Run(self._place(config)), kept_steps(config.train.keep, config.train.steps)
        if not Stage("pretrain", "", stored.directory).finished or not set(wanted) <= set(stored.steps()):
            return False
        directory.mkdir(parents=True, exist_ok=True)
        with temporary_folder(directory, "taken") as folder:
            for source, target in zip(_copy(stored, folder), _paths(Run(directory)), strict=True):
                if source.exists():
                    os.replace(source, target)
        return True

    def put(self, run: RunSpec, directory: Path) -> bool:
        """Adds the finished pretraining of a run, also in place of one with some of its checkpoints only; whether it did."""
        config, trained = self._config(run), Run(directory)
        if config is None or not Stage("pretrain", "", directory).finished or not trained.steps():
            return False
        place = self._place(config)
        if not set(trained.steps()) > set(Run(place).steps()):
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        with temporary_folder(self.folder, "new") as folder:
            _copy(trained, folder / "run")
            if place.exists():
                os.replace(place, folder / "old")
            os.replace(folder / "run", place)
        return True

    def _config(self, run: RunSpec) -> Any:
        """The config of the pretraining that a run does itself; None if it has none that another study could have too."""
        if "pretrain" in run.shares or run.averages or run.config.startswith("run:"):
            return None
        config = load_checked(run.config, dict(run.overrides))
        return config if config.train.steps and not config.init_from else None

    def _place(self, config: Any) -> Path:
        """The folder of a config and a text; what may differ in a run that is resumed may differ here too."""
        free = lambda key: key in BY_NAME and BY_NAME[key].on_resume and not key.startswith("evaluate.")
        deciding = {key: value for key, value in flatten(config).items() if not free(key) and key != "data.corpus"}
        text = self._fingerprint(json.dumps(config.data.to_dict(), sort_keys=True))
        content = json.dumps([deciding, text], sort_keys=True, default=list)
        return self.folder / hashlib.blake2b(content.encode(), digest_size=12).hexdigest()


def _paths(run: Run) -> list[Path]:
    """The files and folders of a pretraining that there may be."""
    return [getattr(of, "path", of) for of in (getattr(run, name) for name in _FILES)]


def _copy(run: Run, folder: Path) -> list[Path]:
    """Copies a pretraining to a folder; returns the paths there."""
    folder.mkdir(exist_ok=True)
    paths = _paths(Run(folder))
    for source, target in zip(_paths(run), paths, strict=True):
        if source.is_dir():
            shutil.copytree(source, target, copy_function=_link)
        elif source.exists():
            shutil.copyfile(source, target)
    return paths


def _link(source: str, target: str) -> None:
    """Links a file of a checkpoint, which is never written again; copies it where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
