import multiprocessing
import os

import pytest

from bertlab.data import parallel
from bertlab.data.parallel import ordered_map


def scaled(factor, item):
    return factor * item, multiprocessing.parent_process() is not None


def load_factor():
    return 10


def fail_at_three(item):
    if item == 3:
        raise KeyError("three")
    return item


def die(item):
    os._exit(1)


@pytest.mark.parametrize("workers", [1, 2])
def test_order_and_processes(workers):
    found = ordered_map(scaled, range(20), workers=workers, load=load_factor)
    assert list(found) == [(10 * i, workers > 1) for i in range(20)]


def test_a_container_has_no_more_cores_than_its_quota(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(parallel.os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert parallel.available_cores() == 64
    for text, cores in (("max 100000", 64), ("200000 100000", 2), ("50000 100000", 1), ("9900000 100000", 64)):
        (tmp_path / "cpu.max").write_text(text + "\n")
        assert parallel.available_cores() == cores


def test_few_items_start_no_process():
    assert list(ordered_map(scaled, [3], workers=2, load=load_factor)) == [(30, False)]
    assert list(ordered_map(fail_at_three, [], workers=2)) == []


def test_items_are_read_as_needed_and_errors_of_workers_arrive():
    read = []

    def items():
        for i in range(1000):
            read.append(i)
            yield i

    results = ordered_map(fail_at_three, items(), workers=2)
    for number in range(3):
        assert next(results) == number
        assert len(read) <= 2 * 2 + 2 + number
    with pytest.raises(KeyError, match="three"):
        next(results)


def test_a_worker_that_dies_is_an_error():
    with pytest.raises(RuntimeError, match="terminated abruptly"):
        list(ordered_map(die, range(10), workers=2))
