"""word2vec's and GloVe's files go out and come back bit for bit, and one that is not whole is refused where it breaks."""

import gzip
import struct

import numpy as np
import pytest
from ml_collections import ConfigDict

import bertlab
from bertlab.data.vocabularies import SPECIALS
from bertlab.errors import UserError
from bertlab.interop import glove, import_weights, word2vec

WORDS = ["the", "naïve", "東京", ",", "New_York"]
VECTORS = np.float32(np.random.default_rng(0).normal(size=(5, 7)) * 10.0 ** np.arange(-4, 3))


def text_file(words, table) -> bytes:
    lines = [f"{len(words)} {table.shape[1]}"] + [f"{w} " + " ".join(f"{x:.9g}" for x in v) for w, v in zip(words, table)]
    return ("\n".join(lines) + "\n").encode()


def binary_file(words, table, end=b"\n") -> bytes:
    parts = [w.encode() + b" " + struct.pack(f"<{len(v)}f", *v) + end for w, v in zip(words, table)]
    return f"{len(words)} {table.shape[1]}\n".encode() + b"".join(parts)


TEXT, BINARY = text_file(WORDS, VECTORS), binary_file(WORDS, VECTORS)
PACKED = gzip.compress(TEXT, mtime=0)
CONTENTS = {
    "text": TEXT,
    "text of word2vec.c, a space at each line's end": TEXT.replace(b"\n", b" \n").replace(b"7 \n", b"7\n", 1),
    "binary of word2vec.c": BINARY,
    "binary of gensim": binary_file(WORDS, VECTORS, end=b""),
    "compressed": PACKED,
    "a byte order mark": b"\xef\xbb\xbf" + TEXT,
}
GLOVE = "the 0.5 -1.25 3e-05\n. . . 1 2 3\nat name@domain.com -0.1 0.2 0.3\n\u00a0 4 5 6\n".encode()
GLOVE_WORDS = ["the", ". . .", "at name@domain.com", "\u00a0"]


def written(folder, content, name="in"):
    (folder / name).write_bytes(content)
    return folder / name


def table_of(model):
    """The vectors of the words."""
    return model.params["body"]["token_embedding"][5:]


@pytest.mark.parametrize("content", CONTENTS)
def test_files_are_read(content, tmp_path):
    path = written(tmp_path, CONTENTS[content], "vectors.gz" if content == "compressed" else "vectors.any")
    model = word2vec.load(path)
    assert model.tokenizer.pieces() == [*SPECIALS, *WORDS] and model.tokenizer.kind == "words"
    assert not model.params["body"]["token_embedding"][:5].any() and not model.params["body"]["output"]["kernel"].any()
    np.testing.assert_array_equal(table_of(model), VECTORS)
    assert (model.config.model.family, model.config.model.width) == ("static", 7)
    assert model.tokenizer.encode("the 東京") == [5, 7]


@pytest.mark.parametrize("content", [GLOVE, gzip.compress(GLOVE, mtime=0), b"\xef\xbb\xbf" + GLOVE])
def test_gloves_words_may_have_spaces(content, tmp_path):
    model = glove.load(written(tmp_path, content, "in.gz" if content[0] == 0x1F else "in.txt"))
    assert model.tokenizer.pieces() == [*SPECIALS, *GLOVE_WORDS] and model.config.model.width == 3
    np.testing.assert_array_equal(table_of(model), np.float32([[0.5, -1.25, 3e-5], [1, 2, 3], [-0.1, 0.2, 0.3], [4, 5, 6]]))
    assert model.tokenizer.encode_words([*GLOVE_WORDS, "The"]) == ([5, 6, 7, 8, 5], [0, 1, 2, 3, 4])
    with pytest.raises(UserError, match=r"'\. \. \.' "):
        glove.save(model, tmp_path / "out.txt")
    assert not (tmp_path / "out.txt").exists()


