"""The report of a study or a run: terminal tables, CSV, LaTeX, figures, and one self-contained HTML page."""

import contextlib
import dataclasses
import functools
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
import pandas as pd
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from rich import box
from rich.cells import cell_len
from rich.table import Table

from bertlab.console import Console
from bertlab.errors import UserError
from bertlab.files import whole_file, write_text
from bertlab.locks import alone
from bertlab.run import StudyDirectory
from bertlab.studies import plots
from bertlab.studies.comparisons import Comparison, compare_all, highest_beyond_chance
from bertlab.studies.curves import curves, mean_curves, score_curves, scores_by_examples, shared_curves, untrained
from bertlab.studies.explore import explore_page
from bertlab.studies.findings import findings, loss_notices, notices
from bertlab.studies.measurements import X_AXES, Measure, Results, cost, load, scores
from bertlab.studies.same_data import compare_data
from bertlab.studies.seeds import seed_counts, summarise
from bertlab.studies.selection import at_selected_labels, rate_rows, selections
from bertlab.studies.tables import (
    COST,
    SCALES,
    SCORES,
    column_notes,
    grouped_tables,
    is_finetuning,
    notes,
    score_label,
    seeds_text,
)
from bertlab.studies.text import MISSING, escape_latex, plain_text, seconds_text, spread

# Notes below LaTeX tables with these columns; the page has them once, below all tables.
LATEX_NOTES = {
    SCORES: "Mean ± standard deviation over the given number of seeds; one seed has no deviation.",
    SCALES: "Mean ± standard deviation over seeds.",
    COST: "Cost is the mean over seeds.",
}
ENVIRONMENT_LABELS = {"memory_gb": "memory (GB)"}  # of those whose key does not read as words
NUMBERS = ("none", "one measure", "two measures", "three measures", "four measures", "five measures")
FEW_POINTS = 4  # a single run's curve of fewer has the losses in training beside it
FIGURE_WIDTH = {False: 2.4, True: 4.8}  # inches of a panel of learning curves, of a study and of a single run
WIDEST_COLUMN = 32  # of a terminal's table; longer texts fold


@dataclasses.dataclass(frozen=True)
class Shown:
    """What several parts of a report show, from `show`.

    Attributes:
        compared: From `compare_all`.
        tables, notes, column_notes: From `grouped_tables`, `notes` and `column_notes` of `bertlab.studies.tables`.
        notices, findings: From `bertlab.studies.findings`.
    """

    compared: Sequence[Comparison]
    tables: Sequence[pd.DataFrame]
    notes: Mapping[str, str]
    column_notes: Mapping[str, str]
    notices: Sequence[str]
    findings: Sequence[str]


def show(results: Results) -> Shown:
    """Compares the variants of a study, and works out its tables and sentences."""
    compared = compare_all(results)
    tables = grouped_tables(results, compared)
    below = notes(results), column_notes(results, tables)
    return Shown(compared, tables, *below, notices(results) + loss_notices(results), findings(results, compared))


def report(path: str | os.PathLike, *, console: Console | None = None) -> Path:
    """Writes the report of a study or of a single run and prints its tables.

    Writes `report.html` and the interactive `explore.html` (both self-contained), `report/table.tex` (booktabs),
    `report/figures/*.{svg,png}`, and `report/*.csv` in raw units (see `csv_tables`); an empty table has no file.

    Args:
        path: The directory of a study or of a run.
        console: Where to print; default the terminal.

    Returns:
        The path of `report.html`.

    Raises:
        UserError: `path` holds neither a study nor a run, or one of its files is damaged, or what lies where the report is
            written is of another kind.
    """
    console = console or Console()
    results = load(path)
    said = show(results)
    place = StudyDirectory(results.path)
    with alone(place.report, wait=True), _refusing_what_is_in_the_way():
        _write(results, said, place)
    print_report(said, place.page, console)
    return place.page


def numbers(path: str | os.PathLike) -> list[dict[str, Any]]:
    """The rows of `report/table.csv`: mean, spread and seeds of each variant in each measure, in raw units (`summarise`)."""
    return summarise(load(path)).to_dict("records")


