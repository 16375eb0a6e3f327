import itertools

import numpy as np
import pytest

from bertlab.data.batches import Batches
from bertlab.data.formats.stream import Sequence, StreamPlan
from bertlab.data.plans import Text, bounds_of
from tests.data.made_corpus import CLS, PAD, SEP, TOKENIZER, config, make, random_documents

WRAPS = ("document", "sentence", "none")


@pytest.fixture(scope="module")
def documents():
    return random_documents(40)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, documents):
    return make(tmp_path_factory.mktemp("stream") / "corpus", documents)


def read_stream(documents, wrap, across, backward):
    """(token, next token or -1, document) of each position of a lane that reads all documents."""
    read = []  # in the order of reading
    for number, document in enumerate(documents):
        sentences = [list(sentence) for sentence in document]
        if backward:
            sentences = [sentence[::-1] for sentence in sentences[::-1]]
        if wrap == "sentence":
            start, end = (SEP, CLS) if backward else (CLS, SEP)
            for sentence in sentences:
                tokens = [start, *sentence]
                read += zip(tokens, [*sentence, end], [number] * len(tokens), strict=True)
            continue
        tokens = list(itertools.chain.from_iterable(sentences))
        if wrap == "document":
            tokens = [SEP, *tokens] if backward else [*tokens, SEP]
        read += [(token, None, number) for token in tokens]
    following = [*((token, number) for token, _, number in read[1:]), (-1, -1)]
    return [
        (token, (then if across or number == after else -1) if given is None else given, number)
        for (token, given, number), (then, after) in zip(read, following, strict=True)
    ]


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("across", [True, False])
@pytest.mark.parametrize("backward", [False, True])
def test_one_lane_reads_all_documents_on_end(corpus, documents, wrap, across, backward):
    data = config(format="stream", batch_size=1, stream__wrap=wrap, stream__backward=True)
    data.stream.attend_across_documents = across
    numbers = np.arange(len(documents))[:: -1 if backward else 1]  # read from the last one on
    split = corpus.split("train")
    text = Text(split.sentences[:-1], split.sentences, split.documents)
    sides = [Sequence.from_text(text, wrap, side, TOKENIZER, 1, False) for side in (False, True)]
    sequences = dict(zip(("", "backward_"), sides, strict=True))
    rows = -(-int(sequences[""].lanes[-1]) // data.seq_len)
    steps = bounds_of(np.full(rows, data.seq_len))
    plan = StreamPlan(sequences, steps, data, TOKENIZER)
    arrays = {"tokens": corpus.split("train").tokens}
    fields = plan.gather(arrays, np.arange(rows), data.seq_len, PAD)
    side = "backward_" if backward else ""
    in_order = [documents[number] for number in numbers]
    expected = read_stream(in_order, wrap, across, backward)
    found = []
    for row in range(rows):
        tokens, following, is_text = (
            fields[f"{side}{name}"][row] for name in ("tokens", "next_tokens", "documents")
        )
        pairs = [(t, n) for t, n, d in zip(tokens, following, is_text, strict=True) if d]
        found += pairs[::-1] if backward else pairs
    assert found == [(token, then) for token, then, _ in expected]
    reads_on = fields[f"{side}continues"]
    ends = [number for *_, number in expected]
    border = [0, *(ends[at - 1] == ends[at] for at in range(32, len(ends), 32))]
    assert reads_on.tolist() == [int(row > 0 and (across or border[row])) for row in range(rows)]


def lanes(batches, steps, side, field):
    """[B] of each lane's values in text order, without padding."""
    made = [batches(step) for step in range(steps)]
    made = made[::-1] if side else made
    return [
        np.concatenate([b[f"{side}{field}"][lane][b[f"{side}documents"][lane] > 0] for b in made])
        for lane in range(len(made[0]["tokens"]))
    ]


def steps_of_epoch(batches):
    return next(step for step in itertools.count() if batches(step)["visit"][0] > 0)


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("vary", [False, True])
@pytest.mark.parametrize("side", ["", "backward_"])
def test_lanes_continue_and_cover_the_text(corpus, documents, wrap, vary, side):
    changes = {"stream__wrap": wrap, "stream__backward": True, "stream__vary_length": vary}
    batches = Batches(corpus, config(format="stream", batch_size=4, **changes))
    steps = steps_of_epoch(batches)
    tokens = lanes(batches, steps, side, "tokens")
    after = lanes(batches, steps, side, "next_tokens")
    sizes = [len(lane) for lane in tokens]
    assert max(sizes) - min(sizes) <= 1
    whole, after = np.concatenate(tokens), np.concatenate(after)

    # The documents, each once, intact and in another order.
    text = whole[whole > SEP]
    begins = {document[0][0]: list(itertools.chain(*document)) for document in documents}
    order, at = [], 0
    while at < len(text):
        document = begins[text[at]]
        assert text[at : at + len(document)].tolist() == document
        order.append(text[at])
        at += len(document)
    assert sorted(order) == sorted(begins) and order != sorted(order)

    # Each token predicts the next in reading order; ELMo's reads no end and predicts no start.
    whole, after = (whole[::-1], after[::-1]) if side else (whole, after)
    expected = np.append(whole[1:], -1)
    if wrap == "sentence":
        read, predicted = (SEP, CLS) if side else (CLS, SEP)
        expected = np.where((expected == read) | (expected == -1), predicted, expected)
        assert predicted not in whole and (whole == read).sum() == sum(map(len, documents))
    np.testing.assert_array_equal(after, expected)


def test_states_start_anew_with_an_epoch_and_where_a_row_begins_a_document(tmp_path):
    corpus = make(tmp_path / "corpus", random_documents(80, sentences=3, words=12))
    changes = {"stream__attend_across_documents": False, "stream__backward": True}
    batches = Batches(corpus, config(format="stream", batch_size=2, seq_len=16, **changes))
    steps = steps_of_epoch(batches)
    seen = set()
    for step in range(steps - 1):
        batch, following = batches(step), batches(step + 1)
        assert step or not (batch["continues"].any() or batch["backward_continues"].any())
        for lane in range(2):
            size = int((batch["documents"][lane] > 0).sum())
            begins = batch["tokens"][lane][size - 1] == SEP
            assert following["continues"][lane] == (not begins)
            # Going backward, a row is read from its last position on.
            following_size = int((following["backward_documents"][lane] > 0).sum())
            begins = following["backward_tokens"][lane][following_size - 1] == SEP
            assert following["backward_continues"][lane] == (not begins)
            seen.add(int(begins))
            is_last = np.isin(batch["tokens"][lane], [SEP]) & (batch["documents"][lane] > 0)
            assert (batch["next_tokens"][lane][is_last] == -1).all()
            new = np.diff(batch["documents"][lane][:size], prepend=batch["documents"][lane][0])
            np.testing.assert_array_equal(
                np.flatnonzero(new), np.flatnonzero(is_last[: size - 1]) + 1
            )
            assert (batch["positions"][lane][:size][new > 0] == 0).all()
    assert seen == {0, 1}
    assert not batches(steps)["continues"].any()


def test_varied_lengths_are_one_in_a_batch_and_scale_the_rate(tmp_path):
    corpus = make(tmp_path / "corpus", random_documents(400))
    data = config(format="stream", batch_size=2, seq_len=40, stream__vary_length=True)
    batches = Batches(corpus, data)
    steps = steps_of_epoch(batches)
    lengths = []
    for step in range(steps - 1):  # the last one is what remains
        batch = batches(step)
        assert batch["tokens"].shape == (2, 60)
        (length,) = set((batch["documents"] > 0).sum(axis=1))
        np.testing.assert_allclose(batch["rate_scale"], length / 40)
        lengths.append(length)
    assert 38 < np.median(lengths) < 42 and min(lengths) < 30 and len(set(lengths)) > 10


def test_evaluation_reads_whole_documents_in_a_lane(corpus, documents):
    made = Batches(corpus, config(format="stream", batch_size=4), "valid").evaluation()
    text = []
    for lane in range(4):
        tokens = np.concatenate([b["tokens"][lane][b["documents"][lane] > 0] for b in made])
        assert not len(tokens) or tokens[-1] == SEP
        text += tokens[tokens > SEP].tolist()
    assert sorted(text) == sorted(t for document in documents for s in document for t in s)
