"""Figures of a study, from the tables of `bertlab.studies.tables` and `bertlab.results`."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

# Okabe and Ito's colours, which colour-blind readers can tell apart; line styles add more.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
X_AXES = {"tokens": "pretraining tokens", "flops": "pretraining FLOPs"}
ROW = 0.3  # inches per difference
WIDEST = 3.0  # an interval is drawn up to this many times its task's largest difference


def dot_plot(differences: pd.DataFrame) -> Figure:
    """Paired differences (`bertlab.studies.tables.differences`) with their intervals, one panel per
    task; a single panel if each has one."""
    names = differences["variant"] + " − " + differences["other"]
    panels = [
        (f"{task}: difference in {rows['label'].iloc[0]}", rows.assign(name=names[rows.index]))
        for task, rows in differences.groupby("task", sort=False)
    ]
    in_points = differences["label"].str.endswith("(points)").all()
    if len(panels) > 1 and names.nunique() == 1 and in_points:
        title = f"{names.iloc[0]}, difference (points)"
        panels = [(title, differences.assign(name=differences["task"]))]
    sizes = [len(rows) for _, rows in panels]
    height = ROW * sum(sizes) + 0.75 * len(panels) + 0.1
    figure = Figure(figsize=(9.0, height), dpi=110, layout="constrained")
    ratios = [size + 1 for size in sizes]
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=ratios)[:, 0]
    for panel, (title, rows) in zip(axes, panels):
        draw_differences(panel, rows, reach_of(rows))
        panel.set_title(title, fontsize=10)
    return figure


def reach_of(rows: pd.DataFrame, limit: float = 0.0) -> float:
    """How far from zero a panel of these differences goes, at most `limit`."""
    limit = limit or WIDEST * max(rows["mean"].abs().max(), 0.1)
    return max(0.1, min(limit, 1.08 * rows[["mean", "low", "high"]].abs().max().max()))


def draw_differences(panel, rows: pd.DataFrame, reach: float) -> None:
    """One row per difference by its `name`, from the top, and `colour`, if it has one."""
    for y, row in enumerate(rows.itertuples()):
        colour = getattr(row, "colour", COLOURS[0]) if row.decided else "#777777"
        low, high = np.clip([row.low, row.high], -reach, reach)
        panel.hlines(y, low, high, colors=colour, linewidth=2)
        for end, is_cut, marker in ((low, row.low < low, "<"), (high, row.high > high, ">")):
            if is_cut:  # the interval continues
                panel.plot(end, y, marker, color=colour, markersize=6, clip_on=False)
        face = colour if row.decided else "white"
        panel.plot(row.mean, y, "o", color=colour, markerfacecolor=face, markersize=7)
        at = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": 8.5}
        panel.annotate(row.interval, (1.02, y), **at)
    panel.axvline(0, color="black", linewidth=0.8, zorder=0)
    panel.set_yticks(range(len(rows)), rows["name"])
    panel.set(xlim=(-1.04 * reach, 1.04 * reach), ylim=(len(rows) - 0.5, -0.5))
    panel.grid(axis="x", color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.tick_params(axis="y", length=0, labelsize=9)
    panel.spines[["top", "right", "left"]].set_visible(False)


def step_lines(points: pd.DataFrame) -> Figure:
    """Test scores by step of pretraining (`tables.by_steps`), one panel per task, from four on in
    two columns; those of models without pretraining are horizontal lines."""
    tasks, names = points["task"].unique(), list(points["line"].unique())
    columns = len(tasks) if len(tasks) < 4 else 2
    rows = -(-len(tasks) // columns)
    size = (1.5 + 2.7 * columns, 0.9 + 2.7 * rows)
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    shared = {"sharex": True, "sharey": "row" if points["label"].nunique() == 1 else "none"}
    panels = figure.subplots(rows, columns, squeeze=False, **shared)
    steps = sorted(points.loc[points["step"] > 0, "step"].unique())
    for panel, task in zip(panels.ravel(), tasks):
        for name, line in points[points["task"] == task].groupby("line", sort=False):
            if line["step"].max() == 0:
                colour = COLOURS[names.index(name) % len(COLOURS)]
                panel.axhline(line["mean"].iloc[0], color=colour, linestyle="--", label=name)
                panel.axhspan(line["low"].iloc[0], line["high"].iloc[0], color=colour, alpha=0.12)
            else:
                _draw_line(panel, line.sort_values("step"), "step", names.index(name), name)
        panel.set(title=task, xscale="log")
        panel.set_xticks(steps, [f"{step:,.0f}" for step in steps])
        panel.minorticks_off()
    figure.supxlabel("steps of pretraining", fontsize=10)
    figure.supylabel(points["label"].iloc[0], fontsize=10)
    _finish(figure, panels.ravel())
    return figure


def learning_curves(points: pd.DataFrame, metrics: Sequence[str]) -> Figure:
    """Held-out metrics of pretraining (`tables.pretraining_curves`) by tokens and by FLOPs: one row
    per metric, one line per variant (its mean over seeds, and their range)."""
    height = 2.9 * len(metrics) + 0.4
    figure = Figure(figsize=(9.0, height), dpi=110, layout="constrained")
    axes = figure.subplots(len(metrics), len(X_AXES), squeeze=False, sharey="row")
    points = points[points["step"] > 0]  # the first loss would dwarf all later differences
    names = list(points["variant"].unique())
    over_seeds = {"mean": ("value", "mean"), "low": ("value", "min"), "high": ("value", "max")}
    for row, metric in zip(axes, metrics):
        chosen = points[points["metric"] == metric]
        for name, of in chosen.groupby("variant", sort=False):
            lines = of.groupby("step").agg(**over_seeds, **{x: (x, "mean") for x in X_AXES})
            for panel, x in zip(row, X_AXES):
                _draw_line(panel, lines, x, names.index(name), name)
        for panel, label in zip(row, X_AXES.values()):
            panel.set_xlabel(label)
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
        row[0].set_ylabel(f"{metric}, held out" + (" (nats)" if metric.endswith("loss") else ""))
    _finish(figure, axes.ravel())
    return figure


def _draw_line(panel, rows: pd.DataFrame, x: str, number: int, name: str) -> None:
    """The mean by `x`, and the range over seeds."""
    colour = COLOURS[number % len(COLOURS)]
    style = STYLES[number // len(COLOURS) % len(STYLES)]
    line = {"color": colour, "label": name, "linewidth": 1.6, "marker": "o", "markersize": 3}
    panel.plot(rows[x], rows["mean"], style, **line)
    panel.fill_between(rows[x], rows["low"], rows["high"], color=colour, alpha=0.18, lw=0)


def _finish(figure: Figure, panels) -> None:
    """The grids, and one legend for all panels."""
    legend = {}
    for panel in panels:
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
        legend |= {line.get_label(): line for line in panel.get_lines()}
    columns = int(figure.get_figwidth() // 2.2)
    figure.legend(legend.values(), legend, loc="outside upper center", ncols=columns, fontsize=8.5)


def save(figure: Figure, file) -> None:
    """Saves a PNG: the same bytes for the same figure."""
    figure.savefig(file, format="png", metadata={"Software": None})
