from itertools import chain

import numpy as np
import pytest

from bertlab.data import plans
from bertlab.data.batches import Batches
from bertlab.data.formats import FORMATS
from bertlab.data.plans import Specials, Text
from tests.data.made_corpus import (
    CLS,
    PAD,
    SEP,
    config,
    epoch_rows,
    make,
    old_format,
    random_documents,
)

# Documents of one short sentence, and sentences longer than a row.
DOCUMENTS = random_documents(120) + random_documents(40, sentences=2, words=6)
DOCUMENTS += random_documents(10, sentences=5, words=90)


class Units:
    """What the old `assemble` takes its units from."""

    def __init__(self, units):
        self.units = units

    def peek(self):
        return self.units[0] if self.units else None

    def take(self):
        return self.units.pop(0)


@pytest.mark.parametrize(
    "name, across, separator",
    [
        ("full_sentences", False, True),
        ("full_sentences", False, False),
        ("full_sentences", True, True),
        ("full_sentences", True, False),
        ("doc_sentences", False, True),
    ],
)
def test_rows_are_the_old_codes(tmp_path, name, across, separator):
    data = config(
        format=name,
        full_sentences__attend_across_documents=across,
        full_sentences__document_separator=separator,
    )
    split = make(tmp_path / "corpus", DOCUMENTS).split("train")
    text = Text.from_split(split, np.arange(len(DOCUMENTS)))
    plan = FORMATS[name].plan(text, data, Specials(PAD, CLS, SEP), np.random.default_rng(0))
    rows = plan.gather({"tokens": split.tokens}, np.arange(len(plan)), 32, PAD)
    making = old_format(data, DOCUMENTS)
    units = Units([unit for document in making.source for unit in making.cut(document, None)])
    old = []
    while (row := making.assemble(units)) is not None:
        old.append(row)
    for field in ("tokens", "segments", "documents", "positions", "pair_label", "order_label"):
        np.testing.assert_array_equal(rows[field], np.stack([row[field] for row in old]))


@pytest.mark.parametrize("name", ["full_sentences", "doc_sentences", "sentences"])
def test_each_token_once_an_epoch_in_another_order(tmp_path, name):
    documents = random_documents(80)
    batches = Batches(make(tmp_path / "corpus", documents), config(format=name))
    sentences = [sentence for document in documents for sentence in document]
    orders = []
    for epoch in range(3):
        rows = [row["tokens"][row["tokens"] > SEP].tolist() for row in epoch_rows(batches, epoch)]
        orders.append([row[0] for row in rows])
        assert sorted(chain.from_iterable(rows)) == list(chain.from_iterable(sentences))
    assert orders[0] != orders[1] != orders[2] != orders[0]
    if name == "sentences":
        assert sorted(rows) == sentences


def test_chain_is_the_orbit_of_zero():
    rng = np.random.default_rng(0)
    for size in (0, 1, 2, 7, 100, 1000):
        following = np.minimum(np.arange(size) + rng.integers(1, 9, size), size)
        orbit, at = [], 0
        while at < size:
            orbit.append(at)
            at = following[at]
        assert plans.chain(following).tolist() == orbit
