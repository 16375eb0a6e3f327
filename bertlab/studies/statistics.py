"""The paired test of two variants over seeds, and over items of the test set."""

import math
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.stats

# Scores are computed in float32: differences that vary by less than this share of the scores count
# as equal, as for metrics that move in steps of one example.
RESOLUTION = 1e-6


class TTest(NamedTuple):
    """First variant minus second in one metric."""

    mean: float
    low: float  # of the 95 % interval; NaN if nothing varies, since no spread can be estimated
    high: float
    p: float  # two-sided, of no difference
    seeds: int  # for which both have scores
    sentences: int  # or other items of the test set, if they are drawn too; else 0


def compare(first: pd.DataFrame, second: pd.DataFrame) -> TTest | None:
    """Student's t of scores [seeds, items], paired by both; None with fewer than two common seeds.

    Seeds and items are both random draws: an interval over seeds alone is for one test set, which
    all seeds share, and a bootstrap over a few seeds is too narrow. So the variance of the mean is
    that of a crossed design without replication, (seeds' + items' - rest's mean square) / PN for P
    seeds and N items, with Satterthwaite's degrees of freedom. Sellam et al. 2022 (MultiBERTs)
    resample both for the same purpose. With one item (a score) it is the plain paired test.

    If all differences are equal, Student's p would be 0 even after three seeds. Then p is 1 for no
    difference, otherwise the permutation test's smallest, 2/2^n of n pairs.
    """
    if first.shape[1] == 1 or second.shape[1] == 1:
        first, second = (scores.mean(axis=1).to_frame() for scores in (first, second))
    differences = (first - second).dropna().to_numpy(float)
    seeds, items = differences.shape
    if seeds < 2:
        return None
    mean, drawn = differences.mean(), items if items > 1 else 0
    centred = differences - mean
    degrees = np.maximum([seeds - 1, items - 1, (seeds - 1) * (items - 1)], 1)
    squares = [items * (centred.mean(1) ** 2).sum(), seeds * (centred.mean(0) ** 2).sum()]
    squares = np.array([*squares, sum(squares) - (centred**2).sum()])
    shares = squares / degrees / differences.size
    variance = max(shares.sum(), shares.max())
    least = RESOLUTION * max(scores.abs().max(axis=None) for scores in (first, second))
    if variance * seeds <= least**2:
        p = 2 / 2**seeds if abs(mean) > least else 1.0
        return TTest(mean, math.nan, math.nan, p, seeds, drawn)
    student = scipy.stats.t(variance**2 / (shares**2 / degrees).sum(), scale=math.sqrt(variance))
    low, high = mean + np.array(student.interval(0.95))
    return TTest(mean, low, high, 2 * student.sf(abs(mean)), seeds, drawn)