@contextlib.contextmanager
def _refusing_what_is_in_the_way() -> Iterator[None]:
    """Names a file where a folder is to be, or a folder where a file is to be."""
    try:
        yield
    except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
        wanted = Path(error.filename2 or error.filename)  # the second is what a file was to be moved to
        there = next(path for path in (wanted, *wanted.parents) if os.path.lexists(path))
        kind = "a folder, and the report needs a file" if there.is_dir() else "a file, and the report needs a folder"
        raise UserError(f"{there} is {kind} of this name; move or delete it, and run the same command again") from None


def _write(results: Results, said: Shown, place: StudyDirectory) -> None:
    """Writes the report's files."""
    directory = place.report
    (directory / "figures").mkdir(parents=True, exist_ok=True)
    for name, frame in csv_tables(results, said.compared).items():
        if frame.empty:
            (directory / f"{name}.csv").unlink(missing_ok=True)  # of an earlier report
        else:
            write_text(directory / f"{name}.csv", frame.to_csv(index=False))
    write_text(directory / "table.tex", latex(results.study["name"], said))
    for name, figure in figures(results).items():
        write_figure(figure, directory / "figures" / name)
    write_text(place.page, html_page(results, said))
    write_text(place.explore, explore_page(results))


def csv_tables(results: Results, compared: Sequence[Comparison]) -> dict[str, pd.DataFrame]:
    """The tables that are written as CSV, in raw units.

    Returns:
        `runs` (`Results.runs`), `measurements` (`Results.measurements`), `curves` (`Results.metrics`), `table` (`summarise`),
        `scores` (`selections`), `rates` (`rate_rows`), `score_curves`, `differences` (a row per `Comparison`) and `published`.
    """
    published = results.study.get("published") or {"columns": [], "rows": {}, "source": ""}
    printed = [
        {"variant": variant, **dict(zip(published["columns"], values)), "source": published["source"]}
        for variant, values in published["rows"].items()
    ]
    columns = ("family", "variant", "other", "mean", "sd", "low", "high", "p", "corrections", "pairs")
    differences = [of.measure._asdict() | {name: getattr(of, name) for name in columns} for of in compared]
    return {
        "runs": results.runs,
        "measurements": results.measurements,
        "curves": results.metrics,
        "table": summarise(results),
        "scores": selections(results),
        "rates": rate_rows(results),
        "score_curves": score_curves(results, scores(results)),
        "differences": pd.DataFrame(differences),
        "published": pd.DataFrame(printed),
    }


def latex(name: str, said: Shown) -> str:
    """The report's tables for a paper, each with its notes below (needs \\usepackage{booktabs}); `name` is the study's."""
    texts, first = [f"% {name}: needs \\usepackage{{booktabs}}\n"], said.notices
    for frame in said.tables:
        style = frame.rename_axis(None).style.format(escape_latex)  # pandas would give a named index a row of its own
        style = style.format_index(escape_latex, axis="index").format_index(escape_latex, axis="columns")
        texts.append(style.to_latex(hrules=True, multicol_align="c", column_format="l" + "r" * frame.shape[1]))
        groups = dict.fromkeys(group for group, _ in frame.columns)
        kinds = (LATEX_NOTES, said.column_notes, said.notes)
        below = [notes_of[group] for group in groups for notes_of in kinds if group in notes_of] + first
        if below:
            note = escape_latex(" ".join(" ".join(below).split()))
            texts[-1] += f"\\par\\smallskip\n\\parbox{{\\linewidth}}{{\\footnotesize {note}}}\n"
        first = []
    return "\n".join(texts)


