import threading

import numpy as np
import pytest

from bertlab.data import batches as batches_module
from bertlab.data.batches import Batches, prefetch, unique_documents
from bertlab.data.formats import FORMATS
from bertlab.errors import UserError
from tests.data.made_corpus import CLS, PAD, SEP, config, epoch_rows, make, random_documents

SETTINGS = {name: {"format": name} for name in FORMATS} | {
    "packed": {"format": "segment_pair", "pack_length": 64, "pack_examples": 4},
    "buckets": {"format": "segment_pair", "buckets": (16, 24)},
    "both sides": {"format": "stream", "stream__backward": True, "stream__vary_length": True},
    "repeated": {"format": "segment_pair", "dupe_factor": 2},
}
DOCUMENTS = random_documents(60)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make(tmp_path_factory.mktemp("batches") / "corpus", DOCUMENTS)


@pytest.fixture(params=[False, True], ids=["one group", "groups"])
def small_blocks(request, monkeypatch):
    """With blocks of some 80 tokens an epoch has several groups."""
    if request.param:
        monkeypatch.setattr(batches_module, "BLOCK_TOKENS", 80)
        monkeypatch.setattr(batches_module, "GROUP_BLOCKS", 3)
    return request.param


def assert_equal(batch, other):
    assert batch.keys() == other.keys()
    for name in batch:
        assert batch[name].dtype == other[name].dtype
        np.testing.assert_array_equal(batch[name], other[name], err_msg=name)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_batch_is_a_function_of_its_step(corpus, name, small_blocks):
    data = config(**SETTINGS[name])
    straight = Batches(corpus, data)
    made = {step: straight(step) for step in range(60)}
    other = Batches(corpus, data)
    for step in (59, 7, 58, 0, 30):
        assert_equal(other(step), made[step])
    assert other.hash == straight.hash


@pytest.mark.parametrize("name", SETTINGS)
def test_processes_read_slices_of_the_same_batches(corpus, name, small_blocks):
    data = config(**SETTINGS[name])
    whole = Batches(corpus, data)
    for count in (2, 4):
        processes = [Batches(corpus, data, "train", index, count) for index in range(count)]
        for step in (0, 1, 25):
            slices = [batches(step) for batches in processes]
            joined = {name: np.concatenate([s[name] for s in slices]) for name in slices[0]}
            assert_equal(joined, whole(step))
    last = [Batches(corpus, data, "valid", index, 2).evaluation()[-1] for index in range(2)]
    joined = {name: np.concatenate([s[name] for s in last]) for name in last[0]}
    assert_equal(joined, Batches(corpus, data, "valid").evaluation()[-1])


@pytest.mark.parametrize("name", ["full_sentences", "segment_pair", "sentences"])
def test_groups_of_blocks_read_each_sentence_once(corpus, monkeypatch, name):
    changes = {f"{name}__negatives": "swapped"} if name == "segment_pair" else {}
    monkeypatch.setattr(batches_module, "BLOCK_TOKENS", 80)
    monkeypatch.setattr(batches_module, "GROUP_BLOCKS", 3)
    batches = Batches(corpus, config(format=name, **changes))
    starts = []
    for epoch in range(2):
        rows = epoch_rows(batches, epoch)
        used = np.concatenate([row["tokens"][row["tokens"] > SEP] for row in rows])
        assert len(set(used)) == len(used)
        if name != "segment_pair":  # long pairs are cut
            assert len(used) == len(corpus.split("train").tokens)
        ids = np.stack([row["example_id"] for row in rows])
        assert len(np.unique(ids, axis=0)) == len(ids)
        starts.append([int(row["tokens"][1]) for row in rows])
    assert starts[0] != starts[1]
    group = batches.make_group(1)
    assert 0 < len(group.plan) < len(rows) / 2


