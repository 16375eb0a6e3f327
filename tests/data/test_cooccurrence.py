"""Co-occurrences of real text against a plain count of it."""

import itertools
import json
from collections import defaultdict
from pydoc_data import topics

import numpy as np
import pytest

from bertlab.config import base_config
from bertlab.data.batches import eval_batches, train_batches
from bertlab.data.formats import cooccurrence
from bertlab.data.formats.cooccurrence import entries
from bertlab.data.prepare import load_prepared, prepare
from bertlab.errors import UserError
from tests.batches import assert_equal_batches, opened

WINDOW = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    with (folder / "topics.jsonl").open("w") as file:
        for name in sorted(topics.topics)[:30]:
            file.write(json.dumps({"text": topics.topics[name][:1500]}) + "\n")
    data = base_config().data
    data.update(corpus=f"text:{folder}/topics.jsonl", directory=str(folder / "cache"), workers=1)
    data.update(format="cooccurrence", seq_len=50, batch_size=4, valid_fraction=0.2, test_fraction=0.0)
    data.tokenizer.update({"kind": "words", "vocab_size": 150})
    data.cooccurrence.window = WINDOW
    return data


@pytest.fixture(scope="module")
def prepared(data):
    return prepare(data)


def plain_counts(prepared, split, window):
    """{(i, j): X_ij} by a walk over all pairs of positions."""
    counts, source = defaultdict(float), prepared.source(split)
    for index in range(len(source)):
        # The ids 0 to 4 are the specials.
        words = [word for word in source[index]["tokens"].tolist() if word >= 5]
        for here, word in enumerate(words):
            for there in range(max(0, here - window), min(len(words), here + window + 1)):
                if there != here:
                    counts[word, words[there]] += 1 / abs(here - there)
    return counts


def as_counts(found):
    return {(i, j): count for i, j, count in found.tolist()}


def assert_same_counts(found, counts):
    assert found.keys() == counts.keys()
    np.testing.assert_allclose([found[pair] for pair in counts], list(counts.values()), rtol=1e-6)


@pytest.mark.parametrize("split", ["train", "valid"])
def test_entries_are_the_weighted_pairs_of_the_text(prepared, split):
    found = entries(prepared, split, WINDOW)
    counts = plain_counts(prepared, split, WINDOW)
    assert len(found) == len(counts) > 1000
    assert_same_counts(as_counts(found), counts)
    assert sorted(counts) == list(zip(found["token"].tolist(), found["context"].tolist()))
    assert any(i == j for i, j in counts), "a word near itself counts for both"
    assert all(counts[i, j] == pytest.approx(counts[j, i]) for i, j in counts)
    assert (prepared.source(split)[0]["tokens"] == prepared.tokenizer.unk_id).any()


@pytest.mark.parametrize("size", [1, 700])
def test_memory_changes_nothing(prepared, monkeypatch, tmp_path, size):
    """Small chunks: many runs, merged in many ranges, none of which holds more than it may."""
    whole = entries(prepared, "valid", 2)
    monkeypatch.setattr(cooccurrence, "_CHUNK_PAIRS", size)
    sizes, sums = [], cooccurrence._sums

    def watched(keys, weights):
        sizes.append(len(keys))
        return sums(keys, weights)

    monkeypatch.setattr(cooccurrence, "_sums", watched)
    runs = cooccurrence._write_runs(cooccurrence._pairs(prepared, "valid", 2), tmp_path)
    written = len(sizes)
    assert len(runs) == written > 1
    cooccurrence._merge(runs, prepared.tokenizer.vocab_size, tmp_path / "entries")
    found = np.fromfile(tmp_path / "entries", cooccurrence.ENTRY)
    assert_same_counts(as_counts(found), as_counts(whole))
    np.testing.assert_array_equal(found[["token", "context"]], whole[["token", "context"]])
    # A step is one sum at least, so that many runs have more than a tiny chunk between two bounds.
    assert max(sizes[written:]) <= max(size, 2 * len(runs))


def test_entries_are_made_once_for_each_split_and_window(prepared, monkeypatch):
    found = {(split, window): np.array(entries(prepared, split, window)) for split in ("train", "valid") for window in (2, 3)}
    assert len({len(array) for array in found.values()}) == 4
    assert not list(prepared.directory.parent.glob(".preparing*"))
    monkeypatch.delattr(cooccurrence, "_pairs")
    reopened = load_prepared(prepared.directory)
    for (split, window), array in found.items():
        np.testing.assert_array_equal(entries(reopened, split, window), array)


