"""Formats against the rules as written, on documents whose tokens are all different, so that every token has a known place."""

import ast
import itertools
import math
import random
import types
from collections import Counter

import numpy as np
import pytest

from bertlab.config import CHECKOUT, base_config
from bertlab.data.formats import FORMATS, format_of
from bertlab.data.formats.pairs import truncate_pair
from bertlab.errors import UserError
from bertlab.keys import KEYS

PAD, CLS, SEP = 0, 2, 3
FIRST = 10
FACTS = {
    "has_pairs": ["segment_pair", "sentence_pair"],
    "is_stream": ["stream"],
    "is_word_pairs": ["cooccurrence"],
    "crosses_documents": ["full_sentences"],
    "makes": ["segment_pair", "sentence_pair", "cooccurrence"],
}


def make_documents(*documents):
    """Prepared documents from lists of sentence lengths; every token is a number of its own from FIRST on."""
    made, token = [], FIRST
    for index, lengths in enumerate(documents):
        size = sum(lengths)
        tokens = np.arange(token, token + size, dtype=np.int32)
        tokens.flags.writeable = False
        made.append({"tokens": tokens, "sentence_lengths": np.array(lengths, np.int32), "document": index})
        token += size
    return made


def random_documents(count, sentences, longest=40, seed=0):
    generator = random.Random(seed)
    return make_documents(
        *[[generator.randint(1, longest) for _ in range(generator.randint(*sentences))] for _ in range(count)]
    )


class Prepared:
    """What formats need of a prepared corpus."""

    tokenizer = types.SimpleNamespace(pad_id=PAD, cls_id=CLS, sep_id=SEP)

    def __init__(self, documents):
        self.documents = documents

    def source(self, split):
        return self.documents


def make_format(name, documents, seq_len, **settings):
    """A format over documents, with its default settings but these."""
    data = base_config().data
    data.update(format=name, seq_len=seq_len)
    if settings:
        data[name].update(settings)
    return format_of(data, Prepared(documents))


def segment_pair(source, seq_len=32, **settings):
    return make_format("segment_pair", source, seq_len, **settings)


def sentence_pair(source, seq_len=32, **settings):
    return make_format("sentence_pair", source, seq_len, **settings)


def doc_sentences(seq_len=16):
    return make_format("doc_sentences", [], seq_len)


def full_sentences(seq_len=16, attend_across_documents=False, document_separator=True):
    switches = dict(attend_across_documents=attend_across_documents, document_separator=document_separator)
    return make_format("full_sentences", [], seq_len, **switches)


class Stream:
    """Units of documents one after the other."""

    def __init__(self, row_format, documents, seed=0):
        cut = [row_format.cut(d, np.random.default_rng([seed, i])) for i, d in enumerate(documents)]
        self._units = list(itertools.chain.from_iterable(cut))

    def peek(self):
        return self._units[0] if self._units else None

    def take(self):
        return self._units.pop(0)


def rows_of(row_format, documents, seed=0):
    stream = Stream(row_format, documents, seed)
    return list(iter(lambda: row_format.assemble(stream), None))


def parts(row):
    """Splits a pair row at its separators into lists A and B, and its number of real tokens."""
    size = int((row["documents"] > 0).sum())
    tokens = row["tokens"].tolist()
    assert tokens[0] == CLS and tokens[size - 1] == SEP
    separators = [i for i, token in enumerate(tokens[:size]) if token == SEP]
    if len(separators) == 1:
        return tokens[1 : size - 1], [], size
    middle, end = separators
    assert end == size - 1
    return tokens[1:middle], tokens[middle + 1 : end], size


class Places:
    """Where each token is from."""

    def __init__(self, documents):
        self.document, self.sentence, self.last = {}, {}, {}
        for document in documents:
            tokens = iter(document["tokens"].tolist())
            for number, length in enumerate(document["sentence_lengths"].tolist()):
                for token in itertools.islice(tokens, length):
                    self.document[token], self.sentence[token] = document["document"], number
            self.last[document["document"]] = int(document["tokens"][-1])


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


@pytest.fixture(scope="module")
def documents():
    return random_documents(60, (1, 60), seed=1)


