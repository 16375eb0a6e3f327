import numpy as np
import pytest
from ml_collections import ConfigDict

from bertlab.data.tokenizers import SPECIALS, WordsTokenizer
from bertlab.errors import UserError
from bertlab.train.checkpoint import save_params
from bertlab.train.run_directory import RunDirectory
from bertlab.transfer.build import start_params
from bertlab.transfer.features import word_vectors

WORDS = ("the", "The", "york", "-", "new")
VECTORS = np.arange(20, dtype=np.float32).reshape(10, 2) ** 2
CONTEXTS = np.ones((10, 2), np.float32)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    run = RunDirectory(tmp_path_factory.mktemp("static"))
    WordsTokenizer([*SPECIALS, *WORDS], lowercase=False).save(run.tokenizer)
    save_params(run, {"body": {"token_embedding": VECTORS, "output": {"kernel": CONTEXTS}}})
    run.write("config", {"model": {"family": "static"}, "objectives": {"skip_gram": {}}})
    return run


@pytest.mark.parametrize("objective", ["skip_gram", "glove"])
def test_a_word_has_its_own_vector_or_its_lower_cases_or_that_of_unknown_words(
    run, objective, capsys
):
    run.write("config", {"model": {"family": "static"}, "objectives": {objective: {}}})
    vectors = VECTORS + CONTEXTS if objective == "glove" else VECTORS
    found = word_vectors(str(run), ["the", "The", "THE", "York", "other", "unseen", "new-york"])
    the, upper, york, dash, new = vectors[5:]
    expected = {"the": the, "The": upper, "THE": the, "York": york}
    expected |= {"other": vectors[1], "unseen": vectors[1]}
    expected |= {"new-york": (new + dash + york) / 3}
    for word, vector in expected.items():
        np.testing.assert_allclose(found.table[found.ids[word]], vector)
    assert not found.table[0].any() and found.ids["the"] == found.ids["THE"]
    assert "5 of 7 words" in capsys.readouterr().out


@pytest.mark.parametrize("objective", ["skip_gram", "glove"])
def test_a_static_body_starts_from_a_words_vectors(run, objective):
    run.write("config", {"model": {"family": "static"}, "objectives": {objective: {}}})
    transfer = {"random": False, "features": False, "layout": "pair", "layers": None}
    config = {"init_from": str(run.path), "init_step": None, "model": {"family": "static"}}
    fresh = {"body": {"token_embedding": np.zeros((10, 2), np.float32)}}
    params = start_params(ConfigDict(config | {"transfer": transfer}), {}, fresh)
    vectors = VECTORS + CONTEXTS if objective == "glove" else VECTORS
    np.testing.assert_array_equal(params["body"]["token_embedding"], vectors)


def test_only_static_runs_have_them(tmp_path):
    other = RunDirectory(tmp_path)
    other.write("config", {"model": {"family": "bert"}, "objectives": {}})
    with pytest.raises(UserError, match="is not a static run"):
        word_vectors(str(tmp_path), ["a"])
