"""The geometry of a model's vectors: self-similarity and anisotropy by layer, and similarity of layers and runs.

The measures are functions of arrays, in float64; `layer_geometry` and `cka_layers` take models and sentences of words.

Letters: N words in context, T words of a sentence, D width, a and b two models' layers.
"""

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from bertlab.errors import UserError
from bertlab.transfer.inspect import Sentences, in_context
from bertlab.transfer.load import Pretrained


def self_similarity(vectors: Float[np.ndarray, "N D"]) -> float:
    """Mean cosine between the occurrences of one word, over all pairs (Ethayarajh 2019, definition 1).

    Raises:
        UserError: the word occurs fewer than two times.
    """
    if len(vectors) < 2:
        raise UserError(f"self-similarity compares occurrences of a word; give at least two, not {len(vectors)}")
    return _mean_cosine(unit(vectors), np.arange(len(vectors)))


def intra_sentence_similarity(vectors: Float[np.ndarray, "T D"]) -> float:
    """Mean cosine of a sentence's words with the mean of their vectors (Ethayarajh 2019, definition 2).

    Raises:
        UserError: the sentence is empty.
    """
    if not len(vectors):
        raise UserError("a sentence without words has no intra-sentence similarity; remove it")
    mean = np.mean(vectors, axis=0, dtype=np.float64, keepdims=True)
    return float(np.mean(unit(vectors) @ unit(mean)[0]))


def anisotropy(vectors: Float[np.ndarray, "N D"], sentence: Int[np.ndarray, "N"] | None = None) -> float:
    """Mean cosine of words in different contexts: 0 in expectation if directions are uniform (Ethayarajh 2019, section 3.4).

    The paper draws pairs at random. This is the mean over all pairs: Σ_{i≠j} cos = ‖Σ u‖² − Σ ‖u‖² of unit vectors u.

    Args:
        vectors: of any words.
        sentence: each vector's sentence; only pairs from different sentences count. None: every pair.

    Raises:
        UserError: no two words are in different sentences.
    """
    sentence = np.arange(len(vectors)) if sentence is None else np.asarray(sentence)
    if len(np.unique(sentence)) < 2:
        raise UserError("anisotropy compares words of different sentences; give at least two sentences")
    return _mean_cosine(unit(vectors), sentence)


def unit(vectors) -> Float[np.ndarray, "N D"]:
    """In float64, of length 1; a vector of zeros stays, and has cosine 0 with everything."""
    vectors = np.asarray(vectors, np.float64)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)


def _mean_cosine(units: Float[np.ndarray, "N D"], group: Int[np.ndarray, "N"]) -> float:
    """Mean product of pairs of different groups."""
    _, group, counts = np.unique(group, return_inverse=True, return_counts=True)
    sums = np.zeros((len(counts), units.shape[1]))
    np.add.at(sums, group, units)
    return float((np.sum(sums.sum(0) ** 2) - np.sum(sums**2)) / (len(units) ** 2 - np.sum(counts**2)))


