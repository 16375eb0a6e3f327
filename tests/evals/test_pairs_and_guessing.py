"""Accuracies on minimal pairs equal the old code's; guessing equals a sum over a joint table."""

import json

import numpy as np
import pytest

from bertlab.errors import UserError
from bertlab.evals.guessing import guessing
from bertlab.evals.minimal_pairs import judge, read_pairs
from bertlab.objectives import REGISTRY
from bertlab.transfer import evaluate as old
from bertlab.transfer.likelihood import Score
from tests.references import without_context

NAMES = [("npi_a", "npi"), ("npi_b", "npi"), ("island", "islands"), ("npi_a", "npi")]


def lines_of(number):
    for n in range(number):
        paradigm, phenomenon = NAMES[n % 4]
        pair = {"sentence_good": f"good {n}", "sentence_bad": f"bad {n}", "UID": paradigm}
        yield json.dumps(pair | {"linguistics_term": phenomenon, "field": "syntax"})


def test_accuracies_by_paradigm_and_phenomenon_are_those_of_the_old_code(tmp_path):
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines_of(30)))
    rng = np.random.default_rng(0)
    values = rng.normal(size=60)
    values[2], values[20] = values[3] + 1e-7, values[21]  # ties
    for limit in (0, 3):
        pairs = read_pairs(lines_of(30), "pairs.jsonl", limit)
        theirs = old.read_pairs(tmp_path / "pairs.jsonl", limit)
        scored = values[: 2 * len(pairs)]
        expected = old.judge_pairs(
            theirs, lambda _, scored=scored: [Score(v, 1, "") for v in scored]
        )
        found = judge(pairs, lambda _, scored=scored: scored)
        assert found.keys() == expected.keys() and found["pairs"] == expected["pairs"]
        for ours, others in (
            (found, expected),
            *(
                (found[part][name], of)
                for part in ("paradigms", "phenomena")
                for name, of in expected[part].items()
            ),
        ):
            for key in ("accuracy", "standard_error", "pairs"):
                assert ours[key] == (others[key] and pytest.approx(others[key]))


def test_a_wrong_line_is_named():
    with pytest.raises(UserError, match=r"pairs\.jsonl, line 3: expected a JSON object"):
        read_pairs([*lines_of(2), '{"sentence_good": "x"}'], "pairs.jsonl")
    with pytest.raises(UserError, match=r"x has no pairs"):
        read_pairs(["", " "], "x")


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
