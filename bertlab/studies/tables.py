"""The tables of a report: plain DataFrames, which the report formats and tests compare."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bertlab.files import json_line
from bertlab.results import curves, scores
from bertlab.studies import comparisons, statistics
from bertlab.studies.comparisons import Measure
from bertlab.studies.records import BASELINES, COSTS, Results
from bertlab.studies.runs import RunSpec


def baselines(results: Results, measure: Measure) -> dict[str, float]:
    """The mean test score of each baseline that was computed, by its name; if fine-tunings differ
    in their number of labels, of a linear model for each number."""
    found = {}
    for stage, name in BASELINES.items():
        scored = _baseline_scores(results, measure, stage)
        runs = [results.runs[run] for run in scored["run"]]
        configs = [results.stage(run, "finetune", measure.task)["config"] for run in runs]
        numbers = [config.get("task_data.limit") or "all" for config in configs]
        means = scored["value"].groupby(numbers, sort=False).mean()
        if stage == "linear" and len(means) > 1:
            found |= {f"{name}: {number}": mean for number, mean in means.items()}
        elif len(scored):
            found[name] = scored["value"].mean()
    return found


def _baseline_scores(results: Results, measure: Measure, stage: str) -> pd.DataFrame:
    values = comparisons.values_of(results, measure._replace(stage=stage))
    return values[values["split"] == "test"]


def below_linear(results: Results) -> list[str]:
    """The tasks on which no variant's mean is above a linear model of the same labels."""
    found = []
    for measure in comparisons.measures(results):
        ours = comparisons.score_table(results, measure).mean()
        linear = _baseline_scores(results, measure, "linear").groupby("variant")["value"].mean()
        if len(linear) and (ours.reindex(linear.index) <= linear).all():
            found.append(measure.task)
    return found


def differences(results: Results) -> pd.DataFrame:
    """`bertlab.studies.comparisons.differences` for all measures in printed units, with `task`,
    `metric`, `label` (the axis label), `digits` and `interval` (text).

    A pseudo-log-likelihood is not a code length, so it is not included.
    """
    columns = [*comparisons.DIFFERENCE, "task", "metric", "label", "digits", "interval"]
    frames = [pd.DataFrame(columns=columns)]
    for measure in comparisons.measures(results):
        frame = comparisons.differences(results, measure)
        if "pseudo" in measure.metric or frame.empty:
            continue
        factor, digits, unit = measure.scale
        frame[["mean", "low", "high"]] *= factor
        frame = frame.assign(
            task=measure.task or measure.metric,
            metric=measure.metric,
            label=f"{measure.metric} ({unit})" if measure.task else unit,
            digits=digits,
        )
        frames.append(frame.assign(interval=[_interval(row) for row in frame.itertuples()]))
    return pd.concat(frames[1:] or frames, ignore_index=True)


def _interval(row) -> str:
    """A difference with its interval: "+1.2 (0.8 to 1.6)"."""
    text = f"{row.low:.{row.digits}f} to {row.high:.{row.digits}f}"
    text = "no spread between seeds" if math.isnan(row.low) else text
    return f"{row.mean:+.{row.digits}f} ({text})".replace("-", "\N{MINUS SIGN}")


def costs(results: Results) -> pd.DataFrame:
    """Means over the runs of each variant: `parameters`, `step`, the `COSTS` of pretraining, and
    `transfer_flops` and `transfer_seconds` over all tasks."""
    frame = scores(results)
    pretraining = frame.groupby(["variant", "run"], sort=False)[["parameters", "step", *COSTS]]
    transfer = frame[frame["stage"] == "finetune"].drop_duplicates(["run", "task"])
    transfer = transfer.groupby(["variant", "run"], sort=False)
    spent = transfer[["transfer_flops", "transfer_seconds"]].sum(min_count=1)
    return pretraining.first().join(spent).groupby("variant", sort=False).mean()


