"""Metric sums between log lines, and the writers of these lines: flat dicts of JSON values."""

from pathlib import Path

from ml_collections import ConfigDict

from bertlab.checksums import Growing
from bertlab.errors import UserError, require
from bertlab.files import json_lines, write_bytes
from bertlab.run import MetricsFile, Run
from bertlab.train.dashboards import DASHBOARDS


class MetricSums:
    """Adds (weighted sum, weight) pairs in float64 and divides once."""

    def __init__(self, sums: dict[str, list[float]] | None = None):
        self.sums = {k: list(v) for k, v in (sums or {}).items()}

    def add(self, metrics: dict) -> None:
        """Adds one step's or batch's {name: (sum, weight)} of host numbers."""
        for name, (total, weight) in metrics.items():
            held = self.sums.setdefault(name, [0.0, 0.0])
            held[0] += float(total)
            held[1] += float(weight)

    def means(self, weights: dict[str, float]) -> dict[str, float]:
        """`loss` (the weighted total) and each metric's mean; a metric without weight is left out."""
        means = {name: total / weight for name, (total, weight) in self.sums.items() if weight}
        return {"loss": sum(w * means.get(f"{name}/loss", 0.0) for name, w in weights.items()), **means}


class JsonlWriter:
    """metrics.jsonl, one flat object per line.

    Drops the lines that a resumed run writes again: those after its checkpoint, and the final evaluation at the last step.

    Args:
        path: of the file.
        resumed_step: of the checkpoint; None for a new run.
        last_step: of the run.
        up_to: bytes that the file had when the checkpoint was saved; None if that is not known.

    Attributes:
        dropped: (step, split) of each line that will be written again.
        written: size and digest of the file.
    """

    def __init__(self, path: Path, resumed_step: int | None, last_step: int, up_to: int | None = None):
        self.dropped: set[tuple[int, str]] = set()
        stay, seen = [], 0
        if path.exists():
            try:
                for raw, line in MetricsFile(path).lines():
                    seen += len(raw)
                    # A process killed while writing leaves at most one unfinished line, the last.
                    if not raw.endswith(b"\n"):
                        continue
                    of = line["step"], line["split"]
                    if (up_to is None or seen <= up_to) and self._stays(*of, resumed_step, last_step):
                        stay.append(raw)
                        self.dropped.discard(of)
                    else:
                        self.dropped.add(of)
            except UserError:
                if resumed_step is not None and (up_to is None or seen < up_to):  # else nothing from there on stays
                    raise
            write_bytes(path, b"".join(stay))
        self.written = Growing(b"".join(stay))
        self._file = path.open("ab")

    @staticmethod
    def _stays(step: int, split: str, resumed_step: int | None, last_step: int) -> bool:
        return resumed_step is not None and step <= resumed_step and (step < last_step or split == "train")

    def write(self, line: dict) -> None:
        """Appends a line and flushes it."""
        raw = json_lines([line]).encode()
        self._file.write(raw)
        self._file.flush()
        self.written.add(raw)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorboardWriter:
    """TensorBoard event files; scalars are tagged split/metric."""

    def __init__(self, directory: Path, resumed_step: int | None):
        client = require("tensorboardX", "tensorboard", "config.writers=tensorboard")
        self._writer = client.SummaryWriter(str(directory), purge_step=None if resumed_step is None else resumed_step + 1)

    def write(self, line: dict) -> None:
        """Adds every number of the line."""
        for name, value in line.items():
            if isinstance(value, (int, float)) and name != "step":
                self._writer.add_scalar(f"{line['split']}/{name}", value, line["step"])

    def close(self) -> None:
        """Closes the event file."""
        self._writer.close()


def writer_names(names: str) -> set[str]:
    """The writers of `config.writers`; they always include jsonl, because reports read it."""
    return set(filter(None, names.split(","))) | {"jsonl"}


def open_writers(config: ConfigDict, workdir: Path, resumed_step: int | None, up_to: int | None = None) -> list:
    """The writers of `config.writers` for a run directory, `JsonlWriter` first; see there."""
    jsonl = JsonlWriter(Run(workdir).metrics.path, resumed_step, config.train.steps, up_to)
    names = writer_names(config.writers)
    writers = [jsonl]
    if "tensorboard" in names:
        writers.append(TensorboardWriter(Run(workdir).tensorboard, resumed_step))
    if asked := [name for name in DASHBOARDS if name in names]:
        writers += [DASHBOARDS[name](workdir, config.to_dict(), jsonl.dropped) for name in asked]
    return writers