@pytest.fixture(scope="module")
def pairs(documents):
    return rows_of(segment_pair(documents, 64), documents)


def test_pair_rows_are_cls_a_sep_b_sep(pairs):
    for row in pairs:
        a, b, size = parts(row)
        assert a and b and size == len(a) + len(b) + 3 <= 64
        assert min(a + b) >= FIRST
        assert row["segments"].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * (64 - size)
        assert row["documents"].tolist() == [1] * size + [0] * (64 - size)
        assert row["positions"].tolist() == [*range(size)] + [0] * (64 - size)
        assert (row["tokens"][size:] == PAD).all()
        assert {row[k].dtype for k in row} == {np.dtype(np.int32)}
        assert row["pair_label"] in (0, 1) and row["order_label"] == -1
    assert {int(row["pair_label"]) for row in pairs} == {0, 1}


def test_rows_carry_the_pad_id_they_are_given(documents):
    row_format = segment_pair(documents, 64)
    row_format.tokenizer = types.SimpleNamespace(pad_id=9, cls_id=CLS, sep_id=SEP)
    assert any((row["tokens"] == 9).any() for row in rows_of(row_format, documents))


def test_example_ids_number_the_rows_of_each_document(documents, pairs):
    places = Places(documents)
    seen = Counter()
    for row in pairs:
        document, number = row["example_id"].tolist()
        assert places.document[parts(row)[0][0]] == document
        assert number == seen[document]
        seen[document] += 1
    assert set(seen) == set(range(len(documents)))


def test_segments_are_runs_of_one_document(documents, pairs):
    places = Places(documents)
    for row in pairs:
        for part in parts(row)[:2]:
            assert part == list(range(part[0], part[0] + len(part)))
            assert len({places.document[token] for token in part}) == 1


def test_next_segments_follow_and_random_ones_are_of_another_document(documents, pairs):
    places = Places(documents)
    labels = Counter()
    for row in pairs:
        a, b, size = parts(row)
        label = int(row["pair_label"])
        labels[label] += 1
        same = places.document[a[0]] == places.document[b[0]]
        assert same == (label == 0)
        if label == 0:
            assert places.sentence[b[0]] > places.sentence[a[-1]]
            if size < 64:  # nothing was cut off
                assert b[0] == a[-1] + 1
    assert min(labels.values()) > 100


def test_without_truncation_segments_are_whole_sentences():
    documents = make_documents(*[[5] * count for count in (25, 50, 73, 26)])
    places = Places(documents)
    sizes = Counter()
    for row in rows_of(segment_pair(documents, 128, short_probability=0), documents):
        a, b, size = parts(row)
        assert len(a) % 5 == len(b) % 5 == 0
        assert places.sentence[a[0]] != places.sentence[a[0] - 1] if a[0] > FIRST else True
        assert (a[0] - FIRST) % 5 == (b[0] - FIRST) % 5 == 0
        sizes[size] += 1
    assert sizes[128] > 3


@pytest.mark.parametrize("seed", range(5))
def test_every_sentence_is_read(seed):
    """As A or as the real next B; what a random next leaves unused is put back. Only truncation may lose tokens."""
    documents = random_documents(20, (1, 40), longest=12, seed=seed)
    places = Places(documents)
    row_format = segment_pair(documents, 64, short_probability=0)
    read = set()
    for row in rows_of(row_format, documents, seed):
        a, b, _ = parts(row)
        read.update((places.document[t], places.sentence[t]) for t in (a + b if row["pair_label"] == 0 else a))
    # A chunk is longer than its row by less than a sentence, so no row of several sentences loses one wholly at random;
    # those at its ends may be lost.
    every = {(d["document"], s) for d in documents for s in range(len(d["sentence_lengths"]))}
    lost = every - read
    assert len(lost) < 0.05 * len(every)
    assert lost <= {key for key in every if documents[key[0]]["sentence_lengths"][key[1]] <= 11}