def figures(results: Results) -> dict[str, Figure]:
    """The figures that are written as files: name -> figure."""
    results = at_selected_labels(results)
    styles = plots.styles_of(results)
    drawn = {}
    metrics = curves(results)
    if losses := plots.loss_metrics(metrics):
        means, more = mean_curves(metrics), of_learning_curves(results, metrics)
        drawn["learning_curves"] = plots.learning_curves(means, losses, axes_of(results, means), styles, **more)
    by_examples = scores_by_examples(results, measures := scores(results))
    if len(by_examples):  # more readable than a bar for each number
        drawn["scores_by_examples"] = plots.example_curves(by_examples, plots.line_styles(by_examples.assign(trained="")))
    elif measures and results.axes:  # one bar would only repeat its number
        drawn["downstream"] = plots.downstream_bars(results, measures, styles)
    if len(curve := score_curves(results, measures)):
        names = list(dict.fromkeys(curve["metric"]))
        drawn["score_curves"] = plots.score_curves(curve, names, axes_of(results, curve), styles)
    for figure in score_maps(results):
        drawn["heat_map"] = figure
    if plots.has_code_lengths(results):
        drawn["code_lengths"] = plots.code_lengths(results, styles)
    return drawn


def axes_of(results: Results, table: pd.DataFrame) -> list[str]:
    """The horizontal axes of curves: all with anything to measure along; only steps of a single run, whose line is the same."""
    return [axis for axis in X_AXES if results.axes and table[axis].max() > 0] or ["step"]


def of_learning_curves(results: Results, metrics: pd.DataFrame) -> dict[str, Any]:
    """More arguments of `plots.learning_curves`: a panel's width, and the losses in training of a run with few other points."""
    trained, valid = (metrics[metrics["split"] == split] for split in ("train", "valid"))
    few = not results.axes and len(valid) and valid.groupby("metric")["step"].nunique().max() < FEW_POINTS
    return {"width": FIGURE_WIDTH[not results.axes], "training": trained if few and len(trained) else None}


def score_maps(results: Results) -> list[Figure]:
    """A heat map of variants by tasks, if there are enough of both to show a pattern."""
    measures = scores(results)
    scored = pd.DataFrame({measure.name: results.values(measure) for measure in measures}).notna().any(axis=1).to_numpy()
    enough = len(measures) > 1 and results.runs.loc[scored, "variant"].nunique() > 2
    return [plots.heat_map(results, measures)] if enough else []


def lay_out(figure: Figure) -> None:
    """Fixes the places of a figure's parts, as SVG needs them; a file is then drawn once, and not first to find them."""
    canvas = FigureCanvasSVG(figure)
    figure.set_dpi(canvas.fixed_dpi)
    with matplotlib.rc_context(plots.STYLE):
        figure.get_layout_engine().execute(figure)
    figure.set_layout_engine(None)


def figure_svg(figure: Figure, file: Path | io.StringIO, background: str = "none") -> None:
    """Saves a figure as SVG with text as text, the same bytes each time."""
    if figure.get_layout_engine() is not None:
        lay_out(figure)
    with matplotlib.rc_context(plots.STYLE):
        figure.savefig(file, format="svg", facecolor=background, metadata={"Date": None, "Creator": None})


def write_svg(figure: Figure, path: Path, background: str = "none") -> None:
    """Saves a figure as an SVG file, with this background, in one move."""
    with whole_file(path) as partial:
        figure_svg(figure, partial, background)


def write_figure(figure: Figure, path: Path, background: str = "none") -> None:
    """Saves a figure as `path`.svg, with this background, and as `path`.png, each in one move."""
    write_svg(figure, path.with_name(f"{path.name}.svg"), background)
    with whole_file(path.with_name(f"{path.name}.png")) as partial:
        figure.savefig(partial, format="png", dpi=160, facecolor="white")


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
    return re.sub(r"<svg [^>]*>", lambda _: opening, svg, count=1)


def print_report(said: Shown, html: Path, console: Console) -> None:
    """Prints the tables and findings on the terminal."""
    for frame in said.tables:
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
            if group in said.notes:
                console.print(f"{said.notes[group]}\n", markup=False, highlight=False)
    for sentence in [*said.notices, *said.findings]:
        console.print(sentence, markup=False, highlight=False)
    console.print(f"report: {html}", markup=False, highlight=False, soft_wrap=True)


