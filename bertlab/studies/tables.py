"""The tables of a report, as frames of text: scores and losses, what compares all, floors, differences, cost; and LaTeX."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.stats

from bertlab.files import read_json
from bertlab.studies import plots, statistics
from bertlab.studies.ordering import FIRST_LOOK, RULE
from bertlab.studies.results import (
    Difference,
    Results,
    by_seed,
    comparable,
    difference,
    primary_metric,
    scores_by_seed,
    summarise,
)
from bertlab.studies.selection import selections
from bertlab.studies.study import COSTS, TRANSFER_COSTS
from bertlab.studies.text import MISSING, count_text, interval, number, p_text, seconds_text, spread
from bertlab.transfer.evaluations import BIASES

SCORES, LOSSES, COST = "Downstream test scores", "Validation losses (nats)", "Cost"
SCALES = "One scale for all (test)"
# Columns of `Results.runs` -> how a table heads and prints them.
ON_ONE_SCALE = {
    "bits_per_byte/": ("bits/byte, {}", lambda mean, sd: spread(mean, sd, 3)),
    "minimal_pairs/": ("minimal pairs (%), {}", lambda mean, sd: spread(100 * mean, 100 * sd, 1)),
}
LOSSES_NOTE = (
    "Losses are on held-out documents, each objective's own: columns are different questions and cannot be compared with each"
    " other."
)
COST_NOTE = (
    "FLOPs are the model's, forward and backward, in pretraining; tokens are counted without padding; a supervised position is"
    " one at which a loss is taken. Transfer is all adaptation and fine-tuning of a run together, without"
    " the heads' FLOPs."
)
SCALES_NOTE = (
    "Bits per byte: left-to-right and right-to-left are code lengths of the text and compare with each other; pseudo ones"
    " mask each token in turn, see both sides of it, are no code length, and compare with each other alone (within-word: the"
    " later pieces of the word are masked too)."
)
ONE_SEED_NOTE = "Of one seed, s.e. is the standard error over texts or pairs; of several, ± is the deviation over seeds."
FLOORS = "Beside the exact floors (test)"
FLOORS_NOTE = (
    "A floor is the best loss that any model can have on these very rows, in nats. Nats above it are paired with them, row by"
    " row; s.e. is their standard error over documents. They compare across objectives; one below 0 by more than chance is a"
    " leak."
)
SEEDS = "Test scores over seeds"
SEEDS_NOTE = (
    "The interval is of the mean, 95 %: Student's over seeds (of two seeds it is wide, and rests on a normal distribution), or"
    " the multi-bootstrap's where seeds of fine-tuning are nested in seeds of pretraining, cut where scores end; sd is between"
    " seeds. Best is the"
    " highest test score of a run, which nobody could have chosen; failed counts all runs that did."
)
SELECTED_NOTE = (
    "Chosen was by the mean over seeds on `valid` alone, among what has fewest runs without a score. `valid` is a published"
    " development set, or a part of train; with task_data.dev=valid it is what is reported too."
)
DIFFERENCES = "Differences (test)"
DIFFERENCES_NOTE = (
    "Paired by seed. The intervals of a task's rows hold together with 95 %: Student's, or the multi-bootstrap's where seeds of"
    " fine-tuning are nested in seeds of pretraining, cut where differences of scores end; p is the paired t test's. Both are"
    " corrected for the number of the task's rows (Bonferroni). By sign flips, uncorrected, p cannot be below what stands in"
    " parentheses. Seeds for 1 point: how many find a true difference of one point with a chance of 80 %, corrected alike, with"
    " the 95 % range that a spread known from so few seeds leaves open."
)
SETTLED_NOTE = (
    "The sweep looked at the scores up to {looks} times to stop early; intervals and p are corrected for that, means are not:"
    " they lie further apart than the truth by a little."
)
PUBLISHED = "As published"
PUBLISHED_NOTE = (
    "Scales differ: other data, sizes and numbers of steps than ours. Compare the order of rows and the signs of differences,"
    " never values. Of how many seeds they are is in the paper, if it says."
)
BOUND_NOTE = "≥ marks a lower bound that no model may be able to reach; nats above it are then at most those."
COST_LABELS = {
    "parameters": "parameters",
    "step": "steps",
    "tokens": "tokens",
    "supervised": "supervised positions",
    "flops": "FLOPs",
    "seconds": "time",
    "transfer/flops": "transfer FLOPs",
    "transfer/seconds": "transfer time",
}
WIDEST = 6  # scores side by side


def score_columns(results: Results) -> list[str]:
    """The one column of `Results.runs` for each downstream task that tables show."""
    columns = [primary_metric(results, task) for task in results.study["downstream"]]
    return [column for column in columns if column is not None]


def loss_columns(results: Results) -> list[str]:
    """The validation losses of pretraining, one column of `Results.runs` per objective."""
    losses = [c for c in results.runs.columns if c.startswith("valid/") and c.endswith("loss")]
    return [c for c in losses if c != "valid/loss"] or losses


def wide_table(results: Results) -> pd.DataFrame:
    """One row per variant; for each metric its mean, standard deviation and number of seeds, in raw units."""
    summary = summarise(results.runs)
    wide = summary.pivot(index="variant", columns="metric", values=["mean", "sd", "seeds"])
    order = list(dict.fromkeys(summary["metric"]))
    columns = [(statistic, metric) for metric in order for statistic in ("mean", "sd", "seeds")]
    wide = wide.reindex(index=results.variants, columns=columns)
    wide.columns = [f"{metric} {statistic}" for statistic, metric in columns]
    counts = [column for column in wide.columns if column.endswith(" seeds")]
    return wide.astype(dict.fromkeys(counts, "Int64"))


def table(results: Results) -> pd.DataFrame:
    """The report's table as text: a row per variant, columns in groups (scores, losses, cost).

    Scores are in percent and losses in nats, as mean ± standard deviation where there are two seeds or more; a metric that some
    of a variant's seeds lack says how many it is of.
    """
    summary = summarise(results.runs).set_index(["variant", "metric"])
    counts = {variant: seed_counts(results, variant) for variant in results.variants}
    columns: dict[tuple[str, str], list[str]] = {("", "seeds"): [seeds_text(*counts[v]) for v in results.variants]}

    def column(metric, form, error=None):
        cells = []
        for variant in results.variants:
            if (variant, metric) not in summary.index:
                cells.append(MISSING)
                continue
            row = summary.loc[(variant, metric)]
            text = form(row["mean"], row["sd"])
            if row["seeds"] == 1 and (variant, error) in summary.index:
                text = form(row["mean"], summary.loc[(variant, error), "mean"]).replace("±", "s.e.")
            fewer = row["runs"] < counts[variant][1]
            of = seeds_text(int(row["seeds"]), int(row["runs"]))
            cells.append(f"{text} ({of} seed{'' if of == '1' else 's'})" if fewer else text)
        return cells

    for metric in score_columns(results):
        factor, digits = plots.score_scale(metric)
        columns[SCORES, score_label(metric)] = column(metric, lambda mean, sd, f=factor, d=digits: spread(mean * f, sd * f, d))
    for metric in loss_columns(results):
        columns[LOSSES, metric.removeprefix("valid/")] = column(metric, lambda mean, sd: spread(mean, sd, 3))
    for prefix, (label, form) in ON_ONE_SCALE.items():
        asked = [c for c in results.runs.columns if c.startswith(prefix)]
        for metric, name in zip(asked, kind_labels([c.removeprefix(prefix) for c in asked]), strict=True):
            columns[SCALES, label.format(name)] = column(metric, form, metric.replace("/", "_error/", 1))
    for metric in (*COSTS, *(cost for cost in TRANSFER_COSTS if cost in results.runs)):
        form = seconds_text if metric.endswith("seconds") else count_text
        columns[COST, COST_LABELS[metric]] = column(metric, lambda mean, _, f=form: f(mean))
    return pd.DataFrame(columns, index=pd.Index(results.variants, name="variant"))


def seed_counts(results: Results, variant: str) -> tuple[int, int]:
    """How many seeds of a variant are finished (of pretraining, where others are nested in them), and how many runs."""
    finished = by_seed(results.runs[results.runs["variant"] == variant].assign(counted=1.0), "counted").notna()
    return int(finished.any(axis=1).sum()), int(finished.sum().sum())


def seeds_text(seeds: int, runs: int) -> str:
    """ "3"; "3 × 5" of five fine-tunings of each of three; "3 (14 runs)" where they are not as many of each."""
    if runs == seeds:
        return str(seeds)
    return f"{seeds} × {runs // seeds}" if runs % seeds == 0 else f"{seeds} ({runs} runs)"


def kind_labels(columns: Sequence[str]) -> list[str]:
    """Heads of "KIND/SOURCE": the kind, with the file's stem where there are several files, or its path if stems are alike."""
    asked = [(kind, source) for kind, _, source in (column.partition("/") for column in columns)]
    stems = {source: Path(source).stem for _, source in asked}
    alike = len(set(stems.values())) < len(stems)
    return [kind if len(stems) == 1 else f"{kind}, {source if alike else stems[source]}" for kind, source in asked]


