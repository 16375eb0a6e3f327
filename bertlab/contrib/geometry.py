"""The geometry of a model's vectors: anisotropy and self-similarity by layer, likeness of layers.

    python -m bertlab.contrib.geometry runs/mlm sentences.txt
    python -m bertlab.contrib.geometry runs/mlm sentences.txt --other runs/ltr

prints one line per layer (Ethayarajh 2019), or the debiased CKA of each layer of one model with
each layer of another on the same words (Kornblith et al. 2019). The file has one sentence per line.
In Python: `layer_geometry`, `cka_layers` and the measures, which are functions of arrays.

Checked against SciPy's cosines and CKA's definition by Gram matrices (tests/contrib/test_geometry).

Letters: N words in context, T words of a sentence, D width, a and b layers of two models.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from bertlab.contrib.word_states import word_states
from bertlab.data.corpora.text import read_lines
from bertlab.errors import UserError
from bertlab.evals.similarity import unit
from bertlab.transfer.load import Pretrained, load

Sentences = Sequence[Sequence[str]]


def self_similarity(vectors: Float[np.ndarray, "N D"]) -> float:
    """Mean cosine between the occurrences of one word, over all pairs (Ethayarajh 2019,
    definition 1)."""
    return _mean_cosine(unit(vectors), np.arange(len(vectors)))


def intra_sentence_similarity(vectors: Float[np.ndarray, "T D"]) -> float:
    """Mean cosine of a sentence's words with the mean of their vectors (definition 2)."""
    mean = np.mean(vectors, axis=0, dtype=np.float64, keepdims=True)
    return float(np.mean(unit(vectors) @ unit(mean)[0]))


def anisotropy(
    vectors: Float[np.ndarray, "N D"], sentence: Int[np.ndarray, "N"] | None = None
) -> float:
    """Mean cosine of words of different sentences: 0 if directions are uniform (section 3.4).

    The paper draws pairs; this is the mean over all pairs, Σ_{i≠j} cos = ‖Σ u‖² − Σ ‖u‖² of unit
    vectors u.

    Args:
        vectors: The vectors of any words.
        sentence: Each word's sentence; None: every word is in its own.
    """
    sentence = np.arange(len(vectors)) if sentence is None else np.asarray(sentence)
    return _mean_cosine(unit(vectors), sentence)


def _mean_cosine(units: Float[np.ndarray, "N D"], group: Int[np.ndarray, "N"]) -> float:
    """Mean product of pairs of different groups.

    Raises:
        UserError: There is only one group.
    """
    _, group, counts = np.unique(group, return_inverse=True, return_counts=True)
    if len(counts) < 2:
        raise UserError("cosines are means over pairs; give at least two words or sentences")
    sums = np.zeros((len(counts), units.shape[1]))
    np.add.at(sums, group, units)
    total = np.sum(sums.sum(0) ** 2) - np.sum(sums**2)
    return float(total / (len(units) ** 2 - np.sum(counts**2)))


def in_context(
    model: Pretrained, sentences: Sentences, max_words: int, seed: int
) -> tuple[list[str], Int[np.ndarray, "N"], list[Float[np.ndarray, "N D"]]]:
    """(Words, their sentences' numbers, their vectors layer by layer) of a sample of whole
    sentences."""
    tagged = [(words, [True] * len(words)) for words in sentences]
    words, _, group, states = word_states(model, tagged, max_words, seed)
    widths = model.embed([words[:1]], pretokenized=True)[0].widths
    return words, group, [layer[:, :width] for layer, width in zip(states, widths)]


