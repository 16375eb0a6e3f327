"""The files of a run's directory."""

import contextlib
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import filelock
import jax
from ml_collections import ConfigDict

from bertlab.config.load import flatten
from bertlab.errors import UserError
from bertlab.files import json_line, read_json, write_json

MAY_CHANGE = re.compile(
    r"mesh\..*|evaluate\..*|profile|writers|data\.(directory|workers|corpus|tokenizer\.path)"
    r"|train\.(log_every|checkpoint_every|keep|keep_checkpoints)|model\.(remat|scan_layers|attention)"
)
"""Keys that a resumed run may change: they change results by no more than rounding, or the hash of
the data would show it."""

PACKAGES = ("bertlab", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers")


class RunDirectory:
    """A run's directory, `path`.

    config.json        the whole config
    environment.json   versions, devices, commit
    data.json          what was read: hash of the batches, statistics of the corpus
    metrics.jsonl      a line for each log step and evaluation
    checkpoints/STEP/  Orbax: arrays of the state, and the totals up to then
    tokenizer/
    result.json        written last: it marks a finished run
    """

    def __init__(self, path: str | Path):
        if "://" in str(path):
            raise UserError(f"{path}: a run needs a folder of a file system; mount the bucket")
        self.path = Path(path).expanduser()
        self.checkpoints, self.tokenizer = self.path / "checkpoints", self.path / "tokenizer"

    def __str__(self) -> str:
        return str(self.path)

    def steps(self) -> list[int]:
        """The steps of the complete checkpoints, in order."""
        names = [path.name for path in self.checkpoints.glob("*")]
        return sorted(int(name) for name in names if name.isdecimal())

    def lock(self) -> contextlib.AbstractContextManager:
        """A lock that process 0 of the run that trains here holds."""
        self.path.mkdir(parents=True, exist_ok=True)
        if jax.process_index() > 0:
            return contextlib.nullcontext()
        try:
            return filelock.FileLock(self.path / ".lock", timeout=0).acquire()
        except filelock.Timeout:
            raise UserError(f"another process trains in {self}: give another --workdir") from None

    def read(self, name: str, default: Any = None) -> Any:
        """The value of NAME.json; the default if there is no such file."""
        path = self.path / f"{name}.json"
        return read_json(path) if path.exists() else default

    def write(self, name: str, value: Any) -> None:
        write_json(self.path / f"{name}.json", value)

    def config(self) -> dict[str, Any]:
        """The config, nested."""
        if (config := self.read("config")) is None:
            raise UserError(f"{self} has no config.json; give the --workdir of a `bertlab train`")
        return config

    def require_config(self, config: ConfigDict, but: Iterable[str] = ()) -> None:
        """Refuses a config that differs from the run's in keys other than `but`."""
        before, now = flatten(self.config()), flatten(config.to_dict())
        for key in sorted((before.keys() | now.keys()).difference(but)):
            is_same = json_line(before.get(key)) == json_line(now.get(key))
            if key not in before or key not in now:  # added or removed since: off if it is empty
                is_same |= not before.get(key) and not now.get(key)
            if not is_same and not MAY_CHANGE.fullmatch(key):
                raise UserError(
                    f"{self} already holds a different run: config.{key} is"
                    f" {before.get(key)!r} there and {now.get(key)!r} here; give another --workdir"
                )

    def require_data(self, data_hash: Sequence[str]) -> None:
        """Refuses batches that differ from the run's."""
        if self.read("data")["data_hash"] != data_hash:
            raise UserError(
                f"{self} holds a run on different data: the text or the code that makes rows has"
                " changed; give another --workdir"
            )

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, without one that a killed process left unfinished."""
        path = self.path / "metrics.jsonl"
        *lines, _ = path.read_text(encoding="utf-8").split("\n") if path.exists() else [""]
        return [json.loads(line) for line in lines]

    def add_metrics(self, line: dict[str, Any]) -> None:
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json_line(line))

    def cut_metrics(self, step: int, last: int) -> None:
        """Drops what a run resumed from `step` writes again: later lines, evaluations at `last`."""
        kept = [line for line in self.metrics() if line["step"] <= step]
        kept = [line for line in kept if line["step"] < last or line["split"] == "train"]
        text = "".join(map(json_line, kept))
        (self.path / "metrics.jsonl").write_text(text, encoding="utf-8")


def describe_environment() -> dict[str, Any]:
    """Versions, devices, commit and command of this process, for environment.json."""

    def git(*arguments: str) -> str:
        if shutil.which("git") is None:
            return ""
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    packages = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # not installed by pip
            packages[name] = importlib.metadata.version(name)
    return {
        "python": platform.python_version(),
        "packages": packages,
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "backend": jax.default_backend(),
        "devices": [device.device_kind for device in jax.devices()],
        "processes": jax.process_count(),
        "git_commit": git("rev-parse", "HEAD"),
        "git_changed_files": git("status", "--short", "-uno").splitlines(),
        "command": " ".join(sys.argv),
    }
