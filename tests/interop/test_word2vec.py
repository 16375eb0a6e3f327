"""Word vectors go out and come back bit for bit, and a file that is not whole is refused where it breaks."""

import gzip
import struct

import numpy as np
import pytest

from bertlab.data.vocabularies import SPECIALS
from bertlab.errors import UserError
from bertlab.interop import word2vec

WORDS = ["the", "naïve", "東京", ",", "New_York"]


def vectors(width=7):
    drawn = np.random.default_rng(0).normal(size=(len(WORDS), width)) * 10.0 ** np.arange(-4, width - 4)
    return drawn.astype(np.float32)


def text_file(words, table) -> bytes:
    lines = [f"{len(words)} {table.shape[1]}"] + [f"{w} " + " ".join(f"{x:.9g}" for x in v) for w, v in zip(words, table)]
    return ("\n".join(lines) + "\n").encode()


def binary_file(words, table, end=b"\n") -> bytes:
    parts = [w.encode() + b" " + struct.pack(f"<{len(v)}f", *v) + end for w, v in zip(words, table)]
    return f"{len(words)} {table.shape[1]}\n".encode() + b"".join(parts)


CONTENTS = {
    "text": text_file(WORDS, vectors()),
    "text of word2vec.c, a space at each line's end": text_file(WORDS, vectors())
    .replace(b"\n", b" \n")
    .replace(b"7 \n", b"7\n", 1),
    "binary of word2vec.c": binary_file(WORDS, vectors()),
    "binary of gensim": binary_file(WORDS, vectors(), end=b""),
}


@pytest.mark.parametrize("name", ["vectors.any", "vectors.gz"])
@pytest.mark.parametrize("content", CONTENTS)
def test_files_are_read(content, name, tmp_path):
    path = tmp_path / name
    path.write_bytes(gzip.compress(CONTENTS[content]) if name.endswith("gz") else CONTENTS[content])
    model = word2vec.load(path)
    assert model.tokenizer.pieces() == [*SPECIALS, *WORDS] and model.tokenizer.kind == "words"
    table = model.params["body"]["token_embedding"]
    assert not table[:5].any() and not model.params["body"]["output"]["kernel"].any()
    np.testing.assert_array_equal(table[5:], vectors())
    assert (model.config.model.family, model.config.model.width) == ("static", 7)
    assert model.tokenizer.encode("the 東京") == [5, 7]


@pytest.mark.parametrize("name", ["out.txt", "out.bin", "out.txt.gz", "out.bin.gz"])
def test_what_is_saved_comes_back_bit_for_bit(name, tmp_path):
    (tmp_path / "in").write_bytes(CONTENTS["text"])
    model = word2vec.load(tmp_path / "in")
    word2vec.save(model, tmp_path / name)
    again = word2vec.load(tmp_path / name)
    assert again.tokenizer.pieces() == model.tokenizer.pieces()
    np.testing.assert_array_equal(again.params["body"]["token_embedding"], model.params["body"]["token_embedding"])


def test_a_directory_gets_a_text_file_without_the_special_pieces(tmp_path):
    (tmp_path / "in").write_bytes(CONTENTS["text"])
    (tmp_path / "out").mkdir()
    word2vec.save(word2vec.load(tmp_path / "in"), tmp_path / "out")
    lines = (tmp_path / "out" / "vectors.txt").read_text().split("\n")
    assert lines[0] == "5 7" and [line.split(" ")[0] for line in lines[1:]] == [*WORDS, ""]


TEXT, BINARY = CONTENTS["text"], CONTENTS["binary of word2vec.c"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1: expected two numbers"),
        (TEXT.partition(b"\n")[2], "line 1: expected two numbers"),
        (b"0 7\n", "line 1: 0 words of width 7"),
        (TEXT.rsplit(b"\n", 2)[0] + b"\n", "line 1 says 5 words and 4 lines follow"),
        (TEXT + b"more 1 2 3 4 5 6 7\n", "line 1 says 5 words and 6 lines follow"),
        (TEXT.replace(b"\xe6\x9d\xb1\xe4\xba\xac ", b"Tokyo x"), "line 4: could not convert"),
        (TEXT.replace(b"\n, ", b"\n, 1 "), "line 5: expected a word and 7 numbers, found 8"),
        (TEXT.replace(b"\n, ", b"\n"), "line 5: expected a word and 7 numbers, found 6"),
        (TEXT.replace(b"\n, ", b"\nthe "), "the word 'the' is there twice"),
        (TEXT.replace(b"\n, ", b"\n[MASK] "), r"the word '\[MASK\]' is the name of a special piece"),
        (TEXT.replace(b"\n, ", b"\n\xff "), "line 5: .* is not UTF-8"),
        (b"1 2\na 1 nan\n", "the vector of 'a' is not finite"),
        (BINARY[:-9], "ends within word 5 of 5"),
        (BINARY[:40], "ends within word 2 of 5"),
        (BINARY.replace(b"5 7", b"4 7"), "goes on after the 4 words"),
        (BINARY.replace(b"5 7", b"6 7"), "ends within word 6 of 6"),
    ],
)
def test_files_that_are_not_whole_are_refused(content, message, tmp_path):
    (tmp_path / "vectors").write_bytes(content)
    with pytest.raises(UserError, match=message):
        word2vec.load(tmp_path / "vectors")


def test_a_damaged_archive_is_refused(tmp_path):
    (tmp_path / "vectors.gz").write_bytes(gzip.compress(TEXT)[:-20])
    with pytest.raises(UserError, match="the file is not whole"):
        word2vec.load(tmp_path / "vectors.gz")


def test_only_static_models_have_word_vectors(tmp_path):
    (tmp_path / "in").write_bytes(TEXT)
    model = word2vec.load(tmp_path / "in")
    model.config.model.family = "bert"
    with pytest.raises(UserError, match="this run is a 'bert'"):
        word2vec.save(model, tmp_path / "out")