def test_gloves_vector_of_unk_is_that_of_unknown_words(tmp_path):
    model = glove.load(written(tmp_path, b"a 1 2\n<unk> 3 4\n"))
    assert model.tokenizer.encode("zebra a") == [1, 5]
    np.testing.assert_array_equal(model.params["body"]["token_embedding"], [[0, 0], [3, 4], *[[0, 0]] * 3, [1, 2], [3, 4]])
    glove.save(model, tmp_path / "out.txt")
    assert [line.split()[0] for line in (tmp_path / "out.txt").read_text().splitlines()] == ["a", "<unk>"]


@pytest.mark.parametrize("name", ["out.txt", "out.bin", "out.txt.gz", "out.bin.gz"])
def test_what_is_saved_comes_back_bit_for_bit(name, tmp_path):
    word2vec.save(word2vec.load(written(tmp_path, TEXT)), tmp_path / name)
    again = word2vec.load(tmp_path / name)
    assert again.tokenizer.pieces() == [*SPECIALS, *WORDS]
    np.testing.assert_array_equal(table_of(again), VECTORS)


def test_a_directory_gets_a_text_file_without_the_special_pieces(tmp_path):
    (tmp_path / "out").mkdir()
    word2vec.save(word2vec.load(written(tmp_path, TEXT)), tmp_path / "out")
    lines = (tmp_path / "out" / "vectors.txt").read_text().split("\n")
    assert lines[0] == "5 7" and [line.split(" ")[0] for line in lines[1:]] == [*WORDS, ""]


def test_a_run_that_glove_trained_gives_the_sum_of_both_vectors(tmp_path):
    model = glove.load(written(tmp_path, b"a 1 2\nb 3 4\n"))
    model.params["body"]["output"]["kernel"][5:] = [[0.5, 0.25], [-1, -2]]
    for expected in ([[1, 2], [3, 4]], [[1.5, 2.25], [2, 2]]):
        for kind, path in ((glove, "g.txt.gz"), (word2vec, "w.txt")):
            kind.save(model, tmp_path / path)
            np.testing.assert_array_equal(table_of(kind.load(tmp_path / path)), expected)
        model.config.objectives.glove = ConfigDict({"weight": 1.0})


def test_only_static_models_have_word_vectors(tmp_path):
    model = word2vec.load(written(tmp_path, TEXT))
    model.config.model.family = "bert"
    with pytest.raises(UserError, match="'bert'"):
        word2vec.save(model, tmp_path / "out")


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        *(
            (word2vec, content, message)
            for content, message in (
                (b"", "line 1: .*--from=glove"),
                (TEXT.partition(b"\n")[2], "line 1: .*--from=glove"),
                (b"1_0 7\n", "line 1: .*--from=glove"),
                (b"-1 7\n", "line 1: .*--from=glove"),
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
                (b"2 2\na_b 1 2\nb 1_0 2\n", "line 3: could not convert string to float: b'1_0'"),
                (TEXT.replace(b"\nthe ", b"\nthe x"), "binary, .*line 2 is not a word and 7 numbers"),
                (BINARY[:-9], "ends within word 5 of 5"),
                (BINARY[:40], "ends within word 2 of 5"),
                (BINARY.replace(b"5 7", b"4 7"), "after the 4 words"),
                (BINARY.replace(b"5 7", b"6 7"), "ends within word 6 of 6"),
                (binary_file(["a\nb"], np.float32([[0.1, 0.2]])), r"word 1: 'a\\nb' "),
            )
        ),
        (glove, b"", "line 1: expected a word and numbers"),
        (glove, b"400000 300\nthe 1 2\n", "--from=word2vec"),
        (glove, b"the 1 2\na 1\n", "line 2: expected a word and 2 numbers, found 1"),
        (glove, b"the 1 2\na 1 x\n", "line 2: could not convert"),
    ],
)
def test_files_that_are_not_whole_are_refused(kind, content, message, tmp_path):
    with pytest.raises(UserError, match=message):
        kind.load(written(tmp_path, content))


