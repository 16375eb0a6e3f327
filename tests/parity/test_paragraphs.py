"""gensim infers the paragraph vectors that bertlab infers from the same output matrix, on average
over draws."""

import numpy as np
from gensim.models.doc2vec import Doc2Vec

from bertlab.contrib.paragraphs import EPOCHS, RATES, paragraph_vectors
from bertlab.objectives.word_vectors import SkipGram
from tests.evals.tiny import PIECES, model_of

TEXTS = ["a b abc a d", "g abcd e ab d b a e", "c c f"]
SEEDS = range(20)


def test_the_mean_over_draws_is_gensim_s():
    objective = SkipGram(subsample=0.0)
    model = model_of("static", {"skip_gram": objective})
    output = model.params["body"]["output"]["kernel"]
    outputs = (np.random.default_rng(0).normal(size=output.shape) / 2).astype(np.float32)
    model.params["body"]["output"]["kernel"] = outputs
    counts = np.arange(1, len(PIECES) + 1)
    counts[:5] = 0
    theirs = Doc2Vec(
        vector_size=outputs.shape[1],
        dm=0,
        negative=objective.negatives,
        ns_exponent=objective.power,
        sample=0,
        min_count=1,
    )
    theirs.build_vocab_from_freq({str(i): int(counts[i]) for i in np.flatnonzero(counts)})
    theirs.syn1neg = np.stack([outputs[int(word)] for word in theirs.wv.index_to_key])
    theirs.dv.resize_vectors(0)
    settings = {"alpha": RATES[0], "min_alpha": RATES[1], "epochs": EPOCHS}
    words = [[str(i) for i in model.tokenizer.encode(text) if counts[i]] for text in TEXTS]
    expected = [
        np.mean([theirs.infer_vector(text, **settings) for _ in SEEDS], axis=0) for text in words
    ]
    drawn = [paragraph_vectors(model, counts, TEXTS, seed) for seed in SEEDS]
    for mine, other in zip(np.mean(drawn, axis=0), expected):
        norms = np.linalg.norm(mine), np.linalg.norm(other)
        assert mine @ other / norms[0] / norms[1] > 0.99 and abs(norms[0] / norms[1] - 1) < 0.05
