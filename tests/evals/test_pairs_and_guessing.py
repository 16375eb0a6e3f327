"""BLiMP's format and its accuracy by phenomenon; guessing equals a sum over a joint table."""

import json
import math

import numpy as np
import pytest

from bertlab.errors import UserError
from bertlab.evals.evaluate import judge, read_pairs
from bertlab.evals.scoring import guessing
from bertlab.objectives import REGISTRY
from tests.references import without_context

# As BLiMP's files have them: more keys than are read.
RECORD = {"field": "syntax", "linguistics_term": "npi_licensing", "UID": "npi_a", "lexically": True}
NAMES = [("npi_a", "npi"), ("npi_b", "npi"), ("island", "islands"), ("npi_a", "npi")]


def write_pairs(path, names):
    lines = []
    for number, (paradigm, phenomenon) in enumerate(names):
        pair = {"sentence_good": f"good {number}", "sentence_bad": f"bad {number}"}
        lines.append(json.dumps(RECORD | pair | {"UID": paradigm, "linguistics_term": phenomenon}))
    path.write_text("\n".join([*lines, ""]))
    return path


def test_accuracy_is_the_mean_over_paradigms_of_a_phenomenon(tmp_path):
    pairs = read_pairs(write_pairs(tmp_path / "pairs.jsonl", NAMES * 2))
    good = np.array([1, 1, 1, 0, 1, 0, 0.5, 1.0])  # right, wrong or tied
    scores = np.stack([good, 1 - good], axis=1)
    scores[6] = [-3.0, -3.0 + 1e-7]
    found = judge(pairs, scores.ravel())
    paradigms = {"npi_a": [1, 0, 1, 1], "npi_b": [1, 0], "island": [1, 0.5]}
    means = [np.mean(values) for values in paradigms.values()]
    errors = {n: np.std(v, ddof=1) / math.sqrt(len(v)) for n, v in paradigms.items()}
    assert found["accuracy"] == pytest.approx(np.mean(means))
    assert found["standard_error/accuracy"] == pytest.approx(math.hypot(*errors.values()) / 3)
    assert found["phenomena"] == {"npi": pytest.approx((0.75 + 0.5) / 2), "islands": 0.75}
    all_right = judge(pairs, np.tile([0.0, -1.0], 8))
    assert (all_right["accuracy"], all_right["standard_error/accuracy"]) == (1.0, None)


def test_the_first_pairs_of_each_paradigm_and_a_wrong_line(tmp_path):
    path = write_pairs(tmp_path / "pairs.jsonl", NAMES * 3)
    assert list(read_pairs(path, 1).good) == ["good 0", "good 1", "good 2"]
    path.write_text(path.read_text() + '{"sentence_good": "x"}\n')
    with pytest.raises(UserError, match=r"pairs\.jsonl:13: not a JSON object"):
        read_pairs(path)


def test_guessing():
    counts = np.array([0, 0, 3, 9, 1, 7])
    frequency = counts / counts.sum()
    entropy = without_context(frequency, 1.0, 0.0)

    def cost(name, viewed=None, batches=(), **settings):
        return guessing(REGISTRY[name](**settings), counts, batches, viewed)

    for name in ("ltr", "rtl", "prefix", "permutation", "diffusion"):
        assert cost(name) == pytest.approx(entropy)
    assert cost("mlm") == pytest.approx(without_context(frequency, 0.8, 0.1))
    everything = cost("mlm", predict="all", rate=0.4)
    assert everything == pytest.approx(without_context(frequency, 0.32, 0.04))
    sbo = cost("sbo", viewed=REGISTRY["mlm"](mask_share=0.5))
    assert sbo == pytest.approx(without_context(frequency, 0.5, 0.1))
    masked = without_context(frequency, 0.8, 0.1)
    hybrid = cost("masked_next_token", causal_share=0.5, rate=0.2)
    assert hybrid == pytest.approx((0.5 * entropy + 0.1 * masked) / 0.6)
    batches = [{"pair_label": np.array([0, 1, -1])}, {"pair_label": np.array([1, 1])}]
    assert cost("nsp", batches=batches) == pytest.approx(-np.log([0.25, 0.75]) @ [0.25, 0.75])
    for name in ("electra", "span_corruption", "skip_gram", "cbow", "glove", "ar", "tar", "nsp"):
        assert cost(name) is None
