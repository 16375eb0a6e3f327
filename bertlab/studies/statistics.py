"""Statistics over seeds: differences between two variants, compared seed by seed; corrections."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy.stats
from jaxtyping import Float
from statsmodels.stats.multitest import multipletests

# Scores are computed in float32: differences that vary by less than this share of the scores count
# as equal, as for metrics that move in steps of one example.
RESOLUTION = 1e-6


@dataclass(frozen=True)
class TTest:
    """First variant minus second in one metric."""

    mean: float
    low: float  # of the 95 % interval; NaN if nothing varies, since no spread can be estimated
    high: float
    p: float  # two-sided, of no difference
    pairs: int  # seeds for which both have a score
    items: int = 0  # of the test set, if they are drawn too (`compare_items`)


def compare(first: pd.Series, second: pd.Series) -> TTest | None:
    """Student's paired t test of scores indexed by seed (NaN is left out); None with fewer than two
    seeds for which both have one.

    If all differences are equal, Student's p would be 0 even after three seeds. Then p is 1 for no
    difference, otherwise the permutation test's smallest, 2/2^n of n pairs.
    """
    ours, theirs = first.dropna().astype(float), second.dropna().astype(float)
    seeds = ours.index.intersection(theirs.index)
    if len(seeds) < 2:
        return None
    ours, theirs = ours[seeds].to_numpy(), theirs[seeds].to_numpy()
    differences = ours - theirs
    mean = differences.mean()
    least = RESOLUTION * max(np.abs(ours).max(), np.abs(theirs).max())
    if np.ptp(differences) <= least:
        p = 2 / 2 ** len(seeds) if abs(mean) > least else 1.0
        return TTest(mean, math.nan, math.nan, p, len(seeds))
    test = scipy.stats.ttest_rel(ours, theirs)
    interval = test.confidence_interval(0.95)
    return TTest(mean, interval.low, interval.high, test.pvalue, len(seeds))


def compare_items(differences: Float[np.ndarray, "P N"]) -> TTest:
    """Student's t over pretraining seeds and items of the test set, both as random draws.

    An interval over seeds alone is for one test set, which all seeds share, and a bootstrap over a
    few seeds is too narrow. So the variance of the mean is that of a crossed design without
    replication: (seeds' + items' - rest's mean square) / PN, with Satterthwaite's degrees of
    freedom. Sellam et al. 2022 (MultiBERTs) resample both for the same purpose. The mean over P
    seeds and N items (sentences) is the difference of two variants' scores.
    """
    seeds, items = differences.shape
    mean, by_seed, by_item = differences.mean(), differences.mean(1), differences.mean(0)
    rest = differences - by_seed[:, None] - by_item + mean
    degrees = np.array([seeds - 1, items - 1, (seeds - 1) * (items - 1)])
    squares = [items * by_seed.var(ddof=1), seeds * by_item.var(ddof=1)]
    shares = np.array([*squares, -(rest**2).sum() / degrees[2]]) / differences.size
    variance = max(shares.sum(), shares.max())
    if variance <= 0:
        p = 1.0 if mean == 0 else 2 / 2**seeds
        return TTest(mean, math.nan, math.nan, p, seeds, items)
    freedom = variance**2 / (shares**2 / degrees).sum()
    half = scipy.stats.t.ppf(0.975, freedom) * math.sqrt(variance)
    p = 2 * scipy.stats.t.sf(abs(mean) / math.sqrt(variance), freedom)
    return TTest(mean, mean - half, mean + half, p, seeds, items)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's corrected p-value for each of several tests."""
    return multipletests(p_values, method="holm")[1].tolist() if len(p_values) else []
