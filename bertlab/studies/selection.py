"""What was selected on `valid`, and what it scores on `test`, where nothing was selected by.

A study's `select` names axes (a learning rate, a number of epochs) whose best label is chosen for each variant and task by the
mean over seeds of the `valid` score, among those of which fewest runs have none (failed, or not finished); the `test` score of
that label's runs is then reported, and of no other.
"""

import math

import pandas as pd

from bertlab.studies.results import Results, bounds, by_seed, primary_metric
from bertlab.studies.statistics import mean_over_seeds, multi_bootstrap


def selections(results: Results) -> pd.DataFrame:
    """One row for each variant and downstream task.

    Returns:
        `variant` (labels but for seeds and `select`), `task`, `metric`, `chosen` (labels of `select`, "" without), `valid`
        (mean), `test` (mean), `low` and `high` (95 % interval of the mean: Student's over seeds, the multi-bootstrap's where
        fine-tuning seeds are nested in pretraining seeds; NaN for one seed, or where nothing varies), `sd` (between seeds, ddof
        1), `best` (highest test score of a run), `seeds` (of the chosen, that have a score), `runs` (the same), `failed` (runs
        of the variant, chosen or not). Runs that are not finished have no part in it.
    """
    select = [axis for axis in results.axes if axis in results.study.get("select", ())]
    kept = [axis for axis in results.axes if axis not in select and axis not in results.seed_axes]
    rows = []
    for labels, runs in _groups(results.runs, kept):
        finished = runs["status"] == "finished"
        for task in results.study["downstream"]:
            column = primary_metric(results, task)
            if column is None or column not in runs or selecting(column) not in runs:
                continue
            valid = runs[selecting(column)].where(finished)
            choices = {chosen: of for chosen, of in _groups(runs, select) if valid[of.index].notna().any()}
            if not choices:
                continue
            scores = {chosen: valid[of.index] for chosen, of in choices.items()}
            chosen = max(choices, key=lambda label: (-scores[label].isna().sum(), scores[label].mean()))
            scored = by_seed(choices[chosen], column).dropna(how="all")
            over_seeds = scored.mean(axis=1)
            low, high = _interval(scored, bounds(column))
            rows.append(
                {
                    "variant": ", ".join(labels) or results.study["name"],
                    "task": task,
                    "metric": column,
                    "chosen": ", ".join(f"{axis.removeprefix('finetune.')}={label}" for axis, label in zip(select, chosen)),
                    "valid": by_seed(choices[chosen], selecting(column)).mean(axis=1).mean(),
                    "test": over_seeds.mean(),
                    "low": low,
                    "high": high,
                    "sd": over_seeds.std(),
                    "best": scored.max().max(),
                    "seeds": len(over_seeds),
                    "runs": int(scored.notna().sum().sum()),
                    "failed": int((runs["status"] == "failed").sum()),
                }
            )
    return pd.DataFrame(rows)


def selecting(column: str) -> str:
    """The column of `Results.runs` that a test score's runs are selected by."""
    return f"selected_by/{column}"


def _interval(scores: pd.DataFrame, within: tuple[float, float]) -> tuple[float, float]:
    """95 % interval of the mean of a variant's scores (`by_seed`), cut where they end; NaN where there is none."""
    if len(scores) < 2:
        return math.nan, math.nan
    found = multi_bootstrap(scores) if scores.shape[1] > 1 else mean_over_seeds(scores.iloc[:, 0])
    return max(found.low, within[0]), min(found.high, within[1])


def _groups(runs: pd.DataFrame, axes: list[str]) -> list[tuple[tuple[str, ...], pd.DataFrame]]:
    """(Labels, runs) by the axes, in the order of the runs; all of them without axes."""
    if not axes:
        return [((), runs)]
    return [(labels, of) for labels, of in runs.groupby(axes, sort=False)]
