"""Formats against the rules as written, on documents whose tokens are all different, so that every token has a known place."""

import itertools
import math
import random
import types
from collections import Counter

import numpy as np
import pytest

from bertlab.config import base_config
from bertlab.data.formats import FORMATS, format_of
from bertlab.data.formats.pairs import truncate_pair
from bertlab.keys import KEYS
from tests.batches import FIRST, Places, Prepared, make_documents, random_documents

PAD, CLS, SEP = 0, 2, 3
PAIRS = ("segment_pair", "sentence_pair")
FACTS = {
    "has_pairs": ["segment_pair", "sentence_pair"],
    "is_stream": ["stream"],
    "is_word_pairs": ["cooccurrence"],
    "crosses_documents": ["full_sentences"],
    "makes": ["segment_pair", "sentence_pair", "cooccurrence"],
}


def make_format(name, documents, seq_len, **settings):
    """A format over documents, with its default settings but these."""
    data = base_config().data
    data.update(format=name, seq_len=seq_len)
    if settings:
        data[name].update(settings)
    return format_of(data, Prepared(documents))


class Units:
    """Units of documents one after the other."""

    def __init__(self, row_format, documents, seed=0):
        cut = [row_format.cut(d, np.random.default_rng([seed, i])) for i, d in enumerate(documents)]
        self._units = list(itertools.chain.from_iterable(cut))

    def peek(self):
        return self._units[0] if self._units else None

    def take(self):
        return self._units.pop(0)


def rows_of(row_format, documents, seed=0):
    units = Units(row_format, documents, seed)
    return list(iter(lambda: row_format.assemble(units), None))


def pair_rows(name, documents, seq_len, seed=0, **settings):
    return rows_of(make_format(name, documents, seq_len, **settings), documents, seed)


def parts(row):
    """Splits a pair row at its separators into lists A and B, and its number of real tokens."""
    size = int((row["documents"] > 0).sum())
    tokens = row["tokens"][:size].tolist()
    separators = [i for i, token in enumerate(tokens) if token == SEP]
    assert tokens[0] == CLS and separators[-1] == size - 1 and len(separators) in (1, 2)
    middle = separators[0]
    return tokens[1:middle], tokens[middle + 1 : -1], size


def labels_of(rows, first_only=False):
    return [int(row["pair_label"]) for row in rows if not first_only or row["example_id"][1] == 0]


def everything(documents):
    return np.concatenate([document["tokens"] for document in documents]).tolist()


def reference_pairs(documents, seq_len, generator, force=True, short=0.1, random_next=0.5):
    """BERT's pairs in plain Python from the published description: (label, tokens of A, of B, sentences of the chunk)."""
    most = seq_len - 3
    pairs = []
    for own, document in enumerate(documents):
        waiting = [list(s) for s in document]
        target = generator.randint(2, most) if generator.random() < short else most
        while waiting:
            chunk = []
            while waiting and sum(map(len, chunk)) < target:
                chunk.append(waiting.pop(0))
            number = len(chunk)
            cut = generator.randint(1, number - 1) if number > 1 else 1
            a = list(itertools.chain(*chunk[:cut]))
            if number == 1 and not force:
                b, label = [], -1
            elif number == 1 or generator.random() < random_next:
                label, b = 1, []
                for _ in range(10):
                    other = generator.randrange(len(documents))
                    if other != own:
                        break
                for sentence in documents[other][generator.randrange(len(documents[other])) :]:
                    b += sentence
                    if len(b) >= target - len(a):
                        break
                waiting = chunk[cut:] + waiting
            else:
                b, label = list(itertools.chain(*chunk[cut:])), 0
            while len(a) + len(b) > most:
                longer = a if len(a) > len(b) else b
                longer.pop(0 if generator.random() < 0.5 else -1)
            pairs.append((label, a, b, number))
    return pairs


def as_sentences(documents):
    return [[part.tolist() for part in np.split(d["tokens"], np.cumsum(d["sentence_lengths"])[:-1])] for d in documents]


def assert_same_share(ours, theirs, z=4.0):
    """Two lists of 0/1, as shares of populations of the same kind."""
    p = (sum(ours) + sum(theirs)) / (len(ours) + len(theirs))
    error = math.sqrt(p * (1 - p) * (1 / len(ours) + 1 / len(theirs)))
    assert 0 < p < 1
    assert abs(np.mean(ours) - np.mean(theirs)) < z * error


