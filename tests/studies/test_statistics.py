"""Statistics over seeds: agreement with scipy and brute force, coverage and error rates in simulation, and what is refused.

The simulations have a fixed seed; their tolerance is three standard errors of a binomial share, sqrt(p (1 - p) / repetitions).
"""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from bertlab.errors import UserError
from bertlab.studies.statistics import (
    FIRST_LOOK,
    bootstrap_interval,
    compare_pairs,
    compare_variants,
    flip_pairs,
    look_threshold,
    mean_interval,
    multi_bootstrap,
    paired_p,
    power,
    seeds_needed,
    settled,
    sign_flips,
    smallest_p,
)

BIG = pd.Series([0.71, 0.74, 0.70, 0.78], index=[1, 2, 3, 4])
SMALL = pd.Series([0.66, 0.64, 0.69, 0.71], index=[1, 2, 3, 4])
NAMES = ("big", "small")


def elsewhere(scores):
    """The same scores of seeds that nothing else has."""
    return scores.set_axis([100 + seed for seed in scores.index])


def binomial_tolerance(share, repetitions):
    return 3 * math.sqrt(share * (1 - share) / repetitions)


def test_the_interval_of_a_mean_is_students():
    truth = scipy.stats.ttest_1samp(BIG, 0).confidence_interval(0.9)
    with_failures = pd.Series([*BIG, math.nan, math.inf])
    assert mean_interval(with_failures, level=0.9) == pytest.approx((truth.low, truth.high))


@pytest.mark.parametrize("scores", [[0.5], [math.nan], [0.5, 0.5], [0.1 + 0.2, 0.3, 0.3]])
def test_one_seed_none_and_equal_scores_have_no_interval(scores):
    assert all(map(math.isnan, mean_interval(pd.Series(scores, dtype=float))))


def test_pairs_are_made_by_seed():
    found = compare_variants(BIG, SMALL[::-1], NAMES)
    test = scipy.stats.ttest_rel(BIG, SMALL)
    truth = test.confidence_interval(0.95)
    assert (found.p, found.low, found.high) == pytest.approx((test.pvalue, truth.low, truth.high))
    assert (found.mean, found.sd) == (pytest.approx((BIG - SMALL).mean()), pytest.approx((BIG - SMALL).std(ddof=1)))
    assert found.pairs == 4


@pytest.mark.parametrize("others", [elsewhere(SMALL), elsewhere(SMALL[:2]), pd.Series([0.6, 0.6, 0.6], index=[7, 8, 9])])
def test_without_common_seeds_it_is_welchs(others):
    found = compare_variants(BIG, others, NAMES, level=0.9)
    if others.nunique() > 1:
        test = scipy.stats.ttest_ind(BIG, others, equal_var=False)
        truth = test.confidence_interval(0.9)
        expected = test.pvalue, truth.low, truth.high
    else:  # only one side varies: that is a t test of it against a number
        test = scipy.stats.ttest_1samp(BIG, 0.6)
        expected = test.pvalue, *(end - 0.6 for end in test.confidence_interval(0.9))
    assert (found.p, found.low, found.high) == pytest.approx(expected)
    assert found.pairs == 0 and math.isnan(found.sd)


def test_pairs_with_a_missing_score_are_left_out():
    big = pd.concat([BIG, pd.Series({5: math.nan, 6: 9.0, 7: 9.0})])
    small = pd.concat([SMALL, pd.Series({5: 9.0, 6: math.nan})])
    assert compare_variants(big, small, NAMES) == compare_variants(BIG, SMALL, NAMES)
    unpaired = compare_variants(BIG, elsewhere(pd.concat([SMALL, pd.Series({5: math.nan})])), NAMES)
    assert unpaired.p == compare_variants(BIG, elsewhere(SMALL), NAMES).p


@pytest.mark.parametrize("test", [compare_variants, sign_flips])
def test_one_seed_against_one_seed_is_refused(test):
    with pytest.raises(UserError, match=r"^big and small have 1 seed in common "):
        test(BIG[:1], SMALL[:1], NAMES)
    with pytest.raises(UserError, match=r"^big has 1 seed with a score and small has 4 seeds"):
        test(BIG[:1], elsewhere(SMALL), NAMES)
    failed = SMALL.where(SMALL.index == 1)
    with pytest.raises(UserError, match=r"big and small have 1 seed in common with a score of both"):
        test(BIG, failed, NAMES)
    never_both = BIG.where(BIG.index < 3), SMALL.where(SMALL.index >= 3)
    with pytest.raises(UserError, match=r"have 0 seeds in common"):  # they do not become independent samples by failing
        test(*never_both, NAMES)
    with pytest.raises(UserError, match=r"small: seed 1 "):
        test(BIG, SMALL.set_axis([1, 1, 2, 3]), NAMES)


