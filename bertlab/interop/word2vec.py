"""Word vectors: word2vec's files (tmikolov/word2vec, and gensim's KeyedVectors) and GloVe's.

word2vec's first line is "V D". Then each word is followed by a space and D numbers, in the binary
format little-endian float32. GloVe's text has no first line, and its words may have spaces in them.
The tokenizer looks up what is between spaces first, and splits only what the vocabulary lacks.
"""

import gzip
from pathlib import Path

import numpy as np

from bertlab.config.defaults import base_config
from bertlab.data.tokenizers.base import SPECIALS
from bertlab.data.tokenizers.words import WordsTokenizer
from bertlab.errors import UserError
from bertlab.interop.base import Model
from bertlab.objectives.word_vectors import word_table

UNKNOWN = "<unk>"
"""GloVe's program ends a file with this word's vector, for words that the file lacks."""


def load(source: Path) -> Model:
    """Reads word2vec's file: binary if its name ends in .bin or .bin.gz, otherwise text."""
    header, _, body = read_bytes(source).partition(b"\n")
    sizes = header.split()
    if len(sizes) != 2 or not all(size.isdigit() for size in sizes):
        raise UserError(f"{source}, line 1: expected two sizes; without them, give --from=glove")
    count, width = map(int, sizes)
    if is_binary(source):
        return make_model(source, *read_binary(source, body, count, width))
    words, vectors = read_lines(source, body, width, header=True)
    if len(words) != count:
        raise UserError(f"{source}, line 1: {count} words, but {len(words)} lines follow")
    return make_model(source, words, vectors)


def load_glove(source: Path) -> Model:
    """Reads GloVe's text file: a word is everything before the last D fields, of the first line's
    number."""
    content = read_bytes(source)
    width = content.partition(b"\n")[0].count(b" ")
    if width < 2:
        raise UserError(f"{source}, line 1: expected a word and numbers; or give --from=word2vec")
    words, vectors = read_lines(source, content, width, header=False)
    model = make_model(source, words, vectors)
    if UNKNOWN in words:
        table = model.params["body"]["token_embedding"]
        table[model.tokenizer.unk_id] = vectors[words.index(UNKNOWN)]
    return model


def read_bytes(source: Path) -> bytes:
    """A file's contents, unpacked and without a byte order mark."""
    content = gzip.open(source).read() if source.suffix == ".gz" else source.read_bytes()
    return content.removeprefix(b"\xef\xbb\xbf")


def is_binary(path: Path) -> bool:
    """Whether a file of word2vec has binary vectors, by its name."""
    return path.name.removesuffix(".gz").endswith(".bin")


def read_lines(
    source: Path, content: bytes, width: int, header: bool
) -> tuple[list[str], np.ndarray]:
    """Words and vectors [V, D] of the lines, with a header before them or not; with one, words have
    no spaces."""
    words, vectors = [], []
    lines = content.removesuffix(b"\n").split(b"\n")
    for number, line in enumerate(lines, 1 + header):
        word, *fields = line.rstrip(b"\r ").rsplit(b" ", width)
        try:
            if len(fields) != width or (header and b" " in word):
                raise ValueError(f"expected a word and {width} numbers")
            vectors.append(np.array(fields, np.float32))
            words.append(word.decode("utf-8"))
        except ValueError as error:
            raise UserError(f"{source}, line {number}: {error}") from None
    return words, np.stack(vectors)


def read_binary(source: Path, body: bytes, count: int, width: int) -> tuple[list[str], np.ndarray]:
    """Words and vectors [V, D] of a binary file."""
    words, vectors, begin = [], np.empty((count, width), np.float32), 0
    for number in range(count):
        space = body.find(b" ", begin)
        end = space + 1 + 4 * width
        if space < 0 or end > len(body):
            break
        words.append(body[begin:space].lstrip(b"\n").decode("utf-8"))
        vectors[number] = np.frombuffer(body, "<f4", width, space + 1)
        begin = end
    if len(words) < count or body[begin:].strip(b"\n"):
        raise UserError(f"{source} was read as binary, but does not end after {count} words")
    return words, vectors


def make_model(source: Path, words: list[str], vectors: np.ndarray) -> Model:
    """A static model with these vectors; the special pieces' and the output matrix are zeros."""
    if len(set(words).union(SPECIALS)) < len(words) + len(SPECIALS):
        raise UserError(f"{source} lists a word twice, or one of {' '.join(SPECIALS)}")
    if not np.isfinite(vectors).all():
        bad = words[int(np.argmin(np.isfinite(vectors).all(axis=1)))]
        raise UserError(f"{source}: the vector of {bad!r} is not finite")
    table = np.concatenate([np.zeros((len(SPECIALS), vectors.shape[1]), np.float32), vectors])
    config = base_config()
    config.model.update(family="static", size="original", width=vectors.shape[1])
    config.data.tokenizer.kind = "words"
    lowercase = all(word == word.lower() for word in words)
    tokenizer = WordsTokenizer([*SPECIALS, *words], lowercase, split="whitespace")
    params = {"token_embedding": table, "output": {"kernel": np.zeros_like(table)}}
    return Model(config, {"body": params}, tokenizer)


def save(model: Model, target: Path, header: bool = True) -> None:
    """Writes word2vec's file, without the special pieces: binary if its name ends in .bin or
    .bin.gz, otherwise text. A GloVe model's vectors are the sums w + w̃."""
    if model.config.model.family != "static":
        family = model.config.model.family
        raise UserError(f"config.model.family={family!r}: only 'static' has a vector for each word")
    vectors = word_table(model.params["body"], model.objectives)
    rows = {
        piece: row for piece, row in zip(model.tokenizer.pieces(), vectors) if piece not in SPECIALS
    }
    if spaced := [word for word in rows if len(word.split()) != 1]:
        raise UserError(f"{target}: the word {spaced[0]!r} has white space in it")
    binary = header and is_binary(target)
    with (gzip.open if target.suffix == ".gz" else open)(target, "wb") as file:
        if header:
            file.write(f"{len(rows)} {vectors.shape[1]}\n".encode())
        for word, row in rows.items():
            # Python writes the fewest digits that restore a float32.
            numbers = row.astype("<f4").tobytes() if binary else " ".join(map(str, row)).encode()
            file.write(word.encode() + b" " + numbers + b"\n")


def save_glove(model: Model, target: Path) -> None:
    """Writes GloVe's text file."""
    save(model, target, header=False)
