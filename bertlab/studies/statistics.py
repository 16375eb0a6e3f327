"""Statistics over seeds: intervals, tests, power, and the rule by which a sweep stops early.

Scores are one variant's numbers in one metric: a pandas Series indexed by seed. Scores that are not finite come from failed
runs and are left out. Two variants are compared seed by seed (paired) if they have a seed in common, failed or not; otherwise
as independent samples. If fine-tuning seeds are nested in pretraining seeds, scores are a DataFrame with a row per pretraining
seed and a column per fine-tuning seed. Fine-tunings of one pretrained model are not independent, so only `multi_bootstrap`
takes them. `names` are the variants', for errors.
"""

import bisect
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy.stats
from jaxtyping import Float, Int
from statsmodels.stats.power import TTestPower

from bertlab.errors import UserError

# Scores are computed in float32: differences that vary by less than this share of the scores do not vary.
RESOLUTION = 1e-6
ALPHA = 0.05  # the chance that a sweep stops by mistake
FIRST_LOOK = 3  # complete seeds after which a sweep first asks whether it may stop
ALL_FLIPS = 16  # pairs of which every flip of signs is tried


@dataclass(frozen=True)
class TTest:
    """First variant minus second in one metric: mean difference, interval, and two-sided p of no difference.

    Attributes:
        mean: Mean of the differences; of independent samples, the difference of the means.
        sd: Standard deviation of the differences, ddof = 1; NaN for independent samples.
        low, high: The interval; NaN if nothing varies, because no spread can be estimated.
        p: Student's (paired) or Welch's; if nothing varies, see `compare_variants`.
        pairs: Seeds with a score of both; 0 for independent samples.
    """

    mean: float
    sd: float
    low: float
    high: float
    p: float
    pairs: int


@dataclass(frozen=True)
class Interval:
    """A mean over pretraining seeds, or a difference of two, with its interval; `percentiles` are those of the draws."""

    mean: float
    low: float
    high: float
    percentiles: tuple[float, float]


@dataclass(frozen=True)
class PairDecision:
    """Two variants of a ranking in one metric; `difference` is better minus worse."""

    metric: str
    better: str
    worse: str
    difference: TTest
    decided: bool


@dataclass(frozen=True)
class Settlement:
    """Whether the order of a study's variants is settled, and which pairs are.

    Attributes:
        seeds: Seeds that were looked at.
        max_seeds: Seeds at which the study stops in any case.
        rankings: Metric -> variants from best to worst by their mean.
        pairs: Every pair of variants in every metric, neighbours in the ranking first.
    """

    seeds: int
    max_seeds: int
    rankings: Mapping[str, list[str]]
    pairs: tuple[PairDecision, ...]

    @property
    def settled(self) -> bool:
        """Whether every pair is decided in every metric."""
        return not self.open

    @property
    def open(self) -> list[PairDecision]:
        """The pairs that are not decided."""
        return [pair for pair in self.pairs if not pair.decided]


def mean_interval(scores: pd.Series, level: float = 0.95) -> tuple[float, float]:
    """Student's interval of the mean over seeds.

    NaN for fewer than two scores and for equal scores: an interval of width zero would claim that the next score is known.
    """
    _check_seeds(pd.Series(scores).index, "scores")
    known = _known(scores)
    values = known[~np.isnan(known)]
    return _student([values], _largest(values), level)[:2] if len(values) else (math.nan, math.nan)


def compare_variants(first: pd.Series, second: pd.Series, names: tuple[str, str], level: float = 0.95) -> TTest:
    """Student's t test of two variants seed by seed, or Welch's if they have no seed in common.

    If the differences are all equal (for independent samples: if neither side varies; to `RESOLUTION` of the scores), no spread
    can be estimated, and Student's p of 0 would call a metric that moves in steps of one test example decided after three
    seeds. Then p is 1 for no difference, and otherwise that of the permutation test: `smallest_p`.

    Raises:
        UserError: Fewer than two pairs, or fewer than two scores of one of two independent samples.
    """
    return _t_tests([_aligned(_by_label(first, names[0]), _by_label(second, names[1]), names)], level)[0]


