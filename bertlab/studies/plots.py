"""Figures of a study's results: matplotlib figures, with one style for a variant in all of them."""

import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.textpath import text_to_path
from matplotlib.ticker import FormatStrFormatter, LogLocator, MaxNLocator, NullLocator

from bertlab.run import BOUNDS
from bertlab.studies.curves import along_trajectories, untrained
from bertlab.studies.measurements import Measure, Results, bits_per_byte, bounds
from bertlab.studies.seeds import mean_scores, seed_tables
from bertlab.transfer.evaluations import CODE_LENGTHS

# Figures in the HTML page replace these by the page's own colours, so that they follow light and dark mode.
INK = "#2b2b2b"
GRID = "#dedede"
PAGE = "#fefefe"
FONT, FONT_SIZE = "DejaVu Sans", 9
STYLE = {
    "font.family": "sans-serif",
    "font.sans-serif": [FONT],
    "font.size": FONT_SIZE,
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
    "text.parse_math": False,  # a name may have dollar signs
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "bertlab",
}

# Okabe and Ito's palette (2008) without black and yellow, for colour-blind readers. Dashes, markers and hatches tell variants
# apart in grey, and if there are more variants than colours.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ((0, ()), (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)), (0, (8, 2)), (0, (3, 1.2, 1, 1.2, 1, 1.2)))
MARKERS = ("o", "s", "^", "D", "v", "P")
HATCHES = ("", "\\\\\\\\", "....", "xxxx", "----", "oo")
SEED_DOTS = {"markersize": 3, "color": INK, "markerfacecolor": PAGE, "markeredgewidth": 0.8}
LABEL = {"facecolor": PAGE, "edgecolor": "none", "pad": 1}  # lines end before a number
REFERENCE_COLOUR = "#8a8a8a"
REFERENCE_DASHES = ((0, (4, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)), (0, (12, 3)))
MOST_FREQUENT_LINE = {"color": REFERENCE_COLOUR, "linewidth": 1.6, "linestyle": "-"}
REFERENCE_MARKERS = ("x", "+", "1", "2")
REFERENCE_HATCHES = ("////", "++++", "||||", "**")


@dataclass(frozen=True)
class LineStyle:
    """How a variant is drawn in every figure: colour, dash pattern, marker and hatch as matplotlib takes them."""

    colour: str
    dashes: tuple
    marker: str
    hatch: str


# Common variants have the same colour in all studies, whatever a study calls them ("BERT" is MLM+NSP). None is the grey of
# variants without pretraining.
NAMES_OF = {
    0: ("mlm", "no nsp"),
    1: ("ltr", "clm", "gpt", "ltr & no nsp", "+bilstm", "full"),  # full: GPT's and ULMFiT's whole recipes
    2: ("bilm", "elmo", "ltr+rtl"),
    3: ("nsp", "mlm+nsp", "bert"),
    4: ("electra",),
    5: ("sop", "mlm+sop"),
    None: ("no pretraining", "no pre-training", "not pretrained", "without pretraining", "from scratch", "untrained"),
}
COLOUR_OF = {name: colour for colour, names in NAMES_OF.items() for name in names}
MOST_OF_A_KIND = 4


