"""The tables of a report, as frames of text: scores and losses, what compares all, floors, differences, cost; and LaTeX."""

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from bertlab.studies import plots, statistics
from bertlab.studies.results import Results, difference, primary_metric, scores_by_seed, summarise
from bertlab.studies.selection import selections
from bertlab.studies.study import COSTS
from bertlab.studies.text import MISSING, count_text, escape_latex, p_text, seconds_text, spread
from bertlab.transfer.evaluations import BIASES

SCORES, LOSSES, COST = "Downstream test scores", "Validation losses (nats)", "Cost"
SCALES = "One scale for all (test)"
# Columns of `Results.runs` -> how a table heads and prints them.
ON_ONE_SCALE = {
    "bits_per_byte/": ("bits/byte, {}", lambda mean, sd: spread(mean, sd, 3)),
    "minimal_pairs/": ("minimal pairs (%), {}", lambda mean, sd: spread(100 * mean, 100 * sd, 1)),
}
SCALES_NOTE = (
    "Bits per byte: left-to-right and right-to-left are code lengths of the text and compare with each other; pseudo ones"
    " mask each token in turn, see both sides of it, are no code length, and compare with each other alone (within-word: the"
    " later pieces of the word are masked too)."
)
ONE_SEED_NOTE = "Of one seed, ± is the standard error over texts or pairs; of several, the standard deviation over seeds."
FLOORS = "Beside the exact floors (test)"
FLOORS_NOTE = (
    "A floor is the best loss that any model can have on these very rows, in nats. Nats above it are paired with them, row by"
    " row; ± is their standard error over documents. They compare across objectives; one below 0 by more than chance is a leak."
)
SEEDS = "Test scores over seeds"
SEEDS_NOTE = (
    "Accuracies and F1 are in percent. The interval is Student's, 95 %, of the mean over seeds; best is the highest test score"
    " of a seed, which nobody could have chosen; failed counts all runs that did."
)
SELECTED_NOTE = (
    "Chosen was by the mean over seeds on `valid` alone, among what has fewest runs without a score. `valid` is a published"
    " development set, or a part of train; with task_data.dev=valid it is what is reported too."
)
DIFFERENCES = "Differences (test)"
DIFFERENCES_NOTE = (
    "Paired by seed, in points for accuracies and F1. The interval is 95 %: Student's, or the multi-bootstrap's where seeds of"
    " fine-tuning are nested in seeds of pretraining; p is the paired t test's, Holm-corrected over the rows of a task; by sign"
    " flips p cannot be below what stands in parentheses. Seeds needed: to find a difference as large as this one with a chance"
    " of 80 %, as far as so few seeds tell its spread."
)
PUBLISHED = "As published"
PUBLISHED_NOTE = (
    "Scales differ: other data, sizes and numbers of steps than ours. Compare the order of rows and the signs of differences,"
    " never values."
)
BOUND_NOTE = "≥ marks a lower bound that no model may be able to reach; nats above it are then at most those."
COST_LABELS = {
    "parameters": "parameters",
    "step": "steps",
    "tokens": "tokens",
    "supervised": "supervised positions",
    "flops": "FLOPs",
    "seconds": "time",
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
    return wide


def table(results: Results) -> pd.DataFrame:
    """The report's table as text: a row per variant, columns in groups (scores, losses, cost).

    Scores are in percent and losses in nats, as mean ± standard deviation where there are two seeds or more.
    """
    summary = summarise(results.runs).set_index(["variant", "metric"])
    counts = results.runs[results.runs["status"] == "finished"].groupby("variant").size()
    columns: dict[tuple[str, str], list[str]] = {("", "seeds"): [str(counts.get(v, 0)) for v in results.variants]}

    def column(metric, form, error=None):
        cells = []
        for variant in results.variants:
            known = (variant, metric) in summary.index
            row = summary.loc[(variant, metric)] if known else None
            alone = known and row["seeds"] == 1 and (variant, error) in summary.index
            cells.append(form(row["mean"], summary.loc[(variant, error), "mean"] if alone else row["sd"]) if known else MISSING)
        return cells

    for metric in score_columns(results):
        factor = plots.percent_factor(metric)
        digits = 1 if factor == 100 else 3
        columns[SCORES, score_label(metric)] = column(metric, lambda mean, sd, f=factor, d=digits: spread(mean * f, sd * f, d))
    for metric in loss_columns(results):
        columns[LOSSES, metric.removeprefix("valid/")] = column(metric, lambda mean, sd: spread(mean, sd, 3))
    for prefix, (label, form) in ON_ONE_SCALE.items():
        asked = [c for c in results.runs.columns if c.startswith(prefix)]
        for metric, name in zip(asked, kind_labels([c.removeprefix(prefix) for c in asked]), strict=True):
            columns[SCALES, label.format(name)] = column(metric, form, metric.replace("/", "_error/", 1))
    for metric in COSTS:
        form = seconds_text if metric == "seconds" else count_text
        columns[COST, COST_LABELS[metric]] = column(metric, lambda mean, _, f=form: f(mean))
    return pd.DataFrame(columns, index=pd.Index(results.variants, name="variant"))


def kind_labels(columns: Sequence[str]) -> list[str]:
    """Heads of "KIND/SOURCE": the kind, with the file's stem where there are several files, or its path if stems are alike."""
    asked = [(kind, source) for kind, _, source in (column.partition("/") for column in columns)]
    stems = {source: Path(source).stem for _, source in asked}
    alike = len(set(stems.values())) < len(stems)
    return [kind if len(stems) == 1 else f"{kind}, {source if alike else stems[source]}" for kind, source in asked]


def floor_table(results: Results) -> pd.DataFrame:
    """A row for each variant and objective that has a floor, as text; ± is the mean's paired standard error, ≥ a bound."""
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
                (FLOORS, "above"): spread(excess, math.hypot(*error) / len(error), 4),
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
        factor = plots.percent_factor(row["metric"])
        text = lambda value, factor=factor: MISSING if math.isnan(value) else f"{factor * value:.{1 if factor == 100 else 3}f}"
        rows[f"{row['metric'].replace('/', ' ')}: {row['variant']}"] = {
            ("", "seeds"): str(row["seeds"]),
            **({(SEEDS, "chosen"): row["chosen"]} if row["chosen"] else {}),
            (SEEDS, "valid"): text(row["valid"]),
            (SEEDS, "test"): f"{text(row['test'])} ± {text(row['interval'])}" if row["seeds"] > 1 else text(row["test"]),
            (SEEDS, "sd"): text(row["sd"]),
            (SEEDS, "best"): text(row["best"]),
            (SEEDS, "failed"): str(row["failed"]),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def difference_table(results: Results) -> pd.DataFrame:
    """A row for each task and variant beside the study's first variant, as text; empty without two seeds to pair."""
    rows = {}
    reference, *others = results.variants
    for metric in score_columns(results) if not results.study.get("select") else ():
        found = {name: difference(results, metric, name, reference) for name in others}
        found = {name: of for name, of in found.items() if of.pairs > 1}
        corrected = statistics.holm(pd.Series({name: of.p for name, of in found.items()}, dtype=float))
        factor = plots.percent_factor(metric)
        digits = 1 if factor == 100 else 3
        for name, of in found.items():
            ours, theirs = (scores_by_seed(results, metric, v).mean(axis=1).dropna() for v in (name, reference))
            flips = statistics.permutation_test(ours, theirs, (name, reference))
            varies = of.sd > 0 and of.mean != 0
            rows[f"{metric.replace('/', ' ')}: {name} − {reference}"] = {
                ("", "seeds"): str(of.pairs),
                (DIFFERENCES, "difference"): f"{factor * of.mean:+.{digits}f}",
                (DIFFERENCES, "95 % interval"): f"{factor * of.low:.{digits}f} to {factor * of.high:.{digits}f}",
                (DIFFERENCES, "p"): MISSING if math.isnan(corrected[name]) else p_text(corrected[name]),
                (DIFFERENCES, "p by sign flips"): f"{p_text(flips.p)} ({p_text(flips.smallest_p)})",
                (DIFFERENCES, "seeds needed"): str(statistics.seeds_needed(abs(of.mean), of.sd)) if varies else MISSING,
            }
    return pd.DataFrame.from_dict(rows, orient="index")


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
    said = {SCALES: " ".join(of_scales), FLOORS: " ".join(of_floors), SEEDS: " ".join(of_seeds), DIFFERENCES: DIFFERENCES_NOTE}
    if published := results.study.get("published"):
        said[f"{PUBLISHED}: {published['source']}"] = f"{PUBLISHED_NOTE} {published['note']}".strip()
    return said


def score_label(metric: str) -> str:
    """The head of a score's column: "package accuracy (%)"."""
    return plots.metric_label(metric).replace("/", " ")


def latex_table(results: Results) -> str:
    """The report's tables for a paper: scores with losses, then cost (needs \\usepackage{booktabs})."""
    texts = [f"% {results.study['name']}: needs \\usepackage{{booktabs}}\n"]
    for frame in grouped_tables(results):
        frame.index.name = None  # pandas would give it a row of its own
        style = frame.style.format(escape_latex)
        style = style.format_index(escape_latex, axis="index").format_index(escape_latex, axis="columns")
        texts.append(style.to_latex(hrules=True, multicol_align="c", column_format="l" + "r" * frame.shape[1]))
    return "\n".join(texts)
