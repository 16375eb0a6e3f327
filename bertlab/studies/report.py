"""The report of a study or a run: terminal tables, CSV, LaTeX, figures, and one self-contained HTML page."""

import io
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
import pandas as pd
from matplotlib.figure import Figure
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from bertlab.studies import plots
from bertlab.studies.findings import findings, notices
from bertlab.studies.results import (
    X_AXES,
    Results,
    comparable,
    compare_data,
    curves,
    difference,
    load,
    shared_curves,
    summarise,
)
from bertlab.studies.selection import selections
from bertlab.studies.study import COSTS, REPORT_DIRECTORY, TRANSFER_COSTS
from bertlab.studies.tables import (
    COST,
    COST_NOTE,
    LOSSES,
    LOSSES_NOTE,
    SCALES,
    SCORES,
    grouped_tables,
    highest_beyond_chance,
    mean_scores,
    notes,
    pairs_to_correct_for,
    score_columns,
    score_label,
    seed_counts,
    seeds_text,
    wide_table,
)
from bertlab.studies.text import MISSING, escape_latex, plain_text, seconds_text, spread

# What LaTeX tables say of these columns; the page says it once, below all of them.
LATEX_NOTES = {
    SCORES: "Mean ± standard deviation over seeds, as many as stand beside; one seed has no deviation.",
    SCALES: "Mean ± standard deviation over seeds.",
    LOSSES: LOSSES_NOTE,
    COST: f"Cost is the mean over seeds. {COST_NOTE}",
}
WIDEST_COLUMN = 32  # of a terminal's table; longer texts fold


def report(path: str | os.PathLike, *, console: Console | None = None) -> Path:
    """Writes the report of a study or of a single run and prints its table.

    Writes `report.html` (self-contained), `report/table.tex` (booktabs), `report/figures/*.{svg,png}`, and as
    `report/*.csv` in raw units: table (means, standard deviations and seeds per variant), runs (one row per run), curves (one
    row per number of a metrics.jsonl), scores (`selections`), differences (of every two variants) and published. What a study
    has not got has no file.

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
    for name, frame in csv_tables(results).items():
        if frame.empty:
            (directory / f"{name}.csv").unlink(missing_ok=True)  # of an earlier report
        else:
            frame.to_csv(directory / f"{name}.csv", index=False)
    (directory / "table.tex").write_text(latex(results), encoding="utf-8")
    for name, figure in figures(results).items():
        figure_svg(figure, directory / "figures" / f"{name}.svg")
        figure.savefig(directory / "figures" / f"{name}.png", dpi=160, facecolor="white")
    html = results.path / "report.html"
    html.write_text(html_page(results), encoding="utf-8")
    print_report(results, html, console)
    return html


def csv_tables(results: Results) -> dict[str, pd.DataFrame]:
    """The tables that are written as CSV unless they are empty, in raw units: name -> table."""
    published = results.study.get("published") or {"columns": [], "rows": {}, "source": ""}
    printed = [
        {"variant": variant, **dict(zip(published["columns"], values)), "source": published["source"]}
        for variant, values in published["rows"].items()
    ]
    return {
        "table": wide_table(results).reset_index(),
        "runs": results.runs,
        "curves": results.metrics,
        "scores": selections(results),
        "differences": differences(results),
        "published": pd.DataFrame(printed),
    }


def differences(results: Results) -> pd.DataFrame:
    """The differences (a minus b) of every two variants in every score, each by itself: nothing is corrected for their number.

    Returns:
        `metric`, `variant_a`, `variant_b`, and as `Difference` has them `mean`, `low` and `high` (95 %), `p` and `pairs`; and
        `comparisons`, the number to correct p by (Bonferroni): of pairs of variants with this metric, times the looks of a
        sweep that was to stop early. Empty for a study that selects: its test scores are of what was chosen alone.
    """
    names = ("mean", "low", "high", "p", "pairs")
    rows = []
    for metric in score_columns(results) if not results.study.get("select") else ():
        comparisons = pairs_to_correct_for(results, len(mean_scores(results, metric)))
        for a, b in itertools.combinations(results.variants, 2):
            if comparable(results, metric, a, b):
                found = difference(results, metric, a, b)
                said = {name: getattr(found, name) for name in names}
                rows.append({"metric": metric, "variant_a": a, "variant_b": b} | said | {"comparisons": comparisons})
    return pd.DataFrame(rows)


def latex(results: Results) -> str:
    """The report's tables for a paper, each with what is to be known of it below (needs \\usepackage{booktabs})."""
    texts = [f"% {results.study['name']}: needs \\usepackage{{booktabs}}\n"]
    said, first = notes(results), notices(results)
    for frame in grouped_tables(results):
        frame.index.name = None  # pandas would give it a row of its own
        style = frame.style.format(escape_latex)
        style = style.format_index(escape_latex, axis="index").format_index(escape_latex, axis="columns")
        texts.append(style.to_latex(hrules=True, multicol_align="c", column_format="l" + "r" * frame.shape[1]))
        groups = dict.fromkeys(group for group, _ in frame.columns)
        below = [notes_of[group] for group in groups for notes_of in (LATEX_NOTES, said) if group in notes_of] + first
        if below:
            note = escape_latex(" ".join(" ".join(below).split()))
            texts[-1] += f"\\par\\smallskip\n\\parbox{{\\linewidth}}{{\\footnotesize {note}}}\n"
        first = []
    return "\n".join(texts)


