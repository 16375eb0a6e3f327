"""The files of a run's directory."""

import contextlib
import json
import re
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
        self.path = Path(path).expanduser()

    def __str__(self) -> str:
        return str(self.path)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer"

    def steps(self) -> list[int]:
        """The steps of the complete checkpoints, in order."""
        names = [path.name for path in self.checkpoints.glob("*")]
        return sorted(int(name) for name in names if name.isdecimal())

    def lock(self) -> contextlib.AbstractContextManager:
        """A lock that process 0 of the run that trains here holds."""
        self.path.mkdir(parents=True, exist_ok=True)
        if jax.process_index() > 0:
            return contextlib.nullcontext()
        lock = filelock.FileLock(self.path / ".lock", timeout=0)
        try:
            return lock.acquire()
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
        """Drops the lines that a run resumed from `step` writes again: later ones, and the
        evaluations at the last step."""
        if jax.process_index() > 0:
            return
        kept = [line for line in self.metrics() if line["step"] <= step]
        kept = [line for line in kept if line["step"] < last or line["split"] == "train"]
        text = "".join(map(json_line, kept))
        (self.path / "metrics.jsonl").write_text(text, encoding="utf-8")