def test_a_seed_is_the_same_by_number_and_by_name():
    scores = pd.Series([0.7, 0.8, 0.75], index=[1, 2, 3])
    named = pd.Series([0.6, 0.75, 0.7], index=["1", "2", "3"])
    assert compare_variants(scores, named, ("a", "b")).pairs == 3


def test_nested_seeds_are_not_taken_for_independent():
    nested = pd.DataFrame(np.ones((2, 2))).rename_axis(index="seed", columns="finetune.seed").stack()
    for test in (lambda: mean_interval(nested), lambda: compare_variants(nested, nested, NAMES)):
        with pytest.raises(UserError, match=r"\(seed, finetune.seed\)"):
            test()


@pytest.mark.parametrize("step", [0.1, 0.01])
def test_differences_that_do_not_vary_are_judged_by_permutations(step):
    assert compare_variants(BIG, BIG, NAMES).p == 1
    shifted = (BIG + step).astype(np.float32).astype(float)  # the differences vary by float32's rounding
    found = compare_variants(shifted, BIG, NAMES)
    assert found.p == sign_flips(shifted, BIG, NAMES) == 2 / 2**4
    assert found.mean == pytest.approx(step, abs=1e-7) and math.isnan(found.low)
    ones, zeros = pd.Series([1.0] * 3), pd.Series([0.0] * 4, index=range(7, 11))
    relabelled = scipy.stats.permutation_test((ones, zeros), lambda x, y, axis: x.mean(axis=axis) - y.mean(axis=axis))
    assert compare_variants(ones, zeros, NAMES).p == smallest_p(3, 4) == pytest.approx(relabelled.pvalue)


def test_many_pairs_at_once_are_each_as_alone():
    """Pairs of four and of three seeds, equal scores, and independent samples, in one call."""
    scores = {"big": BIG, "small": SMALL, "short": BIG[:3] ** 2, "shifted": BIG + 1, "elsewhere": elsewhere(SMALL)}
    pairs = list(itertools.permutations(scores, 2))
    for (first, second), found in zip(pairs, compare_pairs(scores, pairs), strict=True):
        assert repr(found) == repr(compare_variants(scores[first], scores[second], (first, second)))
        common = BIG.index if first != "short" != second else BIG.index[:3]
        if "elsewhere" in (first, second):
            test = scipy.stats.ttest_ind(scores[first], scores[second], equal_var=False)
        elif {first, second} == {"big", "shifted"}:
            continue
        else:
            test = scipy.stats.ttest_rel(scores[first][common], scores[second][common])
        assert found.p == pytest.approx(test.pvalue) and (found.low, found.high) == pytest.approx(test.confidence_interval())
    paired = [pair for pair in pairs if "elsewhere" not in pair]
    alone = [sign_flips(scores[first], scores[second], (first, second)) for first, second in paired]
    assert flip_pairs(scores, paired) == alone and len(set(alone)) > 1


def test_sign_flips_are_all_sign_flips():
    differences = (BIG - SMALL).to_numpy()
    flips = np.array(list(itertools.product((-1, 1), repeat=4)))
    means = (flips * differences).mean(axis=1)
    truth = np.mean(np.abs(means) >= differences.mean() - 1e-12)
    assert sign_flips(BIG, SMALL, NAMES) == pytest.approx(truth)
    with pytest.raises(UserError, match="big and small share no seed"):
        sign_flips(BIG, elsewhere(SMALL), NAMES)


def test_three_seeds_cannot_be_significant_by_permutation():
    assert sign_flips(pd.Series([9, 9.1, 9.3]), pd.Series([1, 1.2, 1.1]), NAMES) == smallest_p(3) == 0.25
    assert smallest_p(5) > 0.05 > smallest_p(6)