def line_styles(runs: pd.DataFrame) -> dict[str, LineStyle]:
    """A style for each variant of `Results.runs`. It depends on the names of all variants, not on what is finished.

    If it is known what a variant trains (`trained`), that decides: "BERT" may be MLM+NSP or only MLM. Variants with the same
    words before a comma ("LTR, layer 1", "LTR, layer 2") share a colour, unless they are many.
    """
    variants = list(dict.fromkeys(runs["variant"]))
    plain = lambda name: re.sub(r"\s*\+\s*", "+", name.casefold().strip())
    kinds = {variant: plain(variant.split(",")[0]) for variant in variants}
    sizes = Counter(kinds.values())
    kinds = {variant: kind if sizes[kind] <= MOST_OF_A_KIND else plain(variant) for variant, kind in kinds.items()}
    trained = runs[runs["trained"] != ""].groupby("variant")["trained"].first() if "trained" in runs else {}
    known = {
        kind: COLOUR_OF[kind] if COLOUR_OF[kind] is None else COLOUR_OF.get(trained.get(variant), COLOUR_OF[kind])
        for variant, kind in kinds.items()
        if kind in COLOUR_OF
    }
    others = dict.fromkeys(kind for kind in kinds.values() if kind not in known)
    free = [colour for colour in range(len(COLOURS)) if colour not in known.values()]
    colours = known | dict(zip(others, itertools.chain(free, itertools.cycle(range(len(COLOURS)))), strict=False))
    styles, turns = {}, Counter()
    for variant in sorted(variants, key=lambda variant: plain(variant) not in COLOUR_OF):
        colour = colours[kinds[variant]]
        turn = turns[colour]
        turns[colour] += 1
        if colour is None:
            turn %= len(REFERENCE_DASHES)
            looks = REFERENCE_DASHES[turn], REFERENCE_MARKERS[turn], REFERENCE_HATCHES[turn]
            styles[variant] = LineStyle(REFERENCE_COLOUR, *looks)
        else:  # no two of 36 variants have both dashes and marker in common
            dashes, marker = DASHES[(colour + turn) % len(DASHES)], MARKERS[(colour + 2 * turn) % len(MARKERS)]
            styles[variant] = LineStyle(COLOURS[colour], dashes, marker, HATCHES[turn % len(HATCHES)])
    return {variant: styles[variant] for variant in variants}


def styles_of(results: Results) -> dict[str, LineStyle]:
    """`line_styles` of a study's variants; steps of one pretraining ("MLM, 1000") have the style of their line ("MLM")."""
    lines = along_trajectories(results)
    styles, names = line_styles(lines.runs), dict(zip(results.runs["variant"], lines.runs["variant"], strict=True))
    return styles | {variant: styles[line] for variant, line in names.items()}


def loss_metrics(metrics: pd.DataFrame) -> list[str]:
    """The validation losses in `Results.metrics`: one per objective, or the total if no objective is named."""
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
    curve: pd.DataFrame,
    names: Sequence[str],
    x_axes: Sequence[str],
    styles: Mapping[str, LineStyle],
    *,
    legend: bool = True,
    training: pd.DataFrame | None = None,
    width: float = 2.4,
) -> Figure:
    """Validation curves, a row of panels per metric and a column per horizontal axis.

    Lines are means over a variant's pretrainings, bands one standard deviation over them (two or more).

    Args:
        curve: From `bertlab.studies.curves.mean_curves`.
        names: Metrics, such as "mlm/loss" (nats); each row of panels has its own vertical scale.
        x_axes: Of "step", "tokens", "supervised", "flops", "seconds".
        styles: Variant -> style, from `line_styles`.
        legend: Whether to draw one above the panels.
        training: Rows of `bertlab.studies.curves.curves`, of which thin lines are drawn: a run's losses in training.
        width: Of a panel, in inches.
    """
    curve = curve[curve["metric"].isin(names)]
    lines = {name: dict(list(of.groupby("variant"))) for name, of in curve.groupby("metric")}

    def draw(panel: Axes, name: str, axis: str) -> None:
        of_metric = training[training["metric"] == name] if training is not None else curve[:0]
        divisor = draw_curves(panel, lines.get(name, {}), axis, styles)
        for variant, of in of_metric.groupby("variant"):
            looks = {"color": styles[variant].colour, "linewidth": 0.7, "marker": ".", "markersize": 4, "zorder": 1.9}
            panel.plot(of[axis] / divisor, of["value"], clip_on=False, **looks)

    return _panels(names, x_axes, draw, curve["variant"] if legend else (), styles, width)


