"""Numbers and values as reports print them."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from bertlab.studies import plots

MISSING = "–"


def spread(mean: float, sd: float, digits: int) -> str:
    """ "71.4 ± 0.8", or "71.4" where there is one seed."""
    return f"{mean:.{digits}f}" if math.isnan(sd) else f"{mean:.{digits}f} ± {sd:.{digits}f}"


def p_text(p: float) -> str:
    """A p value in three digits: "0.042", "< 0.001"."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def count_text(value: float) -> str:
    """A count in three figures with its power of thousand: 4390000 -> "4.39 M", 1.2e15 -> "1.20 P"."""
    for power, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= power:
            unit = 1e3 if prefix == "k" else power
            scaled = value / unit
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f} {prefix}"
    return f"{value:,.0f}"


def seconds_text(value: float) -> str:
    """A duration: "42 s", "12.4 min", "3.1 h"."""
    return f"{value:.0f} s" if value < 120 else f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def score_text(value: float, metric: str) -> str:
    """A score with its unit: "71.4 %"."""
    return f"{100 * value:.1f}\N{NO-BREAK SPACE}%" if plots.percent_factor(metric) == 100 else f"{value:.3g}"


def points(value: float, metric: str) -> str:
    """An absolute difference of two scores: "3.1 points", with more digits where it is small."""
    value = abs(value) * plots.percent_factor(metric)
    text = f"{value:.1f}" if value >= 0.1 or value == 0 else f"{value:.2g}"
    return f"{text} points" if plots.percent_factor(metric) == 100 else f"{abs(value):.3g}"


def signed_points(value: float, metric: str) -> str:
    """The end of an interval, in points without the word: "-0.4"."""
    return f"{value * plots.percent_factor(metric):.1f}" if plots.percent_factor(metric) == 100 else f"{value:.3g}"


def plain_text(value: Any) -> str:
    """A JSON value on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        counts = Counter(plain_text(item) for item in value)
        return ", ".join(f"{text} × {count}" if count > 1 else text for text, count in counts.items())
    return str(value)


def escape_latex(text: str) -> str:
    """Escapes what LaTeX would read as commands."""
    names = {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "≥": r"$\geq$",
        "–": "--",
        "\N{MINUS SIGN}": "$-$",
    }
    return "".join(names.get(c, "\\" + c if c in "&%$#_{}" else c) for c in str(text))