def figures(results: Results) -> dict[str, Figure]:
    """The figures that are written as files: name -> figure."""
    styles = plots.line_styles(results.runs)
    drawn = {}
    losses = plots.loss_metrics(curves(results))
    if losses:
        drawn["learning_curves"] = plots.learning_curves(curves(results), losses, X_AXES, styles)
    if score_columns(results):
        drawn["downstream"] = plots.downstream_bars(results.runs, score_columns(results), styles)
    for figure in score_maps(results):
        drawn["heat_map"] = figure
    return drawn


def score_maps(results: Results) -> list[Figure]:
    """A heat map of variants by tasks, where there are enough of both to see a pattern."""
    columns = score_columns(results)
    scored = results.runs.loc[results.runs[columns].notna().any(axis=1), "variant"].nunique()
    return [plots.heat_map(results.runs, columns)] if len(columns) > 1 and scored > 2 else []


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
    svg = svg.replace(plots.INK, "currentColor").replace(plots.GRID, "var(--grid)").replace(plots.PAGE, "var(--page)")
    svg = re.sub(r"'DejaVu Sans'", "system-ui, 'DejaVu Sans'", svg)
    width, height = (float(size) for size in re.search(r'viewBox="0 0 (\S+) (\S+)"', svg).groups())
    label = str(jinja2.filters.do_forceescape(description))
    opening = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{label}">'
    return re.sub(r"<svg [^>]*>", opening, svg, count=1)


def print_report(results: Results, html: Path, console: Console) -> None:
    """Prints the tables and findings on the terminal."""
    said = notes(results)
    for frame in grouped_tables(results):
        groups = [group for group, _ in frame.columns if group]
        counts = list(frame["", "seeds"]) if ("", "seeds") in frame else []
        for group in dict.fromkeys(groups):
            title, columns = group, [column for column in frame.columns if column[0] == group]
            if counts and len(set(counts)) == 1:  # leaves room for the numbers in a narrow terminal
                title += f", {counts[0]} {'seed' if counts[0] == '1' else 'seeds'} each"
            elif counts:
                columns = [("", "seeds"), *columns]
            console.print(title, style="bold", markup=False, highlight=False)  # a table's own title wraps at its width
            print_columns(console, list(frame.index), {column[1]: list(frame[column]) for column in columns})
            if group in said:
                console.print(f"{said[group]}\n", markup=False, highlight=False)
    for sentence in [*notices(results), *findings(results)]:
        console.print(sentence, markup=False, highlight=False)
    console.print(f"report: {html}", markup=False, highlight=False, soft_wrap=True)


