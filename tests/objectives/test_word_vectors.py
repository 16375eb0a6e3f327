"""Skip-gram, CBOW and GloVe equal NumPy, and draw as word2vec.c does within sampling error."""

import dataclasses

import jax
import numpy as np
import pytest

from bertlab.objectives.base import Vocabulary
from bertlab.objectives.program import Program
from bertlab.objectives.word_vectors import ContinuousBagOfWords, Glove, SkipGram
from tests.references import (
    assert_metrics,
    metrics_of,
    quick_jit,
    random_params,
    sigmoid,
    tiny_program,
    view_of,
    views_of,
)

COUNTS = (900, 40, 70, 80, 5, *(2 * i**2 for i in range(1, 21)))
VOCABULARY = Vocabulary(25, 0, 1, 2, 3, 4, COUNTS)
# A right sampler is beyond this many standard errors once in 30,000 draws; the seeds are fixed.
LIMIT = 4.2


def program_of(objective) -> Program:
    body = tiny_program("static", "", VOCABULARY, width=6).body
    return Program(body, {"own": objective}, VOCABULARY)


def rows(length=16, specials=True):
    """Three rows of two documents, the first with a [SEP] inside, specials, and padding."""
    rng, half = np.random.default_rng(0), length // 2
    tokens = rng.integers(0 if specials else 5, VOCABULARY.size, (3, length)).astype(np.int32)
    documents = np.tile(np.repeat([1, 2, 0], [half, half - 2, 2]).astype(np.int32), (3, 1))
    if specials:
        tokens[:, 4] = VOCABULARY.sep_id
    zeros = np.zeros_like(tokens)
    tokens = np.where(documents > 0, tokens, VOCABULARY.pad_id)
    return {"tokens": tokens, "segments": zeros, "documents": documents, "positions": zeros}


def sentences_of(batch, row):
    """The words of each sentence of a row; [SEP] and a document's end are borders."""
    found, last = [[]], None
    for token, document in zip(batch["tokens"][row], batch["documents"][row]):
        if document != last or token == VOCABULARY.sep_id:
            found.append([])
        last = document
        if document and token > VOCABULARY.mask_id:
            found[-1].append(int(token))
    return [sentence for sentence in found if sentence]


def terms(vector, right, drawn, output):
    """[loss, right above all drawn ones, 1]."""
    products = output[[d for d in drawn if d != right]] @ vector
    own = output[right] @ vector
    loss = -np.log(sigmoid(own)) - np.log(sigmoid(-products)).sum()
    return np.array([loss, float((own > products).all()), 1.0])


def contexts_of(batch, view):
    """(row, centre's position in the view, centre word, positions of its context words)."""
    for row in range(len(view["tokens"])):
        start = 0
        for sentence in sentences_of(batch, row):
            for i, word in enumerate(sentence):
                radius = view["radius"][row, start + i]
                near = [j for j in range(len(sentence)) if 0 < abs(j - i) <= radius]
                yield row, start + i, word, [start + j for j in near]
            start += len(sentence)
        assert (view["documents"][row] > 0).sum() == start


def tables(params):
    """The vectors and the output matrix in float64."""
    body = params["body"]
    return np.float64(body["token_embedding"]), np.float64(body["output"]["kernel"])


@pytest.mark.parametrize("length, window", [(16, 3), (8, 9)])
def test_skip_gram_equals_numpy(length, window):
    program = program_of(SkipGram(window=window, negatives=4, subsample=0.0))
    batch = rows(length)
    params, views = random_params(program, batch, scale=1.0), views_of(program, batch)
    table, output = tables(params)
    offsets = [o for o in range(-window, window + 1) if o and abs(o) < length]
    view, expected = views["own"], np.zeros(3)
    for row, t, centre, context in contexts_of(batch, view):
        for position in context:
            drawn = view["negative_tokens"][row, t, offsets.index(position - t)]
            expected += terms(table[view["tokens"][row, position]], centre, drawn, output)
    assert expected[2] > 5
    assert_metrics(metrics_of(program, params, views), "own", expected)