def score_curves(
    curve: pd.DataFrame,
    names: Sequence[str],
    x_axes: Sequence[str],
    styles: Mapping[str, LineStyle],
    *,
    legend: bool = True,
) -> Figure:
    """Test scores along pretrainings, a row of panels per score and a column per horizontal axis.

    Lines are means over pretraining seeds, bands their 95 % intervals. A panel reaches at most one range of the means beyond
    these, so bands of few seeds may leave it. Variants that were not pretrained are horizontal lines.

    Args:
        curve: From `bertlab.studies.curves.score_curves`.
        names: Scores, such as "package/accuracy".
        x_axes, styles, legend: As for `learning_curves`.
    """
    draw = lambda panel, name, axis: draw_scores(panel, curve[curve["metric"] == name], name, axis, styles)
    return _panels(names, x_axes, draw, curve["variant"] if legend else (), styles)


def example_curves(table: pd.DataFrame, styles: Mapping[str, LineStyle]) -> Figure:
    """Test scores by the number of labelled examples, a panel per score; numbers are at equal distances.

    Lines are means over pretraining seeds, bands their 95 % intervals, cut as in `score_curves`.

    Args:
        table: From `bertlab.studies.curves.scores_by_examples`.
        styles: Line -> style.
    """
    names, labels = list(dict.fromkeys(table["metric"])), list(dict.fromkeys(table["examples"]))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.2 * len(names), 2.6), layout="constrained")
        for panel, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            of, factor = table[table["metric"] == name], percent_factor(name)
            for variant, style in styles.items():
                points = of[of["variant"] == variant]
                places = points["examples"].map(labels.index)
                looks = {"color": style.colour, "linestyle": style.dashes, "linewidth": 1.5, "marker": style.marker}
                panel.plot(places, factor * points["mean"], markersize=3.5, **looks)
                band = {"color": style.colour, "alpha": 0.15, "linewidth": 0}
                panel.fill_between(places, factor * points["low"], factor * points["high"], **band)
            limit_to_means(panel, of, factor)
            panel.set_xticks(range(len(labels)), labels)
            panel.set_xlabel("labelled examples")
            panel.set_ylabel(wrapped(metric_label(name), 2))
        add_legend(figure, {variant: line_handle(style) for variant, style in styles.items()}, "upper")
    return figure


def limit_to_means(panel: Axes, curve: pd.DataFrame, factor: float) -> None:
    """Lets a panel reach the intervals, and at most one range of the means beyond the means."""
    lowest, highest = factor * curve["mean"].min(), factor * curve["mean"].max()
    room = (highest - lowest) or 1.0
    low = max(lowest - room, min(lowest, factor * curve["low"].min()))
    high = min(highest + room, max(highest, factor * curve["high"].max()))
    panel.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    panel.yaxis.set_major_locator(MaxNLocator(nbins=5))


def _panels(
    names: Sequence[str],
    x_axes: Sequence[str],
    draw: Callable[[Axes, str, str], None],
    shown: Iterable[str],
    styles: Mapping[str, LineStyle],
    width: float = 2.4,
) -> Figure:
    """A row of panels per metric and a column per horizontal axis; `shown` are the variants of the legend."""
    shown = set(shown)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width * len(x_axes), 2.0 * len(names)), layout="constrained")
        grid = figure.subplots(len(names), len(x_axes), squeeze=False)
        for name, row in zip(names, grid, strict=True):
            for axis, panel in zip(x_axes, row, strict=True):
                draw(panel, name, axis)
            row[0].set_ylabel(wrapped(metric_label(name), 1.5))
        if shown:
            add_legend(figure, {variant: line_handle(style) for variant, style in styles.items() if variant in shown}, "upper")
    return figure


def draw_curves(panel: Axes, lines: Mapping[str, pd.DataFrame], axis: str, styles: Mapping[str, LineStyle]) -> float:
    """Draws one metric against one horizontal axis; `lines` are the variants' rows of `mean_curves`.

    Returns:
        What the axis is divided by.
    """
    divisor, label = x_scale(axis, max((line[axis].max() for line in lines.values()), default=math.nan))
    for variant, style in styles.items():
        if variant not in lines:
            continue
        x, mean, sd = (lines[variant][column].to_numpy() for column in (axis, "mean", "sd"))
        x = x / divisor
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
        if np.isfinite(sd).any():
            panel.fill_between(x, mean - sd, mean + sd, color=style.colour, alpha=0.18, linewidth=0)
    panel.set_xlim(left=0)
    panel.set_xlabel(label)
    panel.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=divisor == 1))
    panel.yaxis.set_major_locator(MaxNLocator(nbins=5))
    return divisor