@pytest.mark.parametrize(
    "content",
    [PACKED[:-20], TEXT, PACKED[:12] + b"\xff" * 40 + PACKED[52:], PACKED[:-8] + b"\0" + PACKED[-7:]],
    ids=["cut off", "not compressed", "damaged", "another checksum"],
)
def test_a_damaged_archive_is_refused(content, tmp_path):
    with pytest.raises(UserError, match=r"vectors\.gz"):
        word2vec.load(written(tmp_path, content, "vectors.gz"))


@pytest.mark.parametrize("load", [word2vec.load, glove.load])
def test_a_directory_is_refused(load, tmp_path):
    with pytest.raises(UserError, match="is a directory"):
        load(tmp_path)


@pytest.mark.parametrize(("count", "width", "files"), [(1, 1, 800), (2, 1, 800), (3, 2, 400), (4, 40, 50)])
def test_binary_is_never_taken_for_text(count, width, files, tmp_path):
    # Half of the bytes are such as make a line of numbers: digits, spaces and line feeds.
    generator = np.random.default_rng(count * width)
    likely = np.frombuffer(b"0123456789.-e \n\n\r", np.uint8)
    for number in range(files):
        some = generator.integers(0, 256, (count, 4 * width), np.uint8)
        numeric = generator.random(some.shape) < 0.7
        some[numeric] = generator.choice(likely, numeric.sum())
        some[:, 3] = generator.choice([60, 61, 188, 189], count)  # of size 0.01 to 0.1, as vectors are
        table = some.view("<f4")
        table = np.where(np.isfinite(table), table, np.float32(1))
        words, vectors = word2vec.read_vectors(written(tmp_path, binary_file(WORDS[:count], table, (b"\n", b"")[number % 2])))
        assert words == WORDS[:count]
        np.testing.assert_array_equal(vectors, table)


@pytest.mark.parametrize("end", [b"\n", b""])
def test_an_early_line_feed_does_not_make_a_binary_file_text(end, tmp_path):
    table = np.frombuffer(b"5\n\x80\x3d" + b"\n\n\n\x3d" + b"1.5\x3d", "<f4")[:, None]
    np.testing.assert_array_equal(table_of(word2vec.load(written(tmp_path, binary_file(WORDS[:3], table, end)))), table)


def test_text_that_is_whole_as_binary_too_stays_text(tmp_path):
    model = word2vec.load(written(tmp_path, b"2 1\na 1.25\nb -0.5\n"))
    np.testing.assert_array_equal(table_of(model), [[1.25], [-0.5]])


PUNCTUATED = ["new", "york", "new-york", "n't", "'s", "u.s.", "10,000", "a/b", "</s>", ",", ".", "is", "a\rb", "\u2028"]


@pytest.mark.parametrize("reader", ["word2vec", "binary", "glove"])
def test_words_with_punctuation_are_reached(reader, tmp_path):
    table = np.arange(1, 2 * len(PUNCTUATED) + 1, dtype=np.float32).reshape(-1, 2)
    file = binary_file(PUNCTUATED, table) if reader == "binary" else text_file(PUNCTUATED, table)
    source = written(tmp_path, file.partition(b"\n")[2] if reader == "glove" else file)
    import_weights("glove" if reader == "glove" else "word2vec", source, tmp_path / "run")
    model = bertlab.load(tmp_path / "run")
    (found,) = model.encode([[*PUNCTUATED, "U.S."]], pretokenized=True)
    np.testing.assert_array_equal(found.states[-1], [*table, table[PUNCTUATED.index("u.s.")]])
    (found,) = model.encode(["New-York is new,  10,000 a/b ."])
    assert list(found.tokens) == ["new-york", "is", "new", ",", "10,000", "a/b", "."]
