"""Streams against plain readings of documents whose tokens are all different, so that each tells its document and place."""

import itertools

import numpy as np
import pytest

from bertlab.config import base_config
from bertlab.data.batches import eval_batches
from bertlab.data.formats import row_length
from bertlab.data.formats.stream import varied_length
from tests.batches import FIRST, Places, Prepared, assert_equal_batches, make_documents, random_documents, take

PAD, CLS, SEP = 0, 2, 3
DOCUMENTS = 23
WRAPS = ("document", "sentence", "none")


class Text(Prepared):
    """A prepared corpus and the plain way to read it."""

    def __init__(self, documents):
        super().__init__(documents)
        self.document_of = Places(documents).document

    def reading(self, document, wrap, backward=False):
        """Plain (inputs, targets) of a document in the order in which it is read; the last target None if it is open."""
        record = self.documents[document]
        sentences = [s.tolist() for s in np.split(record["tokens"], np.cumsum(record["sentence_lengths"])[:-1]) if len(s)]
        if wrap == "sentence":
            begin, end = (SEP, CLS) if backward else (CLS, SEP)
            read = [s[::-1] for s in sentences[::-1]] if backward else sentences
            return [x for s in read for x in [begin, *s]], [x for s in read for x in [*s, end]]
        text = [*itertools.chain(*sentences), *([SEP] if wrap == "document" else [])]
        inputs = text[::-1] if backward else text
        return inputs, [*inputs[1:], None]


@pytest.fixture(scope="module")
def prepared():
    return Text(random_documents(DOCUMENTS, (1, 8), longest=5))


def data_config(stream=(), **changes):
    data = base_config().data
    data.update({"format": "stream", "seq_len": 12, "batch_size": 4, **changes})
    data.stream.update(dict(stream))
    return data


def lanes(batches, prefix=""):
    """For each lane its (tokens, targets, documents in rows), real positions only, in the order in which they are read."""
    step = -1 if prefix else 1
    result = []
    for lane in range(len(batches[0]["tokens"])):
        real = [batch[f"{prefix}documents"][lane] > 0 for batch in batches]
        result.append(
            [
                list(itertools.chain(*(b[prefix + name][lane][r][::step].tolist() for b, r in zip(batches, real))))
                for name in ("tokens", "next_tokens", "documents")
            ]
        )
    return result


def visits_of(prepared, tokens, wrap, backward=False):
    """Cuts what a lane read into documents: (document, number of its tokens that were read), as far as they show."""
    visits, place = [], 0
    while (word := next((token for token in tokens[place:] if token >= FIRST), None)) is not None:
        document = prepared.document_of[word]
        inputs, _ = prepared.reading(document, wrap, backward)
        read = tokens[place : place + len(inputs)]
        assert read == inputs[: len(read)]
        visits.append((document, len(read)))
        place += len(read)
    return visits


def drawn(prepared, batches, wrap="document", prefix=""):
    """The documents in the order in which the lanes drew them: a lane draws the next when it has read one's last token."""
    starts = []
    for lane, (tokens, _, _) in enumerate(lanes(batches, prefix)):
        ends = np.cumsum([(batch[f"{prefix}documents"][lane] > 0).sum() for batch in batches])
        place = 0
        for document, size in visits_of(prepared, tokens, wrap, bool(prefix)):
            when = (int(np.searchsorted(ends, place)), lane, place) if place else (-1, lane, 0)
            starts.append((when, document))
            place += size
    return [document for _, document in sorted(starts)]


def test_batches_have_these_fields_and_shapes(prepared):
    (batch,) = take(1, prepared, data_config(stream={"backward": True}))
    row = dict.fromkeys(("tokens", "segments", "documents", "positions", "next_tokens"), ((4, 12), "int32"))
    row["continues"] = ((4,), "int32")
    assert {name: (array.shape, array.dtype.name) for name, array in batch.items()} == {
        **row,
        **{f"backward_{name}": value for name, value in row.items()},
        **dict.fromkeys(("pair_label", "order_label", "visit"), ((4,), "int32")),
        "rate_scale": ((4,), "float32"),
        "example_id": ((4, 2), "int32"),
    }
    assert (batch["pair_label"] == -1).all() and (batch["segments"] == 0).all() and (batch["rate_scale"] == 1).all()


