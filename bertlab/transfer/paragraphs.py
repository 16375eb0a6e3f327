"""Paragraph vectors (Le and Mikolov 2014): a text's vector is the one that best predicts the words of the text.

This is the inference of PV-DBOW (sections 2.3 and 2.4): the words' parameters stay as they are, and gradient descent finds the
vector of a new text. The parameters are those of a run of skip_gram or cbow, and the loss is its negative sampling, as in
gensim's Doc2Vec with dm=0. In Doc2Vec, texts of the training data have vectors that also change the words' parameters; here
word prediction alone has trained them. PV-DM, where context words and the text's vector predict together, is not here.

Letters: B texts, L length of a row, k negatives, D width.
"""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict

from bertlab.data.prepare import prepare
from bertlab.data.tokenizers import Tokenizer
from bertlab.errors import UserError
from bertlab.models.base import View
from bertlab.objectives.base import Objective, Vocabulary
from bertlab.objectives.program import Program
from bertlab.objectives.word_vectors import draw_words
from bertlab.train.checks import vocabulary_of

EPOCHS, RATES = 50, (0.025, 1e-4)
"""Passes over a text, and the first and last learning rate; the rates are gensim's."""


def drawing(trained: Mapping[str, Objective], vocabulary: Vocabulary) -> str:
    """The name of the trained objective that draws words, with whose output matrix a paragraph vector predicts them.

    Raises:
        UserError: there is none.
    """
    counted = dataclasses.replace(vocabulary, counts=(1,) * vocabulary.size)  # any will do: the real ones need the text
    for name, objective in trained.items():
        if objective.word_draws(counted):
            return name
    raise UserError(
        "pooling='paragraph' predicts words by negative sampling, so it needs a run of skip_gram or cbow; choose another"
    )


def counted_vocabulary(tokenizer: Tokenizer, data: ConfigDict) -> Vocabulary:
    """The vocabulary with the counts of a run's training text, which is prepared again if it is not in the cache.

    Raises:
        UserError: the text is not there, or is another one.
    """
    prepared = prepare(data)
    if prepared.tokenizer.pieces() != tokenizer.pieces():
        raise UserError(
            f"pooling='paragraph' counts the words of the run's training text, but {data.corpus} now gives another vocabulary"
            " than the run's; restore the text"
        )
    return vocabulary_of(tokenizer, prepared.counts)


def paragraph_vectors(
    program: Program, name: str, vocabulary: Vocabulary, params, given: tuple[View, Int[Array, ""]]
) -> Float[Array, "B D"]:
    """PV-DBOW's vector of each row; it begins at zero, so a row without known words keeps zeros.

    Draws depend on the seed, the epoch and the position alone, so neither other rows nor padding change a text's vector.

    Args:
        program: of a static model.
        name: the objective, as `drawing` gives it.
        vocabulary: with the counts of the training text.
        params: the program's.
        given: int32 [B, L] `tokens` and `documents` (0: padding); and the seed of the negatives and of the frequent words that
            are left out in each epoch.
    """
    view, seed = given
    draws, body = program.objectives[name].word_draws(vocabulary), {"params": program.plain(params)["body"]}
    tokens = view["tokens"]
    is_word = (view["documents"] > 0) & jnp.asarray(draws.weights > 0)[tokens]
    chance = draws.keep[tokens]

    def loss(vectors, words, kept, drawn):
        drawn = jnp.broadcast_to(drawn, (len(words), draws.number))
        candidates = jnp.concatenate([words[:, None], drawn], axis=1)
        logits = program.body.apply(body, vectors, "both", candidates, method="predict_tokens")
        wrong = jnp.where(drawn != words[:, None], jax.nn.log_sigmoid(-logits[:, 1:]), 0.0).sum(1)
        return -jnp.where(kept, jax.nn.log_sigmoid(logits[:, 0]) + wrong, 0.0).sum()

    def read(key, rate):
        """Takes one step for each word of a text, from first to last."""

        def step(vectors, position):
            keep_key, negative_key = jax.random.split(jax.random.fold_in(key, position))
            words, likely = tokens[:, position], chance[:, position]
            kept = is_word[:, position] & (jax.random.uniform(keep_key) < likely)
            drawn = draw_words(negative_key, draws.weights, (draws.number,))
            return vectors - rate * jax.grad(loss)(vectors, words, kept, drawn), None

        return step

    def epoch(vectors, inputs):
        return jax.lax.scan(read(*inputs), vectors, jnp.arange(tokens.shape[1]))[0], None

    keys = jax.random.split(jax.random.key(seed), EPOCHS)
    start = jnp.zeros((len(tokens), program.body.config.width), jnp.float32)
    return jax.lax.scan(epoch, start, (keys, jnp.linspace(*RATES, EPOCHS)))[0]
