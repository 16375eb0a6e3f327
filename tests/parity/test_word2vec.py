"""gensim reads what we write, and we read what it writes."""

import numpy as np
import pytest
from gensim.models import KeyedVectors

from bertlab.interop import word2vec

WORDS = ["the", "naïve", "東京", ","]
TABLE = np.random.default_rng(0).normal(size=(4, 6)) * 10.0 ** np.arange(-3, 3)
TABLE = TABLE.astype(np.float32)


@pytest.mark.parametrize("name", ["vectors.txt", "vectors.bin", "vectors.txt.gz", "vectors.bin.gz"])
def test_both_ways(name, tmp_path):
    binary, path = ".bin" in name, str(tmp_path / name)
    theirs = KeyedVectors(6)
    theirs.add_vectors(WORDS, TABLE)
    theirs.save_word2vec_format(path, binary=binary)
    model = word2vec.load(tmp_path / name)
    assert model.tokenizer.pieces()[5:] == WORDS
    vectors = model.params["body"]["token_embedding"]
    np.testing.assert_allclose(vectors[5:], TABLE, rtol=1e-6)
    vectors[5:] = TABLE
    word2vec.save(model, tmp_path / f"ours-{name}")
    again = KeyedVectors.load_word2vec_format(str(tmp_path / f"ours-{name}"), binary=binary)
    assert again.index_to_key == WORDS
    np.testing.assert_array_equal(again.vectors, TABLE)