def test_many_pairs_are_flipped_at_random_by_seed():
    rng = np.random.default_rng(0)
    big, small = pd.Series(rng.normal(0.4, 1, 30)), pd.Series(rng.normal(0, 1, 30))
    found = sign_flips(big, small, NAMES)
    assert found == sign_flips(big, small, NAMES)
    assert found == pytest.approx(scipy.stats.ttest_rel(big, small).pvalue, abs=0.02)  # nearly normal means


def every_draw(*tables):
    """Mean, or difference of means, of every draw of a paired multi-bootstrap, each as likely as its weight says."""
    values, weights = [], []
    for rows in itertools.product(range(len(tables[0])), repeat=len(tables[0])):
        drawn = [[score for score in table[row] if not math.isnan(score)] for table in tables for row in rows]
        choices = [[np.mean(c) for c in itertools.product(cell, repeat=len(cell))] for cell in drawn]
        for chosen in itertools.product(*choices):
            halves = np.mean(np.reshape(chosen, (len(tables), -1)), axis=1)
            values.append(halves[0] - sum(halves[1:]))
            weights.append(1 / math.prod(map(len, choices)))
    return np.array(values), np.array(weights) / sum(weights)


FIRST = [[1.0, 4.0], [10.0, 11.0]]
RAGGED = [[2.0, math.nan], [9.0, 9.5]]


@pytest.mark.parametrize("tables", [(FIRST,), (RAGGED,), (FIRST, RAGGED)], ids=["mean", "ragged", "paired difference"])
def test_the_percentiles_are_those_of_all_draws(tables):
    values, weights = every_draw(*tables)
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order])
    for level in (0.95, 0.7, 0.5):
        tails = [(1 - level) / 2, (1 + level) / 2]
        found = multi_bootstrap(*map(pd.DataFrame, tables), level=level)
        for end, tail in zip(found.percentiles, tails):
            share = 3 * math.sqrt(tail * (1 - tail) / 10_000)  # draws
            between = values[order][np.minimum(np.searchsorted(cumulative, [tail - share, tail + share]), len(order) - 1)]
            assert between[0] - 1e-9 <= end <= between[1] + 1e-9


def test_the_mean_weighs_pretraining_seeds_alike():
    assert multi_bootstrap(pd.DataFrame(RAGGED)).mean == pytest.approx((2 + 9.25) / 2)


def test_shared_pretraining_seeds_are_drawn_together():
    rng = np.random.default_rng(0)
    shared = 100 * rng.normal(size=(6, 1))
    ours, theirs = (pd.DataFrame(shared + rng.normal(size=(6, 2))) for _ in range(2))
    paired, unpaired = multi_bootstrap(ours, theirs[::-1]), multi_bootstrap(ours, theirs.set_axis(range(10, 16)))
    width = lambda ends: ends[1] - ends[0]
    assert width(paired.percentiles) < 0.05 * width(unpaired.percentiles)
    assert paired.high - paired.low < 0.05 * (unpaired.high - unpaired.low)
    assert paired.mean == pytest.approx(unpaired.mean)


def test_pretraining_seeds_without_a_partner_are_left_out():
    rng = np.random.default_rng(0)
    ours, theirs = (pd.DataFrame(rng.normal(size=(5, 2)), index=range(5)) for _ in range(2))
    theirs.loc[3] = math.nan
    assert multi_bootstrap(ours, theirs.drop(index=4)) == multi_bootstrap(ours[:3], theirs[:3])
    assert multi_bootstrap(ours) == multi_bootstrap(ours), "the same each time"
    with pytest.raises(UserError, match=r"^big has 1 pretraining seed with a score"):
        multi_bootstrap(ours[:1], names=("big",))
    with pytest.raises(UserError, match=r"^big and small have 1 pretraining seed in common"):
        multi_bootstrap(ours, theirs[2:4], NAMES)


REPETITIONS = 400
CELLS = [(3, 1, "mean"), (3, 3, "paired"), (5, 1, "unpaired"), (5, 3, "mean"), (10, 1, "paired"), (10, 3, "unpaired")]


def test_a_constant_difference_has_no_interval():
    """Subtraction leaves 1e-17 of it: no seed says how far the next one is from it."""
    first = pd.DataFrame([[0.1, 0.2], [0.3, 0.4], [0.5, 0.7]])
    found = multi_bootstrap(first, first + 0.01)
    assert math.isnan(found.low) and math.isnan(found.high)
    by_name = pd.DataFrame([[0.11, 0.21], [0.33, 0.43], [0.5, 0.7]], index=["0", "1", "2"])
    assert multi_bootstrap(first, by_name) == multi_bootstrap(first, by_name.reset_index(drop=True)), "seed 1 is seed '1'"


