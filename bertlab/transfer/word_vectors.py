"""Pretrained word vectors in addition to a model's states: a static run's, for a task's words.

A word's vector is the mean of its pieces' vectors in the static run's tokenizer: with a vocabulary
of words, as in imports of word2vec's and GloVe's files, that is one piece. Unknown pieces do not
count. If all are unknown, the word is looked up in lower case, or else gets the vector of
unknown words: zeros after an import, unless GloVe's file has <unk>.
"""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from bertlab.data.tokenizers import Tokenizer, load_tokenizer
from bertlab.errors import UserError
from bertlab.train.checkpoint import load_params
from bertlab.train.run_directory import RunDirectory


class WordVectors(NamedTuple):
    """The vectors of a task's words."""

    ids: dict[str, int]  # each word's row of the table, from 1
    table: Float[np.ndarray, "R E"]  # row 0 is zeros, for no word


NO_VECTORS = WordVectors({}, np.zeros((0, 0), np.float32))


def word_vectors(path: str, words: Iterable[str]) -> WordVectors:
    """The vectors that words have in a static run, trained or imported; prints how many do."""
    run = RunDirectory(Path(path).expanduser())
    config = run.config()
    if config["model"]["family"] != "static":
        raise UserError(
            f"config.head.word_vectors={path} is of family {config['model']['family']!r}; only a"
            " static run has word vectors (bertlab import --from=glove)"
        )
    body = load_params(run)["body"]
    vectors = np.asarray(body["token_embedding"], np.float32)
    if "glove" in config["objectives"]:  # w + w̃ (Pennington et al. 2014, section 4.2)
        vectors = vectors + np.asarray(body["output"]["kernel"], np.float32)
    words, tokenizer = sorted({*words}), load_tokenizer(run.tokenizer)
    pieces = known_pieces(words, tokenizer)
    numbers = {ids: number for number, ids in enumerate(dict.fromkeys(pieces), 1)}
    means = [vectors[list(ids)].mean(axis=0) for ids in numbers]
    table = np.stack([np.zeros(vectors.shape[1], np.float32), *means])
    found = sum(ids != (tokenizer.unk_id,) for ids in pieces)
    print(f"{found} of {len(words)} words have a vector in {run}", flush=True)
    return WordVectors({word: numbers[ids] for word, ids in zip(words, pieces)}, table)


def known_pieces(words: list[str], tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """The known pieces of each word, or of its lower-case form; (unk_id,) if there are none."""

    def encode(words: list[str]) -> list[tuple[int, ...]]:
        # No word is a text's first, which has no space before it.
        ids, starts = tokenizer.encode_words(["", *words])
        bounds = itertools.pairwise([*starts[1:], len(ids)])
        return [tuple(i for i in ids[a:b] if i != tokenizer.unk_id) for a, b in bounds]

    found = encode(words)
    lower = iter(encode([word.lower() for word, ids in zip(words, found) if not ids]))
    return [ids or next(lower) or (tokenizer.unk_id,) for ids in found]
