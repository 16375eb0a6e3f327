"""Figures over the tables of `bertlab.studies.results`: DataFrames in, matplotlib figures out."""

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

# Figures in the HTML page replace these two by the page's own colours, so that they follow light and dark mode.
INK = "#2b2b2b"
GRID = "#dedede"
STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 9,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "bertlab",
}

# Okabe and Ito's palette (2008), without black and yellow: told apart by colour-blind readers; the dashes and markers
# keep the lines apart in grey.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ((0, ()), (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)), (0, (8, 2)), (0, (3, 1.2, 1, 1.2, 1, 1.2)))
MARKERS = ("o", "s", "^", "D", "v", "P")
REFERENCE_COLOUR = "#8a8a8a"


@dataclass(frozen=True)
class LineStyle:
    """How a variant is drawn in every figure: colour, dash pattern and marker as matplotlib takes them."""

    colour: str
    dashes: tuple
    marker: str


# Variants that many studies have keep one colour in all of them.
COLOUR_OF = {"mlm": 0, "bert": 0, "ltr": 1, "gpt": 1, "bilm": 2, "elmo": 2, "mlm+nsp": 3}


def line_styles(runs: pd.DataFrame) -> dict[str, LineStyle]:
    """A style for each variant of `Results.runs`: by its name or its place in the study; grey where nothing was pretrained."""
    references = untrained(runs)
    trained = [v for v in dict.fromkeys(runs["variant"]) if v not in references]
    styles = {v: LineStyle(REFERENCE_COLOUR, (0, (1, 2)), "x") for v in references}
    places: dict[str, int] = {}
    for variant in trained:
        place = COLOUR_OF.get(variant.casefold())
        if place is not None and place not in places.values():
            places[variant] = place
    # From the seventh variant on, colours return with the next dash pattern and marker.
    free = (place for place in itertools.count() if place not in set(places.values()))
    for variant in trained:
        place = places[variant] if variant in places else next(free)
        turn = (place + place // len(COLOURS)) % len(DASHES)
        styles[variant] = LineStyle(COLOURS[place % len(COLOURS)], DASHES[turn], MARKERS[turn])
    return {variant: styles[variant] for variant in dict.fromkeys(runs["variant"]) if variant in styles}


def untrained(runs: pd.DataFrame) -> list[str]:
    """The variants whose finished runs took no pretraining step."""
    steps = runs[runs["status"] == "finished"].groupby("variant", sort=False)["step"].max()
    return list(steps[steps == 0].index)


def loss_metrics(metrics: pd.DataFrame) -> list[str]:
    """The validation losses in `Results.metrics`: one per objective, or the total where no objective is named."""
    names = dict.fromkeys(metrics.loc[metrics["split"] == "valid", "metric"])
    return [n for n in names if n.endswith("/loss")] or [n for n in names if n == "loss"]


def x_scale(axis: str, largest: float) -> tuple[float, str]:
    """The divisor and the label of a horizontal axis that reaches `largest`."""
    if axis == "seconds":
        divisor, unit = (1, "s") if largest < 300 else (60, "min") if largest < 3 * 3600 else (3600, "h")
        return divisor, f"training time ({unit})"
    if axis == "flops":
        units, name = ((1e9, "GFLOP"), (1e12, "TFLOP"), (1e15, "PFLOP"), (1e18, "EFLOP"), (1e21, "ZFLOP")), "compute"
    else:
        units = (1, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T")
        name = {"step": "steps", "tokens": "tokens", "supervised": "supervised positions"}[axis]
    divisor, unit = ([u for u in units if u[0] * (2 if u[0] > 1 else 1) <= largest] or [units[0]])[-1]
    return divisor, f"{name} ({unit})" if unit else name


def learning_curves(
    metrics: pd.DataFrame,
    names: Sequence[str],
    x_axes: Sequence[str],
    styles: Mapping[str, LineStyle],
    *,
    legend: bool = True,
) -> Figure:
    """Validation curves, a row of panels per metric and a column per horizontal axis.

    Lines are means over the runs of a variant, bands one standard deviation over them (two runs or more). Variants
    that were never trained (only step 0) are left out.

    Args:
        metrics: `Results.metrics`.
        names: Metrics, such as "mlm/loss" (nats); each row of panels has its own vertical scale.
        x_axes: Of "step", "tokens", "supervised", "flops", "seconds".
        styles: Variant -> style, from `line_styles`.
        legend: Whether to draw one above the panels.
    """
    valid = metrics[(metrics["split"] == "valid") & metrics["metric"].isin(names)]
    trained = valid.groupby("variant")["step"].max()
    valid = valid[valid["variant"].isin(trained[trained > 0].index)]
    shown = [variant for variant in styles if variant in set(valid["variant"])]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(2.4 * len(x_axes), 2.0 * len(names) + (0.35 if legend else 0)), layout="constrained")
        grid = figure.subplots(len(names), len(x_axes), squeeze=False)
        for name, row in zip(names, grid, strict=True):
            for axis, panel in zip(x_axes, row, strict=True):
                draw_curves(panel, valid[valid["metric"] == name], axis, styles)
                panel.set_ylabel(metric_label(name))
        for row in grid[:, 1:]:
            for panel in row:
                panel.set_ylabel("")
        if legend and shown:
            handles = [line_handle(styles[variant]) for variant in shown]
            figure.legend(handles, shown, loc="outside upper center", ncols=min(len(shown), 2 * len(x_axes)), handlelength=3.5)
    return figure


def draw_curves(panel: Axes, curve: pd.DataFrame, axis: str, styles: Mapping[str, LineStyle]) -> None:
    """Draws one metric against one horizontal axis."""
    divisor, label = x_scale(axis, curve[axis].max())
    for variant, style in styles.items():
        lines = curve[curve["variant"] == variant]
        if lines.empty:
            continue
        # Unfinished runs end early: a mean over the rest would jump there, so the curve stops at the shortest run.
        lines = lines[lines["step"] <= lines.groupby("run")["step"].max().min()]
        steps = lines.assign(x=lines[axis] / divisor).groupby("step")
        x, mean, sd = steps["x"].mean(), steps["value"].mean(), steps["value"].std()
        panel.plot(
            x,
            mean,
            color=style.colour,
            linestyle=style.dashes,
            marker=style.marker,
            markersize=3.5,
            markevery=max(1, len(mean) // 8),
            linewidth=1.5,
            clip_on=False,
        )
        if sd.notna().any():
            panel.fill_between(x, mean - sd, mean + sd, color=style.colour, alpha=0.18, linewidth=0)
    panel.set_xlim(left=0)
    panel.set_xlabel(label)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=divisor == 1))
    panel.yaxis.set_major_locator(MaxNLocator(nbins=5))