def compare_pairs(scores: Mapping[str, pd.Series], pairs: Iterable[tuple[str, str]], level: float = 0.95) -> list[TTest]:
    """`compare_variants` of many pairs of variants, named as in `scores`; raises as there."""
    known = {name: _by_label(of, name) for name, of in scores.items()}
    return _t_tests([_aligned(known[first], known[second], (first, second)) for first, second in pairs], level)


def paired_p(first: Float[np.ndarray, "... seeds"], second: Float[np.ndarray, "... seeds"]) -> Float[np.ndarray, "..."]:
    """Two-sided p of paired t tests along the last axis; of differences that do not vary as in `compare_variants`."""
    differences, largest = first - second, RESOLUTION * np.maximum(np.abs(first), np.abs(second)).max(axis=-1)
    vary = np.ptp(differences, axis=-1) > largest
    p = np.where(np.abs(differences.mean(axis=-1)) > largest, smallest_p(first.shape[-1]), 1.0)
    if vary.any():
        p[vary] = scipy.stats.ttest_rel(first[vary], second[vary], axis=-1).pvalue
    return p


def sign_flips(first: pd.Series, second: pd.Series, names: tuple[str, str]) -> float:
    """Two-sided p of no difference of pairs, without a normal distribution: the permutation test of their signs.

    All sign flips are tried of up to 16 pairs, and 100,000 at random of more. Few seeds cannot give a small p, however large
    the difference is: see `smallest_p`.

    Raises:
        UserError: Fewer than two pairs.
    """
    return _flips([_differences(_by_label(first, names[0]), _by_label(second, names[1]), names)])[0]


def flip_pairs(scores: Mapping[str, pd.Series], pairs: Iterable[tuple[str, str]]) -> list[float]:
    """`sign_flips` of many pairs of variants, named as in `scores`; raises as there."""
    known = {name: _by_label(of, name) for name, of in scores.items()}
    return _flips([_differences(known[first], known[second], (first, second)) for first, second in pairs])


def smallest_p(first: int, second: int | None = None) -> float:
    """The smallest two-sided p of a permutation test: 2/2^n of n pairs, 2/C(n+m, n) of n and m independent scores.

    Three pairs cannot go below 0.25; it takes six to go below 0.05.

    Args:
        first: Pairs; or scores of the first variant.
        second: Scores of the second variant, if they are not paired.
    """
    return 2 / (2**first if second is None else math.comb(first + second, first))


def multi_bootstrap(
    first: pd.DataFrame,
    second: pd.DataFrame | None = None,
    names: tuple[str, ...] = ("the first variant", "the second variant"),
    level: float = 0.95,
) -> Interval:
    """Interval of one variant's mean, or of the difference of two, with fine-tuning seeds nested in pretraining seeds.

    The multi-bootstrap (Sellam et al. 2022, The MultiBERTs) with two nested levels: pretraining seeds are drawn with
    replacement, then the fine-tunings of each drawn seed. (In the paper the second level is test examples, and the fine-tunings
    of a drawn seed are averaged.) Variants that share pretraining seeds are drawn with the same ones (paired), others
    independently; fine-tunings are always drawn independently.

    The percentiles of these draws are too narrow with few pretraining seeds, and too wide if fine-tuning varies much, because
    the mean over a drawn model's fine-tunings already holds their noise (Davison and Hinkley 1997, Bootstrap Methods and Their
    Application, section 3.8). `low` and `high` are those percentiles, stretched about the mean by the ratio of Student's
    half-width over pretraining seeds (Welch's if unpaired) to the normal half-width with the standard deviation of the draws:
    the draws give the shape, Student gives the width. Coverage at nominal 95 % in 5,000 simulations of each case (1,000 draws,
    normal scores, 1 and 3 fine-tunings, a variance of pretraining 0, 1 and 10 times that of fine-tuning; standard error 0.3
    points, of percentiles up to 0.6):

        pretraining seeds                                   3               5               10
        percentiles, 1 fine-tuning, mean or paired      73 to 76 %      83 to 84 %      90 to 91 %
        percentiles, 3 fine-tunings, mean or paired     75 to 94 %      85 to 97 %      90 to 98 %
        `low` to `high`, mean or paired               94.4 to 95.4 %  94.0 to 95.2 %  94.6 to 95.2 %
        `low` to `high`, unpaired                     95.7 to 96.8 %  94.6 to 95.4 %  94.8 to 95.4 %

    So `low` to `high` covers within one point of 95 %, except for three against three unpaired seeds, where Welch's degrees of
    freedom add up to two. If the means over fine-tunings do not vary, the interval is NaN.

    Args:
        first: A row per pretraining seed, a column per fine-tuning seed, NaN for a run that failed or does not exist.
        second: The same for another variant; pairs are made by row labels.
        names: Of the variants.
        level: Coverage.

    Raises:
        UserError: A variant (or the pairs) has fewer than two pretraining seeds with a score.
    """
    tables = [pd.DataFrame(table).rename(index=str) for table in ((first,) if second is None else (first, second))]
    for table, name in zip(tables, names):
        _check_seeds(table.index, name)
    paired = second is not None and _share_seeds(*tables)
    labels = [table.index[~np.isnan(_known(table)).all(axis=1)] for table in tables]
    if paired:
        labels = [labels[0].intersection(labels[1], sort=False)] * 2
    _check_sizes(tuple(map(len, labels)), names, "pretraining seed", paired)
    return bootstrap_interval([_known(table.loc[of]) for table, of in zip(tables, labels)], paired, level)


