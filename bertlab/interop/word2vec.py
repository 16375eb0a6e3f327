"""Word vectors in the two formats of tmikolov/word2vec word2vec.c and gensim's KeyedVectors.

The first line is "V D". In the text format, each further line has a word and D numbers. In the binary format, each word is
followed by a space and D little-endian float32 numbers, then a line feed (in word2vec.c, not in gensim). Files whose names end
in .gz are compressed.

Such vectors come from text with spaces between tokens ("n't", "10,000", "New_York"). So the imported tokenizer first looks up
whatever is between spaces, and splits only if that fails.
"""

import codecs
import gzip
from pathlib import Path

import numpy as np

from bertlab import objectives
from bertlab.compressed import read_whole
from bertlab.config import base_config
from bertlab.data.tokenizers import WordsTokenizer
from bertlab.data.vocabularies import SPECIALS
from bertlab.errors import UserError
from bertlab.interop.base import Imported
from bertlab.objectives.blame import blamed

# The bytes of numbers and separators in text.
_DIGITS = b"0123456789+-.eE \r\n"


def load(source: str | Path) -> Imported:
    """Reads a text or binary file; the contents tell which.

    The tokenizer has the five special pieces, whose vectors are zeros, and then the words.

    Raises:
        UserError: the file is damaged, or a word occurs twice; names the line or the word.
    """
    source = Path(source)
    return imported(source, *read_vectors(source))


def read_vectors(source: Path) -> tuple[list[str], np.ndarray]:
    """The words of a text or binary file, and their vectors [V, D].

    Raises:
        UserError: the file is damaged; names the line or the word.
    """
    header, line_feed, body = read_file(source).partition(b"\n")
    sizes = header.split()
    if len(sizes) != 2 or not all(size.isdigit() and len(size) < 19 for size in sizes):
        raise UserError(
            f"{source}, line 1: expected the number of words and the width, found {header[:60]!r}; if it has no such line,"
            " set --from=glove"
        )
    count, width = map(int, sizes)
    if not line_feed or count < 1 or width < 1:
        raise UserError(f"{source}, line 1: {count} words of width {width} are not word vectors; give a complete file")
    read = _read_text if _is_text(body, count, width) else _read_binary
    return read(source, body, count, width)


def save(run: Imported, target: str | Path) -> None:
    """Writes a run's word vectors without the special pieces; gensim opens them with load_word2vec_format.

    Args:
        run: of family static. Vectors trained by GloVe are saved as w + w̃ (`bertlab.interop.glove`).
        target: a directory, for a new file vectors.txt, or a file: binary if its name ends in .bin or .bin.gz, otherwise text
            with enough digits to restore every float32.

    Raises:
        UserError: the run is not static, or a word contains white space.
    """
    write_vectors(run, Path(target), header=True)


def write_vectors(run: Imported, target: Path, *, header: bool) -> None:
    """`save` of word2vec, whose files begin with a header, and of GloVe, whose files are always text."""
    words, vectors = word_vectors(run)
    target = target / "vectors.txt" if target.is_dir() else target
    for word in words:
        if not word or any(character in word for character in " \n\r\t"):
            raise UserError(f"{target}: the word {word!r} contains white space, and this format does not allow it")
    binary = header and target.name.removesuffix(".gz").endswith(".bin")
    with (gzip.open if target.suffix == ".gz" else open)(target, "wb") as file:
        if header:
            file.write(f"{len(words)} {vectors.shape[1]}\n".encode())
        for word, vector in zip(words, vectors):
            # Python writes the fewest digits that restore a float32.
            numbers = vector.astype("<f4").tobytes() if binary else " ".join(map(str, vector)).encode()
            file.write(word.encode() + b" " + numbers + b"\n")


def read_file(source: Path) -> bytes:
    """A file's contents, plain or .gz, without a byte order mark.

    Raises:
        UserError: the path is a directory, or as `bertlab.compressed.read_whole`.
    """
    if source.is_dir():
        raise UserError(f"{source} is a directory; name the file of word vectors in it")
    return read_whole(source).removeprefix(codecs.BOM_UTF8)


def _is_text(body: bytes, count: int, width: int) -> bool:
    """Whether the first line is a word and numbers. By chance a binary file of small width may look so too."""
    fields = body.partition(b"\n")[0].rstrip(b"\r ").split(b" ")
    try:
        _numbers(fields[1:])
    except ValueError:
        return False
    if len(fields) != width + 1:
        return False
    ends = _binary_ends(body, count, width)
    # Text may also be valid as binary ("a 1.25"), but then the bytes of its vectors are digits.
    whole = len(ends) == count + 1 and not body[ends[-1] :].strip(b"\n")
    return not whole or all(not body[end - 4 * width : end].strip(_DIGITS) for end in ends[1:])


