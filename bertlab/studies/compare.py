"""What differs between two runs: in their configs, in what they ran on, in the text they read, and in what came out."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from bertlab.config import flatten
from bertlab.errors import UserError
from bertlab.files import read_json
from bertlab.studies.study import COSTS
from bertlab.studies.text import MISSING, count_text, seconds_text


def compare(first: Path, second: Path, console: Console | None = None) -> None:
    """Prints the differences of two runs, pretraining and fine-tunings on the same task.

    Raises:
        UserError: one of them is no run.
    """
    console = console or Console()
    for path in (first, second):
        if not (path / "config.json").exists():
            raise UserError(f"{path} is not a run (there is no config.json); give two run directories")
    print_table(console, "Config", differences(first, second), (first, second), "the configs are the same")
    print_table(console, "Environment", environment(first, second), (first, second), "the environments are the same")
    frame = outcomes(first, second)
    shown = frame.assign(difference=frame["second"] - frame["first"])
    rows = [(name, *(text(name, row[c]) for c in ("first", "second", "difference"))) for name, row in shown.iterrows()]
    print_table(console, "Results", rows, (first, second), "neither has a result yet", ("second - first",))
    console.print(same_data(first, second), markup=False, highlight=False)
    console.print("Two runs say nothing about chance: compare variants over seeds with a study.", markup=False, highlight=False)


def differences(first: Path, second: Path) -> list[tuple[str, str, str]]:
    """(dotted name, value in the first, value in the second) of each config key that is not the same."""
    ours, theirs = (flatten(read_json(path / "config.json")) for path in (first, second))
    return [
        (key, *(_shown(config, key) for config in (ours, theirs))) for key in _keys(ours, theirs) if _differ(ours, theirs, key)
    ]


def environment(first: Path, second: Path) -> list[tuple[str, str, str]]:
    """The same of environment.json, but for the command."""
    files = [path / "environment.json" for path in (first, second)]
    ours, theirs = (flatten(read_json(file)) if file.exists() else {} for file in files)
    keys = [key for key in _keys(ours, theirs) if key != "command" and _differ(ours, theirs, key)]
    return [(key, _shown(ours, key), _shown(theirs, key)) for key in keys]


def outcomes(first: Path, second: Path) -> pd.DataFrame:
    """A row for each cost and metric: `first` and `second`, NaN where a run has none."""
    found = [_numbers(path) for path in (first, second)]
    frame = pd.DataFrame(found, index=["first", "second"], dtype=float).T
    return frame.dropna(how="all")


def same_data(first: Path, second: Path) -> str:
    """Whether both read the same batches in the same order, in a sentence."""
    results = [path / "result.json" for path in (first, second)]
    ours, theirs = (read_json(file) if file.exists() else {} for file in results)
    if not (ours.get("data_hash") and theirs.get("data_hash")):
        return "Whether they read the same batches is not known: a run that is not finished or read nothing has no data_hash."
    if ours["step"] != theirs["step"]:
        return f"They trained {ours['step']:,} and {theirs['step']:,} steps, so they did not read the same batches."
    same = ours["data_hash"] == theirs["data_hash"]
    return "They read the same batches in the same order." if same else "They did not read the same batches in the same order."


def print_table(
    console: Console,
    title: str,
    rows: Sequence[Sequence[str]],
    runs: Sequence[Path],
    nothing: str,
    more: Sequence[str] = (),
) -> None:
    """Prints (name, first, second, ...) rows, or that there are none."""
    if not rows:
        console.print(f"{title}: {nothing}.", markup=False, highlight=False)
        return
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", overflow="fold")
    for head in (*(str(run) for run in runs), *more):
        table.add_column(head, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table, markup=False, highlight=False)


def text(name: str, value: float) -> str:
    """A number as its column prints it."""
    if math.isnan(value):
        return MISSING
    if name in COSTS:
        return ("-" if value < 0 else "") + (seconds_text if name == "seconds" else count_text)(abs(value))
    return f"{value:.4f}"


def _numbers(path: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    if (path / "result.json").exists():
        result = read_json(path / "result.json")
        found |= {key: result[key] for key in COSTS if result.get(key) is not None}
        found |= {f"{split}/{metric}": v for split, metrics in result["metrics"].items() for metric, v in metrics.items()}
    for file in sorted(path.glob("finetune/*/result.json")):
        metrics = read_json(file)["metrics"].get("test", {})
        found |= {f"{file.parent.name}: test/{metric}": value for metric, value in metrics.items()}
    return found


def _keys(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys([*ours, *theirs]))


def _differ(ours: Mapping[str, Any], theirs: Mapping[str, Any], key: str) -> bool:
    return (key in ours) != (key in theirs) or ours.get(key) != theirs.get(key)


def _shown(config: Mapping[str, Any], key: str) -> str:
    return str(config[key]) if key in config else MISSING
