"""Whole documents scored through the commands, beside the truth."""

import itertools
import json
import math

import numpy as np
import pytest

from bertlab.cli.main import main
from bertlab.evals import floors
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
    assert found["pieces/left-to-right"] == 16 * len(sizes) == found["pieces/any-order"]
    assert found["bytes/pseudo"] < BYTES and found["pieces/pseudo"] <= 5 * 9
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


def test_the_probability_of_a_stretch_is_its_sum_over_all_states():
    for text in itertools.product(WORDS, repeat=4):
        found = floors.log_probability(CHAIN, text)
        assert found == pytest.approx(math.log(stretch_probability(text)))
