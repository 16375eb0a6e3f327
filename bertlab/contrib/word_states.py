"""Contextual states of the words of a sample of sentences."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertlab.transfer.load import Pretrained

Tagged = Sequence[tuple[Sequence[str], Sequence[Any]]]
"""Sentences as (words, tags); a word whose tag is None is only context."""


def word_states(model: Pretrained, sentences: Tagged, max_words: int, seed: int):
    """(words, tags, number of the sentence, [n, N, D] states) of the tagged words of a sample."""
    order = np.random.default_rng(seed).permutation(len(sentences))
    sizes = np.cumsum([len(sentences[number][0]) for number in order])
    chosen = [sentences[number] for number in order[sizes <= max_words] if sentences[number][0]]
    embeddings = model.embed([list(words) for words, _ in chosen], pretokenized=True)
    states = np.concatenate([embedding.states for embedding in embeddings], axis=1)
    items = [
        (word, tag, number)
        for number, sentence in enumerate(chosen)
        for word, tag in zip(*sentence, strict=True)
    ]
    tagged = [at for at, (_, tag, _) in enumerate(items) if tag is not None]
    words, tags, groups = zip(*(items[at] for at in tagged))
    return list(words), list(tags), np.array(groups), states[:, tagged]
