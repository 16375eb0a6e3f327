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
    if len(panels) > 1 and names.nunique() == 1:
        title = f"{names.iloc[0]}, difference (points)"
        panels = [(title, differences.assign(name=differences["task"]))]
    sizes = [len(rows) for _, rows in panels]
    height = ROW * sum(sizes) + 0.75 * len(panels) + 0.1
    figure = Figure(figsize=(9.0, height), dpi=110, layout="constrained")
    ratios = [size + 1 for size in sizes]
    axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=ratios)[:, 0]
    reaches = [reach_of(rows) for _, rows in panels]
    if differences["label"].nunique() == 1:
        reaches = [max(reaches)] * len(panels)
    for panel, (title, rows), reach in zip(axes, panels, reaches):
        draw_differences(panel, rows, reach)
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
    """Test scores by step of pretraining (`tables.by_steps`), one panel per task; those of models
    without pretraining are horizontal lines."""
    tasks = points["task"].unique()
    figure = Figure(figsize=(1.5 + 2.7 * len(tasks), 3.6), dpi=110, layout="constrained")
    shared = {"sharex": True, "sharey": points["label"].nunique() == 1}
    panels = figure.subplots(1, len(tasks), squeeze=False, **shared)[0]
    for panel, task in zip(panels, tasks):
        lines = points[points["task"] == task].groupby("line", sort=False)
        for number, (line, rows) in enumerate(lines):
            colour, rows = COLOURS[number % len(COLOURS)], rows.sort_values("step")
            if rows["step"].max() == 0:
                panel.axhline(rows["mean"].iloc[0], color=colour, linestyle="--", label=line)
                continue
            panel.plot(rows["step"], rows["mean"], "o-", color=colour, markersize=4, label=line)
            panel.fill_between(
                rows["step"], rows["low"], rows["high"], color=colour, alpha=0.2, lw=0
            )
        panel.set_xscale("log")
        steps = sorted(points.loc[points["step"] > 0, "step"].unique())
        panel.set_xticks(steps, [f"{step:,.0f}" for step in steps])
        panel.minorticks_off()
        panel.set_title(task, fontsize=10)
        panel.set_xlabel("steps of pretraining")
        panel.grid(color="#dddddd", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel(points["label"].iloc[0])
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=8.5)
    return figure


def learning_curves(points: pd.DataFrame, metrics: Sequence[str]) -> Figure:
    """Held-out metrics of pretraining (`tables.pretraining_curves`) by tokens and by FLOPs: one row
    per metric, one line per variant (its mean over seeds, and their range)."""
    height = 2.9 * len(metrics) + 0.4
    figure = Figure(figsize=(9.0, height), dpi=110, layout="constrained")
    axes = figure.subplots(len(metrics), len(X_AXES), squeeze=False, sharey="row")
    points = points[points["step"] > 0]  # the first loss would dwarf all later differences
    variants = list(dict.fromkeys(points["variant"]))
    for row, metric in zip(axes, metrics):
        for panel, x in zip(row, X_AXES):
            for number, variant in enumerate(variants):
                chosen = points[(points["variant"] == variant) & (points["metric"] == metric)]
                if len(chosen):
                    _draw_curve(panel, chosen, x, variant, number)
            panel.set_xlabel(X_AXES[x])
            panel.xaxis.set_major_formatter(EngFormatter(sep=""))
            panel.grid(color="#dddddd", linewidth=0.6)
            panel.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel(f"{metric}, held out" + (" (nats)" if metric.endswith("loss") else ""))
    found = [panel.get_legend_handles_labels() for panel in axes[:, 0]]
    lines = {label: line for lines, labels in found for line, label in zip(lines, labels)}
    figure.legend(lines.values(), lines, loc="outside upper center", ncols=4, fontsize=8.5)
    return figure


def _draw_curve(panel, points: pd.DataFrame, x: str, variant: str, number: int) -> None:
    steps = points.groupby("step").agg(
        x=(x, "mean"), mean=("value", "mean"), low=("value", "min"), high=("value", "max")
    )
    colour = COLOURS[number % len(COLOURS)]
    style = STYLES[number // len(COLOURS) % len(STYLES)]
    line = {"color": colour, "label": variant, "linewidth": 1.6, "marker": "o", "markersize": 3}
    panel.plot(steps["x"], steps["mean"], style, **line)
    panel.fill_between(steps["x"], steps["low"], steps["high"], color=colour, alpha=0.18, lw=0)


def save(figure: Figure, file) -> None:
    """Saves a PNG: the same bytes for the same figure."""
    figure.savefig(file, format="png", metadata={"Software": None})
