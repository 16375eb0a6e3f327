"""Word vectors in the text format of stanfordnlp/GloVe: a word and its numbers in each line, and no header.

Words in published files may contain spaces ("at name@domain.com"): the first line sets the width, and the word is everything
before a line's last `width` fields. GloVe's own program ends a file with the vector of <unk>, used for unknown words.
"""

from pathlib import Path

from bertlab.errors import UserError
from bertlab.interop.base import Imported
from bertlab.interop.word2vec import imported, parse_lines, read_file, write_vectors

_UNKNOWN = "<unk>"


def load(source: str | Path) -> Imported:
    """Reads a text file, plain or .gz, as `bertlab.interop.word2vec.load` does.

    Raises:
        UserError: the file is damaged, or a word occurs twice; names the line or the word.
    """
    source = Path(source)
    lines = read_file(source).removesuffix(b"\n").split(b"\n")
    width = len(lines[0].rstrip(b"\r ").split(b" ")) - 1
    if width < 1 or (width == 1 and lines[0].split(b" ")[0].isdigit()):
        raise UserError(
            f"{source}, line 1: expected a word and numbers, found {lines[0][:60]!r}; if the file begins with two sizes, set"
            " --from=word2vec"
        )
    words, vectors = parse_lines(source, lines, width, first_line=1, spaces=True)
    model = imported(source, words, vectors)
    if _UNKNOWN in words:
        model.params["body"]["token_embedding"][model.tokenizer.unk_id] = vectors[words.index(_UNKNOWN)]
    return model


def save(run: Imported, target: str | Path) -> None:
    """Writes a run's word vectors without the special pieces: w + w̃ if GloVe trained them, otherwise w.

    Args:
        run: of family static.
        target: a directory, for a new file vectors.txt, or a file.

    Raises:
        UserError: the run is not static, or a word contains white space.
    """
    write_vectors(run, Path(target), header=False)
