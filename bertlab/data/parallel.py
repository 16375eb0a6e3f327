"""An ordered, bounded map over worker processes, used by corpus extraction and by preparation."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
import itertools
import multiprocessing
import os
import threading
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def available_cores() -> int:
    """Number of CPU cores that this process may use (its affinity where the system tells it)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _exit_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def _start_worker(setup: Callable | None, arguments: tuple) -> None:
    # A pool worker waits for work for ever when its parent is killed; this thread ends it instead.
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    if setup is not None:
        setup(*arguments)


def ordered_map(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    workers: int = 0,
    setup: Callable[..., None] | None = None,
    arguments: tuple = (),
) -> Iterator[Result]:
    """Yields `function(item)` for every item, in the order of the items, computed by a pool of processes.

    At most `2 * workers + 2` items are in flight, so that memory stays bounded however long `items` is. Processes are
    spawned (never forked: JAX may be running threads in the parent), so `function` and `setup` must be importable
    from a module. With one worker, or one item, everything happens in this process.

    Args:
      function: called on each item.
      items: read lazily.
      workers: number of processes; 0 means one per available core.
      setup: called once in each process before the first item.
      arguments: arguments of `setup`.
    """
    items = iter(items)
    head = list(itertools.islice(items, 2))
    workers = workers or available_cores()
    if workers == 1 or len(head) < 2:
        if setup is not None:
            setup(*arguments)
        yield from map(function, itertools.chain(head, items))
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(setup, arguments))
    pending = deque()
    try:
        for item in itertools.chain(head, items):
            pending.append(pool.submit(function, item))
            if len(pending) > 2 * workers + 1:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