def covers(scores, paired=False):
    """Whether the interval holds the truth, 0; and whether the percentiles do."""
    found = bootstrap_interval(scores, paired, draws=200)
    return found.low <= 0 <= found.high, found.percentiles[0] <= 0 <= found.percentiles[1]


def test_the_multi_bootstraps_interval_covers_as_stated():
    """Within 3 standard errors (3.3 points) of 95 % in every cell, and of all cells together (1.3 points)."""
    rng = np.random.default_rng(0)
    covered = {}
    for pretraining, finetuning, design in CELLS:
        shape = (REPETITIONS, pretraining, finetuning)
        shared = 3 * rng.normal(size=(*shape[:2], 1)) if design == "paired" else 0  # must cancel
        both = [shared + rng.normal(size=(*shape[:2], 1)) + rng.normal(size=shape) for _ in range(1 if design == "mean" else 2)]
        covered[pretraining, finetuning, design] = np.mean([covers(of, design == "paired") for of in zip(*both)], axis=0)
    ours, percentiles = np.array(list(covered.values())).T
    assert np.abs(ours - 0.95).max() <= binomial_tolerance(0.95, REPETITIONS), covered
    assert abs(ours.mean() - 0.95) <= binomial_tolerance(0.95, REPETITIONS * len(CELLS)), covered
    assert percentiles[0] < 0.8, "of three pretraining seeds without nesting, the percentiles cover about 75 %"


@pytest.mark.parametrize(
    "effect, seeds", [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10), (-1.0, 10), (2.0, 5), (10.0, 3), (20.0, 2)]
)
def test_seeds_needed_are_those_of_the_tables(effect, seeds):
    assert seeds_needed(effect * 0.3, 0.3) == seeds  # up to 1 in every table of the paired t test
    assert power(seeds, effect, 1.0) >= 0.8
    assert seeds == 2 or power(seeds - 1, effect, 1.0) < 0.8


@pytest.mark.parametrize("seeds, effect", [(2, 10.0), (3, 0.2), (3, 1.0), (10, 1.0), (34, 0.5)])
def test_power_counts_both_tails(seeds, effect):
    critical = scipy.stats.t.isf(0.025, seeds - 1)
    squared = scipy.stats.ncf.sf(critical**2, 1, seeds - 1, seeds * effect**2)  # of a noncentral t it is a noncentral F
    assert power(seeds, effect, 1.0) == power(seeds, -effect, 1.0) == pytest.approx(squared)


@pytest.mark.parametrize("difference, sd", [(0.0, 1.0), (1.0, 0.0), (1.0, math.nan)])
def test_power_of_nothing_is_refused(difference, sd):
    with pytest.raises(UserError, match="power needs"):
        seeds_needed(difference, sd)


SEPARATE = pd.DataFrame({"worst": [0.1, 0.13, 0.12], "best": [0.9, 0.91, 0.92], "middle": [0.5, 0.5, 0.53]}, index=[1, 2, 3])


def test_what_is_far_apart_is_settled_at_the_first_look():
    found = settled({"accuracy": SEPARATE}, max_seeds=8)
    assert found.settled and not found.open and (found.seeds, found.max_seeds) == (3, 8)
    assert found.rankings == {"accuracy": ["best", "middle", "worst"]}
    assert [(p.better, p.worse) for p in found.pairs] == [("best", "middle"), ("middle", "worst"), ("best", "worst")]
    for pair in found.pairs:
        test = scipy.stats.ttest_rel(SEPARATE[pair.better], SEPARATE[pair.worse])
        interval = test.confidence_interval(1 - 0.05 / 6)
        assert pair.difference.p == pytest.approx(test.pvalue)
        assert (pair.difference.low, pair.difference.high) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize("looks, expected", [(4, True), (5, False)])
def test_every_planned_look_takes_its_share(looks, expected):
    scores = pd.DataFrame({"a": [1.0, 1.36, 1.0], "b": [0.0, 0.0, 0.0]})
    assert 0.05 / 5 < scipy.stats.ttest_rel(scores["a"], scores["b"]).pvalue < 0.05 / 4
    found = settled({"score": scores}, max_seeds=2 + looks)
    assert found.settled == expected
    (pair,) = found.pairs
    assert (pair.difference.low > 0) == expected, "the interval says the same as the test"


