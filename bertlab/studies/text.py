"""Numbers and values as reports print them."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from bertlab.studies import plots

MISSING = "–"


def number(value: float, digits: int, sign: str = "") -> str:
    """A number with `digits` decimals; in six figures from 1000 on, and in two where the decimals would all be 0.

    NaN is missing. With `sign` "+", positive numbers have a sign too.
    """
    if math.isnan(value):
        return MISSING
    if abs(value) >= 1000:
        return f"{value:{sign}.6g}"
    if value and not float(f"{value:.{digits}f}"):
        return f"{value:{sign}.2g}"
    return f"{value:{sign}z.{digits}f}"  # z: never "-0.0"


def spread(mean: float, sd: float, digits: int) -> str:
    """ "71.4 ± 0.8", or "71.4" for one seed; a number that is small next to the other may print as 0.0, but never both."""
    if math.isnan(sd):
        return number(mean, digits)
    as_zero = lambda value: not float(f"{value:.{digits}f}")
    if as_zero(mean) and as_zero(sd):
        return f"{number(mean, digits)} ± {number(sd, digits)}"
    texts = [f"{value:z.{digits}f}" if as_zero(value) else number(value, digits) for value in (mean, sd)]
    return " ± ".join(texts)


def interval(low: float, high: float, digits: int) -> str:
    """The ends of an interval: "0.4 to 5.0"; missing if nothing varies."""
    return MISSING if math.isnan(low) or math.isnan(high) else f"{low:z.{digits}f} to {high:z.{digits}f}"


def p_text(p: float) -> str:
    """A p value in three digits: "0.042", "< 0.001"; missing if undefined."""
    return MISSING if math.isnan(p) else f"{p:.3f}" if p >= 0.001 else "< 0.001"


def count_text(value: float) -> str:
    """A count in three figures with its power of thousand: 4390000 -> "4.39 M", 1.2e15 -> "1.20 P"."""
    if not math.isfinite(value):
        return MISSING if math.isnan(value) else str(value)
    rounded = float(f"{value:.3g}")  # so that 999,999 is 1.00 M
    for power, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(rounded) >= power:
            scaled = rounded / (1e3 if prefix == "k" else power)
            digits = 2 if abs(scaled) < 10 else 1 if abs(scaled) < 100 else 0
            return f"{scaled:.{digits}f} {prefix}"
    return f"{value:z,.0f}"


def seconds_text(value: float) -> str:
    """A duration: "42 s", "12.4 min", "3.1 h", "5.2 days", "2.4 years"."""
    day = 24 * 3600
    for most, length, unit in ((120, 1, "s"), (7200, 60, "min"), (3 * day, 3600, "h"), (730 * day, day, "days")):
        if value < most:
            return f"{number(value / length, int(length > 1))} {unit}"
    return f"{number(value / (365 * day), 1)} years"


def score_text(value: float, metric: str) -> str:
    """A score with its unit: "71.4 %"."""
    return f"{number(100 * value, 1)}\N{NO-BREAK SPACE}%" if plots.percent_factor(metric) == 100 else f"{value:z.3g}"


def points(value: float, metric: str) -> str:
    """An absolute difference of two scores: "3.1 points"."""
    value = abs(value) * plots.percent_factor(metric)
    return f"{value:.1f} points" if plots.percent_factor(metric) == 100 else f"{value:.3g}"


def signed_points(value: float, metric: str) -> str:
    """The end of an interval, in points without the word: "-0.4"."""
    return f"{100 * value:z.1f}" if plots.percent_factor(metric) == 100 else f"{value:z.3g}"


def plain_text(value: Any) -> str:
    """A JSON value on one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        counts = Counter(plain_text(item) for item in value)
        return ", ".join(f"{text} × {count}" if count > 1 else text for text, count in counts.items())
    return str(value)


def escape_latex(text: str) -> str:
    """Escapes what LaTeX would read as commands, and what its default encoding prints as something else."""
    names = {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "|": r"\textbar{}",
        "<": "$<$",
        ">": "$>$",
        "±": r"$\pm$",
        "×": r"$\times$",
        "≥": r"$\geq$",
        "…": r"\ldots{}",
        "–": "--",
        "\N{MINUS SIGN}": "$-$",
    }
    text = re.sub(r"(?<![^\s(])-(?=\d)", "\N{MINUS SIGN}", str(text))  # of a negative number, not a hyphen
    escaped = "".join(names.get(c, "\\" + c if c in "&%$#_{}" else c) for c in text)
    return "{}" * escaped.startswith(("[", "*")) + escaped  # after \\ or \midrule these would be an option
