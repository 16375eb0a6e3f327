"""Whole documents scored through the commands, beside an n-gram model, gzip and the truth."""

import gzip
import itertools
import json
import math

import numpy as np
import pytest

from bertlab.cli.main import main
from bertlab.config.defaults import base_config
from bertlab.data.corpora import open_corpus
from bertlab.data.prepare import prepare
from bertlab.evals import floors
from bertlab.evals.evaluate import merge
from bertlab.evals.ngrams import KneserNey
from tests.evals.test_commands import SMALL
from tests.evals.test_floors import CHAIN, WORDS, stretch_probability

BYTES = 300


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Models both left to right and masked, and ends in the middle of documents."""
    folder = tmp_path_factory.mktemp("documents")
    name = "experiments/pretrain/bert.py:corpus=synthetic,objectives=masked_next_token"
    settings = {**SMALL, "data.seq_len": 11, "data.directory": folder / "cache"}
    settings |= {
        "train.steps": 3,
        "train.eval_batches": 1,
        "evaluate.sentences": 5,
        "evaluate.bytes": BYTES,
    }
    overrides = [f"--config.{key}={value}" for key, value in settings.items()]
    command = ["train", f"--config={name}", f"--workdir={folder / 'run'}", *overrides]
    assert main([*command, "--config.evaluate.floors=True"]) == 0
    return folder


def test_whole_documents_are_scored_once_and_their_sums_give_the_numbers(run):
    found = json.loads((run / "run" / "evaluation.json").read_text())["test"]
    sums = {name: np.array([of["bytes"], of["nats"]]) for name, of in found["by_document"].items()}
    sizes, nats = sums["left-to-right"]
    assert found["bytes/left-to-right"] == sizes.sum() >= BYTES > sizes[:-1].sum() - sizes.max()
    assert found["pieces/left-to-right"] == 16 * len(sizes)
    assert found["bytes/any-order"] < BYTES and found["pieces/any-order"] <= 5 * 9
    for name, key in (("left-to-right", "bits_per_byte"), ("any-order", "bits_per_byte")):
        of_bytes, of_nats = sums[name]
        bits = of_nats.sum() / of_bytes.sum() / math.log(2)
        assert found[f"{key}/{name}"] == pytest.approx(bits, rel=1e-4)
    # The jackknife over documents.
    others = (nats.sum() - nats) / (sizes.sum() - sizes) / math.log(2)
    jackknife = math.sqrt((len(nats) - 1) * others.var())
    error = found["standard_error/bits_per_byte/left-to-right"]
    assert error == pytest.approx(jackknife, rel=0.05)
    assert 0.2 < found["above_truth/left-to-right"] < found["bits_per_byte/left-to-right"]


def test_gzip_and_ngrams_code_the_same_documents(run):
    found = json.loads((run / "run" / "evaluation.json").read_text())["test"]
    config = base_config()
    settings = json.loads((run / "run" / "config.json").read_text())["data"]
    config.data.update(settings)
    prepared = prepare(config.data)
    test, chosen = prepared.split("test"), np.random.default_rng(0).permutation(10)
    sizes = found["by_document"]["4-gram"]["bytes"]
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


def test_sums_and_baselines_of_other_documents_go():
    first = {"bits_per_byte/a": 1, "bits_per_byte/b": 2, "baseline/gzip": 3, "mlm/guessing": 4}
    first["by_document"] = {"a": {}, "b": {}, "4-gram": {}}
    assert merge(first, {"accuracy/a": 5}) == first | {"accuracy/a": 5}
    kept = {"bits_per_byte/b": 2, "mlm/guessing": 4}
    assert merge(first, {"bits_per_byte/a": 6}) == kept | {"bits_per_byte/a": 6}


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


def test_the_probability_of_a_stretch_is_its_sum_over_all_states():
    for text in itertools.product(WORDS, repeat=4):
        found = floors.log_probability(CHAIN, text)
        assert found == pytest.approx(math.log(stretch_probability(text)))
