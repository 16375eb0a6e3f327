"""The synthetic corpus: a small hidden Markov language with document topics.

A document draws its topic t from `topic_prior`, its number of sentences from `document_lengths`,
those of their words from `sentence_lengths`, the first hidden state from `initial[t]`, every other
from `transition[t, state before]`, across sentence ends, and every word from `emission[its state]`.
So lengths and words are independent, and every stretch of a document has the distribution of its
first words. Exact inference is the forward and backward recursions, once per topic. For one token
per word use `tokenizer.kind=words` and 5 more than `synthetic.vocab_size`.
"""

import itertools
import json
from bisect import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bertlab.data.corpora.text import digest
from bertlab.data.documents import Document

# Raise it with every change that alters the text.
_VERSION = 1
_LANGUAGE_STREAM, _DOCUMENT_STREAM = 0, 1


@dataclass(frozen=True, eq=False)
class Language:
    """Every probability of the language (float64), for T topics, S states and V words."""

    topic_prior: np.ndarray  # [T], P(topic), drawn once per document
    initial: np.ndarray  # [T, S], P(first state | topic), the stationary distribution
    transition: np.ndarray  # [T, S, S], P(next state | topic, state)
    emission: np.ndarray  # [S, V], P(word | state), the same for all topics
    sentence_lengths: np.ndarray  # [N], P(a sentence has n words) at n - 1
    document_lengths: np.ndarray  # [M], P(a document has m sentences) at m - 1

    @property
    def words(self) -> list[str]:
        """The V words as text."""
        return [f"w{index}" for index in range(self.emission.shape[1])]


class Sample(NamedTuple):
    """A document of N sentences and W words, and the hidden variables it was made from."""

    topic: int
    sentence_lengths: np.ndarray  # int64 [N]
    states: np.ndarray  # int64 [W]
    words: np.ndarray  # int64 [W], numbers of words


def language(
    vocab_size=64, topics=4, states=8, seed=0, sentence_words=(4, 12), document_sentences=(4, 40)
) -> Language:
    """Makes a language from a seed; topics are equally likely and lengths uniform.

    A row of `emission` is u^24 for uniform u, scaled to sum to 0.95, plus 0.05 / V: a state has a
    few words of its own, and sometimes any other. Rows of `transition` are made in the same way.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(_LANGUAGE_STREAM,))
    rng = np.random.default_rng(sequence)
    emission = _peaked_rows(rng, (states, vocab_size))
    transition = _peaked_rows(rng, (topics, states, states))
    # p · (I - transition) = 0 has one equation too many; adding p · 1 = 1 to each of them leaves
    # one solution.
    equations = np.eye(states) - np.swapaxes(transition, -1, -2) + 1
    return Language(
        topic_prior=np.full(topics, 1 / topics),
        initial=np.linalg.solve(equations, np.ones((topics, states, 1)))[..., 0],
        transition=transition,
        emission=emission,
        sentence_lengths=_uniform_lengths(*sentence_words),
        document_lengths=_uniform_lengths(*document_sentences),
    )


def sample_document(model: Language, rng: np.random.Generator) -> Sample:
    """Draws one document from exactly the language's distribution."""
    topic = _draw(model.topic_prior, rng.random())
    sentences = 1 + _draw(model.document_lengths, rng.random())
    lengths = 1 + _draw(model.sentence_lengths, rng.random(sentences))
    size = int(lengths.sum())
    rows = _cumulative(model.transition[topic]).tolist()
    row = _cumulative(model.initial[topic]).tolist()
    states = np.empty(size, np.int64)
    for i, uniform in enumerate(rng.random(size).tolist()):
        states[i] = bisect(row, uniform)
        row = rows[states[i]]
    words = (_cumulative(model.emission)[states] <= rng.random(size)[:, None]).sum(axis=1)
    return Sample(int(topic), lengths, states, words)


class SyntheticCorpus:
    """Documents of the language; each depends only on the options of `language`, whose seed is the
    text's too, and its number."""

    def __init__(self, documents: int = 2000, **options):
        self.language = language(**options)
        self._documents, self._seed = documents, options.get("seed", 0)
        self._options = {"version": _VERSION, "documents": documents, **options}

    def fingerprint(self) -> str:
        return digest(json.dumps(self._options, sort_keys=True))

    def sample(self, index: int) -> Sample:
        """Document `index` with its hidden variables."""
        sequence = np.random.SeedSequence(self._seed, spawn_key=(_DOCUMENT_STREAM, index))
        return sample_document(self.language, np.random.default_rng(sequence))

    def documents(self) -> Iterator[Document]:
        vocabulary = self.language.words
        for index in range(self._documents):
            sample = self.sample(index)
            words = iter(sample.words)
            parts = [
                "".join(f" {vocabulary[word]}" for word in itertools.islice(words, length))
                for length in sample.sentence_lengths
            ]
            yield Document(f"synthetic:{index}", (parts[0][1:], *parts[1:]))


def _peaked_rows(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    # Only `random` is used: NumPy promises no stable stream for its other distributions.
    weights = rng.random(shape) ** 24
    return 0.95 * weights / weights.sum(axis=-1, keepdims=True) + 0.05 / shape[-1]


def _uniform_lengths(shortest: int, longest: int) -> np.ndarray:
    return (np.arange(1, longest + 1) >= shortest) / (longest - shortest + 1)


def _cumulative(probabilities: np.ndarray) -> np.ndarray:
    """Cumulative sums that end in exactly 1, above every uniform number."""
    sums = np.cumsum(probabilities, axis=-1)
    sums[..., -1] = 1
    return sums


def _draw(probabilities: np.ndarray, uniform):
    """Index of each uniform number among the cumulative sums."""
    return np.searchsorted(_cumulative(probabilities), uniform, side="right")
