"""Averages predictions of several fine-tunings, as ULMFiT does with two directions (Howard and Ruder 2018, section 3.3)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertlab.errors import UserError
from bertlab.files import misfit, parse_json
from bertlab.run import Run
from bertlab.transfer.scoring import scores_of
from bertlab.transfer.tasks import find_task, load_task


def average(runs: Sequence[Path], split: str = "test") -> dict[str, dict[str, float]]:
    """Metrics of each run and of their average; class probabilities (or numbers) are averaged for each example.

    Args:
        runs: directories of finished fine-tunings on one task; models and tokenizers may differ.
        split: "valid" or "test".

    Returns:
        The task's metrics by run directory, and for the "average".

    Raises:
        UserError: a run has no predictions, the runs predict different examples, or the task has neither classes nor numbers.
    """
    if len(runs) < 2:
        raise UserError("give at least two fine-tuned runs to average")
    lines = {run: _read_predictions(run, split) for run in runs}
    config = Run(runs[0]).config.read()
    if wrong := misfit(config, {"task": str, "task_data": dict}):
        raise UserError(f"{Run(runs[0]).config}: {wrong}; give the --workdir of a `bertlab finetune`")
    if "+" in config["task"]:
        raise UserError(f"{runs[0]} was trained on several tasks ({config['task']}); average runs on one")
    task = find_task(config["task"])
    labels = load_task(task, config["task_data"]).labels
    first = lines[runs[0]]
    for run in runs[1:]:
        if [(line["id"], line["gold"]) for line in lines[run]] != [(line["id"], line["gold"]) for line in first]:
            raise UserError(f"{run} and {runs[0]} predict different examples; average runs with the same task and task_data")
    try:
        found = {str(run): scores_of(task, labels, lines[run]) for run in runs}
        together = [task.kind.average(of_example, labels) for of_example in zip(*(lines[run] for run in runs), strict=True)]
        return found | {"average": scores_of(task, labels, together)}
    except UserError:
        raise
    except (TypeError, ValueError, KeyError, IndexError) as error:
        names = ", ".join(str(Run(run).predictions(split)) for run in runs)
        reason = f"{type(error).__name__}: {error}"
        raise UserError(
            f"{names}: these are not predictions on {config['task']} ({reason}); run the fine-tunings again"
        ) from error


def _read_predictions(run: Path, split: str) -> list[dict[str, Any]]:
    file = Run(run).predictions(split)
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
