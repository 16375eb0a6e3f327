"""Word vectors in the formats of tmikolov/word2vec word2vec.c, which gensim's KeyedVectors read and write too.

The first line says "V D". In the text format a line follows for each word: the word and D numbers. In the binary format each
word is followed by a space and D little-endian float32, and (in word2vec.c, not in gensim) a line feed. Names that end in .gz
are compressed.

Such vectors were made from text in which spaces part the tokens ("n't", "10,000", "New_York"), so the tokenizer that comes
of them looks up what stands between spaces before it splits anything.
"""

import codecs
import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from bertlab import objectives
from bertlab.config import base_config
from bertlab.data.tokenizers import WordsTokenizer
from bertlab.data.vocabularies import SPECIALS
from bertlab.errors import UserError
from bertlab.interop.base import Imported

VECTORS = "vectors.txt"

# The bytes of numbers in text, and of what parts them.
_DIGITS = b"0123456789+-.eE \r\n"


def load(source: str | Path) -> Imported:
    """Reads a text or binary file; which of them it is, its contents say.

    The words follow the five special pieces, whose vectors are zeros, in a words tokenizer.

    Raises:
        UserError: the file is not whole, or names a word twice; the line or the word is given.
    """
    source = Path(source)
    header, line_feed, body = read_file(source).partition(b"\n")
    sizes = header.split()
    if len(sizes) != 2 or not all(size.isdigit() for size in sizes):
        raise UserError(
            f"{source}, line 1: expected two numbers, words and width, not {header[:60]!r}; a file without them is --from=glove"
        )
    count, width = map(int, sizes)
    if not line_feed or count < 1 or width < 1:
        raise UserError(f"{source}, line 1: {count} words of width {width} are no word vectors; give a whole file")
    read = _read_text if _is_text(body, count, width) else _read_binary
    words, vectors = read(source, body, count, width)
    return imported(source, words, vectors)


def save(run: Imported, target: str | Path) -> None:
    """Writes a run's word vectors without the special pieces; gensim opens them with load_word2vec_format.

    Args:
        run: of family static. What was trained with GloVe is saved as w + w̃ (`bertlab.interop.glove`).
        target: a directory, in which vectors.txt is made, or a file: binary if its name ends in .bin or .bin.gz, else text
            with the digits that give every float32 back.

    Raises:
        UserError: the run is not static, or a word has white space in it, which the format cannot hold.
    """
    words, vectors = word_vectors(run)
    target = Path(target)
    target = target / VECTORS if target.is_dir() else target
    refuse_white_space(words, target)
    with open_file(target, "wb") as file:
        file.write(f"{len(words)} {vectors.shape[1]}\n".encode())
        if target.name.removesuffix(".gz").endswith(".bin"):
            for word, vector in zip(words, vectors):
                file.write(word.encode() + b" " + vector.astype("<f4").tobytes() + b"\n")
        else:
            file.writelines(text_lines(words, vectors))


def read_file(source: Path) -> bytes:
    """A file's contents, plain or .gz, without a byte order mark.

    Raises:
        UserError: it is a directory, or the compressed file is damaged.
    """
    if source.is_dir():
        raise UserError(f"{source} is a directory; name the file of word vectors in it")
    try:
        with open_file(source, "rb") as file:
            return file.read().removeprefix(codecs.BOM_UTF8)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{source}: {error}; the file is not whole") from None


def open_file(path: Path, mode: str):
    """A binary file, compressed if its name ends in .gz."""
    return gzip.open(path, mode) if path.name.endswith(".gz") else open(path, mode)


def _is_text(body: bytes, count: int, width: int) -> bool:
    """Whether the first line is a word and numbers, as chance makes it in a binary file only of a small width."""
    fields = body.partition(b"\n")[0].rstrip(b"\r ").split(b" ")
    try:
        _numbers(fields[1:])
    except ValueError:
        return False
    if len(fields) != width + 1:
        return False
    ends = _binary_ends(body, count, width)
    # Text can be whole as binary too ("a 1.25"), but then its numbers are spelled out.
    whole = len(ends) == count + 1 and not body[ends[-1] :].strip(b"\n")
    return not whole or all(not body[end - 4 * width : end].strip(_DIGITS) for end in ends[1:])


def _numbers(fields: list[bytes]) -> list[float]:
    """Raises: ValueError: one is no number, or has Python's underscores in it, which C does not read."""
    if underscored := [field for field in fields if b"_" in field]:
        raise ValueError(f"could not convert string to float: {underscored[0]!r}")
    return [float(field) for field in fields]


def _read_text(source: Path, body: bytes, count: int, width: int) -> tuple[list[str], np.ndarray]:
    lines = body.removesuffix(b"\n").split(b"\n")
    if len(lines) != count:
        raise UserError(f"{source}, line 1 says {count} words and {len(lines)} lines follow; the file is not whole")
    return parse_lines(source, lines, width, first_line=2, spaces=False)


def _binary_ends(body: bytes, count: int, width: int) -> list[int]:
    """0 and the places where each word's vector ends, up to the last that the file has whole."""
    ends = [0]
    for _ in range(count):
        space = body.find(b" ", ends[-1])
        end = space + 1 + 4 * width
        if space < 0 or end > len(body):
            break
        ends.append(end)
    return ends


