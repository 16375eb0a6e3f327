"""The report of a study or a run: terminal tables, CSV, LaTeX, figures, and one self-contained HTML page."""

import io
import os
import re
from collections.abc import Mapping
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
from bertlab.studies.findings import findings, notices
from bertlab.studies.results import X_AXES, Results, compare_data, load, summarise
from bertlab.studies.study import COSTS, REPORT_DIRECTORY
from bertlab.studies.tables import (
    DIFFERENCES,
    SEEDS,
    grouped_tables,
    latex_table,
    notes,
    score_columns,
    score_label,
    wide_table,
)
from bertlab.studies.text import MISSING, plain_text, seconds_text, spread


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
            shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
            shown.add_column("variant", no_wrap=group not in (SEEDS, DIFFERENCES))
            for _, name in columns:
                shown.add_column(name, justify="right", overflow="fold", no_wrap=group == SEEDS and name != "chosen")
            for variant, row in frame.iterrows():
                shown.add_row(variant, *(row[c] for c in columns))
            console.print(shown, markup=False, highlight=False)
            if group in said:
                console.print(f"{said[group]}\n", markup=False, highlight=False)
    for sentence in [*notices(results), *findings(results)]:
        console.print(sentence, markup=False, highlight=False)
    console.print(f"report: {html}", markup=False, highlight=False, soft_wrap=True)


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
    maps = [inline_svg(drawn, f"m{i}", "test scores of variants by task") for i, drawn in enumerate(score_maps(results))]
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
        maps=maps,
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
