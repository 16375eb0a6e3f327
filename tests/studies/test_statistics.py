"""Statistics over seeds against scipy, published formulas and numbers by hand."""

import math

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

from bertlab.studies.statistics import compare

ONE, TWO = (pd.DataFrame(x, [1, 2, 3]) for x in ([0.5, 0.6, 0.8], [0.4, 0.6, 0.6]))


def test_pairs_are_of_equal_seeds():
    # Differences 0.1, 0 and 0.2: mean 0.1, standard deviation 0.1, t = sqrt(3).
    found = compare(ONE, TWO.loc[[3, 1, 2]])
    assert found.seeds == 3
    half = scipy.stats.t.ppf(0.975, 2) * 0.1 / math.sqrt(3)
    expected = [0.1, 0.1 - half, 0.1 + half, 2 * scipy.stats.t.sf(math.sqrt(3), 2)]
    np.testing.assert_allclose([found.mean, found.low, found.high, found.p], expected, rtol=1e-9)


def test_a_seed_without_a_score_of_both_is_left_out():
    found = compare(ONE, pd.DataFrame([0.4, math.nan, 0.6, 0.1], [1, 2, 3, 4]))
    assert found.seeds == 2 and found.mean == pytest.approx(0.15)
    assert compare(ONE[:1], TWO) is None


@pytest.mark.parametrize("step", [0.0, 1 / 64])
def test_differences_that_do_not_vary_are_tested_by_permutations(step):
    found = compare(ONE + step, ONE)
    assert math.isnan(found.low) and math.isnan(found.high)
    assert found.p == (2 / 2**3 if step else 1.0)


@pytest.mark.parametrize("seeds, of_seed", [(3, 0.02), (5, 0.01), (5, 0.05)])
def test_intervals_over_seeds_and_items_cover_what_they_say(seeds, of_seed):
    rng, rounds = np.random.default_rng(0), 400
    covered, covered_by_seeds = 0, 0
    for _ in range(rounds):
        scores = rng.normal(0, of_seed, (seeds, 1)) + rng.normal(0, 0.3, (1, 300))
        scores = scores + rng.normal(0, 0.4, (seeds, 300))
        found = compare(pd.DataFrame(scores), pd.DataFrame(0 * scores))
        assert found.mean == pytest.approx(scores.mean())
        covered += found.low < 0 < found.high
        by_seed = scores.mean(1)
        half = scipy.stats.t.ppf(0.975, seeds - 1) * by_seed.std(ddof=1) / math.sqrt(seeds)
        covered_by_seeds += abs(by_seed.mean()) < half
    assert 0.92 < covered / rounds < 0.985
    assert of_seed == 0.05 or covered_by_seeds < covered - 0.01 * rounds


def test_items_that_do_not_differ_leave_students_t_of_the_seeds():
    by_seed = np.array([0.1, 0.3, 0.2])
    frame = pd.DataFrame(np.repeat(by_seed[:, None], 50, axis=1))
    found = compare(frame, 0 * frame)
    plain = compare(frame[[0]], 0 * frame[[0]])
    np.testing.assert_allclose([found.low, found.high, found.p], [plain.low, plain.high, plain.p])


def moderated(variances, freedom):
    """limma's variances and degrees of freedom (Smyth 2004, sections 4 and 6.2): shrunk towards a
    common one, as far as they vary less than chance allows."""
    half = freedom / 2
    logs = np.log(variances) - scipy.special.digamma(half) + math.log(half)
    excess = logs.var(ddof=1) - scipy.special.polygamma(1, half)
    if excess <= 0:
        return np.full_like(variances, math.exp(logs.mean())), math.inf
    own = scipy.optimize.brentq(lambda x: scipy.special.polygamma(1, x) - excess, 1e-6, 1e6)
    common = math.exp(logs.mean() + scipy.special.digamma(own) - math.log(own))
    total = 2 * own + freedom
    return (2 * own * common + freedom * variances) / total, total


@pytest.mark.parametrize("seeds, family", [(3, 12), (3, 30)])
def test_variances_pooled_over_a_family_err_more_often_than_they_say(seeds, family):
    """Why docs/statistics.md leaves them out: the family's error should be 5 %."""
    rng, rounds, errors = np.random.default_rng(0), 1000, np.zeros(2)
    for _ in range(rounds):
        scores = rng.standard_normal((seeds, family)) * np.sqrt(3 / rng.chisquare(3, family))
        own = scores.var(0, ddof=1)
        for number, (variances, freedom) in enumerate(
            [(own, seeds - 1), moderated(own, seeds - 1)]
        ):
            t = np.abs(scores.mean(0)) * np.sqrt(seeds / variances)
            errors[number] += 2 * scipy.stats.t.sf(t.max(), freedom) < 0.05 / family
    plain, pooled = errors / rounds
    assert 0.03 < plain < 0.07 and 0.08 < pooled < 0.16
