"""Word vectors in the text format of stanfordnlp/GloVe: a word and its numbers in each line, and no header.

A published file has words with spaces in them ("at name@domain.com"): the width is the first line's, and what comes
before the last `width` fields of a line is its word. The vector of <unk>, with which GloVe's own program ends a file, is
that of unknown words.
"""

from pathlib import Path

from bertlab.errors import UserError
from bertlab.interop.base import Imported
from bertlab.interop.word2vec import (
    VECTORS,
    imported,
    open_file,
    parse_lines,
    read_file,
    refuse_white_space,
    text_lines,
    word_vectors,
)

_UNKNOWN = "<unk>"


def load(source: str | Path) -> Imported:
    """Reads a text file, plain or .gz, as `bertlab.interop.word2vec.load` does.

    Raises:
        UserError: the file is not whole, or names a word twice; the line or the word is given.
    """
    source = Path(source)
    lines = read_file(source).removesuffix(b"\n").split(b"\n")
    width = len(lines[0].rstrip(b"\r ").split(b" ")) - 1
    if width < 1 or (width == 1 and lines[0].split(b" ")[0].isdigit()):
        raise UserError(
            f"{source}, line 1: expected a word and numbers, not {lines[0][:60]!r}; a file that begins with two sizes is"
            " --from=word2vec"
        )
    words, vectors = parse_lines(source, lines, width, first_line=1, spaces=True)
    model = imported(source, words, vectors)
    if _UNKNOWN in words:
        model.params["body"]["token_embedding"][model.tokenizer.unk_id] = vectors[words.index(_UNKNOWN)]
    return model


def save(run: Imported, target: str | Path) -> None:
    """Writes a run's word vectors without the special pieces: w + w̃ of a run that GloVe trained, else w.

    Args:
        run: of family static.
        target: a directory, in which vectors.txt is made, or a file.

    Raises:
        UserError: the run is not static, or a word has white space in it.
    """
    words, vectors = word_vectors(run)
    target = Path(target)
    target = target / VECTORS if target.is_dir() else target
    refuse_white_space(words, target)
    with open_file(target, "wb") as file:
        file.writelines(text_lines(words, vectors))
