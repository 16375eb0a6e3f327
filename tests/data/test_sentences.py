from itertools import chain

import numpy as np
import pytest

from bertlab.data import plans
from bertlab.data.batches import Batches
from bertlab.data.formats import FORMATS
from bertlab.data.plans import Text
from tests.data.made_corpus import (
    CLS,
    PAD,
    SEP,
    TOKENIZER,
    config,
    epoch_rows,
    make,
    random_documents,
)

# Documents of one short sentence, and sentences longer than a row.
DOCUMENTS = random_documents(120) + random_documents(40, sentences=2, words=6)
DOCUMENTS += random_documents(10, sentences=5, words=90)


def read_greedily(documents, room, in_one_document, across, separator):
    """Rows of (token, document, position), filled sentence by sentence."""
    rows, runs, used = [], [], 0

    def end_row():
        row = []
        for number, run in enumerate(runs, 1):
            is_first, is_last = number == 1, number == len(runs)
            tokens = [CLS] * is_first + run + [SEP] * (separator or is_last)
            begin = len(row) if across else 0
            document = 1 if across else number
            row += [(token, document, begin + at) for at, token in enumerate(tokens)]
        rows.append(row)

    for document in documents:
        is_new = True
        for sentence in document:
            for start in range(0, len(sentence), room):
                piece = list(sentence[start : start + room])
                crossing = separator if is_new and runs else 0
                if runs and (used + len(piece) + crossing > room or (is_new and in_one_document)):
                    end_row()
                    runs, used, crossing = [], 0, 0
                if is_new or not runs:
                    runs.append([])
                runs[-1] += piece
                used += len(piece) + crossing
                is_new = False
    end_row()
    return rows


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
def test_rows_are_those_of_a_greedy_reader(tmp_path, name, across, separator):
    data = config(
        format=name,
        full_sentences__attend_across_documents=across,
        full_sentences__document_separator=separator,
    )
    split = make(tmp_path / "corpus", DOCUMENTS).split("train")
    text = Text(split.sentences[:-1], split.sentences, split.documents)
    plan = FORMATS[name].plan(text, data, TOKENIZER, np.random.default_rng(0))
    rows = plan.gather({"tokens": split.tokens}, np.arange(len(plan)), 32, PAD)
    expected = read_greedily(DOCUMENTS, 30, name == "doc_sentences", across, separator)
    assert len(plan) == len(expected)
    for number, row in enumerate(expected):
        padded = np.array(row + [(PAD, 0, 0)] * (32 - len(row)))
        for column, field in enumerate(("tokens", "documents", "positions")):
            np.testing.assert_array_equal(rows[field][number], padded[:, column])
    assert not rows["segments"].any()


@pytest.mark.parametrize("name", ["full_sentences", "doc_sentences", "sentences"])
def test_each_token_once_an_epoch_in_another_order(tmp_path, name):
    documents = random_documents(80)
    batches = Batches(make(tmp_path / "corpus", documents), config(format=name))
    sentences = [sentence for document in documents for sentence in document]
    orders = []
    for epoch in range(3):
        rows = epoch_rows(batches, epoch)
        assert {(row["pair_label"], row["order_label"]) for row in rows} == {(-1, -1)}
        rows = [row["tokens"][row["tokens"] > SEP].tolist() for row in rows]
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