def layer_geometry(
    model: Pretrained, sentences: Sentences, least: int = 5, max_words: int = 10_000, seed: int = 0
) -> pd.DataFrame:
    """Contextuality by layer over a sample of sentences (Ethayarajh 2019, sections 3 and 4).

    `self_similarity` is a mean over words, `intra_sentence_similarity` a mean over sentences of two words or more. The adjusted
    values subtract the layer's anisotropy, because in a narrow cone all words are similar.

    Args:
        model: from `bertlab.load`.
        sentences: lists of words; words are compared exactly as written.
        least: a word counts if it occurs in at least so many sampled sentences (the paper: 5).
        max_words, seed: of the sample, as for `in_context`.

    Returns:
        A table by `layer`: `anisotropy`, `self_similarity`, `self_similarity_adjusted`, `intra_sentence_similarity`,
        `intra_sentence_similarity_adjusted`, and the numbers of `words`, `sentences` and `tokens`.

    Raises:
        UserError: no word occurs in so many sentences; otherwise as for `in_context`.
    """
    if least < 2:
        raise UserError(f"least={least}: occurrences are compared with each other; set it to at least 2")
    layers = in_context(model, sentences, "all", max_words, seed)
    sentence = layers[0].sentence
    places: dict[str, list[int]] = {}
    for number, word in enumerate(layers[0].words):
        places.setdefault(word, []).append(number)
    frequent = [of_word for of_word in places.values() if len(np.unique(sentence[of_word])) >= least]
    if not frequent:
        raise UserError(f"no word occurs in {least} of the {len(np.unique(sentence))} sentences; give more or lower `least`")
    several = [np.flatnonzero(sentence == number) for number in np.unique(sentence)]
    several = [of_sentence for of_sentence in several if len(of_sentence) > 1]
    if not several:
        raise UserError("every sentence has one word; give sentences with at least two words")
    rows = {}
    for layer in layers:
        cone = anisotropy(layer.vectors, sentence)
        of_words = float(np.mean([self_similarity(layer.vectors[of_word]) for of_word in frequent]))
        of_sentences = float(np.mean([intra_sentence_similarity(layer.vectors[places]) for places in several]))
        rows[layer.layer] = {
            "anisotropy": cone,
            "self_similarity": of_words,
            "self_similarity_adjusted": of_words - cone,
            "intra_sentence_similarity": of_sentences,
            "intra_sentence_similarity_adjusted": of_sentences - cone,
            "words": len(frequent),
            "sentences": len(several),
            "tokens": len(sentence),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("layer")


def cka(x: Float[np.ndarray, "N a"], y: Float[np.ndarray, "N b"], debiased: bool = False) -> float:
    """Linear centred kernel alignment of two representations of the same N words (Kornblith et al. 2019, section 3).

    ‖YᵀX‖² / (‖XᵀX‖ ‖YᵀY‖) in Frobenius norms, features centred: the normalised HSIC of the Gram matrices, from 0 to 1.
    Rotating the features or multiplying them by a common factor does not change it. If the words are few for the width, it is
    far above 0 even for unrelated vectors; the debiased form is not.

    Args:
        x, y: rows of the same words.
        debiased: with the unbiased HSIC estimator (Song et al. 2012; Nguyen et al. 2021, section 2), which can be below 0.

    Raises:
        UserError: the rows differ in number or are too few, or a representation is the same for all words.
    """
    return float(_cka_table([x], [y], debiased)[0, 0])


def _cka_table(xs, ys, debiased: bool) -> Float[np.ndarray, "a b"]:
    """CKA of every x with every y."""
    xs, ys = ([np.asarray(x, np.float64) - np.mean(x, axis=0, dtype=np.float64) for x in group] for group in (xs, ys))
    least = 4 if debiased else 2
    if len(xs[0]) != len(ys[0]) or len(xs[0]) < least:
        raise UserError(
            f"CKA compares the same words: got {len(xs[0])} and {len(ys[0])} rows; give the same number, {least} or more"
        )
    own = [np.array([_product(x, x, debiased) for x in group]) for group in (xs, ys)]
    if min(map(np.min, own)) <= 0:
        raise UserError("a representation is the same for all words, so CKA is undefined; omit that layer")
    table = np.array([[_product(x, y, debiased) for y in ys] for x in xs])
    return table / np.sqrt(np.outer(*own))


def _product(x: Float[np.ndarray, "N a"], y: Float[np.ndarray, "N b"], debiased: bool) -> float:
    """HSIC of centred features, up to a factor that depends only on N."""
    total = float(np.sum((y.T @ x) ** 2))
    if not debiased:
        return total
    count, of_x, of_y = len(x), np.sum(x**2, axis=1), np.sum(y**2, axis=1)
    total -= float(count / (count - 2) * (of_x @ of_y))
    return total + float(of_x.sum() * of_y.sum() / ((count - 1) * (count - 2)))


def cka_layers(
    model_a: Pretrained,
    model_b: Pretrained,
    sentences: Sentences,
    max_words: int = 4000,
    debiased: bool = False,
    seed: int = 0,
) -> Float[np.ndarray, "a b"]:
    """CKA of every layer of one model with every layer of another (or the same) model, on the same words.

    Args:
        model_a, model_b: from `bertlab.load`; tokenizers may differ.
        sentences: lists of words.
        max_words, seed: of the sample, as for `in_context`.
        debiased: as for `cka`.

    Raises:
        UserError: as for `in_context` and `cka`.
    """
    layers = ([layer.vectors for layer in in_context(model, sentences, "all", max_words, seed)] for model in (model_a, model_b))
    return _cka_table(*layers, debiased)