def test_one_lane_by_hand():
    prepared = Prepared(make_documents([2, 0, 1]))
    rows = {}
    for wrap, across in itertools.product(WRAPS, (True, False)):
        stream = {"wrap": wrap, "backward": True, "attend_across_documents": across}
        batches = take(2, prepared, data_config(stream, seq_len=5, batch_size=1))
        rows[wrap, across] = [
            {name.replace("backward_", "b_"): array[0].tolist() for name, array in batch.items()} for batch in batches
        ]
    expected = {
        ("document", True): (
            {"tokens": [10, 11, 12, 3, 10], "next_tokens": [11, 12, 3, 10, 11], "documents": [1] * 5, "continues": 0},
            {"tokens": [11, 12, 3, 10, 11], "next_tokens": [12, 3, 10, 11, 12], "positions": [*range(5)], "continues": 1},
            # Read from the right: 3 12 11 10 3, then 12 11 10 3 12.
            {"b_tokens": [3, 10, 11, 12, 3], "b_next_tokens": [12, 3, 10, 11, 12], "b_continues": 0},
            {"b_tokens": [12, 3, 10, 11, 12], "b_next_tokens": [11, 12, 3, 10, 11], "b_continues": 1},
        ),
        ("document", False): (
            {"tokens": [10, 11, 12, 3, 10], "next_tokens": [11, 12, 3, -1, 11], "documents": [1, 1, 1, 1, 2]},
            {"next_tokens": [12, 3, -1, 11, 12], "documents": [1, 1, 1, 2, 2], "positions": [0, 1, 2, 0, 1], "continues": 1},
            {"b_tokens": [3, 10, 11, 12, 3], "b_next_tokens": [12, -1, 10, 11, 12], "b_documents": [1, 2, 2, 2, 2]},
            {"b_next_tokens": [11, 12, -1, 10, 11], "b_positions": [0, 1, 0, 1, 2], "b_documents": [1, 1, 2, 2, 2]},
        ),
        ("none", True): (
            {"tokens": [10, 11, 12, 10, 11], "next_tokens": [11, 12, 10, 11, 12], "documents": [1] * 5},
            {"tokens": [12, 10, 11, 12, 10], "next_tokens": [10, 11, 12, 10, 11], "example_id": [0, 2]},
            {"b_tokens": [11, 12, 10, 11, 12], "b_next_tokens": [10, 11, 12, 10, 11]},
            {"b_tokens": [12, 10, 11, 12, 10], "b_next_tokens": [11, 12, 10, 11, 12]},
        ),
        ("none", False): (
            {"next_tokens": [11, 12, -1, 11, 12], "documents": [1, 1, 1, 2, 2], "continues": 0},
            {"next_tokens": [-1, 11, 12, -1, 11], "documents": [1, 2, 2, 2, 3], "continues": 1},
            {"b_next_tokens": [10, 11, -1, 10, 11], "b_documents": [1, 1, 2, 2, 2]},
            {"b_next_tokens": [11, -1, 10, 11, -1], "b_documents": [1, 2, 2, 2, 3], "b_continues": 1},
        ),
        ("sentence", True): (
            {"tokens": [2, 10, 11, 2, 12], "next_tokens": [10, 11, 3, 12, 3], "documents": [1] * 5},
            {"tokens": [2, 10, 11, 2, 12], "next_tokens": [10, 11, 3, 12, 3], "continues": 1},
            {"b_tokens": [10, 11, 3, 12, 3], "b_next_tokens": [2, 10, 11, 2, 12]},
            {"b_tokens": [10, 11, 3, 12, 3], "b_next_tokens": [2, 10, 11, 2, 12], "b_continues": 1},
        ),
        # The second row begins with the document: there is nothing to go on with.
        ("sentence", False): (
            {"tokens": [2, 10, 11, 2, 12], "next_tokens": [10, 11, 3, 12, 3], "documents": [1] * 5},
            {"tokens": [2, 10, 11, 2, 12], "continues": 0, "example_id": [0, 0]},
            {"b_tokens": [10, 11, 3, 12, 3], "b_documents": [1] * 5},
            {"b_continues": 0},
        ),
    }
    for case, (first, second, first_back, second_back) in expected.items():
        for number, wanted in ((0, first), (1, second), (0, first_back), (1, second_back)):
            assert {name: rows[case][number][name] for name in wanted} == wanted, (case, number)