def test_every_token_is_read_in_order_when_nothing_is_truncated():
    documents = make_documents(*[[5] * count for count in (1, 2, 24, 25, 26, 100, 173)])
    row_format = segment_pair(documents, 128, short_probability=0.5)
    for seed in range(5):
        real = [
            parts(row)[0] + (parts(row)[1] if row["pair_label"] == 0 else []) for row in rows_of(row_format, documents, seed)
        ]
        assert list(itertools.chain.from_iterable(real)) == np.concatenate([d["tokens"] for d in documents]).tolist()


def test_statistics_are_those_of_the_reference(documents):
    """Two samples: labels, filled length, length of A and short rows agree with the independent simulation."""
    sentences, generator = as_sentences(documents), random.Random(0)
    theirs = [pair for _ in range(8) for pair in reference_pairs(sentences, 64, generator)]
    row_format = segment_pair(documents, 64)
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


@pytest.mark.parametrize(("sentences", "low", "high"), [((40, 200), 0.52, 0.55), ((8, 8), 0.57, 0.63)])
def test_random_next_is_more_than_half(sentences, low, high):
    """BERT's quirk: a chunk of one sentence, as at a document's end, always gets a random next."""
    generator = random.Random(0)
    count = 150 if sentences[0] > 8 else 1500
    lengths = [
        [round(generator.lognormvariate(3, 0.7)) + 1 for _ in range(generator.randint(*sentences))] for _ in range(count)
    ]
    documents = make_documents(*lengths)
    labels = [int(row["pair_label"]) for row in rows_of(segment_pair(documents, 128), documents)]
    theirs = [label for label, *_ in reference_pairs(as_sentences(documents), 128, generator)]
    assert_same_share(labels, theirs)
    assert low < np.mean(labels) < high


def test_rows_of_several_sentences_are_random_half_of_the_time():
    """Two long sentences make one chunk of two, so that the label is the coin alone; the second then stands alone."""
    documents = make_documents(*[[50, 50]] * 2000)
    rows = rows_of(segment_pair(documents, 64, short_probability=0), documents)
    firsts = [int(row["pair_label"]) for row in rows if row["example_id"][1] == 0]
    seconds = [int(row["pair_label"]) for row in rows if row["example_id"][1] == 1]
    assert abs(np.mean(firsts) - 0.5) < 4 * 0.5 / math.sqrt(2000)
    assert len(seconds) == sum(firsts)
    assert all(seconds)


@pytest.mark.parametrize("probability", [0.0, 0.25, 1.0])
def test_random_next_probability(probability):
    documents = make_documents(*[[50, 50]] * 1000)
    row_format = segment_pair(documents, 64, short_probability=0, random_next_probability=probability)
    firsts = [int(row["pair_label"]) for row in rows_of(row_format, documents) if row["example_id"][1] == 0]
    assert abs(np.mean(firsts) - probability) <= 4 * math.sqrt(probability * (1 - probability) / 1000)


def test_a_is_cut_off_anywhere_in_the_chunk():
    """A has 1 to all but one of the chunk's sentences, each number with equal chance."""
    documents = make_documents(*[[10] * 6] * 3000)
    row_format = segment_pair(documents, 63, short_probability=0, random_next_probability=0)
    counts = Counter(len(parts(row)[0]) for row in rows_of(row_format, documents))
    assert set(counts) == {10, 20, 30, 40, 50}
    assert all(abs(n - 600) < 4 * math.sqrt(3000 * 0.2 * 0.8) for n in counts.values())


def test_short_targets_are_drawn_once_a_document():
    """Sentences of one token fill a row to exactly its target: all rows of a document but the last are alike."""
    documents = make_documents(*[[1] * 300] * 3000)
    row_format = segment_pair(documents, 33, random_next_probability=0)
    targets = []
    for _, rows in itertools.groupby(rows_of(row_format, documents), key=lambda row: int(row["example_id"][0])):
        sizes = [len(parts(row)[0]) + len(parts(row)[1]) for row in rows if row["pair_label"] == 0]
        assert len(set(sizes[:-1])) == 1
        assert sizes[-1] <= sizes[0]
        targets.append(sizes[0])
    short = [target for target in targets if target < 30]
    share = 0.1 * 28 / 29  # a short target may be the full one
    assert abs(len(short) / 3000 - share) < 4 * math.sqrt(share * (1 - share) / 3000)
    assert min(short) == 2 and max(short) == 29
    assert np.mean(short) == pytest.approx(15.5, abs=4 * 8.1 / math.sqrt(len(short)))