def code_lengths(results: Results) -> pd.DataFrame:
    """Bits per byte of the held-out text, one row per variant and kind; then the baselines.

    Columns: `variant`, `kind`, `mean` over runs, `low` and `high` (95 % interval over documents,
    and over runs if there are several; NaN without sums by document), `above`, the mean excess over
    the truth in the synthetic language, and `bytes` of text.
    """
    frame = scores(results)
    frame = frame[(frame["stage"] == "evaluate") & (frame["task"] == "")]
    frame = frame.drop_duplicates(["variant", "trained_in", "metric"])
    rows, baselines = [], {}
    for (variant, metric), group in frame.groupby(["variant", "metric"], sort=False):
        prefix, _, kind = metric.partition("/")
        records = [results.by_stage[run, "pretrain", ""] for run in group["trained_in"]]
        tests = [record["evaluation"]["test"] for record in records]
        row = [group["value"].mean(), *_document_interval(tests, kind)]
        if prefix == comparisons.CODE_LENGTH:
            above = [test.get(f"above_truth/{kind}", math.nan) for test in tests]
            sizes = [test.get(f"bytes/{kind}", math.nan) for test in tests]
            rows.append([variant, kind, *row, np.mean(above), np.mean(sizes)])
        elif prefix == "baseline":  # one for all variants with the same text and pieces
            name = f"{kind}, text of {variant}" if kind in dict(baselines) else kind
            counts = [of for key, of in tests[0].items() if key.startswith("bytes/")]
            size = max(counts, default=math.nan)
            baselines.setdefault((kind, row[0]), [name, "left-to-right", *row, math.nan, size])
    columns = ["variant", "kind", "mean", "low", "high", "above", "bytes"]
    return pd.DataFrame([*rows, *baselines.values()], columns=columns)


def _document_interval(tests: Sequence[Mapping[str, Any]], kind: str) -> tuple[float, float]:
    """95 % interval of bits per byte, a ratio of sums; each document counts by its residual."""
    found = [test.get("by_document", {}).get(kind) for test in tests]
    sums = [np.array([of["nats"], of["bytes"]]) for of in found if of]
    if len(sums) < len(tests) or len({of.shape for of in sums}) > 1 or sums[0].shape[1] < 2:
        return math.nan, math.nan
    items = []
    for nats, sizes in sums:
        ratio = nats.sum() / sizes.sum()
        items.append((ratio + (nats - ratio * sizes) / sizes.mean()) / math.log(2))
    frame = pd.DataFrame(items if len(items) > 1 else items[0])
    test = statistics.compare(frame, 0 * frame)
    return test.low, test.high


def pretraining_curves(results: Results) -> pd.DataFrame:
    """The held-out points of pretrainings; variants with the same pretraining are one: "A; B"."""
    points = curves(results)
    points = points[(points["stage"] == "pretrain") & (points["split"] == "valid")]
    users = points.groupby("trained_in")["variant"].unique().map("; ".join)
    points = points.drop_duplicates(["trained_in", "metric", "step"])
    return points.assign(variant=points["trained_in"].map(users))


def by_steps(results: Results) -> pd.DataFrame:
    """Test scores by step of pretraining, of the tasks on which runs begin with several steps of
    one; of a task, those with the settings of fine-tuning that were tried at the most steps.

    Columns: `line` (the labels that the runs of one pretraining have in common), `step` (0 for
    random values and the linear model), `mean`, `low` and `high` (the range over seeds), `task`,
    `label` (the metric's).
    """
    frames = [pd.DataFrame(columns=["line", "step", "mean", "low", "high", "task", "label"])]
    for measure in comparisons.measures(results):
        factor, _, unit = measure.scale
        scored = _at_steps(results, measure)
        if scored.empty:
            continue
        by_seed = scored.groupby(["line", "step", "seed"], sort=False)["value"].mean() * factor
        by_point = by_seed.groupby(["line", "step"], sort=False)
        points = by_point.agg(mean="mean", low="min", high="max").reset_index()
        name = BASELINES["linear"]
        if linear := baselines(results, measure).get(name):
            points.loc[len(points)] = [name, 0, *[linear * factor] * 3]
        label = f"{measure.metric} (%)" if unit == "points" else measure.metric
        frames.append(points.assign(task=measure.task, label=label))
    return pd.concat(frames[1:] or frames, ignore_index=True)


