"""Paragraph vectors: a NumPy loop over the same draws is the truth; gensim's inference is it in `make parity`."""

import copy
import dataclasses

import jax
import numpy as np
import pytest

import bertlab
from bertlab.data.prepare import prepare
from bertlab.errors import UserError
from bertlab.objectives.word_vectors import draw_words, keep_probability, special_ids, word_counts
from bertlab.train import loop
from bertlab.train.checks import vocabulary_of
from bertlab.transfer.paragraphs import EPOCHS, RATES
from tests.transfer.runs import fresh_run

TEXTS = ["The with statement wraps a block.", "yield", "A class body is executed at once, is it not? " * 2]
sigmoid = lambda x: 1 / (1 + np.exp(-x))


@pytest.fixture(scope="module")
def model(small_config, tmp_path_factory):
    """Skip-gram, trained for a step, whose output matrix is then drawn at random."""
    directory = tmp_path_factory.mktemp("run") / "run"
    small = {"objectives__skip_gram__subsample": 0.005, "evaluate__sentences": 0, "train__steps": 1}
    loop.train(small_config("skip_gram", **small, train__eval_batches=1), directory)
    model = bertlab.load(directory)
    output = model.params["body"]["output"]["kernel"]
    model.params["body"]["output"]["kernel"] = np.random.default_rng(0).normal(size=output.shape).astype(np.float32)
    return model


def by_hand(model, text: str) -> np.ndarray:
    """One word after the other, with the draws of seed 0."""
    objective = model.program.objectives["skip_gram"]
    vocabulary = vocabulary_of(model.tokenizer, prepare(model.config.data).counts)
    outputs, counts = model.params["body"]["output"]["kernel"].astype(np.float64), word_counts(vocabulary)
    weights, chance = counts**objective.power * (counts > 0), np.asarray(keep_probability(counts, objective.subsample))
    ids = [*model.tokenizer.prefix_ids, *model.tokenizer.encode(text), *model.tokenizer.suffix_ids]
    vector, left_out = np.zeros(outputs.shape[1]), 0
    for key, rate in zip(jax.random.split(jax.random.key(0), EPOCHS), np.linspace(*RATES, EPOCHS)):
        for position, word in enumerate(ids):
            keep_key, negative_key = jax.random.split(jax.random.fold_in(key, position))
            if word in special_ids(vocabulary) or not counts[word]:
                continue
            if jax.random.uniform(keep_key) >= chance[word]:
                left_out += 1
                continue
            drawn = np.asarray(draw_words(negative_key, weights, (objective.negatives,)))
            step = (1 - sigmoid(outputs[word] @ vector)) * outputs[word]
            for other in drawn[drawn != word]:
                step -= sigmoid(outputs[other] @ vector) * outputs[other]
            vector += rate * step
    return vector, left_out


def test_it_is_a_loop_over_words_whatever_stands_beside_it(model):
    found = model.sentence_vectors(TEXTS, pooling="paragraph")
    assert found.shape == (3, 16) and found.dtype == np.float32
    expected, left_out = by_hand(model, TEXTS[0])
    assert left_out, "a frequent word was left out of an epoch"
    np.testing.assert_allclose(found[0], expected, atol=1e-4)
    for text, vector in zip(TEXTS, found):
        np.testing.assert_allclose(model.sentence_vectors([text], pooling="paragraph")[0], vector, atol=1e-5)


def test_what_draws_no_negatives_is_refused(model, small_config, tmp_path):
    glove = bertlab.load(fresh_run(small_config("glove"), tmp_path / "run"))
    words_alone = dataclasses.replace(model, program=dataclasses.replace(model.program, objectives={}))
    for other in (glove, words_alone):
        with pytest.raises(UserError, match=r"pooling='paragraph' .* needs a run of skip_gram or cbow"):
            other.sentence_vectors(TEXTS, pooling="paragraph")
    with model.config.unlocked():
        other = copy.deepcopy(model.config)
    other.data.tokenizer.vocab_size = 420
    with pytest.raises(UserError, match="now gives another vocabulary than the run's; restore the text"):
        dataclasses.replace(model, config=other).sentence_vectors(TEXTS, pooling="paragraph")