WIDE = 10  # a horizontal axis whose points are that far apart is logarithmic


def draw_scores(panel: Axes, curve: pd.DataFrame, name: str, axis: str, styles: Mapping[str, LineStyle]) -> None:
    """Draws one score against one horizontal axis."""
    divisor, label = x_scale(axis, curve[axis].max())
    factor, reached = percent_factor(name), curve.loc[curve[axis] > 0, axis]
    for variant, style in styles.items():
        points = curve[curve["variant"] == variant].sort_values(axis)
        looks = {"color": style.colour, "linestyle": style.dashes, "linewidth": 1.5}
        if points.empty:
            continue
        if not points["step"].any():
            panel.axhline(factor * points["mean"].iloc[0], **looks)
            continue
        x = points[axis] / divisor
        panel.plot(x, factor * points["mean"], marker=style.marker, markersize=3.5, **looks)
        panel.fill_between(x, factor * points["low"], factor * points["high"], color=style.colour, alpha=0.18, linewidth=0)
    limit_to_means(panel, curve, factor)
    panel.set_xlabel(label)
    if len(reached) and reached.max() >= WIDE * reached.min():
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if reached.max() < 30 * reached.min() else (1, 3)))
        panel.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        panel.xaxis.set_minor_locator(NullLocator())
    else:
        panel.set_xlim(left=0)
        panel.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=divisor == 1))


def downstream_bars(results: Results, measures: Sequence[Measure], styles: Mapping[str, LineStyle]) -> Figure:
    """Test scores of downstream tasks, a panel per score (at most three in a row) and a bar per variant.

    Bars are means over seeds, whiskers one standard deviation (two seeds or more), dots single seeds (the mean of fine-tunings
    nested in one). Dashed lines are the means of variants without pretraining. The solid line is the score of always giving
    the most frequent answer, if that is above 0 and the same for all variants.

    Args:
        results: The study; unfinished runs and scores that are not finite are left out.
        measures: The scores to show; shares and correlations are drawn in %.
        styles: Variant -> style, from `line_styles`.
    """
    finished = set(results.finished["variant"])
    variants = [variant for variant in results.variants if variant in finished]
    looks = ({"color": INK, "linewidth": 0.9, "linestyle": dashes} for dashes in itertools.cycle(REFERENCE_DASHES))
    lines = dict(zip(untrained(results), looks, strict=False))
    least = {measure: score for measure in measures if (score := most_frequent(results, measure)) > 0}
    rows = math.ceil(len(measures) / 3)
    columns = math.ceil(len(measures) / rows)
    labels = [wrapped(variant, 1.5) for variant in variants]
    # The vertical axis is in inches, so that each name has room for its lines.
    heights = [max(0.33, lines_height(label) + 0.1) for label in labels]
    places = [sum(heights[:i]) + height / 2 for i, height in enumerate(heights)]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.9 * columns, rows * (0.65 + sum(heights))), layout="constrained")
        for number, measure in enumerate(measures, 1):
            panel = figure.add_subplot(rows, columns, number)
            tables, name = seed_tables(results, measure), measure.name
            scores = {variant: tables[variant].mean(axis=1).dropna() for variant in variants}
            draw_bars(panel, scores, name, places, styles)
            for variant, line in lines.items():
                panel.axvline(scores[variant].mean() * percent_factor(name), zorder=0.9, **line)
            if measure in least:
                panel.axvline(least[measure] * percent_factor(name), zorder=0.9, **MOST_FREQUENT_LINE)
            panel.set_yticks(places, labels)
            panel.set_ylim(sum(heights), 0)
            panel.set_xlabel(wrapped(f"{metric_label(name)}, test", 2.2))
            end_at_highest(panel, percent_factor(name) * bounds(name)[1])
            panel.grid(axis="y", visible=False)
            panel.tick_params(axis="y", length=0)
        handles = {f"mean of {variant}": Line2D([], [], **line) for variant, line in lines.items()}
        handles |= {"always the most frequent answer": Line2D([], [], **MOST_FREQUENT_LINE)} if least else {}
        if handles:
            add_legend(figure, handles, "lower")
    return figure


