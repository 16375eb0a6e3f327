"""The report of a study or a run: terminal table, CSV, LaTeX, figures, and one self-contained HTML page."""

import io
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
import pandas as pd
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from bertlab.studies import plots
from bertlab.studies.results import (
    X_AXES,
    Results,
    compare_data,
    compare_texts,
    difference,
    load,
    primary_metric,
    summarise,
)
from bertlab.studies.selection import selections
from bertlab.studies.study import COSTS, REPORT_DIRECTORY
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
BOUND_NOTE = "≥ marks a lower bound that no model may be able to reach; nats above it are then at most those."
COST_LABELS = {
    "parameters": "parameters",
    "step": "steps",
    "tokens": "tokens",
    "supervised": "supervised positions",
    "flops": "FLOPs",
    "seconds": "time",
}
MISSING = "–"
WIDEST = 6  # scores side by side


def report(path: str | os.PathLike, *, console: Console | None = None) -> Path:
    """Writes the report of a study or of a single run and prints its table.

    Writes `report.html` (self-contained), `report/table.csv` (means, standard deviations and seeds per variant),
    `report/runs.csv` (one row per run), `report/table.tex` (booktabs) and `report/figures/*.{svg,png}`.

    Args:
        path: The directory of a study or of a run.
        console: Where to print; default the terminal.

    Returns:
        The path of `report.html`.

    Raises:
        UserError: There is no study or run at `path`, or one of its files is damaged.
    """
    console = console or Console()
    results = load(path)
    directory = results.path / REPORT_DIRECTORY
    (directory / "figures").mkdir(parents=True, exist_ok=True)
    results.runs.to_csv(directory / "runs.csv", index=False)
    wide_table(results).to_csv(directory / "table.csv")
    (directory / "table.tex").write_text(latex_table(results), encoding="utf-8")
    for name, figure in figures(results).items():
        figure_svg(figure, directory / "figures" / f"{name}.svg")
        figure.savefig(directory / "figures" / f"{name}.png", dpi=160, facecolor="white")
    html = results.path / "report.html"
    html.write_text(html_page(results), encoding="utf-8")
    print_report(results, html, console)
    return html


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


def grouped_tables(results: Results) -> list[pd.DataFrame]:
    """`table` in parts that fit on a page: scores with losses, common scale, over seeds, floors, and cost; with the seeds."""
    frame, apart = table(results), (selection_table(results), floor_table(results))
    whole = lambda wanted: [frame[[("", "seeds"), *columns]] for columns in side_by_side(frame, wanted)]
    last = [frame for frame in apart if not frame.empty]
    return [*whole((SCORES, LOSSES)), *whole((SCALES,)), *last, *whole((COST,))]


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
    return {SCALES: " ".join(of_scales), FLOORS: " ".join(of_floors), SEEDS: " ".join(of_seeds)}


def score_label(metric: str) -> str:
    """The head of a score's column: "package accuracy (%)"."""
    return plots.metric_label(metric).replace("/", " ")


def spread(mean: float, sd: float, digits: int) -> str:
    """ "71.4 ± 0.8", or "71.4" where there is one seed."""
    return f"{mean:.{digits}f}" if math.isnan(sd) else f"{mean:.{digits}f} ± {sd:.{digits}f}"


def count_text(value: float) -> str:
    """A count in three figures with its power of thousand: 4390000 -> "4.39 M", 1.2e15 -> "1.20 P"."""
    for power, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= power:
            unit = 1e3 if prefix == "k" else power
            scaled = value / unit
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f} {prefix}"
    return f"{value:,.0f}"


def seconds_text(value: float) -> str:
    """A duration: "42 s", "12.4 min", "3.1 h"."""
    return f"{value:.0f} s" if value < 120 else f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def score_text(value: float, metric: str) -> str:
    """A score with its unit: "71.4 %"."""
    return f"{100 * value:.1f}\N{NO-BREAK SPACE}%" if plots.percent_factor(metric) == 100 else f"{value:.3g}"


