"""A study's page: the answer, a figure of differences, scores, warnings; the rest is folded.

HTML and Markdown come from one template, templates/page.jinja.
"""

import base64
import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jinja2
import pandas as pd
from matplotlib.figure import Figure

from bertlab.studies import comparisons, doctor, plots, tables
from bertlab.studies.records import SUFFIX, Results, write_published

DOTS_CAPTION = (
    "Paired by seed where two variants share seeds. Bars: 95 % intervals over seeds (Student's)."
    " Filled: decided after Holm's correction over the differences of a task; an empty dot may be"
    " chance. An arrow marks an interval that goes on."
)
NONE = "–"
FREQUENT = "always the most frequent answer"
BITS_CAPTION = (
    "Left-to-right and right-to-left scores are code lengths, any-order ones upper bounds of them;"
    " pseudo ones see both sides of each token and compare only with each other."
)


class Detail(NamedTuple):
    """A folded part of the page.

    Attributes:
        title: Of the fold.
        table: Its cells are printed; None for no table.
        numbers: Whether all columns of the table but the first are numbers.
        figure: What to link.
        text, code: Below.
    """

    title: str
    table: pd.DataFrame | None = None
    numbers: bool = True
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
        f" {largest['variant']} − {largest['other']} on {largest['task']}, {largest['interval']}."
    )


def score_table(results: Results) -> pd.DataFrame:
    """A row a variant: its scores, with the published ones in further columns."""
    summary, published = tables.summary(results), results.study.get("published")
    rows = published["rows"] if published else {}
    names = list(dict.fromkeys([*comparisons.variants(results), *rows, FREQUENT]))
    columns = {"seeds": summary.groupby("variant")["seeds"].max().astype(str).to_dict()}
    for measure in comparisons.measures(results):
        own = summary[(summary["task"] == measure.task) & (summary["metric"] == measure.metric)]
        frequent = comparisons.values_of(results, measure, "most_frequent").query("split == 'test'")
        cells = {row.variant: _number(row.mean, measure, row.sd) for row in own.itertuples()}
        cells[FREQUENT] = _number(frequent["value"].mean(), measure)
        percent = " (%)" if measure.is_percent else ""
        name = f"{measure.task} {measure.metric}{percent}".strip()
        columns[name.replace("bits_per_byte/", "")] = cells
    if all(cells.get(FREQUENT, NONE) == NONE for cells in columns.values()):
        names.remove(FREQUENT)
    for number, name in enumerate(published["columns"] if published else ()):
        columns[f"published: {name}"] = {variant: of[number] for variant, of in rows.items()}
    table = pd.DataFrame(columns, index=pd.Index(names, name="Variant"), dtype=object)
    return table.fillna(NONE).reset_index()


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


def details(results: Results, differences: pd.DataFrame, curves: str) -> Iterator[Detail]:
    """The folded parts."""
    if len(differences):
        yield Detail("Differences", _differences(differences), numbers=False)
    if results.study["select"]:
        summary = tables.summary(results)
        chosen = summary.pivot_table("chosen", "variant", "task", aggfunc="first", sort=False)
        yield Detail("Selected on validation", _table(chosen))
    if curves:
        yield Detail("Learning curves", figure=curves, text="Means and ranges over seeds.")
    bits = tables.evaluations(results)
    if len(bits) and results.study["tasks"]:
        bits = bits.map("{:.3f}".format, na_action="ignore")
        bits = bits.rename(columns=lambda metric: metric.removeprefix("bits_per_byte/"))
        yield Detail("Bits per byte of held-out text", _table(bits), text=BITS_CAPTION)
    yield Detail("Costs", _costs(results), text="Means over runs; transfer: all tasks together.")
    code = results.study.get("command", "")
    yield Detail("How it was made", _provenance(results), numbers=False, code=code)


def _table(frame: pd.DataFrame) -> pd.DataFrame:
    """Cells to print, a row a variant."""
    return frame.astype(object).fillna(NONE).rename_axis("Variant").reset_index()


def _number(value: float, measure: comparisons.Measure, sd: float = math.nan) -> str:
    if math.isnan(value):
        return NONE
    spread = "" if math.isnan(sd) else f" ± {measure.factor * sd:.{measure.digits}f}"
    return f"{measure.factor * value:.{measure.digits}f}{spread}"


def _differences(frame: pd.DataFrame) -> pd.DataFrame:
    decided = frame["decided"].map({True: "decided", False: "undecided"})
    published = frame["published"] + " (" + frame["source"] + ")"
    return pd.DataFrame(
        {
            "Difference": frame["task"] + ": " + frame["variant"] + " − " + frame["other"],
            "mean (95 % interval)": frame["interval"],
            "pairs": frame["seeds"],
            "p (Holm)": [f"{p:.3f}" if p >= 0.001 else "< 0.001" for p in frame["p"]],
            "published": published.where(frame["published"] != "", NONE),
            "verdict": frame["verdict"].where(frame["verdict"] != "", decided),
        }
    )


def _costs(results: Results) -> pd.DataFrame:
    costs = tables.costs(results)
    table = tables.held_out(results, tables.loss_metrics(results)).map("{:.3f}".format)
    table = table.replace("nan", NONE).reindex(costs.index)
    for name, (column, text) in COST_COLUMNS.items():
        table[name] = costs[column].map(text)
    table = _table(table)
    return table.loc[:, (table != NONE).any()]


def _provenance(results: Results) -> pd.DataFrame:
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
    return pd.DataFrame(rows, columns=["What", "Value"])


def short(value: float) -> str:
    """Three digits and a suffix: "23.7M"."""
    if math.isnan(value):
        return NONE
    for suffix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if value >= size:
            return f"{value / min(size, 1e3 if suffix == 'k' else size):.3g}{suffix}"
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Hours, minutes or seconds."""
    if math.isnan(seconds):
        return NONE
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


COST_COLUMNS = {
    "parameters": ("parameters", short),
    "steps": ("step", short),
    "tokens": ("tokens", short),
    "predicted positions": ("supervised", short),
    "FLOPs": ("flops", short),
    "time": ("seconds", duration),
    "transfer FLOPs": ("transfer_flops", short),
    "transfer time": ("transfer_seconds", duration),
}
"""Heading -> column of `bertlab.studies.tables.costs`, and how its numbers are printed."""


def _base64(figure: Figure) -> str:
    buffer = io.BytesIO()
    plots.save(figure, buffer)
    return base64.b64encode(buffer.getvalue()).decode()