def floor_table(results: Results) -> pd.DataFrame:
    """A row for each variant and objective that has a floor, as text; s.e. is the mean's paired standard error, ≥ a bound."""
    finished = results.runs[results.runs["status"] == "finished"]
    names = [column.removeprefix("floor/") for column in results.runs.columns if column.startswith("floor/")]
    rows = {}
    for variant in results.variants:
        runs = finished[finished["variant"] == variant]
        own = [name for name in names if runs[f"floor/{name}"].notna().any()]
        for name in own:
            floor, above, error = (runs[f"{kind}/{name}"].dropna() for kind in ("floor", "above", "above_error"))
            low, excess = floor.mean(), above.mean()
            bound = "" if runs[f"floor_exact/{name}"].dropna().all() else "≥ "
            rows[variant if len(own) == 1 else f"{variant}: {name}"] = {
                ("", "seeds"): str(len(floor)),
                (FLOORS, "objective"): name,
                (FLOORS, "floor"): f"{bound}{low:.4f}",
                (FLOORS, "loss"): f"{low + excess:.4f}",
                (FLOORS, "above"): spread(excess, math.hypot(*error) / len(error), 4).replace("±", "s.e."),
                (FLOORS, "above (%)"): f"{100 * excess / low:.2f}" if low else MISSING,
            }
    return pd.DataFrame.from_dict(rows, orient="index")