def points(value: float, metric: str) -> str:
    """An absolute difference of two scores: "3.1 points", with more digits where it is small."""
    value = abs(value) * plots.percent_factor(metric)
    text = f"{value:.1f}" if value >= 0.1 or value == 0 else f"{value:.2g}"
    return f"{text} points" if plots.percent_factor(metric) == 100 else f"{abs(value):.3g}"


def findings(results: Results) -> list[str]:
    """What the results show, in plain sentences computed from them."""
    finished = results.runs[results.runs["status"] == "finished"]
    if finished.empty:
        return ["No run is finished yet, so there is nothing to conclude."]
    if not results.axes:
        return [run_finding(results)]
    sentences = []
    counts = finished.groupby("variant").size()
    seeds = f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
    variants = f"{len(counts)} variants" if len(counts) > 1 else "One variant"
    verb = "were" if len(counts) > 1 else "was"
    if counts.max() < 2:
        sentences.append(
            f"{variants} {verb} run with one seed each. One seed cannot separate differences between "
            "variants from chance: read what follows as what happened once."
        )
    else:
        sentences.append(f"{variants} {verb} run with {seeds} seeds each; ± is the standard deviation over seeds.")
    if results.study.get("select"):
        return sentences  # which of what was selected among is best on test is nobody's to know
    references = plots.untrained(results.runs)
    for metric in score_columns(results):
        task, _, name = metric.partition("/")
        means = finished.groupby("variant", sort=False)[metric].mean().dropna().sort_values(ascending=False)
        if len(means) < 2:
            continue
        best, second = means.index[:2]
        sentence = (
            f"On {task} ({name}, test) {best} is best with {score_text(means[best], metric)}, "
            f"{gap(results, metric, best, second)} above {second}"
        )
        others = [v for v in references if v in means.index and v not in (best, second)]
        sentence += "".join(f" and {gap(results, metric, best, v)} above {v}" for v in others)
        sentences.append(sentence + ".")
        sentences += [
            comparison(results, metric, a, b) for a, b in mlm_and_ltr(results.variants) if a in means.index and b in means.index
        ]
    return sentences


def gap(results: Results, metric: str, variant: str, other: str) -> str:
    """The size of a difference with its spread over seeds: "3.1 points (± 0.5)"."""
    found = difference(results, metric, variant, other)
    text = points(found.mean, metric)
    return text if math.isnan(found.sd) else f"{text} (±\N{NO-BREAK SPACE}{points(found.sd, metric).split()[0]})"


