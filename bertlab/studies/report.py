"""A study's page: the answer, a figure of differences, scores, warnings; the rest is folded.

HTML and Markdown come from one template, templates/page.jinja.
"""

import base64
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
import pandas as pd
from matplotlib.figure import Figure

from bertlab.studies import comparisons, doctor, plots, tables
from bertlab.studies.results import SUFFIX, Results, write_published

DOTS_CAPTION = (
    "Paired by seed where two variants share seeds. Bars: 95 % intervals over seeds (Student's)."
    " Filled: decided after Holm's correction over the differences of a task; an empty dot may be"
    " chance. An arrow marks an interval that goes on."
)
BITS_CAPTION = (
    "Left-to-right and right-to-left scores are code lengths, any-order ones upper bounds of them;"
    " pseudo ones see both sides of each token and compare only with each other."
)


class Table(NamedTuple):
    """Strings to print.

    Attributes:
        header: Of the columns.
        rows: In the header's order.
        numbers: Whether all columns but the first are numbers.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: bool = True


class Detail(NamedTuple):
    """A folded part of the page."""

    title: str
    table: Table | None = None
    figure: str = ""
    text: str = ""
    code: str = ""


def write_report(results: Results, folder: Path) -> list[Path]:
    """Writes report.html, and report.md with its figures, into a folder."""
    figures = draw(results)
    inline = {name: f"data:image/png;base64,{_base64(of)}" for name, of in figures.items()}
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / "report.html", folder / "report.md"]
    paths[0].write_text(render(results, "html", inline), encoding="utf-8")
    files = {name: f"{name}.png" for name in figures}
    paths[1].write_text(render(results, "markdown", files), encoding="utf-8")
    for name, figure in figures.items():
        plots.save(figure, folder / files[name])
    return paths


def publish(results: Results, folder: Path) -> None:
    """Writes a published study: NAME.jsonl.zst, README.md and NAME.png, where NAME is the folder's.

    The figure is that of the differences; of a study without any, the learning curves.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_published(folder / f"{folder.name}{SUFFIX}", results)
    figures, files = draw(results), {}
    for name in [*figures][:1]:
        files[name] = f"{folder.name}.png"
        plots.save(figures[name], folder / files[name])
    (folder / "README.md").write_text(render(results, "markdown", files), encoding="utf-8")


def draw(results: Results) -> dict[str, Figure]:
    """The figures: "differences" and "curves", without those that would be empty."""
    figures, differences = {}, tables.differences(results)
    if len(differences):
        figures["differences"] = plots.dot_plot(differences)
    metrics, points = tables.loss_metrics(results), tables.pretraining_curves(results)
    if metrics and (points["step"] > 0).any():
        figures["curves"] = plots.learning_curves(points, metrics)
    return figures


def render(results: Results, markup: str, figures: dict[str, str]) -> str:
    """The page.

    Args:
        results: Of a study or a single run.
        markup: "html" or "markdown".
        figures: Name, as from `draw` -> what to link; the others are left out.
    """
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=markup == "html", undefined=jinja2.StrictUndefined
    )
    environment.filters["cell"] = lambda text: str(text).replace("|", "\\|")
    differences = tables.differences(results)
    page = environment.get_template("page.jinja").render(
        markup=f"{markup}.jinja",
        study={"caution": "", **results.study},
        answer=results.study.get("answer") or answer(differences),
        dots=figures.get("differences"),
        dots_caption=DOTS_CAPTION,
        scores=score_table(results),
        scores_caption=scores_caption(results),
        findings=[finding.text for finding in doctor.examine(results)],
        details=list(details(results, differences, figures.get("curves", ""))),
    )
    return page.rstrip() + "\n"


def answer(differences: pd.DataFrame) -> str:
    """One sentence: how many differences are decided, and the largest of these."""
    if differences.empty:
        return "Nothing is compared: a difference needs two variants with two seeds each."
    decided = differences[differences["decided"]]
    if decided.empty:
        return f"None of the {len(differences)} differences is beyond chance."
    largest = decided.loc[decided["mean"].abs().idxmax()]
    return (
        f"{len(decided)} of {len(differences)} differences are beyond chance; the largest is"
        f" {largest['variant']} − {largest['other']} on {largest['task']}, {interval(largest)}."
    )


def score_table(results: Results) -> Table:
    """A row a variant: its scores, with the published ones in further columns."""
    summary, published = tables.summary(results), results.study.get("published")
    measures = comparisons.measures(results)
    columns = {measure: _score_column(summary, measure) for measure in measures}
    names = comparisons.variants(results)
    if published:
        names += [name for name in published["rows"] if name not in names]
    seeds = summary.groupby("variant")["seeds"].max() if len(summary) else {}
    header = ["Variant", "seeds", *(_heading(measure) for measure in measures)]
    rows = [
        [n, str(seeds.get(n, "–")), *(of.get(n, "–") for of in columns.values())] for n in names
    ]
    most_frequent = [tables.baselines(results, measure) for measure in measures]
    if any(value is not None for value in most_frequent):
        values = [_number(value, measure) for value, measure in zip(most_frequent, measures)]
        rows.append(["always the most frequent answer", "–", *values])
    if published:
        header += [f"published: {name}" for name in published["columns"]]
        empty = [None] * len(published["columns"])
        for row in rows:
            values = published["rows"].get(row[0], empty)
            row += ["–" if value is None else str(value) for value in values]
    return Table(header, rows)


def scores_caption(results: Results) -> str:
    """What the numbers are, with the source of published ones."""
    text = "Means over seeds on test, ± the standard deviation between seeds."
    if not results.study["tasks"]:
        text = f"Bits per byte of held-out text. {text} {BITS_CAPTION}"
    if published := results.study.get("published"):
        text += (
            f" Published: {published['source']}. Data, sizes and steps differ from ours, so compare"
            f" signs of differences, not values. {published['note']}"
        )
    return text.strip()


