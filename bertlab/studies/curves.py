"""The curves of a study: losses in training and scores along it, which variants share one, and which were not pretrained."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd

from bertlab.studies.measurements import X_AXES, Measure, Results, bounds, cost, once, pretraining_step, variant_name
from bertlab.studies.seeds import by_seed, pretraining_seeds
from bertlab.studies.statistics import mean_interval


@once
def curves(results: Results) -> pd.DataFrame:
    """`Results.metrics` of finished runs (all runs of a variant without a finished one), each pretraining under one variant.

    Variants are those of `along_trajectories`.
    """
    results = along_trajectories(results)
    finished = results.finished
    kept = results.metrics[results.metrics["run"].isin(finished["run"]) | ~results.metrics["variant"].isin(finished["variant"])]
    return kept[~kept["variant"].isin(shared_curves(results))]


def mean_curves(metrics: pd.DataFrame) -> pd.DataFrame:
    """The held-out curves of variants: means over pretrainings, for `plots.learning_curves`.

    Unfinished runs end early, and a mean over the rest would jump there: a curve stops at its shortest run. Runs that differ
    only in fine-tuning have one pretraining, and it counts once. Untrained variants (only step 0) are left out.

    Args:
        metrics: `Results.metrics`, or `curves`.

    Returns:
        A row per variant, metric and step, steps in order: these, `tokens`, `supervised`, `flops`, `seconds`, `mean` and `sd`
        (NaN for one pretraining).
    """
    valid = metrics[metrics["split"] == "valid"]
    ends = valid.groupby(["variant", "metric", "run"])["step"].transform("max")
    shortest = ends.groupby([valid["variant"], valid["metric"]]).transform("min")
    valid = valid[(valid["step"] <= shortest) & (valid.groupby("variant")["step"].transform("max") > 0)]
    once = valid.groupby(["variant", "metric", *pretraining_seeds(valid.columns), "step"])[[*X_AXES[1:], "value"]].mean()
    lines = once.groupby(["variant", "metric", "step"])
    return lines[[*X_AXES[1:]]].mean().assign(mean=lines["value"].mean(), sd=lines["value"].std()).reset_index()


@once
def shared_curves(results: Results) -> dict[str, str]:
    """Variants whose pretrainings all belong to one other variant that is drawn -> that variant; the curves are the same.

    Variants are those of `along_trajectories`. Those that start from random values are not among them.
    """
    results = along_trajectories(results)
    variant_of = dict(zip(results.runs["run"].tolist(), results.runs["variant"].tolist(), strict=True))
    owners = {run["name"]: run.get("shares", {}).get("pretrain", run["name"]) for run in results.study["runs"]}
    stands_for = {owner: name for name, owner in reversed(owners.items())} | {name: name for name in owners}
    owners = {name: stands_for[owner] for name, owner in owners.items()}  # a candidate for a rate is no run of the study
    finished = trained_runs(results)
    names, found = set(finished["run"].tolist()), {}
    for variant, runs in finished.groupby("variant", sort=False):
        of = {owners[name] for name in runs["run"]}
        drawn = names & of
        if drawn == of and not of & set(runs["run"]) and len(others := {variant_of[name] for name in of}) == 1:
            found[variant] = others.pop()
    return found


@once
def trajectory_axis(results: Results) -> str | None:
    """The axis whose labels are steps of the pretrainings (`finetune.init_step`); None without one."""
    steps = {run["name"]: pretraining_step(run) for run in results.study["runs"]}
    for axis in results.axes:
        by_label = results.runs["run"].map(steps).groupby(results.runs[axis]).agg(lambda of: frozenset(of.dropna()))
        if axis not in results.seed_axes and (by_label.map(len) == 1).sum() > 1 and by_label.map(len).max() == 1:
            return axis
    return None


def examples_axis(results: Results) -> str | None:
    """The axis whose labels are numbers of labelled examples (`finetune.task_data.limit`); None without one."""
    if not results.axes:  # a single run
        return None
    limits = {run["name"]: {of.get("task_data.limit", 0) for of in run["downstream"].values()} for run in results.study["runs"]}
    for axis in (name for name in results.axes if name not in results.seed_axes):
        by_label = results.runs["run"].map(limits).groupby(results.runs[axis]).agg(lambda of: frozenset().union(*of))
        if len(by_label) > 1 and (by_label.map(len) == 1).all() and by_label.nunique() == len(by_label):
            return axis
    return None


def scores_by_examples(results: Results, measures: Sequence[Measure]) -> pd.DataFrame:
    """Test scores of finished runs by the number of labelled examples; empty unless an axis of the study has such numbers.

    Returns:
        One row per score, line and number: `metric` (`Measure.name`), `variant` (without the number), `examples` (the axis's
        label), `mean`, `low` and `high` (Student's 95 % interval of the mean over pretraining seeds), `seeds`.
    """
    columns = ("metric", "variant", "examples", "mean", "low", "high", "seeds")
    if (axis := examples_axis(results)) is None:
        return pd.DataFrame(columns=columns)
    others = [name for name in results.axes if name not in (axis, *results.seed_axes)]
    finished = results.finished
    lines = [variant_name(labels) or results.study["title"] for labels in finished[others].itertuples(index=False)]
    rows = []
    for measure in measures:
        values = results.values(measure)
        for (line, label), runs in finished.groupby([np.array(lines, object), axis], sort=False):
            if found := over_seeds(runs, values, measure):
                rows.append((measure.name, line, label, *found))
    return pd.DataFrame(rows, columns=columns)


def over_seeds(runs: pd.DataFrame, values: pd.Series, measure: Measure) -> tuple[float, float, float, int] | None:
    """Mean over pretraining seeds, the ends of its 95 % interval (NaN for one seed), and how many seeds; None without any."""
    scores = by_seed(runs, values).mean(axis=1).dropna()
    if scores.empty:
        return None
    low, high = np.clip(mean_interval(scores), *bounds(measure.metric))
    return scores.mean(), low, high, len(scores)


@once
def along_trajectories(results: Results) -> Results:
    """The results with the steps of one pretraining as one variant: "MLM" of "MLM, 1000" and "MLM, 4000"."""
    axis = trajectory_axis(results)
    if axis is None:
        return results
    kept = [name for name in results.axes if name not in (axis, *results.seed_axes)]
    joined = [variant_name(labels) for labels in results.runs[kept].itertuples(index=False)]
    names = dict(zip(results.runs["run"], (name or results.study["title"] for name in joined), strict=True))
    renamed = lambda table: table.assign(variant=table["run"].map(names))
    return dataclasses.replace(results, runs=renamed(results.runs), metrics=renamed(results.metrics))


@once
def at_last_steps(results: Results) -> Results:
    """The results without the runs at earlier steps of a pretraining, so that variants are compared at the end of theirs."""
    if trajectory_axis(results) is None:
        return results
    steps = results.runs["run"].map({run["name"]: pretraining_step(run) for run in results.study["runs"]}).astype(float)
    last = steps.groupby(along_trajectories(results).runs["variant"]).transform("max")
    return dataclasses.replace(results, runs=results.runs[steps.isna() | (steps == last)])


def score_curves(results: Results, measures: Sequence[Measure]) -> pd.DataFrame:
    """Test scores along pretrainings, of finished runs; empty unless an axis of the study has steps of them.

    Returns:
        One row per score, line and point: `metric` (`Measure.name`), `variant` (without the steps), a column for each of
        `X_AXES` (the cost of the step; mean over seeds), `mean`, `low` and `high` (Student's 95 % interval of the mean over
        pretraining seeds; NaN for one seed), `seeds`. A variant that was not pretrained has a row at 0.
    """
    columns = ("metric", "variant", *X_AXES, "mean", "low", "high", "seeds")
    axis, rows = trajectory_axis(results), []
    lines = along_trajectories(results).runs if axis else pd.DataFrame(columns=["variant", "status"])
    of_axes = pd.DataFrame({name: results.values(cost(name)) for name in X_AXES})
    lines = lines[lines["status"] == "finished"]
    for measure in measures:
        values = results.values(measure)
        for variant, of_line in lines.groupby("variant", sort=False):
            points = of_line.groupby(of_axes["step"].loc[of_line["run"]].to_numpy())
            for _, runs in points:
                if found := over_seeds(runs, values, measure):
                    rows.append((measure.name, variant, *of_axes.loc[runs["run"]].mean(), *found))
    return pd.DataFrame(rows, columns=columns)


def untrained(results: Results) -> list[str]:
    """The variants whose finished runs took no pretraining step."""
    steps = results.values(cost("step")).loc[results.finished["run"]]
    most = steps.groupby(results.finished["variant"].to_numpy(), sort=False).max()
    return list(most[most == 0].index)


def trained_runs(results: Results) -> pd.DataFrame:
    """The finished runs that took a pretraining step."""
    finished = results.finished
    return finished[(results.values(cost("step")).loc[finished["run"]] > 0).to_numpy()]