def mlm_and_ltr(variants: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of variants that differ only in the label MLM against LTR, whatever their other labels."""

    def swapped(variant):
        labels = variant.split(", ")
        return ", ".join("ltr" if label.casefold() == "mlm" else label.casefold() for label in labels)

    names = {variant.casefold(): variant for variant in variants}
    return [(v, names[swapped(v)]) for v in variants if swapped(v) != v.casefold() and swapped(v) in names]


def comparison(results: Results, metric: str, variant: str, other: str) -> str:
    """Says honestly whether one variant is above another in a downstream score."""
    task = metric.partition("/")[0]
    found = difference(results, metric, variant, other)
    size = gap(results, metric, variant, other)
    if found.mean > 0:
        sentence = f"{variant} is above {other} on {task} by {size}"
    elif found.mean < 0:
        sentence = f"{variant} is not above {other} on {task} at this scale: it is {size} below"
    else:
        sentence = f"{variant} is not above {other} on {task} at this scale: the two are equal"
    if found.pairs == 1:
        return sentence + ", with one seed, which cannot separate the two."
    if found.pairs == 0:
        return sentence + ", without a seed that both have finished."
    spread_over = f"than the spread of that difference over {found.pairs} seeds"
    return (
        f"{sentence}, no more {spread_over}, so it settles nothing."
        if found.within_spread
        else (f"{sentence}, more {spread_over}.")
    )


def run_finding(results: Results) -> str:
    """The plain-language summary of a single run."""
    row = results.runs.iloc[0]
    sentence = (
        f"The run took {row['step']:,.0f} steps over {count_text(row['tokens'])} tokens in {seconds_text(row['seconds'])}"
    )
    for metric in plots.loss_metrics(results.metrics):
        curve = results.metrics[(results.metrics["split"] == "valid") & (results.metrics["metric"] == metric)]
        first, last = curve["value"].iloc[0], curve["value"].iloc[-1]
        sentence += f"; {metric} on held-out text went from {first:.3f} to {last:.3f}"
    for metric in score_columns(results):
        sentence += f"; {metric} on test is {score_text(row[metric], metric)}"
    return sentence + ". One run says nothing about differences."


def figures(results: Results) -> dict[str, Figure]:
    """The figures that are written as files: name -> figure."""
    styles = plots.line_styles(results.runs)
    drawn = {}
    losses = plots.loss_metrics(curves(results))
    if losses:
        drawn["learning_curves"] = plots.learning_curves(curves(results), losses, X_AXES, styles)
    if score_columns(results):
        drawn["downstream"] = plots.downstream_bars(results.runs, score_columns(results), styles)
    return drawn


def curves(results: Results) -> pd.DataFrame:
    """`Results.metrics` of finished runs; of the others only where no run of their variant is finished."""
    finished = set(results.runs.loc[results.runs["status"] == "finished", "name"])
    variants = set(results.runs.loc[results.runs["status"] == "finished", "variant"])
    return results.metrics[results.metrics["run"].isin(finished) | ~results.metrics["variant"].isin(variants)]


def figure_svg(figure: Figure, file: Path | io.StringIO) -> None:
    """Saves a figure as SVG with text as text, the same bytes each time."""
    with matplotlib.rc_context(plots.STYLE):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})


def inline_svg(figure: Figure, prefix: str, description: str) -> str:
    """A figure as an SVG element to put into HTML: own ids, the page's colours and fonts, nothing to fetch."""
    buffer = io.StringIO()
    figure_svg(figure, buffer)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)
    svg = svg.replace("xlink:href=", "href=")
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r'href="#', f'href="#{prefix}-', svg)
    svg = svg.replace("url(#", f"url(#{prefix}-")
    svg = svg.replace(plots.INK, "currentColor").replace(plots.GRID, "var(--grid)")
    svg = re.sub(r"'DejaVu Sans'", "system-ui, 'DejaVu Sans'", svg)
    width, height = (float(size) for size in re.search(r'viewBox="0 0 (\S+) (\S+)"', svg).groups())
    label = str(jinja2.filters.do_forceescape(description))
    opening = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{label}">'
    return re.sub(r"<svg [^>]*>", opening, svg, count=1)


def latex_table(results: Results) -> str:
    """The report's tables for a paper: scores with losses, then cost (needs \\usepackage{booktabs})."""
    texts = [f"% {results.study['name']}: needs \\usepackage{{booktabs}}\n"]
    for frame in grouped_tables(results):
        frame.index.name = None  # pandas would give it a row of its own
        style = frame.style.format(escape_latex)
        style = style.format_index(escape_latex, axis="index").format_index(escape_latex, axis="columns")
        texts.append(style.to_latex(hrules=True, multicol_align="c", column_format="l" + "r" * frame.shape[1]))
    return "\n".join(texts)


def escape_latex(text: str) -> str:
    """Escapes what LaTeX would read as commands."""
    names = {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "≥": r"$\geq$",
        "–": "--",
    }
    return "".join(names.get(c, "\\" + c if c in "&%$#_{}" else c) for c in str(text))


