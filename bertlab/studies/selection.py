"""What was selected on `valid`, and what it scores on `test`, where nothing was selected by.

A study's `select` names axes (a learning rate, a number of epochs) whose best label is chosen for each variant and task by the
mean over seeds of the `valid` score, among those of which fewest runs have none (failed, or not finished); the `test` score of
that label's runs is then reported, and of no other.
"""

import math

import pandas as pd
import scipy.stats

from bertlab.studies.results import Results, primary_metric


def selections(results: Results) -> pd.DataFrame:
    """One row for each variant and downstream task.

    Returns:
        `variant` (labels but for seeds and `select`), `task`, `metric`, `chosen` (labels of `select`, "" without), `valid`
        (mean), `test` (mean), `interval` (half-width of Student's 95 % interval over seeds; NaN for one), `sd` (ddof 1), `best`
        (highest test score of a seed), `seeds` (runs of the chosen that have a score), `failed` (runs that did
        before they had one, chosen or not).
    """
    select = [axis for axis in results.axes if axis in results.study.get("select", ())]
    kept = [axis for axis in results.axes if axis not in select and axis not in results.seed_axes]
    rows = []
    for labels, runs in _groups(results.runs, kept):
        for task in results.study["downstream"]:
            column = primary_metric(results, task)
            if column is None or column not in runs or selecting(column) not in runs:
                continue
            choices = {chosen: of for chosen, of in _groups(runs, select) if of[selecting(column)].notna().any()}
            if not choices:
                continue
            scores = {chosen: of[selecting(column)] for chosen, of in choices.items()}
            chosen = max(choices, key=lambda label: (-scores[label].isna().sum(), scores[label].mean()))
            scored = choices[chosen].dropna(subset=[column])
            rows.append(
                {
                    "variant": ", ".join(labels) or results.study["name"],
                    "task": task,
                    "metric": column,
                    "chosen": ", ".join(f"{axis.removeprefix('finetune.')}={label}" for axis, label in zip(select, chosen)),
                    "valid": scored[selecting(column)].mean(),
                    "test": scored[column].mean(),
                    "interval": half_width(scored[column]),
                    "sd": scored[column].std(),
                    "best": scored[column].max(),
                    "seeds": len(scored),
                    "failed": int(((runs["status"] == "failed") & runs[column].isna()).sum()),
                }
            )
    return pd.DataFrame(rows)


def selecting(column: str) -> str:
    """The column of `Results.runs` that a test score's runs are selected by."""
    return f"selected_by/{column}"


def half_width(values: pd.Series, level: float = 0.95) -> float:
    """Half-width of Student's interval for the mean; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    return float(scipy.stats.t.ppf(0.5 + level / 2, len(values) - 1) * values.std() / math.sqrt(len(values)))


def _groups(runs: pd.DataFrame, axes: list[str]) -> list[tuple[tuple[str, ...], pd.DataFrame]]:
    """(Labels, runs) by the axes, in the order of the runs; all of them without axes."""
    if not axes:
        return [((), runs)]
    return [(labels, of) for labels, of in runs.groupby(axes, sort=False)]