@pytest.mark.parametrize("vary", [False, True])
@pytest.mark.parametrize(("wrap", "across"), [*zip(WRAPS, (True, False, True)), ("document", False)])
def test_a_lane_reads_whole_documents_and_knows_what_follows(prepared, wrap, across, vary):
    """Whatever the rows' borders are: rows of one lane, put together, are documents, and targets what comes next in them."""
    stream = {"wrap": wrap, "backward": True, "attend_across_documents": across, "vary_length": vary}
    batches = take(20, prepared, data_config(stream))
    for prefix in ("", "backward_"):
        for tokens, targets, _ in lanes(batches, prefix):
            visits = visits_of(prepared, tokens, wrap, bool(prefix))
            assert len(visits) > 5
            expected = []
            for document, size in visits:
                expected += prepared.reading(document, wrap, bool(prefix))[1][:size]
            # Across documents, an open end knows the next document's first token; even at a row's end.
            following = [*tokens[1:], None]
            expected = [(follows if across else -1) if t is None else t for t, follows in zip(expected, following)]
            assert targets[: len(expected) - 1] == expected[:-1]
            assert (CLS in tokens) == (wrap == "sentence" and not prefix)
            assert (SEP in tokens) == (wrap == "document" or (wrap == "sentence" and bool(prefix)))


