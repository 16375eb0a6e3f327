"""Paragraph vectors: independent of other texts and padding, near texts of the same words."""

import numpy as np
import pytest

from bertlab.contrib.paragraphs import main, paragraph_vectors
from bertlab.errors import UserError
from bertlab.files import read_json
from bertlab.transfer.load import load
from tests.evals.tiny import shared_scorer
from tests.transfer.planted import HALVES, MODELS, pretrained

pytestmark = pytest.mark.nightly


def test_texts_of_the_same_half_of_the_words_are_alike(tmp_path, monkeypatch):
    """Words that end alike occur together in the corpus, so that their vectors are similar."""
    monkeypatch.setitem(MODELS, "static", ("skip_gram", {"width": 16}))
    run = pretrained(tmp_path, "static", steps=60, objectives__skip_gram__subsample=0.0)
    assert read_json(run / "result.json")["step"] == 60
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(half, 12)) for half in HALVES for _ in range(8)] + ["unknown"]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    main([str(run), str(tmp_path / "texts.txt"), str(tmp_path / "vectors.npy")])
    vectors = np.load(tmp_path / "vectors.npy")
    assert vectors.shape == (17, 16) and not vectors[-1].any()
    units = vectors[:-1] / np.linalg.norm(vectors[:-1], axis=1, keepdims=True)
    cosines, same = units @ units.T, np.repeat([0, 1], 8)
    alike = same[:, None] == same
    np.fill_diagonal(alike, False)
    assert cosines[alike].mean() > cosines[same[:, None] != same].mean() + 0.1
    model = load(run)
    counts = np.ones(model.tokenizer.vocab_size, int)
    counts[:5] = 0
    both = paragraph_vectors(model, counts, texts[:2])
    longer = paragraph_vectors(model, counts, [texts[0], " ".join(texts)])
    np.testing.assert_allclose(both[0], longer[0], rtol=1e-5, atol=1e-6)


def test_models_that_draw_no_negatives_are_refused():
    with pytest.raises(UserError, match="need a run of skip_gram or cbow"):
        paragraph_vectors(shared_scorer("mlm").model, np.ones(18, int), ["a"])