def test_short_targets_are_equally_likely_up_to_the_full_one():
    documents = make_documents(*[[1] * 20] * 1500)
    row_format = segment_pair(documents, 7, random_next_probability=0, short_probability=1)
    firsts = [parts(row) for row in rows_of(row_format, documents) if row["example_id"][1] == 0]
    counts = Counter(len(a) + len(b) for a, b, _ in firsts)
    assert set(counts) == {2, 3, 4}
    assert all(abs(n - 500) < 4 * math.sqrt(1500 * 2 / 9) for n in counts.values())


def test_random_segments_start_at_any_sentence_of_any_other_document():
    documents = make_documents([30], *[[7] * 10] * 8)
    places = Places(documents)
    row_format = segment_pair(documents, 64, short_probability=0)
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


@pytest.mark.parametrize("retries", [0, 1, 3, 10])
def test_own_document_retries(retries):
    """With n draws among two documents the random one is its own with chance 1/2ⁿ; one draw is the least."""
    documents = make_documents([30], [30])
    row_format = segment_pair(documents, 64, own_document_retries=retries)
    own = [parts(row_format.cut(documents[0], np.random.default_rng(seed))[0])[1][0] < FIRST + 30 for seed in range(2000)]
    chance = 0.5 ** max(1, retries)
    assert abs(np.mean(own) - chance) <= 4 * math.sqrt(chance / 2000) + (retries == 10) * 0.002


def test_a_single_document_is_its_own_random_next():
    documents = random_documents(1, (50, 50))
    rows = rows_of(segment_pair(documents, 64), documents)
    assert {int(row["pair_label"]) for row in rows} == {0, 1}


def test_single_sentences_without_the_quirk_are_rows_without_a_label(documents):
    switched = rows_of(segment_pair(documents, 64, force_random_if_single=False), documents)
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
    coin = [int(row["pair_label"]) for row in switched if row["pair_label"] >= 0]
    assert abs(np.mean(coin) - 0.5) < 4 * 0.5 / math.sqrt(len(coin))


def test_empty_sentences_are_left_out():
    (document,) = make_documents([0, 3, 0, 0, 4, 0])
    other = make_documents([5])[0] | {"document": 1}
    for seed in range(20):
        rows = segment_pair([document, other], 64).cut(document, np.random.default_rng(seed))
        assert all(part for row in rows for part in parts(row)[:2])
        assert parts(rows[0])[0] == [10, 11, 12] or (len(parts(rows[0])[0]) == 7 and len(rows) == 1)
        assert segment_pair([other, document], 64).cut(other, np.random.default_rng(seed))
    units = full_sentences().cut(document, np.random.default_rng(0))
    assert [piece.tolist() for piece, *_ in units] == [[10, 11, 12], [13, 14, 15, 16]]


def test_rows_depend_on_the_generator_alone(documents):
    row_format = segment_pair(documents, 64)
    np.random.seed(1)
    first = row_format.cut(documents[3], np.random.default_rng(7))
    np.random.seed(2)
    again = row_format.cut(documents[3], np.random.default_rng(7))
    assert all((x[k] == y[k]).all() for x, y in zip(first, again, strict=True) for k in x)
    other = row_format.cut(documents[3], np.random.default_rng(8))
    assert [row["tokens"].tolist() for row in first] != [row["tokens"].tolist() for row in other]


def test_truncation_takes_from_the_longer_side_front_and_back_alike():
    rng = np.random.default_rng(0)
    front, removed = Counter(), Counter()
    for _ in range(2000):
        a, b = np.arange(30), np.arange(100, 150)
        short_a, short_b = truncate_pair(a, b, 40, rng)
        # 20 tokens bring B down to A; then B and A lose in turn, B first.
        assert (len(short_a), len(short_b)) == (20, 20)
        for name, full, part in (("a", a, short_a), ("b", b, short_b)):
            assert part.tolist() == list(range(part[0], part[-1] + 1))
            front[name] += int(part[0] - full[0])
            removed[name] += len(full) - len(part)
    for name in "ab":
        assert abs(front[name] / removed[name] - 0.5) < 4 * 0.5 / math.sqrt(removed[name])


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