def layer_geometry(
    model: Pretrained, sentences: Sentences, least: int = 5, max_words: int = 10_000, seed: int = 0
) -> pd.DataFrame:
    """Contextuality by layer over a sample of sentences (Ethayarajh 2019, sections 3 and 4).

    Args:
        model: From `bertlab.load`.
        sentences: Lists of words; words are compared exactly as written.
        least: A word counts if it occurs in at least this many sentences (the paper: 5).
        max_words, seed: Size and seed of the sample.

    Returns:
        By `layer`: `anisotropy`; `self_similarity`, a mean over words;
        `intra_sentence_similarity`, a mean over sentences of two words or more; both `_adjusted`,
        minus the layer's anisotropy, as in a narrow cone all words are similar; and the numbers of
        `words`, `sentences` and `tokens`.

    Raises:
        UserError: No word occurs in that many sentences.
    """
    names, sentence, layers = in_context(model, sentences, max_words, seed)
    at: dict[str, list[int]] = {}
    for number, word in enumerate(names):
        at.setdefault(word, []).append(number)
    frequent = [rows for rows in at.values() if len(np.unique(sentence[rows])) >= max(2, least)]
    if not frequent:
        number = len(np.unique(sentence))
        raise UserError(f"no word occurs in {least} of the {number} sentences; lower `least`")
    several = [np.flatnonzero(sentence == number) for number in np.unique(sentence)]
    several = [rows for rows in several if len(rows) > 1]
    table = []
    for vectors in layers:
        cone = anisotropy(vectors, sentence)
        within_word = float(np.mean([self_similarity(vectors[rows]) for rows in frequent]))
        within = float(np.mean([intra_sentence_similarity(vectors[rows]) for rows in several]))
        table.append(
            {
                "anisotropy": cone,
                "self_similarity": within_word,
                "self_similarity_adjusted": within_word - cone,
                "intra_sentence_similarity": within,
                "intra_sentence_similarity_adjusted": within - cone,
                "words": len(frequent),
                "sentences": len(several),
                "tokens": len(sentence),
            }
        )
    return pd.DataFrame(table).rename_axis("layer")


def cka(x: Float[np.ndarray, "N a"], y: Float[np.ndarray, "N b"], debiased: bool = False) -> float:
    """Linear centred kernel alignment of two representations of the same N words (Kornblith et al.
    2019, section 3).

    ‖YᵀX‖² / (‖XᵀX‖ ‖YᵀY‖) in Frobenius norms, features centred, from 0 to 1. With few words
    for the width, it is far above 0 even for unrelated vectors; the debiased form is not.

    Args:
        x, y: Rows of the same words.
        debiased: With the unbiased HSIC estimator (Song et al. 2012; Nguyen et al. 2021, section
            2), which can be below 0.
    """
    return float(_cka_table([x], [y], debiased)[0, 0])


def _cka_table(xs, ys, debiased: bool) -> Float[np.ndarray, "a b"]:
    """CKA of every x with every y."""
    xs, ys = ([x - np.mean(x, axis=0, dtype=np.float64) for x in group] for group in (xs, ys))
    if len(xs[0]) != len(ys[0]):
        raise UserError(f"CKA compares the same words: got {len(xs[0])} and {len(ys[0])} rows")
    own = [np.array([_product(x, x, debiased) for x in group]) for group in (xs, ys)]
    table = np.array([[_product(x, y, debiased) for y in ys] for x in xs])
    return table / np.sqrt(np.outer(*own))


def _product(x: Float[np.ndarray, "N a"], y: Float[np.ndarray, "N b"], debiased: bool) -> float:
    """HSIC of centred features, up to a factor that depends only on N."""
    total = float(np.sum((y.T @ x) ** 2))
    if not debiased:
        return total
    count, x_squares, y_squares = len(x), np.sum(x**2, axis=1), np.sum(y**2, axis=1)
    total -= float(count / (count - 2) * (x_squares @ y_squares))
    return total + float(x_squares.sum() * y_squares.sum() / ((count - 1) * (count - 2)))


def cka_layers(
    model_a: Pretrained,
    model_b: Pretrained,
    sentences: Sentences,
    max_words: int = 4000,
    debiased: bool = False,
    seed: int = 0,
) -> Float[np.ndarray, "a b"]:
    """CKA of every layer of one model with every layer of another, on the same words.

    Args:
        model_a, model_b: From `bertlab.load`; tokenizers may differ.
        sentences: Lists of words.
        max_words, seed: Size and seed of the sample.
        debiased: As for `cka`.
    """
    sides = [in_context(model, sentences, max_words, seed)[2] for model in (model_a, model_b)]
    return _cka_table(*sides, debiased)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="directory of a run or an import")
    parser.add_argument("text", type=Path, help="a file with one sentence per line")
    parser.add_argument("--other", help="compare with the layers of this run")
    given = parser.parse_args(arguments)
    sentences = [words for _, line in read_lines(given.text) if (words := line.split())]
    model = load(given.run)
    if given.other:
        table = cka_layers(model, load(given.other), sentences, debiased=True)
        print(pd.DataFrame(table).round(3).to_string())
    else:
        print(layer_geometry(model, sentences).round(3).T.to_string())


if __name__ == "__main__":
    main()
