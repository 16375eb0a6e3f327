"""gensim infers the paragraph vectors that we infer from the same output matrix, on average over draws."""

import numpy as np
import pytest
from gensim.models.doc2vec import Doc2Vec

import bertlab
from bertlab.data.prepare import prepare
from bertlab.objectives.word_vectors import special_ids, word_counts
from bertlab.train import loop
from bertlab.train.checks import vocabulary_of
from bertlab.transfer.paragraphs import EPOCHS, RATES, paragraph_vectors
from bertlab.transfer.rows import batches

TEXTS = ["The with statement wraps a block.", "A class body is executed at once, is it not?", "yield it from the value"]
SEEDS = range(20)


@pytest.mark.usefixtures("quick_compilation")
def test_mean_over_draws(small_config, tmp_path):
    small = {"objectives__skip_gram__subsample": 0.0, "evaluate__sentences": 0, "train__steps": 1, "train__eval_batches": 1}
    loop.train(small_config("skip_gram", **small), tmp_path / "run")
    model = bertlab.load(tmp_path / "run")
    output = model.params["body"]["output"]["kernel"]
    outputs = (np.random.default_rng(0).normal(size=output.shape) / 2).astype(np.float32)
    model.params["body"]["output"]["kernel"] = outputs
    objective = model.program.objectives["skip_gram"]
    vocabulary = vocabulary_of(model.tokenizer, prepare(model.config.data).counts)
    counts = word_counts(vocabulary).astype(int)
    known = [i for i in np.flatnonzero(counts) if i not in special_ids(vocabulary)]

    theirs = Doc2Vec(
        vector_size=outputs.shape[1], dm=0, negative=objective.negatives, ns_exponent=objective.power, sample=0, min_count=1
    )
    theirs.build_vocab_from_freq({str(i): int(counts[i]) for i in known})
    theirs.syn1neg = np.stack([outputs[int(word)] for word in theirs.wv.index_to_key])
    theirs.dv.resize_vectors(0)
    words = [[str(i) for i in model.tokenizer.encode(text) if i in known] for text in TEXTS]
    infer = lambda of: theirs.infer_vector(of, alpha=RATES[0], min_alpha=RATES[1], epochs=EPOCHS)
    expected = np.array([np.mean([infer(of) for _ in SEEDS], axis=0) for of in words])

    rows = model.rows(TEXTS)
    found = np.zeros_like(expected)
    for indices, view in batches(rows, model.longest, model.tokenizer.pad_id):
        of_seeds = [np.asarray(model.inference(paragraph_vectors, (view, seed), "skip_gram", vocabulary)) for seed in SEEDS]
        found[indices] = np.mean(of_seeds, axis=0)[: len(indices)]
    for mine, other in zip(found, expected):
        cosine = mine @ other / np.linalg.norm(mine) / np.linalg.norm(other)
        assert cosine > 0.99 and abs(np.linalg.norm(mine) / np.linalg.norm(other) - 1) < 0.05
