"""Measurements by variant and seed: tables for comparisons, and means and spreads over seeds."""

from collections.abc import Iterable

import numpy as np
import pandas as pd

from bertlab.studies.measurements import Measure, Results, once, seed_axes


def summarise(results: Results) -> pd.DataFrame:
    """Mean and spread over the seeds of each variant, of finished runs.

    Returns:
        One row per variant and measure: `variant`, `stage`, `task`, `split`, `metric` (see `Measure`), `mean`, `sd` (between
        seeds, ddof = 1; NaN for one seed), `seeds` (those with a finite value), `runs` (more than `seeds` if fine-tuning seeds
        are nested in pretraining seeds: a pretraining seed then counts once, with its mean over them).
    """
    outer, _ = nesting(results.runs.columns)
    finished = results.finished.set_index("run")
    table = results.measurements[np.isfinite(results.measurements["value"]) & results.measurements["run"].isin(finished.index)]
    of_measure = ["variant", *Measure._fields]
    seeds = dict(zip(finished.index, _labels(finished, outer), strict=True))
    table = table.assign(variant=table["run"].map(finished["variant"]), seed=table["run"].map(seeds))
    by_measure = table.groupby(of_measure, sort=False)["value"]
    means = table.groupby([*of_measure, "seed"], sort=False)["value"].mean().groupby(of_measure, sort=False)
    found = {"mean": means.mean(), "sd": means.std(), "seeds": means.count(), "runs": by_measure.count()}
    return pd.DataFrame(found).reset_index()


@once
def mean_scores(results: Results, measure: Measure) -> pd.Series:
    """Variant -> mean over seeds, of the variants that have a value."""
    means = {variant: table.mean(axis=1).mean() for variant, table in seed_tables(results, measure).items()}
    return pd.Series(means, dtype=float).dropna()


@once
def seed_tables(results: Results, measure: Measure) -> dict[str, pd.DataFrame]:
    """`by_seed` of each variant, in the study's order."""
    values = results.values(measure)
    return {variant: by_seed(runs, values) for variant, runs in results.runs.groupby("variant", sort=False)}


def by_seed(runs: pd.DataFrame, values: pd.Series) -> pd.DataFrame:
    """One variant's values: a row per pretraining seed, a column per fine-tuning seed nested in it.

    With one kind of seeds these are the rows, and the table has one column. Unfinished runs and values that are not finite are
    NaN.

    Args:
        runs: The variant's rows of `Results.runs`.
        values: By run name, from `Results.values`.
    """
    outer, nested = nesting(runs.columns)
    known = values.loc[runs["run"]].to_numpy()
    known = np.where((runs["status"] == "finished") & np.isfinite(known), known, np.nan)
    rows = _labels(runs, outer) if outer else [str(run) for run in range(len(runs))]
    (place, seeds), (across, finetunings) = (
        pd.factorize(np.array(of, object), sort=True) for of in (rows, _labels(runs, nested))
    )
    table = np.full((len(seeds), len(finetunings)), np.nan)
    table[place, across] = known
    return pd.DataFrame(table, index=seeds, columns=finetunings)


@once
def seed_counts(results: Results) -> dict[str, tuple[int, int]]:
    """Variant -> its finished seeds (of pretraining, if others are nested in them) and its finished runs."""
    everything = pd.Series(1.0, index=results.runs["run"])
    counts = {}
    for variant, runs in results.runs.groupby("variant", sort=False):
        finished = by_seed(runs, everything).notna()
        counts[variant] = int(finished.any(axis=1).sum()), int(finished.sum().sum())
    return counts


def nesting(columns: Iterable[str]) -> tuple[list[str], list[str]]:
    """Columns of seeds, and of fine-tuning seeds nested in them; without pretraining seeds nothing is nested."""
    outer = pretraining_seeds(columns)
    nested = [axis for axis in seed_axes(columns) if axis not in outer]
    return (outer, nested) if outer else (nested, [])


def pretraining_seeds(columns: Iterable[str]) -> list[str]:
    """The columns of seeds other than those of fine-tuning."""
    return [axis for axis in seed_axes(columns) if not axis.startswith("finetune.")]


def _labels(runs: pd.DataFrame, axes: list[str]) -> list[str]:
    """One string of labels per run; "" without axes."""
    if not axes:
        return [""] * len(runs)
    return [" ".join(labels) for labels in zip(*(runs[axis].tolist() for axis in axes), strict=True)]