def end_at_highest(panel: Axes, highest: float) -> None:
    """Ends a panel's horizontal axis at the highest score there is; right of it is only room for numbers."""
    low, high = panel.get_xlim()
    end = min(high, highest)
    panel.set_xticks([tick for tick in MaxNLocator(nbins=5).tick_values(low, end) if low <= tick <= end])
    panel.spines["bottom"].set_bounds(low, end)


def most_frequent(results: Results, measure: Measure) -> float:
    """The mean score over seeds of always giving the most frequent answer; NaN if unknown or different between variants."""
    means = mean_scores(results, measure._replace(stage="most_frequent"))
    return means.mean() if means.max() - means.min() < 1e-9 else math.nan


def draw_bars(
    panel: Axes, scores_of: Mapping[str, pd.Series], name: str, places: Sequence[float], styles: Mapping[str, LineStyle]
) -> None:
    """Draws one metric's bars, with its numbers right of everything of their bar."""
    factor = percent_factor(name)
    low, high, texts = 0.0, 0.0, [""]
    for place, (variant, scores) in zip(places, scores_of.items(), strict=True):
        if scores.empty:
            continue
        scores = scores * factor
        mean, sd = scores.mean(), scores.std() if len(scores) > 1 else 0.0
        panel.barh(
            place,
            mean,
            height=0.2,
            color=styles[variant].colour,
            hatch=styles[variant].hatch or None,
            edgecolor="white",
            linewidth=0,
            xerr=sd if len(scores) > 1 else None,
            error_kw={"ecolor": INK, "elinewidth": 1, "capsize": 2.5},
        )
        if len(scores) > 1:
            panel.plot(scores, [place] * len(scores), "o", **SEED_DOTS)
        reach = max(0.0, scores.max(), mean + sd)
        low, high = min(low, scores.min(), mean - sd), max(high, reach)
        texts.append(score_number(scores.mean() / factor, name))
        panel.annotate(
            texts[-1],
            (reach, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            bbox=LABEL,
        )
    if low < 0:
        panel.axvline(0, color=INK, linewidth=0.8)
        panel.spines["left"].set_visible(False)
        low -= 0.04 * (high - low)
    # A panel is about two inches wide; the longest number needs its part of them.
    numbers = (max(map(text_width, texts)) + 0.12) / 2
    panel.set_xlim(low, low + (high - low) / (1 - numbers) or 1)


def code_lengths(results: Results, styles: Mapping[str, LineStyle]) -> Figure:
    """Bits per byte of held-out text, a row for each variant that has a code length or a bound of one.

    A disc is a mean over seeds of code lengths, a bar with an arrow that of upper bounds: the code length lies there or left
    of it. Small circles are single seeds.

    Args:
        results: The study; `has_code_lengths` says whether there is something to compare.
        styles: Variant -> style, from `line_styles`.
    """
    known = known_lengths(results)
    labels = [wrapped(length.label, 1.8) for length in known]
    heights = [max(0.28, lines_height(label) + 0.1) for label in labels]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(6.2, 0.65 + sum(heights)), layout="constrained")
        panel = figure.subplots()
        places = [sum(heights[:i]) + height / 2 for i, height in enumerate(heights)]
        low, high, texts = math.inf, -math.inf, []
        for place, (variant, _, is_bound, values) in zip(places, known, strict=True):
            mean, colour = values.mean(), styles[variant].colour
            if is_bound:
                panel.plot(mean, place, "|", color=colour, markersize=11, markeredgewidth=2)
                arrow = {"arrowstyle": "<-", "color": colour, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
                panel.annotate("", (mean, place), xytext=(-24, 0), textcoords="offset points", arrowprops=arrow)
            else:
                panel.plot(mean, place, "o", color=colour, markersize=8)
            if len(values) > 1:
                panel.plot(values, [place] * len(values), "o", **SEED_DOTS)
            texts.append(f"{'≤ ' * is_bound}{mean:.3f}")
            low, high = min(low, values.min()), max(high, values.max())
            panel.annotate(texts[-1], (values.max(), place), xytext=(8, 0), textcoords="offset points", va="center", bbox=LABEL)
        room = (max(map(text_width, texts)) + 0.25) / 4  # a panel is at least four inches wide
        width = (high - low) / (1 - room - 0.08) or 1
        panel.set_xlim(low - 0.08 * width, high + room * width)
        panel.set_yticks(places, labels)
        panel.set_ylim(sum(heights), 0)
        panel.set_xlabel("bits per byte of held-out text; ≤ and arrows: upper bound")
        panel.grid(axis="y", visible=False)
        panel.tick_params(axis="y", length=0)
    return figure


class Length(NamedTuple):
    """Bits per byte of held-out text of a variant.

    Attributes:
        variant: its name.
        label: the variant, and where it has several lengths the kind: "masked next token, any-order".
        is_bound: whether they are upper bounds of the code length.
        values: by seed.
    """

    variant: str
    label: str
    is_bound: bool
    values: pd.Series


def known_lengths(results: Results) -> list[Length]:
    """Each code length and bound, in the variants' order."""
    tables = {kind: seed_tables(results, bits_per_byte(kind)) for kind in CODE_LENGTHS}
    values = {(variant, kind): table.mean(axis=1).dropna() for kind in tables for variant, table in tables[kind].items()}
    known = {key: of for key, of in values.items() if len(of)}
    often = Counter(variant for variant, _ in known)
    label = lambda variant, kind: f"{variant}, {kind}" if often[variant] > 1 else variant
    found = [Length(variant, label(variant, kind), kind in BOUNDS, of) for (variant, kind), of in known.items()]
    return sorted(found, key=lambda length: results.variants.index(length.variant))


def has_code_lengths(results: Results) -> bool:
    """Whether some variants have a code length, and others a bound of one."""
    measured = results.measures(stage="evaluate")
    return all(bits_per_byte(kind) in measured for kind in CODE_LENGTHS)


NARROWEST = 0.05  # of a share's scale of colours


def heat_map(results: Results, measures: Sequence[Measure]) -> Figure:
    """Test scores as a map: variants (such as layers) downwards, tasks across; every task on its own scale.

    The scale of a share is at least five points wide, so that noise around one score does not look like a pattern.

    Args:
        results: The study; unfinished runs and variants without a score are left out.
        measures: The scores to show; shares and correlations are written in %.
    """
    names = [measure.name for measure in measures]
    means = pd.DataFrame({measure.name: mean_scores(results, measure) for measure in measures})
    means = means.reindex([variant for variant in results.variants if variant in means.index])
    least = [NARROWEST if math.isfinite(bounds(name)[1]) else 0.0 for name in names]
    spread = np.maximum(means.max() - means.min(), least).where(lambda of: of > 0, 1.0)
    place = 0.5 + (means - (means.max() + means.min()) / 2) / spread
    heads = [wrapped(metric_label(name).replace("/", " "), 0.85) for name in names]
    labels = [wrapped(variant, 1.8) for variant in means.index]
    # Every cell has room for the widest head and number, and for the name with most lines.
    numbers = [[score_number(value, name) for name, value in row.items()] for _, row in means.iterrows()]
    width = max(0.7, *(text_width(text) + 0.2 for text in itertools.chain(heads, *numbers)))
    height = max(0.34, *(lines_height(label) + 0.12 for label in labels))
    beside = 1.6 + max(map(text_width, labels))
    above = 0.3 + max(map(lines_height, heads))
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        size = (beside + width * len(names), above + max(0.7, height * len(means)))
        figure = Figure(figsize=size, layout="constrained")
        panel = figure.subplots()
        shown = panel.imshow(np.ma.masked_invalid(place), cmap="cividis", vmin=0, vmax=1, aspect="auto")
        for row, column in itertools.product(range(len(means)), range(len(names))):
            if math.isnan(means.iat[row, column]):
                continue
            dark = place.iat[row, column] < 0.5
            panel.text(column, row, numbers[row][column], ha="center", va="center", color="white" if dark else "black")
        panel.set_xticks(range(len(names)), heads)
        panel.set_yticks(range(len(means)), labels)
        panel.tick_params(length=0)
        panel.xaxis.set_ticks_position("top")
        panel.spines[:].set_visible(False)
        bar = figure.colorbar(shown, ax=panel, ticks=[0, 1], pad=0.02, aspect=12)
        bar.ax.set_yticklabels(["task's lowest", "task's highest"])
        bar.outline.set_visible(False)
    return figure


def score_number(value: float, metric: str) -> str:
    """A score as figures print it, without its unit; two figures if it is too small for the usual decimals."""
    factor, digits = score_scale(metric)
    value *= factor
    text = f"{value:.2g}" if 0 < abs(value) < 10**-digits else f"{value:.4g}" if abs(value) >= 1000 else f"{value:z.{digits}f}"
    return text.replace("-", "\N{MINUS SIGN}")


@functools.lru_cache(maxsize=10_000)
def text_width(text: str) -> float:
    """The width in inches of the longest line of `text` in the figures' font."""
    font = FontProperties(family=FONT, size=FONT_SIZE)
    return max(text_to_path.get_text_width_height_descent(line or " ", font, False)[0] for line in text.split("\n")) / 72


def lines_height(text: str) -> float:
    """The height in inches of a text's lines."""
    return 1.2 * FONT_SIZE * (text.count("\n") + 1) / 72


def wrapped(text: str, width: float) -> str:
    """`text` in lines of at most `width` inches, broken after spaces, "/", "_", "=" and "-", or else within a word."""
    lines = [""]
    for piece in re.findall(r"[^ /_=-]+[ /_=-]*|[ /_=-]+", " ".join(text.split())):
        if text_width(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        for character in piece:
            if character != " " and text_width(lines[-1] + character) > width:
                lines.append("")
            lines[-1] += character
    return "\n".join(line.strip() for line in lines if line.strip())


def add_legend(figure: Figure, handles: Mapping[str, Line2D], side: str) -> None:
    """Adds a legend above ("upper") or below ("lower") the panels, and the height that it needs to the figure."""
    width, height = figure.get_size_inches()
    beside = 6.5 * FONT_SIZE / 72  # the line's sample and the gaps around a text
    names = [wrapped(name, min(width - 0.2 - beside, 3)) for name in handles]
    rows = math.ceil(len(names) / max(1, int((width - 0.2) / (beside + max(map(text_width, names))))))
    columns = math.ceil(len(names) / rows)
    tallest = max(sum(lines_height(name) + 0.07 for name in part) for part in np.array_split(names, columns))
    figure.set_size_inches(width, height + tallest + 0.15)
    figure.legend(handles.values(), names, loc=f"outside {side} center", ncols=columns, handlelength=3.5)


def line_handle(style: LineStyle) -> Line2D:
    """The legend's sample of a style."""
    return Line2D([], [], color=style.colour, linestyle=style.dashes, marker=style.marker, markersize=4, linewidth=1.5)


def score_scale(metric: str) -> tuple[int, int]:
    """The factor and the number of decimals with which a score is shown."""
    factor = percent_factor(metric)
    return factor, 1 if factor == 100 else 3


def percent_factor(metric: str) -> int:
    """100 for shares (0 to 1) and correlations (-1 to 1), which are shown in percent; 1 for other metrics."""
    return 100 if math.isfinite(bounds(metric)[1]) else 1


def metric_label(metric: str) -> str:
    """A metric's name with its unit: "mlm/loss (nats)", "package/accuracy (%)"."""
    if metric.endswith("loss"):
        return f"{metric} (nats)"
    return f"{metric} (%)" if percent_factor(metric) == 100 else metric