def _numbers(fields: list[bytes]) -> list[float]:
    """Parses numbers. Raises: ValueError: one is not a number, or has Python's underscores, which C does not read."""
    if underscored := [field for field in fields if b"_" in field]:
        raise ValueError(f"could not convert string to float: {underscored[0]!r}")
    return [float(field) for field in fields]


def _read_text(source: Path, body: bytes, count: int, width: int) -> tuple[list[str], np.ndarray]:
    lines = body.removesuffix(b"\n").split(b"\n")
    if len(lines) != count:
        raise UserError(f"{source}, line 1: {count} words announced, but {len(lines)} lines follow; give a complete file")
    return parse_lines(source, lines, width, first_line=2, spaces=False)


def _binary_ends(body: bytes, count: int, width: int) -> list[int]:
    """0 and the end of each word's vector, up to the last complete one."""
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
    read_as = f"it was read as binary, because line 2 is not a word and {width} numbers"
    if len(ends) <= count:
        raise UserError(f"{source} ends within word {len(ends)} of {count}; give a complete file ({read_as})")
    if body[ends[-1] :].strip(b"\n"):
        raise UserError(f"{source} continues after the {count} words of line 1; give an undamaged file ({read_as})")
    words, vectors = [], np.empty((count, width), np.float32)
    for i in range(count):
        start, numbers = ends[i], ends[i + 1] - 4 * width
        words.append(decoded(source, body[start : numbers - 1].lstrip(b"\n"), f"word {i + 1}"))
        vectors[i] = np.frombuffer(body, "<f4", width, numbers)
    return words, vectors


def parse_lines(source: Path, lines: list[bytes], width: int, first_line: int, spaces: bool) -> tuple[list[str], np.ndarray]:
    """Words and vectors of text lines: the word is everything before the last `width` fields.

    Args:
        source: for messages.
        lines: without line ends.
        width: D.
        first_line: number of the first line in the file.
        spaces: whether words may contain spaces.

    Raises:
        UserError: names the line.
    """
    for i, line in enumerate(lines):  # before there is room for so many vectors of this width
        found = line.rstrip(b"\r ").count(b" ")
        if found < width or (found > width and not spaces):
            raise UserError(
                f"{source}, line {first_line + i}: expected a word and {width} numbers, found {found} after the first field"
            )
    words, vectors = [], np.empty((len(lines), width), np.float32)
    for i, line in enumerate(lines):
        where = f"{source}, line {first_line + i}"
        fields = line.rstrip(b"\r ").split(b" ")
        word = b" ".join(fields[:-width])
        try:
            with np.errstate(over="ignore"):  # `imported` names the word
                vectors[i] = _numbers(fields[-width:])
        except ValueError as error:
            raise UserError(f"{where}: {error}; expected a word and {width} numbers") from None
        words.append(decoded(source, word, f"line {first_line + i}"))
    return words, vectors


def decoded(source: Path, word: bytes, where: str) -> str:
    """A word's text. Raises: UserError: it is not UTF-8, is empty, or contains a line feed."""
    try:
        text = word.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{source}, {where}: {word!r} is not UTF-8; convert the file first") from None
    if not text:
        raise UserError(f"{source}, {where}: expected a word before the numbers")
    if "\n" in text:
        raise UserError(f"{source}, {where}: {text!r} contains a line feed; remove it")
    return text


def imported(source: Path, words: list[str], vectors: np.ndarray) -> Imported:
    """A static model with these vectors, and zeros for the special pieces and the output matrix.

    Raises:
        UserError: a word occurs twice or is a special piece's name, or its vector is not finite.
    """
    seen = set(SPECIALS)
    for word in words:
        if word in seen:
            what = "is the name of a special piece" if word in SPECIALS else "occurs twice"
            raise UserError(f"{source}: the word {word!r} {what}; remove it")
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
    """The words of a static run without the special pieces, and their vectors [V, D]; raises as `piece_vectors`."""
    pieces, vectors = run.tokenizer.pieces(), piece_vectors(run)
    rows = [i for i, piece in enumerate(pieces) if piece not in SPECIALS]
    return [pieces[i] for i in rows], vectors[rows]


def piece_vectors(run: Imported) -> np.ndarray:
    """The vectors [V, D] of all pieces of a static run (`Objective.word_vectors`).

    Raises:
        UserError: the run is of another family.
    """
    if run.config.model.family != "static":
        raise UserError(
            f"this run has config.model.family={run.config.model.family!r}; only 'static' has one vector for each word"
        )
    body = run.params["body"]
    vectors, outputs = (np.asarray(of, np.float32) for of in (body["token_embedding"], body["output"]["kernel"]))
    for name, objective in objectives.build(run.config.objectives).items() if len(run.config.objectives) else ():
        with blamed(name, objective, "word_vectors"):
            vectors = objective.word_vectors(vectors, outputs)
    return vectors
