"""Statistics over seeds: differences of two variants, corrections.

Scores are one variant's numbers in one metric, a pandas Series indexed by seed; those that are not
finite are left out. Two variants are compared seed by seed if they share a seed, otherwise as
independent samples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy.stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

# Scores are computed in float32: differences that vary by less than this share of the scores, such
# as those of metrics that move in steps of one example, do not vary.
RESOLUTION = 1e-6


@dataclass(frozen=True)
class TTest:
    """First variant minus second in one metric.

    Attributes:
        mean: Of the differences; of independent samples, the difference of the means.
        sd: Of the differences, ddof = 1; NaN for independent samples.
        low, high: The interval; NaN if nothing varies, since no spread can be estimated.
        p: Two-sided, of no difference.
        pairs: Seeds with a score of both; 0 for independent samples.
    """

    mean: float
    sd: float
    low: float
    high: float
    p: float
    pairs: int


def compare(first: pd.Series, second: pd.Series) -> TTest | None:
    """Student's paired t test seed by seed, or Welch's without common seeds.

    If the differences are all equal, Student's p of 0 would decide after three seeds a metric that
    moves in steps of one example. Then p is 1 for no difference, otherwise the permutation test's
    smallest: 2/2^n of n pairs, 2/C(n+m, n) of n and m independent scores.

    Returns:
        None with fewer than two pairs, or two scores each.
    """
    ours, theirs = (scores[np.isfinite(scores.to_numpy(float))] for scores in (first, second))
    paired = len(first.index.intersection(second.index)) > 0
    if paired:
        seeds = ours.index.intersection(theirs.index)
        ours, theirs = ours[seeds], theirs[seeds]
    if min(len(ours), len(theirs)) < 2:
        return None
    ours, theirs = ours.to_numpy(float), theirs.to_numpy(float)
    mean = float(ours.mean() - theirs.mean())
    pairs = len(ours) if paired else 0
    sd = float((ours - theirs).std(ddof=1)) if paired else math.nan
    largest = np.concatenate([ours, theirs])
    samples = [ours - theirs] if paired else [ours, theirs]
    if not any(_vary(sample, largest) for sample in samples):
        ways = 2**pairs if paired else math.comb(len(ours) + len(theirs), len(ours))
        p = 2 / ways if abs(mean) > RESOLUTION * np.abs(largest).max() else 1.0
        return TTest(mean, sd, math.nan, math.nan, p, pairs)
    if paired:
        test = scipy.stats.ttest_rel(ours, theirs)
    else:
        test = scipy.stats.ttest_ind(ours, theirs, equal_var=False)
    interval = test.confidence_interval(0.95)
    return TTest(mean, sd, float(interval.low), float(interval.high), float(test.pvalue), pairs)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's corrected p of each of several tests."""
    if not len(p_values):
        return []
    return multipletests(p_values, method="holm")[1].tolist()


def seeds_needed(difference: float, sd: float, alpha: float = 0.05) -> int:
    """The fewest seeds with which a two-sided paired t test finds a true difference with a chance
    of 80 %."""
    pairs = TTestPower().solve_power(abs(difference) / sd, power=0.8, alpha=alpha)
    return max(2, math.ceil(pairs))


def _vary(values: np.ndarray, scores: np.ndarray) -> bool:
    """Whether values made of these scores vary by more than rounding."""
    return bool(np.ptp(values) > RESOLUTION * np.abs(scores).max())