def test_what_does_not_vary_needs_as_many_seeds_as_permutations_do():
    scores = pd.DataFrame({"a": [0.5] * 8, "same": [0.5] * 8, "b": [0.25] * 8})
    found = settled({"score": scores}, max_seeds=8)
    assert [(p.better, p.worse) for p in found.open] == [("a", "same")], "2/2^8 < 0.05/6, but no difference is never decided"
    assert found.open[0].difference.p == 1
    assert [settled({"score": scores[["a", "b"]][:n]}, 8).settled for n in range(3, 9)] == [False] * 5 + [True]


def test_a_pair_with_too_few_common_scores_is_open():
    scores = pd.DataFrame(
        {
            "best": [0.9, 0.91, 0.92, math.nan, 0.9],
            "middle": [0.5, 0.5, 0.52, 0.51, 0.53],
            "worst": [math.nan, math.nan, 0.1, 0.12, 0.11],
        }
    )
    found = settled({"accuracy": scores}, max_seeds=5)
    assert [(p.better, p.worse) for p in found.open] == [("best", "worst")]
    assert found.open[0].difference.pairs == 2
    never = settled({"accuracy": scores.assign(never=math.nan)}, max_seeds=5)
    assert never.rankings["accuracy"][-1] == "never" and len(never.open) == 4


def test_every_metric_must_be_settled():
    even = pd.DataFrame({"best": [0.1, 0.5, 0.3], "middle": [0.5, 0.1, 0.4], "worst": [0.2, 0.3, 0.6]}, index=SEPARATE.index)
    found = settled({"accuracy": SEPARATE, "f1": even}, max_seeds=8)
    assert not found.settled and {pair.metric for pair in found.open} == {"f1"}


def test_an_order_of_one_is_refused():
    with pytest.raises(UserError, match=r"f1: .* 2 variants, not 1"):
        settled({"f1": SEPARATE[["best"]]}, max_seeds=8)


def stops(sweeps):
    """After how many seeds each sweep (sweeps, seeds, variants) stops by the rule of `settled`; 0 if never."""
    seeds, stopped = sweeps.shape[1], np.zeros(len(sweeps), int)
    for look in range(FIRST_LOOK, seeds + 1):
        pairs = itertools.combinations(np.moveaxis(sweeps[:, :look], 2, 0), 2)
        decided = np.all([paired_p(*pair) <= look_threshold(seeds) for pair in pairs], axis=0)
        stopped[decided & (stopped == 0)] = look
    return stopped


def test_a_sweep_seldom_stops_with_a_pair_that_does_not_differ():
    """Two variants alike, one far off: 5 % may stop, 3.1 % are known to, and 14.6 % without a correction for six looks."""
    rng = np.random.default_rng(3)
    sweeps = rng.normal(size=(8000, 8, 1)) + rng.normal(size=(8000, 8, 3)) + np.array([0, 0, 50])
    assert np.mean(stops(sweeps) > 0) == pytest.approx(0.031, abs=binomial_tolerance(0.031, 8000))


def test_nor_where_scores_move_in_steps():
    """0.5 % of these sweeps are known to stop; 2.4 % would, were a difference certain as soon as it does not vary."""
    rng = np.random.default_rng(4)
    sweeps = np.round(0.5 * rng.normal(size=(8000, 6, 2)))  # differences are mostly -1, 0 or 1 test examples
    assert np.mean(stops(sweeps) > 0) == pytest.approx(0.005, abs=binomial_tolerance(0.005, 8000))


def test_a_true_difference_stops_a_sweep_early_and_settled_says_the_same_at_each_look():
    rng = np.random.default_rng(5)
    sweeps = rng.normal(size=(50, 10, 1)) + 0.3 * rng.normal(size=(50, 10, 2)) + np.array([0, 1.5])
    stopped = stops(sweeps)
    assert stopped.all() and stopped.mean() < 7
    for scores, at in zip(sweeps[:5], stopped):
        table = pd.DataFrame(scores)
        assert [settled({"score": table[:look]}, 10).settled for look in range(3, at + 1)] == [False] * (at - 3) + [True]
