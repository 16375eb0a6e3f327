import random

import numpy as np
import pytest

from bertlab.data.batches import Batches
from tests.data.made_corpus import (
    CLS,
    SEP,
    config,
    epoch_rows,
    make,
    random_documents,
)

DOCUMENTS = random_documents(300)
DOCUMENT_OF = {t: d for d, document in enumerate(DOCUMENTS) for s in document for t in s}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make(tmp_path_factory.mktemp("pairs") / "corpus", DOCUMENTS)


def segments(row):
    """A and B of a row, [CLS] A [SEP] B [SEP] or [CLS] A [SEP], and padding."""
    size = int(row["documents"].sum())
    tokens = row["tokens"][:size].tolist()
    first = tokens.index(SEP)
    assert tokens[0] == CLS and tokens[-1] == SEP and not row["tokens"][size:].any()
    expected = np.where(np.arange(len(row["tokens"])) < size, np.arange(len(row["tokens"])), 0)
    np.testing.assert_array_equal(row["positions"], expected)
    assert row["segments"][:size].tolist() == [0] * (first + 1) + [1] * (size - first - 1)
    return tokens[1:first], tokens[first + 1 : -1]


def assert_is_text(segment):
    """Consecutive tokens of one document."""
    assert segment == list(range(segment[0], segment[0] + len(segment)))
    assert DOCUMENT_OF[segment[0]] == DOCUMENT_OF[segment[-1]]


def share_is(values, probability):
    """Within four standard errors."""
    error = (probability * (1 - probability) / len(values)) ** 0.5
    return abs(np.mean(values) - probability) < 4 * error


@pytest.mark.parametrize("name", ["segment_pair", "sentence_pair"])
def test_next_sentence_labels_say_whether_b_follows(corpus, name):
    changes = {f"{name}__force_random_if_single": False, "segment_pair__short_probability": 0.3}
    rows = epoch_rows(Batches(corpus, config(format=name, **changes)))
    labels = []
    for row in rows:
        a, b = segments(row)
        assert_is_text(a)
        assert row["order_label"] == -1
        if row["pair_label"] == -1:
            assert not b
            continue
        assert_is_text(b)
        labels.append(int(row["pair_label"]))
        if labels[-1]:
            assert DOCUMENT_OF[a[0]] != DOCUMENT_OF[b[0]]
        else:
            assert DOCUMENT_OF[a[0]] == DOCUMENT_OF[b[0]]
            cut = int(row["documents"].sum()) == 32
            assert b[0] > a[-1] if cut else b[0] == a[-1] + 1
    assert len(labels) > 500 and share_is(labels, 0.5)


@pytest.mark.parametrize("name", ["segment_pair", "sentence_pair"])
def test_swapped_pairs_are_of_one_document_in_either_order(corpus, name):
    rows = epoch_rows(Batches(corpus, config(format=name, **{f"{name}__negatives": "swapped"})))
    labels = []
    for row in rows:
        a, b = segments(row)
        assert row["pair_label"] == -1 and (row["order_label"] >= 0) == bool(b)
        if b:
            first, second = (b, a) if row["order_label"] else (a, b)
            assert DOCUMENT_OF[a[0]] == DOCUMENT_OF[b[0]]
            assert second[0] > first[-1]
            labels.append(int(row["order_label"]))
    assert len(labels) > 500 and share_is(labels, 0.5)


@pytest.mark.parametrize("negatives", ["random", "swapped"])
@pytest.mark.parametrize("name", ["segment_pair", "sentence_pair"])
def test_each_sentence_is_used_once_an_epoch(tmp_path, name, negatives):
    """Sentences of one token are never cut. What a random B replaced is read again."""
    tokens = iter(range(5, 3000))
    documents = [[[next(tokens)] for _ in range(n)] for n in (1, 2, 3, 40, 250, 7, 90)]
    changes = {f"{name}__negatives": negatives, "segment_pair__short_probability": 0.5}
    batches = Batches(make(tmp_path / "corpus", documents), config(format=name, **changes))
    used = []
    for row in epoch_rows(batches, epoch=1):
        a, b = segments(row)
        used += a if row["pair_label"] == 1 else a + b
    assert sorted(used) == [t for document in documents for sentence in document for t in sentence]


def test_only_single_sentences_are_always_random(corpus):
    never = {"segment_pair__random_next_probability": 0.0}
    rows = epoch_rows(Batches(corpus, config(format="segment_pair", **never)))
    starts = {sentence[0]: len(d) - i for d in DOCUMENTS for i, sentence in enumerate(d)}
    assert any(row["pair_label"] for row in rows)
    for row in rows:
        a, _ = segments(row)
        if starts.get(a[0]) == 1:  # a document's last sentence
            assert row["pair_label"] == 1


def test_another_document_is_drawn_again_so_many_times(tmp_path):
    documents = random_documents(2, sentences=400)
    corpus = make(tmp_path / "corpus", documents)
    border = documents[1][0][0]
    same = {}
    for retries in (1, 10):
        data = config(format="sentence_pair", sentence_pair__own_document_retries=retries)
        rows = epoch_rows(Batches(corpus, data))
        random = [segments(row) for row in rows if row["pair_label"] == 1]
        same[retries] = [(a[0] < border) == (b[0] < border) for a, b in random]
    assert share_is(same[1], 0.5) and not any(same[10])


def create_instances(documents, number, length, short_probability, rng):
    """The lengths of A and B of a document's pairs, as create_pretraining_data.py makes them."""
    room = length - 3
    target = rng.randint(2, room) if rng.random() < short_probability else room
    pairs, chunk, at = [], [], 0
    document = documents[number]
    while at < len(document):
        chunk.append(document[at])
        if at == len(document) - 1 or sum(map(len, chunk)) >= target:
            end = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
            a, b = sum(map(len, chunk[:end])), sum(map(len, chunk[end:]))
            if len(chunk) == 1 or rng.random() < 0.5:
                other = number
                while other == number:
                    other = rng.randrange(len(documents))
                b = 0
                for sentence in documents[other][rng.randrange(len(documents[other])) :]:
                    b += len(sentence)
                    if b >= target - a:
                        break
                at -= len(chunk) - end
            while a + b > room:
                a, b = (a - 1, b) if a > b else (a, b - 1)
            pairs.append((a, b))
            chunk = []
        at += 1
    return pairs


def test_lengths_are_distributed_as_in_create_pretraining_data(corpus):
    data = config(format="segment_pair", segment_pair__short_probability=0.2)
    batches = Batches(corpus, data)
    found = [segments(row) for epoch in range(4) for row in epoch_rows(batches, epoch)]
    found = np.array([(len(a), len(b)) for a, b in found])
    rng = random.Random(0)
    numbers = range(len(DOCUMENTS))
    expected = np.array(
        [
            pair
            for _ in range(4)
            for number in numbers
            for pair in create_instances(DOCUMENTS, number, data.seq_len, 0.2, rng)
        ]
    )
    assert abs(len(found) / len(expected) - 1) < 0.02
    for ours, published in (
        (found[:, 0], expected[:, 0]),
        (found[:, 1], expected[:, 1]),
        (found.sum(1), expected.sum(1)),
    ):
        error = published.std() * (2 / len(published)) ** 0.5
        assert abs(ours.mean() - published.mean()) < 4 * error
        quantiles = np.linspace(0.05, 0.95, 19)
        difference = np.abs(np.quantile(ours, quantiles) - np.quantile(published, quantiles))
        assert difference.max() <= 1