def print_columns(console: Console, labels: Sequence[str], columns: Mapping[str, Sequence[str]]) -> None:
    """Prints a table; in a narrow terminal with folded labels and heads, and in several blocks of columns.

    Every block repeats the column "seeds", if there is one.
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
            continue  # each run's worker has its own; study.json has the study's command
        values: dict[str, list[str]] = {}
        for run, environment in environments.items():
            values.setdefault(plain_text(environment.get(key, "not recorded")), []).append(run)
        text = next(iter(values))
        if len(values) > 1:
            listing = (f"{value or 'none'} ({_of_runs(runs)})" for value, runs in values.items())
            text = "differs between runs: " + "; ".join(listing)
        if text:
            rows.append((ENVIRONMENT_LABELS.get(key, key.replace("_", " ")), text))
    return rows


def _of_runs(names: Sequence[str], most: int = 6) -> str:
    """The names of runs, or, if they are many, their number and two of them."""
    return ", ".join(names) if len(names) <= most else f"{len(names)} runs, such as {names[0]} and {names[-1]}"


def html_page(results: Results, said: Shown) -> str:
    """The report as one HTML page that loads nothing."""
    everything, results = results, at_selected_labels(results)
    styles = plots.styles_of(results)
    same, problems = compare_data(everything)
    summary = summarise(results)
    metrics = curves(results)
    means = mean_curves(metrics)
    along = score_curves(results, scores(results))
    axes, score_axes, more = axes_of(results, means), axes_of(results, along), of_learning_curves(results, metrics)
    learning = functools.partial(plots.learning_curves, **more)
    bars = [
        inline_svg(plots.downstream_bars(results, [measure], styles), f"b{i}", f"{measure.name} on test by variant")
        for i, measure in enumerate(scores(results) if results.axes else ())
    ]
    maps = [
        {
            "svg": inline_svg(drawn, f"m{i}", "test scores of variants by task"),
            "narrowest": round(86 * drawn.get_figwidth()),  # CSS pixels: its text is 11 of them high, on a phone too
            "widest": round(115 * drawn.get_figwidth()),
        }
        for i, drawn in enumerate(score_maps(results))
    ]
    lengths = plots.code_lengths(results, styles) if plots.has_code_lengths(results) else None
    template = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    ).from_string(resources.files("bertlab.studies").joinpath("report.html.j2").read_text(encoding="utf-8"))
    return template.render(
        study=results.study,
        findings=said.findings,
        notices=said.notices,
        data_differ=bool(problems),
        tables=html_tables(results, said),
        column_notes=" ".join(said.column_notes.values()),
        curves=html_curves(learning, means, plots.loss_metrics(metrics), axes, styles, "loss"),
        axes=NUMBERS[len(axes)],
        has_training=more["training"] is not None,
        tuned=is_finetuning(results),
        score_curves=html_curves(plots.score_curves, along, list(dict.fromkeys(along["metric"])), score_axes, styles, "score"),
        score_axes=NUMBERS[len(score_axes)],
        bars=bars,
        maps=maps,
        code_lengths=inline_svg(lengths, "l", "bits per byte by variant") if lengths else "",
        references=untrained(results),
        least=bool(results.measures(stage="most_frequent")),
        shared=shared_curves(results),
        seeds=seeds_of_figures(results),
        several_seeds=bool((summary["seeds"] > 1).any()),
        single=not results.axes,
        all_metrics=all_metrics(results, summary),
        variants=results.variants,
        runs=run_rows(everything),
        same_data=same,
        environment=environment_rows(results.environments),
    )


def html_curves(
    draw: Callable[..., Figure],
    table: pd.DataFrame,
    names: Sequence[str],
    axes: Sequence[str],
    styles: Mapping[str, plots.LineStyle],
    prefix: str,
) -> list[dict[str, Any]]:
    """A row of the page for each metric: its name with the unit, a panel for each horizontal axis, and its legend.

    Args:
        draw: `plots.learning_curves` or `plots.score_curves`.
        table: What it draws.
        names: The metrics.
        axes: The horizontal axes.
        styles: Variant -> style.
        prefix: Of the ids in the page.
    """
    rows = []
    for i, name in enumerate(names):
        variants = set(table.loc[table["metric"] == name, "variant"])
        shown = [variant for variant in styles if variant in variants]
        panels = [
            inline_svg(draw(table, [name], [axis], styles, legend=False), f"{prefix}{i}-{axis}", f"{name} against {axis}")
            for axis in axes
        ]
        legend = [(v, inline_svg(legend_sample(styles[v]), f"{prefix}-key{i}-{j}", "")) for j, v in enumerate(shown)]
        rows.append({"name": plots.metric_label(name), "panels": panels, "legend": legend})
    return rows


def legend_sample(style: plots.LineStyle) -> Figure:
    """A short piece of a variant's line for the legend in HTML."""
    figure = Figure(figsize=(0.5, 0.16))
    looks = {"color": style.colour, "linestyle": style.dashes, "linewidth": 1.8, "marker": style.marker, "markersize": 4.5}
    figure.add_artist(Line2D([0.02, 0.5, 0.98], [0.5, 0.5, 0.5], markevery=[1], **looks))
    return figure


