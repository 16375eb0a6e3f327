from collections import defaultdict

import numpy as np
import pytest

from bertlab.data.batches import Batches, unique_documents
from bertlab.data.formats import cooccurrence
from tests.data.made_corpus import PAD, config, epoch_rows, make

WINDOW = 3


@pytest.fixture
def documents():
    """Words 5 to 29, and some specials that do not count."""
    rng = np.random.default_rng(0)
    return [[rng.integers(1, 30, n).tolist() for n in rng.integers(1, 9, 4)] for _ in range(30)]


def expected_sums(documents):
    sums = defaultdict(float)
    for document in documents:
        words = [token for sentence in document for token in sentence if token > 4]
        for i, first in enumerate(words):
            for distance in range(1, WINDOW + 1):
                if i + distance < len(words):
                    sums[first, words[i + distance]] += 1 / distance
                    sums[words[i + distance], first] += 1 / distance
    return sums


def entries_of(rows):
    fields = ("tokens", "contexts", "counts")
    found = {}
    for row in rows:
        is_entry = row["documents"] > 0
        for i, j, count in zip(*(row[name][is_entry].tolist() for name in fields), strict=True):
            assert (i, j) not in found
            found[i, j] = count
        assert (row["counts"][~is_entry] == 1).all() and (row["tokens"][~is_entry] == PAD).all()
    return found


@pytest.mark.parametrize("chunk", [1 << 24, 60])
def test_sums_are_counted_by_hand_and_read_once_an_epoch(tmp_path, documents, monkeypatch, chunk):
    monkeypatch.setattr(cooccurrence, "_CHUNK_PAIRS", chunk)
    corpus = make(tmp_path / "corpus", documents)
    data = config(format="cooccurrence", cooccurrence__window=WINDOW)
    batches, expected = Batches(corpus, data), expected_sums(documents)
    orders = []
    for epoch in range(2):
        found = entries_of(epoch_rows(batches, epoch))
        assert found == pytest.approx(expected)
        orders.append(list(found))
    assert orders[0] != orders[1]
    rows = [{k: v[i] for k, v in b.items()} for b in batches.evaluation() for i in range(8)]
    assert entries_of(rows) == pytest.approx(expected)


def test_only_the_chosen_documents_count(tmp_path, documents):
    corpus = make(tmp_path / "corpus", documents)
    data = config(format="cooccurrence", cooccurrence__window=WINDOW, unique_tokens=200)
    batches = Batches(corpus, data)
    chosen = [documents[number] for number in unique_documents(corpus.split("train"), 200)]
    assert 0 < len(chosen) < len(documents)
    assert entries_of(epoch_rows(batches)) == pytest.approx(expected_sums(chosen))
