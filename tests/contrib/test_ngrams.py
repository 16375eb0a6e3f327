"""An n-gram model by hand, and with gzip on the documents that a model is scored on."""

import gzip
import itertools
import json
import math

import numpy as np
import pytest

from bertlab.config.defaults import base_config
from bertlab.contrib.ngrams import KneserNey
from bertlab.data.corpora import open_corpus
from bertlab.data.prepare import prepare
from tests.evals import test_held_out

pytestmark = pytest.mark.nightly
run = test_held_out.run


def test_gzip_and_ngrams_code_the_same_documents(run):
    found = json.loads((run / "run" / "evaluation.json").read_text())["test"]
    config = base_config()
    settings = json.loads((run / "run" / "config.json").read_text())["data"]
    config.data.update(settings)
    prepared = prepare(config.data)
    test, chosen = prepared.split("test"), np.random.default_rng(0).permutation(10)
    sizes = found["by_document"]["4-gram"]["bytes"]
    assert sizes == found["by_document"]["left-to-right"]["bytes"]
    assert sorted(sizes) == sorted(test.bytes[chosen[: len(sizes)]])
    words = {" ".join(d.parts): d for d in open_corpus(config.data).documents()}
    texts = []
    for number in np.sort(chosen[: len(sizes)]):
        ids = test.tokens[slice(*test.token_bounds()[[number, number + 1]])]
        (text,) = {t for t in words if prepared.tokenizer.encode(t) == ids.tolist()}
        texts.append("".join(words[text].parts))
    text = "".join(texts).encode()
    bits = 8 * len(gzip.compress(text, 9)) / len(text)
    assert found["baseline/gzip"] == pytest.approx(bits)
    # It has learned the language: far better than guessing one of 16 words, no better than truth.
    truth = found["bits_per_byte/left-to-right"] - found["above_truth/left-to-right"]
    assert truth - 0.3 < found["baseline/4-gram"] < math.log2(17) * 17 * len(sizes) / sum(sizes)


def test_kneser_ney_by_hand():
    a, b, c = range(3)
    ngrams = KneserNey([a, b, a, b, a, c], [2, 4, 6], 3, order=2)
    # Bigrams 3 end-a, 2 ab, 2 b-end, 1 ac, 1 c-end: discount 2/(2 + 2·2) = 1/3. Different tokens
    # before: a 1, b 1, c 1, end 2: discount 3/(3 + 2·1) = 3/5, which leaves 12/25 for 4 tokens.
    single, end = 0.4 / 5 + 12 / 25 / 4, 1.4 / 5 + 12 / 25 / 4
    ab = (8 / 3 / 3 + single / 9) * (5 / 3 / 3 + 2 / 9 * single) * (5 / 3 / 2 + end / 6)
    ca = (single / 9) * (single / 3) * (2 / 9 * end)
    np.testing.assert_allclose(ngrams.nats([a, b, c, a], [2, 4]), -np.log([ab, ca]))


def test_the_probabilities_of_every_next_token_sum_to_one():
    rng = np.random.default_rng(1)
    ngrams = KneserNey(rng.integers(0, 4, 60), [7, 30, 31, 60], 5, order=4)  # 4 is never seen
    for context in itertools.product(range(6), repeat=3):
        p = [ngrams.probabilities(np.array([*context, token]))[-1] for token in range(6)]
        assert sum(p) == pytest.approx(1) and min(p) > 0