def _at_steps(results: Results, measure: Measure) -> pd.DataFrame:
    """A task's test scores with `line` and `step`; empty without several steps of one line."""
    apart = (*results.study["seed_axes"], *results.study["select"])
    axes = [axis for axis in results.study["axes"] if axis not in apart]
    scored = comparisons.with_seed(results, comparisons.values_of(results, measure))
    scored = scored[scored["split"] == "test"]
    settings = [_settings(results.runs[run], measure.task) for run in scored["run"]]
    varied = scored.groupby("trained_in")[axes].transform("nunique") > 1
    line = scored[axes].mask(varied, "").agg(lambda of: ", ".join(filter(None, of)), axis=1)
    scored = scored.assign(settings=settings, line=line)
    later = scored[scored["step"] > 0].groupby(["settings", "trained_in"])["step"]
    steps = later.nunique().groupby("settings").max()
    return scored[scored["settings"] == steps.idxmax()] if (steps > 1).any() else scored[:0]


def crossings(results: Results) -> pd.DataFrame:
    """Where two lines of `by_steps` cross: `task`, `line`, `other`, their `differences` (step ->
    text), `crosses` (steps at which the mean is zero) and `undecided` (ranges of steps at which the
    95 % interval contains zero). Between checkpoints all are linear in the logarithm of the step.

    Empty if `valid` selects settings of fine-tuning, which may then differ between steps.
    """
    columns = ["task", "line", "other", "differences", "crosses", "undecided"]
    rows, found = [], differences(results)
    for measure in () if results.study["select"] else comparisons.measures(results):
        scored = _at_steps(results, measure)
        points = scored[scored["step"] > 0].groupby("variant")[["line", "step"]].first()
        pairs = found[found["task"] == measure.task].join(points, on="variant")
        pairs = pairs.join(points.add_prefix("other_"), on="other")
        pairs = pairs[pairs["step"] == pairs["other_step"]].sort_values("step")
        for (line, other), pair in pairs.groupby(["line", "other_line"], sort=False):
            if len(pair) > 1:
                texts = dict(zip(pair["step"].astype(int), pair["interval"]))
                rows.append([measure.task, line, other, texts, *_zeros(pair)])
    return pd.DataFrame(rows, columns=columns)


def _zeros(pair: pd.DataFrame) -> tuple[list[float], list[tuple[float, float]]]:
    """`crosses` and `undecided` of `crossings`, to a thousandth of the range of steps."""
    fine = np.geomspace(pair["step"].min(), pair["step"].max(), 1000)
    at = np.log(fine), np.log(pair["step"].astype(float))
    mean, low, high = (np.interp(*at, pair[name]) for name in ("mean", "low", "high"))
    contains = np.concatenate([[False], (low <= 0) & (high >= 0), [False]])
    begins, ends = np.flatnonzero(np.diff(contains)).reshape(-1, 2).T
    return list(fine[1:][np.diff(mean > 0)]), list(zip(fine[begins], fine[ends - 1]))


def _settings(run: RunSpec, task: str) -> str:
    """The settings of a fine-tuning, without where it begins and its seeds."""
    settings = run.downstream.get(task, {}).items()
    return json_line({k: v for k, v in settings if k != "init_step" and not k.endswith("seed")})


def losses(results: Results) -> pd.DataFrame:
    """Means of the objectives' held-out losses, such as "mlm/loss", by variant and metric."""
    frame = scores(results)
    frame = frame[(frame["stage"] == "pretrain") & frame["metric"].str.endswith("/loss")]
    return frame[frame["split"] == "valid"].pivot_table("value", "variant", "metric", sort=False)
