"""Codes of labels against sums by hand, a slow definition, and evidence by quadrature."""

import itertools

import numpy as np
import pytest
import scipy.special
import scipy.stats

from bertlab.contrib import description_length
from bertlab.contrib.description_length import (
    PORTIONS,
    online_code,
    variational_code,
    weight_nats,
)
from bertlab.errors import UserError
from tests.evals.tiny import shared_scorer

pytestmark = pytest.mark.nightly

ENDS = [1, 2, 4, 8, 16, 32, 62, 125, 250, 500, 1000]  # of 1,000 groups


def counting(classes, seen=None):
    """A probe that knows only how often each class was, and notes what it was trained on."""

    def fit(features, labels):
        shares = np.bincount(labels, minlength=classes) / len(labels)
        if seen is not None:
            seen.append((features[:, 0].tolist(), labels.tolist()))
        return lambda asked: np.tile(shares, (len(asked), 1))

    return fit


def test_a_constant_label_costs_one_uniform_label_and_then_laplaces_rule():
    bits = online_code(np.zeros((1000, 1)), np.full(1000, 2), 4, counting(4))
    pairs = itertools.pairwise(ENDS)
    expected = [2.0] + [(end - t) * np.log2((t + 4) / (t + 1)) for t, end in pairs]
    np.testing.assert_allclose(bits, expected)
    assert len(bits) == len(PORTIONS) and sum(bits) < 0.04 * 1000 * 2, (
        "near zero beside the uniform code"
    )
    # By hand, four labels with portions of one, two and four: 1 + log2(3/2) + 2 log2(4/3) bits.
    bits = online_code(np.zeros((4, 1)), np.zeros(4, int), 2, counting(2), portions=(0.25, 0.5, 1))
    assert bits == pytest.approx([1, np.log2(3 / 2), 2 * np.log2(4 / 3)])


def test_each_portion_is_coded_by_a_probe_of_all_before_it_in_whole_groups():
    rng = np.random.default_rng(1)
    groups, labels = np.repeat(np.arange(40), 3), rng.integers(0, 3, 120)
    seen, features = [], np.arange(120.0)[:, None]
    portions = (0.001, 0.1, 0.5, 1.0)
    bits = online_code(features, labels, 3, counting(3, seen), groups, portions, seed=5)
    assert [len(words) for words, _ in seen] == [3, 12, 60], (
        "the first portion is one group at least"
    )
    for (earlier, _), (later, _) in itertools.pairwise(seen):
        assert set(earlier) < set(later)
    for words, of in seen:
        assert [labels[int(word)] for word in words] == of and len(set(words)) == len(words)
        assert len({groups[int(word)] for word in words}) * 3 == len(words), "groups are whole"
    slow = [3 * np.log2(3)]
    for (known, of), asked in zip(seen, [*(set(words) for words, _ in seen[1:]), set(range(120))]):
        t = len(known)
        words = asked - set(known)
        slow.append(sum(-np.log2((of.count(labels[int(word)]) + 1) / (t + 3)) for word in words))
    np.testing.assert_allclose(bits, slow)
    other = online_code(features, labels, 3, counting(3), groups, portions, seed=6)
    assert not np.allclose(bits, other), "the order is drawn"


def test_the_weights_cost_their_divergence_from_the_prior():
    """By quadrature, weight by weight; none if they are as before."""
    means, logs = np.array([[0.3, -1.0], [0.0, 2.0]]), np.log([[0.5, 0.1], [1.0, 0.7]])
    deviation, normal, expected = np.array([[0.4], [1.0]]), scipy.stats.norm, 0.0
    for mean, log, prior in zip(means.ravel(), logs.ravel(), np.repeat(deviation, 2)):
        ends = mean - 12 * np.exp(log), mean + 12 * np.exp(log)
        w, width = np.linspace(*ends, 20_001, retstep=True)
        log_q = normal.logpdf(w, mean, np.exp(log))
        expected += (np.exp(log_q) * (log_q - normal.logpdf(w, 0, prior))).sum() * width
    assert float(weight_nats((means, logs), deviation)) == pytest.approx(expected, rel=1e-5)
    prior = np.zeros((2, 2)), np.log(np.tile(deviation, (1, 2)))
    assert float(weight_nats(prior, deviation)) == pytest.approx(0, abs=1e-6)


def test_the_code_is_little_longer_than_the_evidence_and_not_shorter():
    """Of one feature and two classes, by quadrature over the difference of the classes' weights."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    labels = (rng.random(300) < 1 / (1 + np.exp(-2 * x))).astype(int)
    states, signs = (x - x.mean()) / x.std(), 2 * labels - 1
    slopes, offsets = np.meshgrid(np.linspace(-1, 5, 241), np.linspace(-2, 2, 161), indexing="ij")
    log_p = -np.logaddexp(0, -signs * (slopes[..., None] * states + offsets[..., None])).sum(-1)
    prior = scipy.stats.norm(0, np.sqrt(2))
    log_p += prior.logpdf(slopes) + prior.logpdf(offsets)
    evidence = -(scipy.special.logsumexp(log_p) + np.log(6 / 240 * 4 / 160)) / np.log(2)
    found = variational_code(x[:, None], labels, choices=(1.0,))
    # Weights of two classes that are independent in q cannot express that only their difference
    # counts. Each pair then costs ½ log₂ (1 + h)² / (1 + 2h) more, with h the information of the
    # labels, Σ p (1 − p) x²: here 2 bits or so.
    assert evidence < found.bits + 0.5 and found.bits < evidence + 6
    assert found.uniform == 300 and 0 < found.weights < found.bits < 300


def test_a_planted_label_is_compressed_and_a_random_one_costs_its_entropy():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(600, 5))
    planted = np.array(["a", "b", "c"])[np.argmax(features[:, :3], 1)]
    found = variational_code(features, planted)
    chance = variational_code(features, rng.permutation(planted))
    assert found.compression > 3 and found.c > chance.c and found.weights > chance.weights
    assert 0.9 < chance.compression < 1.02
    # A rare class of two: the entropy and what the biases cost.
    rare = np.arange(600) % 10 == 0
    entropy = 600 * -(0.1 * np.log2(0.1) + 0.9 * np.log2(0.9))
    assert entropy < variational_code(rng.normal(size=(600, 5)), rare).bits < entropy + 25
    with pytest.raises(UserError, match=r"at least two classes, and the words have \['a'\]"):
        variational_code(np.zeros((3, 1)), ["a"] * 3)


def test_the_command_prints_a_line_a_layer(tmp_path, capsys, monkeypatch):
    sentence = "1\ta\t_\tDET\t_\t_\t0\t_\t_\t_\n2\tb\t_\tNOUN\t_\t_\t1\t_\t_\t_\n\n"
    (tmp_path / "words.conllu").write_text(sentence * 30)
    model = shared_scorer("mlm").model
    monkeypatch.setattr(description_length, "load", lambda run: model)
    for code in ("online", "variational"):
        description_length.main(["run", str(tmp_path / "words.conllu"), f"--code={code}"])
        lines = capsys.readouterr().out.splitlines()
        layers = [line.split() for line in lines if line.split()[0].isdecimal()]
        assert [int(layer[0]) for layer in layers] == [0, 1]
        assert all(float(layer[2]) > 2 for layer in layers), "a word's type determines its tag"
