"""`bertlab compare A B`: what differs between two runs in config, environment, data and results."""

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from ml_collections import ConfigDict
from rich import box
from rich.table import Table

from bertlab.config import flatten
from bertlab.console import Console
from bertlab.errors import UserError
from bertlab.run import Run
from bertlab.studies.measurements import Measure, Results, discards_pretraining, load_run
from bertlab.studies.study import COSTS, RunSpec
from bertlab.studies.text import MISSING, count_text, number, seconds_text
from bertlab.studies.worker import existing_run, pretrained
from bertlab.train.phases import weights_of

ABSENT = object()  # the value of a key that a run lacks; None is one that a key can have
PRETRAINING = ""
PRETRAINED = ("pretrain", "evaluate", "floor")  # stages of the long table that are about a pretraining


def compare(first: Path, second: Path, console: Console | None = None) -> dict[str, Any]:
    """Prints the differences of two runs: in pretraining, and in adaptations and fine-tunings to tasks that both have.

    If a run of a study uses the pretraining of another run, that pretraining is compared.

    Returns:
        {"config": {name: [first, second]}, "environment": the same, "results": {name: {"first", "second", "difference"}},
        "notes": sentences}. Values are those of the files, None for a key that a run lacks. A difference is NaN if the numbers
        are not comparable.

    Raises:
        UserError: One of them is not a run.
    """
    console = console or Console()
    say = functools.partial(console.print, markup=False, highlight=False)
    ours, theirs = (stages(path) for path in (first, second))
    for path, found in ((first, ours), (second, theirs)):
        if from_random(path):
            say(f"{path} starts from random values, with the model shape of {found[PRETRAINING]}.")
        elif found[PRETRAINING] != path:
            say(f"{path} uses the pretraining of {found[PRETRAINING]}.")
    configs, environments = differences(first, second), environment(first, second)
    print_table(console, "Config", configs, (first, second), "the configs are the same")
    print_table(console, "Environment", environments, (first, second), "the environments are the same")
    frame = outcomes(first, second)
    shown = frame.assign(difference=frame["second"] - frame["first"])
    totals = other_totals(first, second)
    shown.loc[shown.index.isin(totals), "difference"] = math.nan
    rows = [(name, *(text(name, row[c]) for c in ("first", "second", "difference"))) for name, row in shown.iterrows()]
    print_table(console, "Results", rows, (first, second), "neither has a result yet", ("second - first",))
    if not shown.index.intersection(totals).empty:
        say("Total losses with different objectives or weights are not comparable, so they are not subtracted.")
    notes = [*other_texts(first, second), *same_data(first, second)]
    for sentence in notes:
        say(sentence)
    say("Two runs cannot tell a difference from chance; run a study with seeds for that.")
    by_name = lambda rows: {name: [None if value is ABSENT else value for value in values] for name, *values in rows}
    found = {"config": by_name(configs), "environment": by_name(environments), "results": shown.to_dict("index")}
    return {**found, "notes": notes}


def stages(path: Path) -> dict[str, Path]:
    """The parts of a run: "" for pretraining, "adapt.TASK" and "finetune.TASK" -> directory.

    Raises:
        UserError: `path` is not a run, or its pretraining is not where its job.json says.
    """
    found, adapted = {PRETRAINING: path}, path
    given = Run(path)
    if not given.config.exists():
        if not given.job.exists():
            raise UserError(f"{path} is not a run (it has neither config.json nor job.json); give two run directories")
        run = RunSpec(**given.job.read()["run"])
        if run.averages:
            raise UserError(
                f"{path} averages the predictions of {', '.join(run.averages)} and was not trained; give two trained runs"
            )
        found[PRETRAINING] = pretrained(run, path)
        adapted = path.parent / run.shares.get("adapt", path.name)
        if not Run(found[PRETRAINING]).config.exists():
            raise UserError(
                f"{path} uses the pretraining in {found[PRETRAINING]}, but it has no config.json: not started, or moved;"
                " finish it, or put it back"
            )
    for kind, run in (("adapt", Run(adapted)), ("finetune", given)):
        found |= {
            f"{kind}.{task}": run.stage(kind, task).directory
            for task in run.tasks(kind)
            if run.stage(kind, task).config.exists()
        }
    return found


def from_random(path: Path) -> bool:
    """Whether all fine-tunings of a study's run start from random values; then no pretraining counts."""
    job = Run(path).job.get()
    return job is not None and discards_pretraining(Run(path), job["run"])


def differences(first: Path, second: Path) -> list[tuple[str, Any, Any]]:
    """(dotted name, value in the first, value in the second) of each config key that differs; `ABSENT` where it is not there.

    Keys of an adaptation or a fine-tuning are named "finetune.package: optimizer.learning_rate".
    """
    rows = []
    for stage, ours, theirs in _pairs(first, second):
        configs = [flatten(Run(directory).config.read()) for directory in (ours, theirs)]
        # `init_from` names the pretraining or the adaptation, and those are compared themselves.
        keys = [key for key in _differing(*configs) if stage == PRETRAINING or key != "init_from"]
        rows += [(f"{stage}: {key}" if stage else key, *(config.get(key, ABSENT) for config in configs)) for key in keys]
    return rows


