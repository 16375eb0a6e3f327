"""Cosines as SciPy's, CKA by its Gram matrices, and tables that are made of these measures."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist, pdist

from bertlab.contrib.geometry import (
    anisotropy,
    cka,
    in_context,
    intra_sentence_similarity,
    layer_geometry,
    self_similarity,
)
from bertlab.errors import UserError
from tests.evals.tiny import shared_scorer

pytestmark = pytest.mark.nightly

SENTENCES = [line.split() for line in ("a b c", "b abc", "g a ab d", "c b a", "abc d e")]


def test_cosines_are_those_of_scipy():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(7, 4)) * np.arange(1, 8)[:, None]
    assert self_similarity(vectors) == pytest.approx(np.mean(1 - pdist(vectors, "cosine")))
    assert anisotropy(vectors) == pytest.approx(self_similarity(vectors))
    expected = (2 + 1) / np.sqrt(5) / 2
    assert intra_sentence_similarity(np.array([[2.0, 0], [0, 1]])) == pytest.approx(expected)
    vectors, sentence = rng.normal(size=(50, 20)) + 1, rng.permutation(np.repeat(np.arange(5), 10))
    cosine = 1 - cdist(vectors, vectors, "cosine")
    others = sentence[:, None] != sentence
    assert anisotropy(vectors, sentence) == pytest.approx(cosine[others].mean())
    with pytest.raises(UserError, match="at least two words or sentences"):
        anisotropy(vectors, np.zeros(50))


def test_layers_have_the_means_of_the_measures():
    model = shared_scorer("mlm").model
    found = layer_geometry(model, SENTENCES, least=3)
    names, sentence, layers = in_context(model, SENTENCES, 10_000, 0)
    assert sorted(names) == sorted(word for words in SENTENCES for word in words)
    for layer, vectors in enumerate(layers):
        row, words = found.loc[layer], np.array(names)
        similar = [np.mean(1 - pdist(vectors[words == word], "cosine")) for word in "ab"]
        assert row.self_similarity == pytest.approx(np.mean(similar), abs=1e-6)
        assert row.anisotropy == pytest.approx(anisotropy(vectors, sentence))
        within = [intra_sentence_similarity(vectors[sentence == number]) for number in range(5)]
        adjusted = np.mean(within) - row.anisotropy
        assert row.intra_sentence_similarity_adjusted == pytest.approx(adjusted)
        assert (row.words, row.sentences, row.tokens) == (2, 5, 15)
    with pytest.raises(UserError, match="no word occurs in 4 of the 5 sentences"):
        layer_geometry(model, SENTENCES, least=4)


def hsic(x, y):
    """Of Gram matrices, biased (Kornblith et al. 2019, equation 3)."""
    centre = np.eye(len(x)) - 1 / len(x)
    return np.trace(centre @ (x @ x.T) @ centre @ (y @ y.T))


def unbiased_hsic(x, y):
    """Of Gram matrices (Song et al. 2012, equation 5)."""
    k, m, count = x @ x.T, y @ y.T, len(x)
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    total = np.trace(k @ m) + k.sum() * m.sum() / ((count - 1) * (count - 2))
    return (total - 2 / (count - 2) * (k @ m).sum()) / (count * (count - 3))


@pytest.mark.parametrize(("debiased", "reference"), [(False, hsic), (True, unbiased_hsic)])
def test_cka_is_the_normalised_hsic_of_gram_matrices(debiased, reference):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 5)) + 2
    y = x @ rng.normal(size=(5, 9)) + rng.normal(size=(30, 9)) - 7
    expected = reference(x, y) / np.sqrt(reference(x, x) * reference(y, y))
    assert cka(x, y, debiased) == pytest.approx(expected, abs=1e-12) and 0.1 < expected < 0.99
    assert cka(x, x, debiased) == pytest.approx(1)