def assert_share(found, probability):
    """A list of 0/1 is a plausible draw: four standard errors."""
    assert abs(np.mean(found) - probability) <= 4 * math.sqrt(probability * (1 - probability) / len(found))


@pytest.fixture(scope="module")
def documents():
    return random_documents(60, (1, 60), 40, seed=1)


def test_rows_are_cls_a_sep_b_sep_of_runs_that_follow_or_are_of_another_document(documents):
    places, seen, labels = Places(documents), Counter(), Counter()
    row_format = make_format("segment_pair", documents, 64)
    row_format.tokenizer = types.SimpleNamespace(pad_id=9, cls_id=CLS, sep_id=SEP)
    for row in rows_of(row_format, documents):
        a, b, size = parts(row)
        assert a and b and size == len(a) + len(b) + 3 <= 64
        assert row["segments"].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * (64 - size)
        assert row["documents"].tolist() == [1] * size + [0] * (64 - size)
        assert row["positions"].tolist() == [*range(size)] + [0] * (64 - size)
        assert (row["tokens"][size:] == 9).all()
        assert {row[k].dtype for k in row} == {np.dtype(np.int32)}
        # Rows are numbered in each document.
        document, number = row["example_id"].tolist()
        assert number == seen[document] and row["order_label"] == -1
        seen[document] += 1
        for part in (a, b):
            assert part == list(range(part[0], part[0] + len(part)))
            assert len({places.document[token] for token in part}) == 1
        label = int(row["pair_label"])
        labels[label] += 1
        assert places.document[a[0]] == document
        assert (places.document[b[0]] == document) == (label == 0)
        if label == 0:
            assert places.sentence[b[0]] > places.sentence[a[-1]]
            assert size == 64 or b[0] == a[-1] + 1  # nothing was cut off
    assert set(seen) == set(range(len(documents)))
    assert set(labels) == {0, 1} and min(labels.values()) > 100


def test_every_token_is_read_in_order_when_nothing_is_truncated():
    """What a random next leaves unused is put back. Segments are whole sentences."""
    documents = make_documents(*[[5] * count for count in (1, 2, 24, 25, 26, 100, 173)])
    for seed in range(5):
        rows = pair_rows("segment_pair", documents, 128, seed, short_probability=0.5)
        pairs = [parts(row)[:2] for row in rows]
        assert all(len(part) % 5 == 0 and part[0] % 5 == 0 for pair in pairs for part in pair)
        real = [a + b if label == 0 else a for (a, b), label in zip(pairs, labels_of(rows))]
        assert list(itertools.chain.from_iterable(real)) == everything(documents)


def test_statistics_are_those_of_the_reference(documents):
    """Two samples: labels, filled length, length of A and short rows agree with the independent simulation."""
    sentences, generator = as_sentences(documents), random.Random(0)
    theirs = [pair for _ in range(8) for pair in reference_pairs(sentences, 64, generator)]
    row_format = make_format("segment_pair", documents, 64)
    ours = []
    for seed in range(8):
        ours += [(int(row["pair_label"]), *parts(row)[:2]) for row in rows_of(row_format, documents, seed)]
    assert_same_share([label for label, *_ in ours], [label for label, *_ in theirs])
    for value in (
        lambda a, b: len(a) + len(b),
        lambda a, b: len(a),
        lambda a, b: len(b),
        lambda a, b: abs(len(a) - len(b)),
    ):
        x, y = (np.array([value(*pair[1:3]) for pair in side], float) for side in (ours, theirs))
        error = math.hypot(x.std() / math.sqrt(len(x)), y.std() / math.sqrt(len(y)))
        assert abs(x.mean() - y.mean()) < 4 * error
    for label in (0, 1):
        full = [[len(a) + len(b) == 61 for other, a, b, *_ in side if other == label] for side in (ours, theirs)]
        assert_same_share(*full)
    # Rows per pass: short targets and sentences put back make more of them.
    assert len(ours) == pytest.approx(len(theirs), rel=0.04)