@pytest.mark.parametrize("row_format", [segment_pair, sentence_pair])
def test_swapped_pairs_are_the_pairs_in_order_with_a_and_b_exchanged(row_format):
    """Sentences of five tokens in rows that they fill: nothing is truncated, and every token is read once."""
    documents = make_documents(*[[5] * count for count in (1, 2, 24, 25, 26, 100, 173)])
    in_order, swapped, mixed = (
        rows_of(row_format(documents, 128, negatives="swapped", random_next_probability=p), documents) for p in (0, 1, 0.5)
    )
    everything = np.concatenate([d["tokens"] for d in documents]).tolist()
    assert list(itertools.chain.from_iterable(a + b for a, b, _ in map(parts, in_order))) == everything
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


@pytest.mark.parametrize("row_format", [segment_pair, sentence_pair])
@pytest.mark.parametrize("probability", [0.5, 0.2])
def test_pairs_are_swapped_as_often_as_asked(row_format, probability):
    documents = make_documents(*[[50, 50]] * 2000)
    rows = rows_of(row_format(documents, 128, negatives="swapped", random_next_probability=probability), documents)
    labels = [int(row["order_label"]) for row in rows if row["order_label"] >= 0]
    assert len(labels) == 2000 or row_format is segment_pair
    assert abs(np.mean(labels) - probability) < 4 * math.sqrt(probability * (1 - probability) / len(labels))


@pytest.mark.parametrize("row_format", [segment_pair, sentence_pair])
@pytest.mark.parametrize("force", [True, False])
def test_swapped_pairs_are_of_one_document_and_truncation_does_not_tell(documents, row_format, force):
    places = Places(documents)
    row_format = row_format(documents, 64, negatives="swapped", force_random_if_single=force)
    labels = Counter()
    for row in rows_of(row_format, documents):
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
    documents = make_documents(*[[50, 50]] * 100)
    row_format.source = documents
    kept = {(int(row["order_label"]), len(parts(row)[0]), len(parts(row)[1])) for row in rows_of(row_format, documents)}
    assert {(0, 31, 30), (1, 31, 30)} <= kept and {k for k in kept if k[0] >= 0 and k[1] + k[2] == 61} == {
        (0, 31, 30),
        (1, 31, 30),
    }


# SentencePair


def reference_sentence_pairs(documents, seq_len, generator, force=False):
    """Pairs of single sentences in plain Python: (label, A, B, document of A, document of B)."""
    pairs = []
    for own, document in enumerate(documents):
        place = 0
        while place < len(document):
            a, rest = list(document[place]), document[place + 1 : place + 2]
            is_random = generator.random() < 0.5
            label, b, of_b, used = 0, [], own, 2
            if not rest and not force:
                label = -1
            elif not rest or is_random:
                while (of_b := generator.randrange(len(documents))) == own:
                    pass
                label, b, used = 1, list(generator.choice(documents[of_b])), 1
            else:
                b = list(rest[0])
            while len(a) + len(b) > seq_len - 3:
                longer = a if len(a) > len(b) else b
                longer.pop(0 if generator.random() < 0.5 else -1)
            pairs.append((label, a, b, own, of_b))
            place += used
    return pairs


def test_sentence_pairs_are_neighbours_or_of_two_documents(documents):
    places, sentences = Places(documents), as_sentences(documents)
    labels, read = Counter(), []
    for row in rows_of(sentence_pair(documents, 96), documents):
        a, b, size = parts(row)
        label = int(row["pair_label"])
        labels[label] += 1
        document, number = places.document[a[0]], places.sentence[a[0]]
        assert row["example_id"][0] == document and row["order_label"] == -1
        assert a == sentences[document][number]  # the longest pair fits into a row of 96
        read.append((document, number))
        if label == -1:
            assert not b and size == len(a) + 2 and number == len(sentences[document]) - 1
        elif label == 0:
            assert b == sentences[document][number + 1]
            read.append((document, number + 1))
        else:
            assert places.document[b[0]] != document
            assert b == sentences[places.document[b[0]]][places.sentence[b[0]]]
        assert row["segments"][:size].tolist() == [0] * (len(a) + 2) + [1] * (size - len(a) - 2)
        assert (row["documents"] > 0).sum() == size
    # Every sentence is read once, in order, as A or as the B that follows.
    assert read == [(d, s) for d, document in enumerate(sentences) for s in range(len(document))]
    assert min(labels.values()) > 15
    coin = [0] * labels[0] + [1] * labels[1]
    assert abs(np.mean(coin) - 0.5) < 4 * 0.5 / math.sqrt(len(coin))