def test_numbers_of_rows_are_kept_and_not_needed(tmp_path, monkeypatch):
    corpus = make(tmp_path / "corpus", DOCUMENTS)
    data = config(format="segment_pair")
    first = Batches(corpus, data)
    expected = first(600)
    (file,) = corpus.directory.glob("rows-*.npy")
    planned = []
    make_group = batches_module.Batches.make_group

    def count(self, number):
        planned.append(number)
        return make_group(self, number)

    monkeypatch.setattr(batches_module.Batches, "make_group", count)
    assert_equal(Batches(corpus, data)(600), expected)
    with_file = len(planned)
    file.unlink()
    assert_equal(Batches(corpus, data)(600), expected)
    assert with_file < (len(planned) - with_file) / 2


@pytest.mark.parametrize(
    "change", ["seed", "seq_len", "batch_size", "unique_tokens", "stream__wrap"]
)
def test_hash_changes_with_what_batches_depend_on(corpus, change):
    value = {"stream__wrap": "none", "unique_tokens": 100, "seed": 1}.get(change, 16)
    hashes = {Batches(corpus, config(format="stream", **c)).hash for c in ({}, {change: value})}
    assert len(hashes) == 2


def test_evaluation_is_each_row_once_for_every_seed(corpus):
    made = [Batches(corpus, config(seed=seed), "valid").evaluation() for seed in (0, 5)]
    for one, other in zip(*made, strict=True):
        assert_equal(one, other)
    tokens = np.concatenate([batch["tokens"] for batch in made[0]])
    expected = [t for document in DOCUMENTS for sentence in document for t in sentence]
    assert sorted(tokens[tokens > SEP]) == expected
    is_padding = (made[0][-1]["documents"] == 0).all(axis=1)
    assert 0 < is_padding.sum() < 8
    for name, value in {"tokens": PAD, "pair_label": -1, "example_id": 0}.items():
        assert (made[0][-1][name][is_padding] == value).all()
    assert len(Batches(corpus, config(), "valid").evaluation(2)) == 2


def test_packed_rows_have_each_example_as_it_was(corpus):
    plain = {
        tuple(r["example_id"]): r
        for r in epoch_rows(Batches(corpus, config(format="segment_pair")))
    }
    packed = epoch_rows(Batches(corpus, config(**SETTINGS["packed"])))
    found = set()
    for row in packed:
        ids = [
            tuple(i)
            for i, label in zip(row["example_id"], row["pair_label"], strict=True)
            if label >= 0
        ]
        assert 1 <= len(ids) <= 4 and (row["pair_label"][len(ids) :] == -1).all()
        assert row["documents"].max() == len(ids)  # an example is one document
        for number, example in enumerate(ids, 1):
            at = row["documents"] == number
            expected = plain[example]
            size = int(expected["documents"].sum())
            for name in ("tokens", "segments", "positions"):
                np.testing.assert_array_equal(row[name][at], expected[name][:size])
            assert row["pair_label"][number - 1] == expected["pair_label"]
        found |= set(ids)
        assert (row["tokens"][row["documents"] == 0] == PAD).all()
    assert found == set(plain)
    filled = np.mean([(row["documents"] > 0).mean() for row in packed])
    assert filled > 0.85  # next-fit; first-fit over 64 open rows filled some 5 % more


def test_bucketed_batches_have_one_width_that_fits(corpus):
    batches, plain = (
        Batches(corpus, config(**SETTINGS["buckets"])),
        Batches(corpus, config(format="segment_pair")),
    )
    rows, widths = {}, []
    for step in range(40):
        batch = batches(step)
        sizes, width = (batch["documents"] > 0).sum(axis=1), batch["tokens"].shape[1]
        # One row at least needs the width; the others may be left from shorter buckets.
        assert width in (16, 24, 32) and sizes.max() <= width
        assert width == 16 or sizes.max() > {24: 16, 32: 24}[width]
        widths.append(width)
        for i, (visit, number) in enumerate(batch["example_id"]):
            if visit == 0:
                rows[visit, number] = batch["tokens"][i][: sizes[i]].tolist()
    assert set(widths) == {16, 24, 32} and widths != sorted(widths)
    expected = {
        tuple(r["example_id"]): r["tokens"][: int(r["documents"].sum())].tolist()
        for r in epoch_rows(plain)
    }
    assert 0 <= len(expected) - len(rows) < 8 and rows.items() <= expected.items()