@pytest.mark.parametrize("probability", [0.0, 0.25, 0.5, 1.0])
def test_random_next_probability_and_the_quirk(probability):
    """Two long sentences make one chunk, so its label is the coin. BERT's quirk: one that is left is always random."""
    documents = make_documents(*[[50, 50]] * 1000)
    rows = pair_rows("segment_pair", documents, 64, short_probability=0, random_next_probability=probability)
    firsts = labels_of(rows, first_only=True)
    assert_share(firsts, probability)
    assert len(firsts) == 1000 and sum(labels_of(rows)) == 2 * sum(firsts) and len(rows) == 1000 + sum(firsts)


def test_short_targets_are_drawn_once_a_document_from_two_to_the_full_one():
    """Sentences of one token fill a row to exactly its target: all rows of a document but the last are alike."""
    documents = make_documents(*[[1] * 60] * 300)
    rows = pair_rows("segment_pair", documents, 33, random_next_probability=0, short_probability=1)
    targets = set()
    for _, own in itertools.groupby(rows, key=lambda row: int(row["example_id"][0])):
        sizes = [len(parts(row)[0]) + len(parts(row)[1]) for row in own if row["pair_label"] == 0]
        assert len(set(sizes[:-1])) == 1 and sizes[-1] <= sizes[0]
        targets.add(sizes[0])
    assert min(targets) == 2 and max(targets) == 30
    documents = make_documents(*[[1] * 5] * 600)
    rows = pair_rows("segment_pair", documents, 7, random_next_probability=0, short_probability=1)
    counts = Counter(parts(row)[2] - 3 for row in rows if row["example_id"][1] == 0)
    assert set(counts) == {2, 3, 4}
    assert all(abs(n - 200) < 4 * math.sqrt(600 * 2 / 9) for n in counts.values())


def test_random_segments_start_at_any_sentence_of_any_other_document():
    documents = make_documents([30], *[[7] * 10] * 8)
    places = Places(documents)
    row_format = make_format("segment_pair", documents, 64, short_probability=0)
    starts = Counter()
    for seed in range(1600):
        (row,) = row_format.cut(documents[0], np.random.default_rng(seed))
        _, b, _ = parts(row)
        starts[places.document[b[0]], places.sentence[b[0]]] += 1
        # The row has room for 61 tokens, of which A takes 30: five sentences (35 tokens) reach the target and are cut to fit.
        start = places.sentence[b[0]]
        assert len(b) in ([31] if start <= 5 else [7 * (10 - start)])
    by_document = Counter()
    for (document, _), n in starts.items():
        by_document[document] += n
    assert set(by_document) == set(range(1, 9))
    assert all(abs(n - 200) < 4 * math.sqrt(1600 / 8) for n in by_document.values())
    assert {sentence for _, sentence in starts} >= set(range(1, 10))


@pytest.mark.parametrize("retries", [0, 3])
def test_own_document_retries(retries):
    """With n draws among two documents the random one is its own with chance 1/2ⁿ; one draw is the least."""
    documents = make_documents([30], [30])
    row_format = make_format("segment_pair", documents, 64, own_document_retries=retries)
    own = [parts(row_format.cut(documents[0], np.random.default_rng(seed))[0])[1][0] < FIRST + 30 for seed in range(2000)]
    assert_share(own, 0.5 ** max(1, retries))
    assert labels_of(pair_rows("segment_pair", documents[:1], 64)) == [1], "a single document is its own random next"


def test_single_sentences_without_the_quirk_are_rows_without_a_label(documents):
    switched = pair_rows("segment_pair", documents, 64, force_random_if_single=False)
    labels = Counter(int(row["pair_label"]) for row in switched)
    assert min(labels[label] for label in (-1, 0, 1)) > 20
    for row in switched:
        a, b, size = parts(row)
        assert (row["pair_label"] == -1) == (not b)
        if not b:
            assert size == len(a) + 2 <= 64
            assert not row["segments"].any()
    generator = random.Random(1)
    theirs = [p[0] for _ in range(3) for p in reference_pairs(as_sentences(documents), 64, generator, force=False)]
    assert_same_share([int(row["pair_label"]) == -1 for row in switched], [label == -1 for label in theirs])
    assert_share([label for label in labels_of(switched) if label >= 0], 0.5)