@pytest.mark.parametrize("force", [False, True])
def test_sentence_pairs_have_the_statistics_of_the_reference(documents, force):
    generator = random.Random(0)
    theirs = [p for _ in range(4) for p in reference_sentence_pairs(as_sentences(documents), 48, generator, force)]
    row_format = sentence_pair(documents, 48, force_random_if_single=force)
    ours = [(int(row["pair_label"]), *parts(row)[:2]) for seed in range(4) for row in rows_of(row_format, documents, seed)]
    for label in (0, 1) if force else (-1, 0, 1):
        assert_same_share(*[[pair[0] == label for pair in side] for side in (ours, theirs)])
    for part in (1, 2):
        x, y = (np.array([len(pair[part]) for pair in side], float) for side in (ours, theirs))
        assert abs(x.mean() - y.mean()) < 4 * math.hypot(x.std() / math.sqrt(len(x)), y.std() / math.sqrt(len(y)))
    assert_same_share(*[[len(pair[1]) + len(pair[2]) == 45 for pair in side] for side in (ours, theirs)])


def test_random_sentences_are_any_of_any_other_document():
    documents = make_documents([3], *[[2] * 5] * 4)
    places = Places(documents)
    row_format = sentence_pair(documents, force_random_if_single=True)
    drawn = [parts(row_format.cut(documents[0], np.random.default_rng(seed))[0])[1] for seed in range(2000)]
    counts = Counter((places.document[b[0]], places.sentence[b[0]]) for b in drawn)
    assert all(len(b) == 2 and b[1] == b[0] + 1 for b in drawn)
    assert set(counts) == set(itertools.product(range(1, 5), range(5)))
    assert all(abs(n - 100) < 4 * math.sqrt(100) for n in counts.values())


# FullSentences


def packed(row_format, documents):
    rows = rows_of(row_format, documents)
    for row in rows:
        size = int((row["documents"] > 0).sum())
        assert row["tokens"][0] == CLS and row["tokens"][size - 1] == SEP
        assert (row["tokens"][size:] == PAD).all() and not row["documents"][size:].any() and not row["positions"][size:].any()
        assert not row["segments"].any() and row["pair_label"] == row["order_label"] == -1
        assert {row[k].dtype for k in row} == {np.dtype(np.int32)}
    return rows


def test_a_packed_row_by_hand():
    documents = make_documents([3, 2], [2, 4], [1])
    first, second = packed(full_sentences(13), documents)
    assert first["tokens"].tolist() == [CLS, 10, 11, 12, 13, 14, SEP, 15, 16, SEP, 0, 0, 0]
    assert first["documents"].tolist() == [1] * 7 + [2] * 3 + [0] * 3
    assert first["positions"].tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 0, 0, 0]
    assert second["tokens"].tolist() == [CLS, 17, 18, 19, 20, SEP, 21, SEP, *[0] * 5]
    assert second["documents"].tolist() == [1] * 6 + [2] * 2 + [0] * 5
    assert [row["example_id"].tolist() for row in (first, second)] == [[0, 0], [1, 1]]


def test_a_sentence_that_just_fits_goes_in():
    (row,) = packed(full_sentences(8), make_documents([3, 3]))
    assert row["tokens"].tolist() == [CLS, *range(10, 16), SEP]
    assert len(packed(full_sentences(7), make_documents([3, 3]))) == 2
    # A document's separator takes a place too.
    assert len(packed(full_sentences(8), make_documents([3], [3]))) == 2
    assert len(packed(full_sentences(9), make_documents([3], [3]))) == 1
    assert len(packed(full_sentences(8, document_separator=False), make_documents([3], [3]))) == 1


