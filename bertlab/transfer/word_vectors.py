"""Pretrained word vectors beside a model's states: vectors of a static run for the words of a task.

A word's vector is the mean of the vectors of its pieces in the static run's tokenizer: in a vocabulary of words, as imported
from word2vec's and GloVe's files, a known word is one piece. Unknown pieces do not count. If all pieces of a word are unknown,
the word is looked up in lower case; if they are still unknown, it has the run's vector of unknown words ([UNK]): zeros after an
import, unless GloVe's file has <unk>. Words of the same pieces share a row of the table, and so do unknown words.

Letters: R rows of the table, E width of the vectors, V pieces of the static run.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float

from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.errors import UserError
from bertlab.interop.base import load_run
from bertlab.interop.word2vec import piece_vectors
from bertlab.run import Run


@dataclasses.dataclass(frozen=True)
class WordVectors:
    """The vectors that a task's words have.

    Attributes:
        run: the static run's directory.
        width: E.
        rows: each word's row of the table, from 1; row 0 is zeros, for where there is no word.
        pieces: by row from 1, the ids whose mean it is.
        known: how many of the words have a known piece.
    """

    run: Path
    width: int
    rows: Mapping[str, int]
    pieces: tuple[tuple[int, ...], ...]
    known: int

    def table(self) -> Float[np.ndarray, "R E"]:
        """The table; reads the run's parameters. A GloVe run has w + w̃, as `bertlab export` writes them."""
        vectors = piece_vectors(load_run(self.run))
        means = [vectors[list(ids)].mean(axis=0) for ids in self.pieces]
        return np.stack([np.zeros(self.width, np.float32), *means]).astype(np.float32)


def find_vectors(run: str, words: Iterable[str]) -> WordVectors:
    """The rows of a static run that these words have, without reading its parameters.

    Raises:
        UserError: `run` is not the directory of a static run.
    """
    path = Path(run).expanduser()
    if path.is_file():
        raise UserError(
            f"word_vectors={run} is a file; make a run of it, with bertlab import --from=glove (or word2vec) {run}"
            " --workdir=DIR, and name DIR"
        )
    if not Run(path).config.exists():
        raise UserError(f"word_vectors={run} is no run; name the directory of a static run, trained or imported")
    model = Run(path).model_config()["model"]
    if model["family"] != "static":
        raise UserError(f"word_vectors={run} is a run of family '{model['family']}'; only 'static' has a vector for each word")
    if not Run(path).steps():
        raise UserError(f"word_vectors={run} has no checkpoint yet; train it, or import it again")
    if Run(path).is_half_trained():
        raise UserError(f"word_vectors={run} is not finished, so its vectors still change; let it train to its end first")
    words, tokenizer = sorted({*words}), load_tokenizer(Run(path).tokenizer)
    found = _pieces(words, tokenizer)
    numbers = {ids: number for number, ids in enumerate(dict.fromkeys(found), 1)}
    rows = {word: numbers[ids] for word, ids in zip(words, found)}
    return WordVectors(path, model["width"], rows, tuple(numbers), sum(ids != (tokenizer.unk_id,) for ids in found))


def _pieces(words: list[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """The known pieces of each word, or of it in lower case; (unk_id,) if there are none."""

    def known(words: list[str]) -> list[tuple[int, ...]]:
        ids, starts = tokenizer.encode_words(["", *words])  # so that none is the first of a text, which has no space before it
        bounds = itertools.pairwise([*starts[1:], len(ids)])
        return [tuple(i for i in ids[first:end] if i != tokenizer.unk_id) for first, end in bounds]

    found = known(words)
    lower = iter(known([word.lower() for word, ids in zip(words, found) if not ids]))
    return [ids or next(lower) or (tokenizer.unk_id,) for ids in found]
