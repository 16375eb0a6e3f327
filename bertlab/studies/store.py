"""A store of finished pretrainings, so that studies can reuse each other's.

    bertlab sweep --study=... --workdir=runs/table5 --store=runs/store

A store is a folder with one run directory for each pretraining. Its name is a digest of the settings that are not at their
defaults, the text and bertlab's version; for an objective from outside also of its code
(`bertlab.train.code`). A sweep adds
every pretraining that it finishes, and reuses those that are there instead of training them. A reused run has the result, the
costs and the environment of the run that trained it. Checkpoints are hard links where the file system has them, so they take no
more room.

A store may be a URL (`gs://BUCKET/PATH`, `s3://BUCKET/PATH`): each pretraining is then a snapshot there (`bertlab.mirror`), and
is copied here to be used.

After you change bertlab's own code, use a new store.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bertlab import checksums
from bertlab.config import not_default
from bertlab.data.prepare import prepare
from bertlab.errors import UserError
from bertlab.files import TAKEN, link_or_copy, move, temporary_folder
from bertlab.keys import BY_NAME
from bertlab.mirror import Mirror
from bertlab.remote import Bucket, is_url
from bertlab.run import Run
from bertlab.studies.checks import load_checked
from bertlab.studies.study import RunSpec
from bertlab.studies.worker import Stage
from bertlab.train.code import code_of, other_code
from bertlab.train.keep import LOG, kept_steps
from bertlab.train.schedules import warmup_steps

# What belongs to a pretraining, in the order in which it is put into a run's directory. A run that is killed in between has a
# config and no result, so it trains.
_FILES = ("config", "environment", "data", "costs", "metrics", "evaluation", "floor", "tokenizer", "checkpoints", "measured")
_FILES += ("files", "result")


class Store:
    """Finished pretrainings by config, text and code.

    Args:
        folder: Of the store, which is made, or its URL.

    Raises:
        UserError: The folder cannot be made or written, or the URL leads nowhere.
        StoreFailed: The object store cannot be reached.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder: Path | str = str(folder).rstrip("/") if is_url(folder) else Path(folder)
        self._fingerprint = functools.cache(lambda data: prepare(json.loads(data)).fingerprint)
        if isinstance(self.folder, str):
            bucket = Bucket(self.folder)
            bucket.replace("writable", b"")
            bucket.remove("writable")
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with temporary_folder(self.folder, "new"):
                pass
        except OSError as error:
            raise UserError(f"--store={folder}: {error.strerror}; give a folder that can be written") from None

    def begin(self, run: RunSpec, directory: Path) -> bool:
        """Copies the pretraining of a run that has not begun to its directory; returns whether the store has it.

        If not, `put` knows later from a file in the directory what the run began with. A stored pretraining without the steps
        that `train.keep` names, its last one included, is left; of "log" it may lack some. So is one whose last is damaged.
        """
        config = self._config(run)
        if config is None or Run(directory).begun():
            return False
        digest = self._digest(config)
        directory.mkdir(parents=True, exist_ok=True)
        Run(directory).store_key.write(digest + "\n")
        with self._here(digest, directory.parent) as stored, temporary_folder(directory.parent, "taken") as folder:
            if not _finished(stored) or _deciding(stored.config.read()) != _deciding(config):
                return False
            if other_code(stored, code_of(config)):  # its worker began after the file was changed
                return False
            last = stored.result.read()["step"] if config.train.budget else config.train.steps
            named = ",".join(part for part in config.train.keep.split(",") if part.strip() != LOG)
            if not {last, *kept_steps(named, last)} <= set(stored.steps()):
                return False
            if checksums.find_damage(stored.checkpoints / str(last)):
                return False
            for source, target in zip(_copy(stored, folder), _paths(Run(directory)), strict=True):
                if source.exists():
                    move(source, target)
        return True

    def put(self, directory: Path) -> bool:
        """Adds the finished pretraining in a directory, or checkpoints that the store's has not; returns whether it did.

        One whose config was completed by other defaults than the store's is left.
        """
        trained = Run(directory)
        if not trained.store_key.exists() or not _finished(trained) or not trained.steps():
            return False
        key = trained.store_key.read().strip()
        if isinstance(self.folder, str):
            return self._put_there(key, trained)
        stored = Run(self.folder / key)
        if _finished(stored) and set(trained.steps()) <= set(stored.steps()):
            return False
        if stored.config.exists() and _deciding(stored.config.read()) != _deciding(trained.config.read()):
            return False
        with temporary_folder(self.folder, "new") as folder:
            copy = Run(folder / "run")
            _copy(trained, copy.directory)
            try:
                move(copy.directory, stored.directory)
            except OSError as error:
                if error.errno not in TAKEN:
                    raise
                # The same training is there, so what it lacks can be added.
                for step in set(copy.steps()) - set(stored.steps()) if stored.steps() else ():
                    move(copy.checkpoints / str(step), stored.checkpoints / str(step))
                for source, target in zip(_paths(copy), _paths(stored), strict=True):
                    if source.is_file() or (source.exists() and not target.exists()):
                        move(source, target)
        return True

    @contextlib.contextmanager
    def _here(self, digest: str, place: Path) -> Iterator[Run]:
        """A stored pretraining as a directory of this machine: of another store, a copy in a temporary folder."""
        if isinstance(self.folder, Path):
            yield Run(self.folder / digest)
            return
        with temporary_folder(place, "fetched") as folder:
            Mirror(f"{self.folder}/{digest}").take(folder / digest)
            yield Run(folder / digest)

    def _put_there(self, key: str, trained: Run) -> bool:
        """As `put`, to a URL: the stored one is brought here, completed and saved again, unless it has all there is."""
        mirror = Mirror(f"{self.folder}/{key}")
        found = mirror.newest()
        steps = {name.split("/")[1] for name in (found.folders if found else ()) if name.startswith("checkpoints/")}
        if found and {Run.result.name, Run.measured.name} <= found.files.keys() and {*map(str, trained.steps())} <= steps:
            return False
        with temporary_folder(trained.directory.parent, "fetched") as folder:
            mirror.begin(folder / key)
            if not Store(folder).put(trained.directory):
                return False
            mirror.save(folder / key, status=0)
            mirror.tidy()
        return True

    def _config(self, run: RunSpec) -> Any:
        """The config of the pretraining that a run does itself; None if it has none that another study could have too."""
        if "pretrain" in run.shares or run.averages or run.config.startswith("run:"):
            return None
        config = load_checked(run.config, dict(run.overrides))
        config.optimizer.warmup_steps = warmup_steps(config.optimizer, config.train.steps)  # as a run saves it
        return config if config.train.steps and not config.init_from else None

    def _digest(self, config: Any) -> str:
        """Of all that decides a pretraining."""
        text = self._fingerprint(json.dumps(config.data.to_dict(), sort_keys=True))
        content = json.dumps(
            [importlib.metadata.version("bertlab"), _deciding(config), text, *code_of(config).values()], sort_keys=True
        )
        return hashlib.blake2b(content.encode(), digest_size=12).hexdigest()


