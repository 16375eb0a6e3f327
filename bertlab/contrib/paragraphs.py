"""Paragraph vectors (Le and Mikolov 2014): a text's vector is the one that best predicts its words.

    python -m bertlab.contrib.paragraphs runs/skip_gram texts.txt vectors.npy

writes a float32 array with one row per line of the file. In Python: `paragraph_vectors`.

This is the inference of PV-DBOW (sections 2.3 and 2.4): the words' parameters do not change, and
gradient descent finds the vector of a new text. The parameters are those of a run of skip_gram or
cbow, and the loss is its negative sampling, as in gensim's Doc2Vec with dm=0. In Doc2Vec, texts of
the training data have vectors that also change the words' parameters; here only word prediction
has trained them. PV-DM is not here.

Checked against gensim's inference on the same output matrix (tests/parity/test_paragraphs.py).

Letters: B texts, L positions of a row, k negatives, D width.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bertlab.data.corpora.text import read_lines
from bertlab.errors import UserError
from bertlab.evals.evaluate import find_prepared
from bertlab.objectives.word_vectors import (
    NegativeSampling,
    draw_words,
    keep_probability,
    special_ids,
    word_counts,
)
from bertlab.train.build import vocabulary_of
from bertlab.train.run_directory import RunDirectory
from bertlab.transfer.load import Pretrained, load

EPOCHS, RATES = 50, (0.025, 1e-4)
"""Passes over a text, and the first and last learning rate; the rates are gensim's."""


def paragraph_vectors(
    model: Pretrained, counts: Int[np.ndarray, "V"], texts: Sequence[str], seed: int = 0
) -> Float[np.ndarray, "N D"]:
    """PV-DBOW's vector of each text; a text without known words has zeros.

    Draws depend only on the seed, the epoch and the position, so neither other texts nor padding
    change a text's vector.

    Args:
        model: The model of a run of skip_gram or cbow.
        counts: The tokens' counts in the training text.
        texts: Any number of texts.
        seed: Seed of the negatives, and of the frequent words that each epoch leaves out.

    Raises:
        UserError: No objective of the model draws negatives.
    """
    objective = next(
        (o for o in model.objectives.values() if isinstance(o, NegativeSampling)), None
    )
    if objective is None:
        raise UserError("paragraph vectors need a run of skip_gram or cbow, which draw negatives")
    weights = np.where(counts > 0, counts.astype(np.float64) ** objective.power, 0.0)
    keep = keep_probability(counts.astype(np.float64), objective.subsample)
    infer = jax.jit(build_inference(model, objective.negatives, weights, keep))
    pieces = [model.tokenizer.encode(text) for text in texts]
    length = 1 << max(map(len, pieces), default=1).bit_length()
    tokens = np.full((len(texts), length), model.tokenizer.pad_id, np.int32)
    for row, ids in enumerate(pieces):
        tokens[row, : len(ids)] = ids
    return np.asarray(infer(model.params, tokens, seed))


def build_inference(model: Pretrained, negatives: int, weights: np.ndarray, keep: np.ndarray):
    """(params, tokens [B, L], seed) -> vectors [B, D].

    Args:
        model: Its output matrix predicts words from a vector.
        negatives: k.
        weights: Each word's weight among the negatives, 0 for ids that are not words.
        keep: Probability of each word to be read in an epoch.
    """
    body, width = model.program.body, model.program.body.shape.width

    def infer(params, tokens, seed) -> Float[Array, "B D"]:
        is_word = jnp.asarray(weights > 0)[tokens]
        chance = jnp.asarray(keep, jnp.float32)[tokens]

        def loss(vectors, words, kept, drawn):
            drawn = jnp.broadcast_to(drawn, (len(words), negatives))
            candidates = jnp.concatenate([words[:, None], drawn], axis=1)
            variables = {"params": params["body"]}
            logits = body.apply(variables, vectors, "both", candidates, method="predict_tokens")
            wrong = jnp.where(drawn != words[:, None], jax.nn.log_sigmoid(-logits[:, 1:]), 0.0)
            return -jnp.where(kept, jax.nn.log_sigmoid(logits[:, 0]) + wrong.sum(1), 0.0).sum()

        def epoch(vectors, inputs):
            key, rate = inputs

            def step(vectors, position):
                keep_key, negative_key = jax.random.split(jax.random.fold_in(key, position))
                kept = jax.random.uniform(keep_key) < chance[:, position]
                drawn = draw_words(negative_key, weights, (negatives,))
                words, kept = tokens[:, position], kept & is_word[:, position]
                return vectors - rate * jax.grad(loss)(vectors, words, kept, drawn), None

            return jax.lax.scan(step, vectors, jnp.arange(tokens.shape[1]))[0], None

        keys = jax.random.split(jax.random.key(seed), EPOCHS)
        start = jnp.zeros((len(tokens), width), jnp.float32)
        return jax.lax.scan(epoch, start, (keys, jnp.linspace(*RATES, EPOCHS)))[0]

    return infer


def training_counts(run: str | Path, model: Pretrained) -> Int[np.ndarray, "V"]:
    """How often a run has read each word, 0 for special tokens; its corpus must be prepared."""
    fingerprint = RunDirectory(run).read("data", {}).get("fingerprint", "")
    prepared = find_prepared(model.config.data, fingerprint)
    vocabulary = vocabulary_of(prepared.tokenizer, prepared.counts)
    counts = word_counts(vocabulary)
    counts[special_ids(vocabulary)] = 0
    return counts.astype(np.int64)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="directory of a run of skip_gram or cbow")
    parser.add_argument("text", type=Path, help="a file with one text per line")
    parser.add_argument("out", type=Path, help="the .npy file to write")
    given = parser.parse_args(arguments)
    texts, model = [line for _, line in read_lines(given.text)], load(given.run)
    try:
        vectors = paragraph_vectors(model, training_counts(given.run, model), texts)
    except UserError as error:
        parser.error(str(error))
    np.save(given.out, vectors)
    print(f"{given.out}: {vectors.shape[0]:,} vectors of {vectors.shape[1]} numbers")


if __name__ == "__main__":
    main()
