"""A study's page: the answer, a figure of differences, scores, warnings; the rest is collapsed.

HTML and Markdown come from one template, templates/page.jinja, which has all the sentences. The
tables are made here, as DataFrames of the text in their cells.
"""

import base64
import math
import re
from collections.abc import Mapping
from pathlib import Path

import jinja2
import pandas as pd
import zstandard
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from bertlab.files import json_line
from bertlab.results import scores
from bertlab.studies import comparisons, doctor, plots, tables
from bertlab.studies.records import SUFFIX, Record, Results

NONE = "–"


def write_report(results: Results, folder: Path) -> list[Path]:
    """Writes report.html, and report.md with its figures, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    inline, files, paths = {}, {}, [folder / "report.html", folder / "report.md"]
    for name, figure in draw(results).items():
        files[name] = f"{name}.png"
        plots.save(figure, folder / files[name])
        encoded = base64.b64encode((folder / files[name]).read_bytes()).decode()
        inline[name] = f"data:image/png;base64,{encoded}"
    paths[0].write_text(render(results, "html", inline), encoding="utf-8")
    paths[1].write_text(render(results, "markdown", files), encoding="utf-8")
    return paths


def publish(results: Results, folder: Path) -> None:
    """Writes a published study: NAME.jsonl.zst, README.md and NAME.png (the first figure of
    `draw`), where NAME is the folder's."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(map(json_line, [results.study, *map(_without_paths, results.records)]))
    packed = zstandard.compress(text.encode(), level=19)
    (folder / f"{folder.name}{SUFFIX}").write_bytes(packed)
    files = {}
    for name, figure in list(draw(results).items())[:1]:
        files[name] = f"{folder.name}.png"
        plots.save(figure, folder / files[name])
    (folder / "README.md").write_text(render(results, "markdown", files), encoding="utf-8")


def _without_paths(record: Record) -> Record:
    """A record that does not name the directories of the machine where it was made."""
    environment = {key: of for key, of in record["environment"].items() if key != "command"}
    config = dict(record["config"])
    for key, value in config.items():
        if isinstance(value, str):  # "text:/a/b" becomes "text:b"
            config[key] = re.sub("(^|:)/.*/", r"\1", value)
    return record | {"environment": environment, "config": config}


def draw(results: Results) -> dict[str, Figure]:
    """The figures: "steps", "differences" and "curves", without those that would be empty."""
    figures, differences, points = {}, tables.differences(results), tables.by_steps(results)
    if len(points):
        figures["steps"] = plots.step_lines(points)
    if len(differences):
        figures["differences"] = plots.dot_plot(differences)
    metrics, points = list(tables.losses(results)), tables.pretraining_curves(results)
    if metrics and (points["step"] > 0).any():
        figures["curves"] = plots.learning_curves(points, metrics)
    return figures