def test_dupe_factor_repeats_rows_in_another_order(corpus):
    batches = Batches(corpus, config(**SETTINGS["repeated"]))
    rows = [[], [], [], []]
    epoch, last = 0, 0
    for step in range(120):
        batch = batches(step)
        for visit, example, tokens in zip(
            batch["visit"], batch["example_id"], batch["tokens"], strict=True
        ):
            epoch += visit != last
            last = visit
            if epoch < 4:
                rows[epoch].append((tuple(example), tuple(tokens)))
    assert set(rows[0]) == set(rows[2]) and set(rows[1]) == set(rows[3])
    assert rows[0] != rows[2] and not set(rows[0]) & set(rows[1])


def test_unique_tokens_are_nested_whole_documents(corpus):
    split = corpus.split("train")
    lengths = np.diff(split.token_bounds())
    before = np.zeros(0, int)
    for tokens in (1, 50, 400, 2000, len(split.tokens)):
        chosen = unique_documents(split, tokens)
        assert set(before) <= set(chosen)
        assert tokens <= lengths[chosen].sum() < tokens + lengths.max()
        before = chosen
    data = config(unique_tokens=400)
    expected = unique_documents(split, 400)
    bounds = split.token_bounds()
    text = sorted(t for d in expected for t in split.tokens[bounds[d] : bounds[d + 1]])
    for epoch in (0, 1):
        rows = epoch_rows(Batches(corpus, data), epoch)
        assert sorted(t for row in rows for t in row["tokens"] if t > SEP) == text
    too_many = Batches(corpus, config(unique_tokens=len(split.tokens) + 1))
    with pytest.raises(UserError, match="unique_tokens"):
        too_many(0)
    assert too_many.evaluation(1), "the limit is that of the training"


def test_characters_are_those_of_the_words(tmp_path):
    corpus = make(tmp_path / "corpus", DOCUMENTS)
    tokens = corpus.split("train").tokens
    # Word types are numbered as their tokens; from 300 on they are outside the vocabulary.
    table = np.arange(tokens.max() + 1, dtype=np.uint16)[:, None].repeat(50, axis=1)
    np.save(corpus.directory / "characters.npy", table)
    np.save(corpus.directory / "train" / "words.npy", tokens)
    np.save(corpus.directory / "train" / "tokens.npy", np.where(tokens < 300, tokens, 1))
    for name in ("full_sentences", "both sides"):
        batch = Batches(corpus, config(characters=True, **SETTINGS.get(name, {})))(3)
        assert not any("words" in field for field in batch)
        for side in ("", "backward_") if name == "both sides" else ("",):
            ids, characters = batch[f"{side}tokens"], batch[f"{side}characters"]
            assert (
                characters.shape == (*ids.shape, 50) and (characters == characters[..., :1]).all()
            )
            words = characters[..., 0]
            np.testing.assert_array_equal(ids, np.where(words < 300, words, 1))
            assert (words > 300).any() and {PAD, CLS} & set(words.ravel().tolist())


def test_a_split_without_a_full_batch_is_refused(corpus):
    data = config(format="segment_pair", buckets=(16,), batch_size=4096)
    with pytest.raises(UserError, match="yields no rows"):
        Batches(corpus, data)(0)


def test_prefetch_is_ahead_in_order_and_passes_errors_on():
    made, main = [], threading.get_ident()

    def batches(step):
        assert threading.get_ident() != main
        if step == 8:
            raise ValueError("step 8")
        made.append(step)
        return step

    iterator = prefetch(batches, 3, lambda batch: batch * 10, ahead=2)
    assert [next(iterator) for _ in range(3)] == [30, 40, 50]
    assert max(made) <= 7
    assert next(iterator) == 60 and next(iterator) == 70
    with pytest.raises(ValueError, match="step 8"):
        next(iterator)