def bootstrap_interval(
    scores: Sequence[Float[np.ndarray, "seeds finetunings"]], paired: bool, level: float = 0.95, draws: int = 10_000
) -> Interval:
    """`multi_bootstrap` of arrays, of one variant or of the difference of two; the same each time."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(len(of), size=(draws, len(of))) for of in scores]
    drawn = [_draw(of, rows[0] if paired else rows_of, rng) for of, rows_of in zip(scores, rows)]
    means = [np.nanmean(of, axis=1) for of in scores]
    mean = float(means[0].mean() - sum(of.mean() for of in means[1:]))
    totals = drawn[0] - sum(drawn[1:])
    tails = [(1 - level) / 2, (1 + level) / 2]
    percentiles = np.quantile(totals, tails)
    low, high, _ = _student([means[0] - means[1]] if paired else means, max(map(_largest, scores)), level)
    normal = scipy.stats.norm.ppf(tails[1]) * totals.std()
    low, high = mean + (percentiles - mean) * ((high - low) / 2 / normal if normal else math.nan)
    return Interval(mean, float(low), float(high), tuple(percentiles.tolist()))


def power(pairs: int, difference: float, sd: float, alpha: float = 0.05) -> float:
    """Chance that a two-sided paired t test of that many seeds finds a true mean difference.

    Args:
        pairs: Seeds that both variants are run with, 2 or more.
        difference: True mean difference, in units of the metric.
        sd: True standard deviation of the differences between seeds, same units.
        alpha: Size of the test.

    Raises:
        UserError: `difference` or `sd` is zero or not a number.
    """
    if not (math.isfinite(difference) and difference and math.isfinite(sd) and sd > 0):
        raise UserError(
            f"power needs a difference other than 0 and a standard deviation above 0, not {difference} and {sd};"
            " take them from at least two seeds"
        )
    effect = abs(difference) / sd
    near, far = (TTestPower().power(of, pairs, alpha / 2, alternative="larger") for of in (effect, -effect))
    return float(near + np.nan_to_num(far))  # statsmodels gives NaN for a tail that underflows


def seeds_needed(difference: float, sd: float, alpha: float = 0.05, most: int = 10**6) -> int:
    """The fewest seeds, 2 or more, with which a two-sided paired t test finds a true difference with a chance of 80 %.

    It is as good as `sd`: estimated from 3 seeds, the true one is between 0.52 and 6.3 times as large (95 %, chi-squared).

    Args:
        difference, sd, alpha: As for `power`; `TTest.sd` estimates `sd`.
        most: If more seeds than these are needed, `most` + 1 is returned.

    Raises:
        UserError: As `power`.
    """
    return 2 + bisect.bisect_left(range(2, most + 1), 0.8, key=lambda pairs: power(pairs, difference, sd, alpha))


def look_threshold(max_seeds: int) -> float:
    """The p at or below which one look decides a pair: `ALPHA` shared among all planned looks (Bonferroni)."""
    return ALPHA / (max_seeds - FIRST_LOOK + 1)


def settled(scores: Mapping[str, pd.DataFrame], max_seeds: int) -> Settlement:
    """Whether the order of all variants is settled in all metrics, and a sweep may stop before `max_seeds`.

    A sweep asks after each complete seed from `FIRST_LOOK` on, at most L = max_seeds - FIRST_LOOK + 1 times. The order is
    settled if a paired t test gives p <= ALPHA/L for every pair of variants in every metric at this look. If any pair does not
    truly differ, the chance of ever stopping is at most `ALPHA`:

    - Looks: Bonferroni, because each look may reject by chance with ALPHA/L. `max_seeds` must be fixed beforehand. Of 200,000
      simulated sweeps of two equal variants, 3.1 % stopped between 3 and 8 seeds (14.6 % without correction).
    - Pairs and metrics: no further correction. To stop, all tests must reject, including that of the equal pair, and that test
      errs with at most `ALPHA` (intersection-union test, Berger 1982). A decided pair of an open order is decided only by
      itself: for claims about several, multiply p by L and their number (Bonferroni).

    If no score is missing, neighbours in the ranking decide: if p is small enough for A, B and for B, C, so it is for A, C (the
    standard deviation of a sum is at most the sum of the two). If differences do not vary, p is as in `compare_variants`: no
    difference is never decided, and a constant one once 2/2^n is at most ALPHA/L, as with 8 of 8 seeds.

    Args:
        scores: Metric -> a row per complete seed, a column per variant, NaN for a failed run; more is better. Give the mean of
            several fine-tunings of one pretrained model. A pair with fewer than `FIRST_LOOK` common scores is open.
        max_seeds: Seeds at which the sweep stops in any case, `FIRST_LOOK` or more.

    Returns:
        The rankings, and every pair's difference with its interval of level 1 - ALPHA/L, which excludes 0 if the pair is
        decided (NaN if the differences do not vary).

    Raises:
        UserError: A metric has fewer than two variants.
    """
    threshold = look_threshold(max_seeds)
    rankings, pairs = {}, []
    for metric, table in scores.items():
        if table.shape[1] < 2:
            raise UserError(f"{metric}: an order needs scores of at least 2 variants, not {table.shape[1]}; add variants")
        values = _known(table)
        known = [column[~np.isnan(column)] for column in values.T]
        means = [column.mean() if len(column) else -math.inf for column in known]
        ranking = sorted(range(len(means)), key=lambda column: -means[column])
        rankings[metric] = [table.columns[column] for column in ranking]
        ranked = list(itertools.combinations(enumerate(ranking), 2))
        samples = [(*_pairs(values[:, better], values[:, worse]), True) for (_, better), (_, worse) in ranked]
        for ((i, better), (j, worse)), found in zip(ranked, _t_tests(samples, 1 - threshold), strict=True):
            decided = found.pairs >= FIRST_LOOK and found.p <= threshold and found.mean > 0
            pairs.append((j - i, PairDecision(metric, table.columns[better], table.columns[worse], found, decided)))
    pairs.sort(key=lambda pair: pair[0])
    return Settlement(len(next(iter(scores.values()))), max_seeds, rankings, tuple(pair for _, pair in pairs))


def _known(scores: pd.Series | pd.DataFrame) -> np.ndarray:
    """The scores as float, NaN for all that are not finite."""
    values = np.array(scores, dtype=float)
    values[~np.isfinite(values)] = math.nan
    return values


def _by_label(scores: pd.Series, name: str) -> pd.Series:
    """A variant's scores as float, NaN for all that are not finite, by the names of seeds: seed 1 is seed "1"."""
    scores = pd.Series(scores)
    scores = pd.Series(_known(scores), scores.index).rename(index=str)
    _check_seeds(scores.index, name)
    return scores


