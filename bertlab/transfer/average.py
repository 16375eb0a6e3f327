"""Averages predictions of several fine-tunings: ULMFiT's two directions (Howard and Ruder 2018, section 3.3), ensembles."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from bertlab.errors import UserError, reason_of, some
from bertlab.files import misfit, parse_json
from bertlab.run import Run, TextFile
from bertlab.train import sources
from bertlab.transfer.inputs import transfer_of
from bertlab.transfer.kinds.base import Line
from bertlab.transfer.scoring import scores_of
from bertlab.transfer.tasks import find_task, load_task
from bertlab.transfer.tasks.base import order_of


def average(runs: Sequence[Path], split: str = "test", own_task: str = "") -> dict[str, dict[str, float]]:
    """Metrics of each run and of their average, which has the mean of what the runs say of each example.

    This is the mean probability of each class, choice, tag of a word or slice of a context, or the mean of numbers
    (`Kind.average` of the task's kind). An average of questions without answers has a threshold of its own (`Kind.finish`).

    Args:
        runs: directories of finished fine-tunings on one task; models and tokenizers may differ.
        split: "valid" or "test".
        own_task: the Python file of the runs' task, if it is your own. A config.json is data, so its word does not run a file.

    Returns:
        The task's metrics by run directory, and for the "average".

    Raises:
        UserError: a run is given twice, it has no predictions or they lack what is averaged, the runs predict different
            examples, or predictions of the task's kind have no average.
    """
    if len(runs) < 2:
        raise UserError("give at least two fine-tuned runs to average")
    for one, other in itertools.combinations(runs, 2):
        if Path(one).resolve() == Path(other).resolve():
            raise UserError(f"{other} is the same run as {one} and would count twice; give each run once")
    lines = _read_predictions(runs, split)
    config = Run(runs[0]).config.read()
    if wrong := misfit(config, {"task": str, "task_data": dict}):
        raise UserError(f"{Run(runs[0]).config}: {wrong}; give the --workdir of a `bertlab finetune`")
    if "+" in config["task"]:
        raise UserError(f"{runs[0]} was trained on several tasks ({config['task']}); average runs on one")
    name = config["task"]
    if name.endswith(".py") and Path(name).expanduser().resolve() != Path(own_task).expanduser().resolve():
        raise UserError(f"{Run(runs[0]).config} names the task {name}, a Python file; give it, if you trust it: --task={name}")
    task = find_task(name)
    data = load_task(task, config["task_data"])
    labels, of_splits = data.labels, sources.of_tasks({task.name: (task, data)})
    now = {name: value for name, value in of_splits.items() if not name.endswith("/train")}  # runs may have trained on less
    for run in runs:
        if what := sources.changed(Run(run).result.get({}).get("sources", {}), now):
            raise UserError(f"{what} changed since {run} predicted them; put the same back, or fine-tune again")

    def together(lines: dict[Path, list[Line]]) -> list[Line]:
        alike = [_in_order(lines[run], _order(run, labels), task.kind.of_words) for run in runs]
        return [task.kind.average(of_example, labels) for of_example in zip(*alike, strict=True)]

    has_valid = all(Run(run).predictions("valid").exists() for run in runs)
    names = ", ".join(str(Run(run).predictions(split)) for run in runs)
    try:
        valid = together(_read_predictions(runs, "valid")) if has_valid else None
        averaged, _ = task.kind.finish(together(lines), valid, ConfigDict(transfer_of(config)))
        found = {str(run): scores_of(task, data.names, lines[run], data.scheme) for run in runs}
        return found | {"average": scores_of(task, data.names, averaged, data.scheme)}
    except UserError as error:
        raise UserError(str(error) if any(str(run) in str(error) for run in runs) else f"{names}: {error}") from error
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise UserError(
            f"{names}: these are not predictions on {config['task']} ({reason_of(error)}); run the fine-tunings again"
        ) from error


def _read_predictions(runs: Sequence[Path], split: str) -> dict[Path, list[Line]]:
    """The lines of each run, about the same examples."""
    lines = {}
    for run in runs:
        Run(run).require_whole()
        lines[run] = _read_lines(Run(run).predictions(split))
        about = [[(line["id"], line["gold"]) for line in lines[of]] for of in (run, runs[0])]
        if about[0] != about[1]:
            raise UserError(f"{run} and {runs[0]} predict different examples; average runs with the same task and task_data")
    return lines


def _order(run: Path, labels: Sequence[str]) -> list[int]:
    """The run's number of each class; of a run without classes.json, from an earlier version, the class's own number.

    Raises:
        UserError: the run has other classes.
    """
    (theirs,) = Run(run).classes.get({"": labels}).values()
    if (order := order_of(theirs, labels)) is None:
        raise UserError(f"{run} has the classes {some(theirs)}, not {some(labels)}; average runs with the same classes")
    return order


def _in_order(lines: list[Line], order: list[int], of_words: bool) -> list[Line]:
    """The lines with the probabilities of their classes in another order."""
    if order == sorted(order):
        return lines
    taken = lambda shares: [shares[number] for number in order]
    return [
        {**line, "probabilities": [*map(taken, line["probabilities"])] if of_words else taken(line["probabilities"])}
        for line in lines
    ]


def _read_lines(file: TextFile) -> list[Line]:
    if not file.exists():
        raise UserError(f"{file} is missing; give the --workdir of a finished `bertlab finetune`, and valid or test")
    lines = []
    for number, line in enumerate(file.read().split("\n"), 1):
        try:
            lines += [parse_json(line)] if line else []
        except ValueError as error:
            raise UserError(f"{file}:{number}: not valid JSON ({error}); run the fine-tuning again") from None
        if line and (wrong := misfit(lines[-1], {"id": (str, int), "gold": object, "predicted": object})):
            raise UserError(f"{file}:{number}: {wrong}; run the fine-tuning again")
    return lines
