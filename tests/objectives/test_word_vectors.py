"""Skip-gram, CBOW and GloVe equal NumPy references, and draw as word2vec.c does within sampling error."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertlab.models.base import OutputConfig
from bertlab.models.static import Static, StaticConfig
from bertlab.objectives.base import Vocabulary
from bertlab.objectives.program import Program
from bertlab.objectives.word_vectors import ContinuousBagOfWords, Glove, SkipGram
from tests.references import metrics_of, quick_jit, random_params, sigmoid, views_of

COUNTS = (900, 40, 70, 80, 5, *(2 * i**2 for i in range(1, 21)))
VOCABULARY = Vocabulary(25, 0, 1, 2, 3, 4, COUNTS)
SPECIAL = {0, 1, 2, 3, 4}
# A right sampler is beyond this many standard errors once in 30,000 draws; the seeds are fixed.
LIMIT = 4.2


def program_of(objective) -> Program:
    config = StaticConfig(6, VOCABULARY.size, "bidirectional", OutputConfig(False, False, False), jnp.float32)
    return Program(Static(config), {"own": objective}, VOCABULARY)


def rows(number=3, length=16, seed=0, specials=True):
    """Two documents a row, the first with a [SEP] inside, specials here and there, and padding."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0 if specials else 5, VOCABULARY.size, (number, length)).astype(np.int32)
    documents = np.repeat([[1] * (length // 2) + [2] * (length // 2 - 2) + [0] * 2], number, 0).astype(np.int32)
    if specials:
        tokens[:, 4] = VOCABULARY.sep_id
    tokens = np.where(documents > 0, tokens, VOCABULARY.pad_id)
    positions = np.repeat(np.arange(length)[None], number, 0).astype(np.int32)
    fields = dict(tokens=tokens, segments=np.zeros_like(tokens), documents=documents, positions=positions)
    return {**fields, "pair_label": np.full(number, -1, np.int32)}


def sentences_of(batch, row):
    """The words of each sentence of a row, without special tokens; [SEP] and a document's end are borders."""
    found, last = [[]], None
    for token, document in zip(batch["tokens"][row], batch["documents"][row]):
        if document != last or token == VOCABULARY.sep_id:
            found.append([])
        last = document
        if document and token not in SPECIAL:
            found[-1].append(int(token))
    return [sentence for sentence in found if sentence]


def terms(vector, right, drawn, output):
    """[loss, right above all drawn ones, 1], in float64."""
    drawn = [d for d in drawn if d != right]
    products = output[drawn] @ vector
    loss = -np.log(sigmoid(output[right] @ vector)) - np.log(sigmoid(-products)).sum()
    return np.array([loss, float((output[right] @ vector > products).all()), 1.0])


def pairs_of(batch, view):
    """(row, centre place in the view, centre word, context places in the view), by sentences and the drawn radius."""
    for row in range(len(view["tokens"])):
        start = 0
        for sentence in sentences_of(batch, row):
            for i, word in enumerate(sentence):
                radius = view["radius"][row, start + i]
                near = [j for j in range(len(sentence)) if j != i and abs(j - i) <= radius]
                yield row, start + i, word, [start + j for j in near]
            start += len(sentence)
        assert (view["documents"][row] > 0).sum() == start


@pytest.mark.parametrize(("length", "window"), [(16, 3), (8, 9)])
def test_skip_gram_equals_numpy(length, window):
    program, batch = program_of(SkipGram(window=window, negatives=4, subsample=0.0)), rows(length=length)
    params, view = random_params(program, batch, scale=1.0), views_of(program, batch)["own"]
    table, output = np.float64(params["body"]["token_embedding"]), np.float64(params["body"]["output"]["kernel"])
    offsets = [o for o in range(-window, window + 1) if o and abs(o) < length]
    expected = np.zeros(3)
    for row, t, centre, context in pairs_of(batch, view):
        for place in context:
            drawn = view["negative_tokens"][row, t, offsets.index(place - t)]
            expected += terms(table[view["tokens"][row, place]], centre, drawn, output)
    assert_sums(metrics_of(program, params, {"own": view}), expected)


def test_cbow_equals_numpy_and_its_gradient_is_undivided():
    program, batch = program_of(ContinuousBagOfWords(window=3, negatives=4, subsample=0.0)), rows()
    params, view = random_params(program, batch, scale=1.0), views_of(program, batch)["own"]
    table, output = np.float64(params["body"]["token_embedding"]), np.float64(params["body"]["output"]["kernel"])
    expected, gradient, output_gradient = np.zeros(3), np.zeros_like(table), np.zeros_like(output)
    for row, t, centre, context in pairs_of(batch, view):
        if not context:
            continue
        words = view["tokens"][row, context]
        mean = table[words].mean(0)
        drawn = view["negative_tokens"][row, t]
        expected += terms(mean, centre, drawn, output)
        for target, label in [(centre, 1), *((d, 0) for d in drawn if d != centre)]:
            error = sigmoid(output[target] @ mean) - label
            output_gradient[target] += error * mean
            for word in words:  # word2vec.c: syn0[c + last_word * layer1_size] += neu1e[c], for each of them
                gradient[word] += error * output[target]
    assert_sums(metrics_of(program, params, {"own": view}), expected)
    loss = lambda params: program.metrics(params, {"own": view})["own/loss"][0]
    ours = quick_jit(jax.grad(loss))(params)["body"]
    np.testing.assert_allclose(ours["token_embedding"], gradient, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ours["output"]["kernel"], output_gradient, rtol=1e-4, atol=1e-4)


def assert_sums(metrics, expected):
    loss, pairs = map(float, metrics["own/loss"])
    right, right_pairs = map(float, metrics["own/accuracy"])
    assert expected[2] > 5
    np.testing.assert_allclose([loss, right, pairs, right_pairs], [*expected, expected[2]], rtol=2e-5)


@pytest.fixture(scope="module")
def many():
    """4000 rows of 30 words and their view with strong subsampling."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(5, VOCABULARY.size, (4000, 30)).astype(np.int32)
    documents = np.ones_like(tokens)
    batch = dict(tokens=tokens, segments=documents * 0, documents=documents, positions=documents * 0)
    return batch, views_of(program_of(SkipGram(window=4, negatives=2, subsample=1e-2)), batch)["own"]


def z_scores(count, draws, probability):
    return (count - draws * probability) / np.sqrt(np.maximum(draws * probability * (1 - probability), 1e-9))


def test_words_are_kept_with_word2vecs_probability_and_in_order(many):
    batch, view = many
    frequency = np.array(COUNTS[5:]) / sum(COUNTS[5:])
    keep = np.minimum(1, (np.sqrt(frequency / 1e-2) + 1) * 1e-2 / frequency)
    given, kept = (np.bincount(x["tokens"][x["documents"] > 0], minlength=25)[5:] for x in (batch, view))
    assert keep.min() < 0.5 and (keep == 1).sum() > 3
    assert np.abs(z_scores(kept, given, keep)).max() < LIMIT
    np.testing.assert_array_equal(kept[keep == 1], given[keep == 1])
    for tokens, left, documents in zip(batch["tokens"][:50], view["tokens"][:50], view["documents"][:50]):
        number = documents.sum()
        assert not documents[number:].any() and not left[number:].any()
        rest = iter(tokens)
        assert all(word in rest for word in left[:number]), "a subsequence"


def test_negatives_follow_the_counts_to_the_three_quarters_and_are_no_specials(many):
    _, view = many
    drawn = np.bincount(view["negative_tokens"].ravel(), minlength=25)
    share = np.where(np.arange(25) < 5, 0.0, np.array(COUNTS) ** 0.75)
    assert view["negative_tokens"].shape == (4000, 30, 8, 2)
    assert np.abs(z_scores(drawn, drawn.sum(), share / share.sum())).max() < LIMIT and not drawn[:5].any()


def test_radius_is_uniform(many):
    drawn = np.bincount(many[1]["radius"].ravel(), minlength=6)
    assert drawn[0] == drawn[5] == 0
    assert np.abs(z_scores(drawn[1:5], drawn.sum(), 1 / 4)).max() < LIMIT


def test_words_without_a_count_are_words_all_the_same():
    """A word of a held-out split that the training split lacks."""
    program = program_of(SkipGram())
    counts = (*COUNTS[:-1], 0)
    batch = rows(specials=False)
    batch["tokens"][:, 0] = 24
    vocabulary = dataclasses.replace(VOCABULARY, counts=counts)
    view = views_of(dataclasses.replace(program, vocabulary=vocabulary), batch)["own"]
    assert (view["tokens"][:, 0] == 24).all() and not (view["negative_tokens"] == 24).any()


def test_glove_equals_numpy():
    batch, rng = rows(specials=False), np.random.default_rng(3)
    batch |= {
        "contexts": rng.integers(5, 25, batch["tokens"].shape).astype(np.int32),
        "counts": (10 ** rng.uniform(-1, 3, batch["tokens"].shape)).astype(np.float32),
    }
    batch["counts"][batch["documents"] == 0] = 0.0
    program = program_of(Glove(x_max=50.0, power=0.6))
    params = random_params(program, batch)
    table, output = np.float64(params["body"]["token_embedding"]), np.float64(params["body"]["output"]["kernel"])
    word_bias, context_bias = (np.float64(params["heads_own"][f"{k}_bias"]) for k in ("word", "context"))
    expected, number = 0.0, 0
    for i, j, x, document in zip(*(batch[k].ravel() for k in ("tokens", "contexts", "counts", "documents"))):
        if document:
            error = table[i] @ output[j] + word_bias[i] + context_bias[j] - np.log(np.float64(x))
            expected, number = expected + 0.5 * min(1.0, x / 50) ** 0.6 * error**2, number + 1
    loss, weight = map(float, metrics_of(program, params, views_of(program, batch))["own/loss"])
    np.testing.assert_allclose([loss, weight], [expected, number], rtol=2e-5)
    grads = quick_jit(jax.grad(lambda p: program.metrics(p, {"clean": batch})["own/loss"][0]))(params)
    assert all(np.isfinite(leaf).all() and leaf.any() for leaf in jax.tree.leaves(grads))