def environment(first: Path, second: Path) -> list[tuple[str, Any, Any]]:
    """As `differences`, for environment.json without the command; of later stages, only what does not differ in pretraining."""
    rows, before = [], []
    for stage, ours, theirs in _pairs(first, second):
        found = [flatten(Run(directory).environment.get({})) for directory in (ours, theirs)]
        entries = [(key, *(of.get(key, ABSENT) for of in found)) for key in _differing(*found) if key != "command"]
        rows += [(f"{stage}: {key}" if stage else key, *values) for key, *values in entries if (key, *values) not in before]
        before += entries if stage == PRETRAINING else []
    return rows


def outcomes(first: Path, second: Path) -> pd.DataFrame:
    """A row for each cost and metric of the long table (`bertlab.results`): `first` and `second`, NaN for a run without it.

    Rows have the table's names (`Measure.name`), with ", valid" if they are of that split; of fine-tunings only test is shown.
    """
    frame = pd.DataFrame([_numbers(path) for path in (first, second)], index=["first", "second"], dtype=float).T
    return frame.dropna(how="all")


def other_totals(first: Path, second: Path) -> list[str]:
    """The names of the total losses that the two runs sum over different objectives or weights."""
    ours, theirs = (_weights(Run(stages(path)[PRETRAINING]).config.read()) for path in (first, second))
    return [] if ours == theirs else ["loss, valid", "loss"]


def other_texts(first: Path, second: Path) -> list[str]:
    """A sentence for each number that the two runs measured on different texts."""
    ours, theirs = (
        {
            _name(Measure("finetune" if row.metric == "scores" else "evaluate", row.task, "test", row.metric)): row.text_hash
            for of in _results(path)
            for row in of.text_hashes.itertuples()
        }
        for path in (first, second)
    )
    other = [name for name in ours if ours[name] != theirs.get(name, ours[name])]
    return [f"{name} was measured on different texts in the two runs, so it is not comparable." for name in other]


def same_data(first: Path, second: Path) -> list[str]:
    """A sentence for each common stage: whether both read the same batches in the same order."""
    discarded = PRETRAINING if from_random(first) or from_random(second) else None
    return [_same_batches(stage, *both) for stage, *both in _pairs(first, second) if stage != discarded]


def print_table(
    console: Console,
    title: str,
    rows: Sequence[Sequence[Any]],
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
        table.add_row(*(MISSING if value is ABSENT else str(value) for value in row))
    console.print(table, markup=False, highlight=False)


def text(name: str, value: float) -> str:
    """A number as its row prints it."""
    metric = name.removeprefix("transfer/")
    if metric in COSTS and not math.isnan(value):
        return ("-" if value < 0 else "") + (seconds_text if metric == "seconds" else count_text)(abs(value))
    return number(value, 4)


def _pairs(first: Path, second: Path) -> list[tuple[str, Path, Path]]:
    """(Stage, directory of the first, of the second) of the stages that both have."""
    ours, theirs = stages(first), stages(second)
    return [(stage, ours[stage], theirs[stage]) for stage in ours if stage in theirs]


def _results(path: Path) -> list[Results]:
    """A run's results; before them those of the run that it stands on, whose costs are in the run's own."""
    pretraining = stages(path)[PRETRAINING]
    job = Run(path).job.get()
    stands_on = job is not None and existing_run(job["run"]["config"]) == pretraining and not from_random(path)
    return [*([load_run(pretraining)] if stands_on else []), load_run(path)]


def _numbers(path: Path) -> dict[str, float]:
    found = {}
    *standing, own = _results(path)
    for results in standing:
        found |= {measure: results.values(measure).iloc[0] for measure in results.measures() if measure.stage in PRETRAINED}
    found |= {measure: own.values(measure).iloc[0] for measure in own.measures()}
    shown = lambda of: of.stage in PRETRAINED or of.is_cost or (of.stage == "finetune" and of.split == "test")
    return {_name(measure): value for measure, value in found.items() if shown(measure)}


def _name(measure: Measure) -> str:
    return f"{measure.name}, {measure.split}" if measure.split == "valid" else measure.name


def _weights(config: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Objective -> its first and last weight in the total loss, if it is ever in it."""
    weights = {name: weights_of(ConfigDict(entry)) for name, entry in config.get("objectives", {}).items()}
    return {name: of for name, of in weights.items() if any(of)}


def _same_batches(stage: str, first: Path, second: Path) -> str:
    where = f"{stage or 'Pretraining'}: "
    ours, theirs = (Run(directory).result.get({}) for directory in (first, second))
    if not (ours.get("data_hash") and theirs.get("data_hash")):
        return f"{where}it is not known whether they read the same batches; unfinished and untrained runs have no data_hash."
    if ours["step"] != theirs["step"]:
        return f"{where}they trained {ours['step']:,} and {theirs['step']:,} steps, so they did not read the same batches."
    same = ours["data_hash"] == theirs["data_hash"]
    return f"{where}they {'read' if same else 'did not read'} the same batches in the same order."


def _differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    keys = dict.fromkeys([*ours, *theirs])
    return [key for key in keys if (key in ours) != (key in theirs) or ours.get(key) != theirs.get(key)]