def test_every_epoch_reads_every_document_once_in_another_order(prepared):
    batches = take(60, prepared, data_config({"backward": True}))
    forward, backward = (drawn(prepared, batches, prefix=prefix) for prefix in ("", "backward_"))
    for order in (forward, backward):
        epochs = [order[i : i + DOCUMENTS] for i in range(0, 3 * DOCUMENTS, DOCUMENTS)]
        assert all(sorted(epoch) == list(range(DOCUMENTS)) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == 3
    first = backward[:DOCUMENTS]
    assert first not in (forward[:DOCUMENTS], forward[DOCUMENTS : 2 * DOCUMENTS]), "the backward stream has an order of its own"
    # Nor does the seed beside it read forward what this one reads, backward or forward.
    assert drawn(prepared, take(20, prepared, data_config(seed=1)))[:DOCUMENTS] not in (first, forward[:DOCUMENTS])
    for alone, both in zip(take(5, prepared, data_config()), batches):
        assert_equal_batches([{name: both[name] for name in alone}], [alone])


def test_a_corpus_of_fewer_documents_than_lanes():
    few = Text(random_documents(2, (1, 8), longest=5))
    batches = take(9, few, data_config(batch_size=5))
    assert {document for document, _ in (batches[0]["example_id"]).tolist()} == {0, 1}
    order = drawn(few, batches)
    assert len(order) > 10 and all(sorted(order[i : i + 2]) == [0, 1] for i in range(0, 10, 2))


def test_hosts_share_the_documents_and_the_lanes(prepared):
    data = data_config({"vary_length": True})
    hosts = [take(60, prepared, data, (host, 2)) for host in (0, 1)]
    assert hosts[0][0]["tokens"].shape == (2, 32)
    orders = [drawn(prepared, batches) for batches in hosts]
    for epoch in range(2):
        parts = [order[epoch * share : (epoch + 1) * share] for order, share in zip(orders, (12, 11))]
        assert sorted(parts[0] + parts[1]) == list(range(DOCUMENTS))
    for one, other in zip(*hosts):
        assert one["rate_scale"].tolist() == other["rate_scale"].tolist()


# Varied lengths


def test_lengths_vary_as_awd_lstms():
    data = data_config({"vary_length": True}, seq_len=70)
    lengths = np.array([varied_length(data, batch) for batch in range(3000)])
    # Truncation takes half a token off; at 35 and at 70 no length is beyond both.
    long, short = lengths[lengths > 52], lengths[lengths <= 52]
    assert abs(len(short) / len(lengths) - 0.05) < 0.016
    assert abs(long.mean() - 69.5) < 0.4 and abs(short.mean() - 34.5) < 1.7
    assert abs(long.std() - 5) < 0.3 and abs(short.std() - 5) < 1.2
    assert row_length(data) == 90 and lengths.max() <= 90
    tiny = data_config({"vary_length": True}, seq_len=8)
    assert min(varied_length(tiny, batch) for batch in range(100)) == 5
    other = data_config({"vary_length": True}, seq_len=70, seed=1)
    assert lengths[:20].tolist() != [varied_length(other, batch) for batch in range(20)]


def test_a_varied_row_is_padded_and_tells_the_rate(prepared):
    data = data_config({"vary_length": True, "backward": True})
    sizes = []
    for number, batch in enumerate(take(30, prepared, data)):
        size = varied_length(data, number)
        sizes.append(size)
        for prefix in ("", "backward_"):
            assert batch[f"{prefix}tokens"].shape == (4, 32)
            assert (batch[f"{prefix}documents"] > 0).sum(1).tolist() == [size] * 4
            assert (batch[f"{prefix}documents"][:, :size] > 0).all()
            assert (batch[f"{prefix}tokens"][:, size:] == PAD).all() and (batch[f"{prefix}next_tokens"][:, size:] == -1).all()
        np.testing.assert_allclose(batch["rate_scale"], size / 12, rtol=1e-6)
    assert len(set(sizes)) > 8
    assert row_length(data_config()) == 12 and row_length(data_config(format="full_sentences")) == 12


# Evaluation


@pytest.mark.parametrize("wrap", WRAPS)
def test_evaluation_reads_every_document_once(prepared, wrap):
    batches = eval_batches(prepared, data_config({"wrap": wrap, "backward": True}), "valid", 0)
    for prefix in ("", "backward_"):
        read = []
        for tokens, targets, _ in lanes(batches, prefix):
            visits = visits_of(prepared, tokens, wrap, bool(prefix))
            read += [document for document, _ in visits]
            expected = [t for d, _ in visits for t in prepared.reading(d, wrap, bool(prefix))[1]]
            # Every token but the first of a lane is predicted, once; nothing after the last.
            assert targets == [f if t is None else t for t, f in zip(expected, [*tokens[1:], -1])]
        assert sorted(read) == list(range(DOCUMENTS))
    first, *others = batches
    assert (first["continues"] == 0).all() and (first["backward_continues"] == 0).all()
    for batch in others:
        for prefix in ("", "backward_"):
            going_on = batch[f"{prefix}documents"][:, 0] > 0
            assert (batch[f"{prefix}continues"][going_on] == 1).all()
    assert all((batch["documents"] > 0).any() or (batch["backward_documents"] > 0).any() for batch in batches)
    assert (batches[-1]["documents"] == 0).any()


def test_evaluation_is_always_the_same_and_of_one_length(prepared):
    expected = eval_batches(prepared, data_config(), "valid", 5)
    data = data_config({"vary_length": True}, seed=9, shuffle_window=10)
    # Rows are as wide as in training, so that one compiled step does for both.
    wider = eval_batches(prepared, data, "valid", 5)
    assert all(batch["tokens"].shape == (4, 32) and not batch["documents"][:, 12:].any() for batch in wider)
    cut = [{k: v[:, :12] if v.shape == (4, 32) else v for k, v in batch.items()} for batch in wider]
    assert_equal_batches(cut, expected)
    assert_equal_batches(eval_batches(prepared, data_config(), "valid", 3), expected[:3])
    assert all(batch["tokens"].shape == (4, 12) and (batch["rate_scale"] == 1).all() for batch in expected)