def test_empty_sentences_are_left_out():
    (document,) = make_documents([0, 3, 0, 0, 4, 0])
    other = make_documents([5])[0] | {"document": 1}
    row_format = make_format("segment_pair", [document, other], 64)
    for seed in range(20):
        rows = row_format.cut(document, np.random.default_rng(seed))
        assert all(part for row in rows for part in parts(row)[:2])
        assert parts(rows[0])[0] == [10, 11, 12] or (len(parts(rows[0])[0]) == 7 and len(rows) == 1)
        assert all(part for row in row_format.cut(other, np.random.default_rng(seed)) for part in parts(row)[:2])
    units = make_format("full_sentences", [], 16).cut(document, np.random.default_rng(0))
    assert [piece.tolist() for piece, *_ in units] == [[10, 11, 12], [13, 14, 15, 16]]


def test_truncation_draws_each_token_anew():
    """The number taken from the front is binomial, not all or nothing."""
    rng = np.random.default_rng(0)
    front = [int(truncate_pair(np.arange(20), np.arange(1), 11, rng)[0][0]) for _ in range(4000)]
    assert np.mean(front) == pytest.approx(5, abs=4 * math.sqrt(2.5 / 4000))
    assert np.var(front) == pytest.approx(2.5, rel=0.12)


@pytest.mark.parametrize(
    ("sizes", "room", "kept"),
    [
        ((5, 5), 10, (5, 5)),
        ((5, 5), 9, (5, 4)),
        ((6, 5), 9, (5, 4)),
        ((9, 1), 4, (3, 1)),
        ((1, 9), 4, (1, 3)),
        ((3, 0), 2, (2, 0)),
    ],
)
def test_truncation_lengths(sizes, room, kept):
    a, b = truncate_pair(np.arange(sizes[0]), np.arange(sizes[1]), room, np.random.default_rng(0))
    assert (len(a), len(b)) == kept


# Swapped segments (ALBERT's sentence order)


@pytest.mark.parametrize("name", PAIRS)
def test_swapped_pairs_are_the_pairs_in_order_with_a_and_b_exchanged(name):
    """Sentences of five tokens in rows that they fill: nothing is truncated, and every token is read once."""
    documents = make_documents(*[[5] * count for count in (1, 2, 24, 25, 26, 100, 173)])
    in_order, swapped, mixed = (
        pair_rows(name, documents, 128, negatives="swapped", random_next_probability=p) for p in (0, 1, 0.5)
    )
    assert list(itertools.chain.from_iterable(a + b for a, b, _ in map(parts, in_order))) == everything(documents)
    labels = Counter()
    for straight, turned, row in zip(in_order, swapped, mixed, strict=True):
        assert straight["pair_label"] == turned["pair_label"] == row["pair_label"] == -1
        (a, b, _), (c, d, _) = parts(straight), parts(turned)
        label = int(row["order_label"])
        labels[label] += 1
        if b:
            assert (c, d) == (b, a) and b[0] == a[-1] + 1
            assert (straight["order_label"], turned["order_label"]) == (0, 1)
            assert parts(row)[:2] == ((a, b) if label == 0 else (c, d))
            # The segments are of the places, not of the text.
            assert turned["segments"].tolist() == [0] * (len(c) + 2) + [1] * (len(d) + 1) + [0] * (128 - 3 - len(c + d))
        else:
            assert (c, d) == (a, b) and straight["order_label"] == turned["order_label"] == label == -1
    assert set(labels) == {-1, 0, 1}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_are_swapped_as_often_as_asked(name):
    rows = pair_rows(name, make_documents(*[[50, 50]] * 2000), 128, negatives="swapped", random_next_probability=0.2)
    labels = [int(row["order_label"]) for row in rows if row["order_label"] >= 0]
    assert len(labels) == 2000 or name == "segment_pair"
    assert_share(labels, 0.2)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("force", [True, False])