@pytest.mark.parametrize("separator", [True, False])
@pytest.mark.parametrize("across", [True, False])
def test_packed_rows_read_everything_in_order(documents, separator, across):
    rows = packed(full_sentences(48, across, separator), documents)
    read = np.concatenate([row["tokens"][row["tokens"] >= FIRST] for row in rows])
    assert read.tolist() == np.concatenate([d["tokens"] for d in documents]).tolist()


def test_no_sentence_is_split_unless_longer_than_a_row():
    documents = random_documents(40, (1, 30), longest=60, seed=3)
    places = Places(documents)
    rows_with, lengths = {}, {}
    for index, row in enumerate(packed(full_sentences(48), documents)):
        for token in row["tokens"][row["tokens"] >= FIRST].tolist():
            key = places.document[token], places.sentence[token]
            rows_with.setdefault(key, set()).add(index)
            lengths[key] = lengths.get(key, 0) + 1
    split = {key for key, rows in rows_with.items() if len(rows) > 1}
    assert split == {key for key, length in lengths.items() if length > 46}
    assert split


def test_rows_are_as_full_as_whole_sentences_allow(documents):
    places = Places(documents)
    rows = packed(full_sentences(48), documents)
    for row, following in itertools.pairwise(rows):
        size = int((row["documents"] > 0).sum())
        start, last = int(following["tokens"][1]), int(row["tokens"][size - 2])
        length = int(documents[places.document[start]]["sentence_lengths"][places.sentence[start]])
        crosses = places.document[start] != places.document[last]
        assert size + crosses + length > 48


def test_an_oversized_sentence_is_cut_into_pieces():
    rows = packed(full_sentences(10), make_documents([20, 3]))
    assert [row["tokens"][row["tokens"] >= FIRST].tolist() for row in rows] == [
        [*range(10, 18)],
        [*range(18, 26)],
        [*range(26, 30), *range(30, 33)],
    ]
    assert [row["example_id"].tolist() for row in rows] == [[0, 0], [0, 1], [0, 2]]


def test_documents_of_a_row_are_numbered_and_count_positions_anew():
    documents = random_documents(80, (1, 5), longest=12, seed=2)
    places = Places(documents)
    several = 0
    for row in packed(full_sentences(48), documents):
        current, number, position = None, 0, 0
        size = int((row["documents"] > 0).sum())
        for place, token in enumerate(row["tokens"][:size].tolist()):
            if token >= FIRST:
                if places.document[token] != current:
                    current, number = places.document[token], number + 1
                    position = 1 if number == 1 else 0
                document = number
            else:
                document = max(1, number)
            assert (row["documents"][place], row["positions"][place]) == (document, position)
            position += 1
            # A separator stands before every token of another document but the first, and at the end.
            if token == SEP and place < size - 1:
                following = int(row["tokens"][place + 1])
                assert places.document[following] != current
        several += number > 2
    assert several > 5


def test_attend_across_documents_makes_a_row_one_document():
    documents = make_documents([3, 2], [2, 4], [1])
    first, _ = packed(full_sentences(13, attend_across_documents=True), documents)
    assert first["documents"].tolist() == [1] * 10 + [0] * 3
    assert first["positions"].tolist() == [*range(10), 0, 0, 0]
    assert first["tokens"].tolist() == [CLS, 10, 11, 12, 13, 14, SEP, 15, 16, SEP, 0, 0, 0]


def test_without_separators_documents_still_have_borders():
    (row,) = packed(full_sentences(12, document_separator=False), make_documents([2], [3], [1]))
    assert row["tokens"].tolist() == [CLS, 10, 11, 12, 13, 14, 15, SEP, 0, 0, 0, 0]
    assert row["documents"].tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 0, 0, 0, 0]
    assert row["positions"].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 0, 0, 0, 0]


def test_a_document_read_again_is_another_document():
    """The end of an epoch may be followed by the same document; its end and its start do not belong together."""
    (document,) = make_documents([2, 1])
    (row,) = packed(full_sentences(12), [document, document])
    assert row["tokens"].tolist() == [CLS, 10, 11, 12, SEP, 10, 11, 12, SEP, 0, 0, 0]
    assert row["documents"].tolist() == [1] * 5 + [2] * 4 + [0] * 3


