"""The tables of a report: plain DataFrames, which the report formats and tests compare."""

from collections.abc import Sequence

import pandas as pd

from bertlab.results import curve_points, scores
from bertlab.studies import comparisons
from bertlab.studies.comparisons import Difference, Measure, score_table
from bertlab.studies.results import COSTS, Results

PERCENT = (
    "accuracy",
    "f1",
    "exact_match",
    "precision",
    "recall",
    "matthews",
    "spearman",
    "pearson",
)


def scale(measure: Measure) -> tuple[float, int, str]:
    """(factor, digits, unit) with which a measure is printed."""
    if measure.metric.endswith(PERCENT):
        return 100.0, 1, "points"
    return 1.0, 3, "bits per byte" if measure.stage == "evaluate" else ""


def compared(results: Results) -> list[Measure]:
    """The measures that differences are about: a pseudo-log-likelihood is no code length."""
    return [of for of in comparisons.measures(results) if "pseudo" not in of.metric]


def summary(results: Results) -> pd.DataFrame:
    """Test scores over seeds at the selected labels: `task`, `metric`, `variant`, `mean`, `sd`
    (ddof 1), `seeds`, `chosen` (the selected labels)."""
    rows = []
    for measure in comparisons.measures(results):
        table, chosen = score_table(results, measure), _chosen(results, measure)
        for variant in table:
            values = table[variant].dropna()
            rows.append(
                {
                    "task": measure.task,
                    "metric": measure.metric,
                    "variant": variant,
                    "mean": values.mean(),
                    "sd": values.std(),
                    "seeds": len(values),
                    "chosen": chosen.get(variant, ""),
                }
            )
    return pd.DataFrame(rows)


def baselines(results: Results, measure: Measure) -> float | None:
    """The mean test score of always giving the most frequent answer; None if unknown."""
    frame = scores(results)
    same = (frame["stage"] == "most_frequent") & (frame["split"] == "test")
    same &= (frame["task"] == measure.task) & (frame["metric"] == measure.metric)
    return float(frame.loc[same, "value"].mean()) if same.any() else None


def differences(results: Results) -> pd.DataFrame:
    """The differences that the study asks for: its claims and contrasts; without these, each
    variant minus the first one.

    Columns: `task`, `metric`, `label` (of the axis), `digits`, `variant`, `other`, `mean`, `low`,
    `high` (as printed, by `scale`), `seeds` (pairs; 0 for independent samples), `p` (Holm's),
    `decided`, `published`, `source`, `verdict`.
    """
    rows = []
    for measure in compared(results):
        claims = comparisons.claims(results, measure)
        pairs = {(of.variant, of.other): (of, claim) for claim, of in claims}
        for of in comparisons.contrasts(results, measure):
            if (of.variant, of.other) not in pairs:
                pairs[of.variant, of.other] = (of, None)
        if not (results.study["claims"] or results.study["contrasts"]):
            table = score_table(results, measure)
            against = [(name, table.columns[0]) for name in table.columns[1:]]
            found = comparisons.differences(table, measure, against)
            pairs = {(of.variant, of.other): (of, None) for of in found}
        rows += [_difference(of, claim) for of, claim in pairs.values()]
    columns = ["task", "metric", "label", "digits", "variant", "other", "mean", "low", "high"]
    columns += ["seeds", "p", "decided", "published", "source", "verdict"]
    return pd.DataFrame(rows, columns=columns)


def _difference(of: Difference, claim) -> dict:
    factor, digits, unit = scale(of.measure)
    return {
        "task": of.measure.task or of.measure.metric,
        "metric": of.measure.metric,
        "label": f"{of.measure.metric} ({unit})" if of.measure.task else unit,
        "digits": digits,
        "variant": of.variant,
        "other": of.other,
        "mean": factor * of.mean,
        "low": factor * of.low,
        "high": factor * of.high,
        "seeds": of.pairs,
        "p": of.corrected,
        "decided": of.beyond_chance,
        "published": claim["published"] if claim else "",
        "source": claim["source"] if claim else "",
        "verdict": comparisons.verdict(of) if claim else "",
    }


def costs(results: Results) -> pd.DataFrame:
    """Means over the runs of each variant: `parameters`, `step`, the `COSTS` of pretraining, and
    `transfer_flops` and `transfer_seconds` of all tasks together."""
    frame = scores(results)
    pretraining = frame.groupby(["variant", "run"], sort=False)[["parameters", "step", *COSTS]]
    transfer = frame[frame["stage"] == "finetune"].drop_duplicates(["run", "task"])
    transfer = transfer.groupby(["variant", "run"], sort=False)
    spent = transfer[["transfer_flops", "transfer_seconds"]].sum(min_count=1)
    return pretraining.first().join(spent).groupby("variant", sort=False).mean()


def held_out(results: Results, metrics: Sequence[str]) -> pd.DataFrame:
    """Mean held-out losses of pretraining, a row a variant; NaN where a variant has none."""
    frame = scores(results)
    frame = frame[(frame["stage"] == "pretrain") & (frame["split"] == "valid")]
    table = frame[frame["metric"].isin(metrics)].pivot_table(
        "value", "variant", "metric", sort=False
    )
    return table.reindex(columns=[name for name in metrics if name in table])


def pretraining_curves(results: Results) -> pd.DataFrame:
    """The held-out points of pretrainings; variants with the same pretraining are one: "A; B"."""
    points = curve_points(results)
    points = points[(points["stage"] == "pretrain") & (points["split"] == "valid")]
    users = points.groupby("trained_in")["variant"].agg(
        lambda names: "; ".join(dict.fromkeys(names))
    )
    points = points.drop_duplicates(["trained_in", "metric", "step"])
    return points.assign(variant=points["trained_in"].map(users))


def loss_metrics(results: Results) -> list[str]:
    """The objectives' losses that pretrainings were evaluated by: "mlm/loss"."""
    frame = scores(results)
    names = frame.loc[frame["stage"] == "pretrain", "metric"]
    return [name for name in dict.fromkeys(names) if name.endswith("/loss")]


def _chosen(results: Results, measure: Measure) -> dict[str, str]:
    """Variant -> the labels that its `valid` scores selected."""
    select = results.study["select"]
    frame = comparisons.selected_scores(results, measure)
    if not select or frame.empty:
        return {}
    first = frame.groupby("variant", sort=False)[list(select)].first()
    return {name: ", ".join(labels) for name, labels in zip(first.index, first.to_numpy())}


def evaluations(results: Results) -> pd.DataFrame:
    """Mean bits per byte of the test split, a row a variant, a column a kind of score."""
    frame = scores(results)
    frame = frame[(frame["stage"] == "evaluate") & (frame["split"] == "test")]
    frame = frame[frame["metric"].str.startswith(comparisons.CODE_LENGTH)]
    return frame.pivot_table("value", "variant", "metric", sort=False)
