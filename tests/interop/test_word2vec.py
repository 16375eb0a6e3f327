"""word2vec's and GloVe's files go out and come back bit for bit; a damaged one is refused."""

import gzip
import struct

import numpy as np
import pytest
from ml_collections import ConfigDict

import bertlab
from bertlab.data.tokenizers import SPECIALS
from bertlab.errors import UserError
from bertlab.interop import word2vec
from bertlab.interop.base import import_weights
from bertlab.train.recipes import add_objectives

WORDS = ["the", "naïve", "東京", ",", "New_York"]
VECTORS = np.random.default_rng(0).normal(size=(5, 7)) * 10.0 ** np.arange(-4, 3)
VECTORS = VECTORS.astype(np.float32)


def text_file(words, table) -> bytes:
    lines = [f"{word} " + " ".join(f"{x:.9g}" for x in row) for word, row in zip(words, table)]
    return "\n".join([f"{len(words)} {table.shape[1]}", *lines, ""]).encode()


def binary_file(words, table, end=b"\n") -> bytes:
    rows = [w.encode() + b" " + struct.pack(f"<{len(v)}f", *v) + end for w, v in zip(words, table)]
    return f"{len(words)} {table.shape[1]}\n".encode() + b"".join(rows)


TEXT, BINARY = text_file(WORDS, VECTORS), binary_file(WORDS, VECTORS)
CONTENTS = {
    "text": TEXT,
    "text of word2vec.c, a space at each line's end": TEXT.replace(b"\n", b" \n"),
    "binary of word2vec.c": BINARY,
    "binary of gensim": binary_file(WORDS, VECTORS, end=b""),
    "compressed": gzip.compress(TEXT, mtime=0),
    "a byte order mark": b"\xef\xbb\xbf" + TEXT,
}
GLOVE = "the 0.5 -1.25 3e-05\n. . . 1 2 3\nat name@domain.com -0.1 0.2 0.3\n\u00a0 4 5 6\n".encode()
GLOVE_WORDS = ["the", ". . .", "at name@domain.com", "\u00a0"]


def written(folder, content, name="in.txt"):
    name = "in.gz" if content[:1] == b"\x1f" else name
    (folder / name).write_bytes(content)
    return folder / name


def table(model):
    """The vectors of the words."""
    return model.params["body"]["token_embedding"][5:]


@pytest.mark.parametrize("content", CONTENTS)
def test_files_are_read(content, tmp_path):
    name = "in.bin" if content.startswith("binary") else "in.txt"
    model = word2vec.load(written(tmp_path, CONTENTS[content], name))
    assert model.tokenizer.pieces() == [*SPECIALS, *WORDS] and model.tokenizer.kind == "words"
    body = model.params["body"]
    assert not body["token_embedding"][:5].any() and not body["output"]["kernel"].any()
    np.testing.assert_array_equal(table(model), VECTORS)
    assert (model.config.model.family, model.config.model.width) == ("static", 7)
    assert model.tokenizer.encode("the 東京") == [5, 7]


@pytest.mark.parametrize(
    "content",
    [GLOVE, gzip.compress(GLOVE), b"\xef\xbb\xbf" + GLOVE],
    ids=["plain", "compressed", "a byte order mark"],
)
def test_gloves_words_may_have_spaces(content, tmp_path):
    model = word2vec.load_glove(written(tmp_path, content))
    assert model.tokenizer.pieces() == [*SPECIALS, *GLOVE_WORDS]
    expected = np.float32([[0.5, -1.25, 3e-5], [1, 2, 3], [-0.1, 0.2, 0.3], [4, 5, 6]])
    np.testing.assert_array_equal(table(model), expected)
    found = model.tokenizer.encode_words([*GLOVE_WORDS, "The"])
    assert found == ([5, 6, 7, 8, 5], [0, 1, 2, 3, 4])
    with pytest.raises(UserError, match="white space"):
        word2vec.save_glove(model, tmp_path / "out.txt")


