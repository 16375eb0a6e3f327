"""Looking inside a model: words in context, and their nearest neighbours.

Sentences are lists of words, so models with different tokenizers see the same words. `bertlab.transfer.probes` tests what
layers know; `bertlab.transfer.geometry` measures how their vectors are distributed.

Letters: N words in context, Q queries, S sentences, D width.
"""

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int
from sklearn.neighbors import NearestNeighbors

from bertlab.errors import UserError
from bertlab.transfer.load import Pretrained

Sentences = Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True)
class InContext:
    """Words in context, with one vector each.

    Attributes:
        vectors: float32 [N, D].
        sentence: int [N], the number of each word's sentence in `sentences`.
        position: int [N], the word's number in its sentence.
        sentences: lists of words.
        layer: number of the layer; 0 is the embeddings.
    """

    vectors: Float[np.ndarray, "N D"]
    sentence: Int[np.ndarray, "N"]
    position: Int[np.ndarray, "N"]
    sentences: Sentences
    layer: int

    @property
    def words(self) -> list[str]:
        """The N words."""
        return [self.sentences[s][p] for s, p in zip(self.sentence, self.position)]

    def where(self, kept: Bool[np.ndarray, "N"]) -> "InContext":
        """Some of the words."""
        changed = {name: getattr(self, name)[kept] for name in ("vectors", "sentence", "position")}
        return dataclasses.replace(self, **changed)

    def context(self, number: int, around: int = 6) -> str:
        """The number-th word in [brackets] with up to `around` words on each side."""
        words, at = self.sentences[self.sentence[number]], self.position[number]
        before, after = words[max(0, at - around) : at], words[at + 1 : at + 1 + around]
        return " ".join([*before, f"[{words[at]}]", *after])


def in_context(
    model: Pretrained,
    sentences: Sentences,
    layers: str | Sequence[int] = "all",
    max_words: int = 10_000,
    seed: int = 0,
) -> list[InContext]:
    """Vectors of every word of a sample of whole sentences, layer by layer.

    Peak memory is about 8 · layers · max_words · D bytes.

    Args:
        model: from `bertlab.load`.
        sentences: lists of words.
        layers: as for `Pretrained.encode`.
        max_words: the largest number of words in the sample; sentences are drawn without replacement.
        seed: of the sample.

    Returns:
        One `InContext` per layer, all for the same words.

    Raises:
        UserError: the sample has no words, a sentence is a string or too long for the model, or the layer does not exist.
    """
    _check_words(sentences)
    filled = [number for number, words in enumerate(sentences) if len(words)]
    order = np.random.default_rng(seed).permutation(filled).astype(int)
    fits = np.cumsum([len(sentences[number]) for number in order]) <= max_words
    numbers = np.sort(order[fits])
    if not len(numbers):
        raise UserError(f"max_words={max_words} excludes all {len(filled)} sentences with words; raise it, or give sentences")
    return _encoded(model, sentences, numbers, layers)


def occurrences(
    model: Pretrained, sentences: Sentences, word: str, layer: int = -1, most: int = 1000, seed: int = 0
) -> InContext:
    """Vectors of all occurrences of one word.

    Args:
        model: from `bertlab.load`.
        sentences: lists of words.
        word: as written in the sentences, including capitals.
        layer: 0 is the embeddings, −1 the last.
        most: at most so many sentences with the word; if it occurs in more, they are drawn without replacement.
        seed: of the sample.

    Raises:
        UserError: the word does not occur; otherwise as for `in_context`.
    """
    _check_words(sentences)
    containing = [number for number, words in enumerate(sentences) if word in words]
    if not containing:
        others = {other for words in sentences for other in words if other.lower() == word.lower()}
        hint = f"; {sorted(others)[0]!r} does" if others else ""
        raise UserError(f"the word {word!r} does not occur in the {len(sentences)} sentences (case counts){hint}")
    if len(containing) > most:
        containing = np.sort(np.random.default_rng(seed).choice(containing, most, replace=False))
    (found,) = _encoded(model, sentences, np.array(containing), [layer])
    return found.where(np.array([other == word for other in found.words]))


def _check_words(sentences: Sentences) -> None:
    if isinstance(sentences, str) or any(isinstance(words, str) for words in sentences):
        raise UserError("sentences must be lists of words, but one is a string; split it, for example by sentence.split()")


def _encoded(model: Pretrained, sentences: Sentences, numbers: Int[np.ndarray, "S"], layers) -> list[InContext]:
    chosen = [list(sentences[number]) for number in numbers]
    for number, length in zip(numbers, model.lengths(chosen, pretokenized=True)):
        if length > model.longest:
            raise UserError(
                f"sentence {number} has {length} tokens including special ones, but the model has {model.longest} positions;"
                " remove or split it"
            )
    embeddings = model.encode(chosen, layers, pretokenized=True)
    sentence = np.repeat(numbers, [len(words) for words in chosen])
    position = np.concatenate([np.arange(len(words)) for words in chosen])
    return [
        InContext(np.concatenate([e.states[i, :, :width] for e in embeddings]), sentence, position, sentences, layer)
        for i, (layer, width) in enumerate(zip(embeddings[0].layers, embeddings[0].widths))
    ]


def neighbours(
    queries: InContext | Float[np.ndarray, "Q D"], candidates: InContext, k: int = 5, metric: str = "cosine"
) -> pd.DataFrame:
    """The nearest words in context.

    A word is never its own neighbour, and neither is the same word in an identical sentence.

    Args:
        queries: words in context, or vectors.
        candidates: words in context from the same layer.
        k: at most so many neighbours per query.
        metric: "cosine" (similarity) or "euclidean" (distance); the column has the same name.

    Returns:
        Columns `query` (number), `rank` (from 1), the metric, `word`, `sentence`, `position` and `context`.

    Raises:
        UserError: k is below 1, the widths differ, or the metric is unknown.
    """
    vectors = queries.vectors if isinstance(queries, InContext) else np.asarray(queries)
    _check_neighbours(vectors, candidates.vectors, k, metric)
    place = lambda of, number: (tuple(of.sentences[of.sentence[number]]), int(of.position[number]))
    own = [place(queries, q) for q in range(len(vectors))] if isinstance(queries, InContext) else [None] * len(vectors)
    places = [place(candidates, n) for n in range(len(candidates.vectors))]
    equal = max(map(collections.Counter(places).__getitem__, own))
    index = NearestNeighbors(metric=metric, algorithm="brute").fit(candidates.vectors)
    distances, found = index.kneighbors(vectors, min(k + equal, len(places)))
    rows = []
    for query, (of_query, numbers) in enumerate(zip(distances, found)):
        others = [(d, n) for d, n in zip(of_query, numbers) if places[n] != own[query]]
        for rank, (distance, n) in enumerate(others[:k], 1):
            (words, at), value = places[n], float(1 - distance if metric == "cosine" else distance)
            rows.append((query, rank, value, words[at], int(candidates.sentence[n]), at, candidates.context(n)))
    return pd.DataFrame(rows, columns=["query", "rank", metric, "word", "sentence", "position", "context"])


def _check_neighbours(vectors, candidates, k: int, metric: str) -> None:
    if metric not in ("cosine", "euclidean"):
        raise UserError(f"metric={metric!r} is not known; choose cosine or euclidean")
    if k < 1:
        raise UserError(f"k={k}: ask for at least one neighbour")
    if vectors.ndim != 2 or not len(vectors) or vectors.shape[1] != candidates.shape[1]:
        raise UserError(f"queries are {vectors.shape} and candidates {candidates.shape}: expected [N, D] with the same D")