def html_tables(chosen: Results, said: Shown) -> list[dict[str, Any]]:
    """The tables of the page, with a mark on the score that is the highest of its column by more than chance.

    `chosen` are the results at the selected labels.
    """
    best = {score_label(measure): highest_beyond_chance(chosen, said.compared, measure) for measure in scores(chosen)}
    tables = []
    for frame in said.tables:
        groups = [group for group, _ in frame.columns]
        body = [(variant, [(row[c], best.get(c[1]) == variant) for c in frame.columns]) for variant, row in frame.iterrows()]
        tables.append(
            {
                "heads": [(group, groups.count(group)) for group in dict.fromkeys(groups)],
                "columns": [name for _, name in frame.columns],
                "rows": body,
                "note": " ".join(note for group, note in said.notes.items() if group in groups),
            }
        )
    return tables


def all_metrics(results: Results, summary: pd.DataFrame) -> list[tuple[str, str, list[str]]]:
    """(Metric, seeds, cell per variant) for everything that was measured except costs; "mlm/loss, valid" is not of test.

    The seeds are a count for each variant in order, or one count if all variants with the metric have the same.
    """
    rows = []
    for of_measure, of in summary.groupby(list(Measure._fields), sort=False):
        measure = Measure(*of_measure)
        if measure.is_cost:
            continue
        found = of.set_index("variant").to_dict("index")
        cells = [spread(found[v]["mean"], found[v]["sd"], 4) if v in found else MISSING for v in results.variants]
        counts = [seeds_text(found[v]["seeds"], found[v]["runs"]) if v in found else MISSING for v in results.variants]
        alike = set(counts) - {MISSING}
        name = measure.name if measure.split == "test" else f"{measure.name}, {measure.split}"
        rows.append((name, alike.pop() if len(alike) == 1 else ", ".join(counts), cells))
    return rows


def seeds_of_figures(results: Results) -> str:
    """How many seeds the variants in the figures have: "3 seeds", or "2 to 3 seeds"; "" for a single run."""
    counts = [count for count in seed_counts(results).values() if count[0]]
    if not (results.axes and counts):
        return ""
    low, high = min(counts), max(counts)
    text = seeds_text(*high) if low == high else f"{low[0]} to {high[0]}"
    return "1 seed" if text == "1" else f"{text} seeds"


def run_rows(results: Results) -> list[list[str]]:
    """(name, status, steps, time, data hash) of each run."""
    steps, seconds = results.values(cost("step")), results.values(cost("seconds"))
    return [
        [
            run["run"],
            run["status"],
            MISSING if pd.isna(steps[run["run"]]) else f"{steps[run['run']]:,.0f}",
            MISSING if pd.isna(seconds[run["run"]]) else seconds_text(seconds[run["run"]]),
            (run["data_hash"] or MISSING)[:12],
        ]
        for run in results.runs.to_dict("records")
    ]
