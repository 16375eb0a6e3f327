import itertools
import json
import random
import types
from collections import Counter
from pydoc_data import topics

import grain
import numpy as np
import pytest
from ml_collections import ConfigDict

from bertlab.config import base_config
from bertlab.data.batches import AddCharacters, BatchHash, check_data, eval_batches, train_batches
from bertlab.data.buckets import bucketed
from bertlab.data.formats import format_of
from bertlab.data.prepare import load_prepared, prepare
from bertlab.data.prepared import UnknownWords
from bertlab.data.rows import pad_batch
from bertlab.data.vocabularies import split_words
from bertlab.errors import UserError
from tests.batches import Places, Prepared, Source, Tokenizer, assert_equal_batches, opened, random_documents, take

FORMATS = ("segment_pair", "full_sentences")
SIZES = {"train": 23, "valid": 7, "test": 2}


def corpus(sizes=SIZES, sentences=(1, 20), longest=12):
    """Splits of so many documents."""
    documents = iter(random_documents(sum(sizes.values()), sentences, longest, step=3))
    return Prepared(**{split: Source(itertools.islice(documents, size)) for split, size in sizes.items()})


def numbers(prepared, split):
    return {record["document"] for record in prepared.source(split)}


@pytest.fixture(scope="module")
def prepared():
    return corpus()


def data_config(**changes):
    data = base_config().data
    data.update({"format": "segment_pair", "seq_len": 32, "batch_size": 4, "shuffle_window": 0, **changes})
    return data


def chain(batches):
    value = BatchHash()
    for batch in batches:
        value.update(batch)
    return value.value


def documents_in_order(batches):
    """The documents of pair rows that were not mixed, in the order they were read, once for each reading."""
    ids = itertools.chain.from_iterable(batch["example_id"].tolist() for batch in batches)
    return [document for document, number in ids if number == 0]


def test_batches_have_these_fields_and_shapes(prepared):
    (batch,) = take(1, prepared, data_config())
    assert {name: (array.shape, array.dtype.name) for name, array in batch.items()} == {
        "tokens": ((4, 32), "int32"),
        "segments": ((4, 32), "int32"),
        "documents": ((4, 32), "int32"),
        "positions": ((4, 32), "int32"),
        **dict.fromkeys(("pair_label", "order_label", "visit"), ((4,), "int32")),
        "example_id": ((4, 2), "int32"),
    }


# Position


@pytest.mark.parametrize(
    ("format_name", "changes"),
    [
        ("segment_pair", {"shuffle_window": 10, "dupe_factor": 2}),
        ("segment_pair", {"shuffle_window": 40, "pack_length": 80}),
        ("sentence_pair", {"dupe_factor": 2, "buckets": (10, 16, 24, 32)}),
        ("full_sentences", {}),
        ("full_sentences", {"pack_length": 80}),
        ("doc_sentences", {}),
        ("stream", {}),
        ("stream", {"stream": {"wrap": "sentence", "backward": True, "vary_length": True}}),
    ],
)
def test_a_saved_position_continues_with_the_same_batches(prepared, format_name, changes):
    """At many batches of an epoch or more: in the middle of documents, windows and packing, after a round trip through JSON."""
    data = data_config(format=format_name, **changes)
    # Grain takes a tenth of a second to fill a window.
    number, step = (30, 9) if changes.keys() & {"shuffle_window", "pack_length"} else (60, 4)
    states, batches = [], []
    with opened(prepared, data) as iterator:
        for _ in range(number):
            states.append(iterator.get_state())
            batches.append(next(iterator))
        texts = list(map(json.dumps, states))
        for place in (17, 3):
            iterator.set_state(states[place])
            assert_equal_batches([next(iterator)], [batches[place]])
    assert list(map(json.dumps, states)) == texts, "a state is not changed by what follows"
    assert len({chain([batch]) for batch in batches}) > 0.9 * number
    starts = [int(batch["example_id"][0].flat[1]) for batch in batches]
    assert min(starts) == 0 < max(starts)
    for place in range(0, number - 2, step):
        with opened(prepared, data, state=json.loads(texts[place])) as iterator:
            assert json.loads(json.dumps(iterator.get_state())) == json.loads(texts[place])
            assert_equal_batches([next(iterator) for _ in range(3)], batches[place : place + 3])


