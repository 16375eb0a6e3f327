"""Metric sums between log lines, and the writers of these lines: flat dicts of JSON values."""

import json
from pathlib import Path

from bertlab.errors import UserError
from bertlab.files import write_text
from bertlab.run import MetricsFile, Run


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
    """

    def __init__(self, path: Path, resumed_step: int | None, last_step: int):
        if path.exists():
            MetricsFile(path).read()  # names a damaged line
            # A process killed while writing leaves at most one unfinished line, the last.
            whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
            write_text(path, "".join(line for line in whole if self._stays(json.loads(line), resumed_step, last_step)))
        self._file = path.open("a")

    @staticmethod
    def _stays(line: dict, resumed_step: int | None, last_step: int) -> bool:
        if resumed_step is None or line["step"] > resumed_step:
            return False
        return line["step"] < last_step or line["split"] == "train"

    def write(self, line: dict) -> None:
        """Appends a line and flushes it."""
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class TensorboardWriter:
    """TensorBoard event files; scalars are tagged split/metric."""

    def __init__(self, directory: Path, resumed_step: int | None):
        try:
            from tensorboardX import SummaryWriter
        except ModuleNotFoundError:
            raise UserError(
                "config.writers names tensorboard; install tensorboardX for it: pip install 'bertlab[tensorboard]'"
            ) from None
        self._writer = SummaryWriter(str(directory), purge_step=None if resumed_step is None else resumed_step + 1)

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


def open_writers(names: str, workdir: Path, resumed_step: int | None, last_step: int) -> list:
    """The writers of `config.writers` for a run directory; `resumed_step` is None for a new run."""
    writers = [JsonlWriter(Run(workdir).metrics.path, resumed_step, last_step)]
    if "tensorboard" in writer_names(names):
        writers.append(TensorboardWriter(Run(workdir).tensorboard, resumed_step))
    return writers