def _read_binary(source: Path, body: bytes, count: int, width: int) -> tuple[list[str], np.ndarray]:
    ends = _binary_ends(body, count, width)
    read_as = f"it was read as binary, for line 2 is not a word and {width} numbers"
    if len(ends) <= count:
        raise UserError(f"{source} ends within word {len(ends)} of {count}, so the file is not whole; {read_as}")
    if body[ends[-1] :].strip(b"\n"):
        raise UserError(f"{source} goes on after the {count} words that line 1 says, so the file is not whole; {read_as}")
    words, vectors = [], np.empty((count, width), np.float32)
    for i in range(count):
        start, numbers = ends[i], ends[i + 1] - 4 * width
        words.append(decoded(source, body[start : numbers - 1].lstrip(b"\n"), f"word {i + 1}"))
        vectors[i] = np.frombuffer(body, "<f4", width, numbers)
    return words, vectors


def parse_lines(source: Path, lines: list[bytes], width: int, first_line: int, spaces: bool) -> tuple[list[str], np.ndarray]:
    """Words and vectors of text lines: what comes before the last `width` fields is the word.

    Args:
        source: for messages.
        lines: without their ends.
        width: D.
        first_line: number of the first in its file.
        spaces: whether a word may have spaces in it.

    Raises:
        UserError: names the line.
    """
    words, vectors = [], np.empty((len(lines), width), np.float32)
    for i, line in enumerate(lines):
        where = f"{source}, line {first_line + i}"
        fields = line.rstrip(b"\r ").split(b" ")
        word = b" ".join(fields[:-width])
        if len(fields) <= width or (b" " in word and not spaces):
            raise UserError(f"{where}: expected a word and {width} numbers, found {len(fields) - 1} after the first field")
        try:
            vectors[i] = _numbers(fields[-width:])
        except ValueError as error:
            raise UserError(f"{where}: {error}; expected a word and {width} numbers") from None
        words.append(decoded(source, word, f"line {first_line + i}"))
    return words, vectors


def decoded(source: Path, word: bytes, where: str) -> str:
    """A word's text. Raises: UserError: it is not UTF-8, is empty, or has a line feed, which no vocabulary file can hold."""
    try:
        text = word.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{source}, {where}: {word!r} is not UTF-8; convert the file first") from None
    if not text:
        raise UserError(f"{source}, {where}: there is no word before the numbers")
    if "\n" in text:
        raise UserError(f"{source}, {where}: {text!r} has a line feed in it; take it out")
    return text


def imported(source: Path, words: list[str], vectors: np.ndarray) -> Imported:
    """A static model of these vectors, with zeros for the special pieces and the output matrix.

    Raises:
        UserError: a word is there twice, is the name of a special piece, or has a number that is not finite.
    """
    seen = set(SPECIALS)
    for word in words:
        if word in seen:
            what = "is the name of a special piece" if word in SPECIALS else "is there twice"
            raise UserError(f"{source}: the word {word!r} {what}; take it out")
        seen.add(word)
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise UserError(f"{source}: the vector of {words[int(np.argmin(finite))]!r} is not finite")
    table = np.concatenate([np.zeros((len(SPECIALS), vectors.shape[1]), np.float32), vectors])
    config = base_config()
    config.model.update(family="static", width=vectors.shape[1])
    config.data.tokenizer.kind = "words"
    lowercase = not any(word != word.lower() for word in words)
    return Imported(
        config=config,
        params={"body": {"token_embedding": table, "output": {"kernel": np.zeros_like(table)}}},
        tokenizer=WordsTokenizer([*SPECIALS, *words], lowercase, split="whitespace"),
        files=(source.name,),
        tensors=1,
    )


def word_vectors(run: Imported) -> tuple[list[str], np.ndarray]:
    """The words of a static run but its special pieces, and their vectors [V, D]; w + w̃ where GloVe trained them.

    Raises:
        UserError: the run is of another family.
    """
    if run.config.model.family != "static":
        raise UserError(
            f"only config.model.family='static' has a vector for each word, and this run is a {run.config.model.family!r}"
        )
    vectors = np.asarray(run.params["body"]["token_embedding"], np.float32)
    trained = objectives.build(run.config.objectives).values() if len(run.config.objectives) else ()
    if any("counts" in objective.needs for objective in trained):  # GloVe's
        vectors = vectors + np.asarray(run.params["body"]["output"]["kernel"], np.float32)
    pieces = run.tokenizer.pieces()
    rows = [i for i, piece in enumerate(pieces) if piece not in SPECIALS]
    return [pieces[i] for i in rows], vectors[rows]


def refuse_white_space(words: Iterable[str], target: Path) -> None:
    """Refuses words that a line of space-separated fields cannot hold."""
    for word in words:
        if not word or any(character in word for character in " \n\r\t"):
            raise UserError(f"{target}: the word {word!r} has white space in it, which this format cannot hold")


def text_lines(words: Iterable[str], vectors: np.ndarray) -> Iterator[bytes]:
    """Lines of the text formats, with the shortest digits that give each float32 back."""
    for word, vector in zip(words, vectors):
        yield (" ".join([word, *map(str, vector)]) + "\n").encode()