def _deciding(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide a pretraining and are not at their defaults.

    What may differ in a resumed run may differ, but for the number of micro-batches: each draws its own dropout.
    """
    free = lambda key: key in BY_NAME and BY_NAME[key].on_resume and not key.startswith(("evaluate.", "train.micro_batches"))
    return {key: value for key, value in not_default(config).items() if not free(key) and key != "data.corpus"}


def _finished(run: Run) -> bool:
    return Stage("pretrain", "", run.directory).finished


def _paths(run: Run) -> list[Path]:
    """The files and folders of a pretraining that there may be."""
    return [getattr(of, "path", of) for of in (getattr(run, name) for name in _FILES)]


def _copy(run: Run, folder: Path) -> list[Path]:
    """Copies a pretraining to a folder; returns the paths there. Only checkpoints are linked: they are never written again."""
    run.require_whole()
    folder.mkdir(exist_ok=True)
    paths = _paths(Run(folder))
    for source, target in zip(_paths(run), paths, strict=True):
        if source.is_dir():
            shutil.copytree(source, target, copy_function=link_or_copy if source == run.checkpoints else shutil.copy2)
        elif source.exists():
            shutil.copyfile(source, target)
    if run.files.exists():
        Run(folder).list_files()  # not all files of a run are stored
    return paths