def downstream_bars(runs: pd.DataFrame, names: Sequence[str], styles: Mapping[str, LineStyle]) -> Figure:
    """Test scores of downstream tasks, a panel per metric and a bar per variant.

    Bars are means over runs, whiskers one standard deviation (two runs or more), dots single runs; the dashed line is
    the mean of the variant without pretraining, where the study has one.

    Args:
        runs: `Results.runs`; unfinished runs are left out.
        names: Its columns to show, such as "package/accuracy"; shares are drawn in %.
        styles: Variant -> style, from `line_styles`.
    """
    finished = runs[runs["status"] == "finished"]
    variants = [v for v in dict.fromkeys(runs["variant"]) if v in set(finished["variant"])]
    references = untrained(runs)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.9 * len(names), 0.8 + 0.33 * len(variants)), layout="constrained")
        for name, panel in zip(names, figure.subplots(1, len(names), squeeze=False)[0], strict=True):
            factor = percent_factor(name)
            largest = 0.0
            for place, variant in enumerate(variants):
                scores = finished.loc[finished["variant"] == variant, name].dropna() * factor
                if scores.empty:
                    continue
                several = len(scores) > 1
                panel.barh(
                    place,
                    scores.mean(),
                    height=0.62,
                    color=styles[variant].colour,
                    hatch="////" if variant in references else None,
                    edgecolor="white",
                    linewidth=0,
                    xerr=scores.std() if several else None,
                    error_kw={"ecolor": INK, "elinewidth": 1, "capsize": 2.5},
                )
                if several:
                    panel.plot(
                        scores,
                        [place] * len(scores),
                        "o",
                        markersize=3,
                        color=INK,
                        markerfacecolor="white",
                        markeredgewidth=0.8,
                    )
                reach = max(scores.max(), scores.mean() + (scores.std() if several else 0))
                largest = max(largest, reach)
                panel.annotate(
                    f"{scores.mean():.1f}" if factor == 100 else f"{scores.mean():.3f}",
                    (reach, place),
                    xytext=(5, 0),
                    textcoords="offset points",
                    va="center",
                )
            for variant in references:
                panel.axvline(
                    (finished.loc[finished["variant"] == variant, name] * factor).mean(),
                    color=INK,
                    linewidth=0.9,
                    linestyle=(0, (4, 2)),
                    zorder=0.9,
                )
            panel.set_yticks(range(len(variants)), [textwrap.fill(v, 22) for v in variants])
            panel.invert_yaxis()
            panel.set_xlim(0, largest * 1.16 or 1)
            panel.set_xlabel(f"{metric_label(name)}, test")
            panel.xaxis.set_major_locator(MaxNLocator(nbins=5))
            panel.grid(axis="y", visible=False)
            panel.tick_params(axis="y", length=0)
    return figure


