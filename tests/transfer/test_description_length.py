"""The online code against sums by hand and a slow definition; what linear probes compress and what they cannot."""

import itertools

import numpy as np
import pytest

from bertlab.errors import UserError
from bertlab.transfer.description_length import PORTIONS, code_length, online_code

ENDS = [1, 2, 4, 8, 16, 32, 62, 125, 250, 500, 1000]  # of 1,000 groups


def counting(classes, seen=None):
    """A probe that knows only how often each class was, and notes what it was trained on and asked for."""

    def fit(features, labels):
        shares = np.bincount(labels, minlength=classes) / len(labels)
        if seen is not None:
            seen.append((features[:, 0].tolist(), labels.tolist()))
        return lambda asked: np.tile(shares, (len(asked), 1))

    return fit


def test_a_constant_label_costs_one_uniform_label_and_then_laplaces_rule():
    bits = online_code(np.zeros((1000, 1)), np.full(1000, 2), 4, counting(4))
    expected = [2.0] + [(end - t) * np.log2((t + 4) / (t + 1)) for t, end in itertools.pairwise(ENDS)]
    np.testing.assert_allclose(bits, expected)
    assert len(bits) == len(PORTIONS) and sum(bits) < 0.04 * 1000 * 2, "near zero beside the uniform code"
    # By hand, four labels with portions of one, two and four: 1 + log2(3/2) + 2 log2(4/3) bits.
    bits = online_code(np.zeros((4, 1)), np.zeros(4, int), 2, counting(2), portions=(0.25, 0.5, 1))
    assert bits == pytest.approx([1, np.log2(3 / 2), 2 * np.log2(4 / 3)])


def test_a_probe_that_knows_nothing_has_the_uniform_code_and_one_that_knows_everything_almost_none():
    labels = np.random.default_rng(0).integers(0, 8, 1000)
    unaware = lambda features, labels: lambda asked: np.full((len(asked), 8), 1 / 8)
    assert sum(online_code(labels[:, None], labels, 8, unaware)) == pytest.approx(1000 * 3)
    knowing = lambda features, labels: lambda asked: np.eye(8)[asked[:, 0]]
    found = online_code(labels[:, None], labels, 8, knowing)
    assert sum(found) == pytest.approx(3 + sum((end - t) * np.log2((t + 8) / (t + 1)) for t, end in itertools.pairwise(ENDS)))


def test_each_portion_is_coded_by_a_probe_of_all_before_it_in_whole_groups():
    rng = np.random.default_rng(1)
    groups, labels = np.repeat(np.arange(40), 3), rng.integers(0, 3, 120)
    seen, features = [], np.arange(120.0)[:, None]
    portions = (0.001, 0.1, 0.5, 1.0)
    bits = online_code(features, labels, 3, counting(3, seen), groups, portions, seed=5)
    assert [len(words) for words, _ in seen] == [3, 12, 60], "the first portion is one group at least"
    for (earlier, _), (later, _) in itertools.pairwise(seen):
        assert set(earlier) < set(later)
    for words, of in seen:
        assert [labels[int(word)] for word in words] == of and all(words.count(word) == 1 for word in words)
        assert len({groups[int(word)] for word in words}) * 3 == len(words), "groups are whole"
    slow = [3 * np.log2(3)]
    for (known, of), asked in zip(seen, [*(set(words) for words, _ in seen[1:]), set(range(120))]):
        t = len(known)
        slow.append(sum(-np.log2((of.count(labels[int(word)]) + 1) / (t + 3)) for word in asked - set(known)))
    np.testing.assert_allclose(bits, slow)
    other = online_code(features, labels, 3, counting(3), groups, portions, seed=6)
    assert not np.allclose(bits, other), "the order is drawn"


def test_a_linear_probe_compresses_a_planted_label_and_no_random_one():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(600, 5))
    planted = np.array(["a", "b", "c"])[np.argmax(features[:, :3], 1)]
    found, chance = code_length(features, planted), code_length(features, rng.permutation(planted))
    assert found.uniform == chance.uniform == pytest.approx(600 * np.log2(3))
    assert found.compression > 3 and found.c > chance.c
    assert 0.9 < chance.compression < 1.02
    # The choice of C is said, too: a code with one choice is two bits shorter.
    alone = code_length(features, planted, choices=(found.c,))
    assert alone.bits == pytest.approx(found.bits - 2)
    # A constant label of three classes.
    constant = code_length(features, ["b"] * 600, classes=("a", "b", "c"))
    assert constant.uniform == found.uniform and constant.compression > 20
    # Copies of a sentence in the same group teach nothing of another.
    copies = np.repeat(np.arange(30), 20)
    of_groups = rng.normal(size=(30, 40))[copies], rng.integers(0, 2, 30)[copies]
    assert code_length(*of_groups, groups=copies).compression < 1.1 < code_length(*of_groups).compression


def test_what_has_no_code_is_refused():
    for message, arguments in (
        (r"a code needs at least two classes, and the words have \['a'\]", (np.zeros((3, 1)), ["a"] * 3)),
        (r"3 vectors with 2 labels", (np.zeros((3, 1)), ["a", "b"])),
        (r"the words have the label 'c', which is none of the classes", (np.zeros((2, 1)), ["a", "c"], None, ["a", "b"])),
    ):
        with pytest.raises(UserError, match=message):
            code_length(*arguments)
