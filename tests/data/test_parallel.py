import multiprocessing
import os

import pytest

from bertlab.data.parallel import ordered_map


def square(item):
    return item * item, multiprocessing.parent_process() is not None


def scaled(factor, item):
    return factor * item


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
    assert list(ordered_map(square, range(20), workers=workers)) == [(i * i, workers > 1) for i in range(20)]
    assert list(ordered_map(scaled, range(5), workers=workers, load=load_factor)) == [0, 10, 20, 30, 40]


def test_few_items_start_no_process():
    assert list(ordered_map(square, [3], workers=2)) == [(9, False)]
    assert list(ordered_map(square, [], workers=2, load=load_factor)) == []


def test_items_are_read_as_needed():
    read = []

    def items():
        for i in range(1000):
            read.append(i)
            yield i

    results = ordered_map(square, items(), workers=2)
    next(results)
    assert len(read) <= 2 * 2 + 2
    next(results)
    assert len(read) <= 2 * 2 + 3
    results.close()


def test_errors_of_workers_arrive():
    results = ordered_map(fail_at_three, range(10), workers=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="three"):
        next(results)


def test_a_worker_that_dies_is_an_error():
    with pytest.raises(RuntimeError, match="terminated abruptly"):
        list(ordered_map(die, range(10), workers=2))