def details(results: Results, differences: pd.DataFrame, curves: str):
    """The folded parts."""
    if len(differences):
        rows = [
            [
                f"{row['task']}: {row['variant']} − {row['other']}",
                interval(row),
                str(row["seeds"]),
                f"{row['p']:.3f}" if row["p"] >= 0.001 else "< 0.001",
                f"{row['published']} ({row['source']})" if row["published"] else "–",
                row["verdict"] or ("decided" if row["decided"] else "undecided"),
            ]
            for _, row in differences.iterrows()
        ]
        header = ["Difference", "mean (95 % interval)", "pairs", "p (Holm)", "published", "verdict"]
        yield Detail("Differences", Table(header, rows, numbers=False))
    if results.study["select"]:
        yield Detail("Selected on validation", _selected(results))
    if curves:
        yield Detail("Learning curves", figure=curves, text="Means and ranges over seeds.")
    evaluations = _evaluations(results)
    if evaluations.rows and results.study["tasks"]:
        yield Detail("Bits per byte of held-out text", evaluations, text=BITS_CAPTION)
    yield Detail("Costs", _costs(results), text="Means over runs; transfer: all tasks together.")
    yield Detail("How it was made", _provenance(results), code=results.study.get("command", ""))


def interval(row) -> str:
    """A difference with its interval: "+1.2 (0.8 to 1.6)"."""
    digits = row["digits"]
    low, high = (f"{row[end]:.{digits}f}" for end in ("low", "high"))
    return f"{row['mean']:+.{digits}f} ({low} to {high})".replace("-", "\N{MINUS SIGN}")


def _score_column(summary: pd.DataFrame, measure) -> dict[str, str]:
    rows = summary[(summary["task"] == measure.task) & (summary["metric"] == measure.metric)]
    return {row.variant: _number(row.mean, measure, row.sd) for row in rows.itertuples()}


def _number(value: float | None, measure, sd: float = math.nan) -> str:
    factor, digits, _ = tables.scale(measure)
    if value is None or math.isnan(value):
        return "–"
    spread = "" if math.isnan(sd) else f" ± {factor * sd:.{digits}f}"
    return f"{factor * value:.{digits}f}{spread}"


def _heading(measure) -> str:
    percent = " (%)" if tables.scale(measure)[0] == 100 else ""
    return f"{measure.task} {measure.metric}{percent}".strip().replace("bits_per_byte/", "")


def _selected(results: Results) -> Table:
    summary = tables.summary(results)
    table = summary.pivot_table("chosen", "variant", "task", aggfunc="first", sort=False)
    rows = [[name, *("–" if pd.isna(x) else x for x in row)] for name, *row in table.itertuples()]
    return Table(["Variant", *table.columns], rows)


def _evaluations(results: Results) -> Table:
    means = tables.evaluations(results)
    rows = [[n, *(f"{x:.3f}" if x == x else "–" for x in row)] for n, *row in means.itertuples()]
    kinds = [metric.removeprefix("bits_per_byte/") for metric in means.columns]
    return Table(["Variant", *kinds], rows)


def _costs(results: Results) -> Table:
    costs = tables.costs(results)
    losses = tables.held_out(results, tables.loss_metrics(results))
    header = ["Variant", *losses.columns, "parameters", "steps", "tokens", "predicted positions"]
    header += ["FLOPs", "time", "transfer FLOPs", "transfer time"]
    rows = []
    for variant, cost in costs.iterrows():
        values = (
            losses.loc[variant] if variant in losses.index else [math.nan] * len(losses.columns)
        )
        counts = [short(cost[name]) for name in ("parameters", "step", "tokens", "supervised")]
        times = [duration(cost[name]) for name in ("seconds", "transfer_seconds")]
        row = [variant, *(f"{x:.3f}" if x == x else "–" for x in values), *counts]
        rows.append([*row, short(cost["flops"]), times[0], short(cost["transfer_flops"]), times[1]])
    filled = [i for i in range(len(header)) if any(row[i] != "–" for row in rows)]
    return Table([header[i] for i in filled], [[row[i] for i in filled] for row in rows])


def _provenance(results: Results) -> Table:
    """Versions, commits and machines of all runs."""
    found: dict[str, dict[str, None]] = {}
    for record in results.records:
        environment = record["environment"]
        packages = environment.get("packages", {})
        values = {
            "bertlab": packages.get("bertlab"),
            "jax": packages.get("jax"),
            "git commit": environment.get("git_commit"),
            "python": environment.get("python"),
            "platform": environment.get("platform"),
            "devices": ", ".join(sorted(set(environment.get("devices", ())))),
        }
        for name, value in values.items():
            found.setdefault(name, {}).update({value: None} if value else {})
    rows = [[name, ", ".join(values)] for name, values in found.items() if values]
    if results.study.get("read_only"):
        rows.append(
            ["status", "read-only: today's version reads other batches, so no sweep goes on"]
        )
    return Table(["What", "Value"], rows, numbers=False)


def short(value: float) -> str:
    """Three digits and a suffix: "23.7M"."""
    if math.isnan(value):
        return "–"
    for suffix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if value >= size:
            return f"{value / min(size, 1e3 if suffix == 'k' else size):.3g}{suffix}"
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Hours, minutes or seconds."""
    if math.isnan(seconds):
        return "–"
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _base64(figure: Figure) -> str:
    buffer = io.BytesIO()
    plots.save(figure, buffer)
    return base64.b64encode(buffer.getvalue()).decode()