# Batches


def flat(batches):
    """(i, j, X_ij) of all real positions, in order."""
    result = []
    for batch in batches:
        real = batch["documents"] > 0
        result += zip(*(batch[name][real].tolist() for name in ("tokens", "contexts", "counts")))
    return result


def test_batches_have_these_fields_and_shapes(prepared, data):
    with opened(prepared, data) as iterator:
        batch = next(iterator)
    fields = dict.fromkeys(("tokens", "contexts", "segments", "documents", "positions"), ((4, 50), "int32"))
    assert {name: (array.shape, array.dtype.name) for name, array in batch.items()} == {
        **fields,
        "counts": ((4, 50), "float32"),
        "pair_label": ((4,), "int32"),
        "example_id": ((4, 2), "int32"),
    }
    assert (batch["documents"] == 1).all() and (batch["pair_label"] == -1).all()
    assert not batch["segments"].any() and not batch["positions"].any()
    assert batch["example_id"].tolist() == [[0, 0], [0, 50], [0, 100], [0, 150]]


def test_every_epoch_has_every_entry_once_in_another_order(prepared, data):
    found = entries(prepared, "train", WINDOW).tolist()
    with opened(prepared, data) as iterator:
        read = flat(itertools.islice(iterator, -(-3 * len(found) // 200)))
    epochs = [read[i * len(found) : (i + 1) * len(found)] for i in range(3)]
    assert all(sorted(epoch) == found for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    # Neighbours in a row are no neighbours in the file.
    words = np.array([i for i, _, _ in epochs[0]])
    assert np.mean(words[1:] == words[:-1]) < 0.1
    data = data.copy_and_resolve_references()
    data.seed = 1
    with opened(prepared, data) as iterator:
        other = flat(itertools.islice(iterator, 3))
    assert other != read[:600]


def test_a_saved_position_continues_with_the_same_batches(prepared, data):
    number = len(entries(prepared, "train", WINDOW)) // 200 + 5
    with opened(prepared, data) as iterator:
        states, batches = zip(*((json.dumps(iterator.get_state()), next(iterator)) for _ in range(number)))
    assert {batch["example_id"][0, 0] for batch in batches} == {0, 1}
    for place in (0, 1, 17, number - 6, number - 5, number - 4, number - 3):
        with opened(load_prepared(prepared.directory), data) as iterator:
            next(iterator)
            iterator.set_state(json.loads(states[place]))
            assert_equal_batches(list(itertools.islice(iterator, 3)), batches[place : place + 3])


def test_hosts_share_the_rows_of_one_batch(prepared, data):
    with opened(prepared, data) as whole, opened(prepared, data, (0, 2)) as first, opened(prepared, data, (1, 2)) as second:
        for expected, *parts in itertools.islice(zip(whole, first, second), 4):
            assert_equal_batches([{name: np.concatenate([part[name] for part in parts]) for name in expected}], [expected])


def test_evaluation_is_of_the_splits_own_entries(prepared, data):
    found = entries(prepared, "valid", WINDOW).tolist()
    batches = eval_batches(prepared, data, "valid", 0)
    assert sorted(flat(batches)) == found
    assert_equal_batches(eval_batches(prepared, data, "valid", 3), batches[:3])
    last = batches[-1]
    padding = last["documents"] == 0
    assert padding.any() and last["tokens"].shape == (4, 50)
    assert (last["counts"][padding] == 1).all() and not last["tokens"][padding].any() and not last["contexts"][padding].any()
    # A few batches are a fair sample, not the first words of the vocabulary.
    assert len({i for i, _, _ in flat(batches[:1])}) > 40


def test_text_without_pairs_is_refused(data, tmp_path):
    (tmp_path / "text.txt").write_text("\n\n".join("abcdefgh"))
    alone = data.copy_and_resolve_references()
    alone.update(corpus=f"text:{tmp_path}/text.txt", valid_fraction=0.0)
    alone.tokenizer.vocab_size = 10
    with pytest.raises(UserError, match="no two known words co-occur in the train split"):
        train_batches(prepare(alone), alone)