def test_cbow_equals_numpy_and_its_gradient_is_undivided():
    program = program_of(ContinuousBagOfWords(window=3, negatives=4, subsample=0.0))
    batch = rows()
    params, views = random_params(program, batch, scale=1.0), views_of(program, batch)
    table, output = tables(params)
    view, expected = views["own"], np.zeros(3)
    gradient, output_gradient = np.zeros_like(table), np.zeros_like(output)
    for row, t, centre, context in contexts_of(batch, view):
        if not context:
            continue
        words = view["tokens"][row, context]
        mean, drawn = table[words].mean(0), view["negative_tokens"][row, t]
        expected += terms(mean, centre, drawn, output)
        for target, label in [(centre, 1), *((d, 0) for d in drawn if d != centre)]:
            error = sigmoid(output[target] @ mean) - label
            output_gradient[target] += error * mean
            # word2vec.c: each context word gets all of neu1e.
            np.add.at(gradient, words, error * output[target])

    def loss(params):
        metrics = program.metrics(params, views)[0]
        return metrics["own/loss"][0], metrics

    found, metrics = quick_jit(jax.grad(loss, has_aux=True))(params)
    assert_metrics(metrics, "own", expected)
    for ours, theirs in zip(tables(found), (gradient, output_gradient)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def many():
    """4000 rows of 30 words and their view with strong subsampling."""
    tokens = np.random.default_rng(0).integers(5, VOCABULARY.size, (4000, 30)).astype(np.int32)
    batch = {"tokens": tokens, "documents": np.ones_like(tokens)}
    batch |= {name: np.zeros_like(tokens) for name in ("segments", "positions")}
    objective = SkipGram(window=4, negatives=2, subsample=1e-2)
    return batch, view_of(objective, batch, vocabulary=VOCABULARY)


def z_scores(count, draws, probability):
    deviation = np.sqrt(np.maximum(draws * probability * (1 - probability), 1e-9))
    return (count - draws * probability) / deviation


def test_words_are_kept_with_word2vecs_probability_and_in_order(many):
    batch, view = many
    frequency = np.array(COUNTS[5:]) / sum(COUNTS[5:])
    keep = np.minimum(1, (np.sqrt(frequency / 1e-2) + 1) * 1e-2 / frequency)
    before, after = (
        np.bincount(x["tokens"][x["documents"] > 0], minlength=25)[5:] for x in (batch, view)
    )
    assert keep.min() < 0.5 and (keep == 1).sum() > 3
    assert np.abs(z_scores(after, before, keep)).max() < LIMIT
    for row in range(50):
        tokens, number = view["tokens"][row], view["documents"][row].sum()
        assert not view["documents"][row, number:].any() and not tokens[number:].any()
        rest = iter(batch["tokens"][row])
        assert all(word in rest for word in tokens[:number]), "a subsequence"


def test_negatives_follow_the_counts_to_the_power_of_three_quarters_and_radii_are_uniform(many):
    drawn = many[1]["negative_tokens"]
    share = np.where(np.arange(25) < 5, 0.0, np.array(COUNTS) ** 0.75)
    assert drawn.shape == (4000, 30, 8, 2)
    number = np.bincount(drawn.ravel(), minlength=25)
    assert np.abs(z_scores(number, drawn.size, share / share.sum())).max() < LIMIT
    assert not number[:5].any()
    radii = np.bincount(many[1]["radius"].ravel(), minlength=6)
    assert radii[0] == radii[5] == 0
    assert np.abs(z_scores(radii[1:5], radii.sum(), 1 / 4)).max() < LIMIT


def test_words_without_a_count_are_words():
    """As a word of a held-out split that the training split lacks."""
    vocabulary = dataclasses.replace(VOCABULARY, counts=(*COUNTS[:-1], 0))
    batch = rows(specials=False)
    batch["tokens"][:, 0] = 24
    view = view_of(SkipGram(), batch, vocabulary=vocabulary)
    assert (view["tokens"][:, 0] == 24).all() and not (view["negative_tokens"] == 24).any()


def test_glove_equals_numpy():
    batch, rng = rows(specials=False), np.random.default_rng(3)
    size = batch["tokens"].shape
    batch["contexts"] = rng.integers(5, 25, size).astype(np.int32)
    counts = np.where(batch["documents"] > 0, 10 ** rng.uniform(-1, 3, size), 0.0)
    batch["counts"] = counts.astype(np.float32)
    program = program_of(Glove(x_max=50.0, power=0.6))
    params = random_params(program, batch)
    (table, output), head = tables(params), params["heads_own"]
    expected, pairs = 0.0, np.argwhere(batch["documents"] > 0)
    for at in map(tuple, pairs):
        i, j, x = (batch[name][at] for name in ("tokens", "contexts", "counts"))
        biases = float(head["word_bias"][i]) + float(head["context_bias"][j])
        error = table[i] @ output[j] + biases - np.log(np.float64(x))
        expected += 0.5 * min(1.0, x / 50) ** 0.6 * error**2

    def loss(params):
        pair = program.metrics(params, {"batch": batch})[0]["own/loss"]
        return pair[0], pair

    gradient, found = quick_jit(jax.grad(loss, has_aux=True))(params)
    np.testing.assert_allclose(found, [expected, len(pairs)], rtol=2e-5)
    leaves = jax.tree.leaves(gradient)
    assert all(np.isfinite(leaf).all() and leaf.any() for leaf in leaves), "padding has no log 0"
