"""The CRF equals sums and maxima of every tag sequence, in float64."""

import itertools

import jax
import numpy as np
import pytest

from bertlab.transfer.crf import Scores, best_tags, log_likelihood, log_partition, marginals
from tests.references import quick_jit

LENGTHS = np.array([4, 1, 0, 3])
WORDS, TAGS = 4, 3
MASK = np.arange(WORDS) < LENGTHS[:, None]
RNG = np.random.default_rng(0)
EMISSIONS, *SCORES = (
    2 * RNG.normal(size=shape).astype(np.float32)
    for shape in ((len(LENGTHS), WORDS, TAGS), (TAGS, TAGS), (TAGS,), (TAGS,))
)
SCORES = Scores(*SCORES)
LABELS = np.where(MASK, RNG.integers(0, TAGS, MASK.shape), -1)


def sequences(row):
    """Every tag sequence of a row, and its score."""
    emissions, (transitions, start, end) = np.float64(EMISSIONS[row]), map(np.float64, SCORES)
    for tags in itertools.product(range(TAGS), repeat=LENGTHS[row]):
        score = sum(emissions[t, tag] for t, tag in enumerate(tags))
        score += sum(transitions[pair] for pair in itertools.pairwise(tags))
        yield tags, score + start[tags[0]] + end[tags[-1]] if tags else 0.0


def test_likelihood_and_best_tags_are_those_of_all_sequences():
    partition = quick_jit(log_partition)(EMISSIONS, MASK, SCORES)
    found = quick_jit(log_likelihood)(EMISSIONS, MASK, LABELS, SCORES)
    tags = quick_jit(best_tags)(EMISSIONS, MASK, SCORES)
    for row, length in enumerate(LENGTHS):
        scores = dict(sequences(row))
        expected = np.log(sum(np.exp(list(scores.values()))))
        np.testing.assert_allclose(partition[row], expected, atol=1e-5)
        gold = scores[tuple(LABELS[row, :length])]
        np.testing.assert_allclose(found[row], gold - expected, atol=1e-5)
        best = max(scores, key=scores.get)
        assert tuple(tags[row].tolist()) == best + (-1,) * (WORDS - length)


def test_an_unknown_label_stands_for_all_its_tags():
    labels = LABELS.copy()
    labels[0, 1] = labels[1, 0] = -1
    found = quick_jit(log_likelihood)(EMISSIONS, MASK, labels, SCORES)
    shares = {tags: np.exp(score) for tags, score in sequences(0)}
    fits = [x for tags, x in shares.items() if all(a in (-1, b) for a, b in zip(labels[0], tags))]
    assert len(fits) == TAGS
    expected = [np.log(sum(fits) / sum(shares.values())), 0]
    np.testing.assert_allclose(found[:2], expected, atol=1e-5)


def test_marginals_are_the_shares_of_the_sequences_with_a_tag():
    expected = np.zeros(EMISSIONS.shape)
    for row, length in enumerate(LENGTHS):
        shares = [(tags, np.exp(score)) for tags, score in sequences(row)]
        for tags, share in shares:
            expected[row, np.arange(length), list(tags)] += share / sum(x for _, x in shares)
    np.testing.assert_allclose(quick_jit(marginals)(EMISSIONS, MASK, SCORES), expected, atol=1e-5)


@pytest.mark.parametrize("filler", [1e4, np.nan])
def test_padding_has_no_influence_and_gradients_are_finite(filler):
    wide = np.pad(MASK, ((0, 0), (0, 3)))
    emissions = np.pad(EMISSIONS, ((0, 0), (0, 3), (0, 0)))
    emissions[~wide] = filler
    labels = np.pad(LABELS, ((0, 0), (0, 3)), constant_values=1)

    def loss(emissions, scores, mask, labels):
        return log_likelihood(emissions, mask, labels, scores).sum()

    both = quick_jit(jax.value_and_grad(loss, argnums=(0, 1)))
    value, gradients = both(emissions, SCORES, wide, labels)
    expected, _ = both(EMISSIONS, SCORES, MASK, LABELS)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))
    assert not np.any(np.asarray(gradients[0])[~wide])
    tags = quick_jit(best_tags)(emissions, wide, SCORES)
    assert (tags[:, WORDS:] == -1).all()
