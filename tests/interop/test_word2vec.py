"""Word vectors go out and come back bit for bit, and a file that is not whole is refused where it breaks."""

import gzip
import struct

import numpy as np
import pytest

import bertlab
from bertlab.data.vocabularies import SPECIALS
from bertlab.errors import UserError
from bertlab.interop import glove, import_weights, word2vec

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
        (b"", "line 1: .*--from=glove"),
        (TEXT.partition(b"\n")[2], "line 1: .*--from=glove"),
        (b"0 7\n", "line 1: 0 words of width 7"),
        (TEXT.rsplit(b"\n", 2)[0] + b"\n", "line 1: 5 words .* 4 lines"),
        (TEXT + b"more 1 2 3 4 5 6 7\n", "line 1: 5 words .* 6 lines"),
        (TEXT.replace(b"\xe6\x9d\xb1\xe4\xba\xac ", b"Tokyo x"), "line 4: could not convert"),
        (TEXT.replace(b"\n, ", b"\n, 1 "), "line 5: expected a word and 7 numbers, found 8"),
        (TEXT.replace(b"\n, ", b"\n"), "line 5: expected a word and 7 numbers, found 6"),
        (TEXT.replace(b"\n, ", b"\nthe "), "the word 'the' "),
        (TEXT.replace(b"\n, ", b"\n[MASK] "), r"the word '\[MASK\]' is the name of a special piece"),
        (TEXT.replace(b"\n, ", b"\n\xff "), "line 5: .* is not UTF-8"),
        (b"1 2\na 1 nan\n", "the vector of 'a' is not finite"),
        (BINARY[:-9], "ends within word 5 of 5"),
        (BINARY[:40], "ends within word 2 of 5"),
        (BINARY.replace(b"5 7", b"4 7"), "after the 4 words"),
        (BINARY.replace(b"5 7", b"6 7"), "ends within word 6 of 6"),
        (TEXT.replace(b"\nthe ", b"\nthe x"), "binary, .*line 2 is not a word and 7 numbers"),
        (b"1_0 7\n", "line 1: .*--from=glove"),
        (b"-1 7\n", "line 1: .*--from=glove"),
        (b"2 2\na_b 1 2\nb 1_0 2\n", "line 3: could not convert string to float: b'1_0'"),
        (binary_file(["a\nb"], np.float32([[0.1, 0.2]])), r"word 1: 'a\\nb' "),
    ],
)
def test_files_that_are_not_whole_are_refused(content, message, tmp_path):
    (tmp_path / "vectors").write_bytes(content)
    with pytest.raises(UserError, match=message):
        word2vec.load(tmp_path / "vectors")


PACKED = gzip.compress(TEXT)


@pytest.mark.parametrize(
    "content",
    [PACKED[:-20], TEXT, PACKED[:12] + b"\xff" * 40 + PACKED[52:], PACKED[:-8] + b"\0" + PACKED[-7:]],
    ids=["cut off", "not compressed", "damaged", "another checksum"],
)
def test_a_damaged_archive_is_refused(content, tmp_path):
    (tmp_path / "vectors.gz").write_bytes(content)
    with pytest.raises(UserError, match=r"vectors\.gz"):
        word2vec.load(tmp_path / "vectors.gz")


@pytest.mark.parametrize("load", [word2vec.load, glove.load])
def test_a_directory_is_refused(load, tmp_path):
    with pytest.raises(UserError, match="is a directory"):
        load(tmp_path)


def test_a_byte_order_mark_is_dropped(tmp_path):
    (tmp_path / "in").write_bytes(b"\xef\xbb\xbf" + TEXT)
    assert word2vec.load(tmp_path / "in").tokenizer.pieces()[5:] == WORDS


@pytest.mark.parametrize("end", [b"\n", b""])
@pytest.mark.parametrize(("count", "width", "files"), [(1, 1, 800), (2, 1, 800), (3, 2, 400), (4, 40, 50)])
def test_binary_is_never_taken_for_text(count, width, files, end, tmp_path):
    # Half of the bytes are such as make a line of numbers: digits, spaces and line feeds.
    generator = np.random.default_rng(count * width)
    likely = np.frombuffer(b"0123456789.-e \n\n\r", np.uint8)
    for _ in range(files):
        some = generator.integers(0, 256, (count, 4 * width), np.uint8)
        numeric = generator.random(some.shape) < 0.7
        some[numeric] = generator.choice(likely, numeric.sum())
        some[:, 3] = generator.choice([60, 61, 188, 189], count)  # of size 0.01 to 0.1, as vectors are
        table = some.view("<f4")
        table = np.where(np.isfinite(table), table, np.float32(1))
        (tmp_path / "in").write_bytes(binary_file(WORDS[:count], table, end))
        words, vectors = word2vec.read_vectors(tmp_path / "in")
        assert words == WORDS[:count]
        np.testing.assert_array_equal(vectors, table)


def test_an_early_line_feed_does_not_make_a_binary_file_text(tmp_path):
    table = np.frombuffer(b"5\n\x80\x3d" + b"\n\n\n\x3d" + b"1.5\x3d", "<f4")[:, None]
    for end in (b"\n", b""):
        (tmp_path / "in").write_bytes(binary_file(WORDS[:3], table, end))
        np.testing.assert_array_equal(word2vec.load(tmp_path / "in").params["body"]["token_embedding"][5:], table)


def test_text_that_is_whole_as_binary_too_stays_text(tmp_path):
    (tmp_path / "in").write_bytes(b"2 1\na 1.25\nb -0.5\n")
    np.testing.assert_array_equal(word2vec.load(tmp_path / "in").params["body"]["token_embedding"][5:], [[1.25], [-0.5]])


PUNCTUATED = ["new", "york", "new-york", "n't", "'s", "u.s.", "10,000", "a/b", "</s>", ",", ".", "is", "a\rb", "\u2028"]


@pytest.mark.parametrize("reader", ["word2vec", "binary", "glove"])
def test_words_with_punctuation_are_reached(reader, tmp_path):
    table = np.arange(1, 2 * len(PUNCTUATED) + 1, dtype=np.float32).reshape(-1, 2)
    file = binary_file(PUNCTUATED, table) if reader == "binary" else text_file(PUNCTUATED, table)
    (tmp_path / "in").write_bytes(file.partition(b"\n")[2] if reader == "glove" else file)
    import_weights("glove" if reader == "glove" else "word2vec", tmp_path / "in", tmp_path / "run")
    model = bertlab.load(tmp_path / "run")
    (found,) = model.encode([[*PUNCTUATED, "U.S."]], pretokenized=True)
    np.testing.assert_array_equal(found.states[-1], [*table, table[PUNCTUATED.index("u.s.")]])
    (found,) = model.encode(["New-York is new,  10,000 a/b ."])
    assert list(found.tokens) == ["new-york", "is", "new", ",", "10,000", "a/b", "."]


def test_only_static_models_have_word_vectors(tmp_path):
    (tmp_path / "in").write_bytes(TEXT)
    model = word2vec.load(tmp_path / "in")
    model.config.model.family = "bert"
    with pytest.raises(UserError, match="'bert'"):
        word2vec.save(model, tmp_path / "out")
