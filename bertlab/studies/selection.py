"""Which labels were selected on `valid`, and what they score on `test`.

A study's `select` names axes (a learning rate, a number of epochs). For each variant and task, the label with the best mean
`valid` score over seeds is chosen, among the labels with the fewest unscored runs (failed, or unfinished). Only that label's
`test` score is reported.
"""

import math

import pandas as pd

from bertlab.studies.measurements import Results, bounds, scores
from bertlab.studies.seeds import by_seed
from bertlab.studies.statistics import mean_interval, multi_bootstrap


def selections(results: Results) -> pd.DataFrame:
    """One row for each variant and downstream task.

    Returns:
        `variant` (labels except seeds and `select`), `task`, `metric`, `chosen` (labels of `select`, "" without), `valid`
        (mean), `test` (mean), `low` and `high` (95 % interval of the mean: Student's over seeds, the multi-bootstrap's if
        fine-tuning seeds are nested in pretraining seeds; NaN for one seed, or if nothing varies), `sd` (between seeds, ddof
        1), `best` (highest test score of a run), `seeds` and `runs` (of the chosen label, with a score), `failed` (all failed
        runs of the variant). Unfinished runs are left out.
    """
    select = [axis for axis in results.axes if axis in results.study.get("select", ())]
    kept = [axis for axis in results.axes if axis not in select and axis not in results.seed_axes]
    rows = []
    for labels, runs in _groups(results.runs, kept):
        finished = runs["status"] == "finished"
        for measure in scores(results):
            on_test, on_valid = results.values(measure), results.values(measure._replace(split="valid"))
            valid = pd.Series(on_valid.loc[runs["run"]].to_numpy(), index=runs.index).where(finished)
            choices = {chosen: of for chosen, of in _groups(runs, select) if valid[of.index].notna().any()}
            if not choices:
                continue
            values = {chosen: valid[of.index] for chosen, of in choices.items()}
            chosen = max(choices, key=lambda label: (-values[label].isna().sum(), values[label].mean()))
            scored = by_seed(choices[chosen], on_test).dropna(how="all")
            over_seeds = scored.mean(axis=1)
            low, high = _interval(scored, bounds(measure.metric))
            rows.append(
                {
                    "variant": ", ".join(labels) or results.study["name"],
                    "task": measure.task,
                    "metric": measure.metric,
                    "chosen": ", ".join(f"{axis.removeprefix('finetune.')}={label}" for axis, label in zip(select, chosen)),
                    "valid": by_seed(choices[chosen], on_valid).mean(axis=1).mean(),
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


def _interval(scores: pd.DataFrame, within: tuple[float, float]) -> tuple[float, float]:
    """95 % interval of the mean of a variant's scores (`by_seed`), cut where scores end; NaN if there is none."""
    if len(scores) < 2:
        return math.nan, math.nan
    found = multi_bootstrap(scores) if scores.shape[1] > 1 else None
    low, high = (found.low, found.high) if found else mean_interval(scores.iloc[:, 0])
    return max(low, within[0]), min(high, within[1])


def _groups(runs: pd.DataFrame, axes: list[str]) -> list[tuple[tuple[str, ...], pd.DataFrame]]:
    """(Labels, runs) by the axes, in the order of the runs; all of them without axes."""
    if not axes:
        return [((), runs)]
    return [(labels, of) for labels, of in runs.groupby(axes, sort=False)]