def print_report(results: Results, html: Path, console: Console) -> None:
    """Prints the tables and findings on the terminal."""
    whole, said = table(results), notes(results)
    apart = {FLOORS: floor_table(results), SEEDS: selection_table(results)}
    for group in (SCORES, LOSSES, SEEDS, SCALES, FLOORS, COST):
        frame = apart.get(group, whole)
        parts = side_by_side(frame, (group,))
        for columns in parts:
            title, counts = group, list(frame["", "seeds"])
            if len(set(counts)) == 1:  # leaves room for the numbers in a narrow terminal
                title += f", {counts[0]} {'seed' if counts[0] == '1' else 'seeds'} each"
            else:
                columns = [("", "seeds"), *columns]
            shown = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
            shown.add_column("variant", no_wrap=True)
            for _, name in columns:
                shown.add_column(name, justify="right", overflow="fold", no_wrap=group == SEEDS and name != "chosen")
            for variant, row in frame.iterrows():
                shown.add_row(variant, *(row[c] for c in columns))
            console.print(shown, markup=False, highlight=False)
        if group in said and parts:
            console.print(said[group], markup=False, highlight=False)
    for sentence in [*notices(results), *findings(results)]:
        console.print(sentence, markup=False, highlight=False)
    console.print(f"report: {html}", markup=False, highlight=False, soft_wrap=True)


def notices(results: Results) -> list[str]:
    """What the reader must know before the numbers: data that differ, runs that are missing."""
    _, problems = compare_data(results)
    texts = []
    if problems:
        texts.append(
            "The runs did not read the same data in the same order, so their differences are not due to the "
            f"variants alone. {'. '.join(problems)}."
        )
    texts += compare_texts(results)
    for name in (column.removeprefix("floor/") for column in results.runs.columns if column.startswith("floor/")):
        above, error = results.runs[f"above/{name}"], results.runs[f"above_error/{name}"]
        if leaking := list(results.runs.loc[above < -3 * error, "name"]):
            texts.append(
                f"The loss of {name} is below its floor by more than three standard errors in {', '.join(leaking)}: no"
                " model can be that good, so it sees what it is asked (a leak)."
            )
    for status, wording in (("failed", "failed"), ("unfinished", "not finished")):
        runs = results.runs[results.runs["status"] == status]
        verb = "is" if len(runs) == 1 else "are"
        did = wording if status == "failed" else f"{verb} {wording}"
        if len(runs) and results.axes:
            names = ", ".join(f"{r['name']} ({r['error']})" if r["error"] else r["name"] for _, r in runs.iterrows())
            texts.append(f"{len(runs)} of {len(results.runs)} runs {did} and {verb} left out of tables: {names}.")
        elif len(runs):
            texts.append(f"This run {did}" + (f": {runs['error'].iloc[0]}." if runs["error"].iloc[0] else "."))
    return texts