Samples = tuple[np.ndarray, np.ndarray, bool]
"""Two variants' scores, and whether they are pairs."""


def _aligned(first: pd.Series, second: pd.Series, names: tuple[str, str]) -> Samples:
    """The samples of two variants' scores by label."""
    if paired := _share_seeds(first, second):
        if not first.index.equals(second.index):
            seeds = first.index.union(second.index, sort=False)
            first, second = first.reindex(seeds), second.reindex(seeds)
        ours, theirs = _pairs(first.to_numpy(), second.to_numpy())
    else:
        ours, theirs = first.dropna().to_numpy(), second.dropna().to_numpy()
    _check_sizes((len(ours), len(theirs)), names, "seed", paired)
    return ours, theirs, paired


def _differences(first: pd.Series, second: pd.Series, names: tuple[str, str]) -> np.ndarray:
    """The differences of pairs."""
    ours, theirs, paired = _aligned(first, second, names)
    if not paired:
        raise UserError(f"{names[0]} and {names[1]} share no seed, and only pairs can be flipped; run the same seeds")
    return ours - theirs


def _share_seeds(first: pd.Series | pd.DataFrame, second: pd.Series | pd.DataFrame) -> bool:
    return len(first.index.intersection(second.index)) > 0


def _pairs(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scores at positions where both are known."""
    known = ~np.isnan(first) & ~np.isnan(second)
    return first[known], second[known]


def _of_each_size(work: Callable[[np.ndarray], Iterable], samples: Sequence[np.ndarray]) -> list:
    """What `work` makes of each sample: it is given all samples of one shape at once, because a study has thousands."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for place, sample in enumerate(samples):
        alike.setdefault(sample.shape, []).append(place)
    found = {}
    for places in alike.values():
        found |= zip(places, work(np.stack([samples[place] for place in places])), strict=True)
    return [found[place] for place in range(len(samples))]


def _t_tests(samples: Sequence[Samples], level: float) -> list[TTest]:
    pairs = [np.stack([ours, theirs]) for ours, theirs, paired in samples if paired]
    of_pairs = iter(_of_each_size(lambda alike: _paired_tests(alike, level), pairs))
    return [next(of_pairs) if paired else _welch(ours, theirs, level) for ours, theirs, paired in samples]


def _paired_tests(pairs: Float[np.ndarray, "tests 2 seeds"], level: float) -> list[TTest]:
    ours, theirs = pairs[:, 0], pairs[:, 1]
    tests, seeds = ours.shape
    if seeds < 2:
        means = (ours - theirs)[:, 0] if seeds else np.full(tests, math.nan)
        return [TTest(float(mean), *[math.nan] * 4, pairs=seeds) for mean in means]
    differences = ours - theirs
    low, high = np.full((2, tests), math.nan)
    vary = np.ptp(differences, axis=-1) > RESOLUTION * np.abs(pairs).max(axis=(1, 2))
    if vary.any():
        low[vary], high[vary] = scipy.stats.ttest_1samp(differences[vary], 0, axis=-1).confidence_interval(level)
    means = ours.mean(axis=-1) - theirs.mean(axis=-1)
    columns = (means, differences.std(axis=-1, ddof=1), low, high, paired_p(ours, theirs))
    return [TTest(*map(float, of), pairs=seeds) for of in zip(*columns, strict=True)]


def _welch(ours: np.ndarray, theirs: np.ndarray, level: float) -> TTest:
    """Of independent samples of two scores or more."""
    mean, largest = float(ours.mean() - theirs.mean()), max(_largest(ours), _largest(theirs))
    low, high, p = _student([ours, theirs], largest, level)
    if math.isnan(p):
        p = smallest_p(len(ours), len(theirs)) if abs(mean) > RESOLUTION * largest else 1.0
    return TTest(mean, math.nan, low, high, p, 0)


def _flips(samples: Sequence[np.ndarray]) -> list[float]:
    """p by sign flips of each sample of differences."""
    options = {"permutation_type": "samples", "n_resamples": 2**ALL_FLIPS}

    def of_size(differences: Float[np.ndarray, "tests seeds"]) -> list[float]:
        if differences.shape[1] <= ALL_FLIPS:
            return [float(scipy.stats.permutation_test((of,), np.mean, **options).pvalue) for of in differences]
        # scipy sorts random numbers for each flip: of a hundred pairs, a product of matrices takes a hundredth of its time.
        rng, reached = np.random.default_rng(0), np.zeros(len(differences), int)
        least = np.abs(differences.sum(axis=-1)) - 1e-9 * np.abs(differences).sum(axis=-1)
        for _ in range(10):
            signs = 1.0 - 2.0 * rng.integers(0, 2, (10_000, differences.shape[1]), np.int8)
            reached += (np.abs(signs @ differences.T) >= least).sum(axis=0)
        return ((reached + 1) / (100_000 + 1)).tolist()

    return _of_each_size(of_size, samples)


def _student(samples: list[np.ndarray], largest: float, level: float) -> tuple[float, float, float]:
    """Student's interval of a mean (Welch's of the difference of two) and its two-sided p; NaN if nothing varies.

    Args:
        samples: One sample, or two.
        largest: The largest score they were made of; less than `RESOLUTION` of it is rounding.
        level: Coverage.
    """
    varying = [len(sample) > 1 and np.ptp(sample) > RESOLUTION * largest for sample in samples]
    if not any(varying):
        return math.nan, math.nan, math.nan
    if all(varying) and len(samples) == 2:
        test = scipy.stats.ttest_ind(*samples, equal_var=False)
    else:  # a sample that does not vary is a number
        signs = (1, -1)
        test = scipy.stats.ttest_1samp(
            sum(sign * (of if vary else of.mean()) for sign, of, vary in zip(signs, samples, varying)), 0
        )
    interval = test.confidence_interval(level)
    return float(interval.low), float(interval.high), float(test.pvalue)


def _largest(scores: np.ndarray) -> float:
    return float(np.nanmax(np.abs(scores)))


def _draw(
    scores: Float[np.ndarray, "seeds finetunings"], rows: Int[np.ndarray, "draws seeds"], rng: np.random.Generator
) -> Float[np.ndarray, " draws"]:
    """Mean of each draw: of the drawn rows, each with as many of its known scores, drawn with replacement, as it has."""
    known_first = np.take_along_axis(scores, np.argsort(np.isnan(scores), axis=1, kind="stable"), axis=1)
    counts = np.isfinite(scores).sum(axis=1)[rows][..., None]
    width = scores.shape[1]
    columns = (rng.random((*rows.shape, width)) * counts).astype(np.intp)
    drawn = known_first[rows[..., None], columns] * (np.arange(width) < counts)
    return (drawn.sum(axis=-1, keepdims=True) / counts).mean(axis=(1, 2))


def _check_seeds(seeds: pd.Index, name: str) -> None:
    """One score for each seed, of one kind of seed."""
    if seeds.nlevels > 1:
        raise UserError(
            f"{name}: the scores of nested seeds ({', '.join(map(str, seeds.names))}) are not independent; take the mean for"
            " each pretraining seed, or multi_bootstrap"
        )
    if not seeds.is_unique:
        seed = seeds[seeds.duplicated()][0]
        raise UserError(f"{name}: seed {seed} has more than one score; give one, such as the mean of its fine-tunings")


def _check_sizes(sizes: tuple[int, ...], names: tuple[str, ...], unit: str, paired: bool) -> None:
    """Refuses samples of fewer than two scores."""
    if min(sizes) >= 2:
        return
    text = lambda count: f"{count} {unit}{'' if count == 1 else 's'}"
    if paired:
        have = f"{names[0]} and {names[1]} have {text(sizes[0])} in common with a score of both"
    else:
        have = " and ".join(f"{name} has {text(size)} with a score" for name, size in zip(names, sizes))
    raise UserError(f"{have}; a comparison needs at least 2, so run more seeds")