def test_swapped_pairs_are_of_one_document_and_truncation_does_not_tell(documents, name, force):
    places = Places(documents)
    settings = {"negatives": "swapped", "force_random_if_single": force}
    labels = Counter()
    for row in pair_rows(name, documents, 64, **settings):
        a, b, size = parts(row)
        label = int(row["order_label"])
        labels[label] += 1
        assert (label == -1) == (not b)
        assert len({places.document[token] for token in a + b}) == 1
        if b:
            first, second = (a, b) if label == 0 else (b, a)
            assert first[-1] < second[0] and places.sentence[first[-1]] < places.sentence[second[0]]
            assert size == 64 or second[0] == first[-1] + 1
    assert min(labels.values()) > 5 and len(labels) == 3
    # Two long segments keep 31 and 30 tokens, A the odd one, whichever of them comes first in the text.
    rows = [
        (int(row["order_label"]), *parts(row)) for row in pair_rows(name, make_documents(*[[50, 50]] * 100), 64, **settings)
    ]
    assert {(label, len(a), len(b)) for label, a, b, size in rows if size == 64 and b} == {(0, 31, 30), (1, 31, 30)}


# SentencePair


@pytest.mark.parametrize("force", [False, True])
def test_sentence_pairs_are_neighbours_or_of_two_documents(documents, force):
    places, sentences = Places(documents), as_sentences(documents)
    labels, read = Counter(), []
    for row in pair_rows("sentence_pair", documents, 96, force_random_if_single=force):
        a, b, size = parts(row)
        label = int(row["pair_label"])
        document, number = places.document[a[0]], places.sentence[a[0]]
        is_last = number == len(sentences[document]) - 1
        labels[label, is_last] += 1
        assert row["example_id"][0] == document and row["order_label"] == -1
        assert a == sentences[document][number]  # the longest pair fits into a row of 96
        read.append((document, number))
        if label == -1:
            assert not b and size == len(a) + 2
        elif label == 0:
            assert b == sentences[document][number + 1]
            read.append((document, number + 1))
        else:
            assert places.document[b[0]] != document
            assert b == sentences[places.document[b[0]]][places.sentence[b[0]]]
        assert row["segments"][:size].tolist() == [0] * (len(a) + 2) + [1] * (size - len(a) - 2)
    # Every sentence is read once, in order, as A or as the B that follows.
    assert read == [(d, s) for d, document in enumerate(sentences) for s in range(len(document))]
    assert set(labels) == {(0, False), (1, False), (1 if force else -1, True)} and min(labels.values()) > 15
    assert_share([0] * labels[0, False] + [1] * labels[1, False], 0.5)


# FullSentences and DocSentences

ACROSS, BARE = {"attend_across_documents": True}, {"document_separator": False}


def assert_row(row, seq_len, tokens, numbers):
    """A row has these tokens of documents with these numbers, and padding; positions count from 0 in each document."""
    positions = [place - numbers.index(number) for place, number in enumerate(numbers)]
    for field, values in (("tokens", tokens), ("documents", numbers), ("positions", positions)):
        assert row[field].tolist() == values + [PAD] * (seq_len - len(values))
    assert not row["segments"].any() and row["pair_label"] == row["order_label"] == -1
    assert {row[field].dtype for field in row} == {np.dtype(np.int32)}


@pytest.mark.parametrize(
    ("name", "seq_len", "settings", "lengths", "expected"),
    [
        (
            "full_sentences",
            13,
            {},
            [[3, 2], [2, 4], [1]],
            [
                ([CLS, 10, 11, 12, 13, 14, SEP, 15, 16, SEP], [1] * 7 + [2] * 3),
                ([CLS, 17, 18, 19, 20, SEP, 21, SEP], [1] * 6 + [2] * 2),
            ],
        ),
        ("full_sentences", 13, ACROSS, [[3, 2], [2]], [([CLS, 10, 11, 12, 13, 14, SEP, 15, 16, SEP], [1] * 10)]),
        ("full_sentences", 12, BARE, [[2], [3], [1]], [([CLS, 10, 11, 12, 13, 14, 15, SEP], [1, 1, 1, 2, 2, 2, 3, 3])]),
        # A sentence that just fits goes in; a document's separator takes a place too.
        ("full_sentences", 8, {}, [[3, 3]], [([CLS, *range(10, 16), SEP], [1] * 8)]),
        ("full_sentences", 8, {}, [[3], [3]], [([CLS, 10, 11, 12, SEP], [1] * 5), ([CLS, 13, 14, 15, SEP], [1] * 5)]),
        # A sentence longer than a row is cut, and its rest is a sentence.
        ("full_sentences", 8, {}, [[7, 3]], [([CLS, *range(10, 16), SEP], [1] * 8), ([CLS, *range(16, 20), SEP], [1] * 6)]),
        ("doc_sentences", 12, {}, [[2, 1], [1]], [([CLS, 10, 11, 12, SEP], [1] * 5), ([CLS, 13, SEP], [1] * 3)]),
    ],
)
def test_rows_of_sentences_by_hand(name, seq_len, settings, lengths, expected):
    rows = rows_of(make_format(name, [], seq_len, **settings), make_documents(*lengths))
    for row, (tokens, numbers) in zip(rows, expected, strict=True):
        assert_row(row, seq_len, tokens, numbers)


