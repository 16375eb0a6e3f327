"""The bound and the mixture against every order of a text, and of the exact conditionals."""

import itertools

import numpy as np

from bertlab.contrib.looseness import exact_answers, of_orders
from bertlab.evals import floors
from bertlab.evals.questions import Text
from tests.evals.test_floors import CHAIN, VOCABULARY, WORDS


def test_sums_over_sets_are_those_over_orders():
    log_p = np.log(np.random.default_rng(0).uniform(0.01, 1.0, (16, 4)))
    totals = []
    for order in itertools.permutations(range(4)):
        visible, total = 0, 0.0
        for word in order:
            total += log_p[visible, word]
            visible |= 1 << word
        totals.append(total)
    expected = [-np.mean(totals), -np.log(np.mean(np.exp(totals))), -totals[0]]
    np.testing.assert_allclose(list(of_orders(log_p).values()), expected)


def test_the_bound_of_the_exact_conditionals_is_tight():
    words = np.array([WORDS[0], WORDS[2], WORDS[1], WORDS[1]])
    text = Text(np.array([VOCABULARY.cls_id, *words, VOCABULARY.sep_id]), 1 + np.arange(4), 4)
    (log_p,) = exact_answers(CHAIN, VOCABULARY, [text])
    truth = -floors.log_probability(CHAIN, words)
    np.testing.assert_allclose(list(of_orders(log_p).values()), truth)