# Order


def test_the_same_config_gives_the_same_batches_whatever_else_happens(prepared):
    data = data_config(shuffle_window=10)
    random.seed(1), np.random.seed(1)
    expected = take(15, prepared, data)
    random.seed(2), np.random.seed(2)
    with opened(prepared, data) as iterator, opened(prepared, data) as other:
        mixed = []
        for _ in range(15):
            # The other iterator's thread competes with this one's, and its position moves differently.
            mixed.append(next(iterator))
            np.random.random(3)
            next(other), next(other)
            iterator.get_state()
    assert_equal_batches(mixed, expected)


@pytest.mark.parametrize(("format_name", "window"), [("segment_pair", 10), ("full_sentences", 0)])
def test_another_seed_gives_another_order(prepared, format_name, window):
    first, second = (take(12, prepared, data_config(format=format_name, shuffle_window=window, seed=seed)) for seed in (0, 1))
    assert [batch["example_id"][:, 0].tolist() for batch in first] != [batch["example_id"][:, 0].tolist() for batch in second]


def test_every_epoch_reads_every_document_once_in_another_order(prepared):
    order = documents_in_order(take(110, prepared, data_config()))
    epochs = [order[i : i + 23] for i in range(0, 69, 23)]
    assert all(set(epoch) == numbers(prepared, "train") for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def readings(batches):
    """(visit, rows) of each reading of each document, of pair rows that were not mixed; the last may be cut off."""
    found = {}
    for batch in batches:
        for row in range(len(batch["tokens"])):
            document, number = batch["example_id"][row].tolist()
            if number == 0:
                found.setdefault(document, []).append((int(batch["visit"][row]), []))
            visit, rows = found[document][-1]
            assert visit == batch["visit"][row] and number == len(rows)
            rows.append((batch["tokens"][row].tobytes(), int(batch["pair_label"][row]), int(batch["order_label"][row])))
    return found


@pytest.mark.parametrize(("format_name", "negatives"), [("segment_pair", "random"), ("sentence_pair", "swapped")])
def test_rows_repeat_after_dupe_factor_readings_and_not_before(format_name, negatives):
    prepared = corpus({"train": 8}, sentences=(8, 14))
    for dupe_factor in (0, 3):
        data = data_config(format=format_name, dupe_factor=dupe_factor, **{format_name: {"negatives": negatives}})
        found = readings(take(100, prepared, data))
        assert found.keys() == numbers(prepared, "train")
        equal = {True: [], False: []}
        for document in found.values():
            visits, rows = zip(*document[:-1])
            assert len(rows) > 4
            assert list(visits) == [place % dupe_factor if dupe_factor else place for place in range(len(rows))]
            for one, another in itertools.combinations(range(len(rows)), 2):
                equal[visits[one] == visits[another]].append(rows[one] == rows[another])
        assert all(equal[True]) and bool(equal[True]) == (dupe_factor > 0)
        # A few pairs can be swapped, or not, in few ways.
        assert np.mean(equal[False]) < (0.2 if negatives == "swapped" else 0.02)


def test_rows_of_a_reading_are_the_same_on_every_host_and_differ_with_the_seed(prepared):
    found = {}
    for shard in ((0, 1), (0, 2), (1, 2)):
        for document, read in readings(take(90, prepared, data_config(), shard)).items():
            for visit, rows in read[:-1]:
                found.setdefault((document, visit), []).append(rows)
    whole = {key: rows for key, rows in found.items() if len(rows) == 2}
    assert {document for document, _ in whole} == numbers(prepared, "train")
    assert all(one == another for one, another in whole.values())
    other = readings(take(90, prepared, data_config(seed=1)))
    assert np.mean([found[document, 0][0] != read[0][1] for document, read in other.items()]) > 0.9


def test_each_document_and_each_reading_has_its_own_draws(prepared):
    """The first pair of each of 23 documents: its coin is tossed once a document and once a reading."""
    found = readings(take(200, prepared, data_config(format="sentence_pair", sentence_pair={"negatives": "swapped"})))
    labels = np.array([[rows[0][2] for _, rows in read[:3]] for read in found.values() if len(read[0][1]) > 1])
    assert len(labels) > 15 and (labels >= 0).all()
    assert all(0.1 < share < 0.9 for share in labels.mean(axis=0))
    assert len({tuple(column) for column in labels.T.tolist()}) == 3


@pytest.mark.parametrize(("format_name", "dupe_factor"), [("full_sentences", 2), ("doc_sentences", 0)])
def test_rows_of_sentences_lose_nothing_over_epochs_and_have_the_visit_of_their_first_token(prepared, format_name, dupe_factor):
    train = Counter(itertools.chain.from_iterable(record["tokens"].tolist() for record in prepared.source("train")))
    size, read = sum(train.values()), []
    for batch in take(80, prepared, data_config(format=format_name, dupe_factor=dupe_factor)):
        for row in range(4):
            epoch = len(read) // size
            assert batch["visit"][row] == (epoch % dupe_factor if dupe_factor else epoch)
            read += batch["tokens"][row][batch["tokens"][row] >= 10].tolist()
    assert len(read) > 3 * size
    for epoch in range(3):
        assert Counter(read[epoch * size : (epoch + 1) * size]) == train


@pytest.mark.parametrize("format_name", ["segment_pair", "full_sentences", "stream"])
def test_a_limit_on_unique_tokens_repeats_a_part_of_the_text(prepared, format_name):
    """A smaller part is in every larger one, the same for every seed."""
    train, parts = list(prepared.source("train")), {}
    lengths = {record["document"]: len(record["tokens"]) for record in train}
    whole, limited = sum(lengths.values()), lambda limit, **more: data_config(format=format_name, unique_tokens=limit, **more)
    for limit, seed in itertools.product((whole // 8, whole // 3, whole), (0, 1)):
        source = format_of(limited(limit, seed=seed), prepared, "train").source
        part = {source[number]["document"] for number in range(len(source))}
        assert limit <= sum(lengths[number] for number in part) < limit + max(lengths.values())
        assert part == parts.setdefault(limit, part)
    small, middle, everything = parts.values()
    assert small < middle < everything == set(lengths)
    read = Counter(
        token for batch in take(40, prepared, limited(whole // 8)) for token in batch["tokens"].ravel() if token >= 10
    )
    known = Counter(token for record in train if record["document"] in small for token in record["tokens"])
    assert set(read) == set(known) and sum(read.values()) > 2 * sum(known.values())
    with pytest.raises(UserError, match=f"unique_tokens={whole + 1}: the train split has only"):
        take(1, prepared, limited(whole + 1))


def test_a_limit_that_is_all_of_the_text_changes_nothing(prepared):
    limited = data_config(unique_tokens=sum(len(record["tokens"]) for record in prepared.source("train")))
    assert_equal_batches(take(8, prepared, limited), take(8, prepared, data_config()))
    old = data_config()
    del old["unique_tokens"]  # a run from before there was a limit
    check_data(old)
    assert_equal_batches(take(2, prepared, old), take(2, prepared, data_config()))
    few = data_config(unique_tokens=10)
    assert_equal_batches(*(eval_batches(prepared, data, "valid", 0) for data in (few, data_config())))


def test_a_window_changes_the_order_of_rows_only(prepared):
    plain = take(8, prepared, data_config())
    mixed = take(8, prepared, data_config(shuffle_window=16))
    for half in (slice(0, 4), slice(4, 8)):
        rows = [
            [
                tuple(np.concatenate([batch[name][row].ravel() for name in sorted(batch)]))
                for batch in side[half]
                for row in range(4)
            ]
            for side in (plain, mixed)
        ]
        assert rows[0] != rows[1]
        assert Counter(rows[0]) == Counter(rows[1])


@pytest.mark.parametrize(("documents", "batches"), [(23, 80), (2, 12)])
def test_hosts_share_the_documents(documents, batches):
    prepared = corpus({"train": documents}, sentences=(5, 20))
    shares = [documents - documents // 2, documents // 2]
    orders = [documents_in_order(take(batches, prepared, data_config(), (host, 2))) for host in (0, 1)]
    for epoch in range(2):
        parts = [order[epoch * share : (epoch + 1) * share] for order, share in zip(orders, shares)]
        assert sorted(parts[0] + parts[1]) == sorted(numbers(prepared, "train"))
    (batch,) = take(1, prepared, data_config(), (1, 2))
    assert batch["tokens"].shape == (2, 32)


def test_a_corpus_smaller_than_a_batch_is_repeated():
    (batch,) = take(1, corpus({"train": 1}, sentences=(2, 2)), data_config(format="full_sentences", batch_size=64))
    assert batch["tokens"].shape == (64, 32)


# Packing


def examples_of(batches):
    """What is packed, or else the rows: (tokens, segments, positions, own documents), and what each has one of."""
    found = []
    for row in ({name: values[i] for name, values in batch.items()} for batch in batches for i in range(len(batch["tokens"]))):
        each = {name: np.atleast_1d(row[name]).tolist() for name in ("pair_label", "order_label", "visit")}
        each["example_id"] = row["example_id"].reshape(-1, 2).tolist()
        of_tokens = np.stack([row[name] for name in ("tokens", "segments", "positions", "documents")], 1)
        size = np.count_nonzero(row["documents"])
        assert row["documents"][:size].all() and (row["tokens"][size:] == Tokenizer.pad_id).all(), "padding comes last"
        assert not of_tokens[size:, 1:].any()
        steps = np.diff(row["documents"][:size], prepend=0)
        begins = np.flatnonzero(row["tokens"][:size] == Tokenizer.cls_id)  # each example's own, and no other
        assert {0, 1} >= set(steps) and (steps[begins] == 1).all(), "examples are documents of their own"
        for number, part in enumerate(np.split(of_tokens[:size], begins[1:]) if size else ()):
            part[:, 3] -= part[0, 3] - 1
            found.append((part.tobytes(), *(str(values[number]) for values in each.values())))
        for name, values in each.items():
            assert all(value in (-1 if "label" in name else 0, [0, 0]) for value in values[len(begins) :])
    return found


@pytest.mark.parametrize("format_name", FORMATS)
def test_packed_rows_hold_the_formats_rows_and_nothing_else(prepared, format_name):
    batches = take(32, prepared, data_config(format=format_name, pack_length=80, pack_examples=5))
    assert batches[0]["tokens"].shape == (4, 80) and batches[0]["pair_label"].shape == (4, 5)
    assert {array.dtype.name for array in batches[0].values()} == {"int32"}
    plain = examples_of(take(200, prepared, data_config(format=format_name)))
    for taken in (16, 32):  # 64 rows are filled at a time
        found = examples_of(batches[:taken])
        assert len(found) > 2 * 4 * taken
        assert Counter(found) == Counter(plain[: len(found)]) and found != plain[: len(found)]


def test_packing_leaves_little_padding(prepared):
    share = lambda **changes: np.mean([batch["documents"] == 0 for batch in take(32, prepared, data_config(**changes))])
    assert share() > 0.15
    assert share(pack_length=128, pack_examples=16) < 0.05
    assert share(pack_length=128, pack_examples=2) > 0.5


@pytest.mark.parametrize("format_name", FORMATS)
def test_packed_eval_batches_read_the_whole_split_once(prepared, format_name):
    data = data_config(format=format_name, pack_length=64)
    packed = eval_batches(prepared, data, "valid", 0)
    plain = eval_batches(prepared, data_config(format=format_name), "valid", 0)
    assert Counter(examples_of(packed)) == Counter(examples_of(plain))
    assert len(packed) < len(plain)
    data.update(seed=9, shuffle_window=10)
    assert_equal_batches(eval_batches(prepared, data, "valid", 2), packed[:2])


def test_shards_pack_their_own_documents(prepared):
    data = data_config(pack_length=80, shards=2)
    together = take(20, prepared, data)
    halves = [take(20, prepared, data, (host, 2)) for host in (0, 1)]
    for whole, *parts in zip(together, *halves):
        assert_equal_batches([whole], [{name: np.concatenate([part[name] for part in parts]) for name in whole}])


# Buckets


@pytest.mark.parametrize("buckets", [(10, 16, 24), (24, 32)])
def test_every_bucket_holds_its_rows_in_their_order(prepared, buckets):
    batches = take(100, prepared, data_config(format="sentence_pair", buckets=buckets))
    lengths, shortest = sorted({*buckets, 32}), 0
    plain = take(120, prepared, data_config(format="sentence_pair"))
    rows = [{name: values[row] for name, values in batch.items()} for batch in plain for row in range(4)]
    for length in lengths:
        found = [batch for batch in batches if batch["tokens"].shape == (4, length)]
        own = [row for row in rows if shortest < np.count_nonzero(row["documents"]) <= length]
        assert len(found) > 2 and len(own) >= 4 * len(found)
        for i, batch in enumerate(found):
            expected = {name: np.stack([row[name] for row in own[4 * i : 4 * i + 4]]) for name in batch}
            cut = {name: values[:, :length] if values.shape == (4, 32) else values for name, values in expected.items()}
            assert_equal_batches([batch], [cut])
        shortest = length
    assert sum(len(batch["tokens"]) == 4 and batch["tokens"].shape[1] in lengths for batch in batches) == 100


def test_a_row_of_several_texts_has_buckets_as_many_times_longer():
    rows = [
        {"tokens": np.ones(16, np.int32), "documents": (np.arange(16) < size).astype(np.int32), "word_at": np.array([1, 2])}
        for size in (3, 9, 8, 16)
    ]
    data = ConfigDict({"buckets": (4,), "seq_len": 8})
    batches = list(bucketed(grain.MapDataset.source(rows).to_iter_dataset(), data, size=2, texts=2))
    assert [(batch["tokens"].shape, batch["word_at"].shape) for batch in batches] == [((2, 8), (2, 2)), ((2, 16), (2, 2))]
    assert [batch["documents"].sum(axis=1).tolist() for batch in batches] == [[3, 8], [9, 16]]


# Evaluation


@pytest.mark.parametrize("format_name", FORMATS)
def test_eval_batches_are_always_the_same(prepared, format_name):
    data = data_config(format=format_name)
    expected = eval_batches(prepared, data, "valid", 5)
    np.random.seed(3)
    other = data_config(format=format_name, seed=9, shuffle_window=10, buckets=(16,))
    assert_equal_batches(eval_batches(prepared, other, "valid", 5), expected)
    assert_equal_batches(eval_batches(prepared, data, "valid", 3), expected[:3])


def test_eval_batches_read_the_whole_split_once_and_nothing_else(prepared):
    batches = eval_batches(prepared, data_config(format="full_sentences"), "valid", 0)
    read = np.concatenate([batch["tokens"][batch["tokens"] >= 10] for batch in batches])
    places = Places(prepared.source("valid"))
    assert sorted(read.tolist()) == sorted(places.document)
    for batch in eval_batches(prepared, data_config(), "valid", 0):
        assert set(batch["tokens"][batch["tokens"] >= 10].tolist()) <= places.document.keys()


@pytest.mark.parametrize("format_name", FORMATS)
def test_the_last_eval_batch_is_padded(prepared, format_name):
    data = data_config(format=format_name, batch_size=16)
    *_, last = eval_batches(prepared, data, "test", 100)
    real = int((last["documents"][:, 0] > 0).sum())
    assert 0 < real < 16
    assert last["tokens"].shape == (16, 32)
    assert (last["documents"][real:] == 0).all()
    assert (last["pair_label"][real:] == -1).all() and (last["order_label"][real:] == -1).all()
    assert not last["visit"].any()
    assert (last["documents"][:real, 0] == 1).all()


def test_padding_keeps_the_rows():
    rows = [
        {"x": np.array([1, 2]), "pair_label": np.int32(1), "order_label": np.int32(0), "labels": np.array([3, 4])},
    ]
    batch = pad_batch(rows, 3)
    assert {name: array.tolist() for name, array in batch.items()} == {
        "x": [[1, 2], [0, 0], [0, 0]],
        "pair_label": [1, -1, -1],
        "order_label": [0, -1, -1],
        "labels": [[3, 4], [-1, -1], [-1, -1]],
    }
    assert_equal_batches([pad_batch(rows * 3, 3)], [{name: np.stack([value] * 3) for name, value in rows[0].items()}])


# Refusals


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"format": "stream", "pack_length": 64}, ("pack_length=64", "format='stream'")),
        ({"format": "cooccurrence", "pack_length": 64}, ("pack_length=64", "format='cooccurrence'")),
        ({"pack_length": 31}, ("pack_length=31", "seq_len=32")),
        ({"pack_length": -64}, ("pack_length=-64",)),
        ({"buckets": (16, 12)}, ("buckets=(16, 12)", "seq_len=32")),
        ({"buckets": (16, 16)}, ("buckets=(16, 16)",)),
        ({"buckets": (16, 64)}, ("buckets=(16, 64)", "seq_len=32")),
        ({"buckets": (0, 16)}, ("buckets=(0, 16)",)),
        ({"buckets": (16,), "pack_length": 64}, ("buckets=(16,)", "pack_length=64")),
        ({"buckets": (16,), "format": "stream"}, ("buckets=(16,)", "format='stream'")),
        ({"buckets": (16,), "shards": 2}, ("buckets=(16,)", "shards=1")),
        ({"shards": 3}, ("shards=3", "batch_size=4")),
        ({"shards": 24, "batch_size": 24}, ("23 documents for 24 shards", "shards")),
        ({"format": "cooccurrence", "characters": True}, ("characters=True", "format='cooccurrence'")),
    ],
)
def test_what_cannot_be_is_refused_by_its_keys(prepared, changes, named):
    with pytest.raises(UserError, match=r"config\.data\.") as raised:
        train_batches(prepared, data_config(**changes))
    assert all(part in str(raised.value) for part in named)


def test_an_empty_split_is_refused_by_its_key():
    with pytest.raises(UserError, match=r"config\.data\.valid_fraction"):
        eval_batches(corpus({"train": 3, "valid": 0}), data_config(), "valid", 1)


# The hash chain


def test_the_chain_is_equal_for_equal_batches_only(prepared):
    batches = take(6, prepared, data_config())
    value = chain(batches)
    assert value == chain(take(6, prepared, data_config()))
    swapped = [*batches[:2], batches[3], batches[2], *batches[4:]]
    assert chain(swapped) != value
    assert chain(batches[:5]) != value
    for name in batches[0]:
        changed = {key: array.copy() for key, array in batches[5].items()}
        changed[name].flat[-1] += 1
        assert chain([*batches[:5], changed]) != value
    reordered = [dict(reversed(batch.items())) for batch in batches]
    assert chain(reordered) == value
    resumed = BatchHash(chain(batches[:4]))
    for batch in batches[4:]:
        resumed.update(batch)
    assert resumed.value == value


# Real text


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    with (folder / "topics.jsonl").open("w") as file:
        for name in sorted(topics.topics)[:60]:
            file.write(json.dumps({"text": topics.topics[name]}) + "\n")
    data = data_config(
        corpus=f"text:{folder}/topics.jsonl", directory=str(folder / "cache"), workers=1, shuffle_window=32, batch_size=8
    )
    data.valid_fraction = data.test_fraction = 0.15
    data.tokenizer.update({"kind": "words", "vocab_size": 300})
    return prepare(data), data


# Characters

CHARACTER_FORMATS = (*FORMATS, "stream")


def with_characters(data, format_name):
    data = data.copy_and_resolve_references()
    data.update(format=format_name, characters=True)
    if format_name == "stream":
        data.stream.update(wrap="sentence", backward=True, vary_length=True)
    return data


def decoded(characters):
    """The word that 50 character ids spell, or the number of a boundary of a sentence."""
    begin, *spelling = characters.tolist()
    assert begin == 258
    spelling = spelling[: spelling.index(259)]
    return bytes(spelling).decode(errors="replace") if spelling[:1] not in ([256], [257]) else spelling[0]


@pytest.mark.parametrize("format_name", CHARACTER_FORMATS)
def test_characters_spell_the_text_and_ids_say_unknown(real, format_name):
    prepared, data = real
    texts = [" ".join(split_words(" ".join(topics.topics[name].split()))) for name in sorted(topics.topics)[:60]]
    pieces, unknown_words = prepared.tokenizer.pieces(), set()
    batches = take(12, prepared, with_characters(data, format_name))
    batches += eval_batches(prepared, with_characters(data, format_name), "valid", 3)
    for batch in batches:
        for side in ("", "backward_") if format_name == "stream" else ("",):
            tokens, characters = batch[f"{side}tokens"], batch[f"{side}characters"]
            assert (characters.shape, characters.dtype.name) == ((*tokens.shape, 50), "int32")
            assert (characters[batch[f"{side}documents"] == 0] == 260).all()
            assert tokens.max() < 300 and batch.get(f"{side}next_tokens", tokens).max() < 300
            for row in range(len(tokens)):
                real_positions = np.flatnonzero(batch[f"{side}documents"][row])
                words = [decoded(characters[row, position]) for position in real_positions]
                for token, word in zip(tokens[row, real_positions].tolist(), words, strict=True):
                    if token == prepared.tokenizer.unk_id:
                        assert word not in pieces
                        unknown_words.add(word)
                    else:
                        assert word == {2: 256, 3: 257}.get(token, pieces[token])
                for is_boundary, run in itertools.groupby(words, lambda word: isinstance(word, int)):
                    run = list(run)
                    # Across documents and cuts a run may be of two texts.
                    if not is_boundary and format_name != "full_sentences":
                        assert any(" ".join(run) in text for text in texts), run
    assert len(unknown_words) > 100
    plain = with_characters(data, format_name)
    plain.characters = False
    for expected, batch in zip(take(5, prepared, plain), batches):
        assert_equal_batches([{name: batch[name] for name in expected}], [expected])
        assert batch.keys() - expected.keys() <= {"characters", "backward_characters"}


@pytest.mark.parametrize("format_name", CHARACTER_FORMATS)
def test_characters_do_not_depend_on_what_was_read_before(real, format_name):
    """Unknown words have numbers in the order in which they were seen; nothing of them may show."""
    prepared, data = real
    data = with_characters(data, format_name)
    with opened(prepared, data) as iterator:
        list(itertools.islice(iterator, 9))
        state = json.dumps(iterator.get_state())
        expected = list(itertools.islice(iterator, 6))
    assert_equal_batches(take(6, load_prepared(prepared.directory), data, state=json.loads(state)), expected)
    # A host that begins elsewhere in the text.
    with opened(prepared, data, (1, 2)) as iterator:
        expected = list(itertools.islice(iterator, 8))
    with opened(prepared, data, (1, 2)) as iterator:
        state = iterator.get_state()
        list(itertools.islice(iterator, 20))
        iterator.set_state(state)
        assert_equal_batches(list(itertools.islice(iterator, 8)), expected)


def test_padding_has_no_characters_whatever_its_id(real):
    add = AddCharacters(real[0].tokenizer, UnknownWords(300, 1))
    characters = add({"tokens": np.array([[5, 6, 7]]), "documents": np.array([[1, 1, 0]])})["characters"]
    assert (characters == 260).all(-1).tolist() == [[False, False, True]]


def test_characters_need_words(real):
    data = with_characters(real[1], "stream")
    check_data(data)
    other = Prepared()
    other.tokenizer = types.SimpleNamespace(kind="bpe")
    with pytest.raises(UserError, match=r"config\.data\.characters=True .*config\.data\.tokenizer\.kind='bpe'"):
        train_batches(other, data)


def test_rows_of_real_text_are_that_text(real):
    prepared, data = real
    data.format = "full_sentences"
    source = prepared.source("valid")
    texts = {source[i]["document"]: source[i]["tokens"].tolist() for i in range(len(source))}
    batch = eval_batches(prepared, data, "valid", 1)[0]
    assert batch["tokens"].max() < 300
    assert ((batch["tokens"] == prepared.tokenizer.pad_id) == (batch["documents"] == 0)).all()
    for row in range(8):
        ids = batch["tokens"][row][batch["documents"][row] == 1].tolist()
        run = [token for token in ids if token not in (prepared.tokenizer.cls_id, prepared.tokenizer.sep_id)]
        text = texts[int(batch["example_id"][row, 0])]
        assert run and any(text[i : i + len(run)] == run for i in range(len(text)))