def test_gloves_vector_of_unk_is_that_of_unknown_words(tmp_path):
    model = word2vec.load_glove(written(tmp_path, b"a 1 2\n<unk> 3 4\n"))
    assert model.tokenizer.encode("zebra a") == [1, 5]
    np.testing.assert_array_equal(model.params["body"]["token_embedding"][1], [3, 4])


@pytest.mark.parametrize("name", ["out.txt", "out.bin", "out.txt.gz", "out.bin.gz"])
def test_what_is_saved_comes_back_bit_for_bit(name, tmp_path):
    word2vec.save(word2vec.load(written(tmp_path, TEXT)), tmp_path / name)
    again = word2vec.load(tmp_path / name)
    assert again.tokenizer.pieces() == [*SPECIALS, *WORDS]
    np.testing.assert_array_equal(table(again), VECTORS)


def test_a_model_of_glove_gives_the_sum_of_both_vectors(tmp_path):
    model = word2vec.load_glove(written(tmp_path, b"a 1 2\nb 3 4\n"))
    model.params["body"]["output"]["kernel"][5:] = [[0.5, 0.25], [-1, -2]]
    for expected in ([[1, 2], [3, 4]], [[1.5, 2.25], [2, 2]]):
        word2vec.save_glove(model, tmp_path / "g.txt")
        np.testing.assert_array_equal(table(word2vec.load_glove(tmp_path / "g.txt")), expected)
        add_objectives(model.config, "glove")
    model.config.model = ConfigDict({"family": "bert"})
    with pytest.raises(UserError, match="'bert'"):
        word2vec.save(model, tmp_path / "out")


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("word2vec", b"", "line 1: .*--from=glove"),
        ("word2vec", TEXT.partition(b"\n")[2], "line 1: .*--from=glove"),
        ("word2vec", TEXT.rsplit(b"\n", 2)[0] + b"\n", "line 1: 5 words.* 4 lines"),
        ("word2vec", TEXT.replace(b"\n, ", b"\n, 1 "), "line 5: expected a word and 7 numbers"),
        ("word2vec", TEXT.replace(b"\n, ", b"\n"), "line 5: expected a word and 7 numbers"),
        ("word2vec", TEXT.replace(b"\n, ", b"\nthe "), "a word twice"),
        ("word2vec", TEXT.replace(b"\n, ", b"\n[MASK] "), "a word twice, or one of"),
        ("word2vec", TEXT.replace(b"\n, ", b"\n\xff "), "line 5: "),
        ("word2vec", b"1 2\na 1 nan\n", "the vector of 'a' is not finite"),
        ("binary", BINARY[:-9], "read as binary, but does not end after 5 words"),
        ("binary", BINARY.replace(b"5 7", b"4 7"), "does not end after 4 words"),
        ("glove", b"", "line 1: expected a word and numbers"),
        ("glove", b"400000 300\nthe 1 2\n", "--from=word2vec"),
        ("glove", b"the 1 2\na 1\n", "line 2: expected a word and 2 numbers"),
        ("glove", b"the 1 2\na 1 x\n", "line 2: could not convert"),
    ],
)
def test_files_that_are_not_whole_are_refused(kind, content, message, tmp_path):
    name, kind = ("in.bin", "word2vec") if kind == "binary" else ("in.txt", kind)
    with pytest.raises(UserError, match=message):
        import_weights(kind, written(tmp_path, content, name), tmp_path / "run")


def test_words_with_punctuation_are_reached(tmp_path):
    words = ["new", "york", "new-york", "n't", "u.s.", "10,000", "a/b", "</s>", ",", ".", "is"]
    vectors = np.arange(1, 2 * len(words) + 1, dtype=np.float32).reshape(-1, 2)
    import_weights("word2vec", written(tmp_path, text_file(words, vectors)), tmp_path / "run")
    model = bertlab.load(tmp_path / "run")
    (found,) = model.embed([[*words, "U.S."]], pretokenized=True)
    np.testing.assert_array_equal(found.states[-1], [*vectors, vectors[words.index("u.s.")]])
    (found,) = model.embed(["New-York is new,  10,000 a/b ."])
    assert list(found.tokens) == ["new-york", "is", "new", ",", "10,000", "a/b", "."]