def heat_map(runs: pd.DataFrame, names: Sequence[str]) -> Figure:
    """Test scores as a map: variants (such as layers) downwards, tasks across; every task on a scale of its own.

    Args:
        runs: `Results.runs`; unfinished runs are left out, and variants without a score.
        names: Its columns to show, such as "package/accuracy"; shares are written in %.
    """
    finished = runs[runs["status"] == "finished"]
    order = [variant for variant in dict.fromkeys(runs["variant"]) if variant in set(finished["variant"])]
    means = finished.groupby("variant")[list(names)].mean().reindex(order).dropna(how="all")
    spread = (means.max() - means.min()).where(lambda of: of > 0, 1.0)
    place = (means - means.min()) / spread
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        size = (2.2 + 1.15 * len(names), 0.9 + 0.34 * len(means))
        figure = Figure(figsize=size, layout="constrained")
        panel = figure.subplots()
        shown = panel.imshow(np.ma.masked_invalid(place), cmap="cividis", vmin=0, vmax=1, aspect="auto")
        for row, column in itertools.product(range(len(means)), range(len(names))):
            value, factor = means.iat[row, column], percent_factor(names[column])
            if math.isnan(value):
                continue
            text = f"{factor * value:.1f}" if factor == 100 else f"{value:.3f}"
            dark = place.iat[row, column] < 0.5
            panel.text(column, row, text, ha="center", va="center", color="white" if dark else "black")
        heads = [textwrap.fill(metric_label(name).replace("/", " "), 14) for name in names]
        panel.set_xticks(range(len(names)), heads)
        panel.set_yticks(range(len(means)), [textwrap.fill(variant, 24) for variant in means.index])
        panel.tick_params(length=0)
        panel.xaxis.set_ticks_position("top")
        panel.spines[:].set_visible(False)
        bar = figure.colorbar(shown, ax=panel, ticks=[0, 1], pad=0.02, aspect=12)
        bar.ax.set_yticklabels(["task's lowest", "task's highest"])
        bar.outline.set_visible(False)
    return figure


def line_handle(style: LineStyle) -> Line2D:
    """The legend's sample of a style."""
    return Line2D([], [], color=style.colour, linestyle=style.dashes, marker=style.marker, markersize=4, linewidth=1.5)


def percent_factor(metric: str) -> int:
    """100 for metrics that are shares or correlations (0 to 1) and are shown in percent, 1 for others."""
    shares = ("accuracy", "f1", "precision", "recall", "exact_match", "correlation", "mcc")
    return 100 if metric.rsplit("/", 1)[-1].endswith(shares) else 1


def metric_label(metric: str) -> str:
    """A metric's name with its unit: "mlm/loss (nats)", "package/accuracy (%)"."""
    if metric.endswith("loss"):
        return f"{metric} (nats)"
    return f"{metric} (%)" if percent_factor(metric) == 100 else metric