@pytest.mark.parametrize(("name", "lengths"), [("full_sentences", [5, 4]), ("doc_sentences", [5])])
def test_a_document_read_again_is_another_document(name, lengths):
    """The end of an epoch may be followed by the same document; its end and its start do not belong together."""
    (document,) = make_documents([2, 1])
    rows = rows_of(make_format(name, [], 12), [document, document])
    assert [row["tokens"][row["tokens"] > PAD].tolist() for row in rows] == (
        [[CLS, 10, 11, 12, SEP, 10, 11, 12, SEP]] if len(lengths) == 2 else [[CLS, 10, 11, 12, SEP]] * 2
    )
    assert [np.bincount(row["documents"])[1:].tolist() for row in rows] == [lengths] * len(rows)


def reference_sentence_rows(documents, seq_len, separator, crosses):
    """Whole sentences while they fit, in plain Python: for each row its example id, and (document, tokens) of each part."""
    rows, size = [], 0
    for document, sentences in enumerate(as_sentences(documents)):
        room = seq_len - 2
        pieces = [sentence[i : i + room] for sentence in sentences for i in range(0, len(sentence), room)]
        for number, piece in enumerate(pieces):
            more = len(piece) + (separator and number == 0)
            if not rows or (number == 0 and not crosses) or size + more > room:
                rows.append(([document, number], []))
                size, more = 0, len(piece)
            if not rows[-1][1] or number == 0:
                rows[-1][1].append((document, []))
            rows[-1][1][-1][1].extend(piece)
            size += more
    return rows


@pytest.mark.parametrize("seq_len", [16, 48])
@pytest.mark.parametrize(
    ("name", "settings"),
    [("full_sentences", {}), ("full_sentences", ACROSS), ("full_sentences", BARE), ("doc_sentences", {})],
)
def test_rows_of_sentences_equal_the_reference(name, settings, seq_len):
    documents = random_documents(60, (1, 12), longest=30, seed=3)
    separator, across = settings is not BARE, settings is ACROSS
    expected = reference_sentence_rows(documents, seq_len, separator, crosses=name == "full_sentences")
    rows = rows_of(make_format(name, [], seq_len, **settings), documents)
    for row, (example_id, of_documents) in zip(rows, expected, strict=True):
        tokens, numbers = [CLS], [1]
        for number, (_, piece) in enumerate(of_documents, 1):
            ends = separator or number == len(of_documents)
            tokens += [*piece, SEP] if ends else piece
            numbers += [1 if across else number] * (len(piece) + ends)
        assert_row(row, seq_len, tokens, numbers)
        assert row["example_id"].tolist() == example_id


# From the config


def test_each_format_has_its_settings_in_the_table_of_keys():
    for name, kind in FORMATS.items():
        row_format = make_format(name, [], 64)
        assert type(row_format) is kind and kind.name == name
        group = "full_sentences" if name == "doc_sentences" else name  # which is full_sentences with fixed settings
        assert set(vars(row_format.settings)) == {key.leaf for key in KEYS if key.group == f"data.{group}"} != set()


def test_formats_say_what_their_rows_are():
    said = {attribute: [name for name, kind in FORMATS.items() if getattr(kind, attribute)] for attribute in FACTS}
    assert said == FACTS


def test_the_field_of_the_labels_is_known_from_the_config():
    made = lambda name, **settings: make_format(name, [], 64, **settings).label_field
    assert {name: made(name) for name in FORMATS if made(name)} == dict.fromkeys(
        ["segment_pair", "sentence_pair"], "pair_label"
    )
    assert made("segment_pair", negatives="swapped") == made("sentence_pair", negatives="swapped") == "order_label"
