"""The CRF equals a sum and a maximum over every tag sequence, written out in float64."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertlab.transfer.crf import Scores, log_likelihood, log_partition, marginals, viterbi
from tests.references import quick_jit

LENGTHS = np.array([4, 1, 0, 3])
WORDS, TAGS = 4, 3
MASK = np.arange(WORDS) < LENGTHS[:, None]


@pytest.fixture
def scores():
    """Emissions [4, 4, 3], transitions, start, end: float64, none of them 0."""
    rng = np.random.default_rng(0)
    shapes = [(len(LENGTHS), WORDS, TAGS), (TAGS, TAGS), (TAGS,), (TAGS,)]
    return [rng.normal(size=shape) * 2 for shape in shapes]


@pytest.fixture
def labels():
    return np.where(MASK, np.random.default_rng(1).integers(0, TAGS, MASK.shape), -1)


def sequences(row, scores):
    """Every tag sequence of a row, and its score."""
    emissions, transitions, start, end = scores
    for tags in itertools.product(range(TAGS), repeat=LENGTHS[row]):
        score = sum(emissions[row, t, tag] for t, tag in enumerate(tags))
        score += sum(transitions[pair] for pair in itertools.pairwise(tags))
        yield tags, score + start[tags[0]] + end[tags[-1]] if tags else 0.0


def in_float64(function, *arguments):
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, quick_jit(function)(*jax.tree.map(jnp.asarray, arguments)))


def loss(emissions, transitions, start, end, labels):
    return -log_likelihood(emissions, jnp.asarray(MASK), labels, Scores(transitions, start, end)).sum()


def test_likelihood_is_the_share_of_one_sequence_among_all(scores, labels):
    emissions, *rest = scores
    found = in_float64(log_likelihood, emissions, MASK, labels, Scores(*rest))
    partition = in_float64(log_partition, emissions, MASK, Scores(*rest))
    for row, length in enumerate(LENGTHS):
        of = dict(sequences(row, scores))
        np.testing.assert_allclose(partition[row], np.log(sum(np.exp(list(of.values())))), atol=1e-12)
        expected = of[tuple(labels[row, :length])] - partition[row]
        np.testing.assert_allclose(found[row], expected, atol=1e-12)
    # The same in float32, as it is trained.
    single = quick_jit(log_likelihood)(*[np.float32(emissions), MASK, labels], Scores(*map(np.float32, rest)))
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, found, atol=1e-5)


def test_an_unknown_label_stands_for_all_its_tags(scores, labels):
    labels[0, 1] = labels[1, 0] = -1
    emissions, *rest = scores
    found = in_float64(log_likelihood, emissions, MASK, labels, Scores(*rest))
    fits = [np.exp(s) for tags, s in sequences(0, scores) if all(a in (-1, b) for a, b in zip(labels[0], tags))]
    assert len(fits) == TAGS
    every = [np.exp(s) for _, s in sequences(0, scores)]
    np.testing.assert_allclose(found[:2], [np.log(sum(fits) / sum(every)), 0], atol=1e-12)


def test_marginals_are_the_share_of_the_sequences_with_a_tag(scores):
    emissions, *rest = scores
    found = in_float64(marginals, emissions, MASK, Scores(*rest))
    expected = np.zeros_like(emissions)
    for row, length in enumerate(LENGTHS):
        every = [(tags, np.exp(score)) for tags, score in sequences(row, scores)]
        for tags, share in every:
            expected[row, np.arange(length), list(tags)] += share / sum(of for _, of in every)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_gradients_are_expected_counts_minus_those_of_the_labels(scores, labels):
    """d loss / d score = E[how often it is used] − how often the labels use it: for emissions, transitions, start and end."""
    found = in_float64(jax.grad(loss, argnums=(0, 1, 2, 3)), *scores, labels)
    expected = [np.zeros_like(array) for array in scores]
    for row, length in enumerate(LENGTHS):
        every = list(sequences(row, scores))
        total = sum(np.exp(score) for _, score in every)
        gold = tuple(labels[row, :length])
        for tags, score in every:
            share = np.exp(score) / total - (tags == gold)
            for t, tag in enumerate(tags):
                expected[0][row, t, tag] += share
            for pair in itertools.pairwise(tags):
                expected[1][pair] += share
            if tags:
                expected[2][tags[0]] += share
                expected[3][tags[-1]] += share
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, atol=1e-12)


def test_viterbi_finds_the_highest_sequence(scores):
    emissions, *rest = scores
    tags, score = in_float64(viterbi, emissions, MASK, Scores(*rest))
    assert tags.dtype == np.int32
    for row, length in enumerate(LENGTHS):
        best, highest = max(sequences(row, scores), key=lambda pair: pair[1])
        assert tuple(tags[row]) == best + (-1,) * (WORDS - length)
        np.testing.assert_allclose(score[row], highest, atol=1e-12)


@pytest.mark.parametrize("filler", [1e4, np.nan])
def test_padding_has_no_influence_and_an_empty_row_no_gradient(filler, scores, labels):
    emissions, *rest = map(np.float32, scores)
    arguments = [emissions, *rest, labels]
    other = np.pad(emissions, ((0, 0), (0, 3), (0, 0)))
    wider = np.pad(MASK, ((0, 0), (0, 3)))
    other[~wider] = filler
    padded_labels = np.pad(labels, ((0, 0), (0, 3)), constant_values=1)
    found = quick_jit(log_likelihood)(other, wider, padded_labels, Scores(*rest))
    np.testing.assert_array_equal(found, quick_jit(log_likelihood)(emissions, MASK, labels, Scores(*rest)))
    tags, score = quick_jit(viterbi)(other, wider, Scores(*rest))
    expected, expected_score = quick_jit(viterbi)(emissions, MASK, Scores(*rest))
    np.testing.assert_array_equal(tags, np.pad(expected, ((0, 0), (0, 3)), constant_values=-1))
    np.testing.assert_array_equal(score, expected_score)

    arguments[0] = np.where(MASK[:, :, None], emissions, np.float32(filler))
    gradients = quick_jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(*arguments)
    assert all(np.isfinite(g).all() for g in gradients)
    assert not np.any(np.asarray(gradients[0])[~MASK]) and np.all(np.abs(np.asarray(gradients[0])[MASK]).sum(-1) > 0)


def test_long_rows_stay_exact_in_float32():
    """500 words whose tags are independent: the log-partition is a sum of 500, in the hundreds."""
    rng = np.random.default_rng(2)
    emissions = rng.normal(size=(1, 500, 9)) * 5
    zeros = np.zeros(9, np.float32)
    scores = Scores(np.zeros((9, 9), np.float32), zeros, zeros)
    found = quick_jit(log_partition)(np.float32(emissions), np.ones((1, 500), bool), scores)
    np.testing.assert_allclose(found[0], np.log(np.exp(emissions).sum(-1)).sum(), rtol=1e-5)