# DocSentences


def reference_document_rows(lengths, seq_len):
    """Whole sentences of one document while they fit, in plain Python: the number of tokens of each row."""
    room = seq_len - 2
    pieces = [min(room, n - i) for n in lengths for i in range(0, n, room)]
    rows = [0]
    for piece in pieces:
        if rows[-1] + piece > room:
            rows.append(0)
        rows[-1] += piece
    return rows


@pytest.mark.parametrize("seq_len", [16, 48])
def test_document_rows_never_cross_and_are_as_full_as_whole_sentences_allow(documents, seq_len):
    places = Places(documents)
    sizes = {}
    for row in packed(doc_sentences(seq_len), documents):
        tokens = row["tokens"][row["documents"] > 0].tolist()
        assert [tokens[0], tokens[-1]] == [CLS, SEP] and min(tokens[1:-1]) >= FIRST
        (document,) = {places.document[token] for token in tokens[1:-1]}
        assert document == row["example_id"][0]
        assert row["documents"].max() == 1 and row["positions"].max() == len(tokens) - 1
        sizes.setdefault(document, []).append(len(tokens) - 2)
    assert sizes == {d["document"]: reference_document_rows(d["sentence_lengths"].tolist(), seq_len) for d in documents}
    rows = packed(doc_sentences(seq_len), documents)
    read = np.concatenate([row["tokens"][row["tokens"] >= FIRST] for row in rows])
    assert read.tolist() == np.concatenate([d["tokens"] for d in documents]).tolist()


def test_a_document_that_is_read_again_begins_a_row():
    (document,) = make_documents([2, 1])
    rows = packed(doc_sentences(12), [document, document])
    assert [row["tokens"].tolist() for row in rows] == [[CLS, 10, 11, 12, SEP, *[PAD] * 7]] * 2
    assert [row["example_id"].tolist() for row in rows] == [[0, 0]] * 2


# From the config


def test_each_format_has_its_settings_in_the_table_of_keys(documents):
    of_keys = {name: {key.leaf for key in KEYS if key.group == f"data.{name}"} for name in FORMATS}
    data = base_config().data
    for name, kind in FORMATS.items():
        data.format = name
        assert type(format_of(data)) is kind and kind.name == name
        if name != "doc_sentences":  # which is full_sentences with fixed settings
            assert set(vars(format_of(data).settings)) == of_keys[name] != set()
    data.format = "doc_sentences"
    assert set(vars(format_of(data).settings)) == of_keys["full_sentences"]


def test_formats_say_what_their_rows_are():
    said = {attribute: [name for name, kind in FORMATS.items() if getattr(kind, attribute)] for attribute in FACTS}
    assert said == FACTS


def test_the_field_of_the_labels_is_known_from_the_config():
    made = lambda name, **settings: make_format(name, [], 64, **settings).label_field
    assert {name: made(name) for name in FORMATS if made(name)} == dict.fromkeys(
        ["segment_pair", "sentence_pair"], "pair_label"
    )
    assert made("segment_pair", negatives="swapped") == made("sentence_pair", negatives="swapped") == "order_label"
    with pytest.raises(UserError, match=r"config\.data\.sentence_pair\.negatives='shuffled'"):
        made("sentence_pair", negatives="shuffled")


def test_an_unknown_format_is_refused(documents):
    with pytest.raises(UserError, match=r"config\.data\.format='pairs' .*segment_pair, full_sentences, sentence_pair"):
        make_format("pairs", documents, 64)


def test_only_formats_compare_formats_names():
    """A new format is one file and one entry: nobody else asks for a name."""
    found = []
    for path in sorted((CHECKOUT / "bertlab").rglob("*.py")):
        if path.is_relative_to(CHECKOUT / "bertlab/data/formats"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                names = {
                    leaf.value for leaf in ast.walk(node) if isinstance(leaf, ast.Constant) and isinstance(leaf.value, str)
                }
                found += [f"{path}:{node.lineno}"] if names & FORMATS.keys() else []
    assert not found
