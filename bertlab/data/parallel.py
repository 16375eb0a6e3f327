"""An ordered, bounded map over worker processes, used by corpus extraction and by preparation."""

import functools
import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""What Linux gives a container: "max PERIOD", or QUOTA PERIOD in microseconds."""

# In a worker process: what its `load` returned. Never set in the main process.
_loaded: Any = None


def available_cores() -> int:
    """Number of CPU cores that this process may use: its affinity, and at most a container's quota on Linux."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = CPU_QUOTA.read_text().split()
        return max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no container, or "max": no quota
        return cores


def memory_of_machine() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _exit_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def _start_worker(load: Callable[[], Any] | None) -> None:
    global _loaded
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all; the parent ends the others
    # A pool worker waits for work for ever when its parent is killed; this thread ends it instead.
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    # One process per core is enough; the `tokenizers` library would start as many threads in each.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _loaded = load() if load is not None else None


def _call_with_loaded(function: Callable[[Any, Any], Any], item: Any) -> Any:
    return function(_loaded, item)


def ordered_map(
    function: Callable[..., Any],
    items: Iterable[Any],
    *,
    workers: int = 0,
    load: Callable[[], Any] | None = None,
    few: int = 1,
) -> Iterator[Any]:
    """Yields `function(item)` for every item, in the order of the items, computed by a pool of processes.

    At most `2 * workers + 2` items are in flight, so memory stays bounded. Processes are spawned, not forked (JAX may run
    threads in this one), so `function` and `load` must be importable from a module. With one worker, or few items, everything
    happens in this process: starting others takes seconds.

    Args:
      function: called on each item; on `(loaded, item)` if `load` is given.
      items: read lazily, in this process.
      workers: number of processes; 0 means one per available core.
      load: called once in each process, for what is too large to send with each item.
      few: number of items up to which no processes are started.
    """
    items = iter(items)
    head = list(itertools.islice(items, few + 1))
    workers = workers or available_cores()
    if workers == 1 or len(head) <= few:
        yield from map(function if load is None else functools.partial(function, load()), itertools.chain(head, items))
        return
    call = function if load is None else functools.partial(_call_with_loaded, function)
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker, initargs=(load,)
    )
    pending = deque()
    try:
        for item in itertools.chain(head, items):
            pending.append(pool.submit(call, item))
            if len(pending) > 2 * workers + 1:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def grouped(items: Iterable[Any], size: Callable[[Any], int], enough: int) -> Iterator[list[Any]]:
    """Lists of consecutive items; a list ends when its sizes add up to `enough`, so it is cheap to send to a process."""
    group, total = [], 0
    for item in items:
        group.append(item)
        total += size(item)
        if total >= enough:
            yield group
            group, total = [], 0
    if group:
        yield group
