"""GloVe's text files: words with spaces, no header, and w + w̃ of what GloVe trained."""

import gzip

import numpy as np
import pytest
from ml_collections import ConfigDict

from bertlab.errors import UserError
from bertlab.interop import glove, word2vec

FILE = "the 0.5 -1.25 3e-05\n. . . 1 2 3\nat name@domain.com -0.1 0.2 0.3\n\u00a0 4 5 6\n".encode()
WORDS = ["the", ". . .", "at name@domain.com", "\u00a0"]
VECTORS = np.float32([[0.5, -1.25, 3e-5], [1, 2, 3], [-0.1, 0.2, 0.3], [4, 5, 6]])


@pytest.mark.parametrize("compressed", [False, True])
def test_the_last_fields_are_the_numbers(compressed, tmp_path):
    path = tmp_path / ("glove.txt.gz" if compressed else "glove.txt")
    path.write_bytes(gzip.compress(FILE) if compressed else FILE)
    model = glove.load(path)
    assert model.tokenizer.pieces()[5:] == WORDS
    np.testing.assert_array_equal(model.params["body"]["token_embedding"][5:], VECTORS)
    assert not model.params["body"]["token_embedding"][:5].any() and model.config.model.width == 3


def test_the_vector_of_unk_is_that_of_unknown_words(tmp_path):
    (tmp_path / "in.txt").write_bytes(b"a 1 2\n<unk> 3 4\n")
    model = glove.load(tmp_path / "in.txt")
    assert model.tokenizer.encode("zebra a") == [1, 5]
    np.testing.assert_array_equal(model.params["body"]["token_embedding"], [[0, 0], [3, 4], *[[0, 0]] * 3, [1, 2], [3, 4]])
    glove.save(model, tmp_path / "out.txt")
    assert [line.split()[0] for line in (tmp_path / "out.txt").read_text().splitlines()] == ["a", "<unk>"]


def test_a_byte_order_mark_is_dropped(tmp_path):
    (tmp_path / "in.txt").write_bytes(b"\xef\xbb\xbf" + FILE)
    assert glove.load(tmp_path / "in.txt").tokenizer.pieces()[5:] == WORDS


def test_a_given_word_may_have_spaces(tmp_path):
    (tmp_path / "in.txt").write_bytes(FILE)
    tokenizer = glove.load(tmp_path / "in.txt").tokenizer
    assert tokenizer.encode_words([*WORDS, "The"]) == ([5, 6, 7, 8, 5], [0, 1, 2, 3, 4])


def test_a_run_that_glove_trained_gives_the_sum_of_both_vectors(tmp_path):
    (tmp_path / "in.txt").write_bytes(b"a 1 2\nb 3 4\n")
    model = glove.load(tmp_path / "in.txt")
    model.params["body"]["output"]["kernel"][5:] = [[0.5, 0.25], [-1, -2]]
    for save, load, path in ((glove.save, glove.load, "g.txt.gz"), (word2vec.save, word2vec.load, "w.txt")):
        save(model, tmp_path / path)
        np.testing.assert_array_equal(load(tmp_path / path).params["body"]["token_embedding"][5:], [[1, 2], [3, 4]])
    model.config.objectives.glove = ConfigDict({"weight": 1.0})
    for save, load, path in ((glove.save, glove.load, "g.txt.gz"), (word2vec.save, word2vec.load, "w.txt")):
        save(model, tmp_path / path)
        np.testing.assert_array_equal(load(tmp_path / path).params["body"]["token_embedding"][5:], [[1.5, 2.25], [2, 2]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: expected a word and numbers"),
        (b"400000 300\nthe 1 2\n", "--from=word2vec"),
        (b"the 1 2\na 1\n", "line 2: expected a word and 2 numbers, found 1"),
        (b"the 1 2\na 1 x\n", "line 2: could not convert"),
        (b"the 1 2\na 1 2_0\n", "line 2: could not convert string to float: b'2_0'"),
        (b"the 1 2\nthe 1 2\n", "the word 'the' "),
    ],
)
def test_files_that_are_not_whole_are_refused(content, message, tmp_path):
    (tmp_path / "vectors.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        glove.load(tmp_path / "vectors.txt")


def test_words_with_spaces_cannot_go_out(tmp_path):
    (tmp_path / "in.txt").write_bytes(FILE)
    with pytest.raises(UserError, match=r"'\. \. \.' "):
        glove.save(glove.load(tmp_path / "in.txt"), tmp_path / "out.txt")
    assert not (tmp_path / "out.txt").exists()