def render(results: Results, markup: str, figures: Mapping[str, str]) -> str:
    """The page in "html" or "markdown"; `figures` are names as from `draw` -> what to link."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent / "templates")
    environment = jinja2.Environment(loader=loader, autoescape=markup == "html")
    environment.filters["cell"] = lambda text: str(text).replace("|", "\\|")
    differences = tables.differences(results)
    page = environment.get_template("page.jinja").render(
        markup=f"{markup}.jinja",
        study=results.study,
        figures=figures,
        findings=[text for _, text in doctor.examine(results)],
        differences=differences.to_dict("records"),
        decided=int(differences["decided"].sum()),
        beyond=int(((differences["low"] > 0) | (differences["high"] < 0)).sum()),
        below=tables.below_linear(results),
        scores=score_table(results),
        difference_table=difference_table(differences),
        crossings=crossing_table(results),
        selected=selected_table(results),
        bits=bits_table(results),
        costs=cost_table(results),
        provenance=provenance_table(results),
    )
    return page.rstrip() + "\n"


def score_table(results: Results) -> pd.DataFrame:
    """One row per variant: its scores, with the published ones in further columns."""
    published = results.study.get("published") or {}
    rows = published.get("rows", {})
    names, columns = [*comparisons.variants(results), *rows], {"seeds": {}}
    for measure in comparisons.measures(results):
        scored, seeds = comparisons.score_table(results, measure), columns["seeds"]
        seeds |= {
            name: str(max(of.count(), int(seeds.get(name, 0)))) for name, of in scored.items()
        }
        cells = {name: _number(of.mean(), measure, of.std()) for name, of in scored.items()}
        baselines = tables.baselines(results, measure)
        names += baselines
        cells |= {name: _number(value, measure) for name, value in baselines.items()}
        percent = " (%)" if measure.scale[0] == 100 else ""
        name = f"{measure.task} {measure.metric}{percent}".strip()
        columns[name.replace("bits_per_byte/", "")] = cells
    if above := above_floors(results):
        columns["above the floor (nats)"] = above
    for number, name in enumerate(published.get("columns", ())):
        columns[f"published: {name}"] = {variant: of[number] for variant, of in rows.items()}
    index = list(dict.fromkeys(names))
    return _cells(pd.DataFrame(columns, index=index, dtype=object))


def above_floors(results: Results) -> dict[str, str]:
    """Variant -> each of its objectives with its mean distance to the floor."""
    frame = scores(results)
    frame = frame[frame["metric"].str.fullmatch(r"\w+/above_floor")]
    means, found = frame.groupby(["variant", "metric"], sort=False)["value"].mean(), {}
    for (variant, metric), mean in means.items():
        distance = f"{metric.removesuffix('/above_floor')} {mean:.4f}"
        found[variant] = f"{found[variant]}, {distance}" if variant in found else distance
    return found


def difference_table(differences: pd.DataFrame) -> pd.DataFrame:
    """One row per difference of `bertlab.studies.tables.differences`."""
    published = differences["published"] + " (" + differences["source"] + ")"
    pairs = differences["variant"] + " − " + differences["other"]
    columns = {
        "Difference": differences["task"] + ": " + pairs,
        "mean (95 % interval)": differences["interval"],
        "pairs": differences["seeds"],
        "p (Holm)": [f"{p:.3f}" if p >= 0.001 else "< 0.001" for p in differences["p"]],
        "published": published.where(differences["published"] != "", NONE),
        "verdict": differences["verdict"],
    }
    return pd.DataFrame(columns)


def crossing_table(results: Results) -> pd.DataFrame:
    """One row per task and pair of lines of `bertlab.studies.tables.crossings`."""
    rows = []
    for row in tables.crossings(results).itertuples():
        steps = sorted(row.differences)
        ranges = [_range(*ends, steps[0], steps[-1]) for ends in row.undecided]
        cells = {f"{step:,} steps": row.differences[step] for step in steps}
        cells["the mean is zero at"] = ", ".join(map(_two_digits, row.crosses)) or NONE
        cells["the interval contains zero"] = ", ".join(ranges) or "nowhere"
        rows.append({"Difference": f"{row.task}: {row.line} − {row.other}"} | cells)
    return pd.DataFrame(rows).fillna(NONE)


def _range(begin: float, end: float, first: int, last: int) -> str:
    """A range of the steps from `first` to `last`."""
    if begin <= first:
        return "everywhere" if end >= last else f"up to {_two_digits(end)}"
    if end >= last:
        return f"from {_two_digits(begin)} on"
    return f"{_two_digits(begin)} to {_two_digits(end)}"


def _two_digits(step: float) -> str:
    return f"{float(f'{step:.2g}'):,.0f}"


def selected_table(results: Results) -> pd.DataFrame:
    """What `valid` selected, one row per variant, one column per task."""
    measures = comparisons.measures(results)
    found = {of.task: comparisons.selected_rates(results, of) for of in measures}
    return _cells(pd.DataFrame(found, index=comparisons.variants(results)))


def bits_table(results: Results) -> pd.DataFrame:
    """Bits per byte of whole documents (`evaluate.bytes`), one row per variant or baseline, one
    column per kind of score and size of the text; empty without any."""
    lengths, columns = tables.code_lengths(results), {}
    measured = lengths["low"].notna()
    if not measured.any():
        return pd.DataFrame()
    lengths = lengths[measured | ~lengths["variant"].isin(comparisons.variants(results))]
    for row in lengths.itertuples():
        interval = "" if math.isnan(row.low) else f" ({row.low:.3f} to {row.high:.3f})"
        size = "" if math.isnan(row.bytes) else f", {short(row.bytes)} bytes"
        columns.setdefault(row.kind + size, {})[row.variant] = f"{row.mean:.3f}{interval}"
        if not math.isnan(row.above):
            name = f"{row.kind}, above the truth"
            columns.setdefault(name, {})[row.variant] = f"{row.above:.3f}"
    columns = dict(sorted(columns.items()))
    return _cells(pd.DataFrame(columns, index=lengths["variant"].unique(), dtype=object))


def cost_table(results: Results) -> pd.DataFrame:
    """Held-out losses and costs, one row per variant; without columns that would be empty."""
    costs = tables.costs(results)
    table = tables.losses(results).reindex(costs.index)
    table = table.map("{:.3f}".format, na_action="ignore")
    for name, (column, text) in COST_COLUMNS.items():
        table[name] = costs[column].map(text, na_action="ignore")
    return _cells(table.dropna(axis="columns", how="all"))


def provenance_table(results: Results) -> pd.DataFrame:
    """Recipe and test items of a study; versions, commits, machines and time of all runs."""
    environments = [record["environment"] for record in results.records]
    machines = [of | of.get("packages", {}) for of in environments]
    marks = {record["task"]: record.get("correct", {}).get("test") for record in results.records}
    items = [f"{task}: {mark['items']:,}" for task, mark in marks.items() if mark]
    found = {"recipe": [results.study.get("config")], "test items": ["; ".join(items)]}
    for name in ("bertlab", "jax", "git commit", "python"):
        found[name] = [machine.get(name.replace(" ", "_")) for machine in machines]
    found["devices"] = [", ".join(sorted(set(of.get("devices", ())))) for of in machines]
    found["cores"] = [str(of.get("cores", "")) for of in machines]
    found["precision"] = [record["config"].get("model.dtype") for record in results.records]
    found["training, all runs"] = [duration(sum(of["seconds"] or 0 for of in results.records))]
    if results.study.get("read_only"):
        found["status"] = ["read-only: today's version reads other batches, so no sweep goes on"]
    rows = [[name, ", ".join(dict.fromkeys(filter(None, of)))] for name, of in found.items()]
    return pd.DataFrame([row for row in rows if row[1]], columns=["What", "Value"])


def _cells(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with its index, the variants, as a column."""
    return frame.astype(object).fillna(NONE).rename_axis("Variant").reset_index()


def _number(value: float, measure: comparisons.Measure, sd: float = math.nan) -> str:
    factor, digits, _ = measure.scale
    if math.isnan(value):
        return NONE
    spread = "" if math.isnan(sd) else f" ± {factor * sd:.{digits}f}"
    return f"{factor * value:.{digits}f}{spread}"


def short(value: float) -> str:
    """Three digits and a suffix: "23.7M"."""
    return f"{value:,.0f}" if value < 1e4 else EngFormatter(sep="")(float(f"{value:.3g}"))


def duration(seconds: float) -> str:
    """Hours, minutes or seconds."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


COST_COLUMNS = {  # heading -> column of `tables.costs`, and how its numbers are printed
    "parameters": ("parameters", short),
    "steps": ("step", short),
    "tokens": ("tokens", short),
    "predicted positions": ("supervised", short),
    "FLOPs": ("flops", short),
    "time": ("seconds", duration),
    "transfer FLOPs": ("transfer_flops", short),
    "transfer time": ("transfer_seconds", duration),
}