def print_columns(console: Console, labels: Sequence[str], columns: Mapping[str, Sequence[str]]) -> None:
    """Prints a table; where the terminal is too narrow, with folded labels and heads, and in several blocks of columns.

    Every block has the column "seeds", if there is one.
    """
    total = lambda widths: sum(width + 2 for width in widths) + 1  # a space on either side of a column, and the edges
    longest = lambda texts: max(map(cell_len, texts))
    whole = [longest([head, *cells]) for head, cells in columns.items()]
    folded = [min(longest([*head.split(), *cells]), WIDEST_COLUMN) for head, cells in columns.items()]
    first = longest(["variant", *labels])
    if total([first, *whole]) > console.width:
        first = min(first, max(len("variant"), console.width * 2 // 5))
    widths = whole if total([first, *whole]) <= console.width else folded
    always = [i for i, head in enumerate(columns) if head == "seeds"]
    blocks = [list(always)]
    for i in range(len(always), len(widths)):
        if blocks[-1] != always and total([first, *(widths[j] for j in blocks[-1]), widths[i]]) > console.width:
            blocks.append(list(always))
        blocks[-1].append(i)
    for block in blocks:
        shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        shown.add_column("variant", width=first, overflow="fold")
        roomy = total([first, *(whole[i] for i in block)]) <= console.width
        for i in block:
            shown.add_column(list(columns)[i], justify="right", width=(whole if roomy else folded)[i], overflow="fold")
        for label, *cells in zip(labels, *columns.values()):
            shown.add_row(label, *(cells[i] for i in block))
        console.print(shown, markup=False, highlight=False)


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
    maps = [
        {
            "svg": inline_svg(drawn, f"m{i}", "test scores of variants by task"),
            "narrowest": round(86 * drawn.get_figwidth()),  # CSS pixels: its text is 11 of them high, on a phone too
            "widest": round(115 * drawn.get_figwidth()),
        }
        for i, drawn in enumerate(score_maps(results))
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
        losses_note=LOSSES_NOTE,
        cost_note=COST_NOTE,
        curves=rows,
        bars=bars,
        maps=maps,
        references=plots.untrained(results.runs),
        least=any(column.startswith("most_frequent/") for column in results.runs),
        shared=shared_curves(results),
        seeds=seeds_of_figures(results),
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
    """The tables of the page, with the score marked that is the highest of its column by more than chance."""
    best = {}
    for metric in score_columns(results) if not results.study.get("select") else ():
        best[score_label(metric)] = highest_beyond_chance(results, metric)
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


def all_metrics(results: Results, summary: pd.DataFrame) -> list[tuple[str, str, list[str]]]:
    """(Metric, seeds, cell per variant) for every held-out metric of pretraining and every downstream test metric.

    The seeds are a count for each variant in order, or one for all that have the metric.
    """
    rows = []
    for metric, of in summary[~summary["metric"].isin((*COSTS, *TRANSFER_COSTS))].groupby("metric", sort=False):
        found = of.set_index("variant").to_dict("index")
        cells = [spread(found[v]["mean"], found[v]["sd"], 4) if v in found else MISSING for v in results.variants]
        counts = [seeds_text(found[v]["seeds"], found[v]["runs"]) if v in found else MISSING for v in results.variants]
        alike = set(counts) - {MISSING}
        rows.append((metric, alike.pop() if len(alike) == 1 else ", ".join(counts), cells))
    return rows


def seeds_of_figures(results: Results) -> str:
    """Of how many seeds the variants in the figures are: "3 seeds", or "2 to 3 seeds"; nothing for a single run."""
    counts = [count for count in (seed_counts(results, variant) for variant in results.variants) if count[0]]
    if not (results.axes and counts):
        return ""
    low, high = min(counts), max(counts)
    text = seeds_text(*high) if low == high else f"{low[0]} to {high[0]}"
    return "1 seed" if text == "1" else f"{text} seeds"


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