def environment_rows(environments: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(name, text) for each entry of the runs' environment.json; several lines where runs differ."""
    rows = []
    for key in dict.fromkeys(key for environment in environments.values() for key in environment):
        if key == "command" and len(environments) > 1:
            continue  # each run's own worker command; the study's command stands in study.json
        values: dict[str, list[str]] = {}
        for run, environment in environments.items():
            values.setdefault(plain_text(environment.get(key)), []).append(run)
        text = next(iter(values))
        if len(values) > 1:
            listing = (f"{value or 'none'} ({', '.join(runs)})" for value, runs in values.items())
            text = "differs between runs: " + "; ".join(listing)
        if text:
            rows.append((key.replace("_", " "), text))
    return rows


def plain_text(value: Any) -> str:
    """A JSON value on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        counts = Counter(plain_text(item) for item in value)
        return ", ".join(f"{text} × {count}" if count > 1 else text for text, count in counts.items())
    return str(value)


def html_page(results: Results) -> str:
    """The report as one HTML page that loads nothing."""
    styles = plots.line_styles(results.runs)
    same, problems = compare_data(results)
    summary = summarise(results.runs)
    metrics = curves(results)
    rows = []
    for i, name in enumerate(plots.loss_metrics(metrics)):
        panels = [
            inline_svg(
                plots.learning_curves(metrics, [name], [axis], styles, legend=False),
                f"c{i}-{axis}",
                f"{name} on held-out text against {axis}",
            )
            for axis in X_AXES
        ]
        valid = metrics[(metrics["split"] == "valid") & (metrics["metric"] == name) & (metrics["step"] > 0)]
        shown = [variant for variant in styles if variant in set(valid["variant"])]
        legend = [(variant, inline_svg(legend_sample(styles[variant]), f"k{i}-{j}", "")) for j, variant in enumerate(shown)]
        rows.append({"name": name, "panels": panels, "legend": legend})
    bars = [
        inline_svg(plots.downstream_bars(results.runs, [name], styles), f"b{i}", f"{name} on test by variant")
        for i, name in enumerate(score_columns(results))
    ]
    template = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(resources.files("bertlab.studies").joinpath("report.html.j2").read_text(encoding="utf-8"))
    return template.render(
        study=results.study,
        findings=findings(results),
        notices=notices(results),
        data_differ=bool(problems),
        tables=html_tables(results),
        curves=rows,
        bars=bars,
        references=plots.untrained(results.runs),
        several_seeds=bool((summary["seeds"] > 1).any()),
        single=not results.axes,
        all_metrics=all_metrics(results, summary),
        variants=results.variants,
        runs=run_rows(results),
        same_data=same,
        environment=environment_rows(results.environments),
    )


def legend_sample(style: plots.LineStyle) -> Figure:
    """A short piece of a variant's line for the legend in HTML."""
    figure = Figure(figsize=(0.5, 0.16))
    panel = figure.add_axes((0, 0, 1, 1), frameon=False, xticks=[], yticks=[], xlim=(0, 1), ylim=(-1, 1))
    panel.plot([0.02, 0.98], [0, 0], color=style.colour, linestyle=style.dashes, linewidth=1.8)
    panel.plot([0.5], [0], color=style.colour, marker=style.marker, markersize=4.5)
    return figure


def html_tables(results: Results) -> list[dict[str, Any]]:
    """The tables of the page, with the best score of each column marked."""
    finished = results.runs[results.runs["status"] == "finished"]
    best = {}
    for metric in score_columns(results):
        means = finished.groupby("variant")[metric].mean().dropna()
        if len(means) > 1 and not results.study.get("select"):
            best[score_label(metric)] = means.idxmax()
    tables, said = [], notes(results)
    for frame in grouped_tables(results):
        groups = [group for group, _ in frame.columns]
        body = [(variant, [(row[c], best.get(c[1]) == variant) for c in frame.columns]) for variant, row in frame.iterrows()]
        tables.append(
            {
                "heads": [(group, groups.count(group)) for group in dict.fromkeys(groups)],
                "columns": [name for _, name in frame.columns],
                "rows": body,
                "note": " ".join(note for group, note in said.items() if group in groups),
            }
        )
    return tables


def all_metrics(results: Results, summary: pd.DataFrame) -> list[tuple[str, list[str]]]:
    """(metric, cell per variant) for every held-out metric of pretraining and every downstream test metric."""
    cells = summary[~summary["metric"].isin(COSTS)].set_index(["metric", "variant"])
    return [
        (
            metric,
            [
                spread(cells.loc[(metric, v), "mean"], cells.loc[(metric, v), "sd"], 4)
                if (metric, v) in cells.index
                else MISSING
                for v in results.variants
            ],
        )
        for metric in dict.fromkeys(summary["metric"])
        if metric not in COSTS
    ]


def run_rows(results: Results) -> list[list[str]]:
    """(name, status, steps, time, data hash) of each run."""
    return [
        [
            row["name"],
            row["status"],
            MISSING if pd.isna(row["step"]) else f"{row['step']:,.0f}",
            MISSING if pd.isna(row["seconds"]) else seconds_text(row["seconds"]),
            (row["data_hash"] or MISSING)[:12],
        ]
        for _, row in results.runs.iterrows()
    ]
