import numpy as np
import pytest
from ml_collections import ConfigDict

from bertlab.errors import UserError
from bertlab.transfer.batches import Batches, by_row, joined

DATA = {"seq_len": 12, "batch_size": 4, "buckets": (5, 8), "seed": 3}


def rows(number=30):
    """Rows whose tokens are their numbers, of 2 to 12 positions."""
    made = []
    for i in range(number):
        size = 2 + i % 11
        zeros = np.zeros(size, np.int32)
        fields = {"tokens": zeros + i + 1, "segments": zeros, "documents": zeros + 1}
        fields |= {"positions": np.arange(size, dtype=np.int32), "label": np.int32(i)}
        made.append(fields)
    return made


def batches(made=None, **settings):
    return Batches(made or rows(), ConfigDict(DATA | settings), pad_id=0)


def numbers(batch):
    return batch["row_number"].tolist()


def test_a_batch_is_a_function_of_its_step_and_an_epoch_has_each_row_once():
    ours, theirs = batches(), batches()
    steps = [ours(step) for step in range(2 * ours.epoch)]
    for step in reversed(range(len(steps))):
        np.testing.assert_array_equal(theirs(step)["tokens"], steps[step]["tokens"])
    for epoch in (steps[: ours.epoch], steps[ours.epoch :]):
        found = [number for batch in epoch for number in numbers(batch)]
        assert len(found) == len(set(found)) == 28, "all but those that fill no batch"
    assert numbers(steps[0]) != numbers(steps[ours.epoch])
    assert numbers(batches(seed=4)(0)) != numbers(steps[0])


def test_rows_are_whole_in_the_smallest_bucket_that_holds_a_batch():
    made, widths = rows(), set()
    for batch in [batches()(step) for step in range(7)] + list(batches()):
        widths.add(batch["tokens"].shape[1])
        for index, number in enumerate(numbers(batch)):
            documents = batch["documents"][index]
            if number < 0:
                assert not documents.any() and batch["label"][index] == -1
                continue
            tokens = batch["tokens"][index]
            np.testing.assert_array_equal(tokens[documents > 0], made[number]["tokens"])
            assert not tokens[documents == 0].any() and batch["label"][index] == number
    assert widths == {5, 8, 12}


def test_evaluation_has_every_row_once_and_outputs_come_back_by_row():
    found = by_row([{**batch, "sum": batch["tokens"].sum(axis=1)} for batch in batches()])
    assert [int(row["sum"]) for row in found] == [int(row["tokens"].sum()) for row in rows()]


def test_processes_share_each_batch():
    data = ConfigDict(DATA)
    halves = [Batches(rows(), data, 0, index, 2) for index in (0, 1)]
    for step in range(9):
        both = [number for half in halves for number in numbers(half(step))]
        assert both == numbers(batches()(step))
    both = [[number for batch in half for number in numbers(batch)] for half in halves]
    assert sorted(x for half in both for x in half if x >= 0) == list(range(30))
    assert len(both[0]) == len(both[1])


def test_the_hash_is_of_rows_and_order():
    changed = rows()
    changed[7]["label"] = np.int32(5)
    hashes = [batches().hash, batches(seed=4).hash, batches(buckets=()).hash, batches(changed).hash]
    assert len(set(hashes)) == 4 and batches().hash == hashes[0]


def test_tasks_with_other_fields_share_batches():
    words = [{**row, "word_at": np.int32([1]), "labels": np.int32([3])} for row in rows(3)]
    for row in words:
        del row["label"]
    mixed = joined([rows(2), words])
    assert [int(row["task"]) for row in mixed] == [0, 0, 1, 1, 1]
    (batch,) = batches(mixed, batch_size=5)
    order = batch["row_number"]
    assert batch["labels"].shape == batch["tokens"].shape
    assert batch["label"][np.argsort(order)].tolist() == [0, 1, -1, -1, -1]
    assert batch["labels"][np.argsort(order), 0].tolist() == [-1, -1, 3, 3, 3]


def test_a_batch_of_more_rows_than_there_are_is_refused():
    with pytest.raises(UserError, match=r"batch_size=64 exceeds the 30 training rows"):
        batches(batch_size=64)(0)