def selection_table(results: Results) -> pd.DataFrame:
    """A row for each task and variant, as text; empty for a study without seeds or `select` to choose by."""
    found = selections(results)
    if found.empty or not (results.study.get("select") or found["seeds"].max() > 1):
        return pd.DataFrame()
    rows = {}
    tasks = list(results.study["downstream"])
    for row in sorted(found.to_dict("records"), key=lambda row: tasks.index(row["task"])):
        factor, digits = plots.score_scale(row["metric"])
        text = lambda value, factor=factor, digits=digits: number(factor * value, digits)
        rows[f"{score_label(row['metric'])}: {row['variant']}"] = {
            ("", "seeds"): seeds_text(row["seeds"], row["runs"]),
            **({(SEEDS, "chosen"): row["chosen"]} if row["chosen"] else {}),
            (SEEDS, "valid"): text(row["valid"]),
            (SEEDS, "test"): text(row["test"]),
            (SEEDS, "95 % interval"): interval_text(row["low"], row["high"], row["metric"]),
            (SEEDS, "sd"): text(row["sd"]),
            (SEEDS, "best"): text(row["best"]),
            (SEEDS, "failed"): str(row["failed"]),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def difference_table(results: Results) -> pd.DataFrame:
    """A row for each task and variant beside the study's first variant, as text; empty without two seeds to pair."""
    rows = {}
    reference, *others = results.variants
    looks = looks_of(results)
    for metric in score_columns(results) if not results.study.get("select") else ():
        names = [name for name in others if comparable(results, metric, name, reference)]
        comparisons = looks * max(len(names), 1)
        found = {name: difference(results, metric, name, reference, 1 - 0.05 / comparisons) for name in names}
        found = {name: of for name, of in found.items() if of.pairs}
        factor, digits = plots.score_scale(metric)
        for name, of in found.items():
            ours, theirs = (scores_by_seed(results, metric, v).mean(axis=1) for v in (name, reference))
            flips = statistics.permutation_test(ours, theirs, (name, reference))
            rows[f"{score_label(metric)}: {name} − {reference}"] = {
                ("", "seeds"): str(of.pairs),
                (DIFFERENCES, "difference"): number(factor * of.mean, digits, "+"),
                (DIFFERENCES, "95 % interval"): interval_text(of.low, of.high, metric),
                (DIFFERENCES, "p"): p_text(np.minimum(comparisons * of.p, 1.0)),
                (DIFFERENCES, "p by sign flips"): f"{p_text(flips.p)} ({p_text(flips.smallest_p)})",
                (DIFFERENCES, "seeds for 1 point"): seeds_for_a_point(of, 0.05 / comparisons) if factor == 100 else MISSING,
            }
    return pd.DataFrame.from_dict(rows, orient="index")


def highest_beyond_chance(results: Results, metric: str) -> str | None:
    """The variant whose mean is the highest by more than chance, corrected for the number of pairs; None where none is."""
    best = mean_scores(results, metric).sort_values(ascending=False, kind="stable").index
    if len(best) < 2 or not comparable(results, metric, *best[:2]):
        return None
    return best[0] if difference(results, metric, *best[:2], level_of_pairs(results, len(best))).low > 0 else None


def mean_scores(results: Results, metric: str) -> pd.Series:
    """Variant -> mean over seeds, of those that have a score."""
    summary = summarise(results.runs[["variant", "status", *results.seed_axes, metric]])
    return summary.set_index("variant")["mean"]


def level_of_pairs(results: Results, variants: int) -> float:
    """The level at which the intervals of all pairs of so many variants hold together with 95 %, at every look (Bonferroni)."""
    return 1 - 0.05 / pairs_to_correct_for(results, variants)


def pairs_to_correct_for(results: Results, variants: int) -> int:
    """How many pairs so many variants have, each as often as a sweep that was to stop early might have looked at it."""
    return looks_of(results) * variants * (variants - 1) // 2


def looks_of(results: Results) -> int:
    """How often a sweep that was to stop early might have looked at the scores, whether it did or not; 1 for all others."""
    rule = results.path / RULE
    return read_json(rule)["max_seeds"] - FIRST_LOOK + 1 if rule.exists() else 1


def interval_text(low: float, high: float, metric: str) -> str:
    """ "41.0 to 43.2", in percent for shares."""
    factor, digits = plots.score_scale(metric)
    return interval(factor * low, factor * high, digits)


def seeds_for_a_point(found: Difference, alpha: float, most: int = 1000) -> str:
    """Seeds that find a true difference of 0.01 with a chance of 80 % at p < alpha, and their 95 % range: "7 (3 to 58)".

    The standard deviation of the paired differences is known from few seeds: its own interval is chi-squared's.
    """
    if not found.sd > 0:
        return MISSING
    freedom = found.pairs - 1
    low, high = (found.sd * math.sqrt(freedom / scipy.stats.chi2.ppf(q, freedom)) for q in (0.975, 0.025))
    text = lambda sd: f"{n:,}" if (n := statistics.seeds_needed(0.01, sd, alpha=alpha)) <= most else f"> {most:,}"
    return f"{text(found.sd)} ({text(low)} to {text(high)})"


def published_table(results: Results) -> pd.DataFrame:
    """The published table that belongs to a study, as text, our variants first in our order; empty without one."""
    published = results.study.get("published")
    if not published:
        return pd.DataFrame()
    group = f"{PUBLISHED}: {published['source']}"
    order = {variant: place for place, variant in enumerate(results.variants)}
    rows = sorted(published["rows"].items(), key=lambda row: order.get(row[0], len(order)))
    cells = lambda values: {
        (group, name): MISSING if value is None else str(value)
        for name, value in zip(published["columns"], values, strict=True)
    }
    return pd.DataFrame.from_dict({name: cells(values) for name, values in rows}, orient="index")


def grouped_tables(results: Results) -> list[pd.DataFrame]:
    """`table` in parts that fit on a page: scores with losses, the published ones, and so on to cost; with the seeds."""
    frame = table(results)
    apart = (published_table(results), difference_table(results), selection_table(results), floor_table(results))
    whole = lambda wanted: [frame[[("", "seeds"), *columns]] for columns in side_by_side(frame, wanted)]
    last = [frame for frame in apart if not frame.empty]
    return [*whole((SCORES, LOSSES)), *last, *whole((SCALES,)), *whole((COST,))]


def side_by_side(frame: pd.DataFrame, groups: Sequence[str]) -> list[list[tuple[str, str]]]:
    """The columns of these groups, cut where more of a kind would stand side by side than a page has room for."""
    columns = [column for column in frame.columns if column[0] in groups]
    scores = sum(group == SCORES for group, _ in columns)
    if scores <= WIDEST + 2:
        return [columns] if columns else []
    return [columns[i : i + WIDEST] for i in range(0, len(columns), WIDEST)]


def notes(results: Results) -> dict[str, str]:
    """What is said below a group of columns: how to read them, and what biases their numbers, in which variants."""
    finished, floors = results.runs[results.runs["status"] == "finished"], floor_table(results)
    of_scales, of_floors = [SCALES_NOTE], [FLOORS_NOTE]
    summary = summarise(results.runs)
    if (summary["metric"].str.startswith(tuple(ON_ONE_SCALE)) & (summary["seeds"] == 1)).any():
        of_scales.append(ONE_SEED_NOTE)
    for name, sentence in BIASES.items():
        biased = finished.loc[[name in biases.split() for biases in finished["biases"]], "variant"]
        if len(biased):
            of_scales.append(f"In {'; '.join(dict.fromkeys(biased))}: {sentence}.")
    if not floors.empty and floors[FLOORS, "floor"].str.startswith("≥").any():
        of_floors.append(BOUND_NOTE)
    of_seeds = [SELECTED_NOTE, SEEDS_NOTE] if results.study.get("select") else [SEEDS_NOTE]
    of_differences = [DIFFERENCES_NOTE]
    if looks_of(results) > 1:
        of_differences.append(SETTLED_NOTE.format(looks=looks_of(results)))
    said = {SCALES: " ".join(of_scales), FLOORS: " ".join(of_floors), SEEDS: " ".join(of_seeds)}
    said[DIFFERENCES] = " ".join(of_differences)
    if published := results.study.get("published"):
        said[f"{PUBLISHED}: {published['source']}"] = f"{PUBLISHED_NOTE} {published['note']}".strip()
    return said


def score_label(metric: str) -> str:
    """The head of a score's column: "package accuracy (%)"."""
    return plots.metric_label(metric).replace("/", " ")
